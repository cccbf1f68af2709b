"""Spill directories: real files, real threads and processes; whatever happens to them, replies stay right."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flashnext.commands import main
from flashnext.engine import on_disk
from flashnext.engine import spill_files as files
from flashnext.engine.errors import EngineClosed
from flashnext.engine.marks import Kind
from flashnext.engine.pace import COOL_S
from flashnext.engine.radix import Keys, row_keys
from flashnext.engine.spill import Spill
from support.fake_core import BLOCK_BYTES, PAGE
from support.spilling import GIB, IDENTITY, MOST_S, Server, end, hang, prompt, spilled

# --- what is written comes back


def test_what_was_evicted_comes_back_from_disk_with_the_same_state(tmp_path: Path) -> None:
    server = spilled(tmp_path)
    assert server.counts.marks == 0 and server.core.free_pages() == server.core.n_pages
    assert server.ask([*prompt(50), 900, 901]) == 50  # the fake core compares block and pages with the rows
    assert (server.counts.restored, server.counts.spilled) == (1, 1)
    server.close()


def test_marks_survive_a_restart(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask(prompt(40), [end(24, Kind.SYSTEM)])
    server.settle()
    assert (server.counts.stored, server.counts.evicted) == (1, 0)  # it is written at once
    server.ask([*prompt(24), 900], [end(24, Kind.SYSTEM)])  # others begin with it: it is pinned
    server.settle()
    server.close()
    again = Server(tmp_path)
    assert again.counts.stored >= 1
    assert again.ask([*prompt(24), 901]) == 24
    assert next(m for m in again.caching.cache.marks if m.n == 24).value.pinned
    again.close()


def test_what_only_memory_has_is_written_when_the_engine_is_closed(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask(prompt(40), [end(24)], max_tokens=1, stops=())
    server.settle()
    assert server.counts.spilled == 0  # there is room for it
    server.scheduler.end_all(EngineClosed("over"))
    again = Server(tmp_path)
    assert again.ask([*prompt(24), 901]) == 24
    again.close()


def test_a_disk_that_hangs_holds_the_end_up_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    server.ask(prompt(40), [end(24)], max_tokens=1, stops=())
    begun, hangs = hang(monkeypatch, "write")
    monkeypatch.setattr(on_disk, "time", SimpleNamespace(monotonic=lambda: 1e9 * begun.is_set()))
    server.spill.close_s = 0.05
    server.scheduler.end_all(EngineClosed("over"))
    assert server.spill.n_waiting == 1
    hangs.set()


def test_a_prompt_as_large_as_the_cache_is_written_before_the_next_takes_its_place(tmp_path: Path) -> None:
    server = Server(tmp_path, limit=1)
    server.caching.cache.limit_bytes = server.caching._reserved_bytes = server.caching.cache.bytes_of(61)
    server.disk.ahead_bytes = server.caching.cache.limit_bytes // 4
    for first in (1, 2, 3):
        server.ask(prompt(60, first), [end(59)], max_tokens=1, stops=())
        server.settle()
    assert server.counts.evicted == 2 and server.counts.spilled == 3
    assert server.ask(prompt(60, 1), [end(59)]) == 59
    server.close()


@pytest.mark.parametrize(("look_s", "most"), [(on_disk.HEAR_S / 8, 8), (10 * on_disk.HEAR_S, 1)])
def test_many_marks_of_a_directory_are_heard_a_few_at_a_time(
    tmp_path: Path, look_s: float, most: int
) -> None:
    """As many as there is time for, and one at least."""
    server = Server(tmp_path)
    for first in range(1, 101):
        server.ask(prompt(9, first), [end(8)], max_tokens=1, stops=())
    server.evict_all()
    server.close()
    again = Server(tmp_path, settle=False)
    told: list[bool] = []
    again.disk._told = lambda: told.append(True)
    while again.spill.n_waiting:
        time.sleep(0.001)
    n, heard, looks = len(again.disk._arrived), 0, itertools.count()
    assert n >= 100
    again.disk._now_s = lambda: 1e3 + next(looks) * look_s
    told.clear()
    left = n
    while again.caching.tend():
        heard += 1
        assert 1 <= left - len(again.disk._arrived) <= most
        left = len(again.disk._arrived)
        assert told or not again.disk._arrived
        told.clear()
    assert n / most <= heard <= n
    assert again.ask([*prompt(8, 77), 901]) == 8
    again.close()


def test_a_page_of_several_marks_is_written_once_and_restored_once(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask(prompt(70), [end(n) for n in (17, 30, 45, 64)], max_tokens=1)
    server.ask([*prompt(45), *range(300, 330)], [end(60)], max_tokens=1)
    marks = [(mark.n, server.caching.cache.keys_of(mark)) for mark in server.caching.cache.marks]
    in_memory = server.caching.cache.pages_bytes
    server.evict_all()
    names = {name for _, rows in marks for name in files.page_names(IDENTITY, rows, PAGE)}
    assert {path.name for path in files.list_files(tmp_path) if path.name.startswith("p")} == names
    assert len(names) < sum((n - 1) // PAGE for n, _ in marks)
    for n, rows in sorted(marks, key=lambda mark: mark[0]):  # each shares the pages of those before it
        assert server.ask([*rows.tolist(), 990, 991], max_tokens=1, cache=True) == n
    kept = {mark.n for mark in server.caching.cache.marks}
    assert kept >= {n for n, _ in marks}
    assert (
        in_memory <= server.caching.cache.pages_bytes <= in_memory + 2 * len(marks) * server.core.page_bytes
    )
    server.close()


def test_the_last_head_row_of_a_page_depends_on_the_next_row() -> None:
    a, b = row_keys(np.arange(40, dtype=np.int32)), row_keys(np.arange(40, dtype=np.int32))
    b[16] = 99
    one, other = (files.page_names("x", rows, 8) for rows in (a, b))
    assert [x == y for x, y in zip(one, other, strict=True)] == [True, False, False, False]
    assert files.page_names("y", a, 8) != one
    assert len(files.page_names("x", a[:8], 8)) == 0 and len(files.page_names("x", a[:9], 8)) == 1


def test_the_directory_keeps_its_limit_and_drops_what_was_not_used_for_longest(tmp_path: Path) -> None:
    server = Server(tmp_path, disk=4000)
    for first in range(50, 70):
        server.now_s += 1
        server.ask(prompt(60, first), [end(50)], max_tokens=1)
        server.spill_all()
        assert sum(path.stat().st_size for path in files.list_files(tmp_path)) <= 4000
    assert 1 <= server.counts.stored <= 3
    assert server.counts.spilled <= 2 * 20, "marks push each other out for ever"
    assert server.counts.stored_bytes == sum(p.stat().st_size for p in files.list_files(tmp_path))
    server.close()


@pytest.mark.parametrize("limit", [10**9, 4000], ids=["room for all", "others make way"])
def test_an_engine_that_sleeps_is_woken_when_the_next_mark_may_be_written(tmp_path: Path, limit: int) -> None:
    server = Server(tmp_path, disk=limit)
    woken = threading.Event()

    def told() -> None:
        woken.set()
        time.sleep(0.02)  # the engine looks before whoever tells has ended

    server.disk._told = told
    for first in range(1, 7):
        server.ask(prompt(60, first), [end(50, Kind.SYSTEM)], max_tokens=1, stops=())
    while server.counts.spilled < 6:
        assert woken.wait(MOST_S), "nobody wakes it"
        woken.clear()
        server.caching.tend()
    server.settle()
    server.close()


# --- what is wrong with files


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    elif how == "empty":
        data = bytearray()
    elif how == "head":
        data[30] ^= 1
    elif how == "end":
        data[-1] ^= 1
    else:
        data[len(data) - 20] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "empty", "head", "payload", "end"])
@pytest.mark.parametrize("kind", ["m", "p"])
@pytest.mark.parametrize("when", ["before a start", "while it runs"])
def test_damaged_files_are_ignored_and_removed(tmp_path: Path, how: str, kind: str, when: str) -> None:
    server = spilled(tmp_path)
    if when == "before a start":
        server.close()
    damaged = [path for path in files.list_files(tmp_path) if path.name.startswith(kind)]
    for path in damaged:
        damage(path, how)
    if when == "before a start":
        server = Server(tmp_path)
    assert server.ask([*prompt(50), 900, 901]) == 0
    server.settle()
    rows = row_keys(np.array(prompt(50), np.int32))
    assert not (tmp_path / files.mark_name(IDENTITY, rows)).exists()
    server.close()


def test_files_of_another_identity_are_misses(tmp_path: Path) -> None:
    server = spilled(tmp_path)
    server.close()
    assert files.list_files(tmp_path)
    other = Server(tmp_path, identity="another numeric option")
    assert files.list_files(tmp_path) == []
    assert other.ask([*prompt(50), 900]) == 0
    other.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 9},
        {"kind": None},
        {"kind": [3]},
        {"kind": {}},
        {"kind": True},
        {"cost_s": "1"},
        {"cost_s": 10**400},
        {"cost_s": float("nan")},
        {"cost_s": -1},
        {"pinned": 1},
        {"more": [[[]]]},
        {},
    ],
)
def test_a_file_that_does_not_say_what_a_mark_says_is_removed_and_no_other(
    tmp_path: Path, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"identity": IDENTITY, "kind": 3, "cost_s": 1.0, "pinned": False}
    rows = [row_keys(np.arange(n, dtype=np.int32)) for n in (5, 6)]
    paths = [tmp_path / files.mark_name(IDENTITY, r) for r in rows]
    if "more" in wrong:  # deeper than a parser of JSON goes
        monkeypatch.setattr(json, "dumps", lambda *args, **more: "[" * 60_000)
    files.write(paths[0], {**said, **wrong} if wrong else {"identity": IDENTITY}, rows[0], [], 0)
    monkeypatch.undo()
    files.write(paths[1], said, rows[1], [], 0)
    server = Server(tmp_path)
    assert [path.exists() for path in paths] == [False, True]
    assert server.counts.stored == 1 and server.counts.spill_failures == 0
    server.close()


@pytest.mark.parametrize("kind", ["m", "p"])
@pytest.mark.parametrize("when", ["before a start", "while it runs"])
def test_a_file_under_another_ones_name_is_no_state(tmp_path: Path, kind: str, when: str) -> None:
    server = spilled(tmp_path)
    server.ask(prompt(60, 9), [end(50)], max_tokens=1)
    server.spill_all()
    ours, theirs = (row_keys(np.array(prompt(50, first), np.int32)) for first in (1, 9))
    if kind == "m":
        swapped = [(files.mark_name(IDENTITY, theirs), files.mark_name(IDENTITY, ours))]
    else:
        names = (files.page_names(IDENTITY, rows, PAGE) for rows in (theirs, ours))
        swapped = list(zip(*names, strict=True))[:1]
    if when == "before a start":
        server.close()
    for source, target in swapped:
        shutil.copy(tmp_path / source, tmp_path / target)
    if when == "before a start":
        server = Server(tmp_path)
    assert server.ask([*prompt(50), 900], max_tokens=1) == 0  # the fake core compares pages with the rows
    server.settle()
    assert not (tmp_path / files.mark_name(IDENTITY, ours)).exists()
    server.close()


@pytest.mark.parametrize("how", ["link", "pipe", "folder"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, how: str) -> None:
    server = spilled(tmp_path / "spill")
    server.close()
    path = tmp_path / "spill" / files.mark_name(IDENTITY, row_keys(np.array(prompt(50), np.int32)))
    path.rename(tmp_path / "elsewhere")
    if how == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    server = Server(tmp_path / "spill")
    assert server.counts.stored == 0 and (tmp_path / "elsewhere").exists()
    assert server.ask([*prompt(50), 900]) == 0
    server.close()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "spill"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(files.SpillError, match=f"mode {mode:04o}.* chmod go-w it, or choose another"):
        files.Lock(folder)
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(files.SpillError, match=f"belongs to user {user}, .* run as user {user}, or") as told:
        files.Lock(tmp_path)
    assert "chmod" not in str(told.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser")
@pytest.mark.parametrize("locked", [False, True], ids=["no lock file", "a lock file"])
def test_the_superuser_clears_the_folder_of_a_service_and_leaves_it_usable(
    tmp_path: Path, locked: bool
) -> None:
    spilled(tmp_path).close()
    if not locked:
        (tmp_path / "lock").unlink()
    for path in (tmp_path, *tmp_path.iterdir()):
        os.chown(path, 4321, 4321)
    with pytest.raises(files.SpillError, match="belongs to user 4321"):
        files.Lock(tmp_path)
    n_files = len(files.list_files(tmp_path))
    assert files.clear(tmp_path)[0] == n_files > 0
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert (tmp_path / "lock").stat().st_uid == 4321


@pytest.mark.parametrize("how", ["unreadable", "folder", "link", "dangling link", "pipe"])
@pytest.mark.parametrize("kind", ["m", "p"])
def test_what_cannot_be_looked_at_takes_no_room_from_marks(
    tmp_path: Path, how: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, disk=4000)
    for first in range(50, 60):
        server.now_s += 1
        server.ask(prompt(60, first), [end(50)], max_tokens=1)
        server.spill_all()
    server.close()
    odd = [path for path in files.list_files(tmp_path) if path.name.startswith(kind)]
    for path in odd:
        if how != "unreadable":
            path.unlink()
        if how == "folder":
            path.mkdir()
        elif "link" in how:
            path.symlink_to(tmp_path / ("none" if "dangling" in how else "lock"))
        elif how == "pipe":
            os.mkfifo(path)
    opened = os.open

    def failing(path: Any, *more: Any, **named: Any) -> int:
        if how == "unreadable" and Path(path) in odd:
            raise PermissionError(13, os.strerror(13))
        return opened(path, *more, **named)

    monkeypatch.setattr(os, "open", failing)
    server = Server(tmp_path, disk=4000)
    for first in range(70, 75):
        server.now_s += 1
        server.ask(prompt(60, first), [end(50)], max_tokens=1)
        server.spill_all()
        size = sum(path.lstat().st_size for path in files.list_files(tmp_path))
        assert server.counts.stored_bytes == size <= 4000
        rows = row_keys(np.array(prompt(50, first), np.int32))
        assert (tmp_path / files.mark_name(IDENTITY, rows)).exists()
    held = {files.mark_name(IDENTITY, mark.rows) for mark in server.spill.books.marks}
    needed = {page for mark in server.spill.books.marks for page in mark.pages}
    left = {path.name for path in files.list_files(tmp_path)}
    assert left == held | needed, "what nobody can use was kept, and marks made way for it"
    server.close()


def test_the_directory_stays_the_same_one_when_the_current_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    server = spilled(Path("spill"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    server.ask(prompt(60, 9), [end(50)], max_tokens=1)
    server.spill_all()
    assert server.counts.spill_failures == 0 and server.counts.stored >= 2
    assert server.ask([*prompt(50), 900], max_tokens=1) == 50
    assert list((tmp_path / "elsewhere").iterdir()) == []
    server.close()


@pytest.mark.parametrize("error", [24, 5, 116, 13])  # too many open files, I/O, stale handle, permission
@pytest.mark.parametrize("when", ["at a start", "while it runs"])
@pytest.mark.parametrize("kind", ["m", "p"])
def test_what_the_system_cannot_read_now_is_a_miss_and_stays(
    tmp_path: Path, error: int, when: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    before = files.list_files(tmp_path)
    size = sum(path.stat().st_size for path in before)
    opened = os.open

    def failing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if Path(path).name.startswith(kind) and str(path).endswith(".spill"):
            raise OSError(error, os.strerror(error))
        return opened(path, flags, *more, **named)

    with monkeypatch.context() as patch:
        if when == "at a start":
            server.close()
            patch.setattr(os, "open", failing)
            server = Server(tmp_path)
            assert server.counts.stored_bytes == size
        patch.setattr(os, "open", failing)
        assert server.ask([*prompt(50), 900], cache=when == "while it runs") == 0
        server.settle()
        assert set(files.list_files(tmp_path)) >= set(before)
    if when == "at a start":
        server.close()
        server = Server(tmp_path)
    else:
        assert server.counts.spill_failures == 1
        server.caching.cache.clear()
        assert server.ask([*prompt(50), 902], max_tokens=1) == 0, "it is asked again at once"
        server.settle()
        server.caching.cache.clear()
    server.clock_s += COOL_S + 1
    assert server.ask([*prompt(50), 901], max_tokens=1) == 50
    server.close()


def test_nothing_else_in_the_folder_is_touched(tmp_path: Path) -> None:
    for name in ("notes.txt", "m-1.spill", "p-xyz.spill", "lock.tmp", f"m-{'0' * 32}.spill.12.tmpx"):
        (tmp_path / name).write_text("mine")
    leftover = tmp_path / f"m-{'0' * 32}.spill.12.tmp"
    leftover.write_text("half")
    server = Server(tmp_path)
    assert not leftover.exists()
    server.close()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "lock") == sorted(
        ["notes.txt", "m-1.spill", "p-xyz.spill", "lock.tmp", f"m-{'0' * 32}.spill.12.tmpx"]
    )


def test_a_directory_that_is_given_back_is_free_though_a_forked_child_lives(tmp_path: Path) -> None:
    server = spilled(tmp_path)
    reading, writing = os.pipe()
    if not (child := os.fork()):  # it has all that is open too, until it ends
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        server.close()
        Server(tmp_path).close()
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_a_forked_child_gives_nothing_back_that_it_did_not_take(tmp_path: Path) -> None:
    lock = files.Lock(tmp_path)
    if not (child := os.fork()):
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(files.SpillBusy):
        files.Lock(tmp_path)
    lock.release()
    files.Lock(tmp_path).release()


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    server = spilled(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "new").iterdir())
    server.close()


# --- several processes


def test_a_second_server_is_told_that_the_directory_is_taken(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with pytest.raises(files.SpillBusy, match="another process uses it"):
        Spill(tmp_path, server.core, IDENTITY, page=PAGE, limit_bytes=GIB)
    with pytest.raises(files.SpillBusy):
        files.clear(tmp_path)
    server.close()
    files.Lock(tmp_path).release()


WRITER = """
    import sys, time, threading
    import numpy as np
    from pathlib import Path
    from flashnext.engine import spill_files as files
    folder = Path(sys.argv[1])
    lock = files.Lock(folder)
    rng = np.random.default_rng(0)
    print("begins", flush=True)
    for i in range(10**6):
        rows = np.arange(i, i + 20, dtype=np.int64)
        data = [rng.integers(0, 255, 3_000_000, np.uint8)]
        files.write(folder / files.mark_name("x", rows), {"identity": "x", "kind": 3, "cost_s": 1.0,
                    "pinned": False}, rows, data, 0)
"""


def test_a_process_that_is_killed_while_it_writes_leaves_whole_files_or_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    for delay in rng.uniform(0.0, 0.08, 6):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for path in files.list_files(tmp_path):
            entry, payload = files.read(path)  # raises where one is damaged
            assert payload.nbytes == 3_000_000 and path.name == files.mark_name("x", entry.rows)
        lock = files.Lock(tmp_path)  # the dead one holds it no more
        list(files.scan(tmp_path, "x", 64))
        lock.release()
        assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


# --- the command


def test_the_command_lists_and_clears(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path)
    server.ask(prompt(40), [end(24, Kind.SYSTEM)])
    server.ask([*prompt(24), 900])
    server.settle()
    assert main(["cache", "ls", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "24" in out and "system, pinned" in out
    assert IDENTITY[:8] in out  # of which model it is
    assert main(["cache", "clear", str(tmp_path)]) == 1
    assert "another process uses it" in capsys.readouterr().err
    server.close()
    assert main(["cache", "clear", str(tmp_path)]) == 0
    assert files.list_files(tmp_path) == []
    assert "left" not in capsys.readouterr().out
    assert main(["cache", "ls", str(tmp_path)]) == 0  # it is empty, and still one


def test_the_size_of_a_mark_is_that_of_all_its_files(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask(prompt(70), [end(n) for n in (17, 64)], max_tokens=1)
    server.evict_all()
    server.close()
    marks, n_bytes = files.listed(tmp_path, PAGE)
    assert {len(mark.entry.rows) for mark in marks} >= {17, 64}
    assert n_bytes == sum(path.stat().st_size for path in files.list_files(tmp_path))
    for mark in marks:
        names = [mark.entry.name, *files.page_names(IDENTITY, mark.entry.rows, PAGE)]
        assert mark.size_bytes == sum((tmp_path / name).stat().st_size for name in names)


def test_clear_tells_what_it_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spilled(tmp_path).close()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "m-1.spill.old").write_text("mine too")
    assert main(["cache", "clear", str(tmp_path)]) == 0
    assert "2 files of other names left: 'm-1.spill.old', 'notes.txt'" in capsys.readouterr().out
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("action", ["ls", "clear"])
def test_a_folder_that_no_server_had_is_refused_and_left_as_it_is(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["cache", action, str(tmp_path)]) == 1
    assert "no files of a prefix cache; expected a folder that a server had" in capsys.readouterr().err
    assert main(["cache", action, str(tmp_path / "notes.txt")]) == 1
    assert "notes.txt: is a file, expected a folder" in capsys.readouterr().err
    assert main(["cache", action, str(tmp_path / "none")]) == 1
    assert "none: no such folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_cannot_be_taken_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(files.SpillError, match="file: is a file, expected a folder"):
        files.Lock(tmp_path / "file")


@pytest.mark.parametrize("how", ["folder", "dangling link", "link", "pipe"])
@pytest.mark.parametrize("kind", ["m", "p"])
def test_whatever_has_the_name_of_a_file_is_cleared_or_told(
    tmp_path: Path, how: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "spill"
    spilled(folder).close()
    n_files = len(files.list_files(folder))
    (tmp_path / "elsewhere").write_text("mine")
    odd = folder / f"{kind}-{'0' * 32}.spill"
    if how == "folder":
        odd.mkdir()
    elif how == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to(tmp_path / ("none" if "dangling" in how else "elsewhere"))
    assert main(["cache", "ls", str(folder)]) == 0
    status = main(["cache", "clear", str(folder)])
    told = capsys.readouterr()
    assert (tmp_path / "elsewhere").read_text() == "mine"
    if how == "folder":
        assert status == 1 and f"{odd}: cannot be removed: " in told.err
        assert odd.is_dir() and files.list_files(folder) == []
    else:
        assert status == 0 and f"{n_files + 1} files removed" in told.out
        assert files.list_files(folder) == []


@pytest.mark.parametrize("used_s", [-(2.0**40), 0.0, 2.0**36, 2.0**50])
def test_a_file_of_any_time_is_listed(
    tmp_path: Path, used_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spilled(tmp_path).close()
    fstat = os.fstat

    def odd(descriptor: int) -> Any:  # few file systems take such times
        status = fstat(descriptor)
        return SimpleNamespace(st_mode=status.st_mode, st_size=status.st_size, st_mtime=used_s)

    with monkeypatch.context() as patch:
        patch.setattr("flashnext.engine.spill_files.os.fstat", odd)
        assert main(["cache", "ls", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1 mark," in out and "end" in out
    server = Server(tmp_path)
    assert server.counts.stored == 1
    server.close()


def rows_of(keys: Keys) -> list[int]:
    return [int(key) for key in keys]


def test_blocks_and_pages_are_told_apart(tmp_path: Path) -> None:
    server = spilled(tmp_path)
    path = tmp_path / files.mark_name(IDENTITY, row_keys(np.array(prompt(50), np.int32)))
    entry, payload = files.read(path)
    assert rows_of(entry.rows) == prompt(50)
    assert payload.nbytes == BLOCK_BYTES + server.core.page_bytes  # the block, and the page with row 49
    assert payload[BLOCK_BYTES:].view(np.int32).tolist() == [*prompt(50)[48:], *[0] * (PAGE - 2)]
    server.close()
