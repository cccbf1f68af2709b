"""The files of a spill directory: states of prompts, checksummed, written beside and renamed into place.

A mark's file has the rows before it, its block and its last page; pages that are whole have files of their
own, which several marks may need, so each is written once. Names are hashes of what the bits depend on: the
identity of checkpoint and arithmetic, and the rows. Whatever cannot be read, has another size or sum, or
belongs to somebody else is removed, and nothing that has no name of ours is touched.

    magic (8 bytes), length of the header (4, little-endian), header (JSON), rows (int64, little-endian),
    hash of all so far (16), payload, hash of all so far (16)
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from flashnext.engine.core import Bytes
from flashnext.engine.marks import Kind
from flashnext.engine.radix import Keys
from flashnext.errors import FlashnextError

MAGIC = b"fnspill1"
_HASH_BYTES = 16
_NAME = re.compile(r"[mp]-[0-9a-f]{32}\.spill")
_TEMPORARY = re.compile(r"[mp]-[0-9a-f]{32}\.spill\.\d+\.tmp")
_LOCK = "lock"
_MOST_HEADER_BYTES = 1 << 16
_MOST_COST_S = 1e9
_MOST_TIME_S = 253_402_214_400.0  # the last day of the year 9999: later ones cannot be told as a date


class SpillError(FlashnextError):
    """A spill directory or one of its files cannot be used."""


class SpillBusy(SpillError):
    """Another process uses the directory."""


class NoRoom(SpillError):
    """A state does not fit the directory's limit, or the disk has too little space left."""


@dataclass(frozen=True)
class Entry:
    """A file.

    Attributes:
        header: What it says of itself.
        rows: Of a mark, (n,) int64; empty for a page.
        used: When it was used last, in Unix seconds: its time of modification, within the years 1970 to 9999.
    """

    name: str
    header: dict[str, Any]
    rows: Keys
    size_bytes: int
    used: float


def page_names(identity: str, rows: Keys, page: int) -> list[str]:
    """Name the files of the whole pages of a mark: all but its last one.

    The draft head's last row of a page depends on the first row of the next page too, so that counts.
    """
    digest = _digest(b"page", identity.encode())
    names = []
    for start in range(0, (len(rows) - 1) // page * page, page):
        digest.update(rows[start : start + page].tobytes())
        whole = digest.copy()
        whole.update(rows[start + page : start + page + 1].tobytes())
        names.append(f"p-{whole.hexdigest()}.spill")
    return names


def mark_name(identity: str, rows: Keys) -> str:
    """Name the file of a mark."""
    return f"m-{_digest(b'mark', identity.encode(), rows.tobytes()).hexdigest()}.spill"


class Lock:
    """Holds a directory for this process; made where it is missing."""

    def __init__(self, folder: Path, *, any_owner: bool = False) -> None:
        """Take it.

        Args:
            folder: The directory.
            any_owner: It is not made, and may be somebody else's: nothing that is in it is to be used.

        Raises:
            SpillBusy: Another process has it.
            SpillError: The directory cannot be made or written, or others can write there.
        """
        _require_folder(folder)
        self._path, self._process, self._file = folder / _LOCK, os.getpid(), -1
        try:
            if not any_owner:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = _open_lock(self._path, _require_own(folder, any_owner))
        except OSError as error:
            raise SpillError(f"{folder}: cannot be used: {error.strerror}; choose another folder") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise SpillBusy(f"{folder}: another process uses it; give each server its own") from None
            raise SpillError(f"{folder}: cannot be locked: {error.strerror}") from None
        self._status = os.fstat(self._file)  # compared while the file is open, so that no other one gets it
        try:
            held = self.held
        except OSError:
            held = False
        if not held:  # it was removed before it was locked, and another process may have the next one
            self.release()
            raise SpillBusy(f"{folder}: another process removes or takes it; give each server its own")

    @property
    def held(self) -> bool:
        """Whether the directory at this path is still the one that was taken.

        Raises:
            OSError: That cannot be seen.
        """
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, self._status)

    def release(self) -> None:
        """Give it back; the system does so too when the process ends in whatever way."""
        file, self._file = self._file, -1
        if file >= 0:
            if os.getpid() == self._process:  # children that were forked meanwhile have the file open too
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def absolute(folder: Path) -> Path:
    """Make a path one that stays the same when the current folder changes.

    Raises:
        SpillError: There is no current folder.
    """
    try:
        return folder.absolute()
    except OSError as error:
        raise SpillError(f"{folder}: cannot be used: {error.strerror}; give its whole path") from None


def list_files(folder: Path) -> list[Path]:
    """List the files of marks and pages.

    Raises:
        OSError: The directory cannot be read.
    """
    return [path for path, is_folder in _named(folder) if not is_folder]


def _named(folder: Path) -> list[tuple[Path, bool]]:
    """List what has the name of a mark or a page, and whether it is a folder, which is never one of ours."""

    def is_folder(entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir(follow_symlinks=False)
        except OSError:  # not even that can be seen of it, which is no reason to list none
            return False

    with os.scandir(folder) as entries:
        found = [(entry.name, is_folder(entry)) for entry in entries if _NAME.fullmatch(entry.name)]
    return [(folder / name, is_folder) for name, is_folder in sorted(found)]


def remove_leftovers(folder: Path) -> None:
    """Remove what processes left half written; whoever holds the lock is the only one who writes."""
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            remove(path)


def remove(path: Path) -> OSError | None:
    """Remove a file; returns why it cannot be, None where it is not there any more."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return error
    return None


def require_space(folder: Path, n_bytes: int, floor_bytes: int) -> None:
    """See that a disk has room.

    Raises:
        NoRoom: It would have less than `floor_bytes` left.
        OSError: That cannot be seen.
    """
    free = shutil.disk_usage(folder).free
    if free - n_bytes < floor_bytes:
        raise NoRoom(
            f"{folder}: {free} bytes are free, {n_bytes} are needed, and {floor_bytes} are to stay free"
        )


def write(path: Path, header: dict[str, Any], rows: Keys, payload: Sequence[Bytes], floor_bytes: int) -> int:
    """Write a file beside its place and rename it; returns its size.

    Raises:
        NoRoom: The disk would have less than `floor_bytes` left.
        OSError: It cannot be written; nothing of it stays.
    """
    n_payload = sum(part.nbytes for part in payload)
    told = {**header, "rows": len(rows), "payload": n_payload}
    text = json.dumps(told, separators=(",", ":")).encode()
    head = b"".join((MAGIC, len(text).to_bytes(4, "little"), text, rows.astype("<i8").tobytes()))
    size = len(head) + n_payload + 2 * _HASH_BYTES
    require_space(path.parent, size, floor_bytes)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with _begun(temporary) as file:
            digest = _digest(head)
            file.write(head)
            file.write(digest.digest())
            for part in payload:
                data = np.ascontiguousarray(part).data
                digest.update(data)
                file.write(data)
            file.write(digest.digest())
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    return size


def _begun(temporary: Path) -> BufferedWriter:
    try:
        return open(temporary, "xb", opener=_private)
    except FileExistsError:  # of a write that failed, where it could not be removed
        remove(temporary)
        return open(temporary, "xb", opener=_private)


def read_head(path: Path) -> Entry:
    """Read what a file says of itself, and see that it has its size.

    Raises:
        SpillError: It is damaged, or not a file of this kind.
        OSError: It cannot be read.
    """
    with _opened(path) as file:
        return _head(path, file)[0]


def read(path: Path) -> tuple[Entry, Bytes]:
    """Read a file as a whole; returns what it says of itself, and the payload.

    Raises:
        SpillError: It is damaged, or not a file of this kind.
        OSError: It cannot be read.
    """
    with _opened(path) as file:
        entry, digest = _head(path, file)
        payload = np.empty(entry.header["payload"], np.uint8)
        if file.readinto(payload.data) != payload.nbytes:
            raise SpillError(f"{path}: shorter than it says")
        digest.update(payload.data)
        if file.read(_HASH_BYTES) != digest.digest():
            raise SpillError(f"{path}: its content is not what its checksum says")
    return entry, payload


def touch(path: Path, used: float) -> None:
    """Take note that a file was used."""
    with suppress(OSError):
        os.utime(path, (used, used))


def is_mark(entry: Entry) -> bool:
    """Whether a file says all that a mark's has to."""
    header = entry.header
    return (
        len(entry.rows) > 0
        and type(header.get("kind")) is int
        and header["kind"] in set(Kind)
        and type(header.get("cost_s")) in (int, float)
        and 0 <= header["cost_s"] <= _MOST_COST_S
        and type(header.get("pinned")) is bool
    )


def scan(folder: Path, identity: str, page: int) -> Iterator[tuple[Entry, list[str]]]:
    """Read what marks there are, and remove what is of no use; the payloads are not read.

    What the system does not let us read now is left alone, and with it all pages, which it may need; whoever
    counts them may remove them where room is needed.

    Yields:
        Each mark whose files are all there, with the names of its pages.
    """
    remove_leftovers(folder)
    there, needed, all_read = {path.name for path in list_files(folder)}, set[str](), True
    for name in sorted(name for name in there if name.startswith("m")):
        try:
            entry = read_head(folder / name)
            names = page_names(identity, entry.rows, page)
            good = (
                entry.header.get("identity") == identity
                and is_mark(entry)
                and name == mark_name(identity, entry.rows)
                and there.issuperset(names)
            )
        except FileNotFoundError:
            continue
        except (OSError, MemoryError):
            all_read = False
            continue
        except Exception:  # whatever it has in it, the others are looked at
            good = False
        if good:
            needed.update(names)
            yield entry, names
        else:
            remove(folder / name)
    for name in there if all_read else ():
        if name.startswith("p") and name not in needed:
            remove(folder / name)


@dataclass(frozen=True)
class Listed:
    """A mark of a directory, for people.

    Attributes:
        entry: Its file.
        size_bytes: Of its file and of its pages, which other marks may share.
    """

    entry: Entry
    size_bytes: int


def listed(folder: Path, page: int) -> tuple[list[Listed], int]:
    """List the marks of a directory, and count the bytes of all its files; changes nothing.

    Args:
        folder: The directory; a process may be using it.
        page: Rows of a page.

    Raises:
        SpillError: It cannot be read, or is no spill directory.
    """
    _require_spill(folder)
    sizes: dict[str, int] = {}
    marks: list[Entry] = []
    try:
        for path in list_files(folder):
            with suppress(SpillError, OSError):  # a server may have removed it
                sizes[path.name] = path.lstat().st_size
                if path.name.startswith("m") and is_mark(mark := read_head(path)):
                    marks.append(mark)
    except OSError as error:
        raise SpillError(f"{folder}: cannot be read: {error.strerror}") from None
    found = []
    for mark in sorted(marks, key=lambda mark: -mark.used):
        names = page_names(str(mark.header.get("identity")), mark.rows, page)
        found.append(Listed(mark, mark.size_bytes + sum(sizes.get(name, 0) for name in names)))
    return found, sum(sizes.values())


def clear(folder: Path) -> tuple[int, int, list[str]]:
    """Remove all files of a directory that are of marks or pages, or are left of unfinished ones.

    Returns:
        How many were removed, their bytes, and the names of what is there and was not.

    The superuser may do so with anybody's directory.

    Raises:
        SpillBusy: A process uses it.
        SpillError: It cannot be read, is no spill directory, or something of such a name in it cannot be
            removed; all else is.
    """
    _require_spill(folder)
    lock = Lock(folder, any_owner=os.geteuid() == 0)
    gone: list[int] = []
    failed: list[OSError] = []
    try:
        remove_leftovers(folder)
        for path, _ in _named(folder):
            try:
                size = path.lstat().st_size  # of a link itself, wherever it leads
                path.unlink()
                gone.append(size)
            except FileNotFoundError:
                pass
            except OSError as error:
                failed.append(error)
        left = sorted(path.name for path in folder.iterdir() if path.name != _LOCK)
    except OSError as error:
        raise SpillError(f"{folder}: cannot be read: {error.strerror}") from None
    finally:
        lock.release()
    if failed:
        n_more = f", like {len(failed) - 1} more" if len(failed) > 1 else ""
        raise SpillError(
            f"{failed[0].filename}: cannot be removed: {failed[0].strerror}{n_more}; "
            f"{len(gone)} others were, remove it by hand"
        )
    return len(gone), sum(gone), left


def _head(path: Path, file: BinaryIO) -> tuple[Entry, Any]:
    status = os.fstat(file.fileno())
    start = file.read(len(MAGIC) + 4)
    n = int.from_bytes(start[len(MAGIC) :], "little")
    if len(start) != len(MAGIC) + 4 or not start.startswith(MAGIC) or n > _MOST_HEADER_BYTES:
        raise SpillError(f"{path}: not a spill file of this version")
    text = file.read(n)
    try:
        header = json.loads(text)
        n_rows, n_payload = header["rows"], header["payload"]
        if type(n_rows) is not int or type(n_payload) is not int:
            raise TypeError
        expected = len(start) + n + 8 * n_rows + n_payload + 2 * _HASH_BYTES
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SpillError(f"{path}: its header cannot be read") from None
    if not 0 <= n_rows <= status.st_size or n_payload < 0 or status.st_size != expected:
        raise SpillError(f"{path}: {status.st_size} bytes, expected {expected}")
    raw = file.read(8 * n_rows)
    digest = _digest(start, text, raw)
    if file.read(_HASH_BYTES) != digest.digest():
        raise SpillError(f"{path}: its head is not what its checksum says")
    rows = np.frombuffer(raw, "<i8").astype(np.int64)
    used = min(max(status.st_mtime, 0.0), _MOST_TIME_S)
    return Entry(path.name, header, rows, status.st_size, used), digest


def _digest(*parts: bytes) -> Any:
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    for part in parts:
        digest.update(part)
    return digest


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """Open a file of a directory to read it, and nothing but a file: a link or a pipe could be anything."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise SpillError(f"{path}: is no file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SpillError(f"{path}: is no file")
    with open(descriptor, "rb") as file:
        yield file


def _require_folder(folder: Path) -> None:
    """See that a path is no file.

    Raises:
        SpillError: It is one.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise SpillError(f"{folder}: is a file, expected a folder; choose another")


def _require_spill(folder: Path) -> None:
    """See that some server had a directory, so that nothing is done in any other.

    Raises:
        SpillError: None had it, it is not there, or cannot be read.
    """
    _require_folder(folder)
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        raise SpillError(f"{folder}: no such folder; expected one that a server had as --spill-dir") from None
    except OSError as error:
        raise SpillError(f"{folder}: cannot be read: {error.strerror}") from None
    if _LOCK not in names and not any(_NAME.fullmatch(name) for name in names):
        raise SpillError(
            f"{folder}: no files of a prefix cache; expected a folder that a server had as --spill-dir"
        )


def _require_own(folder: Path, any_owner: bool) -> os.stat_result:
    """See that nobody else can put states into a directory: their checksums say nothing of who wrote them.

    Returns:
        What the directory is.

    Raises:
        SpillError: Somebody can.
    """
    status = folder.stat()
    if status.st_uid != os.geteuid() and not any_owner:
        raise SpillError(
            f"{folder}: belongs to user {status.st_uid}, expected one that this user ({os.geteuid()}) alone "
            f"can write; run as user {status.st_uid}, or choose another folder"
        )
    if status.st_mode & 0o022:
        raise SpillError(
            f"{folder}: others can write with mode {stat.S_IMODE(status.st_mode):04o}, expected one that "
            f"user {status.st_uid} alone can write; chmod go-w it, or choose another folder"
        )
    return status


def _open_lock(path: Path, folder: os.stat_result) -> int:
    """Open the file by which a directory is held; one that is missing is made, for the directory's owner."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags)
    if folder.st_uid != os.geteuid():
        os.fchown(file, folder.st_uid, folder.st_gid)
    return file


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
