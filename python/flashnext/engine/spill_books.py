"""The books of a spill directory: which files it has, what they take, who needs them, and which go first."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flashnext.engine.radix import Keys

PINNED_SHARE = 0.5
"""Part of the limit in which pinned marks go last; the others of them go like any other."""


@dataclass(eq=False)
class StoredMark:
    """A mark's file, and the names of those of its pages.

    Attributes:
        used: When it was used last, in Unix seconds.
        there: Whether it is in the books: it may be forgotten before others hear that it was written.
    """

    rows: Keys = field(repr=False)
    size_bytes: int
    pages: Sequence[str] = field(repr=False)
    pinned: bool
    used: float
    there: bool = True


class Books:
    """What a directory has. From any thread; nothing here touches a file.

    Whatever adds a file, or takes note that it was removed, is called by the one thread that does so. Every
    file counts exactly once, from when it is there until it is gone: as a mark, as a page, as one that is to
    be removed, or as one that could not be looked at.

    Attributes:
        limit_bytes: Most that all files take.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._mutex = threading.Lock()
        self._marks: dict[str, StoredMark] = {}
        self._pages: dict[str, int] = {}  # their sizes
        self._needed = Counter[str]()  # how many marks need a page, those that are being written included
        self._doomed: dict[str, int] = {}  # sizes of files that are to be removed
        self._damaged = set[str]()  # those of them that are of no use to anybody
        self._others: dict[str, int] = {}  # sizes of what could not be looked at, the first to go in front
        self._n_bytes = 0

    @property
    def n_marks(self) -> int:
        """Marks that it has."""
        return len(self._marks)

    @property
    def n_bytes(self) -> int:
        """What all files take."""
        return self._n_bytes

    @property
    def marks(self) -> list[StoredMark]:
        """All marks."""
        with self._mutex:
            return list(self._marks.values())

    @property
    def doomed(self) -> list[str]:
        """Files that are to be removed."""
        with self._mutex:
            return list(self._doomed)

    def over(self, n_bytes: int) -> int:
        """Count the bytes that have to go before so many more fit the limit; 0 where they do."""
        return max(0, self._n_bytes + n_bytes - self.limit_bytes)

    def get(self, name: str) -> StoredMark | None:
        """Find a mark."""
        with self._mutex:
            return self._marks.get(name)

    def missing(self, pages: Iterable[str]) -> list[str]:
        """Name those of some pages that it does not have."""
        with self._mutex:
            return [page for page in pages if page not in self._pages]

    def knows(self, name: str) -> bool:
        """Whether a file counts already, and not as one that could not be looked at."""
        with self._mutex:
            return name in self._marks or name in self._pages or name in self._doomed

    # --- what comes

    def take(self, name: str, mark: StoredMark, sizes: Mapping[str, int]) -> bool:
        """Take in a mark that was found; whether it can be had: one of its pages may be known as damaged.

        Args:
            name: Of its file.
            mark: What it is.
            sizes: Of its pages that were missing.
        """
        with self._mutex:
            self._n_bytes += mark.size_bytes
            if not self._damaged.isdisjoint(mark.pages):
                self._doomed[name], mark.there = mark.size_bytes, False
                for page in mark.pages:  # those that nobody else needs, as far as is known
                    if page not in self._pages and page not in self._doomed:
                        self._doomed[page] = sizes[page]
                        self._n_bytes += sizes[page]
                return False
            for page in mark.pages:
                if page in self._doomed:  # for want of a mark that needs it
                    self._pages[page] = self._doomed.pop(page)
                elif page not in self._pages:
                    self._pages[page] = sizes[page]
                    self._n_bytes += sizes[page]
            self._marks[name] = mark
            self._needed.update(mark.pages)
            return True

    def take_other(self, name: str, size_bytes: int) -> None:
        """Take in a file that could not be looked at; the first one goes first."""
        with self._mutex:
            self._others[name] = size_bytes
            self._n_bytes += size_bytes

    def need(self, pages: Sequence[str]) -> None:
        """Have pages stay for a mark that is being written."""
        with self._mutex:
            self._needed.update(pages)

    def release(self, pages: Sequence[str]) -> None:
        """Need pages no more."""
        with self._mutex:
            self._release(pages)

    def put_page(self, name: str, size_bytes: int) -> None:
        """Take note that a page was written, in the place of whatever had its name."""
        with self._mutex:
            self._n_bytes += size_bytes - self._replaced(name)
            self._pages[name] = size_bytes

    def put_mark(self, name: str, mark: StoredMark) -> None:
        """Take note that a mark was written, whose pages are needed already."""
        with self._mutex:
            before = self._marks.pop(name, None)
            self._n_bytes += mark.size_bytes
            if before is None:
                self._n_bytes -= self._replaced(name)
            else:
                self._n_bytes -= before.size_bytes
                before.there = False
                self._release(before.pages)
            self._marks[name] = mark

    def use(self, name: str, now: float, pinned: bool) -> StoredMark | None:
        """Take note that a mark was used; returns it."""
        with self._mutex:
            if (mark := self._marks.get(name)) is not None:
                mark.used, mark.pinned = now, mark.pinned or pinned
            return mark

    # --- what goes

    def forget(self, name: str) -> StoredMark | None:
        """Doom a mark, and the pages that no other one needs; returns it."""
        with self._mutex:
            if (mark := self._marks.pop(name, None)) is not None:
                self._doomed[name], mark.there = mark.size_bytes, False
                self._release(mark.pages)
            return mark

    def damage(self, page: str) -> list[str]:
        """Doom a page that is damaged or gone; names the marks that need it."""
        with self._mutex:
            if (size := self._pages.pop(page, None)) is not None:
                self._doomed[page] = size
            if page in self._doomed:
                self._damaged.add(page)
            marks = list(self._marks.items())
        return [name for name, mark in marks if page in mark.pages]

    def doom_other(self) -> bool:
        """Doom the first of what could not be looked at; whether there was any."""
        with self._mutex:
            if (name := next(iter(self._others), None)) is None:
                return False
            self._doomed[name] = self._others.pop(name)
            return True

    def removed(self, name: str) -> None:
        """Take note that a doomed file is gone."""
        with self._mutex:
            self._n_bytes -= self._doomed.pop(name, 0)
            self._damaged.discard(name)

    def in_order(self, but: str) -> deque[str]:
        """Name all marks but one, those that make room first in front: pinned ones go last."""
        with self._mutex:
            marks, pages = dict(self._marks), dict(self._pages)
        last = self._go_last(marks, pages)
        others = (name for name in marks if name != but)
        return deque(sorted(others, key=lambda name: (name in last, marks[name].used)))

    def clear(self) -> list[StoredMark]:
        """Forget all, as of a directory that is not there; returns the marks that there were."""
        with self._mutex:
            gone = list(self._marks.values())
            for mark in gone:
                mark.there = False
            for kept in (self._marks, self._pages, self._needed, self._doomed, self._damaged, self._others):
                kept.clear()
            self._n_bytes = 0
            return gone

    # --- with the mutex held

    def _release(self, pages: Sequence[str]) -> None:
        for page in pages:
            self._needed[page] -= 1
            if self._needed[page] <= 0:
                del self._needed[page]
                if (size := self._pages.pop(page, None)) is not None:
                    self._doomed[page] = size

    def _replaced(self, name: str) -> int:
        """Count a file no more that another one has taken the place of; returns its size."""
        self._damaged.discard(name)
        return self._pages.pop(name, 0) + self._doomed.pop(name, 0) + self._others.pop(name, 0)

    # ---

    def _go_last(self, marks: Mapping[str, StoredMark], sizes: Mapping[str, int]) -> Collection[str]:
        """Name the pinned marks that were used last and fit the part of the limit that is theirs."""
        held, pages, size = set[str](), set[str](), 0
        pinned = [(name, mark) for name, mark in marks.items() if mark.pinned]
        for name, mark in sorted(pinned, key=lambda one: -one[1].used):
            more = set(mark.pages) - pages
            size += mark.size_bytes + sum(sizes.get(page, 0) for page in more)
            if size > self.limit_bytes * PINNED_SHARE:
                break
            held.add(name)
            pages |= more
        return held
