"""What the scheduler does with the prefix cache on the core: looks, resumes, taps, keeps, gives way."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from flashnext.engine.core import Core, Session, Snapshot, Tokens
from flashnext.engine.events import CacheCounts
from flashnext.engine.guard import Guard
from flashnext.engine.job import Job
from flashnext.engine.marks import Kind, Place
from flashnext.engine.prefix_cache import CacheOptions, KeptMark, PrefixCache
from flashnext.engine.radix import Keys
from flashnext.engine.spill import Spill, Stored
from flashnext.errors import DeviceError, InvalidArgument, OutOfMemory, OutOfPages

STORE_AHEAD = 4
"""Marks that would go first are written before they do: those of one part of so many of the limit."""

TEND_S = 0.5
"""Between looks at the age of marks and at the memory of the process."""


PATIENCE_S = 1.0
"""How much longer than reading anew a mark may take to come from the spill directory."""


@dataclass
class _Fetch:
    """A mark on its way from the spill directory, and who waits for it."""

    n_bytes: int
    began_s: float
    jobs: list[Job] = field(default_factory=list)


class Caching:
    """A prefix cache over a core. The engine's thread uses it, save for `counts`.

    Attributes:
        cache: What is kept.
        ahead_bytes: So much of what would go first is written to the spill directory before it does.
    """

    def __init__(
        self,
        core: Core,
        limit_bytes: int,
        clock_s: Callable[[], float],
        options: CacheOptions | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Keep nothing yet.

        Args:
            core: Whose snapshots are kept.
            limit_bytes: Most that they may take; 0 for no cache.
            clock_s: The clock by which marks age.
            options: How marks are chosen and how they age.
            guard: Says by how much the cache may grow.
        """
        self._reserved_bytes = limit_bytes
        self.ahead_bytes = limit_bytes // STORE_AHEAD
        self._guard = guard
        self._tended_s = clock_s()
        self._spill: Spill | None = None
        self._arrived: deque[Callable[[], None]] = deque()  # what the spill directory's threads tell
        self._wake = threading.Event()
        self._fetches: dict[KeptMark, _Fetch] = {}
        self._storing = False
        self._stored = -1  # at which version of the cache nothing was to be written
        self.cache = PrefixCache(limit_bytes, core.block_bytes, core.page_bytes, options)
        self._core = core
        self._now_s = clock_s
        self._n_hits = self._n_misses = self._n_hit_tokens = 0

    @property
    def counts(self) -> CacheCounts:
        """What it holds and has done; from any thread."""
        cache = self.cache
        return CacheCounts(
            limit_bytes=cache.limit_bytes,
            blocks_bytes=self._core.snapshot_bytes(),
            pages_bytes=cache.pages_bytes,
            marks=len(cache.marks),
            hits=self._n_hits,
            misses=self._n_misses,
            hit_tokens=self._n_hit_tokens,
            evicted=cache.n_evicted,
            **(vars(self._spill.counts) if self._spill is not None else {}),
        )

    # --- the spill directory

    def attach(self, spill: Spill, told: Callable[[], object]) -> None:
        """Write marks to a directory, and find those that it has.

        Args:
            spill: The directory.
            told: Called by other threads when there is something for `hear`.
        """

        def tell(what: Callable[[], None]) -> None:
            self._arrived.append(what)
            self._wake.set()
            told()

        self._spill, self._tell = spill, tell
        spill.begin(
            found=lambda stored: tell(lambda: self._found(stored)),
            forgotten=lambda rows: tell(lambda: self._forgotten(rows)),
        )

    def hear(self) -> bool:
        """Take what other threads have told, and give up on marks that take too long; whether any."""
        heard = bool(self._arrived)
        while self._arrived:
            self._arrived.popleft()()
        now_s = self._now_s()
        for mark, fetch in self._fetches.items():
            if fetch.jobs and now_s - fetch.began_s > mark.value.cost_s + PATIENCE_S:
                for job in fetch.jobs:
                    job.patient = False
                self._release(fetch)
                heard = True
        return heard

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to hear, or somebody calls `wake`."""
        self._wake.wait(timeout_s)
        self._wake.clear()

    def wake(self) -> None:
        """End a wait: the one that goes on, or else the next. From any thread."""
        self._wake.set()

    def fetch(self, job: Job) -> bool:
        """Have the mark come that a job would best go on from, where the spill directory alone has it.

        Returns:
            Whether the job waits for it.
        """
        if self._spill is None or not (job.cache and job.patient) or job.scores:
            return False
        if job.fetched == self.cache.version:
            return False
        job.fetched = self.cache.version
        mark = self.cache.find_stored(job.keys, self._pays)
        if mark is None or not self._fetch(mark):
            return False
        self._fetches[mark].jobs.append(job)
        job.loading = True
        return True

    def close(self) -> None:
        """Give all memory back, and the directory."""
        if self._spill is not None:
            self._spill.close()
        self.cache.clear()
        while self._arrived:
            self._arrived.popleft()()
        self.cache.clear()

    def _pays(self, mark: KeptMark) -> bool:
        assert self._spill is not None
        return mark.value.stored and self.cache.bytes_of(mark.n) / self._spill.bytes_per_s < mark.value.cost_s

    def _fetch(self, mark: KeptMark) -> bool:
        if mark in self._fetches:
            return True
        assert self._spill is not None
        keys = self.cache.keys_of(mark)
        shared = self.cache.deepest(keys)
        page = self.cache.options.page
        n_shared = min((shared.n - 1) // page, (mark.n - 1) // page) if shared is not None else 0
        n_bytes = self.cache.bytes_of(mark.n) - n_shared * self._core.page_bytes
        keep = {shared} if shared is not None else set()
        if not self.cache.make_room(n_bytes, self._now_s(), keep) or self.free_pages() < -(
            -n_bytes // self._core.page_bytes
        ):
            return False
        self._fetches[mark] = _Fetch(n_bytes, self._now_s())
        self.cache.promised_bytes += n_bytes
        self._spill.load(
            keys,
            shared.value.snapshot if shared is not None else None,
            n_shared,
            lambda snapshot, has: self._tell(lambda: self._fetched(mark, keys, snapshot, has)),
        )
        return True

    def _fetched(self, mark: KeptMark, keys: Keys, snapshot: Snapshot | None, has: bool) -> None:
        fetch = self._fetches.pop(mark)
        self.cache.promised_bytes -= fetch.n_bytes
        self._release(fetch)
        kept = mark.value
        if snapshot is not None:
            if self.cache.insert(keys, kept.kind, snapshot, kept.cost_s, self._now_s()) is not None:
                self._used(mark)
        elif not has:
            self._forgotten(keys)

    def _release(self, fetch: _Fetch) -> None:
        for job in fetch.jobs:
            job.loading = False
        fetch.jobs.clear()

    def _found(self, stored: Stored) -> None:
        used_s = self._now_s() - stored.age_s
        self.cache.insert_stored(stored.rows, stored.kind, stored.cost_s, used_s, pinned=stored.pinned)

    def _forgotten(self, rows: Keys) -> None:
        if (mark := self.cache.find_mark(rows)) is not None:
            mark.value.storable = False  # until it is used: else two marks could push each other out for ever
            self.cache.forget_stored(mark)

    def _used(self, mark: KeptMark) -> None:
        if self._spill is not None and mark.value.stored:
            self._spill.use(self.cache.keys_of(mark), mark.value.pinned)

    def _store_next(self) -> None:
        """Hand the next mark in to be written, one at a time."""
        if self._spill is None or self._storing or self._stored == self.cache.version:
            return
        if not self._spill.ready:
            return
        mark = self.cache.to_store(self.ahead_bytes, self._now_s())
        snapshot = None if mark is None else mark.value.snapshot
        if mark is None or snapshot is None:
            self._stored = self.cache.version  # nothing is to be done until something changes
            return
        kept, keys = mark.value, self.cache.keys_of(mark)
        age_s = max(0.0, self._now_s() - kept.used_s)
        stored = Stored(keys, kept.kind, kept.cost_s, age_s, kept.pinned)

        def done(written: bool, ever: bool) -> None:
            self._storing, self._stored = False, -1
            kept.storable = written or ever
            if written:
                self.cache.insert_stored(keys, kept.kind, kept.cost_s, kept.used_s, pinned=stored.pinned)

        self._storing = True
        self._spill.store(stored, snapshot, lambda w, e: self._tell(lambda: done(w, e)))

    def tend(self) -> bool:
        """Hear, hand in what is to be written, and now and then let marks thin out and heed the memory guard.

        Returns:
            Whether anything was heard.
        """
        heard = self.hear()
        self._store_next()
        now_s = self._now_s()
        if now_s - self._tended_s < TEND_S:
            return heard
        self._tended_s = now_s
        self.cache.thin(now_s)
        if self._guard is not None:
            allowed = self.cache.size_bytes + self._guard.room_bytes
            self.cache.limit_bytes = max(0, min(self._reserved_bytes, allowed))
            self.cache.make_room(0, now_s)
        return heard

    # --- pages

    def free_pages(self) -> int:
        """Count the pages that may be taken: the pool has some in place of which there are blocks."""
        return self._core.free_pages() + self._core.snapshot_bytes() // -self._core.page_bytes

    def give_way(self, n_pages: int, spare: Collection[KeptMark] = ()) -> bool:
        """Evict the least useful marks until so many more pages are free.

        Returns:
            Whether anything was evicted.
        """
        enough = self.free_pages() + n_pages
        gave = False
        while self.free_pages() < enough and self.cache.give_way(self._now_s(), spare):
            gave = True
        return gave

    def can_give(self, n_pages: int) -> bool:
        """Whether so many pages would come free if all marks gave way."""
        blocks = -(self._core.snapshot_bytes() // -self._core.page_bytes)
        return n_pages <= self._core.snapshot_pages() + blocks

    def keep_within(self) -> None:
        """Evict where sequences have taken pages in place of which there are blocks."""
        missing = -self.free_pages()
        if missing > 0:
            self.give_way(missing)

    # --- going on from a mark

    def look(self, job: Job) -> KeptMark | None:
        """Find the deepest mark that a job may go on from."""
        if not job.cache or job.scores:  # it has to read all of its prompt
            return None
        if job.hit_looked != self.cache.version:
            job.hit_looked = self.cache.version
            job.hit = self.cache.find(job.keys)
        return job.hit

    def shared_pages(self, job: Job) -> int:
        """Count the pages that a job shares with the mark that it would go on from."""
        hit = self.look(job)
        if hit is None or hit.value.snapshot is None:
            return 0
        return (hit.n - 1) // self.cache.options.page

    def resume(self, job: Job) -> Session | None:
        """Make the session of a job that goes on from the deepest mark, and say so in the job.

        Returns:
            None where there is no mark, or no page for the copy; the job then reads by itself.
        """
        hit = self.look(job)
        session = self.resumed(hit, job.feed)
        if hit is None or session is None:
            return None
        job.n_read, job.read_s = hit.n, hit.value.cost_s
        if not job.resumed:
            job.n_cached = min(hit.n, len(job.prompt))
            self._n_hits += 1
            self._n_hit_tokens += hit.n
        return session

    def missed(self, job: Job) -> None:
        """Count a job that reads its prompt from the beginning."""
        if job.cache and not job.resumed and self.cache.limit_bytes:
            self._n_misses += 1

    def resumed(self, hit: KeptMark | None, tokens: Tokens) -> Session | None:
        """Make a session that goes on from a mark; None where there is none, or no page for the copy."""
        while hit is not None and hit.value.snapshot is not None:
            try:
                session = self._core.resume(hit.value.snapshot, tokens[: hit.n])
            except (OutOfPages, OutOfMemory):
                if not self.cache.give_way(self._now_s(), [hit]):
                    break
            else:
                self.cache.use(hit, self._now_s())
                self._used(hit)
                return session
        return None

    # --- keeping

    def taps(
        self, keys: Keys, places: Sequence[Place], n_read: int, n: int, hit: KeptMark | None
    ) -> tuple[Place, ...]:
        """Choose the places in the next n rows whose states are to be kept, and make room for them.

        Args:
            keys: Of the whole prompt.
            places: All of its places.
            n_read: Rows that have been read.
            n: Rows of the chunk.
            hit: What it went on from; stays if it can.
        """
        due = [p for p in self.cache.wanted(keys, places) if n_read < p.n <= n_read + n]
        if not due:
            return ()
        base = self.cache.deepest(keys[:n_read])
        n_base = base.n if base is not None and base.value.snapshot is not None else 0
        keep = {mark for mark in (hit, base) if mark is not None}
        chosen: list[Place] = []
        for place in sorted(due, key=lambda place: (-place.kind, -place.n)):
            rows = max(p.n for p in (place, *chosen)) - n_base
            needed = self.cache.bytes_of(rows) + len(chosen) * self._core.block_bytes
            if self.cache.make_room(needed, self._now_s(), keep):
                chosen.append(place)
        return tuple(sorted(chosen, key=lambda place: place.n))

    def keep(
        self,
        keys: Keys,
        places: Sequence[Place],
        snapshots: Sequence[Snapshot | None],
        n_read: int,
        read_s: float,
        row_s: float,
    ) -> int:
        """Take over the snapshots of a chunk.

        Args:
            keys: Of the whole prompt.
            places: Where they were tapped.
            snapshots: Of these, None for those that there was no memory for.
            n_read: Rows before the chunk.
            read_s: What reading those took.
            row_s: What a row of the chunk took.

        Returns:
            How many rows of the prompt are kept at most; 0 where none of these were.
        """
        deepest = 0
        for place, snapshot in zip(places, snapshots, strict=False):
            if snapshot is not None:
                cost_s = read_s + (place.n - n_read) * row_s
                kept = self.cache.insert(keys[: place.n], place.kind, snapshot, cost_s, self._now_s())
                deepest = place.n if kept else deepest
        return deepest

    def keep_end(self, session: Session, keys: Keys, cost_s: float) -> int:
        """Keep where a session stands: at the end of a reply, or of a pass that is given up.

        Args:
            session: With nothing in flight.
            keys: Of all rows that it may have.
            cost_s: What reading them takes.

        Returns:
            How many rows are kept; 0 for none.
        """
        base = self.cache.deepest(keys)
        n_base = base.n if base is not None and base.value.snapshot is not None else 0
        keep = {base} if base is not None else set()
        if len(keys) == n_base or not self.cache.make_room(
            self.cache.bytes_of(len(keys) - n_base), self._now_s(), keep
        ):
            return 0
        with suppress(OutOfMemory, OutOfPages, InvalidArgument, DeviceError):  # nobody waits for it
            snapshot = self._core.snapshot(session)
            n = snapshot.n
            if n > len(keys):
                snapshot.close()
            elif self.cache.insert(keys[:n], Kind.END, snapshot, cost_s, self._now_s()) is not None:
                return n
        return 0
