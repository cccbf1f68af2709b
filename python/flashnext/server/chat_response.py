"""Replies in OpenAI's form: one completion of one choice or more, or the chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flashnext.engine.events import Drafts, Event, Reply, Usage
from flashnext.server.errors import envelope
from flashnext.server.logprobs import ChatLogprobs
from flashnext.server.stream import CHUNKS, Framing, encode
from flashnext.server.usage import extras, speculation, told_reason, usage_of
from flashnext.text.parser import ToolCall

PIECE_CHARS = 4096
"""Most characters of a call's arguments in one chunk."""


@dataclass
class _Choice:
    """What the stream of one choice has said so far."""

    seed: int
    usage: Usage
    n_calls: int = 0
    drafts: Drafts | None = None


@dataclass
class ChatResponse:
    """What all parts of one response share.

    Attributes:
        id: Of the response.
        model: Name of the served model.
        created: Unix time in seconds.
        fingerprint: Of model and settings.
        seeds: That each choice is drawn with.
        prompt_ids: The prompt.
        tell_ids: Whether the request asks for token ids.
        end_usage: Whether the stream ends with a chunk of usage.
        each_usage: Whether each chunk has the usage so far.
        new_call_id: Makes ids of tool calls.
        logprobs: Writes log-probabilities; None where they are not asked for.
    """

    framing: ClassVar[Framing] = CHUNKS

    id: str
    model: str
    created: int
    fingerprint: str
    seeds: Sequence[int]
    prompt_ids: list[int]
    tell_ids: bool
    end_usage: bool
    each_usage: bool
    new_call_id: Callable[[], str]
    logprobs: ChatLogprobs | None

    def __post_init__(self) -> None:
        """Start the choices."""
        self._choices = [_Choice(seed, Usage(len(self.prompt_ids), 0, 0)) for seed in self.seeds]

    @property
    def repeated_bytes(self) -> int:
        """Nothing: the end tells what is new alone."""
        return 0

    def whole(self, replies: Sequence[Reply]) -> bytes:
        """Write all choices, one for each seed, as one object in JSON."""
        out = self._head("chat.completion")
        if self.tell_ids:
            out["prompt_token_ids"] = self.prompt_ids
        choices = [self._whole_choice(i, reply) for i, reply in enumerate(replies)]
        usage = usage_of(reply.usage for reply in replies)
        metrics = speculation(reply.drafts for reply in replies)
        return encode({**out, "choices": choices, "usage": usage, **metrics})

    def _whole_choice(self, index: int, reply: Reply) -> dict[str, Any]:
        state = self._choices[index]
        message: dict[str, Any] = {
            "role": "assistant", "content": reply.text, "refusal": None, **_reasoning(reply.reasoning)
        }  # fmt: skip
        if reply.tool_calls:
            message["content"] = reply.text or None
            message["tool_calls"] = self._calls(state, reply.tool_calls)
        choice = {
            "index": index,
            "message": message,
            "logprobs": self.logprobs and self.logprobs.write(reply),
            "finish_reason": told_reason(reply.finish_reason, state.n_calls),
            "flashnext": extras(reply, state.seed),
        }
        return {**choice, "token_ids": list(reply.token_ids)} if self.tell_ids else choice

    def first_chunks(self) -> list[dict[str, Any]]:
        """Write the chunks that open a stream; they alone have the role."""
        chunks = [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(len(self._choices))]
        if self.tell_ids:
            chunks[0]["prompt_token_ids"] = self.prompt_ids
        return chunks

    def chunks(self, index: int, event: Event) -> list[dict[str, Any]]:
        """Write what an event adds to a choice's stream, often nothing; its last event adds the end."""
        state = self._choices[index]
        state.usage = event.usage or Usage(
            len(self.prompt_ids), state.usage.completion_tokens + len(event.token_ids), 0
        )
        delta: dict[str, Any] = _reasoning(event.reasoning)
        if event.text:
            delta["content"] = event.text
        first = state.n_calls
        pieces = [
            {"index": first + i, **piece}
            for i, call in enumerate(self._calls(state, event.tool_calls))
            for piece in _pieces(call)
        ]
        if pieces:
            delta["tool_calls"] = pieces[:1]
        logprobs = None
        if self.logprobs and (event.text_logprobs or event.reasoning_logprobs):
            logprobs = self.logprobs.write(event)
        out: list[dict[str, Any]] = []
        if delta or logprobs or (self.tell_ids and event.token_ids):
            out.append(self._chunk(index, delta, logprobs=logprobs))
            if self.tell_ids:
                out[0]["choices"][0]["token_ids"] = list(event.token_ids)
        out += [self._chunk(index, {"tool_calls": [piece]}) for piece in pieces[1:]]
        if event.finish_reason is not None:
            state.drafts = event.drafts
            last = self._chunk(index, {}, told_reason(event.finish_reason, state.n_calls))
            last["choices"][0]["flashnext"] = extras(event, state.seed)
            out.append(last)
        return out

    def last_chunks(self) -> list[dict[str, Any]]:
        """Write what ends a stream: its usage, where that is asked for."""
        if not self.end_usage:
            return []
        metrics = speculation(state.drafts for state in self._choices)
        return [{**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage(), **metrics}]

    def error_chunks(self, error: Exception) -> list[dict[str, Any]]:
        """Write what ends a stream that has failed."""
        return [envelope(error)[1]]

    def _usage(self) -> dict[str, Any]:
        return usage_of(state.usage for state in self._choices)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self.each_usage:
            chunk["usage"] = self._usage()
        elif self.end_usage:
            chunk["usage"] = None
        return chunk

    def _calls(self, state: _Choice, calls: tuple[ToolCall, ...]) -> list[dict[str, Any]]:
        state.n_calls += len(calls)
        return [
            {
                "id": self.new_call_id(),
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments},
            }
            for c in calls
        ]


def _pieces(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Cut a call with long arguments, so that no chunk of a stream is large; the first piece names it."""
    function = call["function"]
    text = function["arguments"]
    yield {**call, "function": {**function, "arguments": text[:PIECE_CHARS]}}
    for at in range(PIECE_CHARS, len(text), PIECE_CHARS):
        yield {"function": {"arguments": text[at : at + PIECE_CHARS]}}


def _reasoning(text: str) -> dict[str, Any]:
    """Give the thoughts under both names that clients read."""
    return {"reasoning_content": text, "reasoning": text} if text else {}
