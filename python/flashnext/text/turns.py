"""Where prompts of a chat agree with those that may follow them: found by rendering both, never by guessing.

A template may write earlier messages in another way once others follow (thoughts are dropped), so the end of
a message in one prompt need not be in the next. What two texts have in common is cut back to the end of a
control token, up to which they then have the same token ids.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flashnext.errors import InvalidArgument
from flashnext.text.tokenizer import Edge
from flashnext.text.written import Written

Messages = list[dict[str, Any]]
Render = Callable[[Messages], Written]

MOST_ENDS = 8
"""Ends of messages that are looked for, the newest ones."""

APART_CHARS = 3000
"""Of what messages say between two such ends, at least: marks that lie closer would not be kept."""

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


def find_turns(render: Render, messages: Messages, text: Written, edges: Sequence[Edge]) -> Turns:
    """Find where a chat may be cut.

    Args:
        render: Writes the prompt of a chat.
        messages: The chat, in canonical form.
        text: Its prompt.
        edges: The ends of control tokens in that.
    """
    plain = text.plain()

    def agreed(other: Messages) -> int:
        with suppress(InvalidArgument):  # a template may refuse a part of what it takes as a whole
            return _tokens(edges, shared_chars(plain, render(other).plain()))
        return 0

    n_system = 1 if messages[0]["role"] == "system" else 0
    system = agreed([*messages[:n_system], _other_user(messages[n_system:])])
    asked = [i for i, message in enumerate(messages) if message["role"] == "user"]
    newest = system
    if asked and asked[-1] > n_system:
        newest = agreed([*messages[: asked[-1]], _other_user(messages[asked[-1] :])])
    most = min(MOST_ENDS, _RENDERED_CHARS // (len(plain) + 1))
    reply = {"role": "assistant", "content": "0"}
    next_turn = agreed([*messages, reply, _other_user([])])
    return Turns(
        system=system,
        newest=newest,
        messages=tuple(agreed(messages[:k]) for k in _ends(messages, n_system, most)),
        next_turn=next_turn,
        goes_on=next_turn == (edges[-1].n_tokens if edges else 0),
    )


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


def _ends(messages: Messages, n_system: int, most: int) -> list[int]:
    """Choose messages whose ends lie apart, and from the end of all too; how many are before each."""
    ends: list[int] = []
    n_chars = 0
    for k in range(len(messages) - 1, n_system, -1):
        n_chars += len(messages[k]["content"]) + len(messages[k].get("reasoning_content", ""))
        if n_chars >= APART_CHARS and len(ends) < most:
            ends.append(k)
            n_chars = 0
    return ends[::-1]


def _tokens(edges: Sequence[Edge], n_chars: int) -> int:
    at = bisect_right(edges, n_chars, key=lambda edge: edge.n_chars)
    return edges[at - 1].n_tokens if at else 0


def _other_user(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make a turn of the user that begins in another way than what follows."""
    said = messages[0]["content"].lstrip() if messages else ""
    return {"role": "user", "content": "1" if said.startswith("0") else "0"}
