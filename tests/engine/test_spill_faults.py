"""What happens to spill directories, disks and limits under a server: it loses a cache, and no reply."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.engine import spill_files as files
from flashnext.engine.marks import Kind
from flashnext.engine.on_disk import HANG_S
from flashnext.engine.pace import COOL_S
from flashnext.engine.radix import row_keys
from flashnext.errors import OutOfPages
from support.fake_core import PAGE
from support.jobs import add
from support.spilling import IDENTITY, Server, counting, end, hang, prompt, spilled


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


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask(prompt(60), [end(50)])
    server.settle()
    hangs = threading.Event()
    server.core.reading = lambda: hangs.wait(30)
    server.disk.ahead_bytes = 1 << 40
    for first in range(50, 58):
        server.ask(prompt(60, first), [end(50)], max_tokens=1)
    assert server.disk.busy and server.counts.spilled == 0
    hangs.set()
    server.settle()
    server.close()


def test_a_mark_that_does_not_come_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = spilled(tmp_path)
    hangs = threading.Event()
    monkeypatch.setattr(files, "read", lambda path: hangs.wait(30))
    server.disk.patience_s = 0.05
    beside = add(server.scheduler, prompt(20, 9), max_tokens=40)
    assert server.ask([*prompt(50), 900]) == 0
    assert beside.events()[-1].finish_reason == "length"
    hangs.set()
    server.settle()
    server.close()


def test_nobody_is_ended_for_pages_that_come_free_in_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path, n_pages=20)
    hangs = threading.Event()
    monkeypatch.setattr(files, "read", lambda path: hangs.wait(30))
    cut = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    while not cut.job.loading:
        server.scheduler.step()
    server.scheduler.cancel(cut.job)
    held = [server.core.take_page(None) for _ in range(15)]  # as a mark does that is on its way
    waits = add(server.scheduler, prompt(100, 3), max_tokens=2)
    for _ in range(3):
        server.scheduler.step()
    assert waits.items.empty()
    for page in held:
        server.core.give_back(page)
    hangs.set()
    server.run()
    assert waits.events()[-1].finish_reason == "length"
    server.settle()
    server.close()


def test_a_cancelled_request_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    _, hangs = hang(monkeypatch, "read")
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    while not client.job.loading:
        server.scheduler.step()
    server.scheduler.cancel(client.job)
    server.run()
    assert client.events()[-1].finish_reason == "cancelled"
    hangs.set()
    server.settle()
    assert server.ask([*prompt(50), 901]) == 50
    server.close()


def test_closing_removes_nothing_of_what_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    before = files.list_files(tmp_path)
    begun, hangs = hang(monkeypatch, "read")
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    while not client.job.loading:
        server.scheduler.step()
    assert begun.wait(30)
    threading.Timer(0.1, hangs.set).start()
    server.close()
    assert files.list_files(tmp_path) == before
    assert server.spill.counts.spill_failures == 0
    again = Server(tmp_path)
    assert again.ask([*prompt(50), 900]) == 50
    again.close()


def test_a_directory_whose_disk_answers_late_is_given_back_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    begun, hangs = hang(monkeypatch, "read")
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    while not client.job.loading:
        server.scheduler.step()
    assert begun.wait(30)
    server.spill.close(0.01)
    with pytest.raises(files.SpillBusy):
        files.Lock(tmp_path)
    hangs.set()
    deadline = time.monotonic() + 30
    while True:
        try:
            files.Lock(tmp_path).release()
            break
        except files.SpillBusy:
            assert time.monotonic() < deadline, "it is never given back"
            time.sleep(0.01)
    server.close()


def test_removing_files_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path, disk=4000)
    server.ask(prompt(60), [end(50)], max_tokens=1)
    server.spill_all()
    begun, hangs = hang(monkeypatch, "remove")
    server.disk.ahead_bytes, server.disk._all_stored = 1 << 40, -1
    first = 50
    while not begun.is_set():  # the directory is full
        server.ask(prompt(60, first), [end(50)], max_tokens=1)
        first += 1
        time.sleep(0.01)
    ended = threading.Event()

    def use() -> None:
        assert server.counts.stored >= 0 and server.counts.stored_bytes > 0
        for mark in server.caching.cache.marks:
            server.disk.use(mark)
        ended.set()

    threading.Thread(target=use, daemon=True).start()
    assert ended.wait(20), "it waits for a file to be removed"
    assert not hangs.is_set()
    hangs.set()
    server.settle()
    assert server.counts.stored_bytes == sum(p.stat().st_size for p in files.list_files(tmp_path)) <= 4000
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

    monkeypatch.setattr(server.spill, "_read", none)
    assert server.ask([*prompt(50), 900]) == 0
    assert n_reads == [1]
    server.close()


def test_a_disk_that_never_answers_is_not_hoped_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = spilled(tmp_path, n_pages=20)
    clock = [time.perf_counter()]
    server.disk._now_s = lambda: clock[0]
    _, hangs = hang(monkeypatch, "read")
    cut = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    while not cut.job.loading:
        server.scheduler.step()
    server.scheduler.cancel(cut.job)
    held = [server.core.take_page(None) for _ in range(15)]
    waits = add(server.scheduler, prompt(100, 3), max_tokens=2)
    for _ in range(3):
        server.scheduler.step()
    assert waits.items.empty()
    clock[0] += HANG_S + 1
    while not server.scheduler.idle:
        server.scheduler.step()
    assert isinstance(waits.items.get_nowait(), OutOfPages)
    for page in held:
        server.core.give_back(page)
    hangs.set()
    server.settle()
    server.close()


def test_who_waits_for_a_disk_that_hangs_reads_its_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    clock = [time.perf_counter()]
    server.disk._now_s = lambda: clock[0]
    _, hangs = hang(monkeypatch, "read")
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    while not client.job.loading:
        server.scheduler.step()
    clock[0] += HANG_S + 1  # far less than the patience of this server
    while not server.scheduler.idle:
        server.scheduler.step()
    assert client.token_ids() == counting([*prompt(50), 900])[:2]
    hangs.set()
    server.settle()
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
    server = spilled(folder, disk=6000)
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
        assert server.counts.stored_bytes == sum(path.stat().st_size for path in there) <= 6000
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
    pinned = [mark for mark in server.spill._marks.values() if mark.pinned]
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


def test_what_was_promised_to_a_mark_that_does_not_come_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    cache = server.caching.cache
    clock = [time.perf_counter()]
    server.disk._now_s = lambda: clock[0]
    _, hangs = hang(monkeypatch, "read")
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    while not client.job.loading:
        server.scheduler.step()
    cache.limit_bytes = cache.promised_bytes
    assert cache.limit_bytes > 0
    clock[0] += HANG_S + 1
    server.run()
    assert cache.promised_bytes == 0
    client = add(server.scheduler, prompt(20, 9), places=(end(19),), max_tokens=1)
    server.run()
    assert client.events()[-1].finish_reason == "length"
    assert [mark.n for mark in cache.marks if mark.n < 21], "what never comes takes all of the cache"
    hangs.set()
    server.settle()
    assert cache.promised_bytes == 0 and cache.size_bytes <= cache.limit_bytes
    assert 50 in {mark.n for mark in cache.marks}, "it came after all"
    server.close()


def test_uses_of_a_mark_behind_a_disk_that_hangs_are_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    _, hangs = hang(monkeypatch, "read")
    touched = list[float]()
    monkeypatch.setattr(files, "touch", lambda path, used: touched.append(used))
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    while not client.job.loading:
        server.scheduler.step()
    rows = row_keys(np.array(prompt(50), np.int32))
    for _ in range(100):
        server.now_s += 1
        server.spill.use(rows, False)
    assert server.spill.n_waiting == 2, "the mark that comes, and one that is used"
    hangs.set()
    server.run()
    server.settle()
    assert touched[0] == server.now_s and len(touched) <= 3
    n = len(touched)
    server.spill.use(rows, False)
    server.settle()
    assert len(touched) == n + 1, "its file is not told any more"
    server.close()
