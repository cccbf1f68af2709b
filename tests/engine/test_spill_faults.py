"""What happens to spill directories, disks and limits under a server: it loses a cache, and no reply."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.engine import spill_files as files
from flashnext.engine.loading import Loading
from flashnext.engine.marks import Kind
from flashnext.engine.pace import COOL_S
from flashnext.engine.radix import Keys, row_keys
from flashnext.errors import DeviceError, OutOfPages
from support.fake_core import PAGE
from support.spilling import IDENTITY, MOST_S, Server, end, prompt, spilled


def two_that_share(folder: Path) -> tuple[list[list[int]], list[str]]:
    """Leave two marks that share their first pages; returns their rows and names, as they are looked at."""
    server = Server(folder)
    keys = [[*prompt(40), *range(first, first + 10)] for first in (300, 400)]
    for key in keys:
        server.ask([*key, 900], [end(50)], max_tokens=1, stops=())
        server.caching.cache.give_way(0.0, [mark for mark in server.caching.cache.marks if mark.n == 50])
        server.evict_all()
    server.close()
    keys.sort(key=lambda key: files.mark_name(IDENTITY, rows_of(key)))
    return keys, [files.mark_name(IDENTITY, rows_of(key)) for key in keys]


def looked_at(
    folder: Path, key: list[int], last: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Server, threading.Event]:
    """A server that has found a mark, and has not looked at the last one until something is set."""
    ends, read_head = threading.Event(), files.read_head

    def slow(path: Path) -> files.Entry:
        if path.name == last:
            ends.wait()
        return read_head(path)

    monkeypatch.setattr(files, "read_head", slow)
    server = Server(folder, settle=False)
    deadline = time.monotonic() + MOST_S
    while server.caching.cache.find_mark(rows_of(key)) is None:
        assert time.monotonic() < deadline, "it is never found"
        server.caching.tend()
        time.sleep(0.001)
    return server, ends


def rows_of(tokens: list[int]) -> Keys:
    return row_keys(np.array(tokens, np.int32))


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_removed_directory_ends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    server = spilled(folder)
    shutil.rmtree(folder)
    assert server.ask([*prompt(50), 900]) == 0
    server.spill_all()
    assert server.counts.spill_failures >= 1
    assert not folder.exists()
    server.close()


def test_a_disk_with_too_little_space_is_written_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path, floor=1 << 60)
    server.ask(prompt(60), [end(20), end(50)])
    server.spill_all()
    server.spill_all()
    assert files.list_files(tmp_path) == []
    assert server.counts.spill_failures == 1, "it is tried again before it has cooled down"
    for n in (2, 3):
        server.clock_s += COOL_S * 2 ** (n - 2) - 1
        server.spill_all()
        assert server.counts.spill_failures == n - 1, "each time it waits twice as long"
        server.clock_s += 2
        server.spill_all()
        assert server.counts.spill_failures == n
    assert server.ask([*prompt(50), 900]) == 50
    server.close()


@pytest.mark.parametrize("n_bytes", range(0, 1300, 130))
def test_a_disk_that_gets_full_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int
) -> None:
    """In the middle of whatever is being written; pages of the mark that are whole by then go again."""
    server = Server(tmp_path)
    left = [n_bytes]

    def opened(path: Any, mode: str, **more: Any) -> Any:
        file = open(path, mode, buffering=0, **more)  # noqa: SIM115
        write = file.write

        def limited(data: Any) -> int:
            part = memoryview(data)[: left[0]]
            left[0] -= part.nbytes
            write(part)
            if part.nbytes < memoryview(data).nbytes:
                raise OSError(28, os.strerror(28))
            return part.nbytes

        class Limited:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *args: object) -> None:
                file.close()

        Limited.write = staticmethod(limited)  # type: ignore[attr-defined]
        return Limited()

    server.ask(prompt(60), [end(50)], max_tokens=1)
    with monkeypatch.context() as patch:
        patch.setattr(files, "open", opened, raising=False)
        server.spill_all()
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]
    assert (server.counts.spill_failures, server.counts.stored_bytes) == (1, 0)
    server.clock_s += COOL_S + 1
    server.evict_all()
    assert server.ask([*prompt(50), 900], max_tokens=1) == 50
    server.close()


@pytest.mark.parametrize("error", [MemoryError("none"), ValueError("odd"), RuntimeError("odd")])
@pytest.mark.parametrize("what", ["read_block", "read_page", "restore"])
def test_whatever_fails_is_answered_and_goes_on(tmp_path: Path, error: Exception, what: str) -> None:
    server = spilled(tmp_path)
    before = files.list_files(tmp_path)
    fails = [True]

    def failing(name: str) -> None:
        if fails[0] and name == what:
            raise error

    server.core.calling = failing
    assert server.ask([*prompt(50), 900]) == (0 if what == "restore" else 50)
    server.spill_all()
    assert not server.disk.busy
    assert server.counts.spill_failures >= 1 and server.caching.cache.promised_bytes == 0
    fails[0] = False
    server.clock_s += COOL_S + 1
    server.ask(prompt(60, 9), [end(50)], max_tokens=1)
    server.spill_all()
    assert set(files.list_files(tmp_path)) > set(before)
    server.caching.cache.clear()
    assert server.ask([*prompt(50), 901], max_tokens=1) == 50
    server.close()


def test_a_mark_that_cannot_come_is_asked_for_once_by_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    n_reads = [0]

    def none(*args: Any) -> Any:
        n_reads[0] += 1
        server.caching.cache.version += 1  # as others do that are kept and evicted
        raise OutOfPages("sequences have them")

    monkeypatch.setattr(server.spill.states, "read", none)
    assert server.ask([*prompt(50), 900]) == 0
    assert n_reads == [1]
    server.close()


def test_a_mark_in_memory_is_not_left_for_one_on_disk_that_has_little_more(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask(prompt(200), [end(180), end(184)], max_tokens=1, stops=())
    server.spill_all()
    cache = server.caching.cache
    cache.give_way(0.0, [mark for mark in cache.marks if mark.n != 184])
    (memory,) = (mark for mark in cache.marks if mark.n == 180)
    stored = cache.find_mark(row_keys(np.array(prompt(184), np.int32)))
    assert stored is not None and stored.value.snapshot is None
    memory.value.cost_s, stored.value.cost_s = 10.0, 10.001
    server.spill.pace.bytes_per_s = 1e3  # a block takes longer
    assert server.ask([*prompt(184), 900]) == 180
    stored.value.cost_s = 1e9
    assert server.ask([*prompt(184), 901]) == 184
    server.close()


def test_a_mark_that_the_disk_has_no_room_for_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, floor=10**6)
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk._replace(free=10**6 + 400))
    n_writes = [0]
    write = files.write
    monkeypatch.setattr(
        files, "write", lambda *args: (n_writes.__setitem__(0, n_writes[0] + 1), write(*args))[1]
    )
    server.ask(prompt(60), [end(50)], max_tokens=1)  # a page and a block fit, seven pages do not
    server.spill_all()
    assert n_writes == [0] and server.counts.spill_failures == 1
    server.close()


def test_a_lower_limit_counts_from_the_start(tmp_path: Path) -> None:
    server = Server(tmp_path)
    for first in range(50, 60):
        server.ask(prompt(60, first), [end(50)], max_tokens=1)
    server.spill_all()
    assert server.counts.stored_bytes > 4000
    server.close()
    server = Server(tmp_path, disk=4000)
    assert 0 < server.counts.stored_bytes <= 4000
    assert server.counts.stored_bytes == sum(p.stat().st_size for p in files.list_files(tmp_path))
    server.close()


def test_a_directory_that_was_made_anew_is_written_anew(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    server = spilled(folder)
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    server.ask(prompt(70), [end(60)], max_tokens=1)  # shares pages with the one that is gone
    server.spill_all()
    marks = [path for path in files.list_files(folder) if path.name.startswith("m")]
    assert marks
    for path in marks:
        rows = files.read_head(path).rows
        assert all((folder / page).exists() for page in files.page_names(IDENTITY, rows, PAGE))
    with pytest.raises(files.SpillBusy):
        files.Lock(folder)
    server.caching.cache.clear()
    assert server.ask([*prompt(60), 900], max_tokens=1) == 60
    server.close()


@pytest.mark.parametrize("read", [False, True], ids=["", "read while it is away"])
@pytest.mark.parametrize("written", [False, True], ids=["", "written while it is away"])
def test_a_directory_that_comes_back_is_looked_through_again(
    tmp_path: Path, read: bool, written: bool
) -> None:
    folder, away = tmp_path / "spill", tmp_path / "away"
    server = spilled(folder, disk=9000)
    before = files.list_files(folder)
    folder.rename(away)
    if read:
        assert server.ask([*prompt(50), 900], max_tokens=1) == 0
    if written:
        server.ask(prompt(60, 7), [end(50)], max_tokens=1)
        server.spill_all()
        assert server.counts.spill_failures >= 1 and server.counts.stored == 0
    away.rename(folder)
    server.clock_s += COOL_S + 1
    server.ask(prompt(60, 8), [end(50)], max_tokens=1)
    server.spill_all()
    assert set(files.list_files(folder)) > set(before)
    server.caching.cache.clear()
    assert server.ask([*prompt(50), 901], max_tokens=1) == 50
    for first in range(50, 60):
        server.now_s += 1
        server.ask(prompt(60, first), [end(50)], max_tokens=1)
        server.spill_all()
        there = files.list_files(folder)
        assert server.counts.stored_bytes == sum(path.stat().st_size for path in there) <= 9000
    server.close()


def test_a_directory_that_could_not_be_looked_through_is_looked_through_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled(tmp_path).close()

    def failing(folder: Path) -> list[Path]:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(files, "list_files", failing)
        server = Server(tmp_path)
        assert (server.counts.stored, server.counts.spill_failures) == (0, 1)
        server.clock_s += COOL_S + 1
        server.ask(prompt(60, 9), [end(50)], max_tokens=1)
        server.spill_all()
        assert (server.counts.stored, server.counts.spill_failures) == (0, 2)
    server.clock_s += 2 * COOL_S + 1
    server.spill_all()
    assert server.counts.stored >= 2
    assert server.counts.stored_bytes == sum(path.stat().st_size for path in files.list_files(tmp_path))
    server.close()


def test_pins_on_disk_take_half_of_it_at_most(tmp_path: Path) -> None:
    server = Server(tmp_path, disk=12000)
    for first in range(50, 70):  # system prompts that are shared by two each
        server.now_s += 1
        server.ask(prompt(40, first), [end(33, Kind.SYSTEM)], max_tokens=1)
        server.ask([*prompt(33, first), 900], [end(33, Kind.SYSTEM)], max_tokens=1)
        server.spill_all()
    pinned = [mark for mark in server.spill.books.marks if mark.pinned]
    assert 3 <= len(pinned) <= 6
    server.now_s += 1
    server.ask(prompt(60, 9), [end(50)], max_tokens=1)
    server.spill_all()
    name = files.mark_name(IDENTITY, row_keys(np.array(prompt(50, 9), np.int32)))
    assert (tmp_path / name).exists()
    for first in range(70, 71):  # and it is not the next to go
        server.now_s += 1
        server.ask(prompt(40, first), [end(33, Kind.SYSTEM)], max_tokens=1)
        server.ask([*prompt(33, first), 900], [end(33, Kind.SYSTEM)], max_tokens=1)
        server.spill_all()
    assert (tmp_path / name).exists()
    server.close()


def test_the_time_of_day_may_be_set_back(tmp_path: Path) -> None:
    server = Server(tmp_path, floor=1 << 60)
    server.ask(prompt(60), [end(50)], max_tokens=1)
    server.spill_all()
    assert server.counts.spill_failures == 1
    server.now_s -= 86400
    server.clock_s += COOL_S + 1
    server.spill_all()
    assert server.counts.spill_failures == 2
    server.close()


def test_a_failure_is_told_again_after_a_success_or_where_it_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    lines: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("flashnext.engine"), "warning", lambda *line: lines.append(str(line))
    )
    write = files.write
    fails = [28]

    def failing(*args: Any) -> int:
        if fails[0]:
            raise OSError(fails[0], os.strerror(fails[0]))
        return write(*args)

    monkeypatch.setattr(files, "write", failing)
    server.ask(prompt(60), [end(50)], max_tokens=1, stops=())
    told = []
    for first, fails[0] in enumerate((28, 28, 5, 28, 0, 28), 2):
        server.clock_s += 10**6
        server.ask(prompt(60, first), [end(50)], max_tokens=1, stops=())
        server.spill_all()
        told.append(len(lines))
    assert told == [1, 1, 2, 3, 3, 4]
    assert "replies go on without it: " in lines[1] and os.strerror(5) in lines[1]
    server.close()


@pytest.mark.parametrize("error", [30, 13, 5])  # read-only, permission, I/O
def test_a_disk_that_became_read_only_gives_what_it_has(
    tmp_path: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, disk=4000)
    for first in range(50, 60):
        server.now_s += 1
        server.ask(prompt(60, first), [end(50)], max_tokens=1, stops=())
        server.spill_all()
    before, failures, there = server.counts.stored, server.counts.spill_failures, files.list_files(tmp_path)
    name = files.mark_name(IDENTITY, row_keys(np.array(prompt(50, 59), np.int32)))
    assert (tmp_path / name).exists()
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", lambda path: OSError(error, os.strerror(error)))
        server.ask(prompt(60, 70), [end(50)], max_tokens=1, stops=())
        server.spill_all()
        assert (server.counts.stored, server.counts.spill_failures) == (before, failures + 1)
        assert files.list_files(tmp_path) == there
        server.caching.cache.clear()
        assert server.ask([*prompt(50, 59), 900], max_tokens=1, stops=()) == 50
    server.caching.cache.clear()
    server.clock_s += COOL_S + 1
    server.now_s += 1
    server.ask(prompt(60, 71), [end(50)], max_tokens=1, stops=())
    server.spill_all()
    assert (tmp_path / files.mark_name(IDENTITY, row_keys(np.array(prompt(50, 71), np.int32)))).exists()
    assert server.counts.stored_bytes == sum(p.stat().st_size for p in files.list_files(tmp_path)) <= 4000
    server.close()


def test_a_file_that_cannot_be_removed_stays_and_others_go_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, disk=8000)

    def store(first: int) -> Path:
        server.now_s += 1
        server.ask(prompt(60, first), [end(50)], max_tokens=1, stops=())
        server.spill_all()
        return tmp_path / files.mark_name(IDENTITY, row_keys(np.array(prompt(50, first), np.int32)))

    stuck, remove = store(50), files.remove

    def failing(path: Path) -> OSError | None:
        return OSError(1, os.strerror(1), str(path)) if path == stuck else remove(path)

    monkeypatch.setattr(files, "remove", failing)
    following = store(51)
    for first in range(52, 62):
        assert store(first).exists(), "nothing is written any more"
    assert not following.exists(), "the directory never was full"
    assert server.counts.spill_failures == 0 and stuck.exists()
    assert server.counts.stored_bytes == sum(p.stat().st_size for p in files.list_files(tmp_path)) <= 8000
    server.caching.cache.clear()
    assert server.ask([*prompt(50, 50), 900], max_tokens=1, stops=()) == 50
    server.close()


def test_a_damaged_mark_that_is_asked_for_at_the_start_takes_no_page_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is still being looked through: who else needs its pages is not known yet."""
    keys, names = two_that_share(tmp_path)
    flip_last_byte(tmp_path / names[0])
    server, ends = looked_at(tmp_path, keys[0], names[1], monkeypatch)
    assert server.ask([*keys[0], 900], max_tokens=1) == 0
    ends.set()
    server.settle()
    there = files.list_files(tmp_path)
    assert server.counts.stored_bytes == sum(path.stat().st_size for path in there)
    assert names[0] not in {path.name for path in there}
    assert server.ask([*keys[1], 900], max_tokens=1) == len(keys[1])
    server.close()


def test_a_page_that_is_found_damaged_at_the_start_is_not_taken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, names = two_that_share(tmp_path)
    flip_last_byte(tmp_path / files.page_names(IDENTITY, rows_of(keys[0]), PAGE)[0])
    server, ends = looked_at(tmp_path, keys[0], names[1], monkeypatch)
    assert server.ask([*keys[0], 900], max_tokens=1) == 0
    server.caching.cache.clear()
    ends.set()
    server.settle()
    assert (server.counts.stored, server.counts.stored_bytes) == (0, 0)
    assert files.list_files(tmp_path) == []
    assert server.caching.cache.find_mark(rows_of(keys[1])) is None, "it is believed to be there"
    server.close()


def test_one_file_that_cannot_be_written_stops_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    marks = {first: files.mark_name(IDENTITY, rows_of(prompt(50, first))) for first in range(50, 55)}
    write, tries = files.write, list[str]()

    def failing(path: Path, *more: Any) -> int:
        if path.name == marks[52]:
            tries.append(path.name)
            raise OSError(5, os.strerror(5), str(path))
        return write(path, *more)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", failing)
        for first in marks:
            server.ask(prompt(60, first), [end(50)], max_tokens=1, stops=())
        server.spill_all()
        assert {first for first, name in marks.items() if (tmp_path / name).exists()} == {50, 51, 53, 54}
        assert len(tries) == server.counts.spill_failures == 1
        server.clock_s += COOL_S + 1
        server.spill_all()
        server.spill_all()
        assert len(tries) == 2, "it is tried again when its pause has ended, and once"
    server.clock_s += COOL_S + 1
    server.spill_all()
    assert not (tmp_path / marks[52]).exists(), "the second pause is as short as the first"
    server.clock_s += COOL_S
    server.spill_all()
    assert (tmp_path / marks[52]).exists()
    assert server.counts.stored_bytes == sum(p.stat().st_size for p in files.list_files(tmp_path))
    server.close()


def test_a_second_file_in_a_row_that_cannot_be_written_stops_all_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    n_tries = [0]

    def failing(path: Path, *more: Any) -> int:
        n_tries[0] += 1
        raise OSError(5, os.strerror(5), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", failing)
        for first in range(50, 60):
            server.ask(prompt(60, first), [end(50)], max_tokens=1, stops=())
        server.spill_all()
        assert n_tries == [2] and not server.spill.ready
    server.clock_s += COOL_S + 1
    server.spill_all()
    for first in range(50, 60):
        assert (tmp_path / files.mark_name(IDENTITY, rows_of(prompt(50, first)))).exists()
    server.close()


@pytest.mark.parametrize("kind", ["m", "p"])
def test_one_file_that_cannot_be_read_stops_no_others(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    for first in (1, 2):
        server.ask(prompt(60, first), [end(50)], max_tokens=1, stops=())
    server.evict_all()
    bad = files.mark_name(IDENTITY, rows_of(prompt(50)))
    if kind == "p":
        bad = files.page_names(IDENTITY, rows_of(prompt(50)), PAGE)[3]
    read, tries = files.read, list[str]()

    def failing(path: Path) -> Any:
        if path.name == bad:
            tries.append(path.name)
            raise OSError(5, os.strerror(5), str(path))
        return read(path)

    monkeypatch.setattr(files, "read", failing)
    for first in (1, 2, 1, 2):
        server.caching.cache.clear()
        assert server.ask([*prompt(50, first), 900], max_tokens=1) == (0 if first == 1 else 50)
    assert len(tries) == server.counts.spill_failures == 1
    server.clock_s += COOL_S + 1
    monkeypatch.setattr(files, "read", read)
    server.caching.cache.clear()
    assert server.ask([*prompt(50), 901], max_tokens=1) == 50
    server.close()


def test_a_mark_that_is_spoilt_while_it_is_written_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    server.ask(prompt(60), [end(50)], max_tokens=1, stops=())
    page = files.page_names(IDENTITY, rows_of(prompt(50)), PAGE)[2]
    write, spoilt = files.write, list[str]()

    def spoiling(path: Path, *more: Any) -> int:
        size = write(path, *more)
        if path.name.startswith("m") and not spoilt:
            spoilt.append(path.name)
            flip_last_byte(tmp_path / page)
            with pytest.raises(files.SpillError):  # by the other thread, for another mark
                server.spill.states._read_page(Loading(), page)
        return size

    monkeypatch.setattr(files, "write", spoiling)
    server.spill_all()
    assert spoilt and server.counts.spilled == len(server.caching.cache.marks) + 1
    server.caching.cache.clear()
    assert server.ask([*prompt(50), 900], max_tokens=1) == 50
    server.settle()
    assert server.counts.stored_bytes == sum(p.stat().st_size for p in files.list_files(tmp_path))
    server.close()


def test_what_memory_still_has_of_a_damaged_page_is_written_again(tmp_path: Path) -> None:
    keys, names = two_that_share(tmp_path)
    server = Server(tmp_path)
    assert server.ask([*keys[0], 900], max_tokens=1, stops=()) == 50
    flip_last_byte(tmp_path / files.page_names(IDENTITY, rows_of(keys[0]), PAGE)[0])
    assert server.ask([*keys[1], 900], max_tokens=1) == 0
    server.spill_all()
    assert (tmp_path / names[0]).exists()
    server.caching.cache.clear()
    assert server.ask([*keys[0], 901], max_tokens=1) == 50
    server.close()


def test_a_mark_of_a_clock_that_was_ahead_does_not_stay_for_ever(tmp_path: Path) -> None:
    spilled(tmp_path, disk=6000).close()
    for path in files.list_files(tmp_path):
        os.utime(path, (2e9, 2e9))
    name = files.mark_name(IDENTITY, rows_of(prompt(50)))
    server = Server(tmp_path, disk=6000)
    for first in range(50, 55):
        server.now_s += 1
        server.ask(prompt(60, first), [end(50)], max_tokens=1, stops=())
        server.spill_all()
    assert not (tmp_path / name).exists()
    server.close()


def test_a_lock_that_was_removed_before_it_was_taken_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def removed(file: int, how: int) -> None:
        (tmp_path / "lock").unlink()
        flock(file, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", removed)
        with pytest.raises(files.SpillBusy, match="another process removes or takes it"):
            files.Lock(tmp_path)
    files.Lock(tmp_path).release()


def test_who_asks_whether_a_lock_is_held_that_is_given_back_gets_an_answer(tmp_path: Path) -> None:
    """One thread takes a folder that came back, and another one still asks the lock before."""
    lock = files.Lock(tmp_path)
    lock.release()
    assert lock.held  # its file is the same; who has it is another question


def test_a_half_written_file_that_could_not_be_removed_is_in_nobodys_way(tmp_path: Path) -> None:
    server = Server(tmp_path)
    name = files.mark_name(IDENTITY, rows_of(prompt(50)))
    (tmp_path / f"{name}.{os.getpid()}.tmp").write_text("half")
    server.ask(prompt(60), [end(50)], max_tokens=1, stops=())
    server.spill_all()
    assert (tmp_path / name).exists() and server.counts.spill_failures == 0
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    server.close()


def test_one_file_that_nothing_can_be_seen_of_stops_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled(tmp_path).close()
    odd = f"p-{'0' * 32}.spill"
    (tmp_path / odd).write_text("")
    scandir = os.scandir

    class Odd:
        name = odd

        def is_dir(self, **more: Any) -> bool:
            raise OSError(5, os.strerror(5))

    @contextmanager
    def entries(folder: Path) -> Iterator[list[Any]]:
        with scandir(folder) as found:
            yield [Odd() if entry.name == odd else entry for entry in found]

    monkeypatch.setattr("flashnext.engine.spill_files.os.scandir", entries)
    server = Server(tmp_path)
    assert (server.counts.stored, server.counts.spill_failures) == (1, 0)
    server.close()


def test_a_device_that_fails_is_asked_for_no_state_for_a_while(tmp_path: Path) -> None:
    server, asked = Server(tmp_path), list[str]()
    server.ask(prompt(60), [end(50)], max_tokens=1)
    server.settle()

    def failing(name: str) -> None:
        if name in ("read_page", "read_block"):
            asked.append(name)
            raise DeviceError("the device is lost")

    server.core.calling = failing
    server.disk.ahead_bytes, server.disk._all_stored = 1 << 40, -1
    deadline = time.monotonic() + MOST_S
    while not asked or server.disk.busy:
        assert time.monotonic() < deadline and len(asked) < 100, "it is asked again and again"
        server.caching.tend()
    assert len(asked) == 1 and server.counts.spill_failures == 1 and not server.spill.ready
    server.close()
