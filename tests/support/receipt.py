"""The receipt of the last full run: what was run, on which sources, and which of them have changed since."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECEIPT = ROOT / "tests" / "exactness" / "receipt.json"
# What decides results: kernels, rounds, and who says what a round is over.
SOURCES = ("cpp/**/*.cpp", "cpp/**/*.h", "metal/params.h", "python/flashnext/engine/*.py")
# The full run is one of the CPU: what other devices are made of decides nothing in it.
OTHER_DEVICES = ("cpp/device/cuda/*", "cpp/device/metal/*", "cpp/device/metal_host/*", "cpp/kernels/metal/*")


def source_hashes(root: Path = ROOT) -> dict[str, str]:
    """Path -> hash of the content, of all sources that decide results."""

    def found(patterns: tuple[str, ...]) -> set[Path]:
        return {path for pattern in patterns for path in root.glob(pattern)}

    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted(found(SOURCES) - found(OTHER_DEVICES))
    }


def changed_since(receipt: dict[str, Any], hashes: dict[str, str]) -> list[str]:
    """Sources that are other than those of a receipt, that came or that went."""
    then: dict[str, str] = receipt["sources"]
    return sorted(path for path in then.keys() | hashes.keys() if then.get(path) != hashes.get(path))


def sentence(receipt: dict[str, Any], hashes: dict[str, str]) -> str:
    """What a receipt says of sources, in one sentence."""
    parts = ", ".join(
        f"{name}: {part['passed']} passed, {part['failed']} failed in {part['runs']} of "
        f"{part['runs'] + part['left']} runs"
        for name, part in receipt["parts"].items()
    )
    changed = changed_since(receipt, hashes)
    if not changed:
        return f"the receipt of the full run is of these sources ({parts})"
    return (
        f"the receipt of the full run ({parts}) is older than {len(changed)} sources; run .ci/full: "
        + ", ".join(changed)
    )


def read_receipt(path: Path = RECEIPT) -> dict[str, Any]:
    """The receipt."""
    receipt: dict[str, Any] = json.loads(path.read_text())
    return receipt
