"""The tokens of one reply turned into text, thoughts and calls as they are drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashnext.engine.events import TokenLogprob
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


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a token adds to a reply; see `Event`."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    text_logprobs: tuple[TokenLogprob, ...] = ()
    reasoning_logprobs: tuple[TokenLogprob, ...] = ()

    def __add__(self, more: Pieces) -> Pieces:
        return Pieces(
            self.text + more.text,
            self.reasoning + more.reasoning,
            self.tool_calls + more.tool_calls,
            self.text_logprobs + more.text_logprobs,
            self.reasoning_logprobs + more.reasoning_logprobs,
        )


@dataclass
class Said:
    """All that a chat's reply says, as a later prompt tells it."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, pieces: Pieces) -> None:
        """Add what a token brought."""
        self.text.append(pieces.text)
        self.reasoning.append(pieces.reasoning)
        self.tool_calls += pieces.tool_calls

    def message(self) -> dict[str, Any]:
        """Write it as a message of a chat."""
        out: dict[str, Any] = {"role": "assistant", "content": "".join(self.text)}
        if reasoning := "".join(self.reasoning):
            out["reasoning_content"] = reasoning
        if self.tool_calls:
            out["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return out


def closing_ids(tokenizer: Tokenizer) -> list[int]:
    """Write the end of a block of thoughts as the template writes it."""
    return [*tokenizer.encode("\n"), tokenizer.control_ids["</think>"], *tokenizer.encode("\n\n")]


@dataclass(frozen=True)
class _Drawn:
    """A token that makes text, and where its own first character and all of its text stand."""

    logprob: TokenLogprob
    begin: int
    end: int


class _Placing:
    """Says which tokens make which text of a chat's reply.

    A token goes with the first of its characters that is text, so tokens whose text is held back are held as
    well, and those that make none (of a call, dropped white space, what a stop string cut off) never come.
    """

    def __init__(self) -> None:
        self._drawn: deque[_Drawn] = deque()  # not met by any part yet
        self._held: deque[tuple[int, TokenLogprob]] = deque()  # by the character of the answer
        self._n_text = self._n_sent = 0  # characters of the answer that were read, and that were sent

    def add(self, logprob: TokenLogprob, begin: int, end: int) -> None:
        """Take a token that was drawn, and the characters that the parser took of it."""
        self._drawn.append(_Drawn(logprob, begin, end))

    def read(self, part: Content | Reasoning) -> list[TokenLogprob]:
        """Take the next part; returns the tokens of thoughts, and holds those of the answer."""
        begin, end = part.source
        lead = len(part.text) - (end - begin)
        placed: list[tuple[int, TokenLogprob]] = []
        while self._drawn and self._drawn[0].begin < end:
            token = self._drawn.popleft()
            if token.end > begin:
                placed.append((lead + max(0, token.begin - begin), token.logprob))
        if isinstance(part, Reasoning):
            return [logprob for _, logprob in placed]
        self._held += ((self._n_text + at, logprob) for at, logprob in placed)
        self._n_text += len(part.text)
        return []

    def send(self, n: int) -> tuple[TokenLogprob, ...]:
        """Send n more characters of the answer; returns the tokens that begin in them."""
        self._n_sent += n
        sent: list[TokenLogprob] = []
        while self._held and self._held[0][0] < self._n_sent:
            sent.append(self._held.popleft()[1])
        return tuple(sent)


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
            max_thoughts: So many tokens it may have inside a block of thoughts.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._parser = ReplyParser(in_thinking=chat.in_thinking, tools=chat.tools) if chat else None
        self._stops = StopMatcher(stops)
        self._placing = _Placing()
        self._one_call = one_call
        self._called = False
        self._max_thoughts = max_thoughts
        self.n_reasoning = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string, or the only call it may make, has ended the reply."""
        return self._stops.matched is not None or (self._one_call and self._called)

    @property
    def stop(self) -> str | None:
        """The stop string that has ended the reply, if one has."""
        return self._stops.matched

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

    def push(self, token_id: int, logprob: TokenLogprob | None = None) -> Pieces:
        """Take the next token.

        Args:
            token_id: The token.
            logprob: For a chat, where its log-probability is to be told with the text that it makes.
        """
        if self._parser is None:
            return Pieces(text=self._stops.feed(self._detokenizer.push(token_id)))
        self.n_reasoning += self._parser.in_thinking
        tag = self._tokenizer.control_spelling(token_id)
        if tag in CONTROL_TAGS:
            parts = self._parser.feed(self._detokenizer.flush())
            begin = self._parser.n_taken
            parts += self._parser.control(tag)
        else:
            begin = self._parser.n_taken
            parts = self._parser.feed(self._detokenizer.push(token_id))
        end = self._parser.n_taken
        if logprob is not None and (tag is None or end > begin):
            self._placing.add(logprob, begin, max(end, begin + 1))  # perhaps of a character to be completed
        return self._pieces(parts)

    def finish(self, *, cut: bool) -> Pieces:
        """End the reply; returns what was held.

        Args:
            cut: Whether it was cut before its end token.
        """
        if self.stopped:
            return Pieces()
        rest = self._detokenizer.flush()
        if self._parser is None:
            return Pieces(text=self._stops.feed(rest) + self._stops.flush())
        return self._pieces(self._parser.feed(rest) + self._parser.finish(cut=cut), last=True)

    def _pieces(self, parts: Sequence[Part], *, last: bool = False) -> Pieces:
        text = reasoning = ""
        calls: list[ToolCall] = []
        thoughts: list[TokenLogprob] = []
        for part in parts:
            if self.stopped:
                break
            if isinstance(part, ToolCall):
                calls.append(part)
                self._called = True
                continue
            thoughts += self._placing.read(part)
            if isinstance(part, Content):
                text += self._stops.feed(part.text)
            else:
                reasoning += part.text
        if last or self.stopped:
            text += self._stops.flush()
        return Pieces(text, reasoning, tuple(calls), self._placing.send(len(text)), tuple(thoughts))
