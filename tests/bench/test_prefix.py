"""The prefix benchmark plays chats, adds up what was cached, and asks from disk after a restart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import prefix
import pytest


def test_tables_add_up_turns_and_show_differing_replies() -> None:
    turn = {"prompt": 1000, "history": 0, "cached": 0, "first_ms": 9.0, "cold_ms": 8.0, "same": True}
    later = {**turn, "prompt": 1200, "history": 1100, "cached": 1090, "first_ms": 2.0, "cold_ms": 10.0}
    lines = list(prefix.chat_lines({"a": [turn, later], "b": [turn, {**later, "same": False}]}))
    assert lines[2:] == [
        "| a | 2 | 2,200 | 1,100 | 1,090 | 2.0 | 10.0 | all |",
        "| b | 2 | 2,200 | 1,100 | 1,090 | 2.0 | 10.0 | NO |",
    ]


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        prefix.parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for option in vars(prefix.parse([])):
        if option not in ("checkpoint", "quick"):
            assert re.search(rf"--{option.replace('_', '-')} [A-Z][^-]*?\(default", text), option


def test_the_readme_of_the_benchmarks_names_every_file() -> None:
    folder = Path(prefix.__file__).parent
    text = (folder / "README.md").read_text(encoding="utf-8")
    there = {path.name for path in folder.iterdir() if path.suffix in (".py", ".c")}
    assert there == set(re.findall(r"`(\w+\.(?:py|c))`", text))


def test_prefix_runs_from_end_to_end(tmp_path: Path) -> None:
    command = [sys.executable, prefix.__file__, "--quick", "--patience", "1e9"]
    command += ["--json", str(tmp_path / "prefix.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "prefix.json").read_text())
    for turns in found["chats"].values():
        assert all(turn["same"] for turn in turns)
        assert all(turn["history"] - 8 < turn["cached"] < turn["prompt"] for turn in turns[1:])
    assert found["shared"]["second"]["cached"] > found["shared"]["changed"]["cached"] > 200
    assert found["spill"]["asked"][2]["cached"] > 200, "not from disk"
    assert all(asked["same"] for asked in found["spill"]["asked"])
