"""The engine on the Metal device over the simulated Metal: the kernel contract, golden replies, cells of the
exactness matrix, and what happens when the GPU fails."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.contract.check import Subject, run_faults, run_gate, subjects
from flashnext.contract.gates import GATES
from flashnext.contract.launch import DeviceRunner
from flashnext.errors import DeviceError
from support import sim_metal
from support.cells import Cell
from support.metal_engine import CASES, desk, reply_of, small_checkpoint
from support.played import Reference, play
from support.sim_metal import METAL, needs_simulated_metal, open_metal
from support.states import Desk

pytestmark = needs_simulated_metal

CHECKED = ("copy_rows_f32", "copy_drafts", "router_topk", "verdict", "rope", "keep_streams_bf16")
"""Kernels whose contract runs with every access looked at: bound slots, addresses, threadgroup memory."""
CELLS = (
    Cell("random", "2", "both", "shared", "preempted", "hot"),
    Cell("random", "alone", "head", "lone", "undisturbed", "seeded"),
    Cell("random", "staggered", "copies", "handed over", "undisturbed", "penalties"),
    Cell("random", "2", "off", "shared", "preempted", "penalties", "from bytes"),
)


@pytest.fixture(autouse=True)
def _nothing_is_misused() -> Iterator[None]:
    with sim_metal.sound():
        yield


@cache
def runner(order: str) -> DeviceRunner:
    return DeviceRunner(open_metal(order))


def order_of(subject: Subject) -> str:
    return "random" if subject.name in CHECKED else "random, unchecked"


@pytest.mark.parametrize("subject", subjects(), ids=lambda s: s.name)
def test_the_kernel_contract_is_green(subject: Subject) -> None:
    # What a kernel computes is shown on metal-host; how it is bound and launched, at the edges of shapes.
    for gate in GATES if subject.name in CHECKED else ("shapes",):
        assert run_gate(subject, gate, runner(order_of(subject))).red == {}, gate


@pytest.mark.parametrize("subject", [s for s in subjects() if s.name in CHECKED], ids=lambda s: s.name)
def test_planted_faults_turn_their_gate_red(subject: Subject) -> None:
    report = run_faults(subject, runner("random, unchecked"))
    assert report.unseen == []
    assert report.n_faults >= 6


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case["id"])
def test_float32_replies_equal_those_of_transformers(case: dict[str, Any]) -> None:
    sim_metal.run_in("random, unchecked")
    assert reply_of(case, "", METAL) == case["output_ids"]


def unchecked_desk(checkpoint: Path, sequences: int) -> Desk:
    sim_metal.run_in("random, unchecked", 2)
    return desk(checkpoint, "", sequences, METAL)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("metal"))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return unchecked_desk(checkpoint, 5).reference


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_replies_are_those_of_the_plain_reference(cell: Cell, reference: Reference) -> None:
    play(cell, reference)


GREEDY = core.Sampling(temperature=0)
PROMPT = np.arange(20, 60, dtype=np.int32)


def test_a_failed_command_buffer_fails_its_round_and_no_other(checkpoint: Path) -> None:
    loaded = unchecked_desk(checkpoint, 3).reference.loaded
    run = core.Runner(loaded.model)
    failing, other = (core.Session(loaded.model, loaded.pool) for _ in range(2))
    sim_metal.fail(1, 3, "Caused GPU Address Fault Error")
    with pytest.raises(DeviceError, match="metal: Caused GPU Address Fault Error"):
        run.prompt(failing, PROMPT, True, GREEDY)
    failing.close()
    first = run.prompt(other, PROMPT, True, GREEDY)[0].token
    again = core.Session(loaded.model, loaded.pool)
    assert run.prompt(again, PROMPT, True, GREEDY)[0].token == first


def test_a_lost_gpu_fails_all_that_comes(checkpoint: Path) -> None:
    loaded = unchecked_desk(checkpoint, 3).reference.loaded
    run = core.Runner(loaded.model)
    sim_metal.fail(1, 4, "Ignored (for causing prior/excessive GPU errors)")
    for _ in range(2):
        session = core.Session(loaded.model, loaded.pool)
        with pytest.raises(DeviceError, match="the GPU takes no more work of this process"):
            run.prompt(session, PROMPT, True, GREEDY)
        session.close()


def test_memory_pressure_reaches_python() -> None:
    device = open_metal()
    footprint, pressure = device.memory
    assert footprint > 0 and pressure == 0
    sim_metal.press(4)
    assert device.memory[1] == 2
    sim_metal.press(1)
    assert device.memory[1] == 0


def test_all_objects_are_freed_with_the_device(checkpoint: Path) -> None:
    runner.cache_clear()
    gc.collect()
    before = sim_metal.live()
    # In a function, so that nothing of it is left.
    _read_a_prompt(checkpoint)
    gc.collect()
    deadline = time.monotonic() + 60  # the queue's thread lets go of its last command buffer by itself
    while lasting(sim_metal.live()) != lasting(before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lasting(sim_metal.live()) == lasting(before)


def lasting(live: dict[str, int]) -> dict[str, int]:
    """Without what comes and goes while other devices are idle."""
    kinds = ("Buffer", "Device", "Event", "Fence", "Function", "Library", "Pipeline", "Queue", "ResidencySet")
    return {name: n for name, n in live.items() if name.removeprefix("Sim") in kinds}


def _read_a_prompt(checkpoint: Path) -> None:
    loaded = unchecked_desk(checkpoint, 3).reference.loaded
    session = core.Session(loaded.model, loaded.pool)
    core.Runner(loaded.model).prompt(session, PROMPT, True, GREEDY)
    session.close()


def test_the_device_says_what_it_is() -> None:
    device = open_metal()
    assert METAL in core.device_kinds()
    assert device.name == "metal (Simulated)"
    assert device.identity == "metal, Simulated, macOS Version 15.0 (Build 24A335)"
    assert device.limits.working_set_bytes == 16 << 30
    assert core.open_device("auto").name.startswith("cpu"), "a simulated GPU is nobody's choice"
    with pytest.raises(ValueError, match="metal: the device has no path 'reverse'"):
        core.open_device(METAL, path="reverse")
