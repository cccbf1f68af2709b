"""One request on its way through the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flashnext import _core
from flashnext.engine.core import Drawn, ReplyOptions, Session, Tokens
from flashnext.engine.events import Drafts, Event, Timings, TokenLogprob, Usage, token_sha
from flashnext.engine.prefixes import Prefix
from flashnext.engine.reply import Pieces, ReplyText
from flashnext.errors import DeviceError

Deliver = Callable[[Event | Exception], None]


@dataclass
class _Times:
    """When things happened to a job first, in seconds of the scheduler's clock."""

    arrived: float = 0.0
    admitted: float | None = None
    first: float | None = None
    last: float | None = None
    largest_gap: float | None = None

    def token(self, now_s: float) -> None:
        """Take note of a token."""
        if self.first is None or self.last is None:
            self.first = now_s
        else:
            self.largest_gap = max(self.largest_gap or 0.0, now_s - self.last)
        self.last = now_s


@dataclass(eq=False)
class Job:
    """One request: what it asks, what it has got, and where it stands.

    Used by the engine's thread, save for `send`, `ended` and `cancelled`.

    Attributes:
        prompt: (n,) int32, what the model reads.
        max_tokens: Most tokens of the reply; prompt and reply fit the context.
        stop_ids: Ids that end the reply.
        scores: Whether the first event tells the log-probabilities of the prompt's own tokens.
        n_drafts: Most drafts of a round.
        deliver: Takes the events, and at the end the last event or an exception. Called by the engine's
            thread, or by the one that closes the engine; must not block.
        background: Whether it yields to those that are not.
        cancelled: Set by any thread; the job ends soon.
        arrival: Its place among all jobs.
        overtaken: Less senior jobs that were admitted before it.
        session: While it is admitted and does not wait for a fork.
        feed: What it reads before it draws: the prompt, and when it goes on after a preemption the reply too.
        n_read: Tokens of `feed` that have been read.
        prefix: Whose session it waits to be forked from.
        seen: What a look at the running jobs found to be forked from.
        looked: When that was.
        n_drawn: Tokens of the reply that this session has read or drawn; fewer than have been sent where it
            was preempted.
        short: Whether its last round or chunk came short of pages.
        resumed: Whether it has been preempted.
        protected: Whether it was preempted and has got nothing new since.
    """

    id: int
    prompt: Tokens
    max_tokens: int
    stop_ids: frozenset[int]
    sampling: _core.Sampling
    logprobs: bool
    n_drafts: int
    text: ReplyText
    deliver: Deliver
    scores: bool = False
    background: bool = False
    cancelled: bool = False
    arrival: int = 0
    overtaken: int = 0
    session: Session | None = None
    n_read: int = 0
    prefix: Prefix[Job] | None = None
    seen: Prefix[Job] | None = None
    looked: int = -1
    n_drawn: int = 0
    short: bool = False
    resumed: bool = False
    protected: bool = False
    times: _Times = field(default_factory=_Times)
    token_ids: list[int] = field(default_factory=list)
    scored: list[TokenLogprob] = field(default_factory=list)
    n_cached: int = 0
    n_proposed: int = 0
    n_accepted: int = 0
    feed: Tokens = field(init=False)
    _ended: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self.feed = self.prompt

    @property
    def rank(self) -> tuple[bool, int]:
        """Seniority: the least is the most senior."""
        return self.background, self.arrival

    @property
    def unread(self) -> int:
        """Tokens that are to be read before it draws."""
        return len(self.feed) - self.n_read

    @property
    def next_positions(self) -> int:
        """Positions that it may come to by its next round, or by reading all that it reads."""
        if self.unread:
            return len(self.feed)
        return len(self.prompt) + min(self.n_drawn + self.n_drafts, self.max_tokens)

    @property
    def ended(self) -> bool:
        """Whether the last event or an error has been sent."""
        return self._ended

    def options(self) -> ReplyOptions:
        """Say to the core how the reply is drawn."""
        return ReplyOptions(
            sampling=self.sampling,
            stop_ids=tuple(sorted(self.stop_ids)),
            n_prompt=len(self.prompt),
            end=len(self.prompt) + self.max_tokens,
            n_drafts=self.n_drafts,
            known=tuple(self.token_ids),
        )

    @property
    def is_scoring(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens have still to be told."""
        return self.scores and not self.token_ids

    def scored_of(self, n: int) -> Tokens:
        """Of the next n tokens that are read, those behind them whose log-probabilities are wanted."""
        return self.prompt[self.n_read + 1 : self.n_read + 1 + n] if self.is_scoring else self.prompt[:0]

    def rewind(self, prompt_equals_window: bool) -> None:
        """Go back to the beginning, to read everything again and go on where the reply is.

        Where the arithmetic of prompts and rounds is the same, the reply is read like a prompt, and its last
        token is drawn again; else the whole reply is drawn again.
        """
        self.resumed = self.protected = True
        self.session, self.n_read, self.short, self.prefix = None, 0, False, None
        self.scored.clear()
        self.n_drawn = max(0, len(self.token_ids) - 1) if prompt_equals_window else 0
        reply = np.array(self.token_ids[: self.n_drawn], np.int32)
        self.feed = np.concatenate([self.prompt, reply])

    def send(self, item: Event | Exception) -> None:
        """Deliver an event or an error; whatever comes after the last is dropped."""
        with self._lock:
            if self._ended:
                return
            self._ended = isinstance(item, Exception) or item.finish_reason is not None
        try:
            self.deliver(item)
        except Exception:  # the receiver is gone (an event loop that was closed); nobody reads the reply
            self.cancelled = True

    def take(self, drawn: Drawn, now_s: float) -> Event | None:
        """Add a token that was drawn to the reply.

        Returns:
            Its event; None where the token had been sent before the job was preempted.

        Raises:
            DeviceError: The logits are not numbers, or the token is not the one that was sent.
            Exception: What is wrong with the reply's text.
        """
        token, at = drawn.token, self.n_drawn
        if token < 0:
            raise DeviceError(
                "the model's logits are not numbers; the checkpoint's weights are damaged, fetch them again"
            )
        self.n_drawn += 1
        if at < len(self.token_ids):
            if token != self.token_ids[at]:
                raise DeviceError(
                    f"token {at} of the reply was {self.token_ids[at]}, and {token} when it was drawn again "
                    "after the reply had made room for others; the device does not compute the same twice"
                )
            return None
        self.protected = False
        scored = tuple(self.scored) if self.is_scoring else None
        self.token_ids.append(token)
        self.times.token(now_s)
        logprobs = (TokenLogprob(token, drawn.logprob, tuple(drawn.top)),) if self.logprobs else None
        event = self._event(token, logprobs)
        return event if scored is None else replace(event, prompt_logprobs=scored)

    def _event(self, token: int, logprobs: tuple[TokenLogprob, ...] | None) -> Event:
        if token in self.stop_ids:
            return self._last("stop", (token,), self.text.finish(cut=False), logprobs)
        pieces = self.text.push(token)
        if self.text.stopped:
            return self._last("stop", (token,), pieces, logprobs)
        if len(self.token_ids) >= self.max_tokens:
            rest = self.text.finish(cut=True)
            whole = Pieces(
                pieces.text + rest.text,
                pieces.reasoning + rest.reasoning,
                pieces.tool_calls + rest.tool_calls,
            )
            return self._last("length", (token,), whole, logprobs)
        return Event(
            (token,), pieces.text, logprobs, reasoning=pieces.reasoning, tool_calls=pieces.tool_calls
        )

    def cut(self) -> Event:
        """End the reply where it is, since it was cancelled."""
        return self._last("cancelled", (), self.text.finish(cut=True), None)

    def _last(
        self,
        reason: str,
        token_ids: Sequence[int],
        pieces: Pieces,
        logprobs: tuple[TokenLogprob, ...] | None,
    ) -> Event:
        return Event(
            tuple(token_ids),
            pieces.text,
            logprobs,
            finish_reason=reason,
            usage=Usage(len(self.prompt), len(self.token_ids), self.text.n_reasoning, self.n_cached),
            reasoning=pieces.reasoning,
            tool_calls=pieces.tool_calls,
            token_sha=token_sha(self.token_ids),
            drafts=Drafts(self.n_proposed, self.n_accepted),
            timings=self._timings(),
        )

    def _timings(self) -> Timings:
        return self.timings_until(self.times.last, len(self.token_ids))

    def timings_until(self, last_s: float | None, n: int) -> Timings:
        """Say where the time went until the n-th token, which came at `last_s` of the scheduler's clock."""
        times = self.times
        decode_ms = _ms(times.first, last_s)
        return Timings(
            queued_ms=_ms(times.arrived, times.admitted),
            prompt_ms=_ms(times.admitted, times.first),
            first_token_ms=_ms(times.arrived, times.first),
            decode_ms=decode_ms,
            token_ms=decode_ms / (n - 1) if decode_ms is not None and n > 1 else None,
            largest_gap_ms=None if times.largest_gap is None else times.largest_gap * 1e3,
        )


def _ms(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else (end - begin) * 1e3
