"""Completions in OpenAI's form: one object with all choices, or the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flashnext.engine.events import Drafts, Event, Reply, TokenLogprob, Usage, token_sha
from flashnext.server.errors import envelope
from flashnext.server.logprobs import TextLogprobs
from flashnext.server.stream import CHUNKS, Framing, encode
from flashnext.server.usage import extras, speculation, total, usage_of
from flashnext.text.tokenizer import Tokenizer


@dataclass
class Echo:
    """A prompt as it is told before its reply.

    Attributes:
        scored: Whether its tokens' log-probabilities are asked for; they are there when it has been read.
    """

    text: str
    scored: bool


@dataclass
class Choice:
    """One reply to one prompt.

    Attributes:
        prompt: Number of its prompt.
        seed: That it is drawn with; None for max_tokens 0, where the prompt is all that is told.
        echo: What is told before it.
        logprobs: Writes its log-probabilities, where those are asked for.
    """

    prompt: int
    prompt_ids: list[int]
    seed: int | None
    echo: Echo | None
    logprobs: TextLogprobs | None
    usage: Usage = field(init=False)
    drafts: Drafts | None = None

    def __post_init__(self) -> None:
        """Count the prompt, which is all that has been used."""
        self.usage = Usage(len(self.prompt_ids), 0, 0)

    def extras(self, last: Event | Reply | None) -> dict[str, Any]:
        """Write the object `flashnext`, of its last event or all of it; None where nothing is told of it."""
        if last is None or self.seed is None:
            return {"token_sha": token_sha(())}
        return extras(last, self.seed)


@dataclass
class CompletionResponse:
    """What all parts of one response share.

    Attributes:
        id: Of the response.
        model: Name of the served model.
        created: Unix time in seconds.
        fingerprint: Of model and settings.
        tokenizer: Of the checkpoint.
        choices: In the order of their index.
        tell_ids: Whether the request asks for token ids.
        end_usage: Whether the stream ends with a chunk of usage.
        each_usage: Whether each chunk has the usage so far.
    """

    framing: ClassVar[Framing] = CHUNKS

    id: str
    model: str
    created: int
    fingerprint: str
    tokenizer: Tokenizer
    choices: Sequence[Choice]
    tell_ids: bool
    end_usage: bool
    each_usage: bool

    @property
    def repeated_bytes(self) -> int:
        """Nothing: the end tells what is new alone."""
        return 0

    def whole(self, replies: Sequence[Reply]) -> bytes:
        """Write all choices in JSON; without replies, as for max_tokens 0, the prompts alone."""
        given: Sequence[Reply | None] = replies or [None] * len(self.choices)
        choices = [self._whole(i, reply) for i, reply in enumerate(given)]
        metrics = speculation(reply.drafts for reply in replies)
        return encode({**self._head(), "choices": choices, "usage": self._usage(), **metrics})

    def _whole(self, index: int, reply: Reply | None) -> dict[str, Any]:
        state = self.choices[index]
        echo = _echo(state, reply.prompt_logprobs if reply else None)
        reply = None if state.seed is None else reply
        state.usage = reply.usage if reply else state.usage
        drawn = _logprobs(state, (reply and reply.logprobs) or ())
        out = {
            "index": index,
            "text": (state.echo.text if state.echo else "") + (reply.text if reply else ""),
            "logprobs": _joined(echo, drawn),
            "finish_reason": reply.finish_reason if reply else "length",
            "flashnext": state.extras(reply),
        }
        if self.tell_ids:
            out["token_ids"] = list(reply.token_ids) if reply else []
            out["prompt_token_ids"] = state.prompt_ids
        return out

    def first_chunks(self) -> list[dict[str, Any]]:
        """Write the chunks that open a stream: the prompts, where they or their ids are asked for.

        Those of prompts that are scored come when these have been read.
        """
        scored = [state.echo is not None and state.echo.scored for state in self.choices]
        return [chunk for i in range(len(scored)) if not scored[i] for chunk in self._opening(i, None)]

    def _opening(self, index: int, scores: Sequence[TokenLogprob] | None) -> list[dict[str, Any]]:
        """Write what opens a choice; for max_tokens 0 it is all of it, and has the end."""
        state = self.choices[index]
        if not state.echo and not self.tell_ids:
            return []
        whole = state.seed is None
        text = state.echo.text if state.echo else ""
        chunk = self._chunk(index, text, _echo(state, scores), "length" if whole else None)
        if whole:
            chunk["choices"][0]["flashnext"] = state.extras(None)
        if self.tell_ids:
            chunk["choices"][0]["prompt_token_ids"] = state.prompt_ids
            chunk["choices"][0]["token_ids"] = []
        return [chunk]

    def chunks(self, index: int, event: Event) -> list[dict[str, Any]]:
        """Write what an event adds to a choice's stream, often nothing; its last event adds the end."""
        state = self.choices[index]
        opening = [] if event.prompt_logprobs is None else self._opening(index, event.prompt_logprobs)
        if state.seed is None:
            return opening
        state.usage = event.usage or Usage(
            len(state.prompt_ids), state.usage.completion_tokens + len(event.token_ids), 0
        )
        logprobs = _logprobs(state, event.logprobs or ()) if event.logprobs else None
        last = event.finish_reason is not None
        state.drafts = event.drafts
        if not (event.text or logprobs or last or (self.tell_ids and event.token_ids)):
            return opening
        chunk = self._chunk(index, event.text, logprobs, event.finish_reason)
        if last:
            chunk["choices"][0]["flashnext"] = state.extras(event)
        if self.tell_ids:
            chunk["choices"][0]["token_ids"] = list(event.token_ids)
        return [*opening, chunk]

    def last_chunks(self) -> list[dict[str, Any]]:
        """Write what ends a stream: its usage, where that is asked for."""
        if not self.end_usage:
            return []
        metrics = speculation(state.drafts for state in self.choices)
        return [{**self._head(), "choices": [], "usage": self._usage(), **metrics}]

    def error_chunks(self, error: Exception) -> list[dict[str, Any]]:
        """Write what ends a stream that has failed."""
        return [envelope(error)[1]]

    def _usage(self) -> dict[str, Any]:
        by_prompt: dict[int, list[Usage]] = {}
        for state in self.choices:
            by_prompt.setdefault(state.prompt, []).append(state.usage)
        return total(usage_of(usages) for usages in by_prompt.values())

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = {**self._head(), "choices": [choice]}
        if self.each_usage:
            chunk["usage"] = self._usage()
        elif self.end_usage:
            chunk["usage"] = None
        return chunk


def _echo(state: Choice, scores: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    if scores is None or state.logprobs is None:
        return None
    rest = [(one.token_id, one.logprob, one.top) for one in scores]
    return state.logprobs.write([(state.prompt_ids[0], None, ()), *rest], skip_special=False)


def _logprobs(state: Choice, drawn: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    if state.logprobs is None:
        return None
    return state.logprobs.write([(one.token_id, one.logprob, one.top) for one in drawn])


def _joined(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    if first is None or second is None:
        return first or second
    return {key: None if first[key] is None else [*first[key], *second[key]] for key in first}
