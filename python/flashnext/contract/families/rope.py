"""rope: cos and sin of each row's rotary angles; the row's rotary positions go into its page.

angle_j = float32(position on the axis of j) * float32(inv_freq_j), itself a float32; cos and sin of exactly
that, times the attention factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import UNIT, Approx
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.pages import Pages, angles, pages_of, row_table
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.sequences import Block
from flashnext.contract.structs import PAGE_TOKENS, counts, struct

SPARE = 2
TRIG_ULPS = 4.0  # of values up to 1: what cos and sin may be off


def cos_sin(angle: Array, factor: float) -> tuple[Approx, Approx]:
    """Cos and sin of float32 angles, times the attention factor."""
    out = []
    for f in (np.cos, np.sin):
        value = f(angle)
        out.append(
            Approx(value, np.full_like(value, TRIG_ULPS * UNIT))
            * Approx.exact(np.float64(np.float32(factor)))
        )
    return out[0], out[1]


def frequencies(half: int, theta: float) -> Array:
    """theta^(-j / half) in float32."""
    return F32.rounded(theta ** (-np.arange(half) / half))


@register
class Rope(Family):
    """The rotary table of a pass."""

    name = "rope"
    types = ()
    envelope = "half up to 256; rotary positions from 0 to 2^24"
    nonfinite = "positions are whole numbers; a NaN frequency gives NaN"
    order = "no sums"
    launch_record = (
        "0 counts, 1 sequences, 2 rows, 3 inv_freq float[half_dim], 4 cos, 5 sin float[R, half_dim]; grid "
        "(R); pages: rotary "
        "int32[kPageTokens, 3]"
    )
    shared = ("inv_freq",)
    shapes = tuple(
        {"rows": r, "section": section, "theta": theta, "factor": factor, "far": far}
        for r, section, theta, factor, far in (
            (1, (1, 0, 0), 1e4, 1.0, 10),
            (9, (2, 1, 1), 1e4, 1.0, 300),
            (70, (6, 5, 5), 1e5, 1.0, 8192),
            (33, (11, 11, 10), 1e7, 1.0, 1 << 20),
            (33, (11, 11, 10), 1e7, 1.1386294, 1 << 20),
            (5, (32, 0, 0), 1e7, 1.0, 1 << 24),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n = shape["rows"]
        rotary = rng.integers(0, shape["far"], (n, 3)).astype(np.int32)
        rotary[0] = shape["far"] - 1
        return {
            "inv_freq": frequencies(sum(shape["section"]), shape["theta"]),
            "rotary": rotary,
            "sequence": np.arange(n) % 2,
            "position": rng.permutation(3 * PAGE_TOKENS)[:n],
            "section": shape["section"],
            "factor": shape["factor"],
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, half = Builder(frame, self.kernel(None)), list(pick), sum(shape["section"])
        layout = Block({"other": (np.int32, (5,)), "rotary": (np.int32, (PAGE_TOKENS, 3))})
        n_pages = pages_of(3 * PAGE_TOKENS)
        pages = Pages(layout, [{}, {}], [n_pages, n_pages])
        sequence, position, rotary = (data[key][at] for key in ("sequence", "position", "rotary"))
        b.put("counts", counts(rows=len(at)))
        pages.sequences(b)
        b.put("rows", row_table(sequence, position, rotary))
        b.put("inv_freq", F32.encode(data["inv_freq"]))
        for name in ("cos", "sin"):
            b.room(name, (len(at) + SPARE) * half * 4)
            b.rows(name, name, at, F32, (half,))
        pages.put(b)
        for unit in at:
            page, row = divmod(int(data["position"][unit]), PAGE_TOKENS)
            pages.output(b, "rotary", unit, int(data["sequence"][unit]), page, "rotary", (row,))
        params = struct(
            "RopeParams", half_dim=half, section=data["section"], attention_factor=data["factor"],
            rotary_offset=layout.offsets["rotary"],
        )  # fmt: skip
        return b.done((len(at) + SPARE,), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        cos, sin = cos_sin(angles(data["rotary"], data["inv_freq"], shape["section"]), shape["factor"])
        n = shape["rows"]
        return {
            "cos": [cos[r] for r in range(n)],
            "sin": [sin[r] for r in range(n)],
            "rotary": list(data["rotary"]),
        }

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        faults = [
            Fault("wrong position: one row on", "sums", lambda d: {"rotary": d["rotary"] + np.int32(1)}),
            Fault(
                "wrong scale of the frequencies",
                "sums",
                lambda d: {"inv_freq": d["inv_freq"] * (1 + 2.0**-10)},
            ),
            Fault("wrong scale: no attention factor", "sums", lambda d: {"factor": d["factor"] * 1.01}),
        ]
        if shape["section"][1]:
            faults += [
                Fault(
                    "wrong axis: h and w exchanged", "sums", lambda d: {"rotary": d["rotary"][:, [0, 2, 1]]}
                ),
                Fault(
                    "wrong axis: sections not interleaved",
                    "sums",
                    lambda d: {"section": (sum(shape["section"]), 0, 0)},
                ),
            ]
        return faults
