"""The receipt of the last full run says of which sources it is; an older one is named, with what changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.receipt import RECEIPTS, ROOT, changed_since, read_receipt, sentence, source_hashes


@pytest.mark.parametrize("device", RECEIPTS)
def test_a_receipt_says_whether_it_is_of_these_sources(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt = read_receipt(device)
    with capsys.disabled():
        print(f"\n{sentence(receipt, source_hashes(device=device), device)}")
    assert receipt["sources"] and all(part["passed"] >= 0 for part in receipt["parts"].values())
    assert sum(part["failed"] for part in receipt["parts"].values()) == 0


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for folder in ("cpp", "metal", "python/flashnext/engine"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_every_change_of_a_source_is_named(copied: Path) -> None:
    hashes = source_hashes(copied)
    assert hashes == source_hashes()
    receipt = {"sources": hashes, "parts": {"matrix": {"passed": 7, "failed": 0, "runs": 1, "left": 2}}}
    assert sentence(receipt, hashes) == (
        "the receipt of the full run on cpu is of these sources (matrix: 7 passed, 0 failed in 1 of 3 runs)"
    )
    driver, gone = copied / "cpp/rounds/driver.cpp", copied / "python/flashnext/engine/policy.py"
    driver.write_bytes(driver.read_bytes() + b"\n")
    gone.unlink()
    (copied / "cpp/device/cpu/new.cpp").write_text("//\n")
    (copied / "cpp/device/metal_host/new.cpp").write_text("//\n")  # of another device
    now = source_hashes(copied)
    changed = ["cpp/device/cpu/new.cpp", "cpp/rounds/driver.cpp", "python/flashnext/engine/policy.py"]
    assert changed_since(receipt, now) == changed
    assert sentence(receipt, now).endswith(
        f"is STALE, older than 3 sources; run .ci/full --device cpu: {', '.join(changed)}"
    )
