"""`flashnext bench`: one JSON to share, whose replies were compared with those that prompts get alone."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from flashnext import commands
from flashnext.commands import benching
from flashnext.engine.engine import Engine
from flashnext.engine.sampling import Sampling
from flashnext.version import VERSION

SMALL = ["bench", "--depths", "3,70", "--sequences", "1,3", "--tokens", "4", "--repeats", "2"]


@pytest.fixture(scope="module")
def printed() -> Iterator[list[str]]:
    """What a run prints, as lines."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert commands.main([*SMALL, "--drafts", "2"]) == 0
    yield out.getvalue().splitlines()


def test_one_json_has_the_machine_the_model_and_each_run(printed: list[str]) -> None:
    report: dict[str, Any] = json.loads(printed[-1])
    assert report["flashnext"] == VERSION
    assert report["machine"]["processors"] == os.cpu_count() and report["machine"]["memory_gib"] > 0
    assert (report["model"], report["bits"], report["dtype"]) == ("tiny-6bit", [6], "bfloat16")
    runs = {(run["depth"], run["sequences"]): run for run in report["runs"]}
    assert list(runs) == [(3, 1), (3, 3), (70, 1), (70, 3)]
    for run in runs.values():
        assert run["tokens"] == 4
        assert run["prompt_tok_s"] > 0 and run["first_token_ms"] > 0
    assert report["exact"] == {"replies": 6, "same_alone_without_drafts": True}
    assert os.getcwd() not in printed[-1]


def test_a_table_says_the_same_to_people(printed: list[str]) -> None:
    runs = json.loads(printed[-1])["runs"]
    rows = [line.split() for line in printed if line[:7].strip().isdigit()]
    assert [(int(row[0]), int(row[1])) for row in rows] == [(run["depth"], run["sequences"]) for run in runs]
    assert "6 replies are, bit for bit," in "\n".join(printed)


def test_a_reply_that_differs_from_the_one_alone_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(tokens: int) -> Sampling:
        calls.append(tokens)
        return Sampling(temperature=1, seed=1 if len(calls) <= 2 else 2, max_tokens=tokens, ignore_eos=True)

    calls: list[int] = []
    monkeypatch.setattr(benching, "_sampling", other)
    one = ["bench", "--depths", "3", "--sequences", "2", "--tokens", "8", "--repeats", "1", "--json"]
    assert commands.main(one) == 1  # those alone are drawn with another seed
    out, err = capsys.readouterr()
    assert out == "" and "replies differ from those that the same prompts get alone" in err


def test_a_reply_that_differs_from_the_one_before_fails_the_run() -> None:
    with Engine(parallel=1, prefix_cache_gib=0) as engine:
        checked = {(3, 0): "0" * 16}
        with pytest.raises(Exception, match="does not compute the same twice"):
            benching.measure(engine, 3, 1, 2, checked)


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (["--depths", "0"], 2, "expected a whole number from 1"),
        (["--depths", "1,x"], 2, "expected a whole number from 1"),
        (["--sequences", "65"], 2, "expected a whole number from 1 to 64"),
        (["--depths", "8000", "--sequences", "2"], 1, "give smaller --depths, --tokens or --sequences"),
    ],
)
def test_what_cannot_be_measured_is_told(
    arguments: list[str], status: int, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = commands.main(["bench", *arguments])
    except SystemExit as end:
        found = int(end.code or 0)
    assert found == status
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("text", [f"{1:018}999", "1" * 5000, "0", "-1", "x", ""])
def test_a_number_that_is_out_of_bounds_is_refused_however_it_is_written(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number from 1 to 1000"):
        benching._number(1, 1000)(text)


def test_a_mac_tells_the_name_of_its_chip() -> None:
    def read(name: bytes, found: Any, size: Any, *rest: Any) -> int:
        if name != b"machdep.cpu.brand_string":
            return -1
        found.value = b"Apple M3 Ultra"
        return 0

    assert benching.mac_processor(read) == "Apple M3 Ultra"
    assert benching.mac_processor(lambda *given: -1) is None
