"""A reply taken apart as it arrives: thoughts, content and tool calls.

The parser is fed pieces of text and, apart from them, the control tokens of the reply. Only a real control
token opens or closes a block; a reply that merely spells `</think>` or `<tool_call>` in ordinary tokens says
so and does nothing. The rules:

* A prompt that ended with `<think>` starts the reply inside the block. `</think>` closes it; a second one is
  dropped. `<think>` opens a block again wherever content is expected. A block that is never closed is all
  reasoning.
* Inside a block everything but `</think>` is reasoning, `<tool_call>` too.
* White space at both ends of reasoning, between a block and what follows, and before and between calls is
  dropped; where reasoning or content goes on after something else, a blank line stands between its pieces.
* Where the request has tools, `<tool_call>` opens a call. Its body is `<function=NAME>`, any number of
  `<parameter=KEY>VALUE</parameter>` and `</function>`; one newline at each end of VALUE belongs to the
  format. A value ends at the first `</parameter>` that another parameter or the end of the function follows,
  so it may hold the text `</parameter>` itself. Of a parameter that stands twice the first counts. A body
  that is no call, or whose function has a name that no tool may have, becomes content.
* `<function=NAME>` at the start of a line, NAME being one of the request's tools, opens a call without
  `<tool_call>` too. It ends at the `</function>` that stands outside of values, or at the first one where a
  value is never closed.
* A reply that ends in a call by itself gives the call as far as it goes. A reply that is cut there gives no
  call, unless all of it stands there already: half a call must not be run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flashnext.text.arguments import TOOL_NAME, arguments_json, parameters_of

CONTROL_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

_FUNCTION = re.compile(rf"\s*<function=\s*({TOOL_NAME})\s*>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>|\Z))")
_FUNCTION_END = re.compile(r"\s*</function>")
_SPACE = re.compile(r"\s*")
_VALUE_CLOSE = "</parameter>"
_NEXT_VALUE = "<parameter="
_CALL_END = "</function>"


@dataclass(frozen=True)
class Reasoning:
    """A piece of the thoughts.

    Attributes:
        source: Where it stands among the characters that the parser took: the first, and one past the last.
            A blank line that `text` begins with may stand nowhere.
    """

    text: str
    source: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Content:
    """A piece of the answer; see `Reasoning`."""

    text: str
    source: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class ToolCall:
    """A complete call; `arguments` is a JSON object as text."""

    name: str
    arguments: str


Part = Reasoning | Content | ToolCall


class _State(Enum):
    THINKING = "thinking"
    CONTENT = "content"
    CALL = "call"
    BARE_CALL = "bare call"


class _Place(Enum):
    """Where the search for the end of a call is."""

    BETWEEN = "between values"
    VALUE = "in a value"
    CLOSED = "behind what may close a value"
    NOISE = "in what is no call"


class _BareCall:
    """The text of a call without `<tool_call>`, and the search for its end, which reads nothing twice."""

    def __init__(self, opening: str) -> None:
        """Start a call.

        Args:
            opening: Its `<function=NAME>`.
        """
        self.text = opening
        self._at = len(opening)  # where the search goes on
        self._where = _Place.BETWEEN

    def feed(self, text: str) -> int | None:
        """Take more text; returns where the call ends, None as long as that is not known."""
        self.text += text
        while True:
            if self._where in (_Place.VALUE, _Place.NOISE):
                tag = _VALUE_CLOSE if self._where is _Place.VALUE else _CALL_END
                found = self.text.find(tag, self._at)
                if found < 0:
                    self._at = max(self._at, len(self.text) - len(tag) + 1)
                    return None
                self._at = found + len(tag)
                if self._where is _Place.NOISE:
                    return self._at
                self._where = _Place.CLOSED
            space = _SPACE.match(self.text, self._at)
            self._at = space.end() if space else self._at
            if self.text.startswith(_CALL_END, self._at):
                return self._at + len(_CALL_END)
            rest = self.text[self._at : self._at + len(_CALL_END)]
            if opening := _PARAMETER.match(self.text, self._at):
                self._at, self._where = opening.end(), _Place.VALUE
            elif (
                len(rest) < len(_CALL_END) and (_CALL_END.startswith(rest) or _NEXT_VALUE.startswith(rest))
            ) or self._names_a_value():
                return None  # more has to come
            else:
                self._where = _Place.VALUE if self._where is _Place.CLOSED else _Place.NOISE

    def _names_a_value(self) -> bool:
        """Whether a parameter is being opened, and its name has not ended."""
        begin = self._at + len(_NEXT_VALUE)
        name = self.text[begin:]
        return self.text.startswith(_NEXT_VALUE, self._at) and not (">" in name or "\n" in name)


class ReplyParser:
    """The state of one reply. Any split of its text gives the same parts, up to where they are cut.

    Attributes:
        n_taken: Characters of the reply so far, those of control tokens that are text included.
    """

    def __init__(self, *, in_thinking: bool, tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Start a reply.

        Args:
            in_thinking: Whether the prompt ended inside a `<think>` block.
            tools: The request's tools; without them calls are not looked for.
        """
        self._tools = tools
        self._openings = tuple(f"<function={tool['function']['name']}>" for tool in tools or ())
        self._state = _State.THINKING if in_thinking else _State.CONTENT
        self._trim = in_thinking  # whether white space is dropped until the next visible character
        self._given: set[_State] = set()  # what has had visible text
        self._line_start = True
        self._held = ""  # white space, or the beginning of what may be a call
        self._call = ""
        self._bare = _BareCall("")
        self.n_taken = 0

    @property
    def in_thinking(self) -> bool:
        """Whether the reply is inside a `<think>` block."""
        return self._state is _State.THINKING

    def feed(self, text: str) -> list[Part]:
        """Take a piece of the reply's text."""
        self.n_taken += len(text)
        return self._read(text) if text else []

    def control(self, tag: str) -> list[Part]:
        """Take a control token of the reply, by its spelling; one that means nothing here is text."""
        if self._state is _State.THINKING:
            if tag == "</think>":
                self._enter(_State.CONTENT)
                return []
            return [] if tag == "<think>" else self.feed(tag)
        if self._state is _State.CONTENT:
            if tag == "</think>":
                if _State.CONTENT not in self._given:
                    self._enter(_State.CONTENT)
                return []
            if tag == "<think>":
                parts = self._flush_call_prefix()
                self._enter(_State.THINKING)
                return parts
            if self._tools and tag in ("<tool_call>", "</tool_call>"):
                parts = self._flush_call_prefix()
                self._enter(_State.CALL if tag == "<tool_call>" else _State.CONTENT)
                return parts
            return self.feed(tag)
        if tag not in ("<tool_call>", "</tool_call>"):
            return self.feed(tag)
        if self._state is _State.BARE_CALL:
            return [*self._end_bare_calls(), *self.control(tag)]
        parts = self._end_call(self._call)
        if tag == "<tool_call>":
            self._enter(_State.CALL)
        return parts

    def finish(self, *, cut: bool) -> list[Part]:
        """End the reply.

        Args:
            cut: Whether it was cut (by max_tokens, a stop string, a token that the request ends at, a
                cancellation) and did not end by itself.
        """
        if self._state is _State.THINKING:
            return []
        if self._state is _State.BARE_CALL:
            return [] if cut else [*self._end_bare_calls(), *self.finish(cut=cut)]
        if self._state is _State.CALL:
            if cut:
                return list(_calls_in(self._call, self._tools, whole=True))
            return self._end_call(self._call)
        parts = self._flush_call_prefix()
        held, self._held = self._held, ""
        if held and not self._trim:
            parts.append(Content(held, (self.n_taken - len(held), self.n_taken)))
        return parts

    def _enter(self, state: _State) -> None:
        self._state, self._held, self._call, self._trim, self._line_start = state, "", "", True, True

    def _read(self, text: str, behind: int = 0) -> list[Part]:
        """Read text.

        Args:
            text: What comes next.
            behind: Characters that were taken behind it.
        """
        parts: list[Part] = []
        while text:
            more, text = self._read_some(text, behind)
            parts += more
        return parts

    def _read_some(self, text: str, behind: int) -> tuple[list[Part], str]:
        """Read up to where the state changes; returns what is behind that too."""
        if self._state is _State.THINKING:
            return self._release(text, behind), ""
        if self._state is _State.CONTENT:
            return self._read_content(text, behind)
        if self._state is _State.CALL:
            self._call += text
            return [], ""
        end = self._bare.feed(text)
        return ([], "") if end is None else self._end_bare_call(end, behind)

    def _release(self, text: str, behind: int = 0) -> list[Part]:
        """Hold back white space at the end, drop it at the start of a block, give the rest.

        Args:
            text: What comes next.
            behind: Characters that were taken behind it.
        """
        text = self._held + text
        if self._trim:
            text = text.lstrip()
        visible = text.rstrip()
        self._held = text[len(visible) :]
        if not visible:
            return []
        end = self.n_taken - behind - len(self._held)
        source = (end - len(visible), end)
        if self._trim and self._state in self._given:
            visible = "\n\n" + visible
        self._trim = False
        self._given.add(self._state)
        return [Reasoning(visible, source) if self._state is _State.THINKING else Content(visible, source)]

    def _read_content(self, text: str, behind: int) -> tuple[list[Part], str]:
        text = self._held + text
        self._held = ""
        at = self._find_call(text) if self._openings else len(text)
        before, rest = text[:at], text[at:]
        parts = self._release(before, len(rest) + behind)
        if before:
            self._line_start = before.endswith("\n") or (self._line_start and before.isspace())
        opening = next((opening for opening in self._openings if rest.startswith(opening)), None)
        if opening is not None:
            self._enter(_State.BARE_CALL)
            self._bare = _BareCall(opening)
            return parts, rest[len(opening) :]
        self._held += rest
        return parts, ""

    def _find_call(self, text: str) -> int:
        """Where a call without `<tool_call>`, or what may become one, begins; else the length of text."""
        at = text.find("<")
        while at >= 0:
            line = text[text.rfind("\n", 0, at) + 1 : at]
            starts_line = not line.strip() and ("\n" in text[:at] or self._line_start)
            rest = text[at:]
            if starts_line and any(rest.startswith(o) or o.startswith(rest) for o in self._openings):
                return at
            at = text.find("<", at + 1)
        return len(text)

    def _flush_call_prefix(self) -> list[Part]:
        """Give out what looked like the beginning of a call and was none."""
        held, self._held = self._held, ""
        return self._release(held)

    def _end_bare_calls(self) -> list[Part]:
        """End a bare call whose end was not found, at its first `</function>`, and those behind it."""
        parts: list[Part] = []
        while self._state is _State.BARE_CALL:
            found = self._bare.text.find(_CALL_END)
            more, rest = self._end_bare_call(found + len(_CALL_END) if found >= 0 else len(self._bare.text))
            parts += [*more, *self._read_again(rest)]
        return parts

    def _end_bare_call(self, end: int, behind: int = 0) -> tuple[list[Part], str]:
        """End a bare call there; returns the text behind it too."""
        body, rest = self._bare.text[:end], self._bare.text[end:]
        return self._end_call(body, len(rest) + behind), rest

    def _read_again(self, text: str) -> list[Part]:
        """Read what was thought to be in a call; control tokens that came there are no text of the answer."""
        parts: list[Part] = []
        behind = len(text)
        for piece, is_control in split_control(text):
            if is_control and self._state is _State.CONTENT:
                held, self._held = self._held, ""
                parts += self._release(held, behind)
                if self._held and not self._trim:
                    end = self.n_taken - behind
                    parts.append(Content(self._held, (end - len(self._held), end)))
                self._held = ""
                behind -= len(piece)
            else:
                behind -= len(piece)
                parts += self._read(piece, behind)
        return parts

    def _end_call(self, body: str, behind: int = 0) -> list[Part]:
        """Read a call.

        Args:
            body: All of it.
            behind: Characters that were taken behind it.
        """
        self._enter(_State.CONTENT)
        if calls := _calls_in(body, self._tools):
            return list(calls)
        return self._without_tags(body, behind)

    def _without_tags(self, body: str, behind: int) -> list[Part]:
        """Give as text what turned out to be no call."""
        end = self.n_taken - behind - len(body)
        body = body.rstrip()
        while body.endswith(CONTROL_TAGS):
            body = body[: body.rindex("<")].rstrip()
        parts: list[Part] = []
        for piece, is_control in split_control(body):
            end += len(piece)
            if not is_control:
                parts += self._release(piece, self.n_taken - end)
                if self._held:  # more is sure to come, behind a tag
                    parts.append(Content(self._held, (end - len(self._held), end)))
                    self._held = ""
        self._trim = True
        return parts


def _calls_in(body: str, tools: Sequence[Mapping[str, Any]] | None, *, whole: bool = False) -> list[ToolCall]:
    """Read the calls in the body of a `<tool_call>` block, none where it is not of the format.

    Args:
        body: Of the block.
        tools: Those of the request.
        whole: Read none where a value or a function is not closed.
    """
    calls: list[ToolCall] = []
    at = 0
    while opening := _FUNCTION.match(body, at):
        name, at = opening.group(1), opening.end()
        values: dict[str, str] = {}
        while parameter := _PARAMETER.match(body, at):
            begin = parameter.end()
            if end := _VALUE_END.search(body, begin):
                stop, at = end.start(), end.end()
            elif whole:
                return []
            else:  # unclosed: the value is the rest, short of the end of the function
                rest = body[begin:].rstrip()
                closed = rest.endswith(_CALL_END)
                stop = at = begin + len(rest.removesuffix(_CALL_END).rstrip()) if closed else len(body)
            values.setdefault(parameter.group(1).strip(), body[begin:stop])
        if closing := _FUNCTION_END.match(body, at):
            at = closing.end()
        elif whole or body[at:].strip():
            return []
        calls.append(ToolCall(name, arguments_json(values, parameters_of(tools, name))))
    return calls if not body[at:].strip() else []


def split_control(text: str, tags: Sequence[str] = CONTROL_TAGS) -> list[tuple[str, bool]]:
    """Cut a reply that is given as one text into its pieces, with whether each is a control token."""
    pieces = re.split("(" + "|".join(map(re.escape, tags)) + ")", text)
    return [(piece, i % 2 == 1) for i, piece in enumerate(pieces) if piece]
