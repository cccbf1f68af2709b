"""A reply in the form of OpenAI's responses: one object of items, or the events that build it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flashnext.engine.events import Event, Reply, Usage
from flashnext.engine.sampling import Sampling
from flashnext.server.chat_form import seal
from flashnext.server.chat_response import PIECE_CHARS
from flashnext.server.errors import envelope
from flashnext.server.logprobs import ChatLogprobs
from flashnext.server.responses_request import ResponsesRequest
from flashnext.server.stream import EVENTS, Chunk, Encoded, Framing, encode
from flashnext.server.usage import extras, speculation
from flashnext.text.parser import ToolCall

_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


@dataclass
class _Open:
    """The item that is being written.

    Attributes:
        item: As it is told at its end; its text comes then.
        index: Its place in the output.
        texts: What it says, in pieces.
        logprobs: Of each token of them, in JSON: they are told again three times when the item is closed.
    """

    item: dict[str, Any]
    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)


@dataclass
class ResponsesResponse:
    """What all parts of one response share.

    Attributes:
        id: Of the response.
        model: Name of the served model.
        created: Unix time in seconds.
        now: The time of day, in Unix seconds.
        asked: The request.
        sampling: How it is drawn.
        seed: That it is drawn with.
        prompt_ids: The prompt.
        new_id: Makes the random part of ids.
        logprobs: Writes log-probabilities; None where they are not asked for.
        keep: Told the finished response, in JSON, and its output.
    """

    framing: ClassVar[Framing] = EVENTS

    id: str
    model: str
    created: int
    now: Callable[[], float]
    asked: ResponsesRequest
    sampling: Sampling
    seed: int
    prompt_ids: list[int]
    new_id: Callable[[], str]
    logprobs: ChatLogprobs | None
    keep: Callable[[bytes, list[dict[str, Any]]], object]

    def __post_init__(self) -> None:
        """Start without items."""
        self._output: list[dict[str, Any]] = []  # without log-probabilities
        self._closed: list[bytes] = []  # the same in JSON, with them, but for the item that is open
        self._open: _Open | None = None
        self._n_events = 0
        self._ids: list[int] = []

    @property
    def repeated_bytes(self) -> int:
        """How much its last events tell again: all items."""
        one = self._open
        pieces = [*self._closed, *(one.logprobs if one else ()), *(one.texts if one else ())]
        return sum(map(len, pieces))

    def whole(self, replies: Sequence[Reply]) -> bytes:
        """Write the reply as one object in JSON."""
        (reply,) = replies
        self._add(reply)
        return self._finished(reply)[2]

    def first_chunks(self) -> list[Chunk]:
        """Write the events that open a stream."""
        begun = self._response("in_progress")
        return [self._with_response(name, begun) for name in ("created", "in_progress")]

    def chunks(self, index: int, event: Event) -> list[Chunk]:
        """Write what an event adds, often nothing; its last event adds the end."""
        out = self._add(event)
        if event.finish_reason is not None:
            closing, status, response = self._finished(event)
            out += [*closing, self._with_response(status, response)]
        return out

    def last_chunks(self) -> list[Chunk]:
        """Write nothing: the reply's last event was the stream's."""
        return []

    def error_chunks(self, error: Exception) -> list[Chunk]:
        """Write what ends a stream that has failed, with the items as far as they came."""
        closing = self._close("incomplete")
        told = {"code": "server_error", "message": envelope(error)[1]["error"]["message"]}
        failed = self._response("failed", error=told)
        return [*closing, self._with_response("failed", failed)]

    def _add(self, told: Event | Reply) -> list[Chunk]:
        """Write the events of what a step, or all, of the reply says."""
        if self.asked.return_token_ids:
            self._ids += told.token_ids
        order = ("reasoning", "message")
        if self._open is not None and self._open.item["type"] == "message":
            order = ("message", "reasoning")  # of a step that brings both, the open item's comes first
        out: list[Chunk] = []
        for kind in order:
            out += self._think(told) if kind == "reasoning" else self._say(told)
        for one in told.tool_calls:
            out += self._call(one)
        return out

    def _think(self, told: Event | Reply) -> list[Chunk]:
        if not told.reasoning:
            return []
        out = self._open_as("reasoning", content=[], summary=[])
        return out + self._text(told.reasoning, "reasoning_text", [])

    def _say(self, told: Event | Reply) -> list[Chunk]:
        # One by one: while a long list is encoded at once, no other thread runs.
        logprobs = [encode(self.logprobs.entry(one)) for one in told.text_logprobs] if self.logprobs else []
        if not told.text and not logprobs:
            return []
        out = self._open_as("message", role="assistant", content=[])
        return out + self._text(told.text, "output_text", logprobs)

    def _text(self, text: str, kind: str, logprobs: list[bytes]) -> list[Chunk]:
        """Write more text of the open item, whose part begins with it."""
        one = self._opened()
        place = {**self._place(), "content_index": 0}
        out: list[Chunk] = []
        if not one.texts:
            part = {"type": kind, "text": "", **({"annotations": []} if kind == "output_text" else {})}
            out.append(self._event("response.content_part.added", **place, part=part))
        one.texts.append(text)
        one.logprobs += logprobs
        delta = self._event(f"response.{kind}.delta", **place, delta=text)
        return [*out, _with(delta, logprobs=_list(logprobs)) if kind == "output_text" else delta]

    def _call(self, found: ToolCall) -> list[Chunk]:
        """Write a call; one with long arguments comes in pieces."""
        call_id = f"call_{self.new_id()}"
        out = self._open_as("function_call", call_id=call_id, name=found.name, arguments="")
        one = self._opened()
        text = found.arguments
        for at in range(0, len(text), PIECE_CHARS):
            piece = text[at : at + PIECE_CHARS]
            out.append(self._event("response.function_call_arguments.delta", **self._place(), delta=piece))
        one.texts.append(text)
        return out + self._close("completed")

    def _open_as(self, kind: str, **more: Any) -> list[Chunk]:
        """Go on with the open item where it is of this kind, else begin one."""
        if self._open is not None and self._open.item["type"] == kind:
            return []
        out = self._close("completed")
        item = {"id": f"{_PREFIXES[kind]}_{self.new_id()}", "type": kind, "status": "in_progress", **more}
        self._open = _Open(item, len(self._output))
        self._output.append(item)
        index = self._open.index
        return [*out, self._event("response.output_item.added", output_index=index, item=dict(item))]

    def _close(self, status: str) -> list[Chunk]:
        """End the open item, if there is one."""
        if self._open is None:
            return []
        item, text = self._open.item, "".join(self._open.texts)
        kind = item["type"]
        item["status"] = status
        out: list[Chunk] = []
        if kind == "function_call":
            item["arguments"] = text
            closed = encode(item)
            out.append(self._event("response.function_call_arguments.done", **self._place(), arguments=text))
        else:
            name = "reasoning_text" if kind == "reasoning" else "output_text"
            part: dict[str, Any] = {"type": name, "text": text}
            logprobs: dict[str, bytes] = {}
            if kind == "message":
                part["annotations"] = []
                logprobs["logprobs"] = _list(self._open.logprobs)
            elif self.asked.tells_sealed:
                item["encrypted_content"] = seal(text)
            place = {**self._place(), "content_index": 0}
            out.append(_with(self._event(f"response.{name}.done", **place, text=text), **logprobs))
            written = _spliced(part, **(logprobs if self.logprobs else {}))
            out.append(_with(self._event("response.content_part.done", **place), part=written))
            del item["content"]
            closed = _spliced(item, content=_list([written]))
            item["content"] = [part]
        done = self._event("response.output_item.done", output_index=self._open.index)
        out.append(_with(done, item=closed))
        self._closed.append(closed)
        self._open = None
        return out

    def _opened(self) -> _Open:
        assert self._open is not None
        return self._open

    def _place(self) -> dict[str, Any]:
        one = self._opened()
        return {"item_id": one.item["id"], "output_index": one.index}

    def _finished(self, last: Event | Reply) -> tuple[list[Chunk], str, bytes]:
        """End the reply; returns the events that close its items, its status, and all of it."""
        cut = last.finish_reason == "length"
        closing = self._close("incomplete" if cut else "completed")
        assert last.usage is not None
        more: dict[str, Any] = {"usage": _usage(last.usage), "flashnext": extras(last, self.seed)}
        more |= speculation([last.drafts])
        if cut:
            more["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            more["completed_at"] = int(self.now())
        if self.asked.return_token_ids:
            more |= {"prompt_token_ids": self.prompt_ids, "token_ids": self._ids}
        status = "incomplete" if cut else "completed"
        response = self._response(status, **more)
        self.keep(response, self._output)
        return closing, status, response

    def _response(self, status: str, **more: Any) -> bytes:
        """Write the response; what it says of the request has been encoded by whoever read that."""
        asked, sampling = self.asked, self.sampling
        response = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "max_output_tokens": asked.max_output_tokens,
            "model": self.model,
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": asked.previous_response_id,
            "reasoning": {"effort": asked.reasoning.get("effort"), "summary": None},
            "store": asked.store,
            "temperature": sampling.temperature,
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": asked.metadata,
            **more,
        }
        # No response is told while an item is open.
        return b"%s,%s" % (_spliced(response, output=_list(self._closed))[:-1], asked.told_back[1:])

    def _with_response(self, name: str, response: bytes) -> Encoded:
        return _with(self._event(f"response.{name}"), response=response)

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._n_events, **more}
        self._n_events += 1
        return event


def _with(event: dict[str, Any], **told: bytes) -> Encoded:
    """Write an event with values that are JSON already."""
    return Encoded(event["type"], _spliced(event, **told))


def _spliced(value: dict[str, Any], **told: bytes) -> bytes:
    """Write an object, which is not empty, with values that are JSON already."""
    more = [b',"%s":%s' % (name.encode(), one) for name, one in told.items()]
    return b"".join([encode(value)[:-1], *more, b"}"])


def _list(values: Sequence[bytes]) -> bytes:
    return b"[%s]" % b",".join(values)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
