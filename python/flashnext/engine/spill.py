"""Marks that are written to a directory in the background, and come back from it; `engine/spill_files.py`."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flashnext.engine import spill_files as files
from flashnext.engine.core import Bytes, Core, Snapshot
from flashnext.engine.defaults import SPILL_PIECE_BYTES
from flashnext.engine.helper import Helper
from flashnext.engine.marks import Kind
from flashnext.engine.radix import Keys
from flashnext.errors import FlashnextError

_log = logging.getLogger("flashnext.engine")

COOL_S = 30.0
"""After a failed write, how long nothing is written."""

FLOOR_BYTES = 1 << 30
"""Free space of the disk that is left alone."""


@dataclass(frozen=True)
class Stored:
    """A mark that the directory has.

    Attributes:
        rows: Before it, (n,) int64.
        kind: Why it was kept.
        cost_s: What reading them took.
        age_s: How long ago it was used.
        pinned: Whether it was pinned.
    """

    rows: Keys = field(repr=False)
    kind: Kind
    cost_s: float
    age_s: float
    pinned: bool


@dataclass
class _File:
    size_bytes: int
    pages: list[str]
    pinned: bool
    used: float


@dataclass(frozen=True)
class SpillCounts:
    """What a directory holds and what was done with it; see `CacheCounts`."""

    stored: int
    stored_bytes: int
    spilled: int
    restored: int
    spill_failures: int


class Spill:
    """A directory of marks. Files are read and written by two threads of its own; nothing waits for them.

    Its methods may be called from any thread; `found`, `forgotten` and what else is told comes from its own.

    Attributes:
        bytes_per_s: How fast marks came back lately.
    """

    def __init__(
        self,
        folder: Path,
        core: Core,
        identity: str,
        *,
        page: int,
        limit_bytes: int,
        floor_bytes: int = FLOOR_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take the directory.

        Args:
            folder: Where the files lie.
            core: Whose states they have.
            identity: Of all that the bits of a state depend on; files of another one are removed.
            page: Rows of a page.
            limit_bytes: Most that all files take.
            floor_bytes: Free space of the disk that is left alone.
            now: The time of day, in Unix seconds.

        Raises:
            SpillBusy: Another process has it.
            SpillError: It cannot be used.
        """
        self._folder, self._core, self._identity, self._page = folder, core, identity, page
        self._limit_bytes, self._floor_bytes, self._now = limit_bytes, floor_bytes, now
        self._lock_file = files.Lock(folder)
        self._mutex = threading.Lock()
        self._marks: dict[str, _File] = {}
        self._pages: dict[str, int] = {}  # their sizes
        self._needed = Counter[str]()  # how many marks need a page
        self._writer, self._reader = Helper("flashnext-spill"), Helper("flashnext-restore")
        self._closed = False
        self._cool_until = 0.0
        self._warned = False
        self._n_spilled = self._n_restored = self._n_failures = 0
        self.bytes_per_s = 1e9

    @property
    def counts(self) -> SpillCounts:
        """What it holds and has done."""
        with self._mutex:
            return SpillCounts(
                len(self._marks), self._size(), self._n_spilled, self._n_restored, self._n_failures
            )

    @property
    def n_waiting(self) -> int:
        """Calls of its threads that have not ended."""
        return self._writer.n_waiting + self._reader.n_waiting

    @property
    def ready(self) -> bool:
        """Whether a mark may be handed in to be written."""
        return not self._closed and not self._writer.n_waiting and self._now() >= self._cool_until

    def begin(self, found: Callable[[Stored], None], forgotten: Callable[[Keys], None]) -> None:
        """Look through the directory, in the background.

        Args:
            found: Told each mark that there is.
            forgotten: Told the rows of each mark that is removed to make room for others, or was damaged.
        """
        self._forgotten = forgotten
        self._writer.call(lambda: self._scan(found))

    def store(self, mark: Stored, snapshot: Snapshot, done: Callable[[bool, bool], None]) -> None:
        """Write a mark.

        Args:
            mark: What it is.
            snapshot: Its state; may be closed at any time, which ends the write.
            done: Told whether it was written, and where it was not, whether it ever can be.
        """
        self._writer.call(lambda: self._store(mark, snapshot, done))

    def load(
        self,
        rows: Keys,
        shared: Snapshot | None,
        n_shared: int,
        done: Callable[[Snapshot | None, bool], None],
    ) -> None:
        """Read a mark.

        Args:
            rows: Before it.
            shared: A snapshot whose first pages are the mark's too.
            n_shared: How many.
            done: Told the state, None where it cannot be had, and whether the directory still has it.
        """
        self._reader.call(lambda: self._load(rows, shared, n_shared, done))

    def use(self, rows: Keys, pinned: bool) -> None:
        """Take note that a mark was used."""
        name = files.mark_name(self._identity, rows)
        with self._mutex:
            if (mark := self._marks.get(name)) is None:
                return
            mark.used, mark.pinned = self._now(), mark.pinned or pinned
        self._reader.call(lambda: files.touch(self._folder / name, self._now()))

    def close(self, timeout_s: float = 2.0) -> None:
        """End what is being read and written, and give the directory back."""
        self._closed = True
        if all([self._writer.close(timeout_s), self._reader.close(timeout_s)]):
            self._lock_file.release()

    # --- in the writer's thread

    def _scan(self, found: Callable[[Stored], None]) -> None:
        try:
            for entry, pages in files.scan(self._folder, self._identity, self._page):
                if self._closed:
                    return
                header = entry.header
                stored = Stored(
                    entry.rows,
                    Kind(header["kind"]),
                    float(header["cost_s"]),
                    max(0.0, self._now() - entry.used),
                    bool(header["pinned"]),
                )
                with self._mutex:
                    self._marks[entry.name] = _File(entry.size_bytes, pages, stored.pinned, entry.used)
                    self._needed.update(pages)
                    for name in pages:
                        if name not in self._pages:
                            self._pages[name] = (self._folder / name).stat().st_size
                found(stored)
        except (OSError, KeyError, TypeError, ValueError) as error:
            self._fail(error)

    def _store(self, mark: Stored, snapshot: Snapshot, done: Callable[[bool, bool], None]) -> None:
        names = files.page_names(self._identity, mark.rows, self._page)
        written = ever = False
        with self._mutex:
            self._needed.update(names)  # so that none of them is removed meanwhile
        try:
            self._write(mark, snapshot, names)
            written = True
        except files.NoRoom as error:
            ever = self._size_of(mark, names, whole=True) <= self._limit_bytes
            self._fail(error if ever else None)
        except (OSError, FlashnextError) as error:
            ever = True
            # One that has been evicted meanwhile has failed nobody.
            self._fail(None if self._closed or not isinstance(error, OSError) else error)
        except Exception as error:  # whatever it is, the next one is handed in only after an answer
            self._fail(error)
        if not written:
            with self._mutex:
                self._release(names)
        done(written, ever)

    def _write(self, mark: Stored, snapshot: Snapshot, names: Sequence[str]) -> None:
        name = files.mark_name(self._identity, mark.rows)
        if self._size_of(mark, names, whole=True) > self._limit_bytes:  # before others are removed for it
            raise files.NoRoom(f"{self._folder}: a mark of {len(mark.rows)} rows does not fit --spill-limit")
        self._make_room(self._size_of(mark, names, whole=False), name)
        for index, page in enumerate(names):
            if self._closed:
                raise files.SpillError("the directory is given back")
            if page not in self._pages:
                data = self._core.read_page(snapshot, index)
                told = {"identity": self._identity, "name": page}
                size = files.write(self._folder / page, told, mark.rows[:0], [data], self._floor_bytes)
                with self._mutex:
                    self._pages[page] = size
        header = {
            "identity": self._identity,
            "kind": int(mark.kind),
            "cost_s": mark.cost_s,
            "pinned": mark.pinned,
        }
        state = [self._core.read_block(snapshot), self._core.read_page(snapshot, len(names))]
        size = files.write(self._folder / name, header, mark.rows, state, self._floor_bytes)
        with self._mutex:
            if (before := self._marks.get(name)) is not None:
                self._release(before.pages)
            self._marks[name] = _File(size, list(names), mark.pinned, self._now())
            self._n_spilled += 1

    def _size_of(self, mark: Stored, names: Sequence[str], *, whole: bool) -> int:
        missing = [name for name in names if whole or name not in self._pages]
        page = self._core.page_bytes + 256
        return (len(missing) + 1) * page + self._core.block_bytes + 8 * len(mark.rows) + 256

    def _make_room(self, n_bytes: int, name: str) -> None:
        """Remove what was not used for longest, and pinned marks last.

        Raises:
            NoRoom: There is not so much.
        """
        while True:
            with self._mutex:
                if self._size() + n_bytes <= self._limit_bytes:
                    return
                able = [other for other in self._marks if other != name]
                least = min(able, key=lambda n: (self._marks[n].pinned, self._marks[n].used), default=None)
            if least is None:
                raise files.NoRoom(f"{self._folder}: {n_bytes} bytes do not fit --spill-limit")
            self._forget(least)

    # --- in the reader's thread

    def _load(
        self,
        rows: Keys,
        shared: Snapshot | None,
        n_shared: int,
        done: Callable[[Snapshot | None, bool], None],
    ) -> None:
        name = files.mark_name(self._identity, rows)
        made, has = None, True
        try:
            began = time.perf_counter()
            made, n_bytes = self._read(name, rows, shared, n_shared)
            rate = n_bytes / max(1e-6, time.perf_counter() - began)
            self.bytes_per_s += 0.3 * (rate - self.bytes_per_s)
            with self._mutex:
                self._n_restored += 1
        except (files.SpillError, OSError) as error:  # a file; whoever needs it does without from now on
            self._fail(error)
            self._forget(name)
            has = False
        except FlashnextError:  # no memory now, or the pages that were to be shared are gone
            pass
        except Exception as error:  # whatever it is, somebody waits for an answer
            self._fail(error)
            has = False
        done(made, has)

    def _read(self, name: str, rows: Keys, shared: Snapshot | None, n_shared: int) -> tuple[Snapshot, int]:
        core, page_bytes, n_bytes = self._core, self._core.page_bytes, 0
        entry, payload = files.read(self._folder / name)
        names = files.page_names(self._identity, rows, self._page)
        right = entry.header.get("identity") == self._identity and np.array_equal(entry.rows, rows)
        if not right or payload.nbytes != core.block_bytes + page_bytes:
            raise files.SpillError(f"{self._folder / name}: of another state than its name says")
        block, tail = payload[: core.block_bytes], payload[core.block_bytes :]
        at = n_shared if shared is not None else 0
        held: Snapshot | None = None  # has the pages that have been read so far, under a block of no meaning
        try:
            while True:
                source = held or shared
                pages: list[Bytes | tuple[Snapshot, int]] = []
                if source is not None:
                    pages += ((source, index) for index in range(at))
                piece = names[at : at + max(1, SPILL_PIECE_BYTES // page_bytes)]
                for page in piece:
                    if self._closed:
                        raise files.SpillError("the directory is given back")
                    pages.append(self._read_page(page))
                at += len(piece)
                n_bytes += len(piece) * page_bytes
                last = at == len(names)
                more = core.restore(
                    len(rows) if last else at * self._page, block, [*pages, tail] if last else pages
                )
                if held is not None:
                    held.close()
                held = more
                if last:
                    return held, n_bytes + payload.nbytes
        except BaseException:
            if held is not None:
                held.close()
            raise

    def _read_page(self, name: str) -> Bytes:
        path = self._folder / name
        try:
            entry, data = files.read(path)
            told = entry.header.get("identity"), entry.header.get("name")  # its rows, which it has not, name it
            if told != (self._identity, name) or data.nbytes != self._core.page_bytes:
                raise files.SpillError(f"{path}: of another state than its name says")
        except (files.SpillError, OSError):
            with self._mutex:
                needing = [mark for mark, file in self._marks.items() if name in file.pages]
            for mark in needing:
                self._forget(mark)
            raise
        return data

    # ---

    def _size(self) -> int:
        return sum(mark.size_bytes for mark in self._marks.values()) + sum(self._pages.values())

    def _forget(self, name: str) -> None:
        """Remove a mark, and the pages that no other one needs."""
        path = self._folder / name
        rows: Keys | None = None
        with suppress(files.SpillError, OSError):
            rows = files.read_head(path).rows
        files.remove(path)
        with self._mutex:
            mark = self._marks.pop(name, None)
            if mark is not None:
                self._release(mark.pages)
        if rows is not None:
            self._forgotten(rows)

    def _release(self, names: Sequence[str]) -> None:
        for name in names:
            self._needed[name] -= 1
            if self._needed[name] <= 0:
                del self._needed[name]
                if self._pages.pop(name, None) is not None:
                    files.remove(self._folder / name)

    def _fail(self, error: Exception | None) -> None:
        if error is None:
            return
        with self._mutex:
            self._n_failures += 1
        self._cool_until = self._now() + COOL_S
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s: the spill directory fails, and replies go on without it: %s", self._folder, error
            )
