"""The input of a batch: a file as it is, and what can be read once only as often as need be."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from flashnext.batch.source import opened
from flashnext.errors import InvalidArgument

DATA = b'{"prompt": "x"}\n' * 20_000  # more than a pipe holds


def twice(name: str, output: Path) -> list[bytes]:
    found = []
    with opened(name, output) as file:
        for _ in range(2):
            file.seek(0)
            found.append(file.read())
    return found


@pytest.mark.parametrize("kind", ["file", "fifo", "descriptor"])
def test_every_kind_of_input_is_read_as_often_as_need_be(kind: str, tmp_path: Path) -> None:
    path, name = tmp_path / "in.jsonl", ""
    if kind == "file":
        path.write_bytes(DATA)
        assert twice(str(path), tmp_path / "out") == [DATA, DATA]
        return
    if kind == "fifo":
        os.mkfifo(path)
        name, close = str(path), -1
        writing = threading.Thread(target=path.write_bytes, args=(DATA,))
    else:  # as a shell gives it for <(...)
        close, end = os.pipe()
        name = f"/dev/fd/{close}"

        def write() -> None:
            with open(end, "wb") as file:
                file.write(DATA)

        writing = threading.Thread(target=write)
    writing.start()
    try:
        assert twice(name, tmp_path / "out") == [DATA, DATA]
    finally:
        writing.join(60)
        if close >= 0:
            os.close(close)


def test_a_pipe_that_cannot_be_kept_says_where_it_was_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left") as found, opened("/dev/null", tmp_path / "out"):
        pass
    assert tempfile.gettempdir() in found.value.filename and "TMPDIR" in found.value.filename


def test_the_output_is_no_input_by_whatever_name(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(DATA)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InvalidArgument, match="this is the input"), opened(str(tmp_path / "link"), path):
        pass
    assert path.read_bytes() == DATA
