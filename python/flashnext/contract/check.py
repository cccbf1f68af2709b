"""Run the gates of a kernel, and the faults that they have to see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from flashnext.contract.family import Family, Shape, registered
from flashnext.contract.faults import Fault, common_faults
from flashnext.contract.gates import GATES, Bench
from flashnext.contract.launch import DeviceRunner
from flashnext.contract.scalars import F32, Scalar

SEED = 1
FAULT_SHAPES = 4  # of a kernel, spread over its envelope, that faults are planted at


@dataclass(frozen=True)
class Subject:
    """A kernel: a family at one activation type."""

    family: Family
    scalar: Scalar

    @property
    def name(self) -> str:
        """The kernel's full name."""
        return self.family.kernel(self.scalar)


@dataclass
class Report:
    """What was found of one kernel on one device.

    Attributes:
        red: Gate -> what is wrong, with the shape.
        worst: Largest error as a share of its bound.
        n_faults: Faults planted.
        unseen: Faults that their gate did not see.
    """

    kernel: str
    n_shapes: int = 0
    red: dict[str, str] = field(default_factory=dict)
    worst: float = 0.0
    n_faults: int = 0
    unseen: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every gate is green and saw its faults."""
        return not self.red and not self.unseen


def subjects() -> list[Subject]:
    """Every kernel that is registered."""
    return [Subject(f, scalar) for f in registered().values() for scalar in f.types or (F32,)]


def run_gate(subject: Subject, gate: str, runner: DeviceRunner, seed: int = SEED) -> Report:
    """One gate over all shapes of a kernel."""
    report = Report(subject.name, len(subject.family.shapes))
    for shape in subject.family.shapes:
        finding = GATES[gate](Bench(subject.family, shape, subject.scalar, seed, runner))
        report.worst = max(report.worst, finding.worst)
        if finding.error:
            report.red.setdefault(gate, f"{dict(shape)}, seed {seed}: {finding.error}")
    return report


def planted(subject: Subject, runner: DeviceRunner, seed: int = SEED) -> Iterator[tuple[Bench, Fault]]:
    """Yield the faults of a kernel, each with a bench whose kernel has it."""
    for shape in fault_shapes(subject.family.shapes):
        bench = Bench(subject.family, shape, subject.scalar, seed, runner)
        data = bench.draw()
        family = subject.family
        faults = common_faults(bench.launch(data), bool(family.per_unit or family.shared))
        for fault in [*faults, *family.faults(shape, subject.scalar, data)]:
            if family.units(shape) > 1 or not fault.in_company:
                yield bench.with_fault(fault), fault


def fault_shapes(shapes: Sequence[Shape]) -> Sequence[Shape]:
    """Pick some shapes of an envelope, evenly spread."""
    return shapes[:: max(1, len(shapes) // FAULT_SHAPES)]


def run_faults(subject: Subject, runner: DeviceRunner, seed: int = SEED) -> Report:
    """Plant every fault of a kernel; its gate has to turn red."""
    report = Report(subject.name)
    for bench, fault in planted(subject, runner, seed):
        report.n_faults += 1
        with np.errstate(all="ignore"):
            finding = GATES[fault.gate](bench)
        if not finding.error:
            report.unseen.append(
                f"{fault.gate} does not see '{fault.name}' at {dict(bench.shape)}, seed {seed}"
            )
    return report


def run_gates(subject: Subject, gates: Iterable[str], runner: DeviceRunner, seed: int = SEED) -> Report:
    """Run some gates of a kernel over all its shapes."""
    whole = Report(subject.name, len(subject.family.shapes))
    for gate in gates:
        part = run_gate(subject, gate, runner, seed)
        whole.red |= part.red
        whole.worst = max(whole.worst, part.worst)
    return whole


def run_all(subject: Subject, runner: DeviceRunner, seed: int = SEED) -> Report:
    """All gates and faults of a kernel."""
    whole = run_gates(subject, GATES, runner, seed)
    faults = run_faults(subject, runner, seed)
    whole.n_faults, whole.unseen = faults.n_faults, faults.unseen
    return whole
