"""Disks that hang or are slow under a server: whoever waits reads its prompt, and nobody pays for it."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.engine import spill_files as files
from flashnext.engine import spill_states
from flashnext.engine.caching import Caching
from flashnext.engine.core import Snapshot
from flashnext.engine.loading import Loading
from flashnext.engine.on_disk import HANG_S
from flashnext.engine.radix import row_keys
from flashnext.errors import OutOfPages
from support.jobs import add
from support.spilling import MOST_S, Server, counting, end, hang, prompt, spilled, step_until_loading


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask(prompt(60), [end(50)])
    server.settle()
    hangs = threading.Event()
    server.core.reading = lambda: hangs.wait()
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
    monkeypatch.setattr(files, "read", lambda path: hangs.wait())
    server.disk.patience_s = 0.05
    beside = add(server.scheduler, prompt(20, 9), max_tokens=40)
    assert server.ask([*prompt(50), 900]) == 0
    assert beside.events()[-1].finish_reason == "length"
    hangs.set()
    server.settle()
    server.close()


def test_nobody_is_ended_for_pages_that_come_free_in_a_moment(tmp_path: Path) -> None:
    server = spilled(tmp_path, n_pages=20)
    begun, ends = threading.Event(), threading.Event()

    def slow(name: str) -> None:
        if name == "restore":
            begun.set()
            ends.wait()

    server.core.calling = slow
    cut = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, cut)
    assert begun.wait(MOST_S)
    server.scheduler.cancel(cut.job)
    held = [server.core.take_page(None) for _ in range(15)]  # as a mark does that goes into the pool
    waits = add(server.scheduler, prompt(100, 3), max_tokens=2)
    for _ in range(3):
        server.scheduler.step()
    assert waits.items.empty()
    for page in held:
        server.core.give_back(page)
    ends.set()
    server.run()
    assert waits.events()[-1].finish_reason == "length"
    server.settle()
    server.close()


def test_nobody_is_ended_for_pages_that_came_free_after_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, n_pages=20)
    held = [server.core.take_page(None) for _ in range(15)]  # as a mark does that goes into the pool

    def ended(caching: Caching) -> bool:
        while held:
            server.core.give_back(held.pop())
        return False

    monkeypatch.setattr(Caching, "going_on", property(ended))
    client = add(server.scheduler, prompt(100, 3), max_tokens=2)
    server.run()
    assert client.token_ids() == counting(prompt(100, 3))[:2]
    monkeypatch.undo()
    server.settle()
    server.close()


def test_a_cancelled_request_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    _, hangs = hang(monkeypatch, "read")
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, client)
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
    step_until_loading(server, client)
    assert begun.wait(MOST_S)
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
    step_until_loading(server, client)
    assert begun.wait(MOST_S)
    server.spill.close(0.01)
    with pytest.raises(files.SpillBusy):
        files.Lock(tmp_path)
    hangs.set()
    deadline = time.monotonic() + MOST_S
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
    deadline = time.monotonic() + MOST_S
    while not begun.is_set():  # the directory is full
        assert time.monotonic() < deadline, "nothing is ever removed"
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
    assert ended.wait(MOST_S), "it waits for a file to be removed"
    assert not hangs.is_set()
    hangs.set()
    server.settle()
    assert server.counts.stored_bytes == sum(p.stat().st_size for p in files.list_files(tmp_path)) <= 4000
    server.close()


@pytest.mark.parametrize("what", ["read", "write"])
def test_who_needs_more_than_there_is_is_told_so_though_a_disk_never_answers(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path, n_pages=20)
    server.disk._now_s = lambda: 1e3
    begun, hangs = hang(monkeypatch, what)
    if what == "read":
        cut = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
        step_until_loading(server, cut)
        server.scheduler.cancel(cut.job)
    else:
        server.ask(prompt(30, 9), [end(20)], max_tokens=1)
        server.disk.ahead_bytes, server.disk._all_stored = 1 << 40, -1
        server.caching.tend()
    assert begun.wait(MOST_S)
    waits = add(server.scheduler, prompt(200, 3), max_tokens=2)
    server.run()
    assert isinstance(waits.items.get_nowait(), OutOfPages)
    hangs.set()
    server.settle()
    server.close()


@pytest.mark.parametrize("n_files", range(1, 7))
def test_who_waits_for_a_disk_that_hangs_gets_the_pages_that_its_mark_has_by_then(
    tmp_path: Path, n_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state longer than a piece goes into the pool piece by piece, in which there is room for one."""
    server = spilled(tmp_path, n_pages=10)
    monkeypatch.setattr(spill_states, "SPILL_PIECE_BYTES", server.core.page_bytes)
    clock = [1e3]
    server.disk._now_s = lambda: clock[0]
    begun, hangs = hang(monkeypatch, "read", after=n_files)
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, client)
    assert begun.wait(MOST_S)
    for _ in range(3):
        server.scheduler.step()
    assert client.job.loading and server.core.n_taken == n_files - 1
    clock[0] += HANG_S + 1
    server.run()
    assert client.token_ids() == counting([*prompt(50), 900])[:2]
    hangs.set()
    server.settle()
    assert server.ask([*prompt(50), 901]) == 50
    server.close()


def test_a_disk_that_is_found_to_hang_in_the_middle_of_a_step_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    clock = [1e3]
    server.disk._now_s = lambda: clock[0]
    _, hangs = hang(monkeypatch, "read")
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, client)
    tend = server.caching.tend

    def late() -> bool:
        heard = tend()
        clock[0] += HANG_S + 1
        return heard

    monkeypatch.setattr(server.caching, "tend", late)
    server.run()
    assert client.token_ids() == counting([*prompt(50), 900])[:2]
    hangs.set()
    server.settle()
    server.close()


def test_a_mark_that_a_slow_disk_has_for_a_junior_holds_no_senior_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path, n_pages=13)
    monkeypatch.setattr(spill_states, "SPILL_PIECE_BYTES", server.core.page_bytes)
    server.disk._now_s = lambda: 1e3  # it is not late
    senior = add(server.scheduler, prompt(8, 7), max_tokens=60)
    while senior.job.unread:
        server.scheduler.step()
    begun, hangs = hang(monkeypatch, "read", after=5)
    junior = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, junior)
    assert begun.wait(MOST_S)
    server.run()
    assert senior.token_ids() == counting(prompt(8, 7))[:60]
    assert junior.token_ids() == counting([*prompt(50), 900])[:2]
    hangs.set()
    server.settle()
    server.close()


def test_a_mark_that_a_slow_disk_has_for_a_background_job_holds_no_normal_one_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path, n_pages=13)
    monkeypatch.setattr(spill_states, "SPILL_PIECE_BYTES", server.core.page_bytes)
    server.disk._now_s = lambda: 1e3  # it is not late
    begun, hangs = hang(monkeypatch, "read", after=5)
    background = add(server.scheduler, [*prompt(50), 900], max_tokens=2, background=True)
    step_until_loading(server, background)
    assert begun.wait(MOST_S)
    normal = add(server.scheduler, prompt(80, 7), max_tokens=2)  # more pages than the read leaves
    for _ in range(100):
        if not normal.job.ended:
            server.scheduler.step()
    assert normal.token_ids() == counting(prompt(80, 7))[:2]
    server.run()
    assert background.token_ids() == counting([*prompt(50), 900])[:2]
    hangs.set()
    server.settle()
    server.close()


def test_who_joins_a_late_read_has_the_patience_of_one_who_has_just_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    clock = [1e3]
    server.disk._now_s = lambda: clock[0]
    server.disk.patience_s = 1.0
    _, hangs = hang(monkeypatch, "read")
    first = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, first)
    clock[0] += server.disk.patience_s + 10
    server.run()
    assert first.job.ended and len(server.disk._fetches) == 1
    second = add(server.scheduler, [*prompt(50), 901], max_tokens=2)
    step_until_loading(server, second)
    server.scheduler.step()
    assert second.job.loading
    hangs.set()
    server.run()
    assert second.token_ids() == counting([*prompt(50), 901])[:2]
    server.settle()
    server.close()


def test_a_mark_that_comes_for_a_senior_does_not_give_way_to_a_junior(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path, n_pages=13)
    monkeypatch.setattr(spill_states, "SPILL_PIECE_BYTES", server.core.page_bytes)
    server.disk._now_s = lambda: 1e3
    begun, hangs = hang(monkeypatch, "read", after=5)
    senior = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, senior)
    assert begun.wait(MOST_S)
    junior = add(server.scheduler, prompt(8, 7), max_tokens=60)
    while not junior.job.short:  # it is admitted: what has come for the senior is not counted twice
        server.scheduler.step()
    for _ in range(3):
        server.scheduler.step()
    assert senior.job.loading and server.core.snapshot_pages() == 4
    hangs.set()
    server.run()
    assert senior.token_ids() == counting([*prompt(50), 900])[:2]
    assert junior.token_ids() == counting(prompt(8, 7))[:60]
    server.settle()
    server.close()


def test_pages_of_a_mark_that_is_waited_for_are_none_that_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    monkeypatch.setattr(spill_states, "SPILL_PIECE_BYTES", server.core.page_bytes)
    begun, hangs = hang(monkeypatch, "read", after=5)
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, client)
    assert begun.wait(MOST_S)
    assert server.core.snapshot_pages() == 4 and not server.caching.can_give(1)
    hangs.set()
    server.run()
    server.settle()
    n_pages, n_blocks = server.core.snapshot_pages(), len(server.caching.cache.marks)
    assert server.caching.can_give(n_pages + n_blocks)  # a block of the fake core is as large as a page
    server.close()


def test_what_comes_after_the_end_stays_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = spilled(tmp_path)
    begun, hangs = hang(monkeypatch, "read", after=6)  # in its last file
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, client)
    assert begun.wait(MOST_S)
    close = server.spill.close
    monkeypatch.setattr(server.spill, "close", lambda: close(0.01))
    server.close()
    hangs.set()
    assert server.spill._reader.close(MOST_S), "it hangs for ever"
    assert server.core.open_snapshots == [] and server.core.n_taken == 0


def test_what_has_come_and_is_told_after_the_end_stays_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    begun, ends, whole = threading.Event(), threading.Event(), Loading.whole

    def late(loading: Loading) -> Snapshot:
        made = whole(loading)
        begun.set()
        ends.wait()
        return made

    monkeypatch.setattr(Loading, "whole", late)
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, client)
    assert begun.wait(MOST_S)
    server.spill.close_s = 0.01
    server.scheduler.end_all(RuntimeError("over"))
    ends.set()
    assert server.spill._reader.close(MOST_S), "it hangs for ever"
    assert server.core.open_snapshots == [] and server.core.n_taken == 0


def test_a_read_that_hangs_has_no_other_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room would be made for it, and others would lose theirs."""
    server = Server(tmp_path)
    clock = [1e3]
    server.disk._now_s = lambda: clock[0]
    for first in (1, 2):
        server.ask(prompt(60, first), [end(50)], max_tokens=1, stops=())
        server.evict_all()
    _, hangs = hang(monkeypatch, "read")
    one = add(server.scheduler, [*prompt(50, 1), 900], max_tokens=2)
    step_until_loading(server, one)
    clock[0] += HANG_S + 1
    server.run()
    assert server.ask([*prompt(50, 2), 900], max_tokens=1) == 0
    assert len(server.disk._fetches) == 1
    hangs.set()
    server.settle()
    server.caching.cache.clear()
    assert server.ask([*prompt(50, 2), 901], max_tokens=1) == 50
    server.close()


def test_who_waits_for_a_disk_that_hangs_reads_its_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    clock = [time.perf_counter()]
    server.disk._now_s = lambda: clock[0]
    _, hangs = hang(monkeypatch, "read")
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    step_until_loading(server, client)
    clock[0] += HANG_S + 1  # far less than the patience of this server
    server.run()
    assert client.token_ids() == counting([*prompt(50), 900])[:2]
    hangs.set()
    server.settle()
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
    step_until_loading(server, client)
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
    step_until_loading(server, client)
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


def test_no_mark_gives_way_to_one_that_there_are_no_pages_for(tmp_path: Path) -> None:
    server = spilled(tmp_path, n_pages=20)
    cache = server.caching.cache
    server.ask(prompt(8, 9), [end(7)], max_tokens=1, stops=())
    cache.limit_bytes = server.caching._reserved_bytes = cache.bytes_of(50)  # less than both
    held = [server.core.take_page(None) for _ in range(13)]  # as sequences have
    n_marks = len(cache.marks)
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    assert n_marks and not server.disk.fetch(client.job, None)
    assert len(cache.marks) == n_marks
    for page in held:
        server.core.give_back(page)
    server.run()
    assert client.token_ids() == counting([*prompt(50), 900])[:2]
    server.settle()
    server.close()


def test_who_is_told_that_a_mark_does_not_come_finds_its_pages_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    monkeypatch.setattr(spill_states, "SPILL_PIECE_BYTES", server.core.page_bytes)
    n_calls = itertools.count()

    def failing(name: str) -> None:
        if name == "restore" and next(n_calls) == 3:
            raise OutOfPages("sequences have them")

    server.core.calling = failing
    told: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    server.spill.load(
        row_keys(np.array(prompt(50), np.int32)),
        None,
        0,
        lambda made, has: told.put((made, has, server.core.n_taken)),
    )
    assert told.get(timeout=MOST_S) == (None, True, 0)
    server.settle()
    server.close()
