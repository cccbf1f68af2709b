"""The core says which sources it was built from: a state of one build is no state of another."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from flashnext.engine.engine import BUNDLED
from flashnext.engine.load import load_model
from support.receipt import ROOT


def hash_of_sources(root: Path) -> str:
    """What cpp/base/build_id.cmake computes."""
    patterns = (
        "cpp/**/*.h",
        "cpp/**/*.cpp",
        "cpp/**/*.mm",
        "metal/**/*.h",
        "metal/**/*.metal",
        "metal/host/*.cpp",
    )
    found = [path for pattern in (*patterns, "metal/host/generate.py") for path in root.glob(pattern)]
    names = sorted(path.relative_to(root).as_posix() for path in found)
    listing = ""
    for name in (*(name for name in names if not name.startswith("cpp/bindings/")), "CMakeLists.txt"):
        listing += f"{hashlib.sha256((root / name).read_bytes()).hexdigest()} {name}\n"
    return hashlib.sha256(listing.encode()).hexdigest()


@pytest.fixture(scope="module")
def identity() -> str:
    return load_model(BUNDLED, device="cpu", threads=1, context=128).model.identity


def test_the_core_is_built_from_these_sources(identity: str) -> None:
    built, rest = identity.splitlines()[0].removeprefix("build ").split(" ", 1)
    assert built == hash_of_sources(ROOT), "the core is older than its sources: build it again"
    assert "-O" in rest  # compiler, processor and flags


def test_the_identity_says_in_words_what_it_is_of(identity: str) -> None:
    lines = identity.splitlines()
    assert [line.split()[0] for line in lines] == ["build", "device", "bfloat16", "angles", "page", "block"]
    assert lines[1].startswith("device cpu ") and "prompt order as windows" in lines[1]


def test_one_byte_of_a_source_is_another_hash(tmp_path: Path) -> None:
    matter = ("cpp/kernels/cpu/delta.cpp", "metal/params.h", "metal/delta.metal", "CMakeLists.txt")
    none = ("cpp/bindings/core.cpp",)  # computes nothing
    for name in (*matter, *none):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    plain = hash_of_sources(tmp_path)
    for name in (*matter, *none):
        path = tmp_path / name
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        assert (hash_of_sources(tmp_path) != plain) == (name in matter), name
        path.write_bytes(content)
