"""How fast a spill directory is thought to give, and what comes of that."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from flashnext.engine.pace import HOPED_BYTES_PER_S, MOST_COOL_S, RECOVER_S, Pace, Pauses
from flashnext.engine.radix import row_keys
from support.jobs import add
from support.spilling import hang, prompt, spilled


def test_a_slow_disk_is_tried_again(tmp_path: Path) -> None:
    server = spilled(tmp_path)
    server.spill.pace.bytes_per_s = 1e-3
    assert server.ask([*prompt(50), 900], max_tokens=1) == 0
    server.caching.cache.clear()
    server.clock_s += 60 * RECOVER_S
    assert server.spill.pace.bytes_per_s == HOPED_BYTES_PER_S
    assert server.ask([*prompt(50), 901], max_tokens=1) == 50
    server.close()


def test_each_read_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, measured = spilled(tmp_path), list[int]()
    monkeypatch.setattr(server.spill.pace, "measure", lambda n_bytes, seconds: measured.append(n_bytes))
    assert server.ask([*prompt(50), 900], max_tokens=1) == 50
    assert measured == [server.caching.cache.bytes_of(50)]
    server.close()


def test_a_disk_that_has_become_slow_disappoints_once_or_twice() -> None:
    pace = Pace(lambda: 0.0)
    pace.measure(10**9, 1000.0)  # a thousandth of what was hoped for
    assert pace.bytes_per_s < 4e6
    for _ in range(30):
        pace.measure(10**9, 1.0)
    assert 0.9e9 < pace.bytes_per_s <= HOPED_BYTES_PER_S


def test_what_has_not_come_yet_makes_no_disk_faster() -> None:
    pace = Pace(lambda: 0.0)
    pace.bytes_per_s = 1e6
    pace.measure(10**6, 0.5, ended=False)
    assert pace.bytes_per_s == pytest.approx(1e6)
    pace.measure(10**6, 10.0, ended=False)
    assert pace.bytes_per_s < 3e5


def test_a_mark_that_is_waited_for_in_vain_says_how_slow_the_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spilled(tmp_path)
    server.spill.pace = Pace(lambda: server.clock_s)
    cache = server.caching.cache
    stored = cache.find_mark(row_keys(np.array(prompt(50), np.int32)))
    assert stored is not None
    stored.value.cost_s = 0.5
    clock = [time.perf_counter()]
    server.disk._now_s = lambda: clock[0]
    server.disk.patience_s = 1.0
    _, hangs = hang(monkeypatch, "read")
    client = add(server.scheduler, [*prompt(50), 900], max_tokens=2)
    while not client.job.loading:
        server.scheduler.step()
    before = server.spill.pace.bytes_per_s
    clock[0] += 2.0
    server.run()
    assert server.spill.pace.bytes_per_s < before / 1000
    hangs.set()
    server.settle()
    server.close()


def test_files_that_failed_long_ago_and_are_gone_are_forgotten() -> None:
    pauses = Pauses()
    for i in range(1000):
        pauses.fail(i * 2 * MOST_COOL_S, f"file {i}")
        pauses.succeed(())  # other files can be had
        assert pauses.of([f"file {i}"]) > i * 2 * MOST_COOL_S
    assert len(pauses._files) <= 2
