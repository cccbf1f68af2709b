"""Kernels that read and write pages: sequences with page tables, and arrays over positions cut into pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashnext.contract.launch import Builder
from flashnext.contract.scalars import Array, Scalar
from flashnext.contract.sequences import Block
from flashnext.contract.structs import PAGE_TOKENS, STRUCTS

Kind = Scalar | npt.DTypeLike


def pages_of(positions: int) -> int:
    """Pages that so many positions fill or begin."""
    return -(-positions // PAGE_TOKENS)


def by_page(array: Array, n_pages: int, per_page: int = PAGE_TOKENS) -> Array:
    """Cut (n, ...) into (n_pages, per_page, ...); what is not there is NaN, or -1."""
    fill: Any = np.nan if array.dtype.kind == "f" else -1
    out = np.full((n_pages * per_page, *array.shape[1:]), fill, array.dtype)
    out[: len(array)] = array
    return out.reshape(n_pages, per_page, *array.shape[1:])


@dataclass(frozen=True)
class Pages:
    """The pages of some sequences.

    Use: `sequences` in its slot's turn, `put` behind all slots of the kernel.

    Attributes:
        layout: What a page holds.
        contents: For each sequence and field (n_pages, ...) values; a field that is left out is NaN.
        n_pages: Of each sequence.
    """

    layout: Block
    contents: Sequence[Mapping[str, Array]]
    n_pages: Sequence[int]

    def sequences(self, b: Builder) -> None:
        """Add the slot of Sequence rows; only the page table of each is set."""
        rows = np.zeros(len(self.n_pages), STRUCTS["Sequence"])
        b.put("sequences", rows)
        for s in range(len(self.n_pages)):
            b.address("sequences", s * rows.itemsize, f"table {s}")

    def put(self, b: Builder) -> None:
        """Add tables and pages."""
        for s, n in enumerate(self.n_pages):
            b.put(f"table {s}", np.zeros(n, np.uint64))
            for p in range(n):
                values = {key: array[p] for key, array in self.contents[s].items()}
                b.put(f"page {s}.{p}", self.layout.pack(values, partial=True))
                b.address(f"table {s}", p * 8, f"page {s}.{p}")

    def output(
        self,
        b: Builder,
        name: str,
        unit: int,
        sequence: int,
        page: int,
        field: str,
        index: tuple[int | slice, ...],
    ) -> None:
        """Add a result in a page: the part `index` of a field, whole slices and single places."""
        kind, shape = self.layout.fields[field]
        dtype = np.dtype(kind.bits if isinstance(kind, Scalar) else kind)
        whole = np.ndarray(tuple(shape), dtype, np.zeros(int(np.prod(shape)) * dtype.itemsize, np.uint8).data)
        part = whole[index]
        at = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        offset = self.layout.offsets[field] + at
        b.output(name, unit, f"page {sequence}.{page}", offset, kind, part.shape, part.strides, updated=True)


def row_table(sequences: Array, positions: Array, rotary: Array | None = None) -> Array:
    """Rows of a pass: (n,) sequence and position, (n, 3) rotary positions."""
    out = np.zeros(len(positions), STRUCTS["Row"])
    out["sequence"], out["position"] = sequences, positions
    if rotary is not None:
        out["rotary"] = rotary
    return out


def angles(rotary: Array, inv_freq: Array, section: Sequence[int]) -> Array:
    """Compute (n, half) rotary angles as the engine defines them.

    An angle is float32(position) times float32(frequency), in float32. Axis of frequency j: h where j mod 3
    is 1, w where it is 2, below three times the axis' section; t elsewhere.
    """
    j = np.arange(len(inv_freq))
    axis = np.where((j % 3 != 0) & (j < 3 * np.asarray(section)[j % 3]), j % 3, 0)
    product = rotary[:, axis].astype(np.float32) * inv_freq.astype(np.float32)
    return product.astype(np.float64)
