"""A reply in the form of Anthropic's messages: one object of blocks, or the events that build it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flashnext.engine.events import Event, Reply, Usage
from flashnext.errors import InvalidArgument
from flashnext.server.chat_form import seal
from flashnext.server.chat_response import PIECE_CHARS
from flashnext.server.errors import anthropic_envelope
from flashnext.server.messages_request import MessagesRequest
from flashnext.server.stream import PINGS, Framing
from flashnext.server.usage import extras, speculation
from flashnext.text.jsontext import clean_value, dumps, loads
from flashnext.text.parser import ToolCall


@dataclass
class MessagesResponse:
    """What all parts of one response share.

    Attributes:
        id: Of the message.
        request_id: Of the request.
        model: Name of the served model.
        asked: The request.
        seed: That the reply is drawn with.
        prompt_ids: The prompt.
        new_id: Makes the random part of ids.
    """

    framing: ClassVar[Framing] = PINGS

    id: str
    request_id: str
    model: str
    asked: MessagesRequest
    seed: int
    prompt_ids: list[int]
    new_id: Callable[[], str]

    def __post_init__(self) -> None:
        """Start without blocks."""
        self._kind = ""  # of the open block
        self._index = -1
        self._thoughts: list[str] = []  # of the open block
        self._n_calls = 0
        self._ids: list[int] = []

    @property
    def repeated_bytes(self) -> int:
        """Nothing: the end tells what is new alone."""
        return 0

    def whole(self, replies: Sequence[Reply]) -> bytes:
        """Write the reply as one object in JSON; numbers of calls are told as the model wrote them."""
        (reply,) = replies
        content: list[dict[str, Any]] = []
        if reply.reasoning:
            shown = "" if self.asked.hides_thoughts else reply.reasoning
            content.append(
                {"type": "thinking", "thinking": shown, "signature": self._signature(reply.reasoning)}
            )
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        content += [{**self._call(one), "input": _input(one)} for one in reply.tool_calls]
        self._n_calls = len(reply.tool_calls)
        message = {**self._head(), "content": content, **self._end(reply), "usage": _usage(reply.usage)}
        message |= self._extras(reply) | self._told_ids(list(reply.token_ids))
        return dumps(message, separators=(",", ":")).encode()

    def first_chunks(self) -> list[dict[str, Any]]:
        """Write the event that opens a stream, and a ping."""
        begun = {
            **self._head(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            # What of the prompt is cached is known when it has been read; the last event tells it.
            "usage": _usage(Usage(len(self.prompt_ids), 0, 0)),
        }
        return [{"type": "message_start", "message": begun}, {"type": "ping"}]

    def chunks(self, index: int, event: Event) -> list[dict[str, Any]]:
        """Write what an event adds, often nothing; its last event adds the end."""
        if self.asked.return_token_ids:
            self._ids += event.token_ids
        # Of a step that brings both, what belongs to the open block comes first.
        order = ("text", "thinking") if self._kind == "text" else ("thinking", "text")
        out = []
        for kind in order:
            out += self._say(kind, event.text if kind == "text" else event.reasoning)
        for one in event.tool_calls:
            out += self._write_call(one)
        if event.finish_reason is not None:
            assert event.usage is not None
            out += self._close()
            last = {"type": "message_delta", "delta": self._end(event), "usage": _usage(event.usage)}
            out += [last | self._extras(event) | self._told_ids(self._ids), {"type": "message_stop"}]
        return out

    def last_chunks(self) -> list[dict[str, Any]]:
        """Write nothing: the reply's last event was the stream's."""
        return []

    def error_chunks(self, error: Exception) -> list[dict[str, Any]]:
        """Write what ends a stream that has failed."""
        return [anthropic_envelope(error, self.request_id)[1]]

    def _say(self, kind: str, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        out = []
        if self._kind != kind:
            empty = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
            out += self._begin(empty)
        if kind == "thinking":
            self._thoughts.append(text)
            if self.asked.hides_thoughts:
                return out
        return [*out, self._delta({"type": f"{kind}_delta", kind: text})]

    def _write_call(self, found: ToolCall) -> list[dict[str, Any]]:
        """Write a call; one with long arguments comes in pieces."""
        self._n_calls += 1
        text = found.arguments
        pieces = [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]
        return [
            *self._begin({**self._call(found), "input": {}}),
            *(self._delta({"type": "input_json_delta", "partial_json": piece}) for piece in pieces),
            *self._close(),
        ]

    def _begin(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        out = self._close()
        self._kind = block["type"]
        self._index += 1
        return [*out, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> list[dict[str, Any]]:
        """End the open block, if there is one."""
        if not self._kind:
            return []
        out = []
        if self._kind == "thinking":
            signature = self._signature("".join(self._thoughts))
            out.append(self._delta({"type": "signature_delta", "signature": signature}))
            self._thoughts.clear()
        self._kind = ""
        return [*out, {"type": "content_block_stop", "index": self._index}]

    def _signature(self, thoughts: str) -> str:
        """Sign thoughts: clients want a word with them. Of hidden ones it holds what they are."""
        if self.asked.hides_thoughts:
            return seal(thoughts)
        return hashlib.sha256(thoughts.encode()).hexdigest()

    def _call(self, found: ToolCall) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"toolu_{self.new_id()}", "name": found.name}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def _end(self, last: Event | Reply) -> dict[str, Any]:
        """Say why the reply ended."""
        assert last.usage is not None
        if last.finish_reason == "length":
            full = last.usage.completion_tokens < self.asked.max_tokens
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif self._n_calls:
            reason = "tool_use"
        else:
            reason = "end_turn" if last.stop is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": last.stop if reason == "stop_sequence" else None}

    def _extras(self, last: Event | Reply) -> dict[str, Any]:
        return {"flashnext": extras(last, self.seed), **speculation([last.drafts])}

    def _told_ids(self, ids: list[int]) -> dict[str, Any]:
        if not self.asked.return_token_ids:
            return {}
        return {"prompt_token_ids": self.prompt_ids, "token_ids": ids}


def _input(found: ToolCall) -> Any:
    """Read a call's arguments, which are JSON that was written here."""
    try:
        return clean_value(loads(found.arguments))
    except InvalidArgument:  # nested deeper than what is read back
        return {"arguments": found.arguments}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
