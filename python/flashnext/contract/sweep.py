"""The exhaustive rotary sweep: every position, frequency and axis, and every pooling block, against float64.

The angle is what the engine defines, float32(position) * float32(frequency); the distance of that definition
from the exact angle is reported beside the kernel's own error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flashnext.contract.approx import UNIT
from flashnext.contract.families.rope import TRIG_ULPS
from flashnext.contract.launch import Builder, DeviceRunner, Frame
from flashnext.contract.pages import Pages, angles, row_table
from flashnext.contract.scalars import F32, Array
from flashnext.contract.sequences import Block
from flashnext.contract.structs import PAGE_TOKENS, counts, struct

POSITIONS = (1 << 20) + 1  # 0 to 1,048,576
CHUNK = 1 << 15
SECTION = (11, 11, 10)
THETA = 1e7
# The three axes of a row hold different positions, so that a frequency on the wrong axis shows; over the
# three rounds every axis sees every position.
STRIDES = ((1, 3, 5), (3, 5, 1), (5, 1, 3))


@dataclass(frozen=True)
class Table:
    """Frequencies with an attention factor."""

    name: str
    inv_freq: Array
    factor: float


@dataclass
class Sweep:
    """What a sweep found; errors are in units in the last place of 1, 2^-24.

    Attributes:
        n_values: Values compared.
        worst: Largest error of a cos or sin against float64 of the same angle, over the attention factor.
        worst_at: Position, frequency and axis of it.
        definition: Largest distance of the defined angle from position * frequency in float64, in radians.
        n_blocks: Pooling blocks compared; they must use the table of their first row, bit for bit as far as
            rounding tells.
        worst_block: Largest error of a pooled key.
    """

    table: str
    n_values: int = 0
    worst: float = 0.0
    worst_at: tuple[int, int, int] = (0, 0, 0)
    definition: float = 0.0
    n_blocks: int = 0
    worst_block: float = 0.0

    @property
    def passed(self) -> bool:
        """Within what the rope contract allows."""
        return self.worst <= TRIG_ULPS + 1 and self.worst_block <= 4 * TRIG_ULPS

    def as_dict(self) -> dict[str, Any]:
        """For a receipt."""
        return asdict(self)


def tables() -> Iterator[Table]:
    """Yield the real model's plain frequencies, and those stretched fourfold by static YaRN."""
    half = sum(SECTION)
    plain = F32.rounded(THETA ** (-np.arange(half) / half))
    yield Table("plain", plain, 1.0)

    def border(rotations: float) -> float:
        return float(half * np.log(262144 / (rotations * 2 * np.pi)) / np.log(THETA))

    low, high = np.floor(border(32.0)), np.ceil(border(1.0))
    ramp = np.clip((np.arange(half) - low) / (high - low), 0, 1)
    yield Table("yarn", F32.rounded(plain / 4 * ramp + plain * (1 - ramp)), 0.1 * np.log(4.0) + 1)


def rotary_sweep(runner: DeviceRunner, table: Table, step: int = 1) -> Sweep:
    """Compare every step-th chunk of positions."""
    out = Sweep(table.name)
    starts = range(0, POSITIONS, CHUNK)
    for strides in STRIDES:
        for start in starts[::step] if step > 1 else starts:
            at = np.arange(start, min(start + CHUNK, POSITIONS))
            rotary = np.stack([at * s % POSITIONS for s in strides], 1).astype(np.int32)
            _compare(runner, table, rotary, out)
    _pooled(runner, table, out, step)
    return out


def _compare(runner: DeviceRunner, table: Table, rotary: Array, out: Sweep) -> None:
    half, n = len(table.inv_freq), len(rotary)
    layout = Block({"rotary": (np.int32, (PAGE_TOKENS, 3))})
    pages = Pages(layout, [{}], [n // PAGE_TOKENS + 1])
    b = Builder(Frame(runner.tile), "rope")
    b.put("counts", counts(rows=n))
    pages.sequences(b)
    b.put("rows", row_table(np.zeros(n), np.arange(n), rotary))
    b.put("inv_freq", F32.encode(table.inv_freq))
    for name in ("cos", "sin"):
        b.room(name, n * half * 4)
        b.output(name, 0, name, 0, F32, (n, half))
    pages.put(b)
    params = struct(
        "RopeParams",
        half_dim=half,
        section=SECTION,
        attention_factor=table.factor,
        rotary_offset=layout.offsets["rotary"],
    )
    launch = b.done((n,), params)
    result = runner(launch)
    angle = angles(rotary, table.inv_freq, SECTION)
    factor = float(np.float32(table.factor))
    for o, f in zip(launch.outputs, (np.cos, np.sin), strict=True):
        error = np.abs(o.values(result) - f(angle) * factor) / (UNIT * factor)
        out.n_values += error.size
        if error.max() > out.worst:
            row, j = np.unravel_index(int(error.argmax()), error.shape)
            axis = int(j % 3) if j % 3 and j < 3 * SECTION[int(j % 3)] else 0
            out.worst, out.worst_at = float(error.max()), (int(rotary[row, axis]), int(j), axis)
    exact = rotary[:, [int(j % 3) if j % 3 and j < 3 * SECTION[int(j % 3)] else 0 for j in range(half)]]
    out.definition = max(
        out.definition, float(np.abs(angle - exact * table.inv_freq.astype(np.float64)).max())
    )


def _pooled(runner: DeviceRunner, table: Table, out: Sweep, step: int, ratio: int = 4) -> None:
    """Blocks of a constant key, which pool to cos - sin and cos + sin of their first row's angles."""
    half, dim = len(table.inv_freq), 2 * len(table.inv_freq)
    layout = Block(
        {
            "rotary": (np.int32, (PAGE_TOKENS, 3)),
            "raw": (F32, (PAGE_TOKENS, dim)),
            "pooled": (F32, (PAGE_TOKENS // ratio, dim)),
        }
    )
    starts = range(0, POSITIONS, CHUNK)
    for start in starts[::step] if step > 1 else starts:
        n = min(CHUNK, POSITIONS - start) // PAGE_TOKENS * PAGE_TOKENS
        if not n:
            continue
        at = np.arange(start, start + n)
        rotary = np.stack([at * s % POSITIONS for s in STRIDES[0]], 1).astype(np.int32)
        n_pages = n // PAGE_TOKENS
        contents: dict[str, Array] = {
            "rotary": rotary.reshape(n_pages, PAGE_TOKENS, 3),
            "raw": np.ones((n_pages, PAGE_TOKENS, dim)),
        }
        pages = Pages(layout, [contents], [n_pages])
        b = Builder(Frame(runner.tile), "index_pool_f32")
        b.put("counts", counts(rows=n // ratio))
        pages.sequences(b)
        b.put("rows", row_table(np.zeros(n // ratio), np.arange(ratio - 1, n, ratio)))
        b.put("gamma", F32.encode(np.ones(dim)))
        b.put("inv_freq", F32.encode(table.inv_freq))
        pages.put(b)
        for page in range(n_pages):
            pages.output(b, "pooled", page, 0, page, "pooled", (slice(None),))
        params = struct(
            "IndexPoolParams",
            index_dim=dim,
            ratio=ratio,
            half_dim=half,
            section=SECTION,
            attention_factor=table.factor,
            eps=0.0,
            **{f"{key}_offset": offset for key, offset in layout.offsets.items()},
        )
        launch = b.done((n // ratio,), params)
        result = runner(launch)
        angle = angles(rotary[::ratio], table.inv_freq, SECTION)
        factor = float(np.float32(table.factor))
        cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
        found = np.concatenate([o.values(result) for o in launch.outputs])
        error = np.abs(found - np.concatenate([cos - sin, cos + sin], 1)) / (UNIT * factor)
        out.n_blocks += len(found)
        out.worst_block = max(out.worst_block, float(error.max()))
