"""The wheel of dist/ holds the package, the bundled checkpoint and nothing else, and is small."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
MAX_BYTES = 20_000_000


@pytest.fixture(scope="module")
def wheel() -> Path:
    wheels = sorted((ROOT / "dist").glob("flashnext-*.whl"), key=lambda p: p.stat().st_mtime)
    if not wheels:
        pytest.skip("needs a wheel: python -m build")
    return wheels[-1]


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[PurePosixPath]:
    with zipfile.ZipFile(wheel) as archive:
        return [PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")]


def test_the_wheel_is_at_most_20_mb(wheel: Path) -> None:
    assert wheel.stat().st_size <= MAX_BYTES


def test_the_wheel_holds_every_file_of_the_package(names: list[PurePosixPath]) -> None:
    package = ROOT / "python"
    ours = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in {".so", ".pyc"}
    }
    others = {"py.typed", "data/tiny-6bit/config.json", "server/static/index.html", "server/static/app.js"}
    assert {f"flashnext/{name}" for name in others} <= ours
    assert ours - {str(name) for name in names} == set()


def test_the_wheel_holds_one_core_and_its_licence(names: list[PurePosixPath]) -> None:
    cores = [name for name in names if name.suffix in {".so", ".dylib", ".pyd"}]
    assert len(cores) == 1
    assert cores[0].parent.name == "flashnext" and cores[0].name.startswith("_core")
    assert [name for name in names if name.name == "LICENSE"] != []


def test_the_wheel_holds_nothing_but_the_package(names: list[PurePosixPath]) -> None:
    top = {name.parts[0] for name in names}
    assert {part for part in top if not part.endswith(".dist-info")} == {"flashnext"}
    foreign = {"tests", "bench", "docs", "metal", "cpp", "__pycache__"}
    assert [name for name in names if foreign & set(name.parts)] == []
