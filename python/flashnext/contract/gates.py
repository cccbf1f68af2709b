"""The four gates of the kernel contract, each a function of one family, shape, type and runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flashnext.contract.approx import Approx
from flashnext.contract.family import Data, Expected, Family, Shape
from flashnext.contract.faults import Fault
from flashnext.contract.launch import NAN_BYTE, DeviceRunner, Frame, Launch, Output, Result
from flashnext.contract.matrices import Matrix
from flashnext.contract.scalars import Array, Scalar

_OTHER_POISON = 0x5A


@dataclass(frozen=True)
class Finding:
    """What a gate found.

    Attributes:
        error: What is wrong, or empty.
        worst: Of the sums gate: the largest error as a share of its bound.
    """

    error: str = ""
    worst: float = 0.0


@dataclass(frozen=True)
class Bench:
    """One family, shape and type on one device, the inputs of one seed, and perhaps a planted fault."""

    family: Family
    shape: Shape
    scalar: Scalar
    seed: int
    runner: DeviceRunner
    fault: Fault | None = None
    memo: dict[str, Expected] = field(default_factory=dict)

    def with_fault(self, fault: Fault) -> Bench:
        """Make the same bench with a faulty kernel."""
        return replace(self, fault=fault)

    def expected(self, data: Data) -> Expected:
        """Compute the reference of what `draw` gives, once."""
        if "expected" not in self.memo:
            self.memo["expected"] = self.family.reference(self.shape, self.scalar, data)
        return self.memo["expected"]

    def rng(self) -> np.random.Generator:
        """Start the generator of the seed."""
        return np.random.default_rng(self.seed)

    def draw(self) -> Data:
        """Draw the inputs of the seed."""
        return self.family.draw(self.shape, self.scalar, self.rng())

    def launch(self, data: Data, pick: Sequence[int] | None = None, poison: int = NAN_BYTE) -> Launch:
        """Lay out a launch over the units `pick`, all by default, as the faulty kernel sees it."""
        units = range(self.family.units(self.shape)) if pick is None else pick
        fault = self.fault
        if fault and fault.data and (len(units) > 1 or not fault.in_company):
            data = {**data, **fault.data(data)}
        return self.family.launch(
            self.shape, self.scalar, data, units, Frame(self.runner.tile, self.runner.rows, poison)
        )

    def run(self, launch: Launch) -> Result:
        """Run a launch, with the fault if there is one."""
        result = self.runner(launch)
        fault = self.fault
        if fault and fault.result and (len({o.unit for o in launch.outputs}) > 1 or not fault.in_company):
            fault.result(launch, result)
        return result


def _stored(launch: Launch, result: Result) -> dict[tuple[str, int], bytes]:
    return {(o.name, o.unit): np.ascontiguousarray(o.view(result)).tobytes() for o in launch.outputs}


def nonfinite(bench: Bench) -> Finding:
    """Require that a NaN or infinity shows where the reference says, and changes no other unit by a bit."""
    data, family = bench.draw(), bench.family
    rng = bench.rng()
    launch = bench.launch(data)
    base = _stored(launch, bench.run(launch))
    for key in (*family.per_unit, *family.shared):
        for value in (np.nan, np.inf, -np.inf):
            unit = int(rng.integers(family.units(bench.shape))) if key in family.per_unit else None
            changed = _planted(data, key, unit, value, rng)
            launch = bench.launch(changed)
            result = bench.run(launch)
            with np.errstate(all="ignore"):
                expected = family.reference(bench.shape, bench.scalar, changed)
            where = f"{value} in {key}" + ("" if unit is None else f" of unit {unit}")
            found = _stored(launch, result)
            for o in launch.outputs:
                if unit is not None and o.unit != unit:
                    if found[o.name, o.unit] != base[o.name, o.unit]:
                        return Finding(f"{where} changes {o.name} of unit {o.unit}")
                    continue
                error = _compare_nonfinite(o, result, expected[o.name][o.unit])
                if error:
                    return Finding(f"{where}: {o.name} of unit {o.unit} {error}")
    return Finding()


def _planted(data: Data, key: str, unit: int | None, value: float, rng: np.random.Generator) -> Data:
    if isinstance(data[key], Matrix):
        return {**data, key: data[key].with_nonfinite(value, rng)}
    # A list has an array of its own shape for each unit.
    held: Any = data[key].copy() if isinstance(data[key], np.ndarray) else [x.copy() for x in data[key]]
    if unit is None and isinstance(held, list):
        unit = int(rng.integers(len(held)))
    part: Array = held if unit is None else held[unit]
    if part.size:
        part[tuple(int(rng.integers(n)) for n in part.shape)] = value
    return {**data, key: held}


def _compare_nonfinite(o: Output, result: Result, expected: Approx | Array) -> str:
    if not isinstance(expected, Approx):
        same = np.ascontiguousarray(o.view(result)).tobytes() == np.ascontiguousarray(expected).tobytes()
        return "" if same else "is not what the rule says"
    here, there = np.isfinite(o.values(result)), np.isfinite(expected.value)
    open_ = there & np.isposinf(expected.error)  # both are allowed
    if ((here != there) & ~open_).any():
        return f"is finite at {int(here.sum())} of {here.size} places, expected {int(there.sum())}"
    return ""


def repeat(bench: Bench) -> Finding:
    """Require the same bytes of the same inputs: again, in one buffer, in any company, another way round."""
    data = bench.draw()
    launch = bench.launch(data)
    base = _stored(launch, bench.run(launch))
    if _stored(launch, bench.run(launch)) != base:
        return Finding("a second run gives other bytes")
    aliased = replace(bench, runner=bench.runner.aliased())
    if _stored(launch, aliased.run(launch)) != base:
        return Finding("slots of one buffer give other bytes than slots of their own")
    for pick in _companies(bench.family.units(bench.shape), bench.rng()):
        some = bench.launch(data, pick)
        found = _stored(some, bench.run(some))
        for key, stored in found.items():
            if base[key] != stored:
                return Finding(f"{key[0]} of unit {key[1]} differs in the company of units {list(pick)}")
    outputs = {(o.name, o.unit): o for o in launch.outputs}

    def run(other: Data, pick: Sequence[int]) -> tuple[Launch, Result]:
        laid_out = bench.launch(other, pick)
        return laid_out, bench.run(laid_out)

    for way in bench.family.alternatives(bench.shape, data, run):
        o = outputs[way.name, way.unit]
        expected = np.frombuffer(base[way.name, way.unit], o.dtype).reshape(o.shape)[way.part]
        if np.ascontiguousarray(expected).tobytes() != np.ascontiguousarray(way.found).tobytes():
            return Finding(f"{way.what}: {way.name} of unit {way.unit} differs")
    return Finding()


def _companies(n: int, rng: np.random.Generator) -> Iterator[Sequence[int]]:
    yield list(range(n))[::-1]
    for unit in sorted({0, n // 2, n - 1}):
        yield [unit]
    for size in sorted({2, 3, n // 2, n - 1} & set(range(1, n))):
        yield [int(u) for u in rng.permutation(n)[:size]]


def shapes(bench: Bench) -> Finding:
    """Require that all that has to be written is, and nothing else, whatever was there before."""
    data = bench.draw()
    runs = []
    for poison in (NAN_BYTE, _OTHER_POISON):
        launch = bench.launch(data, poison=poison)
        result = bench.run(launch)
        runs.append(_stored(launch, result))
        for name, was in launch.slots.items():
            untouched = np.ones(was.nbytes, bool)
            for o in launch.outputs:
                if o.slot == name:
                    mask = np.ndarray(o.shape, f"V{o.dtype.itemsize}", untouched.data, o.offset, o.strides)
                    mask[...] = np.zeros((), mask.dtype)
            changed = np.flatnonzero((result[name] != was) & untouched)
            if changed.size:
                return Finding(
                    f"byte {changed[0]} of {was.nbytes} of {name} was written, outside of all results"
                )
    for key in runs[0]:
        if runs[0][key] != runs[1][key]:
            return Finding(
                f"{key[0]} of unit {key[1]} is not fully written: it depends on what was there before"
            )
    return Finding()


def sums(bench: Bench) -> Finding:
    """Require every result within its bound of the float64 reference, exact ones equal bit for bit."""
    data = bench.draw()
    launch = bench.launch(data)
    result = bench.run(launch)
    expected = bench.expected(data)
    worst = 0.0
    for o in launch.outputs:
        want = expected[o.name][o.unit]
        if isinstance(want, Approx):
            assert o.scalar is not None and want.value.shape == o.shape, (o.name, want.value.shape, o.shape)
            if not want.value.size:
                continue
            bound = want.stored(o.scalar).error
            found = o.values(result)
            with np.errstate(invalid="ignore"):
                share = np.abs(found - want.value) / bound
            share[np.isnan(found) & np.isnan(want.value)] = 0  # a drawn input was NaN on purpose
            worst = max(worst, float(np.nan_to_num(share, nan=np.inf).max()))
            if not worst <= 1:
                return Finding(f"{o.name} of unit {o.unit} is {worst:.3g} times its bound away", worst)
        elif np.ascontiguousarray(o.view(result)).tobytes() != np.ascontiguousarray(want, o.dtype).tobytes():
            return Finding(f"{o.name} of unit {o.unit} is not exact")
    return Finding(worst=worst)


GATES: dict[str, Callable[[Bench], Finding]] = {
    "nonfinite": nonfinite,
    "repeat": repeat,
    "shapes": shapes,
    "sums": sums,
}
