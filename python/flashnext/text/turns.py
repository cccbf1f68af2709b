"""Where prompts of a chat agree with those that may follow them: found by rendering both, never by guessing.

A template may write earlier messages in another way once others follow (thoughts are dropped), so the end of
a message in one prompt need not be in the next. What two texts have in common is cut back to the end of a
control token, up to which they then have the same token ids. A picture or a video has a name of its own in
them (`media_names`), so that different ones make different texts.

Of a chat of many messages the newest ones are rendered alone, under the system prompt and the question that
they are to answer, and what is found there counts where the whole prompt ends with the same text. Where a
template would put a cut of the whole chat elsewhere, the one found is of no use, and of no harm: a mark lies
behind the tokens of this very prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flashnext.errors import InvalidArgument
from flashnext.text import content
from flashnext.text.tokenizer import Edge
from flashnext.text.written import Written

Messages = list[dict[str, Any]]
Render = Callable[[Messages], Written]

MOST_ENDS = 8
"""Ends of messages that are looked for, the newest ones."""

APART_CHARS = 3000
"""Of what messages say between two such ends, at least: marks that lie closer would not be kept."""

MANY_MESSAGES = 128
"""Of chats with more messages the newest ones are rendered alone."""

_NEWEST_MESSAGES = 64  # so many, and at most twice as many where one by the user comes first then

_EARLY_MESSAGES = 8  # where they part from what may follow in the first of these, they may have parted before

_RENDERED_CHARS = 4_000_000  # so many characters are rendered for them at most


@dataclass(frozen=True)
class Turns:
    """Where a chat's prompt may be cut, in tokens; 0 for what it does not have.

    Attributes:
        system: Behind what all chats under the same system prompt and tools begin with.
        newest: Before the newest turn of the user, with whatever it may say.
        messages: Behind messages that lie apart, as a prompt that asks for a reply to them begins.
        next_turn: As far as the prompt of the turn after this one agrees, with whatever the reply may be.
        goes_on: Whether that may begin with this prompt and the reply as it was drawn: nothing that this one
            has ahead of the reply, such as the beginning of thoughts, is written otherwise there.
    """

    system: int
    newest: int
    messages: tuple[int, ...]
    next_turn: int
    goes_on: bool = True


@dataclass(frozen=True)
class _Part:
    """A chat, or what a long one begins and ends with, and the prompt of that.

    Attributes:
        chat: Its messages.
        plain: Their prompt.
        n_newest: Messages at its end that are the newest ones of the whole chat, without a gap.
        n_apart: Characters of its prompt that say nothing of the whole one: it ends otherwise from there, or
            what parts two prompts so early in it may part them earlier in the whole chat.
        n_left_out: Characters that the whole prompt has more.
    """

    chat: Messages
    plain: str
    n_newest: int
    n_apart: int
    n_left_out: int


def find_turns(render: Render, messages: Messages, text: Written, edges: Sequence[Edge]) -> Turns:
    """Find where a chat may be cut.

    Args:
        render: Writes the prompt of a chat.
        messages: The chat, in canonical form.
        text: Its prompt.
        edges: The ends of control tokens in that.
    """
    plain = text.plain()
    n_system = 1 if messages[0]["role"] == "system" else 0
    asked = [i for i, message in enumerate(messages) if message["role"] == "user"]
    whole = _Part(messages, plain, len(messages), -1, 0)
    near: _Part | None = whole
    if len(messages) > MANY_MESSAGES:
        near = _newest_part(render, messages, plain, n_system, asked)
    n_spare = len(messages) + 2  # messages that may be rendered for what the newest part does not say

    def agreed(part: _Part | None, n_kept: int, *more: dict[str, Any]) -> int | None:
        """Count the tokens in which the prompt of the first messages and more agrees; None if unknown."""
        n_dropped = len(messages) - n_kept
        if part is None or n_dropped > part.n_newest:
            return None
        with suppress(InvalidArgument):  # a template may refuse a part of what it takes as a whole
            other = render([*part.chat[: len(part.chat) - n_dropped], *more])
            n = shared_chars(part.plain, other.plain())
            return _tokens(edges, n + part.n_left_out) if n > part.n_apart else None
        return None

    def cut(n_kept: int, *more: dict[str, Any]) -> int:
        """Do the same, with the whole chat where its part does not say, unless that was done before."""
        nonlocal n_spare
        found = agreed(near, n_kept, *more)
        if found is None and near is not whole and (n := n_kept + len(more)) <= n_spare:
            n_spare -= n
            found = agreed(whole, n_kept, *more)
        return found or 0

    reply = {"role": "assistant", "content": "0"}
    next_turn = cut(len(messages), reply, _other_user([]))
    system = agreed(whole, n_system, _other_user(messages[n_system:])) or 0
    newest = system
    if asked and asked[-1] > n_system:
        newest = cut(asked[-1], _other_user(messages[asked[-1] :]))
    most = min(MOST_ENDS, _RENDERED_CHARS // (len(near.plain) + 1)) if near is not None else 0
    oldest = max(n_system, len(messages) - near.n_newest) if near is not None else 0
    ends = (agreed(near, k) for k in _ends(messages, oldest, most))
    return Turns(
        system=system,
        newest=newest,
        messages=tuple(n or 0 for n in ends),
        next_turn=next_turn,
        goes_on=next_turn == (edges[-1].n_tokens if edges else 0),
    )


def _newest_part(
    render: Render, messages: Messages, plain: str, n_system: int, asked: Sequence[int]
) -> _Part | None:
    """Render the newest messages, and what they are under; None where that fails.

    Args:
        render: Writes the prompt of a chat.
        messages: The whole chat.
        plain: Its prompt.
        n_system: How many messages its system prompt is.
        asked: Which messages are the user's.
    """
    first = len(messages) - _NEWEST_MESSAGES
    at = bisect_right(asked, first)
    question: Messages = []
    if at and asked[at - 1] > first - _NEWEST_MESSAGES:
        first = asked[at - 1]
    elif at:
        question = [messages[asked[at - 1]]]
    chat = [*messages[:n_system], *question, *messages[first:]]
    with suppress(InvalidArgument):
        part = render(chat).plain()
        n_alike = shared_chars(part[::-1], plain[: -len(part) - 1 : -1])
        early = render(chat[: len(chat) - (len(messages) - first) + _EARLY_MESSAGES]).plain()
        n_apart = max(len(part) - n_alike, shared_chars(part, early))
        return _Part(chat, part, len(messages) - first, n_apart, len(plain) - len(part))
    return None


def stable_tokens(
    render: Render, messages: Messages, encode: Callable[[Written], tuple[list[int], list[Edge]]]
) -> list[int]:
    """Give the tokens that every prompt of a chat begins with that goes on behind these messages.

    Args:
        render: Writes the prompt of a chat.
        messages: In canonical form; the last is the assistant's.
        encode: Tokenizes, and gives the ends of control tokens.
    """
    role = "tool" if messages[-1].get("tool_calls") else "user"
    one, other = (render([*messages, {"role": role, "content": text}]) for text in "01")
    ids, edges = encode(one)
    return ids[: _tokens(edges, shared_chars(one.plain(), other.plain()))]


def shared_chars(a: str, b: str) -> int:
    """Count the characters that two texts begin with alike."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _ends(messages: Messages, oldest: int, most: int) -> list[int]:
    """Choose messages whose ends lie apart, and from the end of all too; how many are before each."""
    ends: list[int] = []
    n_chars = 0
    for k in range(len(messages) - 1, oldest, -1):
        if len(ends) == most:
            break
        n_chars += content.size(messages[k]["content"]) + len(messages[k].get("reasoning_content", ""))
        if n_chars >= APART_CHARS:
            ends.append(k)
            n_chars = 0
    return ends[::-1]


def _tokens(edges: Sequence[Edge], n_chars: int) -> int:
    at = bisect_right(edges, n_chars, key=lambda edge: edge.n_chars)
    return edges[at - 1].n_tokens if at else 0


def _other_user(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make a turn of the user that begins in another way than what follows."""
    said = content.opening(messages[0]["content"]).lstrip() if messages else ""
    return {"role": "user", "content": "1" if said.startswith("0") else "0"}
