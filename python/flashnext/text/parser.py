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
  that is no call becomes content.
* `<function=NAME>` at the start of a line, NAME being one of the request's tools, opens a call without
  `<tool_call>` too.
* A reply that ends in a call by itself gives the call as far as it goes. A reply that is cut there gives no
  call: half a call must not be run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flashnext.text.arguments import arguments_json, parameters_of

CONTROL_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>|\Z))")
_FUNCTION_END = re.compile(r"\s*</function>")
_CALL_END = "</function>"


@dataclass(frozen=True)
class Reasoning:
    """A piece of the thoughts."""

    text: str


@dataclass(frozen=True)
class Content:
    """A piece of the answer."""

    text: str


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


class ReplyParser:
    """The state of one reply. Any split of its text gives the same parts, up to where they are cut."""

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

    @property
    def in_thinking(self) -> bool:
        """Whether the reply is inside a `<think>` block."""
        return self._state is _State.THINKING

    def feed(self, text: str) -> list[Part]:
        """Take a piece of the reply's text."""
        if not text:
            return []
        if self._state is _State.THINKING:
            visible = self._release(text)
            return [Reasoning(visible)] if visible else []
        if self._state is _State.CONTENT:
            return self._feed_content(text)
        self._call += text
        if self._state is _State.BARE_CALL and (end := self._call.find(_CALL_END)) >= 0:
            end += len(_CALL_END)
            body, rest = self._call[:end], self._call[end:]
            return [*self._end_call(body, whole=True), *self.feed(rest)]
        return []

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
        if tag in ("<tool_call>", "</tool_call>"):
            parts = self._end_call(self._call, whole=True)
            if tag == "<tool_call>":
                self._enter(_State.CALL)
            return parts
        return self.feed(tag)

    def finish(self, *, cut: bool) -> list[Part]:
        """End the reply.

        Args:
            cut: Whether it was cut (by max_tokens, a stop string, a cancellation) and did not end by itself.
        """
        if self._state is _State.THINKING:
            return []
        if self._state is _State.CONTENT:
            held, self._held = self._held, ""
            return [Content(held)] if held and not (self._trim and held.isspace()) else []
        return self._end_call(self._call, whole=not cut or self._call.rstrip().endswith(_CALL_END))

    def _enter(self, state: _State) -> None:
        self._state, self._held, self._call, self._trim, self._line_start = state, "", "", True, True

    def _release(self, text: str) -> str:
        """Hold back white space at the end, drop it at the start of a block, return the rest."""
        text = self._held + text
        if self._trim:
            text = text.lstrip()
        visible = text.rstrip()
        self._held = text[len(visible) :]
        if visible:
            if self._trim and self._state in self._given:
                visible = "\n\n" + visible
            self._trim = False
            self._given.add(self._state)
        return visible

    def _feed_content(self, text: str) -> list[Part]:
        text = self._held + text
        self._held = ""
        at = self._find_call(text) if self._openings else len(text)
        before, rest = text[:at], text[at:]
        visible = self._release(before)
        parts: list[Part] = [Content(visible)] if visible else []
        if before:
            self._line_start = before.endswith("\n") or (self._line_start and before.isspace())
        if rest.startswith(self._openings) and rest:
            self._enter(_State.BARE_CALL)
            return [*parts, *self.feed(rest)]
        self._held += rest
        return parts

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
        visible = self._release(held)
        return [Content(visible)] if visible else []

    def _end_call(self, body: str, *, whole: bool) -> list[Part]:
        self._enter(_State.CONTENT)
        if not whole:
            return []
        if calls := _calls_in(body, self._tools):
            return list(calls)
        for tag in CONTROL_TAGS:
            body = body.replace(tag, "")
        visible = self._release(body.rstrip())
        self._trim = True
        return [Content(visible)] if visible else []


def _calls_in(body: str, tools: Sequence[Mapping[str, Any]] | None) -> list[ToolCall]:
    """Read the calls in the body of a `<tool_call>` block, none where it is not of the format."""
    calls: list[ToolCall] = []
    at = 0
    while opening := _FUNCTION.match(body, at):
        name, at = opening.group(1).strip(), opening.end()
        values: dict[str, str] = {}
        while parameter := _PARAMETER.match(body, at):
            begin = parameter.end()
            if end := _VALUE_END.search(body, begin):
                stop, at = end.start(), end.end()
            else:  # unclosed: the value is the rest, short of the end of the function
                rest = body[begin:].rstrip()
                whole = rest.endswith(_CALL_END)
                stop = at = begin + len(rest.removesuffix(_CALL_END).rstrip()) if whole else len(body)
            values.setdefault(parameter.group(1).strip(), body[begin:stop])
        if closing := _FUNCTION_END.match(body, at):
            at = closing.end()
        elif body[at:].strip():
            return []
        calls.append(ToolCall(name, arguments_json(values, parameters_of(tools, name))))
    return calls if not body[at:].strip() else []


def split_control(text: str, tags: Sequence[str] = CONTROL_TAGS) -> list[tuple[str, bool]]:
    """Cut a reply that is given as one text into its pieces, with whether each is a control token."""
    pieces = re.split("(" + "|".join(map(re.escape, tags)) + ")", text)
    return [(piece, i % 2 == 1) for i, piece in enumerate(pieces) if piece]
