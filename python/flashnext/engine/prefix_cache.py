"""What of the prompts that were read is kept, and what goes first: a policy without clock, files or threads.

Kept are snapshots at marks (`engine/marks.py`), found again by the rows before them (`engine/radix.py`). A
snapshot takes a block of its own and shares pages with others; both are counted exactly, a page once. What
frees most memory for the least time goes first: docs/prefix-cache.md.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.engine.core import Snapshot
from flashnext.engine.marks import LEAST, LEAST_NEW, LEAST_PARTED, Kind, Place
from flashnext.engine.radix import Keys, Mark, RadixTree, shared_rows

_MOST_DOUBLINGS = 40  # of a spacing: farther apart than any context is long
_RATED_AGAIN = 64  # marks are rated anew after each so many-th part of them has gone


@dataclass(frozen=True)
class CacheOptions:
    """How marks are chosen and how they age.

    Attributes:
        page: Rows of a page.
        spacing: Tokens between kept marks, at least; the newest two and system prompts may lie closer.
        half_life_s: What a mark is worth halves in so many seconds without use.
        thin_s: The spacing of marks doubles in so many seconds without use.
        most_marks: Marks in memory.
        least: Rows before the end of a reply that is kept, at least.
        least_new: Rows that it lies behind the deepest mark, at least.
        least_parted: Rows that a mark where prompts part lies behind the one before, at least.
        pinned_share: Part of the limit that pinned marks may take.
    """

    page: int = PAGE_TOKENS
    spacing: int = 1024
    half_life_s: float = 600.0
    thin_s: float = 900.0
    most_marks: int = 4096
    pinned_share: float = 0.5
    least: int = LEAST
    least_new: int = LEAST_NEW
    least_parted: int = LEAST_PARTED


@dataclass(eq=False)
class Kept:
    """What is kept at a mark.

    Attributes:
        kind: Why it is there.
        cost_s: What reading all of it took, in seconds.
        used_s: When it was made or used last.
        snapshot: In memory; None where it is in the spill directory alone, and of the tree's root.
        pages: Ids of its pages, by position.
        stored: Whether the spill directory has it.
        storable: Whether it may get it: it fits there, and was not removed there since it was used; nor is
            one of its files known to fail.
        again_s: When the spill directory may be asked for it again, by the clock of that.
        pinned: Whether it goes after all that are not.
        pin_stored: Whether the spill directory knows of that.
        behind: The rows that lay behind it, up to a page, in the prompt that it was made for; None where
            nobody knows.
    """

    kind: Kind
    cost_s: float
    used_s: float
    snapshot: Snapshot | None = None
    pages: tuple[int, ...] = field(default=(), repr=False)
    stored: bool = False
    storable: bool = True
    again_s: float = float("-inf")
    pinned: bool = False
    pin_stored: bool = False
    behind: Keys | None = field(default=None, repr=False)


KeptMark = Mark[Kept]


class PrefixCache:
    """The marks in memory and in the spill directory.

    Attributes:
        limit_bytes: Most that blocks and pages take together.
        n_evicted: Marks that gave way.
        promised_bytes: Of the limit, for marks that are on their way from the spill directory.
        version: Another number whenever what can be found has changed.
    """

    def __init__(
        self, limit_bytes: int, block_bytes: int, page_bytes: int, options: CacheOptions | None = None
    ) -> None:
        """Keep nothing yet.

        Args:
            limit_bytes: Most that blocks and pages take together.
            block_bytes: What the block of a snapshot takes.
            page_bytes: What a page takes.
            options: How marks are chosen and how they age.
        """
        self.limit_bytes = limit_bytes
        self.options = options or CacheOptions()
        self.n_evicted = self.version = self.promised_bytes = 0
        self._block_bytes = block_bytes
        self._page_bytes = page_bytes
        self._tree = RadixTree(Kept(Kind.SPACED, 0.0, 0.0), self.options.page)
        self._memory: dict[KeptMark, None] = {}  # in the order of their coming
        self._pages = Counter[int]()  # how many marks in memory refer to each

    # --- what there is

    @property
    def marks(self) -> Collection[KeptMark]:
        """Those in memory."""
        return self._memory.keys()

    @property
    def blocks_bytes(self) -> int:
        """Bytes of all blocks."""
        return len(self._memory) * self._block_bytes

    @property
    def pages_bytes(self) -> int:
        """Bytes of all pages, each counted once."""
        return len(self._pages) * self._page_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of everything."""
        return self.blocks_bytes + self.pages_bytes

    def bytes_of(self, n_rows: int) -> int:
        """Count what a mark takes that shares nothing."""
        return self._block_bytes + -(-n_rows // self.options.page) * self._page_bytes

    @property
    def largest_bytes(self) -> int:
        """What the largest mark takes, what it shares included."""
        return max((self.bytes_of(mark.n) for mark in self._memory), default=0)

    def keys_of(self, mark: KeptMark) -> Keys:
        """Give the rows before a mark."""
        return self._tree.keys_of(mark)

    def find(self, keys: Keys) -> KeptMark | None:
        """Find the deepest mark of a prompt, strictly below its last row: that one is always read anew.

        Args:
            keys: (n,) of the whole prompt.
        """
        return self.deepest(keys[:-1])

    def deepest(self, keys: Keys) -> KeptMark | None:
        """Find the deepest mark in memory on the way of a sequence, its end included."""
        found = None
        for mark in self._tree.path(keys):
            found = mark if mark.value.snapshot is not None else found
        return found

    def parting(self, keys: Keys, n_read: int) -> Place | None:
        """Find where a prompt leaves one that was read before, where that is worth a mark: others may too.

        Args:
            keys: (n,) of the whole prompt.
            n_read: Rows that need not be read.
        """
        least = n_read + self.options.least_parted
        n = min(self._tree.shared(keys, least), len(keys) - 1)
        return Place(n, Kind.PARTED) if n >= least else None

    def find_stored(self, keys: Keys, able: Callable[[KeptMark], bool]) -> KeptMark | None:
        """Find the deepest mark of a prompt that the spill directory alone has, below all in memory.

        Args:
            keys: (n,) of the whole prompt.
            able: Whether a mark may be had.
        """
        found = None
        for mark in self._tree.path(keys[:-1]):
            if mark.value.snapshot is not None:
                found = None
            elif able(mark):
                found = mark
        return found

    # --- what is added

    def use(self, mark: KeptMark, behind: Keys, now_s: float) -> None:
        """Take note that a prompt goes on from a mark; a system prompt that others begin with is pinned.

        Args:
            mark: Where it goes on.
            behind: What the prompt has behind it, of which a page is looked at. One that goes on like the
                prompt for which the mark was made is the same conversation, and says nothing of others.
            now_s: The time.
        """
        kept = mark.value
        kept.used_s, kept.storable = now_s, True
        behind = behind[: self.options.page]
        if kept.kind != Kind.SYSTEM or kept.pinned:
            return
        if kept.behind is None:
            kept.behind = behind.copy()
        elif shared_rows(kept.behind, behind) < min(len(kept.behind), len(behind)):
            kept.pinned = True
            self._limit_pinned(now_s)

    def wanted(self, keys: Keys, places: Sequence[Place]) -> tuple[Place, ...]:
        """Choose the places of a prompt whose states are to be kept, in ascending order.

        Where not all fit, those with the best reasons, and of equal ones the deepest.

        Args:
            keys: Of the whole prompt.
            places: Ascending.
        """
        at = {mark.n: mark for mark in self._tree.path(keys)}
        for place in places:  # one that was found by its distance may turn out to be a system prompt's end
            if place.n in at:
                at[place.n].value.kind = max(at[place.n].value.kind, place.kind)
        there = {n for n, mark in at.items() if mark.value.snapshot is not None}
        kept, chosen = sorted(there), list[Place]()
        newest = {place.n for place in [p for p in places if p.kind != Kind.PARTED][-2:]}
        for place in places:
            if place.n in there:
                continue
            close = any(abs(place.n - n) < self.options.spacing for n in kept)
            if not close or place.n in newest or place.kind in (Kind.SYSTEM, Kind.PARTED):
                chosen.append(place)
                kept.append(place.n)
        picked: list[Place] = []
        for place in sorted(chosen, key=lambda place: (-place.kind, -place.n)):
            rows = max(p.n for p in (place, *picked))
            size = self.bytes_of(rows) + len(picked) * self._block_bytes
            if size <= self.limit_bytes and len(picked) < self.options.most_marks:
                picked.append(place)
        return tuple(sorted(picked, key=lambda place: place.n))

    def insert(
        self,
        keys: Keys,
        kind: Kind,
        snapshot: Snapshot,
        cost_s: float,
        now_s: float,
        behind: Keys | None = None,
    ) -> KeptMark | None:
        """Keep a snapshot, which is the cache's from now on; closed where it is not kept.

        Args:
            keys: (snapshot.n,), the rows that it was made of.
            kind: Why it is kept.
            snapshot: Of the state behind them.
            cost_s: What reading them took.
            now_s: The time.
            behind: What the prompt has behind them, of which a page is looked at.
        """
        assert len(keys) == snapshot.n
        self.version += 1
        mark = self._tree.at(keys)
        if mark is None:
            mark = self._tree.insert(keys, Kept(kind, cost_s, now_s))
        kept = mark.value
        if kept.snapshot is not None:
            snapshot.close()
        else:
            kept.snapshot, kept.pages = snapshot, snapshot.page_ids
            self._memory[mark] = None
            self._pages.update(kept.pages)
        if kept.behind is None and behind is not None:
            kept.behind = behind[: self.options.page].copy()
        kept.kind, kept.used_s = max(kept.kind, kind), max(kept.used_s, now_s)
        self.make_room(0, now_s, keep={mark})
        if self.size_bytes > self.limit_bytes or len(self._memory) > self.options.most_marks:
            self._evict(mark)
            return None
        self._space(mark, now_s)
        return mark

    def find_mark(self, keys: Keys) -> KeptMark | None:
        """Find the mark at the end of a sequence, wherever it is."""
        return self._tree.at(keys)

    def insert_stored(self, keys: Keys, kind: Kind, cost_s: float, used_s: float, *, pinned: bool) -> None:
        """Take note of a mark that the spill directory has.

        Args:
            keys: The rows before it.
            kind: Why it was kept.
            cost_s: What reading them took.
            used_s: When it was used last.
            pinned: Whether it was pinned.
        """
        self.version += 1
        mark = self._tree.at(keys)
        if mark is None:
            mark = self._tree.insert(keys, Kept(kind, cost_s, used_s, pinned=pinned))
        mark.value.stored, mark.value.pin_stored = True, pinned

    # --- what goes

    def make_room(self, n_bytes: int, now_s: float, keep: Collection[KeptMark] = ()) -> bool:
        """Evict until so many more bytes stay within the limit; whether they do.

        Nothing is evicted in vain: where not even an empty cache had the room, all stays. Room for nothing is
        never in vain: what is there gives way for what has been promised.
        """
        more = n_bytes + self.promised_bytes
        if n_bytes and more > self.limit_bytes:
            return False

        def fits() -> bool:
            few = len(self._memory) <= self.options.most_marks - (n_bytes > 0)
            return few and self.size_bytes + more <= self.limit_bytes

        self._evict_until(fits, now_s, keep)
        return fits()

    def give_way(
        self,
        now_s: float,
        spare: Collection[KeptMark] = (),
        stay: Collection[KeptMark] = (),
        enough: Callable[[], bool] | None = None,
    ) -> bool:
        """Evict the least useful marks; those to be spared only where there are no others.

        Args:
            now_s: The time.
            spare: Those.
            stay: Marks that are not evicted.
            enough: Whether to end; asked after each. By default one is evicted.

        Returns:
            Whether there was one.
        """
        before = self.n_evicted
        end = enough or (lambda: self.n_evicted > before)
        for keep in ({*spare, *stay}, stay):
            self._evict_until(end, now_s, keep)
        return self.n_evicted > before

    def thin(self, now_s: float) -> None:
        """Drop marks that have aged and lie close to others."""
        for mark in sorted(self._memory, key=lambda mark: mark.n):
            self._thin_one(mark, now_s)

    def forget_stored(self, mark: KeptMark) -> None:
        """Take note that the spill directory does not have a mark any more, or cannot give it."""
        self.version += 1
        mark.value.stored = mark.value.pin_stored = False
        if mark.value.snapshot is None and mark.parent is not None:
            self._tree.remove(mark)

    def clear(self) -> None:
        """Give all memory back; what the spill directory has stays known."""
        for mark in list(self._memory):
            self._release(mark)

    def to_store(self, n_bytes: int, now_s: float, most_parted: int) -> KeptMark | None:
        """Choose what is to be written to the spill directory next.

        Pinned marks, then those that others may begin with, which take little while deeper ones have their
        pages too, and go at once when those have gone; then who would go first.

        Args:
            n_bytes: So much free memory is looked ahead for.
            now_s: The time.
            most_parted: Of a mark where prompts part, so that it does not wait until it would go: who edits
                a long document leaves one each time, and they would have all others removed there.
        """
        missing = self._missing()
        pinned = (mark for mark in self._memory if mark.value.pinned and not mark.value.pin_stored)
        if (mark := next((m for m in pinned if m.value.storable), None)) is not None:
            return mark
        shared = [
            mark
            for mark in missing
            if mark.value.kind == Kind.SYSTEM
            or (mark.value.kind == Kind.PARTED and self.bytes_of(mark.n) <= most_parted)
        ]
        if shared:
            return max(shared, key=lambda mark: (mark.value.kind, -mark.n))
        ahead = self.size_bytes + n_bytes - self.limit_bytes
        for mark in sorted(self._memory, key=lambda mark: self.usefulness(mark, now_s)) if missing else ():
            if ahead <= 0:
                break
            if mark in missing:
                return mark
            ahead -= self._freed(mark)
        return None

    def to_save(self, now_s: float) -> KeptMark | None:
        """Choose what is to be written next where memory will be gone soon: the most useful."""
        return max(self._missing(), key=lambda mark: self.usefulness(mark, now_s), default=None)

    def usefulness(self, mark: KeptMark, now_s: float) -> float:
        """Rate a mark: seconds that it saves over the next shallower one, for each byte that it takes alone.

        Halved with each half-life since it was used last.
        """
        assert mark.parent is not None
        saved_s = max(mark.value.cost_s - mark.parent.value.cost_s, 1e-9)
        age_s = max(0.0, now_s - mark.value.used_s)
        return float(saved_s * 0.5 ** (age_s / self.options.half_life_s) / self._freed(mark))

    # ---

    def _missing(self) -> set[KeptMark]:
        """Name the marks that the spill directory lacks and may get."""
        return {mark for mark in self._memory if mark.value.storable and not mark.value.stored}

    def _freed(self, mark: KeptMark) -> int:
        """Count the bytes that come free with a mark: its block, and pages that no other one has.

        Sessions share pages from the front, so those are the last ones.
        """
        pages = mark.value.pages
        alone = len(pages) - bisect_left(pages, True, key=lambda page: self._pages[page] == 1)
        return self._block_bytes + alone * self._page_bytes

    def _evict_until(self, end: Callable[[], bool], now_s: float, keep: Collection[KeptMark]) -> None:
        """Evict the least useful marks, or all but those to be kept.

        Each that goes changes what others are worth. Where there are many, several go between two ratings of
        all of them, so that what this takes does not grow with their square.
        """
        while not end():
            able = [mark for mark in self._memory if mark not in keep]
            if not able:
                return
            for mark in heapq.nsmallest(
                max(1, len(able) // _RATED_AGAIN),
                able,
                key=lambda mark: (mark.value.pinned, self.usefulness(mark, now_s), mark.n),
            ):
                self._evict(mark)
                if end():
                    return

    def _evict(self, mark: KeptMark) -> None:
        self.n_evicted += 1
        self._release(mark)

    def _release(self, mark: KeptMark) -> None:
        """Give a mark's memory back; it stays in the tree where the spill directory has it."""
        kept = mark.value
        assert kept.snapshot is not None
        self.version += 1
        del self._memory[mark]
        for page in kept.pages:
            self._pages[page] -= 1
            if not self._pages[page]:
                del self._pages[page]
        kept.snapshot.close()
        kept.snapshot, kept.pages = None, ()
        if not kept.stored:
            self._tree.remove(mark)

    def _space(self, mark: KeptMark, now_s: float) -> None:
        """Drop what is too close to others on the way to a mark that was added."""
        above = mark.parent
        while above is not None and above is not self._tree.root:
            parent = above.parent
            self._thin_one(above, now_s)
            above = parent

    def _thin_one(self, mark: KeptMark, now_s: float) -> None:
        kept = mark.value
        if kept.snapshot is None or kept.kind == Kind.SYSTEM or kept.pinned or mark.height < 2:
            return
        above = mark.parent
        while above is not self._tree.root and above is not None and above.value.snapshot is None:
            above = above.parent
        assert above is not None
        doublings = min(_MOST_DOUBLINGS, max(0.0, now_s - kept.used_s) / self.options.thin_s)
        if above is not self._tree.root and mark.n - above.n < self.options.spacing * 2.0**doublings:
            self._release(mark)

    def _limit_pinned(self, now_s: float) -> None:
        """Let go of the least useful pins where pinned marks take more than their part."""
        pinned = [mark for mark in self._memory if mark.value.pinned]
        pages = Counter(page for mark in pinned for page in mark.value.pages)
        most = self.limit_bytes * self.options.pinned_share
        size = len(pinned) * self._block_bytes + len(pages) * self._page_bytes
        for mark in sorted(pinned, key=lambda mark: self.usefulness(mark, now_s)):
            if size <= most:
                break
            mark.value.pinned = False
            pages.subtract(mark.value.pages)
            alone = sum(pages[page] == 0 for page in mark.value.pages)
            size -= self._block_bytes + alone * self._page_bytes
