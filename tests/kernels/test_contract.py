"""The kernel contract on every device: four gates, and faults that must turn them red."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.contract.__main__ import main
from flashnext.contract.check import Subject, planted, run_faults, run_gate, subjects
from flashnext.contract.gates import GATES, Bench
from flashnext.contract.launch import GUARD_BYTES, DeviceRunner, Launch, Result
from flashnext.contract.replies import TableFamily
from flashnext.contract.structs import STRUCTS
from flashnext.contract.sweep import CHUNK, POSITIONS, Table, rotary_sweep, tables
from flashnext.errors import DeviceError
from support.engine import DEVICES, METAL_HOST, PATHS, open_device


@cache
def runner(name: str, *, checked: bool = True) -> DeviceRunner:
    return DeviceRunner(open_device(name, checked=checked))


# Large kernels that compute no place from their values: without NaN it is known too that no access is astray.
NO_PLACE_FROM_VALUES = ("attention_prep", "delta_rule", "expert_down", "expert_gate_up", "matmul")

each_device = pytest.mark.parametrize("device", DEVICES)
each_kernel = pytest.mark.parametrize("subject", subjects(), ids=lambda s: s.name)


@each_device
def test_no_kernel_is_without_a_contract(device: str) -> None:
    assert sorted(core.testing.kernel_names(runner(device).device)) == sorted(s.name for s in subjects())


@each_kernel
def test_a_contract_says_what_the_design_asks_for(subject: Subject) -> None:
    family = subject.family
    for text in (family.envelope, family.nonfinite, family.order, family.launch_record):
        assert len(text) > 5
    assert len(family.shapes) >= 4


@each_device
@pytest.mark.parametrize("gate", GATES)
@each_kernel
def test_the_gate_is_green(subject: Subject, gate: str, device: str) -> None:
    checked = gate != "nonfinite" or not subject.name.startswith(NO_PLACE_FROM_VALUES)
    assert run_gate(subject, gate, runner(device, checked=checked)).red == {}


@each_device
@each_kernel
def test_planted_faults_turn_their_gate_red(subject: Subject, device: str) -> None:
    report = run_faults(subject, runner(device, checked=False))
    assert report.unseen == []
    assert report.n_faults >= 6


def test_faults_of_every_kind_are_planted() -> None:
    names = [fault.name for s in subjects() for _, fault in planted(s, runner(PATHS[0]))]
    for kind in ("wrong axis", "wrong position", "wrong scale", "dropped tail", "reordered sum"):
        assert sum(name.startswith(kind) for name in names) >= 4, kind


@pytest.mark.parametrize(
    "subject", [s for s in subjects() if isinstance(s.family, TableFamily)], ids=lambda s: s.name
)
def test_each_wrong_of_a_family_over_tables_is_planted(subject: Subject) -> None:
    assert isinstance(subject.family, TableFamily)
    names = {fault.name for _, fault in planted(subject, runner(PATHS[0]))}
    assert set(subject.family.wrongs.values()) - names == set()


@pytest.mark.parametrize("one_buffer", [False, True])
def test_an_address_comes_out_as_the_number_of_the_place_that_it_was_given_in(one_buffer: bool) -> None:
    subject = next(s for s in subjects() if s.name == "verdict")
    bench = Bench(subject.family, {"windows": "at rest", "n": 3}, subject.scalar, 1, runner(PATHS[0]))
    launch = bench.launch(bench.draw())
    windows = launch.slots["windows"].copy()
    windows[:-GUARD_BYTES].view(STRUCTS["Window"])["reply"] = 41, 43, 42
    given = replace(launch, slots={**launch.slots, "windows": windows})
    result = DeviceRunner(runner(PATHS[0]).device, one_buffer)(given)
    poison = 2**64 - 1
    assert result["replies"][:-GUARD_BYTES].view(np.uint64).tolist() == [41, 43, 42, poison, poison]


@pytest.mark.parametrize("one_buffer", [False, True])
def test_a_write_before_a_slot_is_seen(one_buffer: bool) -> None:
    device = runner(PATHS[0]).device
    subject = next(s for s in subjects() if s.name == "attention_prep_bf16")
    bench = Bench(subject.family, subject.family.shapes[0], subject.scalar, 1, runner(PATHS[0]))
    launch = bench.launch(bench.draw())
    first: dict[str, int] = {}  # byte of each slot that is written
    for o in launch.outputs:
        first[o.slot] = min(o.offset, first.get(o.slot, o.offset))
    moved = [
        (slot, at, target, (to - first[target] - 64) % 2**64 if target in first else to)
        for slot, at, target, to in launch.relocations
    ]
    assert moved != launch.relocations
    DeviceRunner(device, one_buffer)(launch)
    with pytest.raises(DeviceError, match="wrote before the start of slot"):
        DeviceRunner(device, one_buffer)(replace(launch, relocations=moved))


def test_bytes_that_depend_on_where_slots_lie_turn_repeat_red() -> None:
    class Leaning(DeviceRunner):
        """A device whose kernels give something else where slots share a buffer."""

        def aliased(self) -> DeviceRunner:
            return Leaning(self.device, one_buffer=True)

        def __call__(self, launch: Launch) -> Result:
            result = super().__call__(launch)
            if self.one_buffer:
                result[launch.outputs[0].slot][launch.outputs[0].offset] ^= 1
            return result

    subject = next(s for s in subjects() if s.name == "glu_bf16")
    report = run_gate(subject, "repeat", Leaning(runner(PATHS[0]).device))
    assert "slots of one buffer" in report.red["repeat"]


@each_device
@pytest.mark.parametrize("table", list(tables()), ids=lambda t: t.name)
def test_a_sample_of_the_rotary_sweep_is_within_its_bound(device: str, table: Table) -> None:
    step = 16 if device == METAL_HOST else 8
    sweep = rotary_sweep(runner(device, checked=False), table, step)
    assert sweep.passed, sweep
    assert sweep.n_values >= 2 * 3 * 32 * (POSITIONS // step - CHUNK)


def test_the_sweep_sees_a_wrong_frequency() -> None:
    plain = next(iter(tables()))
    off = runner(PATHS[0])

    class Turned:
        """A device whose kernels are given the next frequency."""

        tile = off.tile

        def __call__(self, launch: Launch) -> Result:
            data = launch.slots["inv_freq"].copy()
            data[:-GUARD_BYTES] = np.roll(data[:-GUARD_BYTES].view(np.float32), 1).view(np.uint8)
            return off(replace(launch, slots={**launch.slots, "inv_freq": data}))

    assert not rotary_sweep(cast(DeviceRunner, Turned()), plain, 40).passed


def test_the_command_prints_a_summary_and_writes_a_receipt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "receipt.json"
    assert main(["--kernel", "copy_rows", "--path", "portable", "--receipt", str(file)]) == 0
    assert "ok  copy_rows_bf16" in capsys.readouterr().out
    assert '"copy_rows_f32"' in file.read_text()
