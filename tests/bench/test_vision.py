"""The benchmark of pictures counts the tower's operations, fills its tables, and runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vision


def test_operations_are_those_of_every_product_and_of_attention() -> None:
    sizes = {
        "hidden_size": 8, "intermediate_size": 24, "spatial_merge_size": 2, "in_channels": 3, "depth": 3,
        "temporal_patch_size": 2, "patch_size": 4, "out_hidden_size": 10,
    }  # fmt: skip
    n, tokens = 2 * 6 * 4, 2 * 6  # of two slices of 24 patches
    embed = n * 96 * 8
    products = n * (8 * 24 + 8 * 8 + 8 * 24 + 24 * 8)  # qkv, proj, fc1, fc2
    attention = 2 * (2 * 24 * 24 * 8)  # scores and sums, in each slice
    merger = tokens * (32 * 32 + 32 * 10)
    assert vision.flops(sizes, [(2, 6, 4)]) == 2 * (embed + 3 * (products + attention) + merger)
    assert vision.flops(sizes, [(2, 6, 4)] * 3) == 3 * vision.flops(sizes, [(2, 6, 4)])


def test_tables_show_rates_and_shares() -> None:
    passed = [vision.Passed(4, 100, 20.0, 4e8)]
    asked = [vision.Asked(4, 127, 81.9, 55.8, 17.8, (4, 0, 0))]
    lines = list(vision.lines(passed, asked, peak=4e10))
    assert lines[2] == "| 4 | 100 | 20.0 | 200.0 | 20.0 | 50 % |"
    assert lines[-1] == "| 4 | 127 | 81.9 | 55.8 | 17.8 | 4, 0, 0 |"


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vision.main(["--quick", "--side", "64", "--json", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())
    assert [entry["pictures"] for entry in found["prompts"]] == list(vision.COUNTS)
    for entry in found["prompts"]:  # the tower sees each once, and none whose rows are resumed
        assert entry["seen"][0] == entry["pictures"] and entry["seen"][2] == 0
    assert "| pictures a pass |" in capsys.readouterr().out
