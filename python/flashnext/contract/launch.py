"""One launch of a kernel over arrays of bytes: what goes in, and where what comes out is found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flashnext import _core as core
from flashnext.contract.scalars import Array, Scalar

Bytes = npt.NDArray[np.uint8]
Result = Mapping[str, Bytes]
GUARD_BYTES = 64  # after each slot; a kernel must not write them, and what it reads there is NaN or -1
NAN_BYTE = 0xFF


@dataclass(frozen=True)
class Frame:
    """What a launch does not decide.

    Attributes:
        tile: Columns that one grid step of a kernel covers on the device.
        rows: Rows that one step of the axis behind covers; 0 where each covers all.
        poison: The byte that output slots hold before.
    """

    tile: Callable[[str], int]
    rows: Callable[[str], int] = lambda kernel: 0
    poison: int = NAN_BYTE

    def grid(self, kernel: str, n_columns: int, n_rows: int) -> tuple[int, int]:
        """Give the grid of a kernel that tiles columns, and rows where the device wants that."""
        rows = self.rows(kernel)
        return -(-n_columns // self.tile(kernel)), -(-n_rows // rows) if rows else 1


@dataclass(frozen=True)
class Output:
    """A place that a kernel has to write.

    Attributes:
        name: Of the result; its reference stands under it.
        unit: The row, sequence or page the result belongs to: what must not depend on its company.
        slot: The slot that holds it.
        offset: Bytes into the slot.
        dtype: Of the stored elements.
        shape: Of the result.
        strides: In bytes; contiguous by default.
        scalar: How floats are stored, or None for what must be equal bit for bit.
        updated: Whether the kernel reads the place before it writes (so that it holds no poison).
        is_address: Whether it holds device addresses that the kernel was given. Each comes out as the number
            that the launch holds in its place, under the relocation.
    """

    name: str
    unit: int
    slot: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    scalar: Scalar | None = None
    updated: bool = False
    is_address: bool = False

    def view(self, result: Result) -> Array:
        """View the stored elements in a result."""
        return np.ndarray(self.shape, self.dtype, result[self.slot].data, self.offset, self.strides)

    def values(self, result: Result) -> Array:
        """Read the elements as numbers: float64 for floats."""
        stored = np.ascontiguousarray(self.view(result))
        return stored if self.scalar is None else self.scalar.decode(stored)


@dataclass(frozen=True)
class Launch:
    """A kernel, its grid, slots in order (further ones are memory reached by address) and argument struct.

    Attributes:
        relocations: (slot, byte offset, slot, byte offset): the device address of the second place is written
            at the first.
    """

    kernel: str
    grid: tuple[int, int, int]
    params: bytes
    slots: Mapping[str, Bytes]
    relocations: Sequence[tuple[str, int, str, int]]
    outputs: Sequence[Output]


@dataclass
class Builder:
    """Collects the slots and outputs of a launch, in the kernel's order."""

    frame: Frame
    kernel: str
    slots: dict[str, Bytes] = field(default_factory=dict)
    relocations: list[tuple[str, int, str, int]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)

    def put(self, name: str, array: Array) -> None:
        """Add a slot that holds `array`."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        guard = np.full(GUARD_BYTES, NAN_BYTE, np.uint8)
        self.slots[name] = np.concatenate([flat, guard])

    def unused(self, *names: str) -> None:
        """Add empty slots."""
        for name in names:
            self.slots[name] = np.empty(0, np.uint8)

    def room(self, name: str, size_bytes: int) -> None:
        """Add a slot of poison, to be written."""
        self.slots[name] = np.full(size_bytes + GUARD_BYTES, self.frame.poison, np.uint8)

    def address(self, slot: str, offset: int, target: str, target_offset: int = 0) -> None:
        """Write at `offset` of `slot` the device address of a place in `target`."""
        self.relocations.append((slot, offset, target, target_offset))

    def output(
        self,
        name: str,
        unit: int,
        slot: str,
        offset: int,
        kind: Scalar | npt.DTypeLike,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        updated: bool = False,
        is_address: bool = False,
    ) -> None:
        """Add a result of floats stored as `kind`, or of integers of that dtype."""
        scalar = kind if isinstance(kind, Scalar) else None
        dtype = np.dtype(scalar.bits if scalar else kind)  # type: ignore[arg-type]
        steps = None if strides is None else tuple(strides)
        self.outputs.append(
            Output(name, unit, slot, offset, dtype, tuple(shape), steps, scalar, updated, is_address)
        )

    def rows(
        self,
        name: str,
        slot: str,
        pick: Sequence[int],
        kind: Scalar | npt.DTypeLike,
        shape: Sequence[int],
        updated: bool = False,
    ) -> None:
        """Add one result a picked unit: row i of the slot belongs to unit pick[i]."""
        size = np.dtype(kind.bits if isinstance(kind, Scalar) else kind).itemsize * int(np.prod(shape))
        for i, unit in enumerate(pick):
            self.output(name, unit, slot, i * size, kind, shape, updated=updated)

    def done(self, grid: Sequence[int], params: npt.NDArray[np.void] | None) -> Launch:
        """Make the launch."""
        x, y, z = (*grid, 1, 1)[:3]
        packed = b"" if params is None else params.tobytes()
        return Launch(self.kernel, (x, y, z), packed, self.slots, self.relocations, self.outputs)


class DeviceRunner:
    """Runs launches on a device of the core.

    Args:
        device: The device.
        one_buffer: Lay all slots of a launch in one buffer, as a session's and a pass's slots are.
    """

    def __init__(self, device: core.Device, one_buffer: bool = False) -> None:
        self.device = device
        self.one_buffer = one_buffer

    def aliased(self) -> DeviceRunner:
        """Make the runner that lays all slots in one buffer."""
        return DeviceRunner(self.device, one_buffer=True)

    def tile(self, kernel: str) -> int:
        """Tell how many columns one grid step of the kernel's tiled axis covers."""
        return core.testing.kernel_tile(self.device, kernel)

    def rows(self, kernel: str) -> int:
        """Tell how many rows one step of the axis behind that covers; 0 where each covers all."""
        return core.testing.kernel_rows(self.device, kernel)

    def __call__(self, launch: Launch) -> Result:
        """Run a launch; returns the bytes of every slot, the launch's own stay as they are.

        Raises:
            DeviceError: The kernel wrote before the start of a slot.
        """
        names = list(launch.slots)
        after = {name: data.copy() for name, data in launch.slots.items()}
        places = [(names.index(a), at, names.index(b), to) for a, at, b, to in launch.relocations]
        core.testing.run_kernel(
            self.device,
            launch.kernel,
            launch.grid,
            list(after.values()),
            launch.params,
            places,
            self.one_buffer,
            GUARD_BYTES,
        )
        given: dict[int, int] = {}
        for slot, at, _, _ in launch.relocations:  # an address is no result
            address, number = (_address(slots[slot], at) for slots in (after, launch.slots))
            given[address] = number or given.get(address, 0)
            after[slot][at : at + 8] = launch.slots[slot][at : at + 8]
        for o in launch.outputs:
            if o.is_address:
                view = o.view(after)
                view[...] = np.array([given.get(int(a), int(a)) for a in view], np.uint64)
        return after


def _address(data: Bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8].tobytes(), sys.byteorder)
