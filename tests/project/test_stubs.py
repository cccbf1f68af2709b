"""The committed stubs of the core are those that nanobind writes for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python" / "flashnext"
COMMAND = ["-m", "nanobind.stubgen", "-m", "flashnext._core", "-r", "-q", "-O"]


def stubs(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.pyi")}


def test_the_stubs_are_what_nanobind_writes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, *COMMAND, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written, committed = stubs(tmp_path), stubs(PACKAGE)
    remake = f"remake them: PYTHONPATH=python python {' '.join(COMMAND)} python/flashnext"
    assert written.keys() == committed.keys(), remake
    for name, text in written.items():
        assert committed[name] == text, f"{name} is not what the core has; {remake}"
