"""Code compiled for one instruction path lies in that path's namespace.

A weak symbol outside of it, such as a template of the library, exists once in the linked core, and the linker
chooses which path's code that is: the core could run AVX2 instructions on a processor that has none.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def outside(path: str, nm_output: str) -> list[str]:
    """Symbols of `nm -g --defined-only` that are not in namespace flashnext::cpu::`path`."""
    inside = re.compile(rf"_Z(?:Z|GV|TV|TI|TS|TT)*NK?9flashnext3cpu{len(path)}{path}")
    names = [line.split()[-1] for line in nm_output.splitlines() if re.match(r"[0-9a-f]+ \S \S+$", line)]
    return [name for name in names if not inside.match(name)]


def objects(path: str) -> list[Path]:
    """The objects of the newest build of `path`."""
    folders = sorted(ROOT.glob(f"build/*/CMakeFiles/flashnext_{path}.dir"), key=lambda p: p.stat().st_mtime)
    return sorted(folders[-1].rglob("*.o")) if folders else []


@pytest.mark.parametrize("path", ["portable", "avx2"])
def test_every_symbol_of_a_path_is_in_its_namespace(path: str) -> None:
    if platform.system() != "Linux" or shutil.which("nm") is None:
        pytest.skip("needs nm of the GNU binutils")
    if path == "avx2" and platform.machine() != "x86_64":
        pytest.skip("the path avx2 is built for x86-64 alone")
    files = objects(path)
    if not files:
        pytest.skip("needs the objects that `pip install .` leaves in build/")
    assert len(files) >= len(list(ROOT.glob("cpp/kernels/cpu/*.cpp"))) - 1
    listed = subprocess.run(
        ["nm", "-g", "--defined-only", *files], capture_output=True, text=True, check=True
    ).stdout
    assert f"flashnext3cpu{len(path)}{path}" in listed
    assert outside(path, listed) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("0000000000000000 T _ZN9flashnext3cpu4avx214matmul_kernelsEv", False),
        ("0000000000000000 W _ZN9flashnext3cpu4avx23dotIffEEfPKT_PKT0_j", False),
        ("0000000000000000 V _ZZN9flashnext3cpu4avx23expENS1_1FEE5table", False),
        ("0000000000000000 W _ZN9flashnext8to_floatENS_8bfloat16E", True),
        ("0000000000000000 W _ZN9flashnext3cpu8portable3dotIffEEfPKT_PKT0_j", True),
        ("0000000000000000 W _ZSt8bit_castIfjET_RKT0_", True),
        ("0000000000000000 u _ZNSt6vectorIiSaIiEE5emptyE", True),
        ("0000000000000000 T helper", True),
    ],
)
def test_a_symbol_outside_the_namespace_is_found(line: str, found: bool) -> None:
    assert bool(outside("avx2", f"\nmatmul.cpp.o:\n{line}\n")) is found
