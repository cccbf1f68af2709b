"""The receipt of the last full run: what was run, on which sources, and which of them have changed since."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECEIPTS = {
    "cpu": ROOT / "tests" / "exactness" / "receipt.json",
    "metal-host": ROOT / "tests" / "metal" / "receipt.json",
}
# What decides results: kernels, rounds, and who says what a round is over.
SOURCES = ("cpp/**/*.cpp", "cpp/**/*.h", "metal/params.h", "python/flashnext/engine/*.py")
# What other devices are made of decides nothing in a device's run.
OTHERS: dict[str, tuple[str, ...]] = {
    "cpu": (
        *("cpp/device/cuda/*", "cpp/device/metal/*", "cpp/device/metal_host/*", "cpp/kernels/metal/*"),
        "cpp/bindings/testing_cuda.cpp",
    ),
    "metal-host": (
        *("cpp/device/cpu/*", "cpp/device/cuda/*", "cpp/device/metal/*", "cpp/kernels/cpu/*"),
        *("cpp/bindings/testing_cuda.cpp", "cpp/kernels/metal/cuda.*", "metal/host/cuda.*"),
        "metal/host/include/msl_cuda.h",
    ),
}
KERNELS = {"cpu": (), "metal-host": ("metal/*.metal", "metal/*.h", "metal/lib/*.h", "metal/host/**/*")}


def source_hashes(root: Path = ROOT, device: str = "cpu") -> dict[str, str]:
    """Path -> hash of the content, of all sources that decide results on a device."""

    def found(patterns: tuple[str, ...]) -> set[Path]:
        return {path for pattern in patterns for path in root.glob(pattern) if _is_source(path)}

    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted(found((*SOURCES, *KERNELS[device])) - found(OTHERS[device]))
    }


def _is_source(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"


def changed_since(receipt: dict[str, Any], hashes: dict[str, str]) -> list[str]:
    """Sources that are other than those of a receipt, that came or that went."""
    then: dict[str, str] = receipt["sources"]
    return sorted(path for path in then.keys() | hashes.keys() if then.get(path) != hashes.get(path))


def sentence(receipt: dict[str, Any], hashes: dict[str, str], device: str = "cpu") -> str:
    """What a receipt of a device says of sources, in one sentence."""
    parts = ", ".join(
        f"{name}: {part['passed']} passed, {part['failed']} failed in {part['runs']} of "
        f"{part['runs'] + part['left']} runs"
        for name, part in receipt["parts"].items()
    )
    changed = changed_since(receipt, hashes)
    if not changed:
        return f"the receipt of the full run on {device} is of these sources ({parts})"
    return (
        f"the receipt of the full run on {device} ({parts}) is STALE, older than {len(changed)} sources; "
        f"run .ci/full --device {device}: " + ", ".join(changed)
    )


def read_receipt(device: str = "cpu") -> dict[str, Any]:
    """The receipt of a device."""
    receipt: dict[str, Any] = json.loads(RECEIPTS[device].read_text())
    return receipt
