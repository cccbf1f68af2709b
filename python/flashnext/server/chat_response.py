"""Replies in OpenAI's form: one completion, or the chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flashnext.engine.events import Event, Reply, Usage
from flashnext.text.parser import ToolCall


@dataclass
class ChatResponse:
    """What all parts of one response share, and what its stream has said so far.

    Attributes:
        id: Of the response.
        model: Name of the served model.
        created: Unix time in seconds.
        seed: That the reply is drawn with.
        prompt_ids: The prompt, where the request asks for token ids.
        include_usage: Whether the stream ends with a chunk of usage.
        new_call_id: Makes ids of tool calls.
    """

    id: str
    model: str
    created: int
    seed: int
    prompt_ids: list[int] | None
    include_usage: bool
    new_call_id: Callable[[], str]
    n_calls: int = field(default=0, init=False)

    def completion(self, reply: Reply) -> dict[str, Any]:
        """Write the whole reply as one object."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, **_reasoning(reply.reasoning)}
        if reply.tool_calls:
            message["content"] = reply.text or None
            message["tool_calls"] = self._calls(reply.tool_calls)
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish_reason(reply.finish_reason),
            "flashnext": {"token_sha": reply.token_sha, "seed": self.seed},
        }
        out = self._head("chat.completion")
        if self.prompt_ids is not None:
            choice["token_ids"] = list(reply.token_ids)
            out["prompt_token_ids"] = self.prompt_ids
        return {**out, "choices": [choice], "usage": _usage(reply.usage)}

    def first_chunk(self) -> dict[str, Any]:
        """Write the chunk that opens a stream; it alone has the role."""
        chunk = self._chunk({"role": "assistant", "content": ""})
        if self.prompt_ids is not None:
            chunk["prompt_token_ids"] = self.prompt_ids
        return chunk

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        """Write what an event adds to the stream, often nothing; the last event adds the end."""
        delta: dict[str, Any] = _reasoning(event.reasoning)
        if event.text:
            delta["content"] = event.text
        if event.tool_calls:
            first = self.n_calls
            calls = self._calls(event.tool_calls)
            delta["tool_calls"] = [{"index": first + i, **call} for i, call in enumerate(calls)]
        out: list[dict[str, Any]] = []
        if delta or (self.prompt_ids is not None and event.token_ids):
            out.append(self._chunk(delta))
            if self.prompt_ids is not None:
                out[0]["choices"][0]["token_ids"] = list(event.token_ids)
        if event.finish_reason is not None:
            assert event.usage is not None
            last = self._chunk({}, self._finish_reason(event.finish_reason))
            last["choices"][0]["flashnext"] = {"token_sha": event.token_sha, "seed": self.seed}
            out.append(last)
            if self.include_usage:
                out.append(
                    {**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(event.usage)}
                )
        return out

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage: dict[str, Any] = {"usage": None} if self.include_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **usage}

    def _calls(self, calls: tuple[ToolCall, ...]) -> list[dict[str, Any]]:
        self.n_calls += len(calls)
        return [
            {
                "id": self.new_call_id(),
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments},
            }
            for c in calls
        ]

    def _finish_reason(self, reason: str) -> str:
        return "tool_calls" if self.n_calls and reason == "stop" else reason


def _reasoning(text: str) -> dict[str, Any]:
    """Give the thoughts under both names that clients read."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
