"""The tokens of one reply turned into text, thoughts and calls as they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashnext.engine.stops import StopMatcher
from flashnext.text.detokenizer import Detokenizer
from flashnext.text.parser import CONTROL_TAGS, Content, Part, Reasoning, ReplyParser, ToolCall
from flashnext.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Chat:
    """That a reply is the turn of a chat, to be taken apart.

    Attributes:
        in_thinking: Whether the prompt ended inside a `<think>` block.
        tools: The tools that may be called.
    """

    in_thinking: bool
    tools: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Pieces:
    """What a token adds to a reply; see `Event`."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class ReplyText:
    """From token ids to pieces: detokenizer, parser (for a chat), stop strings, in this order.

    Stop strings are looked for in the answer alone, never in thoughts or calls, and in all text where there
    is no chat.

    Attributes:
        n_reasoning: Tokens that were drawn inside a `<think>` block.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        chat: Chat | None,
        *,
        one_call: bool = False,
        max_thoughts: int | None = None,
    ) -> None:
        """Start a reply.

        Args:
            tokenizer: Of the checkpoint.
            stops: Texts that end it.
            chat: What is known where it is the turn of a chat.
            one_call: Whether it ends after its first call.
            max_thoughts: It is stopped after so many tokens inside a block of thoughts.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._parser = ReplyParser(in_thinking=chat.in_thinking, tools=chat.tools) if chat else None
        self._stops = StopMatcher(stops)
        self._one_call = one_call
        self._called = False
        self._max_thoughts = max_thoughts
        self.n_reasoning = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string, the only call it may make, or a limit of thoughts has ended the reply."""
        return self._complete or self.out_of_thoughts

    @property
    def _complete(self) -> bool:
        """Whether nothing more belongs to the reply, whatever comes."""
        return self._stops.matched is not None or (self._one_call and self._called)

    @property
    def out_of_thoughts(self) -> bool:
        """Whether the reply is inside a block of thoughts and has had as many as it may."""
        return (
            self._max_thoughts is not None
            and self._parser is not None
            and self._parser.in_thinking
            and self.n_reasoning >= self._max_thoughts
        )

    def close_thoughts(self) -> None:
        """Take what closes the block next, and do not limit thoughts any more."""
        self._max_thoughts = None

    def push(self, token_id: int) -> Pieces:
        """Take the next token."""
        if self._parser is None:
            return Pieces(text=self._stops.feed(self._detokenizer.push(token_id)))
        self.n_reasoning += self._parser.in_thinking
        tag = self._tokenizer.control_spelling(token_id)
        if tag in CONTROL_TAGS:
            parts = self._parser.feed(self._detokenizer.flush())
            return self._pieces(parts + self._parser.control(tag))
        return self._pieces(self._parser.feed(self._detokenizer.push(token_id)))

    def finish(self, *, cut: bool) -> Pieces:
        """End the reply; returns what was held.

        Args:
            cut: Whether it was cut before its end token.
        """
        if self._complete:
            return Pieces()
        rest = self._detokenizer.flush()
        if self._parser is None:
            return Pieces(text=self._stops.feed(rest) + self._stops.flush())
        pieces = self._pieces(self._parser.feed(rest) + self._parser.finish(cut=cut))
        return Pieces(pieces.text + self._stops.flush(), pieces.reasoning, pieces.tool_calls)

    def _pieces(self, parts: Sequence[Part]) -> Pieces:
        text = reasoning = ""
        calls: list[ToolCall] = []
        for part in parts:
            if self._complete:
                break
            if isinstance(part, Content):
                text += self._stops.feed(part.text)
            elif isinstance(part, Reasoning):
                reasoning += part.text
            else:
                calls.append(part)
                self._called = True
        return Pieces(text, reasoning, tuple(calls))
