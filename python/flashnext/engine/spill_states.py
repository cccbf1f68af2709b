"""States of marks as files of a spill directory: written from snapshots, read into the pool by pieces."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from flashnext.engine import spill_files as files
from flashnext.engine.core import Bytes, Core, Snapshot
from flashnext.engine.defaults import SPILL_PIECE_BYTES
from flashnext.engine.loading import Ended, Loading
from flashnext.engine.radix import Keys

_OF_ALL = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ESTALE),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    )
)
"""Errors that other files would meet too; any other may be of one file alone."""


class OfOneFile(Exception):
    """The system can neither read nor write a file, and perhaps the others."""

    def __init__(self, name: str, error: OSError) -> None:
        """Say which one.

        Args:
            name: Of the file.
            error: What the system says.
        """
        super().__init__(str(error))
        self.name, self.error = name, error


class StateFiles:
    """The files of one directory. One thread writes, and another one reads.

    Attributes:
        n_read: Files that were read.
        copying: Whether pages are held that may be gone from the cache: for a moment, behind no disk.
    """

    def __init__(
        self,
        folder: Path,
        core: Core,
        identity: str,
        *,
        page: int,
        floor_bytes: int,
        held: Callable[[], bool],
        closed: Callable[[], bool],
        spoilt: Callable[[str], object],
    ) -> None:
        """Touch nothing yet.

        Args:
            folder: Where the files lie.
            core: Whose states they have.
            identity: Of all that the bits of a state depend on.
            page: Rows of a page.
            floor_bytes: Free space of the disk that is left alone.
            held: Whether the directory is the one that was taken.
            closed: Whether it is given back, so that nothing more is read.
            spoilt: Told the name of a page that is damaged or gone.
        """
        self._folder, self._core, self._identity, self._page = folder, core, identity, page
        self._floor_bytes = floor_bytes
        self._held, self._closed, self._spoilt = held, closed, spoilt
        self.n_read = 0
        self.copying = False

    def names(self, rows: Keys) -> tuple[str, list[str]]:
        """Name the file of a mark, and those of its whole pages."""
        return files.mark_name(self._identity, rows), files.page_names(self._identity, rows, self._page)

    def size_of(self, n_rows: int, n_pages: int) -> int:
        """Say what the file of a mark takes, and so many of its pages."""
        page = self._core.page_bytes + 256
        return (n_pages + 1) * page + self._core.block_bytes + 8 * n_rows + 256

    # --- writing

    def write_page(self, name: str, snapshot: Snapshot, index: int) -> int:
        """Write a whole page; returns the size of its file.

        Raises:
            OfOneFile: This one cannot be written.
            OSError: None can.
            NoRoom: The disk would have too little space left.
            InvalidArgument: The snapshot is closed.
        """
        with self._copies():
            data = self._core.read_page(snapshot, index)
        return self._write(name, {"name": name}, np.empty(0, np.int64), [data])

    def write_mark(
        self, name: str, rows: Keys, snapshot: Snapshot, n_pages: int, told: dict[str, Any]
    ) -> int:
        """Write a mark, whose whole pages are there; returns the size of its file.

        Args:
            name: Of the file.
            rows: Before the mark.
            snapshot: Its state.
            n_pages: Whole pages of that.
            told: What else the file says of it.

        Raises:
            OfOneFile: This one cannot be written.
            OSError: None can.
            NoRoom: The disk would have too little space left.
            InvalidArgument: The snapshot is closed.
        """
        with self._copies():
            state = [self._core.read_block(snapshot), self._core.read_page(snapshot, n_pages)]
        return self._write(name, told, rows, state)

    def _write(self, name: str, told: dict[str, Any], rows: Keys, payload: Sequence[Bytes]) -> int:
        header = {"identity": self._identity, **told}
        try:
            return files.write(self._folder / name, header, rows, payload, self._floor_bytes)
        except OSError as error:
            raise _told_apart(name, error) from None

    @contextmanager
    def _copies(self) -> Iterator[None]:
        """Say that pages are held while they are copied."""
        self.copying = True
        try:
            yield
        finally:
            self.copying = False

    # --- reading

    def read(self, loading: Loading, rows: Keys, shared: Snapshot | None, n_shared: int) -> int:
        """Read the files of a mark, and put the state into the pool; returns their bytes.

        Args:
            loading: Gets it.
            rows: Before the mark.
            shared: A snapshot whose first pages are the mark's too.
            n_shared: How many.

        Raises:
            SpillError, FileNotFoundError: A file is damaged, or gone.
            OfOneFile: A file cannot be read now.
            OSError: None can.
            Ended: Nobody waits for it.
            FlashnextError: There is no room, or the pages that were to be shared are gone.
        """
        core, page_bytes, n_bytes = self._core, self._core.page_bytes, 0
        name, names = self.names(rows)
        entry, payload = self._read_file(name)
        right = entry.header.get("identity") == self._identity and np.array_equal(entry.rows, rows)
        if not right or payload.nbytes != core.block_bytes + page_bytes:
            raise files.SpillError(f"{self._folder / name}: of another state than its name says")
        block, tail = payload[: core.block_bytes], payload[core.block_bytes :]
        at, last = n_shared if shared is not None else 0, False
        while not last:
            piece = names[at : at + max(1, SPILL_PIECE_BYTES // page_bytes)]
            pages = [self._read_page(loading, page) for page in piece]
            first, at = at, at + len(piece)
            n_bytes += len(piece) * page_bytes
            last = at == len(names)
            n_rows = len(rows) if last else at * self._page
            self._put(loading, n_rows, block, [*pages, tail] if last else pages, shared, first)
        return n_bytes + payload.nbytes

    def _put(
        self,
        loading: Loading,
        n: int,
        block: Bytes,
        pages: Sequence[Bytes],
        shared: Snapshot | None,
        n_before: int,
    ) -> None:
        """Put pages into the pool behind those that are there, or are to be shared."""

        def make(held: Snapshot | None) -> Snapshot:
            source = held or shared
            before = [] if source is None else [(source, index) for index in range(n_before)]
            return self._core.restore(n, block, [*before, *pages])

        loading.grow(make, n // self._page - n_before)

    def _read_page(self, loading: Loading, name: str) -> Bytes:
        if self._closed() or loading.ended:
            raise Ended("the directory is given back, or nobody waits for the mark")
        path = self._folder / name
        try:
            entry, data = self._read_file(name)
            told = entry.header.get("identity"), entry.header.get("name")  # it has no rows to be named by
            if told != (self._identity, name) or data.nbytes != self._core.page_bytes:
                raise files.SpillError(f"{path}: of another state than its name says")
        except (files.SpillError, FileNotFoundError):
            self._spoilt(name)
            raise
        return data

    def _read_file(self, name: str) -> tuple[files.Entry, Bytes]:
        """Read a file; one that is missing with all the directory is not gone."""
        path = self._folder / name
        try:
            read = files.read(path)
        except FileNotFoundError:
            if self._held():
                raise
            raise OSError(errno.ESTALE, "the directory is not there", str(path)) from None
        except OSError as error:
            raise _told_apart(name, error) from None
        self.n_read += 1
        return read


def _told_apart(name: str, error: OSError) -> Exception:
    """Say whether an error may be of one file alone."""
    return error if error.errno in _OF_ALL else OfOneFile(name, error)
