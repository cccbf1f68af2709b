"""What the scheduler does with the prefix cache on the core: looks, resumes, taps, keeps, gives way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from flashnext.engine.core import Core, Session, Snapshot, Tokens
from flashnext.engine.events import CacheCounts
from flashnext.engine.guard import Guard
from flashnext.engine.job import Job
from flashnext.engine.marks import Kind, Place, ordered
from flashnext.engine.on_disk import OnDisk
from flashnext.engine.prefix_cache import CacheOptions, KeptMark, PrefixCache
from flashnext.engine.radix import Keys
from flashnext.engine.spill import Spill

TEND_S = 0.5
"""Between looks at the age of marks and at the memory of the process."""


class Caching:
    """A prefix cache over a core. The engine's thread uses it, save for `counts`.

    Attributes:
        cache: What is kept.
        disk: What of it is in a spill directory; None where there is none.
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
        self.cache = PrefixCache(limit_bytes, core.block_bytes, core.page_bytes, options)
        self.disk: OnDisk | None = None
        self._reserved_bytes = limit_bytes
        self._guard = guard
        self._tended_s = clock_s()
        self._core = core
        self._now_s = clock_s
        self._n_hits = self._n_misses = self._n_hit_tokens = 0
        self._saved_s = 0.0

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
            saved_s=self._saved_s,
            evicted=cache.n_evicted,
            **(vars(self.disk.counts) if self.disk is not None else {}),
        )

    def attach(self, spill: Spill, told: Callable[[], object]) -> None:
        """Write marks to a directory, and find those that it has.

        Args:
            spill: The directory.
            told: Called by other threads when `tend` would hear something, or have something written.
        """
        self.disk = OnDisk(self.cache, self._core, spill, self._now_s, self.free_pages, told)

    def fetch(self, job: Job) -> bool:
        """Have a deeper mark come from the spill directory where that pays; whether the job waits for it."""
        return self.disk is not None and self.disk.fetch(job, self.look(job))

    @property
    def going_on(self) -> bool:
        """Whether the spill directory is worth waiting for."""
        return self.disk is not None and self.disk.going_on

    def end_reads(self, rank: tuple[bool, int] | None = None) -> bool:
        """Give back the pages of marks that are on their way from disk; whether there were any.

        Args:
            rank: Of who lacks pages: those who are less senior wait no longer for theirs. None: only what
                nobody waits for gives way.
        """
        return self.disk is not None and self.disk.give_way(rank)

    @property
    def waits(self) -> bool:
        """Whether `tend` has something to do at once."""
        return self.disk is not None and self.disk.may_store

    def wait(self, timeout_s: float) -> None:
        """Wait until the spill directory has something to tell, or somebody calls `wake`."""
        if self.disk is not None:
            self.disk.wait(timeout_s)

    def wake(self) -> None:
        """End a wait: the one that goes on, or else the next. From any thread."""
        if self.disk is not None:
            self.disk.wake()

    def close(self, save: bool = False) -> None:
        """Give all memory back, and the directory.

        Args:
            save: Whether what is only in memory is written before, as far as there is time.
        """
        if self.disk is not None:
            if save:
                self.disk.save()
            self.disk.close()
        self.cache.clear()

    def tend(self) -> bool:
        """See to the spill directory, and now and then let marks thin out and heed the memory guard.

        Returns:
            Whether the directory had anything to tell.
        """
        heard = self.disk is not None and self.disk.tend()
        now_s = self._now_s()
        if now_s - self._tended_s < TEND_S:
            return heard
        self._tended_s = now_s
        self.cache.thin(now_s)
        self.keep_within()
        if self._guard is not None:
            allowed = self.cache.size_bytes + self._guard.room_bytes
            self.cache.limit_bytes = max(0, min(self._reserved_bytes, allowed))
            self.cache.make_room(0, now_s)
        return heard

    # --- pages

    def free_pages(self) -> int:
        """Count the pages that may be taken: the pool has some in place of which there are blocks."""
        return self._core.free_pages() - self._pages_of_blocks()

    def give_way(
        self, n_pages: int, spare: Collection[KeptMark] = (), stay: Collection[KeptMark] = ()
    ) -> bool:
        """Evict the least useful marks until so many more pages are free.

        Args:
            n_pages: How many.
            spare: Marks that go last.
            stay: Marks that do not go.

        Returns:
            Whether anything was evicted.
        """
        enough = self.free_pages() + n_pages
        return self.cache.give_way(self._now_s(), spare, stay, lambda: self.free_pages() >= enough)

    def can_give(self, n_pages: int, stay: Collection[KeptMark] = ()) -> bool:
        """Whether so many pages would come free if all marks gave way but those that stay."""
        pages = {page for mark in stay for page in mark.value.pages}
        n_blocks = sum(mark.value.snapshot is not None for mark in stay)
        coming = self.disk.n_reserved if self.disk is not None else (0, 0)
        blocks = self._pages_of(self._core.snapshot_bytes() - (n_blocks + coming[0]) * self._core.block_bytes)
        return n_pages <= self._core.snapshot_pages() - len(pages) - coming[1] + blocks

    def keep_within(self) -> None:
        """Evict where sequences have taken pages in place of which there are blocks.

        Free pages in whose place there are blocks keep no memory: the plan has it only once.
        """
        missing = -self.free_pages()
        if missing > 0:
            self.give_way(missing)
        self._core.trim(self._core.n_pages - self._pages_of_blocks())

    def _pages_of_blocks(self) -> int:
        return self._pages_of(self._core.snapshot_bytes())

    def _pages_of(self, n_bytes: int) -> int:
        return -(-n_bytes // self._core.page_bytes)

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
        """Count the pages that a job shares with the mark that it would go on from, or that comes for it."""
        coming = self.disk.coming_pages(job) if self.disk is not None else 0
        hit = self.look(job)
        if hit is None or hit.value.snapshot is None:
            return coming
        return (hit.n - 1) // self.cache.options.page + coming

    def resume(self, job: Job) -> Session | None:
        """Make the session of a job that goes on from the deepest mark, and say so in the job.

        Returns:
            None where there is no mark, or no page for the copy; the job then reads by itself.
        """
        hit = self.look(job)
        session = self.resumed(hit, job.feed, job.keys, job.axes)
        if hit is None or session is None:
            return None
        job.n_read, job.read_s = hit.n, hit.value.cost_s
        if not job.resumed:
            job.n_cached = min(hit.n, len(job.prompt))
            self._n_hits += 1
            self._n_hit_tokens += hit.n
            self._saved_s += hit.value.cost_s
        return session

    def missed(self, job: Job) -> None:
        """Count a job that reads its prompt from the beginning."""
        if job.cache and not job.resumed and self.cache.limit_bytes:
            self._n_misses += 1

    def part(self, job: Job) -> None:
        """Let a job that begins to read have a mark where its prompt leaves one that was read before."""
        if job.cache and not job.resumed and self.cache.limit_bytes:
            parting = self.cache.parting(job.keys[: len(job.prompt)], job.n_read)
            if parting is not None:
                job.places = ordered((*job.places, parting))

    def resumed(
        self, hit: KeptMark | None, tokens: Tokens, keys: Keys, axes: Tokens | None
    ) -> Session | None:
        """Make a session that goes on from a mark.

        Args:
            hit: The mark.
            tokens: Of the whole prompt.
            keys: Of its rows.
            axes: Where they stand on the rotary axes; None: at their positions.

        Returns:
            None where there is no mark, or no page for the copy.
        """
        while hit is not None and hit.value.snapshot is not None:
            try:
                session = self._core.resume(hit.value.snapshot, tokens[: hit.n], axes)
            except MemoryError:
                if not self.cache.give_way(self._now_s(), [hit]):
                    break
            else:
                behind = keys[hit.n : hit.n + self.cache.options.page]
                self.cache.use(hit, behind, self._now_s())
                if self.disk is not None:
                    self.disk.use(hit)
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
        n_base = base.n if base is not None else 0
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
                kept = self.cache.insert(
                    keys[: place.n], place.kind, snapshot, cost_s, self._now_s(), keys[place.n :]
                )
                deepest = place.n if kept else deepest
        return deepest

    def pays(self, keys: Keys) -> bool:
        """Whether the end of a reply saves enough to be kept: a copy of the state holds up all rounds.

        Args:
            keys: Of all its rows.
        """
        options = self.cache.options
        if len(keys) < options.least or not self.cache.limit_bytes:
            return False
        base = self.cache.deepest(keys)
        return len(keys) - (base.n if base is not None else 0) >= options.least_new

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
        n_base = base.n if base is not None else 0
        keep = {base} if base is not None else set()
        if len(keys) == n_base or not self.cache.make_room(
            self.cache.bytes_of(len(keys) - n_base), self._now_s(), keep
        ):
            return 0
        with suppress(Exception):  # nobody waits for it, and whoever comes next is told what is wrong
            snapshot = self._core.snapshot(session)
            n = snapshot.n
            if n > len(keys):
                snapshot.close()
            elif self.cache.insert(keys[:n], Kind.END, snapshot, cost_s, self._now_s()) is not None:
                return n
        return 0
