"""Marks that are written to a directory in the background, and come back from it; `engine/spill_files.py`."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import Counter, deque
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
from flashnext.engine.pace import Cool, Pace
from flashnext.engine.radix import Keys
from flashnext.errors import FlashnextError, InvalidArgument

_log = logging.getLogger("flashnext.engine")

PINNED_SHARE = 0.5
"""Part of the limit in which pinned marks go last; the others of them go like any other."""

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


class _Ended(FlashnextError):
    """What was being read or written is of no use any more; nothing is wrong with the directory."""


@dataclass
class _File:
    rows: Keys = field(repr=False)
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
    Only the writer's thread writes and removes files, and none is touched while a lock is held.

    Attributes:
        limit_bytes: Most that all files take.
        pace: How fast marks come back.
        n_moved: Files that were read and written; whoever waits sees by it that something goes on.
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
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the directory.

        Args:
            folder: Where the files lie; made absolute here, so that it stays the same one.
            core: Whose states they have.
            identity: Of all that the bits of a state depend on; files of another one are removed.
            page: Rows of a page.
            limit_bytes: Most that all files take.
            floor_bytes: Free space of the disk that is left alone.
            now: The time of day, in Unix seconds, by which files are used.
            clock_s: A clock that never goes back, by which pauses end.

        Raises:
            InvalidArgument: It has no name, or none but the current folder's.
            SpillBusy: Another process has it.
            SpillError: It cannot be used.
        """
        if not folder.parts:  # as Path("") has none, which nobody means the current folder by
            raise InvalidArgument(
                "the spill directory has an empty name, expected that of a folder; "
                "where the current folder is meant, give its whole path"
            )
        folder = files.absolute(folder)
        self._folder, self._core, self._identity, self._page = folder, core, identity, page
        self.limit_bytes, self._floor_bytes = limit_bytes, floor_bytes
        self._now, self._clock_s = now, clock_s
        self._lock_file = files.Lock(folder)
        self._mutex = threading.Lock()
        self._marks: dict[str, _File] = {}
        self._pages: dict[str, int] = {}  # their sizes
        self._needed = Counter[str]()  # how many marks need a page
        self._doomed: dict[str, int] = {}  # sizes of files that are to be removed
        # Sizes of files that could not be looked at, those to go first in front.
        self._others: dict[str, int] = {}
        self._n_bytes = 0  # of all of them
        self._used = set[str]()  # marks whose files are to be told so: one that hangs has others wait
        self._looked = False  # through the directory as it is, to its end
        self._writer = Helper("flashnext-spill", dry=lambda: self._free())
        self._reader = Helper("flashnext-restore")
        self._closed = False
        self._writes, self._reads = Cool(), Cool()
        self._n_spilled = self._n_restored = self._n_failures = 0
        self.pace = Pace(clock_s)
        self.n_moved = 0

    @property
    def counts(self) -> SpillCounts:
        """What it holds and has done; waits for nothing."""
        return SpillCounts(
            len(self._marks), self._n_bytes, self._n_spilled, self._n_restored, self._n_failures
        )

    @property
    def n_waiting(self) -> int:
        """Calls of its threads that have not ended."""
        return self._writer.n_waiting + self._reader.n_waiting

    @property
    def ready(self) -> bool:
        """Whether a mark may be handed in to be written."""
        return not self._closed and not self._writer.n_waiting and self._clock_s() >= self._writes.until_s

    @property
    def readable(self) -> bool:
        """Whether marks can be read, as far as is known."""
        return not self._closed and self._clock_s() >= self._reads.until_s

    def begin(
        self,
        found: Callable[[Stored], None],
        forgotten: Callable[[Keys, bool], None],
        free: Callable[[], object],
    ) -> None:
        """Look through the directory, in the background.

        Args:
            found: Told each mark that there is.
            forgotten: Told the rows of each mark that is not there any more, and whether it may be handed in
                again at once: its folder is gone, and nobody made it give way.
            free: Called when nothing is being written or removed any more, so that a mark may be handed in;
                not when a pause ends.
        """
        self._found, self._forgotten, self._free = found, forgotten, free
        self._writer.call(self._scan)

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
            if name in self._used:
                return
            self._used.add(name)
        self._reader.call(lambda: self._touch(name))

    def close(self, timeout_s: float = 2.0) -> None:
        """End what is being read and written, and give the directory back: later, if a disk hangs."""
        self._closed = True
        if all([self._writer.close(timeout_s), self._reader.close(timeout_s)]):
            self._lock_file.release()
        else:
            threading.Thread(target=self._end, name="flashnext-spill-end", daemon=True).start()

    def _end(self) -> None:
        for helper in (self._writer, self._reader):
            helper.close(threading.TIMEOUT_MAX)
        self._lock_file.release()

    # --- in the writer's thread

    def _scan(self) -> None:
        try:
            for entry, pages in files.scan(self._folder, self._identity, self._page):
                if self._closed:
                    return
                self._take(entry, pages)
            self._count_others()
            self._looked = True
            with suppress(files.NoRoom):  # of what could not be looked at
                self._make_room(0, "")
        except Exception as error:  # whatever it is, what was found stays
            self._fail(error, self._writes)

    def _take(self, entry: files.Entry, pages: list[str]) -> None:
        """Take in a mark that the directory has."""
        header, sizes = entry.header, dict[str, int]()
        for name in pages:
            if name not in self._pages:
                try:
                    sizes[name] = (self._folder / name).lstat().st_size
                except OSError:
                    return
        age_s = max(0.0, self._now() - entry.used)
        kind, cost_s, pinned = Kind(header["kind"]), float(header["cost_s"]), header["pinned"]
        with self._mutex:
            self._marks[entry.name] = _File(entry.rows, entry.size_bytes, pages, pinned, entry.used)
            self._needed.update(pages)
            self._pages.update(sizes)
            self._n_bytes += entry.size_bytes + sum(sizes.values())
        self._found(Stored(entry.rows, kind, cost_s, age_s, pinned))

    def _count_others(self) -> None:
        """Count the files that are left and could not be looked at: they take space all the same."""
        found = []
        for path in files.list_files(self._folder):
            if path.name not in self._marks and path.name not in self._pages:
                with suppress(OSError):
                    status = path.lstat()
                    found.append((status.st_mtime, path.name, status.st_size))
        with self._mutex:
            for _, name, size in sorted(found):
                self._others[name] = size
                self._n_bytes += size

    def _store(self, mark: Stored, snapshot: Snapshot, done: Callable[[bool, bool], None]) -> None:
        names = files.page_names(self._identity, mark.rows, self._page)
        written, ever = False, True
        try:
            self._hold()
            with self._mutex:
                self._needed.update(names)  # so that none of them is removed meanwhile
            try:
                self._write(mark, snapshot, names)
            except BaseException:
                with self._mutex:
                    self._release(names)
                raise
            written = True
            self._writes.succeed()
        except files.NoRoom as error:
            ever = self._size_of(mark, names, whole=True) <= self.limit_bytes
            if ever:
                self._fail(error, self._writes)
        except (OSError, files.SpillError) as error:
            if not self._closed:
                self._fail(error, self._writes)
        except FlashnextError:  # it was evicted meanwhile, which has failed nobody
            pass
        except Exception as error:
            self._fail(error, self._writes)
        finally:  # whatever it was, the next one is handed in only after an answer
            self._sweep()
            done(written, ever)

    def _hold(self) -> None:
        """See that the directory is the one that was taken; else forget all, and take what is there now.

        One that went away and came back is looked through again: what was done to it meanwhile is not known.

        Raises:
            OSError: There is none.
            SpillError: It cannot be used.
        """
        held = self._lock_file.held
        if held and self._looked:
            return
        self._looked = False
        with self._mutex:
            gone = list(self._marks.values())
            for kept in (self._marks, self._pages, self._needed, self._doomed, self._others):
                kept.clear()
            self._n_bytes = 0
        for mark in gone:
            self._forgotten(mark.rows, True)
        if not self._folder.is_dir():  # whoever removed it does not want it made again
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._folder))
        if not held:
            lock = files.Lock(self._folder)
            self._lock_file.release()
            self._lock_file = lock
        self._reads = Cool()  # the pause after what failed while it was away
        self._scan()
        if not self._looked:
            raise _Ended("the directory cannot be looked through, or is given back")

    def _write(self, mark: Stored, snapshot: Snapshot, names: Sequence[str]) -> None:
        name = files.mark_name(self._identity, mark.rows)
        if self._size_of(mark, names, whole=True) > self.limit_bytes:  # before others are removed for it
            raise files.NoRoom(f"{self._folder}: a mark of {len(mark.rows)} rows does not fit --spill-limit")
        n_bytes = self._size_of(mark, names, whole=False)
        over = max(0, self._n_bytes + n_bytes - self.limit_bytes)  # that comes free before it is written
        files.require_space(self._folder, n_bytes - over, self._floor_bytes)
        self._make_room(n_bytes, name)
        for index, page in enumerate(names):
            if self._closed:
                raise _Ended("the directory is given back")
            if page not in self._pages:
                data = self._core.read_page(snapshot, index)
                told = {"identity": self._identity, "name": page}
                size = files.write(self._folder / page, told, mark.rows[:0], [data], self._floor_bytes)
                with self._mutex:
                    self._pages[page] = size
                    self._n_bytes += size - self._pop_idle(page)
                self.n_moved += 1
        header = {
            "identity": self._identity,
            "kind": int(mark.kind),
            "cost_s": mark.cost_s,
            "pinned": mark.pinned,
        }
        state = [self._core.read_block(snapshot), self._core.read_page(snapshot, len(names))]
        size = files.write(self._folder / name, header, mark.rows, state, self._floor_bytes)
        with self._mutex:
            before = self._marks.pop(name, None)
            had = before.size_bytes if before is not None else self._pop_idle(name)
            self._n_bytes += size - had
            if before is not None:
                self._release(before.pages)
            self._marks[name] = _File(mark.rows, size, list(names), mark.pinned, self._now())
            self._n_spilled += 1
            spoilt = any(page not in self._pages for page in names)
        self.n_moved += 1
        if spoilt:  # one of its pages was found damaged meanwhile
            self._forget(name)

    def _size_of(self, mark: Stored, names: Sequence[str], *, whole: bool) -> int:
        missing = [name for name in names if whole or name not in self._pages]
        page = self._core.page_bytes + 256
        return (len(missing) + 1) * page + self._core.block_bytes + 8 * len(mark.rows) + 256

    def _make_room(self, n_bytes: int, name: str) -> None:
        """Remove what could not be looked at, then what was not used for longest, and pinned marks last.

        A mark that cannot be removed stays and is read as before; the next one goes in its place.

        Raises:
            NoRoom: There is not so much.
            OSError: No more can be removed, as on a disk that became read-only.
        """
        self._sweep()
        with self._mutex:
            if self._n_bytes + n_bytes <= self.limit_bytes:
                return
            marks = self._in_order(name)
        failed: OSError | None = None
        while True:
            with self._mutex:
                if self._n_bytes + n_bytes <= self.limit_bytes:
                    return
                unknown = next(iter(self._others), None)
                if unknown is not None:
                    self._doomed[unknown] = self._others.pop(unknown)
            if unknown is None:
                if not marks:
                    raise failed or files.NoRoom(f"{self._folder}: {n_bytes} bytes do not fit --spill-limit")
                error = self._give_up(marks.popleft())
                failed = failed or error
            self._sweep()

    def _give_up(self, name: str) -> OSError | None:
        """Remove a mark's file, and then forget the mark; returns why that cannot be: it can still be read.

        Raises:
            OSError: The directory is not the one that was taken.
        """
        if not self._lock_file.held:
            raise OSError(errno.ESTALE, "the directory is not there", str(self._folder))
        if (error := files.remove(self._folder / name)) is None:
            self._forget(name)
        return error

    def _in_order(self, name: str) -> deque[str]:
        """Name all marks but one, those that make room first in front; with the mutex held."""
        last = self._go_last()
        others = (other for other in self._marks if other != name)
        return deque(sorted(others, key=lambda other: (other in last, self._marks[other].used)))

    def _go_last(self) -> set[str]:
        """Name the pinned marks that were used last and fit the part of the limit that is theirs."""
        held, pages, size = set[str](), set[str](), 0
        pinned = ((name, mark) for name, mark in self._marks.items() if mark.pinned)
        for name, mark in sorted(pinned, key=lambda one: -one[1].used):
            more = set(mark.pages) - pages
            size += mark.size_bytes + sum(self._pages.get(page, 0) for page in more)
            if size > self.limit_bytes * PINNED_SHARE:
                break
            held.add(name)
            pages |= more
        return held

    def _sweep(self) -> None:
        """Remove the files that nobody needs any more, where the directory is the one that was taken."""
        try:
            if not self._lock_file.held:
                return
        except OSError:
            return
        with self._mutex:
            names = list(self._doomed)
        for name in names:
            if files.remove(self._folder / name) is None:
                with self._mutex:
                    self._n_bytes -= self._doomed.pop(name, 0)

    # --- in the reader's thread

    def _touch(self, name: str) -> None:
        with self._mutex:
            self._used.discard(name)
            mark = self._marks.get(name)
        if mark is not None:
            files.touch(self._folder / name, mark.used)

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
            self.pace.measure(n_bytes, time.perf_counter() - began)
            with self._mutex:
                self._n_restored += 1
            self._reads.succeed()
        except (files.SpillError, FileNotFoundError) as error:  # its files: whoever needs it does without
            self._fail(error, self._reads, pause=False)
            self._forget(name)
            has = False
        except FlashnextError:
            pass  # no memory now, it is given back, or the pages that were to be shared are gone
        except Exception as error:  # of the system, which passes; the files may be as good as ever
            self._fail(error, self._reads)
        finally:  # whatever it was, somebody waits for an answer
            done(made, has)

    def _read(self, name: str, rows: Keys, shared: Snapshot | None, n_shared: int) -> tuple[Snapshot, int]:
        core, page_bytes, n_bytes = self._core, self._core.page_bytes, 0
        entry, payload = self._read_file(name)
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
                        raise _Ended("the directory is given back")
                    pages.append(self._read_page(page))
                    self.n_moved += 1
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
            entry, data = self._read_file(name)
            told = entry.header.get("identity"), entry.header.get("name")  # it has no rows to be named by
            if told != (self._identity, name) or data.nbytes != self._core.page_bytes:
                raise files.SpillError(f"{path}: of another state than its name says")
        except (files.SpillError, FileNotFoundError):
            with self._mutex:
                needing = [mark for mark, file in self._marks.items() if name in file.pages]
                if (size := self._pages.pop(name, None)) is not None:
                    self._doomed[name] = size
            for mark in needing:
                self._forget(mark)
            raise
        return data

    def _read_file(self, name: str) -> tuple[files.Entry, Bytes]:
        """Read a file; one that is missing with all the directory is not gone, and nothing is forgotten."""
        path = self._folder / name
        try:
            return files.read(path)
        except FileNotFoundError:
            if self._lock_file.held:
                raise
        raise OSError(errno.ESTALE, "the directory is not there", str(path))

    # ---

    def _forget(self, name: str) -> None:
        """Have a mark removed, and the pages that no other one needs."""
        with self._mutex:
            mark = self._marks.pop(name, None)
            if mark is None:
                return
            self._doomed[name] = mark.size_bytes
            self._release(mark.pages)
        self._forgotten(mark.rows, False)
        self._writer.call(self._sweep)

    def _release(self, names: Sequence[str]) -> None:
        """Need pages no more, with the mutex held; `_sweep` removes those that nobody does."""
        for name in names:
            self._needed[name] -= 1
            if self._needed[name] <= 0:
                del self._needed[name]
                if (size := self._pages.pop(name, None)) is not None:
                    self._doomed[name] = size

    def _pop_idle(self, name: str) -> int:
        """Count a file of no use no more, with the mutex held; it has been written anew. Returns its size."""
        return self._doomed.pop(name, 0) + self._others.pop(name, 0)

    def _fail(self, error: Exception, cool: Cool, *, pause: bool = True) -> None:
        """Count a failure, begin a pause after it, and tell it unless the last one was the same."""
        with self._mutex:
            self._n_failures += 1
        if pause:
            cool.fail(self._clock_s())
        if (text := str(error) or repr(error)) != cool.told:
            cool.told = text
            _log.warning(
                "%s: the spill directory fails, and replies go on without it: %s", self._folder, text
            )
