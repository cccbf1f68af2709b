"""The engine's side of a spill directory: which marks it gets, which come back, and who waits for them."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from flashnext.engine.core import Core, Snapshot
from flashnext.engine.defaults import SAVE_S
from flashnext.engine.job import Job
from flashnext.engine.loading import Loading
from flashnext.engine.prefix_cache import Kept, KeptMark, PrefixCache
from flashnext.engine.radix import Keys
from flashnext.engine.spill import NEVER_S, Spill, SpillCounts, Stored
from flashnext.engine.spill_books import StoredMark

STORE_AHEAD = 4
"""Marks that would go first are written before they do: those of one part of so many of the limit, or as many
as two of the largest would take the place of: a prompt comes with several marks."""

PARTED_SHARE = 8
"""Marks where prompts part are written at once where they take up to one part of so many of the directory."""

HEAR_S = 0.002
"""So long is heard between two steps what the directory has told, and one thing at least: a long mark takes
many times as long as a short one."""

HANG_S = 30.0
"""What has read no file for so long is not waited for."""

PATIENCE_S = 1.0
"""How much longer than reading anew a mark may take to come from the directory."""


@dataclass
class _Fetch:
    """A mark on its way.

    Attributes:
        n_bytes: That have to come.
        promised_bytes: Of the cache, that are kept for it.
        saves_s: What reading it anew takes.
        loading: The read.
        jobs: Who waits for it, or has until they were cancelled or made way, and since when.
    """

    n_bytes: int
    promised_bytes: int
    saves_s: float
    loading: Loading
    jobs: dict[Job, float] = field(default_factory=dict)

    @property
    def wanted(self) -> bool:
        """Whether anybody waits for it."""
        return any(job.loading and not job.ended for job in self.jobs)

    @property
    def since_s(self) -> float:
        """Since when the first of those waits who wait for it now."""
        waiting = [since_s for job, since_s in self.jobs.items() if job.loading and not job.ended]
        return min(waiting, default=math.inf)

    def wanted_by(self, rank: tuple[bool, int]) -> bool:
        """Whether anybody waits for it who is more senior than that."""
        return any(job.loading and not job.ended and job.rank < rank for job in self.jobs)


class OnDisk:
    """The marks of a prefix cache that a directory has. The engine's thread uses it, save for `wake`.

    Attributes:
        ahead_bytes: So much of what would go first is written before it does.
        patience_s: How much longer than reading anew a mark may take to come.
    """

    def __init__(
        self,
        cache: PrefixCache,
        core: Core,
        spill: Spill,
        clock_s: Callable[[], float],
        free_pages: Callable[[], int],
        told: Callable[[], object],
    ) -> None:
        """Begin to look through the directory.

        Args:
            cache: Whose marks are written, and get back.
            core: Whose states they are.
            spill: The directory.
            clock_s: The clock by which marks age.
            free_pages: Counts the pages that may be taken.
            told: Called by other threads when `tend` would hear something, or have something written.
        """
        self._cache, self._core, self._spill = cache, core, spill
        self._now_s, self._free_pages, self._told = clock_s, free_pages, told
        self.ahead_bytes = cache.limit_bytes // STORE_AHEAD
        self.patience_s = PATIENCE_S
        self._arrived: deque[Callable[[], None]] = deque()  # what the directory's threads tell
        self._wake = threading.Event()
        self._ending, self._ended = threading.Lock(), False  # what comes later is heard by nobody
        self._fetches: dict[KeptMark, _Fetch] = {}
        self._storing = False
        self._later: dict[Kept, float] = {}  # what cannot be written now, and until when
        self._n_read, self._read_s = 0, clock_s()  # files that the directory has read, and when that was
        self._hangs = False  # no file is read though some are asked for
        self._all_stored = -1  # at which version of the cache nothing was to be written
        spill.begin(
            found=lambda stored, mark: self._tell(lambda: self._found(stored, mark)),
            forgotten=lambda rows, again: self._tell(lambda: self._forgotten(rows, again)),
            free=self._call,
        )

    @property
    def counts(self) -> SpillCounts:
        """What the directory holds and has done; from any thread."""
        return self._spill.counts

    @property
    def busy(self) -> bool:
        """Whether anything is being written, read or looked for, or has not been heard."""
        # Threads tell before they are done, so what they have told is looked at last.
        return bool(self._fetches or self._storing or self._spill.n_waiting or self._arrived)

    @property
    def going_on(self) -> bool:
        """Whether it is worth waiting for: somebody waits for a mark, or pages come free in a moment.

        Threads tell before they are done, so what they have told is looked at last.
        """
        waited = not self._hangs and any(fetch.wanted for fetch in self._fetches.values())
        moving = self._spill.states.copying or any(fetch.loading.moving for fetch in self._fetches.values())
        return waited or moving or bool(self._arrived)

    @property
    def n_reserved(self) -> tuple[int, int]:
        """Blocks and pages of marks that are on their way and waited for: they do not give way."""
        held = [f.loading.n_pages for f in self._fetches.values() if f.wanted and f.loading.n_pages]
        return len(held), sum(held)

    def coming_pages(self, job: Job) -> int:
        """Count the pages that have come for a job which waits: it will share them."""
        if not job.loading:
            return 0
        return max((f.loading.n_pages for f in self._fetches.values() if job in f.jobs), default=0)

    @property
    def may_store(self) -> bool:
        """Whether it has to be looked what is to be written next."""
        return not self._storing and self._all_stored != self._cache.version and self._spill.ready

    def tend(self) -> bool:
        """Hear what has been told, and hand in what is to be written; whether there was anything to hear."""
        heard = self._hear(HEAR_S)
        if not self._fetches or self._n_read != self._spill.states.n_read:
            self._n_read, self._read_s = self._spill.states.n_read, self._now_s()
        # Once for the whole step: who waits is let go before anybody is told that waiting is in vain.
        self._hangs = self._now_s() - self._read_s >= HANG_S
        heard |= self._lose_patience()
        self._store_again()
        if self.may_store:
            ahead = max(self.ahead_bytes, 2 * self._cache.largest_bytes)
            most_parted = self._spill.limit_bytes // PARTED_SHARE
            self._store(self._cache.to_store(ahead, self._now_s(), most_parted))
        if self._arrived:
            self._told()  # there is more
        return heard

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to hear, or somebody calls `wake`."""
        self._wake.wait(timeout_s)
        self._wake.clear()

    def wake(self) -> None:
        """End a wait: the one that goes on, or else the next. From any thread."""
        self._wake.set()

    def save(self) -> None:
        """Write what is only in memory, the most useful first, for a few seconds at most."""
        end_s = time.monotonic() + SAVE_S
        while time.monotonic() < end_s:
            self._hear()
            if not self._storing:
                mark = self._cache.to_save(self._now_s()) if self._spill.ready else None
                if mark is None and not self._spill.n_waiting:
                    return
                self._store(mark)
            self._wake.wait(0.01)
            self._wake.clear()

    def give_way(self, rank: tuple[bool, int] | None = None) -> bool:
        """Give back the pages of marks that are on their way; whether there were any.

        Args:
            rank: Of who lacks pages: those who are less senior wait no longer for theirs. None: only what
                nobody waits for gives way.
        """
        for fetch in self._fetches.values():
            stays = fetch.wanted if rank is None else fetch.wanted_by(rank)
            if not stays and fetch.loading.holds and not fetch.loading.ended:
                fetch.loading.give_up()
                self._break_promise(fetch)
                _let_go(fetch)
                return True
        return False

    def close(self) -> None:
        """End what is under way, and give the directory back."""
        for fetch in self._fetches.values():
            fetch.loading.give_up()
        self._spill.close()
        with self._ending:
            self._ended = True
        self._hear()

    def use(self, mark: KeptMark) -> None:
        """Take note that a mark was used."""
        if mark.value.stored:
            self._spill.use(self._cache.keys_of(mark), mark.value.pinned)

    def fetch(self, job: Job, base: KeptMark | None) -> bool:
        """Have the mark come that a job would best go on from, where the directory alone has it.

        Args:
            job: The job.
            base: The deepest mark in memory that it may go on from.

        Returns:
            Whether the job waits for it.
        """
        if not (job.cache and job.patient) or job.scores or job.fetched == self._cache.version or self._hangs:
            return False
        job.fetched = self._cache.version
        mark = self._cache.find_stored(job.keys, lambda mark: self._pays(mark, base))
        if mark is None or not (mark in self._fetches or self._fetch(mark, base)):
            return False
        if self._fetches[mark].loading.ended:
            return False
        for other in self._fetches.values():  # it may have made way while it waited, and not come back to it
            if job in other.jobs:
                del other.jobs[job]
        self._fetches[mark].jobs[job] = self._now_s()
        job.loading = True
        return True

    # --- what comes back

    def _pays(self, mark: KeptMark, base: KeptMark | None) -> bool:
        """Whether a mark comes sooner than the rows are read that it has beyond what memory has."""
        seconds = self._missing_bytes(mark, base) / self._spill.pace.bytes_per_s
        able = self._spill.readable and self._spill.clock_s() >= mark.value.again_s
        return mark.value.stored and able and seconds < _saved_s(mark, base)

    def _missing_bytes(self, mark: KeptMark, base: KeptMark | None) -> int:
        return self._cache.bytes_of(mark.n) - self._shared_pages(mark, base) * self._core.page_bytes

    def _shared_pages(self, mark: KeptMark, base: KeptMark | None) -> int:
        """Count the whole pages that a mark shares with the deepest one in memory."""
        return min(base.n - 1, mark.n - 1) // self._cache.options.page if base is not None else 0

    def _fetch(self, mark: KeptMark, base: KeptMark | None) -> bool:
        """Have a mark come, and keep room for it; False where there is none."""
        keys = self._cache.keys_of(mark)
        n_bytes = self._missing_bytes(mark, base)
        keep = {base} if base is not None else set()
        at_most = self._core.free_pages() + self._core.snapshot_pages()  # if all marks gave way
        if at_most * self._core.page_bytes < n_bytes:
            return False
        if not self._cache.make_room(n_bytes, self._now_s(), keep):
            return False
        if self._free_pages() * self._core.page_bytes < n_bytes:
            return False
        self._cache.promised_bytes += n_bytes
        snapshot = base.value.snapshot if base is not None else None

        def done(made: Snapshot | None, has: bool) -> None:
            with self._ending:
                if not self._ended:
                    self._tell(lambda: self._fetched(mark, keys, made, has))
                elif made is not None:  # nobody hears of it
                    made.close()

        loading = self._spill.load(keys, snapshot, self._shared_pages(mark, base), done)
        self._fetches[mark] = _Fetch(n_bytes, n_bytes, _saved_s(mark, base), loading)
        return True

    def _fetched(self, mark: KeptMark, keys: Keys, snapshot: Snapshot | None, has: bool) -> None:
        fetch = self._fetches.pop(mark)
        self._read_s = self._now_s()
        self._break_promise(fetch)
        _let_go(fetch, patient=snapshot is not None)  # else what fails again and again is waited for so too
        if snapshot is not None:
            kept = mark.value  # it may be out of the tree by now
            found = self._cache.insert(keys, kept.kind, snapshot, kept.cost_s, self._now_s())
            if found is not None:
                self.use(found)
        elif not has:
            self._forgotten(keys, again=True)
        else:
            mark.value.again_s = fetch.loading.again_s

    def _break_promise(self, fetch: _Fetch) -> None:
        """Keep room no longer; a mark that comes all the same makes its own."""
        self._cache.promised_bytes -= fetch.promised_bytes
        fetch.promised_bytes = 0

    def _lose_patience(self) -> bool:
        """Let jobs read that have waited longer than reading takes, or in vain; whether there are any."""
        now_s = self._now_s()
        late = [
            fetch
            for fetch in self._fetches.values()
            if fetch.wanted and (self._hangs or now_s - fetch.since_s > fetch.saves_s + self.patience_s)
        ]
        for fetch in late:
            # So that the next one does not wait for the same again.
            self._spill.pace.measure(fetch.n_bytes, now_s - fetch.since_s, ended=False)
            _let_go(fetch)
        for fetch in self._fetches.values():
            if not fetch.wanted:
                self._break_promise(fetch)
        return bool(late)

    # --- what is written

    def _store(self, mark: KeptMark | None) -> None:
        """Hand a mark in to be written, one at a time; None where there is none to be written."""
        snapshot = None if mark is None else mark.value.snapshot
        if mark is None or snapshot is None:
            self._all_stored = self._cache.version
            return
        kept, keys = mark.value, self._cache.keys_of(mark)
        age_s = max(0.0, self._now_s() - kept.used_s)
        stored = Stored(keys, kept.kind, kept.cost_s, age_s, kept.pinned)

        def written(made: StoredMark | None, again_s: float) -> None:
            self._storing, self._all_stored = False, -1
            if made is not None:
                kept.storable = True
                if made.there:  # else it has been told already, or will be, that it is not any more
                    self._cache.insert_stored(keys, kept.kind, kept.cost_s, kept.used_s, pinned=stored.pinned)
            elif again_s > self._spill.clock_s():
                kept.storable = False  # until then, or until it is used
                if again_s < NEVER_S:
                    self._later[kept] = again_s
            else:
                kept.storable = True

        self._storing = True
        self._spill.store(stored, snapshot, lambda made, again_s: self._tell(lambda: written(made, again_s)))

    def _store_again(self) -> None:
        """Let marks be written whose files failed a while ago."""
        for kept in [kept for kept, again_s in self._later.items() if again_s <= self._spill.clock_s()]:
            del self._later[kept]
            kept.storable, self._all_stored = True, -1

    # --- what the directory's threads tell

    def _hear(self, most_s: float = math.inf) -> bool:
        """Do what has been told, or the first of it; whether there was any."""
        n, end_s = len(self._arrived), self._now_s() + most_s
        for i in range(n):
            if i and self._now_s() >= end_s:
                break
            self._arrived.popleft()()
        return n > 0

    def _tell(self, what: Callable[[], None]) -> None:
        self._arrived.append(what)
        self._call()

    def _call(self) -> None:
        """Have the engine's thread look: it may sleep, or wait."""
        self._wake.set()
        self._told()

    def _found(self, stored: Stored, mark: StoredMark) -> None:
        if not mark.there:  # it was found damaged meanwhile
            return
        used_s = self._now_s() - stored.age_s
        self._cache.insert_stored(stored.rows, stored.kind, stored.cost_s, used_s, pinned=stored.pinned)

    def _forgotten(self, rows: Keys, again: bool) -> None:
        """Take note that a mark is not there any more, and whether it may be written again.

        One that made room may not until it is used: else two marks could push each other out for ever.
        """
        if (mark := self._cache.find_mark(rows)) is not None:
            mark.value.storable = again
            self._cache.forget_stored(mark)


def _saved_s(mark: KeptMark, base: KeptMark | None) -> float:
    """Say what reading takes from the deepest mark in memory to another one."""
    return mark.value.cost_s - (base.value.cost_s if base is not None else 0.0)


def _let_go(fetch: _Fetch, *, patient: bool = False) -> None:
    """Let those go on who wait for a mark, and say whether they would wait again."""
    for job in fetch.jobs:
        job.loading, job.patient = False, job.patient and patient
    fetch.jobs.clear()
