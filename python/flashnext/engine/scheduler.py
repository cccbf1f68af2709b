"""The engine's mechanism: carries out the steps that the policy decides, and makes events of drawn tokens."""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from flashnext.engine.core import ChunkPart, Core, Landed, Session
from flashnext.engine.defaults import GAP_MS
from flashnext.engine.events import Counts, TokenLogprob
from flashnext.engine.job import Job
from flashnext.engine.policy import Costs, Limits, Running, Step, Waiting, next_step
from flashnext.engine.prefixes import Prefix, find_prefix
from flashnext.errors import DeviceError, OutOfPages

LOOK_AHEAD = 256
"""Waiting jobs that are considered in a step; beyond them nobody would be admitted anyway."""


class Scheduler:
    """Jobs that wait and run. One thread uses it, save for `cancel`, `wake`, `counts` and `now_s`.

    Rounds go on by themselves while no prompt is read (`Core.start`, `take`); while one is, each step is a
    chunk and a round. Sessions are made, forked and preempted with nothing in flight.
    """

    def __init__(
        self,
        core: Core,
        max_running: int = 1,
        gap_ms: float = GAP_MS,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Schedule the jobs of one core.

        Args:
            core: What runs them.
            max_running: Sequences that run at once.
            gap_ms: How long a decoding sequence may wait for its next round while prompts are read.
            clock_s: The clock that steps and replies are measured by.
        """
        self._core = core
        self._max_running = max_running
        self._gap_ms = gap_ms
        self._costs = Costs()
        self.now_s = clock_s
        self._waiting: list[Job] = []  # by rank, like the running ones
        self._running: list[Job] = []
        self._by_session: dict[Session, Job] = {}
        self._cancelled: deque[Job] = deque()
        self._going: list[Session] = []  # whose rounds go on by themselves
        self._landed_s = 0.0  # when those landed last
        self._short = False  # whether one of them came short of pages
        self._stale = True  # whether something has changed since the last decision
        self._free_pages = 0  # at the last decision
        self._n_arrived = self._n_changes = self._n_preempted = self._n_forked = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._running or self._going)

    @property
    def counts(self) -> Counts:
        """What is going on; from any thread."""
        return Counts(
            waiting=len(self._waiting),
            running=len(self._running),
            free_pages=self._core.free_pages(),
            preempted=self._n_preempted,
            forked=self._n_forked,
        )

    def add(self, job: Job) -> None:
        """Put a job at the end of the queue of its kind."""
        self._n_arrived += 1
        job.arrival = self._n_arrived
        if job.text.out_of_thoughts:  # it may have none
            self._close_thoughts(job)
        else:
            insort(self._waiting, job, key=_rank)
        self._stale = True
        if job.cancelled:
            self._cancelled.append(job)

    def cancel(self, job: Job) -> None:
        """End a job soon, wherever it stands. From any thread."""
        job.cancelled = True
        self._cancelled.append(job)
        self._core.wake()

    def wake(self) -> None:
        """Let a step that waits for tokens return soon. From any thread."""
        self._core.wake()

    def spare_time(self) -> bool:
        """Let the core use a moment in which there is nothing to do; whether it has use for another."""
        with suppress(Exception):  # nobody waits for it, and whoever comes next is told what is wrong
            return self._core.idle()
        return False

    def end_all(self, error: Exception) -> None:
        """End every job with an error, and the rounds."""
        for job in [*self._waiting, *self._running]:
            self._fail(job, error)
        self._stop()

    def step(self) -> None:
        """Do the next thing: end what was cancelled, preempt, admit, read a chunk, run or await rounds.

        What fails in a sequence's own step ends that sequence with its error, and no other.
        """
        self._end_cancelled()
        if self._going and not self._stale and self._core.free_pages() <= self._free_pages:
            self._land_rounds(self._device(self._going, self._core.take))
            return
        # Sessions are forked with nothing in flight, and who came short is left out until another start.
        if self._going and (self._short or self._next_fork()):
            self._stop()
            return
        while fork := self._next_fork():
            self._fork(fork)
        step = self._decide()
        if self._going and not step.admit and (step.chunk or not step.round):
            self._stop()  # and decide again by what has landed
            return
        jobs = {job.id: job for job in self._running}
        if step.preempt is not None:
            self._preempt(jobs[step.preempt])
        elif step.admit:
            self._admit(step.admit)
        elif step.chunk:
            self._step([(jobs[part.id], part.n) for part in step.chunk], [jobs[i] for i in step.round])
        elif step.round:
            self._go_on([jobs[i] for i in step.round])
        else:
            self._end_stuck()

    # --- deciding

    def _decide(self) -> Step:
        core = self._core
        self._stale = False
        self._free_pages = core.free_pages()
        limits = Limits(
            self._max_running, core.max_chunk, self._free_pages, core.max_sequences, gap_ms=self._gap_ms
        )
        forks: dict[Job, int] = {}  # where the next one is, of those who are waited for
        for job in self._running:
            if job.prefix:
                reader, n = job.prefix.reader, job.prefix.n
                forks[reader] = min(n, forks.get(reader, n))
        return next_step(
            [self._as_waiting(job, i) for i, job in enumerate(self._waiting[:LOOK_AHEAD])],
            [self._as_running(job, forks) for job in self._running],
            limits,
            self._costs,
        )

    def _as_waiting(self, job: Job, place: int) -> Waiting:
        # Only those near the front may soon be admitted, and a look at the others' prompts takes time.
        prefix = self._prefix(job) if place < self._max_running else None
        pages = self._core.pages(len(job.feed)) - self._pages_of(prefix)
        return Waiting(job.id, pages, job.background, job.resumed, job.overtaken)

    def _as_running(self, job: Job, forks: Mapping[Job, int]) -> Running:
        held = job.session.n_pages if job.session else 0
        missing, limit = 0, None
        if job.short:
            missing = max(1, self._core.pages(job.next_positions) - held)
        elif job.unread:
            missing = max(0, self._core.pages(len(job.feed)) - max(held, self._pages_of(job.prefix)))
        if job.unread:
            limit = 0 if job.prefix else forks[job] - job.n_read if job in forks else None
        return Running(job.id, job.unread, limit, missing, held, job.background, job.protected)

    def _prefix(self, job: Job) -> Prefix[Job] | None:
        """Find the more senior job that reads what this one begins with, and has not read beyond it.

        Those are served before it, so that nobody waits for one who waits for its pages.
        """
        if job.looked != self._n_changes:
            job.looked = self._n_changes
            least = 0 if job.scores else self._core.least_shared  # it has to read all of its prompt
            readers = [r for r in self._running if r.rank < job.rank and r.unread] if least else []
            job.seen = find_prefix(job.feed, readers, least)
        return job.seen

    def _pages_of(self, prefix: Prefix[Job] | None) -> int:
        """Count the pages that a fork shares, at least."""
        return max(0, self._core.pages(prefix.n) - self._core.pages(0) - 1) if prefix else 0

    # --- carrying it out

    def _end_cancelled(self) -> None:
        while self._cancelled:
            job = self._cancelled.popleft()
            if job in self._waiting or job in self._running:
                with self._contained(job):
                    event = job.cut()
                    self._drop(job)
                    job.send(event)

    def _preempt(self, job: Job) -> None:
        self._drop(job)
        job.rewind(self._core.prompt_equals_window)
        insort(self._waiting, job, key=_rank)
        self._n_preempted += 1

    def _close_thoughts(self, job: Job) -> None:
        """End the thoughts of a reply that has had as many as it may; it goes on at its place."""
        self._drop(job)
        with self._contained(job):
            for event in job.close_thoughts():
                job.send(event)
        if not job.ended:
            insort(self._waiting, job, key=_rank)

    def _admit(self, ids: Sequence[int]) -> None:
        admitted = [job for job in self._waiting if job.id in ids]
        passed = Counter[bool]()
        for job in reversed(self._waiting[: self._waiting.index(admitted[-1]) + 1]):
            if job.id in ids:
                passed[job.background] += 1
            else:
                job.overtaken += passed[job.background]
        for job in admitted:
            self._waiting.remove(job)
            insort(self._running, job, key=_rank)
            if job.times.admitted is None:
                job.times.admitted = self.now_s()
        self._changed()
        for job in admitted:
            job.prefix = self._prefix(job)

    def _next_fork(self) -> Job | None:
        """Find one whose wait is over: its reader has read what both share, or, it cannot be helped, more."""
        return next((j for j in self._running if j.prefix and j.prefix.reader.n_read >= j.prefix.n), None)

    def _fork(self, job: Job) -> None:
        """Fork a job off its reader, which has read what both share."""
        prefix, job.prefix = job.prefix, None
        assert prefix is not None
        if prefix.reader.session is None or prefix.reader.n_read != prefix.n:
            return  # it reads by itself
        with self._contained(job), suppress(OutOfPages):  # without a page for the copy, too
            self._give_session(job, self._core.fork(prefix.reader.session))
            job.n_read = prefix.n
            self._n_forked += 1
            if not job.resumed:
                job.n_cached = min(prefix.n, len(job.prompt))

    def _give_session(self, job: Job, session: Session) -> Session:
        job.session = session
        self._by_session[session] = job
        return session

    def _step(self, chunk: Sequence[tuple[Job, int]], round: Sequence[Job]) -> None:
        """Read a chunk and run a round."""
        parts: dict[Session, tuple[Job, int]] = {}
        passed: list[ChunkPart] = []
        for job, n in chunk:
            with self._contained(job):
                session = job.session or self._give_session(job, self._core.open())
                last = n == job.unread
                if last or job.scores:
                    self._core.begin(session, job.options())
                parts[session] = (job, n)
                tokens = job.feed[job.n_read : job.n_read + n]
                passed.append(ChunkPart(session, tokens, last, job.scored_of(n)))
        sessions = [job.session for job in round if job.session]
        self._stale = True
        if not passed and not sessions:
            return
        began = self.now_s()
        landed = self._device([*parts, *sessions], lambda: self._core.step(passed, sessions))
        self._measure_chunk((self.now_s() - began) * 1e3, sum(n for _, n in parts.values()), bool(sessions))
        unread = {one.session for one in landed if one.error or one.short}
        for session, (job, n) in parts.items():
            if session not in unread:
                job.n_read += n
                job.short = False
        self._land(landed)

    def _go_on(self, round: Sequence[Job]) -> None:
        """Let rounds go on by themselves, and await what lands next."""
        sessions = [job.session for job in round if job.session]
        if not self._going:
            self._landed_s = self.now_s()
        self._going = sessions

        def begin() -> Sequence[Landed]:
            self._core.start(sessions)
            return self._core.take()

        self._land_rounds(self._device(sessions, begin))

    def _land_rounds(self, landed: Sequence[Landed]) -> None:
        if landed:
            rounds = max(Counter(one.session for one in landed).values())
            now_s = self.now_s()
            self._measure_round((now_s - self._landed_s) * 1e3 / rounds)
            self._landed_s = now_s
        self._land(landed)

    def _stop(self) -> None:
        going, self._going = self._going, []
        self._stale, self._short = True, False
        if going:
            self._land(self._device(going, self._core.stop))

    def _device(self, sessions: Sequence[Session], call: Callable[[], Sequence[Landed]]) -> Sequence[Landed]:
        """Call the core; where that fails, all sessions that took part are lost, and the others go on."""
        try:
            return call()
        except Exception as error:
            self._going = []
            with suppress(Exception):  # its sessions are lost whatever they came to
                self._core.stop()
            for session in sessions:
                job = self._by_session.get(session)
                if job is not None:
                    self._fail(job, error)
            return []

    def _measure_chunk(self, ms: float, n_rows: int, with_round: bool) -> None:
        if n_rows:
            row_ms = max(ms / 10, ms - self._costs.round_ms * with_round) / n_rows
            self._costs = Costs(_smoothed(self._costs.row_ms, row_ms), self._costs.round_ms)

    def _measure_round(self, ms: float) -> None:
        self._costs = Costs(self._costs.row_ms, _smoothed(self._costs.round_ms, ms))

    def _end_stuck(self) -> None:
        """End the job that nothing can be done for: nobody else would give it pages."""
        jobs = self._running or self._waiting
        if jobs:
            found = self._core.free_pages()
            error = OutOfPages(
                f"the reply needs more than the {found} free of {self._core.n_pages} pages, and no other "
                "reply has any to give; ask for a shorter one, or serve a larger --context"
            )
            self._fail(jobs[0], error)

    # --- what has landed

    def _land(self, landed: Sequence[Landed]) -> None:
        for one in landed:
            job = self._by_session.get(one.session)
            if job is None:  # it has ended in the meantime
                continue
            if one.error is not None:
                self._fail(job, one.error)
                continue
            job.scored += [TokenLogprob(s.token, s.logprob, tuple(s.top)) for s in one.scores]
            job.n_proposed += one.proposed
            job.n_accepted += one.accepted
            with self._contained(job):
                self._take_tokens(job, one)
            if one.short:
                job.short = True
                self._short, self._stale = bool(self._going), True

    def _take_tokens(self, job: Job, landed: Landed) -> None:
        for drawn in landed.tokens:
            was_protected = job.protected
            event = job.take(drawn, self.now_s())
            job.short = False
            self._stale |= was_protected != job.protected
            if event is None:
                continue
            if event.finish_reason is not None:
                self._drop(job)
            job.send(event)
            if event.finish_reason is not None:
                return
            if job.text.out_of_thoughts:
                self._close_thoughts(job)  # whatever was drawn beyond does not count
            if job.cancelled:
                self._cancelled.append(job)
            if job.session is None:
                return
        if landed.ended:
            raise DeviceError(
                f"the device ended a reply after {len(job.token_ids)} tokens that has no end there"
            )

    @contextmanager
    def _contained(self, job: Job) -> Iterator[None]:
        """End this reply, and no other, where something goes wrong with it alone."""
        try:
            yield
        except Exception as error:
            self._fail(job, error)

    def _fail(self, job: Job, error: Exception) -> None:
        self._drop(job)
        job.send(error)

    def _drop(self, job: Job) -> None:
        """Take a job out, whatever it was doing; those that waited to be forked from it find others."""
        for jobs in (self._waiting, self._running):
            with suppress(ValueError):
                jobs.remove(job)
        self._changed()
        if job.session is not None:
            self._by_session.pop(job.session, None)
            job.session.close()
            job.session = None
        for other in list(self._running):
            if other.prefix and other.prefix.reader is job:
                other.prefix = self._prefix(other)

    def _changed(self) -> None:
        self._stale = True
        self._n_changes += 1


def _rank(job: Job) -> tuple[bool, int]:
    return job.rank


def _smoothed(before: float, now: float) -> float:
    """Follow a cost: half the way to what was measured last."""
    return now if before == 0 else (before + now) / 2
