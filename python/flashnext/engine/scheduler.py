"""The engine's mechanism: carries out the steps that the policy decides, and makes events of drawn tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from flashnext import _core
from flashnext.engine.core import Core, Drawn, Session, Tokens
from flashnext.engine.events import Event, TokenLogprob, Usage, token_sha
from flashnext.engine.policy import Costs, Limits, Running, Waiting, next_step
from flashnext.engine.reply import Pieces, ReplyText
from flashnext.errors import DeviceError

Deliver = Callable[[Event | Exception], None]


def _smoothed(before: float, now: float) -> float:
    """Follow a cost: half the way to what was measured last."""
    return now if before == 0 else (before + now) / 2


@dataclass(eq=False)
class Job:
    """One request on its way through the engine.

    Attributes:
        prompt: (n,) int32, what the model reads.
        max_tokens: Most tokens of the reply; prompt and reply fit the context.
        stop_ids: Ids that end the reply.
        n_drafts: Most drafts of a round.
        deliver: Takes the events, and at the end the last event or an exception. Called by the engine's
            thread, or by the one that closes the engine; must not block.
        cancelled: Set by any thread; the job ends at the next step.
        overtaken: Jobs that came later and were admitted before it.
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
    cancelled: bool = False
    overtaken: int = 0
    session: Session | None = None
    n_read: int = 0
    token_ids: list[int] = field(default_factory=list)
    _ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

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

    @property
    def ended(self) -> bool:
        """Whether the last event or an error has been sent."""
        return self._ended

    @property
    def positions(self) -> int:
        """Rows that the job comes to; the last token drawn is never fed."""
        return len(self.prompt) + self.max_tokens - 1


class Scheduler:
    """Jobs that wait and run. Used by one thread, save for the fields of `Job` that say otherwise."""

    def __init__(
        self,
        core: Core,
        max_running: int = 1,
        gap_ms: float = 250.0,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Schedule the jobs of one core.

        Args:
            core: What runs them.
            max_running: Sequences that run at once.
            gap_ms: How long a decoding sequence may wait for its next round while prompts are read.
            clock_s: The clock that steps are measured by.
        """
        self._core = core
        self._limits = Limits(max_running, core.max_chunk, core.n_pages, gap_ms)
        self._costs = Costs()
        self._clock_s = clock_s
        self._waiting: dict[int, Job] = {}
        self._running: dict[int, Job] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting and not self._running

    def add(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        self._waiting[job.id] = job

    def fail_all(self, error: Exception) -> None:
        """End every job with an error."""
        for job in [*self._waiting.values(), *self._running.values()]:
            self._fail(job, error)

    def step(self) -> None:
        """Do the next thing: end what was cancelled, admit, read a chunk, run a round.

        What fails in a sequence's own step ends that sequence with its error, and no other.
        """
        for job in [*self._waiting.values(), *self._running.values()]:
            if job.cancelled:
                with self._contained(job):
                    self._finish(job, "cancelled", (), job.text.finish(cut=True))
        pages = self._core.pages
        step = next_step(
            [Waiting(job.id, pages(job.positions), job.overtaken) for job in self._waiting.values()],
            [
                Running(job.id, pages(job.positions), len(job.prompt) - job.n_read)
                for job in self._running.values()
            ],
            self._limits,
            self._costs,
        )
        for job_id in step.admit:
            for earlier in self._waiting.values():
                if earlier.id == job_id:
                    break
                earlier.overtaken += earlier.id not in step.admit
            self._admit(self._waiting[job_id])
        if step.chunk:
            self._read(self._running[step.chunk.id], step.chunk.n)
        if step.round:
            self._round([self._running[job_id] for job_id in step.round])

    def _admit(self, job: Job) -> None:
        try:
            job.session = self._core.open()
        except Exception as error:
            self._fail(job, error)
        else:
            del self._waiting[job.id]
            self._running[job.id] = job

    def _read(self, job: Job, n: int) -> None:
        assert job.session is not None
        end = job.n_read + n
        began = self._clock_s()
        try:
            drawn = self._core.prompt(
                job.session,
                job.prompt[job.n_read : end],
                end == len(job.prompt),
                job.sampling,
                self._drafts(job),
            )
        except Exception as error:
            self._fail(job, error)
            return
        row_ms = (self._clock_s() - began) * 1e3 / n
        self._costs = replace(self._costs, row_ms=_smoothed(self._costs.row_ms, row_ms))
        job.n_read = end
        self._take(job, drawn)

    def _round(self, jobs: list[Job]) -> None:
        began = self._clock_s()
        try:
            drawn = self._core.round(
                [job.session for job in jobs if job.session is not None],
                [self._drafts(job) for job in jobs],
            )
        except Exception as error:  # the pass was one, so all its sequences are lost with it
            for job in jobs:
                self._fail(job, error)
            return
        round_ms = (self._clock_s() - began) * 1e3
        self._costs = replace(self._costs, round_ms=_smoothed(self._costs.round_ms, round_ms))
        for job, tokens in zip(jobs, drawn, strict=True):
            self._take(job, tokens)

    def _drafts(self, job: Job) -> int:
        """Most drafts of the round after the next step, which draws a token at least."""
        return max(0, min(job.n_drafts, job.max_tokens - len(job.token_ids) - 2))

    def _take(self, job: Job, drawn: Sequence[Drawn]) -> None:
        """Add drawn tokens to a reply, as far as the one that ends it."""
        with self._contained(job):
            for one in drawn:
                if job.session is None:
                    return
                self._take_token(job, one)

    @contextmanager
    def _contained(self, job: Job) -> Iterator[None]:
        """End this reply, and no other, where something goes wrong with its own text."""
        try:
            yield
        except Exception as error:
            self._fail(job, error)

    def _take_token(self, job: Job, drawn: Drawn) -> None:
        token = drawn.token
        if token < 0:
            raise DeviceError(
                "the model's logits are not numbers; the checkpoint's weights are damaged, fetch them again"
            )
        job.token_ids.append(token)
        logprobs = (TokenLogprob(token, drawn.logprob, tuple(drawn.top)),) if job.logprobs else None
        if token in job.stop_ids:
            self._finish(job, "stop", (token,), job.text.finish(cut=False), logprobs)
            return
        pieces = job.text.push(token)
        if job.text.stopped:
            self._finish(job, "stop", (token,), pieces, logprobs)
        elif len(job.token_ids) >= job.max_tokens:
            rest = job.text.finish(cut=True)
            whole = Pieces(
                pieces.text + rest.text,
                pieces.reasoning + rest.reasoning,
                pieces.tool_calls + rest.tool_calls,
            )
            self._finish(job, "length", (token,), whole, logprobs)
        else:
            job.send(
                Event(
                    (token,), pieces.text, logprobs, reasoning=pieces.reasoning, tool_calls=pieces.tool_calls
                )
            )

    def _finish(
        self,
        job: Job,
        reason: str,
        token_ids: tuple[int, ...],
        pieces: Pieces,
        logprobs: tuple[TokenLogprob, ...] | None = None,
    ) -> None:
        self._drop(job)
        job.send(
            Event(
                token_ids,
                pieces.text,
                logprobs,
                finish_reason=reason,
                usage=Usage(len(job.prompt), len(job.token_ids), job.text.n_reasoning),
                reasoning=pieces.reasoning,
                tool_calls=pieces.tool_calls,
                token_sha=token_sha(job.token_ids),
            )
        )

    def _fail(self, job: Job, error: Exception) -> None:
        self._drop(job)
        job.send(error)

    def _drop(self, job: Job) -> None:
        self._waiting.pop(job.id, None)
        self._running.pop(job.id, None)
        if job.session is not None:
            job.session.close()
            job.session = None
