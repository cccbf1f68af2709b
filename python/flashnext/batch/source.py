"""The input of a batch, which is read more than once, also where it comes through a pipe."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from flashnext.errors import InvalidArgument

STDIN = "-"
"""Names standard input."""


@contextmanager
def opened(name: str, output: Path) -> Iterator[BinaryIO]:
    """Open an input to read it from its beginning as often as need be.

    What can be read once only, as pipes, is read to its end into a temporary file first, which has no name
    and so is gone with this process, however that ends.

    Args:
        name: Of a file, or `-` for standard input.
        output: What the batch writes.

    Raises:
        InvalidArgument: The input is the output.
        OSError: It cannot be read, or not be kept.
    """
    with ExitStack() as stack:
        try:
            file: BinaryIO = open(0, "rb", closefd=False) if name == STDIN else open(name, "rb")  # noqa: SIM115
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard input" if name == STDIN else name) from None
        stack.callback(file.close)
        found = os.fstat(file.fileno())
        if output.exists() and os.path.samestat(found, output.stat()):
            raise InvalidArgument(f"--output {output}: this is the input; choose another file")
        if not stat.S_ISREG(found.st_mode) or file.tell():
            try:
                kept = stack.enter_context(tempfile.TemporaryFile(prefix="flashnext-batch-"))
                shutil.copyfileobj(file, kept, 1 << 20)
                kept.flush()
            except OSError as error:
                where = f"{name}, which is kept in {tempfile.gettempdir()} (TMPDIR) while it is answered"
                raise OSError(error.errno, error.strerror, where) from None
            yield kept
        else:
            yield file
