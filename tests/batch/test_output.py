"""The output of a batch: foreign files stay as they are, and a write that fails leaves no half answer."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from flashnext.batch import output as output_module
from flashnext.batch.lines import Line, Raw
from flashnext.batch.output import Output, written
from flashnext.errors import InvalidArgument


def line(number: int) -> Line:
    return Line(number, "a" * 16, f"line-{number}")


def put(output: Output, number: int, text: str = "x") -> None:
    output.append(line(number), written(line(number), 200, "req_1", {"text": text}))


def numbers(path: Path) -> list[int]:
    with Output(path) as output:
        return list(output.done)


@pytest.mark.parametrize(
    ("n_before", "data"),
    [(n, data) for n in (0, 1) for data in (b"mine", b'{"id":"mine', b'{"id": "batch_req_1', b" ")]
    + [(0, b"\0\0")],  # behind lines of ours they are what a power cut leaves
)
def test_a_foreign_line_without_an_end_is_refused_and_stays(
    n_before: int, data: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    with Output(path) as output:
        for number in range(n_before):
            put(output, number + 1)
    path.write_bytes(path.read_bytes() + data)
    before = path.read_bytes()
    with pytest.raises(InvalidArgument, match=f"line {n_before + 1} is not the output of a batch"):
        Output(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("zeros", [b"", b"\0" * 5000])
def test_half_a_line_is_cut_off_wherever_it_ends(zeros: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Output(path) as output:
        put(output, 1)
        whole = path.read_bytes()
        put(output, 2)
    data = path.read_bytes()
    for n in range(len(whole), len(data)):
        path.write_bytes(data[:n] + zeros)
        assert numbers(path) == [1] and path.read_bytes() == whole


class Disk:
    """The system's `os`, whose writes take some bytes and then fail."""

    def __init__(self, *, cuts: bool) -> None:
        self.left = 0
        self.cuts = cuts

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, fd: int, data: memoryview) -> int:
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        n = os.write(fd, data[: self.left])
        self.left -= n
        return n

    def ftruncate(self, fd: int, n: int) -> None:
        if not self.cuts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.ftruncate(fd, n)


def test_what_follows_a_write_that_failed_halfway_stands_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, disk = tmp_path / "out.jsonl", Disk(cuts=True)
    with Output(path) as output:
        put(output, 1)
        monkeypatch.setattr(output_module, "os", disk)
        disk.left = 20
        with pytest.raises(OSError, match="No space left"):
            put(output, 2)
        disk.left = 10**6
        put(output, 3)
        put(output, 2)
        output.finish()
        assert [path.read_bytes()[one.start : one.end] for one in output.done.values()] == (
            path.read_bytes().splitlines(keepends=True)
        )
    assert numbers(path) == [1, 2, 3]


def test_nothing_is_written_behind_half_a_line_that_cannot_be_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, disk = tmp_path / "out.jsonl", Disk(cuts=False)
    with Output(path) as output:
        put(output, 1)
        with monkeypatch.context() as patch:
            patch.setattr(output_module, "os", disk)
            disk.left = 20
            with pytest.raises(OSError, match="No space left"):
                put(output, 2)
        with pytest.raises(OSError, match="an earlier answer was written in part"):
            put(output, 3)
    assert numbers(path) == [1]


def test_a_file_beside_the_output_is_nobodys_to_overwrite(tmp_path: Path) -> None:
    path, beside = tmp_path / "out.jsonl", tmp_path / "out.jsonl.sorted"
    (tmp_path / "mine").write_text("mine")
    beside.symlink_to("mine")
    with Output(path) as output:
        put(output, 2)
        put(output, 1)
        output.finish()
    assert numbers(path) == [1, 2]
    assert beside.is_symlink() and (tmp_path / "mine").read_text() == "mine"
    assert {file.name for file in tmp_path.iterdir()} == {"out.jsonl", "out.jsonl.sorted", "mine"}


def test_an_order_that_cannot_be_written_leaves_the_file_as_it_was_and_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.jsonl"

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Output(path) as output:
        put(output, 2)
        put(output, 1)
        before = path.read_bytes()
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            output.finish()
        assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]
        assert path.read_bytes() == before


def begin(path: Path, lines: list[Raw], fingerprint: str = "fp", *, retry: bool = False) -> list[int]:
    with Output(path) as output:
        output.begin(lines, fingerprint, retry=retry)
        return sorted(output.done)


def raw(number: int, digest: str = "a" * 16) -> Raw:
    return Raw(number, digest, f"line-{number}", b"{}")


def answered(path: Path, *numbers: int, failed: int = 0) -> bytes:
    with Output(path) as output:
        for number in numbers:
            status = 400 if number == failed else 200
            body: dict[str, Any] = {"error": {}} if number == failed else {"system_fingerprint": "fp"}
            output.append(line(number), written(line(number), status, "req_1", body))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("there", "lines", "problem"),
    [
        ((4, 2, 1), [raw(1), raw(2)], r"answer \('line-4'\) to line 4, and the input has no such line"),
        ((1, 2, 3), [raw(1), raw(3)], r"answer \('line-2'\) to line 2, and the input has no such line"),
        ((3, 1), [], r"answer \('line-1'\) to line 1, and the input has no such line"),
        ((3, 1), [raw(1), raw(2), raw(3, "b" * 16)], r"answer \('line-3'\) to line 3 as it was"),
    ],
)
def test_answers_to_other_lines_are_refused_before_anything_is_written(
    there: tuple[int, ...], lines: list[Raw], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    before = answered(path, *there, failed=1)
    failed_is_wrong = not any(one.number == 1 for one in lines)
    for retry in (False, True):
        if retry and failed_is_wrong:  # that one is taken out, and the next one is told
            problem = r"answer \('line-3'\) to line 3, and the input has no such line"
        with pytest.raises(InvalidArgument, match=problem):
            begin(path, lines, retry=retry)
        assert path.read_bytes() == before


def test_lines_without_an_answer_may_stand_anywhere_and_errors_are_taken_out_on_demand(
    tmp_path: Path,
) -> None:
    path = tmp_path / "out.jsonl"
    answered(path, 4, 2, failed=2)
    lines = [raw(number) for number in (1, 2, 3, 4, 6)]
    assert begin(path, lines) == [2, 4]
    assert begin(path, [raw(2, "b" * 16), raw(4)], retry=True) == [4]
    assert begin(path, lines) == numbers(path) == [4]


@pytest.mark.parametrize("retry", [False, True])
def test_what_another_model_answered_is_not_mixed_with_this_ones(retry: bool, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    before = answered(path, 1, 2, failed=2)
    with pytest.raises(InvalidArgument, match=r"begun with another model, .* --context "):
        begin(path, [raw(1), raw(2)], "other", retry=retry)
    assert path.read_bytes() == before
