"""The engine's mechanism: carries out the steps that the policy decides, and makes events of drawn tokens."""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flashnext.engine.caching import Caching
from flashnext.engine.core import ChunkPart, Core, Landed, Session
from flashnext.engine.defaults import GAP_MS
from flashnext.engine.errors import EngineClosed
from flashnext.engine.events import Counts, TokenLogprob
from flashnext.engine.job import Job
from flashnext.engine.looks import Looks
from flashnext.engine.marks import Place
from flashnext.engine.policy import (
    Costs,
    Limits,
    Running,
    Step,
    Waiting,
    chunk_rows,
    next_step,
    shortage,
    who_lacks,
)
from flashnext.engine.prefix_cache import KeptMark
from flashnext.engine.prefixes import Prefix, find_prefix
from flashnext.engine.radix import Keys
from flashnext.engine.sights import Sights
from flashnext.engine.tally import Tally
from flashnext.engine.warm import WarmPass, WarmPasses
from flashnext.errors import DeviceError, OutOfPages

LOADING_S = 0.1
"""How long a wait for the spill directory, or for the vision tower, is, unless it has something to tell."""

LOOK_AHEAD = 256
"""Waiting jobs that are considered in a step; beyond them nobody would be admitted anyway."""

BACKGROUND = True, 0
"""The rank that is more senior than all background jobs', and less than all others'."""


class _Ending(NamedTuple):
    """A reply that has ended, whose state is to be kept, and tokens that were drawn beyond its end."""

    job: Job
    beyond: list[int]


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
        caching: Caching | None = None,
        looks: Looks | None = None,
    ) -> None:
        """Schedule the jobs of one core.

        Args:
            core: What runs them.
            max_running: Sequences that run at once.
            gap_ms: How long a decoding sequence may wait for its next round while prompts are read.
            clock_s: The clock that steps and replies are measured by.
            caching: The prefix cache; by default one that keeps nothing.
            looks: Who has media looked at while others' rounds go on; without, the thread waits for it.
        """
        self._core = core
        self._max_running = max_running
        self._gap_ms = gap_ms
        self._costs = Costs()
        self.now_s = clock_s
        self._caching = caching or Caching(core, 0, clock_s)
        self._sights = Sights(core.features, looks)
        self._warm = WarmPasses(core, self._caching, self._sights)
        self._ending: dict[Session, _Ending] = {}
        self._waiting: list[Job] = []  # by rank, like the running ones
        self._running: list[Job] = []
        self._by_session: dict[Session, Job] = {}
        self._cancelled: deque[Job] = deque()
        self._going: list[Session] = []  # whose rounds go on by themselves
        self._landed_s = 0.0  # when those landed last
        self._short = False  # whether one of them came short of pages
        self._stale = True  # whether something has changed since the last decision
        self._readers: dict[Job, int] = {}  # who shows media, and rows that it need not read, as decided then
        self._free_pages = 0  # at the last decision
        self._decided_free = 0  # pages that might be taken then
        self._n_arrived = self._n_changes = self._n_preempted = self._n_forked = 0
        self._tally = Tally()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        jobs = self._waiting or self._running or self._going or self._ending
        return not (jobs or self._warm.n_pending or self._caching.waits)

    @property
    def n_running(self) -> int:
        """How many jobs run; from any thread."""
        return len(self._running)

    @property
    def counts(self) -> Counts:
        """What is going on; from any thread."""
        return Counts(
            waiting=len(self._waiting),
            running=len(self._running),
            free_pages=self._core.free_pages(),
            preempted=self._n_preempted,
            forked=self._n_forked,
            cache=replace(
                self._caching.counts,
                warm_passes=self._warm.n_done,
                warming=self._warm.n_pending + len(self._ending),
            ),
            work=self._tally.work,
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

    def add_warm(self, warm: WarmPass) -> None:
        """Read a history once nobody waits or reads."""
        self._warm.add(warm)
        self._stale = True

    def cancel(self, job: Job) -> None:
        """End a job soon, wherever it stands. From any thread."""
        job.cancelled = True
        self._cancelled.append(job)
        self.wake()

    def wake(self) -> None:
        """Let a step that waits for tokens return soon. From any thread."""
        self._core.wake()
        self._caching.wake()
        self._sights.wake()

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
        self._end_replies(keep=False)
        self._warm.clear()
        self._sights.close()
        self._caching.close(save=isinstance(error, EngineClosed))

    def step(self) -> None:
        """Do the next thing: end what was cancelled, preempt, admit, read a chunk, run or await rounds.

        What fails in a sequence's own step ends that sequence with its error, and no other.
        """
        self._end_cancelled()
        self._stale |= self._caching.tend()
        self._stale |= self._sights.heard()
        if self._ending:
            self._stop()  # a state is kept with nothing in flight
            self._end_replies()
        if self._going and not self._stale and self._core.free_pages() <= self._free_pages:
            self._land_rounds(self._device(self._going, self._core.take))
            return
        if self._waiting or any(job.unread for job in self._running):
            self._warm.yield_now(hold=len(self._running) + len(self._waiting) < self._max_running)
        # Sessions are made of others with nothing in flight, and who came short is left out until another
        # start.
        if self._going and (self._short or self._next_fork() or self._next_resumed()):
            self._stop()
            return
        while job := self._next_resumed() or self._next_fork():  # one may bring about the other
            (self._fork if job.prefix else self._resume)(job)
        step = self._decide()
        busy = self._waiting or step.chunk or any(job.unread for job in self._running)
        warm = not busy and len(self._running) < self._max_running and self._warm.can_go_on
        if self._going and not step.admit and (step.chunk or warm or not step.round):
            self._stop()  # and decide again by what has landed
            return
        jobs = {job.id: job for job in self._running}
        if step.preempt is not None:
            self._preempt(jobs[step.preempt])
        elif step.admit:
            self._admit(step.admit)
        elif step.chunk:
            self._step([(jobs[part.id], part.n) for part in step.chunk], [jobs[i] for i in step.round])
        elif warm and self._warm.next():
            self._read_warm([jobs[i] for i in step.round])
        elif step.round:
            self._go_on([jobs[i] for i in step.round])
        elif self._sights.waits:
            self._sights.wait(LOADING_S)
        elif self._caching.going_on:  # somebody waits for it, or it holds the pages that somebody lacks
            if self._running or self._waiting:
                self._caching.wait(LOADING_S)
        elif self._caching.free_pages() > self._decided_free:
            self._stale = True  # the directory's threads gave some back since it was decided
        else:
            self._end_stuck()

    # --- deciding

    def _decide(self) -> Step:
        """Decide what to do, once the cache has given way where that helps."""
        self._stale = False
        self._look_ahead()
        while True:
            self._free_pages = self._core.free_pages()
            self._decided_free = self._caching.free_pages()
            forks: dict[Job, int] = {}  # where the next one is, of those who are waited for
            for job in self._running:
                if job.prefix:
                    reader, n = job.prefix.reader, job.prefix.n
                    forks[reader] = min(n, forks.get(reader, n))
            waiting = [self._as_waiting(job, i) for i, job in enumerate(self._waiting[:LOOK_AHEAD])]
            running = [self._as_running(job, forks) for job in self._running]
            limits = self._limits(self._decided_free)
            short = shortage(waiting, running, limits)
            # Running sequences get whatever there is; a request that waits only what is enough for it, and
            # not the marks that those who come next go on from, unless nobody else will ever give any.
            if (short.running or short.waiting) and (self._warm.give_way() or self._caching.end_reads()):
                continue
            hits = self._hits()
            stay = () if short.running or not self._running else hits
            n = short.running or (short.waiting if self._caching.can_give(short.waiting, stay) else 0)
            if n and self._caching.give_way(n, hits, stay):
                continue
            # A mark that comes from a slow disk for one of the juniors would have its pages for long.
            lacking = who_lacks(running, limits.free_pages) if short.running else ()
            needy = next((job for job in self._running if job.id in lacking), None)
            if needy is not None and self._caching.end_reads(needy.rank):
                continue
            step = next_step(waiting, running, limits, self._costs)
            normal = bool(waiting) and not waiting[0].background
            helped = not normal or step.preempt is not None or waiting[0].id in step.admit
            if helped or not self._caching.end_reads(BACKGROUND):
                return step

    def _look_ahead(self) -> None:
        """Have looked at what those who read will show; what comes of the prefix cache is not."""
        self._readers = {
            job: job.prefix.n if job.prefix else 0
            for job in self._running
            if job.frame is not None and job.unread and not job.loading
        }
        self._want()

    def _want(self) -> None:
        shows = [(job.frame, job.held, max(n, job.n_read)) for job, n in self._readers.items()]
        self._sights.want([*shows, *self._warm.readers])

    def _hits(self) -> set[KeptMark]:
        """Name the marks that those who come next go on from."""
        first = self._waiting[: self._max_running]
        return {job.hit for job in (*self._running, *first) if job.hit is not None and job.session is None}

    def _limits(self, free: int) -> Limits:
        core = self._core
        return Limits(
            self._max_running, core.max_chunk, max(0, free), core.max_sequences, gap_ms=self._gap_ms
        )

    def _as_waiting(self, job: Job, place: int) -> Waiting:
        # Only those near the front may soon be admitted, and a look at the others' prompts takes time.
        pages = self._core.pages(len(job.feed))
        if place < self._max_running:
            pages -= max(self._pages_of(self._prefix(job)), self._caching.shared_pages(job))
        return Waiting(job.id, pages, job.background, job.resumed, job.overtaken)

    def _as_running(self, job: Job, forks: Mapping[Job, int]) -> Running:
        held = job.session.n_pages if job.session else 0
        missing, limit = 0, None
        if job.short:
            missing = max(1, self._core.pages(job.next_positions) - held)
        elif job.unread:
            shared = 0 if job.session else max(self._pages_of(job.prefix), self._caching.shared_pages(job))
            missing = max(0, self._core.pages(len(job.feed)) - max(held, shared))
        if job.unread:
            waits = job.prefix is not None or job.loading
            limit = 0 if waits else forks[job] - job.n_read if job in forks else None
            seen = self._sights.readable(job.frame, job.held, job.n_read, job.unread)
            if seen < job.unread:
                limit = seen if limit is None else min(limit, seen)
        return Running(job.id, job.unread, limit, missing, held, job.background, job.protected)

    def _prefix(self, job: Job) -> Prefix[Job] | None:
        """Find the more senior job that reads what this one begins with, and has not read beyond it.

        Those are served before it, so that nobody waits for one who waits for its pages.
        """
        version = self._n_changes, self._caching.cache.version
        if job.looked != version:
            job.looked = version
            least = 0 if job.scores or not job.cache else self._core.least_shared  # it has to read it all
            if least and (hit := self._caching.look(job)):
                least = max(least, hit.n + 1)
            readers = [r for r in self._running if r.rank < job.rank and r.unread and r.cache]
            job.seen = find_prefix(job.keys, readers if least else [], least)
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
                self._tally.reply_tokens += len(event.token_ids)
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
            self._give_session(job, self._core.fork(prefix.reader.session, job.axes))
            job.n_read, job.read_s = prefix.n, prefix.reader.read_s
            self._n_forked += 1
            if not job.resumed:
                job.n_cached = min(prefix.n, len(job.prompt))

    def _next_resumed(self) -> Job | None:
        """Find one that goes on from a mark of the prefix cache."""
        return next(
            (
                job
                for job in self._running
                if job.session is None
                and job.unread
                and not (job.prefix or job.loading or self._caching.fetch(job))
                and self._caching.look(job)
            ),
            None,
        )

    def _resume(self, job: Job) -> None:
        """Let a job go on from a mark; where that cannot be, it reads by itself."""
        with self._contained(job):
            session = self._caching.resume(job)
            if session is None:
                self._open(job)
            else:
                self._give_session(job, session)
                self._caching.part(job)

    def _open(self, job: Job) -> None:
        self._give_session(job, self._core.open(job.axes))
        self._caching.missed(job)
        self._caching.part(job)

    def _give_session(self, job: Job, session: Session) -> None:
        job.session = session
        self._by_session[session] = job

    def _step(self, chunk: Sequence[tuple[Job, int]], round: Sequence[Job]) -> None:
        """Read a chunk and run a round."""
        parts: dict[Session, tuple[Job, int]] = {}
        tapped: dict[Session, tuple[Place, ...]] = {}
        passed: list[ChunkPart] = []
        for job, n in chunk:
            with self._contained(job):
                if job.session is None:
                    self._open(job)
                session = job.session
                assert session is not None
                last = n == job.unread
                if last or job.scores:
                    self._core.begin(session, job.options())
                media = self._sights.shown(job.frame, job.held, job.n_read, n)
                places = job.places if job.cache and job.n_read < len(job.prompt) else ()
                taps = self._caching.taps(job.keys[: len(job.prompt)], places, job.n_read, n, job.hit)
                parts[session], tapped[session] = (job, n), taps
                tokens = job.feed[job.n_read : job.n_read + n]
                marks = tuple(place.n - job.n_read for place in taps)
                passed.append(ChunkPart(session, tokens, last, job.scored_of(n), marks, media))
        sessions = [job.session for job in round if job.session]
        self._stale = True
        if not passed and not sessions:
            return
        landed, row_s = self._pass(passed, sessions)
        unread = {one.session for one in landed if one.error or one.short}
        for one in landed:
            if one.snapshots:
                job, _ = parts[one.session]
                places = tapped[one.session]
                self._caching.keep(job.keys, places, one.snapshots, job.n_read, job.read_s, row_s)
        for session, (job, n) in parts.items():
            if session not in unread:
                job.n_read += n
                job.read_s += n * row_s
                self._tally.read_tokens += n
                job.short = False
                if not job.unread:
                    job.held.clear()
        self._land(landed)

    def _pass(self, chunk: Sequence[ChunkPart], round: Sequence[Session]) -> tuple[Sequence[Landed], float]:
        """Read a chunk and run a round; returns what has landed, and what a row of the chunk took."""
        began = self.now_s()
        landed = self._device(
            [*(part.session for part in chunk), *round], lambda: self._core.step(chunk, round)
        )
        ms, n_rows = (self.now_s() - began) * 1e3, sum(len(part.tokens) for part in chunk)
        self._tally.passes += bool(chunk)
        self._tally.rounds += bool(round)
        if not n_rows:
            return landed, 0.0
        row_ms = max(ms / 10, ms - self._costs.round_ms * bool(round)) / n_rows
        self._costs = self._costs.with_row(row_ms)
        return landed, row_ms / 1e3

    def _read_warm(self, round: Sequence[Job]) -> None:
        """Read some more of a history, beside a round."""
        part = self._warm.part(chunk_rows(True, self._limits(self._caching.free_pages()), self._costs))
        self._stale = True
        if part is None:
            return
        sessions = [job.session for job in round if job.session]
        landed, row_s = self._pass([part], sessions)
        own = [one for one in landed if one.session is part.session]
        self._warm.landed(len(part.tokens), own, row_s)
        self._tally.read_tokens += len(part.tokens)
        self._land([one for one in landed if one.session is not part.session])

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
            rounds = _n_rounds(landed)
            self._tally.rounds += rounds
            now_s = self.now_s()
            self._measure_round((now_s - self._landed_s) * 1e3 / rounds)
            self._landed_s = now_s
        self._land(landed)

    def _stop(self) -> None:
        going, self._going = self._going, []
        self._stale, self._short = True, False
        if going:
            landed = self._device(going, self._core.stop)
            self._tally.rounds += _n_rounds(landed)
            self._land(landed)

    def _device(self, sessions: Sequence[Session], call: Callable[[], Sequence[Landed]]) -> Sequence[Landed]:
        """Call the core; where that fails, all sessions that took part are lost, and the others go on."""
        try:
            return call()
        except Exception as error:
            self._going = []
            with suppress(Exception):  # its sessions are lost whatever they came to
                self._core.stop()
            self._end_replies(keep=False)
            for session in sessions:
                job = self._by_session.get(session)
                if job is not None:
                    self._fail(job, error)
            return []

    def _measure_round(self, ms: float) -> None:
        self._costs = self._costs.with_round(ms)

    def _end_stuck(self) -> None:
        """End the job that nothing can be done for: nobody else would give it pages."""
        jobs = self._running or self._waiting
        if jobs:
            found = self._core.free_pages()
            error = OutOfPages(
                f"the reply needs more than the {found} free of {self._core.n_pages} pages, and no other "
                "reply has any to give; ask for a shorter one, or have a larger context served"
            )
            self._fail(jobs[0], error)

    # --- what has landed

    def _land(self, landed: Sequence[Landed]) -> None:
        for one in landed:
            job = self._by_session.get(one.session)
            if job is None:  # it has ended in the meantime
                if one.session in self._ending:
                    self._ending[one.session].beyond.extend(drawn.token for drawn in one.tokens)
                continue
            if one.error is not None:
                self._fail(job, one.error)
                continue
            job.scored += [TokenLogprob(s.token, s.logprob, tuple(s.top)) for s in one.scores]
            if one.proposed:
                job.drafted(one.proposed, one.accepted)
                self._tally.proposed += one.proposed
                self._tally.kept[one.accepted] += 1
            with self._contained(job):
                self._take_tokens(job, one)
            if one.short:
                job.short = True
                self._short, self._stale = bool(self._going), True
        self._caching.keep_within()

    def _take_tokens(self, job: Job, landed: Landed) -> None:
        for i, drawn in enumerate(landed.tokens):
            was_protected, before_s = job.protected, job.times.last
            event = job.take(drawn, self.now_s())
            job.short = False
            self._stale |= was_protected != job.protected
            if event is None:
                continue
            self._count(job, before_s)
            if event.finish_reason is not None:
                self._finish(job, [drawn.token for drawn in landed.tokens[i + 1 :]])
                if job.said is not None:
                    job.ended_with(job.said)
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

    def _count(self, job: Job, before_s: float | None) -> None:
        """Count a token that was drawn; `before_s` is when the one before it was."""
        self._tally.reply_tokens += 1
        if before_s is None:
            self._tally.prompt_tokens += len(job.prompt)
            self._tally.cached_tokens += job.n_cached
        elif job.times.last is not None:
            self._tally.gaps.add(job.times.last - before_s)

    @contextmanager
    def _contained(self, job: Job) -> Iterator[None]:
        """End this reply, and no other, where something goes wrong with it alone."""
        try:
            yield
        except Exception as error:
            self._fail(job, error)

    def _finish(self, job: Job, beyond: list[int]) -> None:
        """Take out a job whose reply is whole; its state may be kept.

        Args:
            job: The job.
            beyond: Tokens that were drawn behind the end.
        """
        session = job.session
        # Where the two classes differ, what rounds made is nobody else's.
        kept = job.cache and job.goes_on and self._core.prompt_equals_window
        if session is not None and kept and self._caching.pays(_rows(job, beyond)[:-1]):
            self._by_session.pop(session)
            self._ending[session] = _Ending(job, beyond)
            job.session = None
        self._drop(job)

    def _end_replies(self, keep: bool = True) -> None:
        """Keep the states of replies that have ended. Nothing may be in flight."""
        for session, (job, beyond) in list(self._ending.items()):
            if keep:
                keys = _rows(job, beyond)
                cost_s = job.read_s + (len(keys) - len(job.feed)) * self._costs.row_ms / 1e3
                self._caching.keep_end(session, keys, cost_s)
            session.close()
            del self._ending[session]  # only now: it counts as work that is not done

    def _fail(self, job: Job, error: Exception) -> None:
        self._drop(job)
        job.send(error)

    def _drop(self, job: Job) -> None:
        """Take a job out, whatever it was doing; those that waited to be forked from it find others."""
        for jobs in (self._waiting, self._running):
            with suppress(ValueError):
                jobs.remove(job)
        self._changed()
        job.held.clear()
        if job.session is not None:
            self._by_session.pop(job.session, None)
            job.session.close()
            job.session = None
        for other in list(self._running):
            if other.prefix and other.prefix.reader is job:
                other.prefix = self._prefix(other)
        # Whoever was admitted since it was decided may yet go on from a mark, and shows nothing before that.
        if self._readers.pop(job, None) is not None:
            self._want()

    def _changed(self) -> None:
        self._stale = True
        self._n_changes += 1


def _rows(job: Job, beyond: Sequence[int]) -> Keys:
    """Name the rows of a prompt, its reply and what was drawn beyond."""
    return job.keys_of(np.concatenate([job.prompt, np.array([*job.token_ids, *beyond], np.int32)]))


def _n_rounds(landed: Sequence[Landed]) -> int:
    """Count the rounds of what has landed: each session has one in each that it took part in."""
    return max(Counter(one.session for one in landed).values(), default=0)


def _rank(job: Job) -> tuple[bool, int]:
    return job.rank
