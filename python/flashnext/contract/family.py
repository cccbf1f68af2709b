"""What a kernel has to be registered with, and the registry.

A family states its envelope, its rule for NaN and infinity, its order of sums and its launch; it draws
inputs, lays out a launch over any choice of *units* (rows or sequences: what must not depend on its company),
and computes in float64 what each unit must come to, with the tolerance that follows from the formula.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flashnext.contract.approx import Approx
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Frame, Launch, Result
from flashnext.contract.scalars import BF16, F32, Array, Scalar

Shape = Mapping[str, Any]
Data = dict[str, Any]
Run = Callable[[Data, Sequence[int]], tuple[Launch, Result]]
Expected = Mapping[str, Sequence[Approx] | Sequence[Array]]


@dataclass(frozen=True)
class Alternative:
    """What another way to the same results gave.

    Attributes:
        what: The other way.
        name, unit: The result that it must agree with.
        part: An index into that result.
        found: The stored elements.
    """

    what: str
    name: str
    unit: int
    part: Any
    found: Array


class Family(ABC):
    """The contract of one kernel.

    Attributes:
        name: Of the kernel, without the suffix of its type.
        types: The activation types it exists for; empty where it has none.
        envelope: Legal sizes.
        nonfinite: Its rule for NaN and infinity; the reference computes it.
        order: Of its sums.
        launch_record: Slots, grid and who launches it.
        per_unit: Float inputs with a leading axis of units, keys of the data; arrays or lists of arrays.
        shared: Float inputs that several units read; arrays, matrices or lists of arrays.
        shapes: What the gates run over: the edges of the envelope.
    """

    name: ClassVar[str]
    types: ClassVar[tuple[Scalar, ...]] = (BF16, F32)
    envelope: ClassVar[str]
    nonfinite: ClassVar[str]
    order: ClassVar[str]
    launch_record: ClassVar[str]
    per_unit: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ()
    shapes: ClassVar[Sequence[Shape]]

    def kernel(self, scalar: Scalar | None) -> str:
        """Name the kernel in full."""
        return f"{self.name}_{scalar.name}" if scalar and self.types else self.name

    @abstractmethod
    def units(self, shape: Shape) -> int:
        """How many units a draw has."""

    @abstractmethod
    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        """Draw inputs: float64 arrays of values that their slots hold exactly, and what else is needed."""

    @abstractmethod
    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        """Lay out a launch over the units `pick`, in that order."""

    @abstractmethod
    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        """For each result and unit the values with their bounds, or the exact stored elements."""

    def alternatives(self, shape: Shape, data: Data, run: Run) -> Iterable[Alternative]:
        """Other ways to results that must have the same bits; `run` lays out and runs other data's units."""
        return ()

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        """Faults of this kernel's own kind, beyond those of every kernel."""
        return ()


_REGISTRY: dict[str, Family] = {}


def register(family: type[Family]) -> type[Family]:
    """Class decorator: enter the contract of a kernel."""
    assert family.name not in _REGISTRY
    _REGISTRY[family.name] = family()
    return family


def registered() -> Mapping[str, Family]:
    """Every contract by kernel name."""
    import flashnext.contract.families  # noqa: F401  (entering them is what importing it does)

    return _REGISTRY
