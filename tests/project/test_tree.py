"""The working tree keeps to its plan: folders, size, lengths, and no traces of a machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"metal", "cpp", "python", "tests", "bench", "docs"}
MAX_BYTES = 48 * 2**20
MAX_LINES = 700
CODE = {".py", ".pyi", ".h", ".cpp", ".c", ".mm", ".metal", ".md", ".txt", ".toml", ".yml", ""}
CODE |= {".css", ".html", ".js"}

# Written in parts, so that this file does not hold what it looks for.
MACHINE = re.compile(
    "|".join(
        first + second
        for first, second in [
            ("/wo", "rk/"), ("/ho", r"me/\w"), ("/Us", r"ers/\w"), ("/ro", "ot/"), ("/op", "t/"),
            ("/tm", r"p/\w"), ("py", r"pi\.org"), ("python", "hosted"), ("deb.de", "bian"), ("npm", "js"),
        ]
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git and a checkout")
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_the_top_level_has_no_further_folders(tracked: list[Path]) -> None:
    tops = {path.relative_to(ROOT).parts[0] for path in tracked if path.parent != ROOT}
    assert {top for top in tops if not top.startswith(".")} == FOLDERS


def test_the_tree_is_under_48_mb(tracked: list[Path]) -> None:
    assert sum(path.stat().st_size for path in tracked) < MAX_BYTES


def test_no_file_is_long(tracked: list[Path]) -> None:
    lengths = {p: p.read_bytes().count(b"\n") for p in tracked if p.suffix in CODE and p.name != "LICENSE"}
    assert {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > MAX_LINES} == {}


def test_no_file_names_a_machines_path_or_a_registry(tracked: list[Path]) -> None:
    found = []
    for path in tracked:
        if path.suffix in {".safetensors", ".png"}:
            continue
        for i, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if hit := MACHINE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{i}: {hit[0]}")
    assert found == []


@pytest.mark.parametrize("line", ["/wo" + "rk/main/x.py", "/ho" + "me/someone/x", 'open("/tm' + 'p/x")'])
def test_a_machines_path_would_be_found(line: str) -> None:
    assert MACHINE.search(line)
