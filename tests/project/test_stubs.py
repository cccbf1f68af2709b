"""The committed stubs of the core are those that nanobind writes for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STUBS = Path(__file__).parents[2] / "python" / "flashnext" / "_core"
COMMAND = ["-m", "nanobind.stubgen", "-m", "flashnext._core", "-r", "-q", "-O"]


def test_the_stubs_are_what_nanobind_writes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, *COMMAND, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_text() for path in tmp_path.rglob("*.pyi")}
    committed = {path.name: path.read_text() for path in STUBS.glob("*.pyi")}
    remake = f"remake them: python {' '.join(COMMAND)} python/flashnext/_core"
    assert written.keys() == committed.keys(), remake
    for name, text in written.items():
        assert committed[name] == text, f"{name} is not what the core has; {remake}"
