"""Kernels whose unit is a sequence over a recurrent state that settles lazily.

A prompt chunk settles what the window before it kept, then its own rows. A window settles what was kept and
leaves its own rows unsettled, in memory of the session; the next pass gets them back as kept. The state a
launch leaves stands under the same name as the state it starts from, and what it leaves unsettled under the
name it comes back as.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flashnext.contract.family import Alternative, Data, Family, Run, Shape
from flashnext.contract.launch import NAN_BYTE, Builder, Launch, Result
from flashnext.contract.scalars import Array, Scalar
from flashnext.contract.structs import STRUCTS

SPARE = 2  # sequences beyond the count
ALIGNMENT = 64
MAX_ROWS = 16  # of a window

# Rows, kept rows and whether it is a window, of each sequence of a launch.
PASSES: dict[str, tuple[tuple[int, int, bool], ...]] = {
    "one prompt": ((5, 0, False),),
    "one row": ((1, 0, False),),
    "one window": ((3, 2, True),),
    "mixed": ((7, 0, False), (1, 1, True), (4, 3, False), (2, 0, True), (0, 5, True), (1, 4, False)),
    "long": ((40, 9, False), (16, 16, True)),  # MAX_ROWS rows kept and left
}


class SequenceFamily(Family):
    """A family whose units are sequences; a shape's "passes" names one of PASSES.

    Attributes:
        row_keys: Data with one array a unit, rows first.
        state_keys: Data with one array a unit, in float64 or as stored: the recurrent state.
        kept_keys: Data with one array a unit, rows first: what a window left unsettled.
    """

    row_keys: ClassVar[tuple[str, ...]]
    state_keys: ClassVar[tuple[str, ...]]
    kept_keys: ClassVar[tuple[str, ...]]

    def units(self, shape: Shape) -> int:
        """Count the sequences."""
        return len(PASSES[shape["passes"]])

    def passes(self, shape: Shape) -> Data:
        """List n_rows, n_kept and is_window of each unit."""
        rows, kept, window = zip(*PASSES[shape["passes"]], strict=True)
        return {"n_rows": list(rows), "n_kept": list(kept), "is_window": list(window)}

    def first_rows(self, data: Data, pick: Sequence[int]) -> list[int]:
        """Compute the first row of each picked unit in the launch; the number of rows stands behind."""
        return [0, *np.cumsum([data["n_rows"][u] for u in pick]).tolist()]

    def packed(self, data: Data, key: str, pick: Sequence[int]) -> Any:
        """Join the rows of the picked units."""
        return np.concatenate([data[key][u] for u in pick])

    def alternatives(self, shape: Shape, data: Data, run: Run) -> Iterable[Alternative]:
        """Cut prompts in two, and read them as windows of which half is kept."""
        for unit in range(self.units(shape)):
            n = data["n_rows"][unit]
            if n < 2 or data["is_window"][unit]:
                continue
            cut = n // 2
            first = self._part(data, unit, slice(0, cut))
            launch, result = run(first, [0])
            settled = self._read(launch, result, self.state_keys)
            yield from self._rows("a prompt cut in two, first part", unit, slice(0, cut), launch, result)

            rest = self._part(data, unit, slice(cut, n)) | settled | self._nothing_kept(data, unit)
            launch, result = run(rest, [0])
            yield from self._rows("a prompt cut in two, second part", unit, slice(cut, n), launch, result)
            for key in self.state_keys:
                found = next(o for o in launch.outputs if o.name == key).view(result)
                yield Alternative("a prompt cut in two", key, unit, ..., found)

            if n > MAX_ROWS:
                continue
            window = self._part(data, unit, slice(0, n)) | {"is_window": [True]}
            launch, result = run(window, [0])
            yield from self._rows("a window of the same rows", unit, slice(0, n), launch, result)
            kept = self._read(launch, result, self.kept_keys)
            after = self._part(data, unit, slice(cut, n)) | self._read(launch, result, self.state_keys)
            after |= {key: [rows[0][:cut]] for key, rows in kept.items()} | {"n_kept": [cut]}
            launch, result = run(after, [0])
            yield from self._rows("a window that kept half", unit, slice(cut, n), launch, result)
            for key in self.state_keys:
                found = next(o for o in launch.outputs if o.name == key).view(result)
                yield Alternative("a window that kept half", key, unit, ..., found)

    def _rows(
        self, what: str, unit: int, part: slice, launch: Launch, result: Result
    ) -> Iterable[Alternative]:
        for o in launch.outputs:
            if o.name not in (*self.state_keys, *self.kept_keys):
                yield Alternative(what, o.name, unit, part, o.view(result))

    def _part(self, data: Data, unit: int, rows: slice) -> Data:
        """Cut out data of one unit alone, with some of its rows."""
        one = dict(data)
        for key in (*self.state_keys, *self.kept_keys, "n_kept", "is_window"):
            one[key] = [data[key][unit]]
        for key in self.row_keys:
            one[key] = [data[key][unit][rows]]
        one["n_rows"] = [len(range(*rows.indices(data["n_rows"][unit])))]
        return one

    def _nothing_kept(self, data: Data, unit: int) -> Data:
        return {"n_kept": [0]} | {key: [data[key][unit][:0]] for key in self.kept_keys}

    def _read(self, launch: Launch, result: Result, keys: Sequence[str]) -> Data:
        return {o.name: [o.values(result)] for o in launch.outputs if o.name in keys}


class Block:
    """Arrays at fixed offsets of one piece of memory.

    Each begins at a multiple of 64 bytes, behind 64 bytes of something else.

    Args:
        fields: Name -> how its elements are stored, and its shape.
    """

    def __init__(self, fields: Mapping[str, tuple[Scalar | npt.DTypeLike, Sequence[int]]]) -> None:
        self.fields = dict(fields)
        self.offsets: dict[str, int] = {}
        at = ALIGNMENT
        for name, (kind, shape) in fields.items():
            self.offsets[name] = at
            size = self._dtype(kind).itemsize * int(np.prod(shape))
            at += -(-size // ALIGNMENT) * ALIGNMENT
        self.size_bytes = at

    @staticmethod
    def _dtype(kind: Scalar | npt.DTypeLike) -> np.dtype[Any]:
        return np.dtype(kind.bits if isinstance(kind, Scalar) else kind)

    def pack(self, values: Mapping[str, Array], partial: bool = False) -> Array:
        """Set each field's leading rows to these values; all else is NaN.

        Args:
            values: By field.
            partial: Whether fields without values are allowed.
        """
        out = np.full(self.size_bytes, NAN_BYTE, np.uint8)
        for name, (kind, _) in self.fields.items():
            if partial and name not in values:
                continue
            stored = kind.encode(values[name]) if isinstance(kind, Scalar) else values[name]
            data = np.ascontiguousarray(stored, self._dtype(kind)).reshape(-1).view(np.uint8)
            out[self.offsets[name] : self.offsets[name] + data.nbytes] = data
        return out

    def output(self, b: Builder, name: str, unit: int, slot: str, n_rows: int | None = None) -> None:
        """Add a result in this memory: a field, or its first n_rows rows; updated in place or newly left."""
        kind, shape = self.fields[name]
        updated = n_rows is None
        rows = tuple(shape) if n_rows is None else (n_rows, *tuple(shape)[1:])
        b.output(name, unit, slot, self.offsets[name], kind, rows, updated=updated)


@dataclass(frozen=True)
class Memory:
    """Where the sequences of a launch keep their state, kept rows and unsettled rows.

    Use: `sequences` in its slot's turn, `put` behind all slots of the kernel.
    """

    family: SequenceFamily
    data: Data
    pick: Sequence[int]
    state: Block
    rows: Block

    def sequences(self, b: Builder) -> None:
        """Add the slot of Sequence rows."""
        rows = np.zeros(len(self.pick) + SPARE, STRUCTS["Sequence"])
        firsts = self.family.first_rows(self.data, self.pick)
        for i, unit in enumerate(self.pick):
            rows[i]["first_row"], rows[i]["n_rows"] = firsts[i], self.data["n_rows"][unit]
            rows[i]["n_kept"], rows[i]["is_window"] = self.data["n_kept"][unit], self.data["is_window"][unit]
        b.put("sequences", rows)
        fields = STRUCTS["Sequence"].fields
        assert fields is not None
        for i in range(len(self.pick)):
            for field in ("state", "kept", "unsettled"):
                b.address("sequences", i * rows.itemsize + int(fields[field][1]), f"{field} {i}")

    def put(self, b: Builder) -> None:
        """Add the memory itself, and the results in it."""
        for i, unit in enumerate(self.pick):
            b.put(f"state {i}", self.state.pack({key: self.data[key][unit] for key in self.state.fields}))
            b.put(f"kept {i}", self.rows.pack({key: self.data[key][unit] for key in self.rows.fields}))
            b.room(f"unsettled {i}", self.rows.size_bytes)
            for key in self.state.fields:
                self.state.output(b, key, unit, f"state {i}")
            if self.data["is_window"][unit]:
                for key in self.rows.fields:
                    self.rows.output(b, key, unit, f"unsettled {i}", self.data["n_rows"][unit])
