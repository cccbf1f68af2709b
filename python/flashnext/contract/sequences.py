"""Kernels whose unit is a sequence over a recurrent state that settles lazily.

A prompt chunk settles what the window before it kept, then its own rows. A window settles what was kept and
leaves its own rows unsettled, in memory of the session; the next pass gets them back as kept. The state a
launch leaves stands under the same name as the state it starts from, and what it leaves unsettled under the
name it comes back as. A prompt chunk may have marks: the state behind the first so many of its rows is
written to a block of its own, and everything else is what it is without marks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flashnext.contract.family import Alternative, Data, Expected, Family, Run, Shape
from flashnext.contract.faults import Fault
from flashnext.contract.launch import NAN_BYTE, Builder, Launch, Output, Result
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
    "marked": ((9, 0, False), (18, 9, False), (1, 0, False), (3, 2, True), (6, 3, False)),
}
# Of each sequence: behind how many of its rows there is a mark.
MARKS: dict[str, tuple[tuple[int, ...], ...]] = {"marked": ((1, 4, 9), (3, 17), (1,), (), ())}


def at_mark(key: str, m: int) -> str:
    """Name the result that a state is behind the m-th mark."""
    return f"{key}, mark {m}"


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
        """List n_rows, n_kept, is_window and marks of each unit."""
        rows, kept, window = zip(*PASSES[shape["passes"]], strict=True)
        marks = MARKS.get(shape["passes"], ((),) * len(rows))
        return {"n_rows": list(rows), "n_kept": list(kept), "is_window": list(window), "marks": list(marks)}

    @abstractmethod
    def without_marks(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        """Compute `reference` as far as it is the same with and without marks."""

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        """Add the states behind marks: those of chunks that end there."""
        expected = dict(self.without_marks(shape, scalar, data))
        for m in range(max(map(len, data["marks"]))):
            ends = [
                marks[m] if m < len(marks) else n
                for marks, n in zip(data["marks"], data["n_rows"], strict=True)
            ]
            cut = {key: [x[:n] for x, n in zip(data[key], ends, strict=True)] for key in self.row_keys}
            states = self.without_marks(shape, scalar, {**data, **cut, "n_rows": ends})
            expected |= {at_mark(key, m): states[key] for key in self.state_keys}
        return expected

    def first_rows(self, data: Data, pick: Sequence[int]) -> list[int]:
        """Compute the first row of each picked unit in the launch; the number of rows stands behind."""
        return [0, *np.cumsum([data["n_rows"][u] for u in pick]).tolist()]

    def packed(self, data: Data, key: str, pick: Sequence[int]) -> Any:
        """Join the rows of the picked units."""
        return np.concatenate([data[key][u] for u in pick])

    def alternatives(self, shape: Shape, data: Data, run: Run) -> Iterable[Alternative]:
        """Leave out marks, or end at them; cut prompts in two, and read them as windows that keep half."""
        for unit, marks in enumerate(data["marks"]):
            if marks:
                n = data["n_rows"][unit]
                launch, result = run(self._part(data, unit, slice(0, n)), [0])
                yield from self._rows("without marks", unit, ..., launch, result)
                yield from self._states("without marks", unit, launch, result)
            for m, end in enumerate(marks):
                launch, result = run(self._part(data, unit, slice(0, end)), [0])
                for key in self.state_keys:
                    found = next(o for o in launch.outputs if o.name == key).view(result)
                    yield Alternative("a prompt that ends at a mark", at_mark(key, m), unit, ..., found)
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
            yield from self._states("a prompt cut in two", unit, launch, result)

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
            yield from self._states("a window that kept half", unit, launch, result)

    def _states(self, what: str, unit: int, launch: Launch, result: Result) -> Iterable[Alternative]:
        for o in launch.outputs:
            if o.name in self.state_keys:
                yield Alternative(what, o.name, unit, ..., o.view(result))

    def _rows(self, what: str, unit: int, part: Any, launch: Launch, result: Result) -> Iterable[Alternative]:
        for o in launch.outputs:
            if o.name not in (*self.state_keys, *self.kept_keys):
                yield Alternative(what, o.name, unit, part, o.view(result))

    def _part(self, data: Data, unit: int, rows: slice) -> Data:
        """Cut out data of one unit alone, with some of its rows and no marks."""
        one = {**data, "marks": [()]}
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
    """Where the sequences of a launch keep their state, kept rows and unsettled rows, and get marks.

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
            rows[i]["n_marks"] = len(self.data["marks"][unit])
        b.put("sequences", rows)
        fields = STRUCTS["Sequence"].fields
        assert fields is not None
        for i in range(len(self.pick)):
            for field in ("state", "kept", "unsettled"):
                b.address("sequences", i * rows.itemsize + int(fields[field][1]), f"{field} {i}")
            if rows[i]["n_marks"]:
                before = int(rows["n_marks"][:i].sum()) * STRUCTS["Mark"].itemsize
                b.address("sequences", i * rows.itemsize + int(fields["marks"][1]), "marks", before)

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
        self._put_marks(b)

    def _put_marks(self, b: Builder) -> None:
        """Add the table of marks, and the blocks that they are to be written to."""
        of_each = [
            (i, m, n) for i, unit in enumerate(self.pick) for m, n in enumerate(self.data["marks"][unit])
        ]
        table = np.zeros(len(of_each), STRUCTS["Mark"])
        table["n_rows"] = [n for _, _, n in of_each]
        b.put("marks", table)
        for at, (i, m, _) in enumerate(of_each):
            slot = f"mark {i} {m}"
            b.room(slot, self.state.size_bytes)
            b.address("marks", at * table.itemsize, slot)
            for key, (kind, shape) in self.state.fields.items():
                b.output(at_mark(key, m), self.pick[i], slot, self.state.offsets[key], kind, shape)


def _marked(launch: Launch) -> list[Output]:
    return [o for o in launch.outputs if ", mark " in o.name and int(np.prod(o.shape))]


def _a_row_further(data: Data) -> Data:
    pairs = zip(data["marks"], data["n_rows"], strict=True)
    return {"marks": [tuple(min(at + 1, n) for at in marks) for marks, n in pairs]}


def _without_last_column(launch: Launch, result: Result) -> None:
    for o in _marked(launch):
        o.view(result)[..., -1] = o.view(launch.slots)[..., -1]


def _flip_last_bit(of_state: bool, launch: Launch, result: Result) -> None:
    """Change what a sequence with marks carries on, or what comes out of its last row."""
    state = {o.name.split(", mark ")[0] for o in _marked(launch)}
    for unit in {o.unit for o in _marked(launch)}:
        o = next(o for o in launch.outputs if o.unit == unit and (o.name in state) == of_state)
        flat = np.ascontiguousarray(o.view(result)).reshape(-1).view(np.uint8)
        flat[-1] ^= 1
        o.view(result)[...] = flat.view(o.dtype).reshape(o.shape)


def mark_faults(data: Data) -> Sequence[Fault]:
    """Plant faults in what is written to marks and in what must not change for them."""
    if not any(data["marks"]):
        return ()
    return (
        Fault("wrong position: marks a row further", "sums", _a_row_further),
        Fault("dropped tail: the last column of a mark", "shapes", result=_without_last_column),
        Fault("a mark changes the state carried on", "repeat", result=partial(_flip_last_bit, True)),
        Fault("a mark changes the rows behind it", "repeat", result=partial(_flip_last_bit, False)),
    )
