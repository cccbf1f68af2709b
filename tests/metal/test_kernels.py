"""The Metal kernels as Apple's compiler would see them, and the table that a Metal device is handed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flashnext import _core as core
from flashnext.contract.check import subjects

from metal.host.generate import ROOT, flatten, generate, preprocess, read
from metal.host.shim import check, checker

FILES = sorted(ROOT.glob("metal/*.metal"))
needs_clang = pytest.mark.skipif(
    checker() is None, reason="needs clang 18 or newer (.ci/apt.txt) for its address spaces"
)
each_file = pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)


def entries(path: Path) -> dict[str, str]:
    """Kernel -> the expression of its most threads."""
    return {
        name: threads
        for name, threads in re.findall(r'MSL_ENTRY\(\w+, "(\w+)", .*\((\w+)\), "metal/', generate(path))
    }


@needs_clang
@each_file
def test_pointers_keep_to_their_address_space(path: Path) -> None:
    assert check(path) == ""


@each_file
def test_a_file_becomes_one_text_for_apples_compiler(path: Path) -> None:
    text = flatten(path)
    assert "#include" not in text.split("contract(off)")[1]
    assert text.count("[[kernel") >= len(entries(path)) > 0


@each_file
def test_a_file_opens_with_what_it_computes_and_how_it_is_launched(path: Path) -> None:
    head = path.read_text().split("#include")[0]
    assert all(line.startswith("//") for line in head.splitlines() if line)
    names = {re.sub(r"_(bf16|f32)$", "", name) for name in entries(path)}
    assert {name for name in names if name not in head} == set()
    for word in ("rid \\(", "hread", "NaN|hole numbers"):
        assert re.search(word, head), word


def test_the_device_is_handed_every_kernel_and_no_other() -> None:
    found = {name for path in FILES for name in entries(path)}
    assert found == set(core.testing.metal_kernels()) == {s.name for s in subjects()}


def test_kernels_run_with_the_threads_that_they_state() -> None:
    constants = dict(
        re.findall(r"FLASHNEXT_CONSTANT int (\w+) = (\d+);", (ROOT / "metal/launch.h").read_text())
    )
    table = core.testing.metal_kernels()
    for path in FILES:
        for name, threads in entries(path).items():
            assert table[name] == int(constants[threads]), name


def test_a_kernels_argument_struct_stands_behind_its_slots() -> None:
    table = re.findall(
        r'add\("(\w+)"( \+ type)?, (\d+), ', (ROOT / "cpp/kernels/metal/table.cpp").read_text()
    )
    types = ("_bf16", "_f32")
    stated = {name + end: int(n) for name, typed, n in table for end in (types if typed else ("",))}
    slots = {}
    for path in FILES:
        for name, _, kernel in read(preprocess(path), path.name).entries:
            bound = [b for b in kernel.bindings if b.startswith("buffer_")]
            assert bound == [f"buffer_<{i}>" for i in range(len(bound))], name
            head = re.search(rf"void {kernel.name}\((.*?)\) {{", path.read_text(), re.S)
            assert head, name
            slots[name] = len(bound) - ("constant" in head[1])
    assert slots == stated


def test_the_build_says_how_to_get_what_it_lacks() -> None:
    if "metal-host" in core.device_kinds():
        for path in ("reverse", "reverse, unchecked"):
            assert core.open_device("metal-host", path=path).name == f"metal-host ({path})"
        with pytest.raises(ValueError, match="expected forward, reverse or random"):
            core.open_device("metal-host", path="sideways")
    else:
        with pytest.raises(ValueError, match="FLASHNEXT_METAL_HOST=ON"):
            core.open_device("metal-host")
    if "metal" not in core.device_kinds():
        with pytest.raises(ValueError, match="a Mac with Apple Silicon and macOS 15 or later has"):
            core.open_device("metal")
