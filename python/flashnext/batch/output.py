"""The output of a batch: a line for each answer, from which a batch that was ended goes on."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flashnext.batch.lines import Line, Raw
from flashnext.errors import InvalidArgument
from flashnext.text.messages import cut

_ID = re.compile(r"batch_req_([1-9]\d*)_([0-9a-f]{16})")
_BEGIN = b'{"id":"batch_req_'
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class Done:
    """A line of output that is there.

    Attributes:
        number: Of the line that it answers.
        digest: Of that line.
        start, end: Where it lies in the file, in bytes.
        failed: Whether it is an error.
        fingerprint: Of what answered it; None where it does not say.
    """

    number: int
    digest: str
    start: int
    end: int
    failed: bool
    fingerprint: str | None


def written(line: Line, status: int, request_id: str, body: Any) -> dict[str, Any]:
    """Write the answer to a line in OpenAI's form."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": line.id, "custom_id": line.custom_id, "response": response, "error": None}


def refused(line: Line) -> dict[str, Any]:
    """Write that a line is no request, in OpenAI's form."""
    assert line.problem is not None
    error = {"code": line.problem.code, "message": line.problem.message}
    return {"id": line.id, "custom_id": line.custom_id, "response": None, "error": error}


class Output:
    """The file, which one process writes. Each answer is appended at once, whole with its line's end.

    Attributes:
        path: Of the file.
        done: What is there, by the number of the line that it answers.
    """

    def __init__(self, path: Path) -> None:
        """Open it, or make it; half a line at its end, of a process that was killed, is cut off.

        Args:
            path: Of the file.

        Raises:
            InvalidArgument: It is not the output of a batch, or another process is writing it.
            OSError: It cannot be read or written.
        """
        self.path = path.resolve()  # what a link leads to, not the link, is put in order at the end
        if self.path.exists() and not self.path.is_file():
            raise InvalidArgument(f"{path}: expected a file for the output, which is read to go on")
        self._end = 0
        self._broken = False  # half a line is at its end, and cannot be cut off
        self._fd = self._open()
        try:
            self.done = self._scan()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)

    @property
    def n_failed(self) -> int:
        """Lines that are errors."""
        return sum(one.failed for one in self.done.values())

    def begin(self, lines: Iterable[Raw], fingerprint: str, *, retry: bool = False) -> None:
        """Make sure that all that is there answers these lines, before anything is written.

        Args:
            lines: All of the input.
            fingerprint: Of what answers.
            retry: Leave out errors that are there, so that their lines are answered again.

        Raises:
            InvalidArgument: It has answers to other lines, or of another model.
            OSError: Lines cannot be read, or the file not be written.
        """
        others = {one.fingerprint for one in self.done.values()} - {None, fingerprint}
        if others:
            raise InvalidArgument(
                f"{self.path.name} was begun with another model, number format, version or --context "
                f"({', '.join(sorted(map(str, others)))}, and this one is {fingerprint}); take the former "
                "one, or another file for the output"
            )
        kept = [one for one in self.done.values() if not (retry and one.failed)]
        expected = sorted(kept, key=lambda one: one.number)
        n = 0
        for line in lines if expected else ():
            if line.number < expected[n].number:
                continue
            if line.number > expected[n].number:
                break
            self._require_same(expected[n], line.digest)
            n += 1
            if n == len(expected):
                break
        if n < len(expected):
            raise InvalidArgument(
                f"{self._told(expected[n])}, and the input has no such line or an empty one; give the input "
                "its lines back, or take another file for the output"
            )
        if len(kept) < len(self.done):
            self._rewrite(kept)

    def has(self, line: Line) -> bool:
        """Whether a line has been answered.

        Raises:
            InvalidArgument: One of this number has, that said something else.
        """
        found = self.done.get(line.number)
        if found is not None:
            self._require_same(found, line.digest)
        return found is not None

    def _require_same(self, done: Done, digest: str) -> None:
        if done.digest != digest:
            raise InvalidArgument(
                f"{self._told(done)} as it was with another text or custom_id, other settings, another "
                "--seed or another model; take the former ones, or another file for the output"
            )

    def _told(self, done: Done) -> str:
        answer = json.loads(os.pread(self._fd, done.end - done.start, done.start))
        name = cut(ascii(answer.get("custom_id")), 100)
        return f"{self.path.name} has an answer ({name}) to line {done.number}"

    def append(self, line: Line, answer: dict[str, Any]) -> None:
        """Write an answer.

        Raises:
            OSError: It cannot be written; what there is of it is cut off, if need be by whoever opens the
                file next, and nothing is written behind it.
        """
        if self._broken:
            raise OSError(errno.EIO, "an earlier answer was written in part", str(self.path))
        data = memoryview(_encode(answer).encode("utf-8", "surrogatepass") + b"\n")
        start, end = self._end, self._end + len(data)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BaseException:
            self._broken = True
            with suppress(OSError):
                os.ftruncate(self._fd, start)
                os.lseek(self._fd, start, os.SEEK_SET)
                self._broken = False
            raise
        self._end = end
        self.done[line.number] = _done(answer, start, self._end)

    def finish(self) -> None:
        """Put the lines in the order of the input, and have the disk keep them.

        Raises:
            OSError: They cannot be written; the file is as it was.
        """
        order = [self.done[number] for number in sorted(self.done)]
        if all(one.end == other.start for one, other in pairwise(order)):
            os.fsync(self._fd)
        else:
            self._rewrite(order)

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have put another file in its place.
            if os.fstat(fd).st_ino != os.stat(self.path).st_ino:
                raise BlockingIOError
            return fd
        except BlockingIOError:
            os.close(fd)
            raise InvalidArgument(
                f"{self.path}: another process writes it; wait for its end, or choose another file"
            ) from None

    def _scan(self) -> dict[int, Done]:
        """Find what is there, and cut off what is not a whole line."""
        done: dict[int, Done] = {}
        self._end = 0
        with open(self._fd, "rb", closefd=False) as file:
            for i, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    # A power cut may leave zeros behind lines of ours.
                    tail = raw.rstrip(b"\0") if done else raw
                    if tail[: len(_BEGIN)] != _BEGIN[: len(tail)]:
                        raise self._foreign(i)
                    break
                start, self._end = self._end, self._end + len(raw)
                try:
                    one = _done(json.loads(raw), start, self._end)
                except (ValueError, TypeError, KeyError, AttributeError):
                    raise self._foreign(i) from None
                if one.number in done:
                    raise InvalidArgument(f"{self.path}: two lines answer line {one.number} of the input")
                done[one.number] = one
        os.ftruncate(self._fd, self._end)
        os.lseek(self._fd, self._end, os.SEEK_SET)
        return done

    def _foreign(self, number: int) -> InvalidArgument:
        return InvalidArgument(
            f"{self.path}: line {number} is not the output of a batch; choose another file"
        )

    def _rewrite(self, order: Iterable[Done]) -> None:
        """Put a file with these lines in the place of the file, at once: nobody ever finds half of it."""
        fd, beside = tempfile.mkstemp(prefix=".sorted-", dir=self.path.parent)
        try:
            with open(fd, "w+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                for piece in self._pieces(order):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                shutil.copymode(self.path, beside)
                os.replace(beside, self.path)
                os.dup2(file.fileno(), self._fd, inheritable=False)  # with its lock
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(beside)
            raise
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.done = self._scan()

    def _pieces(self, order: Iterable[Done]) -> Iterator[bytes]:
        for one in order:
            yield os.pread(self._fd, one.end - one.start, one.start)


def _done(answer: dict[str, Any], start: int, end: int) -> Done:
    """Read which line an answer is to.

    Raises:
        ValueError: It is not one of ours; so are TypeError, KeyError and AttributeError.
    """
    found = _ID.fullmatch(answer["id"])
    if found is None:
        raise ValueError
    response = answer["response"]
    failed = response is None or response["status_code"] != 200
    fingerprint = None if failed else response["body"].get("system_fingerprint")
    return Done(int(found[1]), found[2], start, end, failed, fingerprint)
