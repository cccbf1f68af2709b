"""The idle benchmark pauses, asks, and tells first tokens after a pause from those after none."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import idle
import pytest
from flashnext.engine.engine import Engine
from flashnext.engine.request import Request
from flashnext.engine.sampling import Sampling


def test_table_compares_each_pause_with_none() -> None:
    found = {"lone": {"0": [0.010, 0.030, 0.020], "2": [0.040, 0.050, 0.070]}}
    assert list(idle.table_lines(found))[2:] == [
        "| lone | 0 | 20 (10-30) | 1.00 |",
        "| lone | 2 | 50 (40-70) | 2.50 |",
    ]


def test_others_go_on_until_they_are_told_to_end() -> None:
    with Engine(parallel=2) as engine:
        n_before = threading.active_count()
        sampling = Sampling(temperature=0, max_tokens=3)
        with idle.Others(engine, [[5, 6, 7], [8, 9]], sampling):
            for n_own in range(1, 1000):
                request = engine.submit([1], sampling=sampling)
                request.result()
                if request.id - n_own >= 6:  # requests are numbered in the order they come
                    break
            else:
                pytest.fail("the others did not go on")
            assert threading.active_count() == n_before + 2
        assert threading.active_count() == n_before


def test_quick_run_is_one_repeat_of_the_shortest_pause() -> None:
    options = idle.parse(["--quick"])
    assert (options.pauses, options.repeats) == ([2], 1)


def test_idle_runs_from_end_to_end(tmp_path: Path) -> None:
    command = [
        *(sys.executable, idle.__file__, "--pauses", "0.1", "--repeats", "2", "--others", "2"),
        *("--threads", "1", "--json", str(tmp_path / "idle.json")),
    ]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    found = json.loads((tmp_path / "idle.json").read_text())["first_token_s"]
    assert {part: list(times) for part, times in found.items()} == {
        "lone": ["0", "0.1"],
        "shared": ["0", "0.1"],
    }
    assert all(len(v) == 2 and min(v) > 0 for times in found.values() for v in times.values())
    assert "| shared | 0.1 |" in finished.stdout


@pytest.mark.parametrize("n_drawn", [1, 4])
def test_first_token_is_timed_and_the_reply_read_to_its_end(n_drawn: int) -> None:
    with Engine(parallel=1) as engine:
        sampling = Sampling(temperature=0, max_tokens=n_drawn)
        requests: list[Request] = []

        def submit() -> Request:
            requests.append(engine.submit([5, 6, 7], sampling=sampling))
            return requests[0]

        assert idle.first_token_s(submit) > 0
        assert requests[0].result().finish_reason in ("length", "stop")
