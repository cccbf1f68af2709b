"""The receipt of the kernels' last run on a GPU says which of them have changed since."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from flashnext.contract.check import subjects
from support.kernel_receipt import changed_kernels, kernel_hashes, read_receipt, sentence

from metal.host.generate import ROOT


def test_the_receipt_says_which_kernels_have_changed_since(capsys: pytest.CaptureFixture[str]) -> None:
    receipt = read_receipt()
    with capsys.disabled():
        print(f"\n{sentence(receipt, kernel_hashes())}")
    assert receipt["kernels"].keys() <= {s.name for s in subjects()} | set(
        changed_kernels(receipt, kernel_hashes())
    )
    for name, kernel in receipt["kernels"].items():
        assert kernel["red"] == {} and kernel["unseen"] == [], name
        assert kernel["faults"] >= 6, name
    assert all(sweep["worst"] <= sweep["bound"] for sweep in receipt["rotary"])
    for tool, found in receipt["sanitizers"].items():
        assert found["errors"] == 0 and found["kernels"] == len(receipt["kernels"]), tool


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "metal", tmp_path / "metal", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_a_change_makes_the_receipt_stale_for_the_kernels_that_see_it(copied: Path) -> None:
    hashes = kernel_hashes(copied)
    assert hashes == kernel_hashes() and hashes.keys() == {s.name for s in subjects()}
    receipt = {
        "device": "a GPU",
        "kernels": {name: {"source": source, "faults": 2} for name, source in hashes.items()},
    }
    n = len(hashes)
    of_these = f"the receipt of a GPU: {n} kernels, {2 * n} planted faults seen, of these sources"
    assert sentence(receipt, hashes) == of_these
    rows, draw = copied / "metal/rows.metal", copied / "metal/lib/candidates.h"
    rows.write_text(rows.read_text() + "\n")
    in_the_file = [f"{name}_{t}" for name in ("copy_rows", "embed", "embed_media") for t in ("bf16", "f32")]
    assert changed_kernels(receipt, kernel_hashes(copied)) == sorted(in_the_file)
    draw.write_text(draw.read_text() + "\n")
    now = kernel_hashes(copied)
    assert "draw_pick" in changed_kernels(receipt, now)
    assert "matmul_bf16" not in changed_kernels(receipt, now)
    assert "; STALE for" in sentence(receipt, now)
    params = copied / "metal/params.h"
    params.write_text(params.read_text() + "\n")
    assert changed_kernels(receipt, kernel_hashes(copied)) == sorted(hashes)
