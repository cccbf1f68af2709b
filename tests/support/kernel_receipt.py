"""Receipts of runs on a GPU, kernel by kernel: of which sources they are, and which have changed since.

A kernel's source is its file of `metal/` with all that the file includes.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from metal.host.generate import ROOT, preprocess, read

RECEIPT = ROOT / "docs" / "receipts" / "cuda.json"
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def sources_of(path: Path, root: Path = ROOT) -> list[Path]:
    """A file of `metal/` and all files that it includes, by whatever way."""
    found: dict[Path, None] = {}
    left = [path]
    while left:
        file = left.pop()
        if file not in found:
            found[file] = None
            left += [root / name for name in _INCLUDE.findall(file.read_text(encoding="utf-8"))]
    return sorted(found)


def kernel_hashes(root: Path = ROOT) -> dict[str, str]:
    """Kernel -> hash of its sources."""
    hashes: dict[str, str] = {}
    for path in sorted(root.glob("metal/*.metal")):
        whole = hashlib.sha256()
        for source in sources_of(path, root):
            whole.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
        for name, _, _ in read(preprocess(path, root=root), path.name).entries:
            hashes[name] = whole.hexdigest()[:16]
    return hashes


def changed_kernels(receipt: dict[str, Any], hashes: dict[str, str]) -> list[str]:
    """Kernels that are other than those of a receipt, that came or that went."""
    then: dict[str, str] = {name: entry["source"] for name, entry in receipt["kernels"].items()}
    return sorted(name for name in then.keys() | hashes.keys() if then.get(name) != hashes.get(name))


def sentence(receipt: dict[str, Any], hashes: dict[str, str]) -> str:
    """What a receipt says of these sources, in one sentence."""
    kernels = receipt["kernels"]
    text = (
        f"the receipt of {receipt['device']}: {len(kernels)} kernels, "
        f"{sum(k['faults'] for k in kernels.values()):,} planted faults seen"
    )
    changed = changed_kernels(receipt, hashes)
    if not changed:
        return f"{text}, of these sources"
    return f"{text}; STALE for {len(changed)} kernels, run .ci/cuda on a machine with a GPU: " + ", ".join(
        changed
    )


def read_receipt() -> dict[str, Any]:
    """The committed receipt."""
    receipt: dict[str, Any] = json.loads(RECEIPT.read_text())
    return receipt
