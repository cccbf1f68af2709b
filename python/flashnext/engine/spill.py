"""Marks that are written to a directory in the background, and come back from it; `engine/spill_files.py`."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flashnext.engine import spill_files as files
from flashnext.engine.core import Core, Snapshot
from flashnext.engine.helper import Helper
from flashnext.engine.loading import Ended, Loading
from flashnext.engine.marks import Kind
from flashnext.engine.pace import Pace, Pauses
from flashnext.engine.radix import Keys
from flashnext.engine.spill_books import Books, StoredMark
from flashnext.engine.spill_states import OfOneFile, StateFiles
from flashnext.errors import FlashnextError, InvalidArgument

_log = logging.getLogger("flashnext.engine")

FLOOR_BYTES = 1 << 30
"""Free space of the disk that is left alone."""

NEVER_S = float("inf")
"""When a mark may be handed in again that cannot be written as it is."""


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
        books: What files there are.
        clock_s: A clock that never goes back, by which pauses end.
        states: What is in them.
        pace: How fast marks come back.
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
            SpillBusy: Another process has it.
            SpillError: It cannot be used.
        """
        folder = files.absolute(folder)
        self._folder, self._core, self._identity, self._page = folder, core, identity, page
        self._floor_bytes = floor_bytes
        self._now, self.clock_s = now, clock_s
        self._lock_file = files.Lock(folder)
        self.books = Books(limit_bytes)
        self._mutex = threading.Lock()
        self._used = set[str]()  # marks whose files are to be told so: one that hangs has others wait
        self._looked = False  # through the directory as it is, to its end
        self._writer = Helper("flashnext-spill", dry=lambda: self._free())
        self._reader = Helper("flashnext-restore")
        self._closed = False
        self._writes, self._reads = Pauses(), Pauses()
        self._n_spilled = self._n_restored = self._n_failures = 0
        self.pace = Pace(clock_s)
        self.states = StateFiles(
            folder,
            core,
            identity,
            page=page,
            floor_bytes=floor_bytes,
            held=lambda: self._lock_file.held,
            closed=lambda: self._closed,
            spoilt=self._spoilt,
        )

    @property
    def limit_bytes(self) -> int:
        """Most that all files take."""
        return self.books.limit_bytes

    @property
    def counts(self) -> SpillCounts:
        """What it holds and has done; waits for nothing."""
        return SpillCounts(
            self.books.n_marks, self.books.n_bytes, self._n_spilled, self._n_restored, self._n_failures
        )

    @property
    def n_waiting(self) -> int:
        """Calls of its threads that have not ended."""
        return self._writer.n_waiting + self._reader.n_waiting

    @property
    def ready(self) -> bool:
        """Whether a mark may be handed in to be written."""
        return not self._closed and not self._writer.n_waiting and self.clock_s() >= self._writes.until_s

    @property
    def readable(self) -> bool:
        """Whether marks can be read, as far as is known."""
        return not self._closed and self.clock_s() >= self._reads.until_s

    def begin(
        self,
        found: Callable[[Stored, StoredMark], None],
        forgotten: Callable[[Keys, bool], None],
        free: Callable[[], object],
    ) -> None:
        """Look through the directory, in the background.

        Args:
            found: Told each mark that there is, and its place in the books, which may be gone by then.
            forgotten: Told the rows of each mark that is not there any more, and whether it may be handed in
                again at once: its folder is gone, or a file is damaged, and nobody made it give way.
            free: Called when nothing is being written or removed any more, so that a mark may be handed in;
                not when a pause ends.
        """
        self._found, self._forgotten, self._free = found, forgotten, free
        self._writer.call(self._scan)

    def store(
        self, mark: Stored, snapshot: Snapshot, done: Callable[[StoredMark | None, float], None]
    ) -> None:
        """Write a mark.

        Args:
            mark: What it is.
            snapshot: Its state; may be closed at any time, which ends the write.
            done: Told its place in the books, which may be gone by then, None where it was not written; and
                when it may be handed in again in that case, by `clock_s`.
        """
        self._writer.call(lambda: self._store(mark, snapshot, done))

    def load(
        self,
        rows: Keys,
        shared: Snapshot | None,
        n_shared: int,
        done: Callable[[Snapshot | None, bool], None],
    ) -> Loading:
        """Read a mark.

        Args:
            rows: Before it.
            shared: A snapshot whose first pages are the mark's too.
            n_shared: How many.
            done: Told the state, None where it cannot be had, and whether the directory still has it.

        Returns:
            The read, which may be given up.
        """
        loading = Loading()
        self._reader.call(lambda: self._load(loading, rows, shared, n_shared, done))
        return loading

    def use(self, rows: Keys, pinned: bool) -> None:
        """Take note that a mark was used."""
        name = files.mark_name(self._identity, rows)
        if self.books.use(name, self._now(), pinned) is None:
            return
        with self._mutex:
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
        for name in self.books.missing(pages):
            try:
                sizes[name] = (self._folder / name).lstat().st_size
            except OSError:
                return
        now = self._now()
        used = min(now, entry.used)  # a clock that was ahead once would have it stay for ever
        kind, cost_s, pinned = Kind(header["kind"]), float(header["cost_s"]), header["pinned"]
        mark = StoredMark(entry.rows, entry.size_bytes, pages, pinned, used)
        if self.books.take(entry.name, mark, sizes):
            self._found(Stored(entry.rows, kind, cost_s, now - used, pinned), mark)

    def _count_others(self) -> None:
        """Count the files that are left and could not be looked at: they take space all the same."""
        found = []
        for path in files.list_files(self._folder):
            if not self.books.knows(path.name):
                with suppress(OSError):
                    status = path.lstat()
                    found.append((status.st_mtime, path.name, status.st_size))
        for _, name, size in sorted(found):
            self.books.take_other(name, size)

    def _store(
        self, mark: Stored, snapshot: Snapshot, done: Callable[[StoredMark | None, float], None]
    ) -> None:
        name, names = "", list[str]()
        written, again_s = None, float("-inf")
        try:
            name, names = self.states.names(mark.rows)
            again_s = self._writes.of([name, *names])
            if again_s > self.clock_s():
                return
            self._hold()
            self.books.need(names)  # so that none of them is removed meanwhile
            try:
                written = self._write(mark, snapshot, name, names)
            except BaseException:
                self.books.release(names)
                raise
            self._writes.succeed([name, *names])
        except files.NoRoom as error:
            if self.states.size_of(len(mark.rows), len(names)) > self.limit_bytes:
                again_s = NEVER_S
            else:
                self._fail(error, self._writes)
        except OfOneFile as one:
            if not self._closed:
                self._fail(one.error, self._writes, one.name)
                again_s = self._writes.of([name, *names])
        except (OSError, files.SpillError) as error:
            if not self._closed:
                self._fail(error, self._writes)
        except (Ended, InvalidArgument):  # it was evicted meanwhile, which has failed nobody
            pass
        except Exception as error:
            self._fail(error, self._writes)
        finally:  # whatever it was, the next one is handed in only after an answer
            self._sweep()
            done(written, again_s)

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
        for mark in self.books.clear():
            self._forgotten(mark.rows, True)
        if not self._folder.is_dir():  # whoever removed it does not want it made again
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._folder))
        if not held:
            before, self._lock_file = self._lock_file, files.Lock(self._folder)
            before.release()
        self._reads = Pauses()  # without those after what failed while it was away
        self._scan()
        if not self._looked:
            raise Ended("the directory cannot be looked through, or is given back")

    def _write(self, mark: Stored, snapshot: Snapshot, name: str, names: Sequence[str]) -> StoredMark:
        n_rows, states = len(mark.rows), self.states
        if states.size_of(n_rows, len(names)) > self.limit_bytes:  # before others are removed for it
            raise files.NoRoom(f"{self._folder}: a mark of {n_rows} rows exceeds its limit alone")
        n_bytes = states.size_of(n_rows, len(self.books.missing(names)))
        over = self.books.over(n_bytes)  # that comes free before it is written
        files.require_space(self._folder, n_bytes - over, self._floor_bytes)
        self._make_room(n_bytes, name)
        for index, page in enumerate(names):
            if self._closed:
                raise Ended("the directory is given back")
            if self.books.missing([page]):
                self.books.put_page(page, states.write_page(page, snapshot, index))
        told = {"kind": int(mark.kind), "cost_s": mark.cost_s, "pinned": mark.pinned}
        size = states.write_mark(name, mark.rows, snapshot, len(names), told)
        stored = StoredMark(mark.rows, size, names, mark.pinned, self._now())
        self.books.put_mark(name, stored)
        self._n_spilled += 1
        if self.books.missing(names):  # one of its pages was found damaged meanwhile
            self._forget(name, again=True)
        return stored

    def _make_room(self, n_bytes: int, name: str) -> None:
        """Remove what could not be looked at, then what was not used for longest, and pinned marks last.

        A mark that cannot be removed stays and is read as before; the next one goes in its place.

        Raises:
            NoRoom: There is not so much.
            OSError: No more can be removed, as on a disk that became read-only.
        """
        self._sweep()
        if not self.books.over(n_bytes):
            return
        marks = self.books.in_order(but=name)
        failed: OSError | None = None
        while self.books.over(n_bytes):
            if not self.books.doom_other():
                if not marks:
                    raise failed or files.NoRoom(f"{self._folder}: {n_bytes} bytes do not fit its limit")
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
            self._forget(name, again=False)
        return error

    def _sweep(self) -> None:
        """Remove the files that nobody needs any more, where the directory is the one that was taken."""
        try:
            if not self._lock_file.held:
                return
        except OSError:
            return
        for name in self.books.doomed:
            if files.remove(self._folder / name) is None:
                self.books.removed(name)

    # --- in the reader's thread

    def _touch(self, name: str) -> None:
        with self._mutex:
            self._used.discard(name)
        if (mark := self.books.get(name)) is not None:
            files.touch(self._folder / name, mark.used)

    def _load(
        self,
        loading: Loading,
        rows: Keys,
        shared: Snapshot | None,
        n_shared: int,
        done: Callable[[Snapshot | None, bool], None],
    ) -> None:
        made, has = None, True
        try:
            name, names = self.states.names(rows)
            loading.again_s = self._reads.of([name, *names])
            if loading.again_s > self.clock_s():
                return
            began = time.perf_counter()
            try:
                n_bytes = self.states.read(loading, rows, shared, n_shared)
                self.pace.measure(n_bytes, time.perf_counter() - began)
                self._reads.succeed([name, *names])
                made = loading.whole()
                self._n_restored += 1
            except (files.SpillError, FileNotFoundError) as error:  # its files: who needs it does without
                self._fail(error, self._reads, pause=False)
                self._forget(name, again=True)
                has = False
            except OfOneFile as one:
                self._fail(one.error, self._reads, one.name)
                loading.again_s = self._reads.of([name, *names])
        except FlashnextError:
            pass  # no memory now, it is given up, or the pages that were to be shared are gone
        except Exception as error:  # of the system, which passes; the files may be as good as ever
            self._fail(error, self._reads)
        finally:  # whatever it was, somebody waits for an answer, and for pages that it has by then
            if made is None:
                loading.give_up()
            done(made, has)
            loading.told()

    def _spoilt(self, page: str) -> None:
        """Forget the marks that need a page which is damaged or gone."""
        for mark in self.books.damage(page):
            self._forget(mark, again=True)

    # ---

    def _forget(self, name: str, *, again: bool) -> None:
        """Have a mark removed, and the pages that no other one needs.

        Args:
            name: Of its file.
            again: Whether it may be written again at once.
        """
        if (mark := self.books.forget(name)) is not None:
            self._forgotten(mark.rows, again)
            self._writer.call(self._sweep)

    def _fail(self, error: Exception, pauses: Pauses, name: str | None = None, *, pause: bool = True) -> None:
        """Count a failure, begin a pause after it, and tell it unless the last one was the same.

        Args:
            error: What it was.
            pauses: Of reads or writes.
            name: Of the file, where it may be that one alone.
            pause: Whether it says anything of the next try.
        """
        with self._mutex:
            self._n_failures += 1
        if pause:
            pauses.fail(self.clock_s(), name)
        if pauses.news(text := str(error) or repr(error)):
            _log.warning(
                "%s: the spill directory fails, and replies go on without it: %s", self._folder, text
            )
