"""slice_attention: each patch of a slice attends to all of it; softmax(q k / sqrt(head_dim)) applied to v."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import Approx, dot, stack
from flashnext.contract.families.attention import attend
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.structs import SLICE_SPAN, STRUCTS, struct

SPARE = 2
BEFORE = 3  # patches of the pass that the launch has no tiles for


@register
class SliceAttention(Family):
    """Attention within slices; the unit is the slice."""

    name = "slice_attention"
    types = ()
    envelope = "head_dim a multiple of 4 up to 96, slices of one patch and more"
    nonfinite = "of a query its head, of a key or value the heads of all patches of its slice"
    order = "keys ascending from the slice's first, in spans of 128, spans ascending"
    launch_record = (
        "0 tiles SliceTile[n], 1 qkv float[P, 3 D'], 2 out float[.., D']; grid (n, heads); each block of the "
        "tower (cpp/model/tower.cpp)"
    )
    per_unit = ("qkv",)
    shapes = tuple(
        {"slices": slices, "heads": h, "dim": d}
        for slices, h, d in (
            ((1,), 1, 4),
            ((4, 1, 9), 2, 12),
            ((31, 33, 32), 1, 32),
            ((127, 128, 129, 5), 1, 36),
            ((63, 64, 65), 4, 32),
            ((24, 200), 2, 96),
            ((300,), 2, 72),
            ((513, 20), 1, 72),
        )
    )

    def units(self, shape: Shape) -> int:
        return len(shape["slices"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        size = (3, shape["heads"], shape["dim"])
        qkv = [F32.rounded(rng.standard_normal((n, *size)) * 1.5) for n in shape["slices"]]
        return {"qkv": qkv, "scale": np.float32(shape["dim"] ** -0.5), "keys_off": 0}

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, heads, dim = Builder(frame, self.kernel(None)), shape["heads"], shape["dim"]
        tile = frame.tile(b.kernel)
        rows: list[Array] = [np.full((BEFORE, 3, heads, dim), np.nan)]
        tiles, starts, at = [], [], BEFORE
        for unit in pick:
            n = len(data["qkv"][unit])
            for first in range(0, n, tile):
                tiles.append((at + first, min(tile, n - first), at, n - data["keys_off"]))
            starts.append(at)
            rows.append(data["qkv"][unit])
            at += n
        table = np.zeros(len(tiles), STRUCTS["SliceTile"])
        for i, values in enumerate(tiles):
            table[i] = values
        b.put("tiles", table)
        b.put("qkv", F32.encode(np.concatenate(rows)))
        row = heads * dim * 4
        b.room("out", (at - BEFORE + SPARE) * row)
        for unit, start in zip(pick, starts, strict=True):
            n = len(data["qkv"][unit])
            b.output("out", unit, "out", (start - BEFORE) * row, F32, (n, heads, dim))
        params = struct(
            "SliceAttentionParams", n_heads=heads, head_dim=dim, first_row=BEFORE, scale=data["scale"]
        )
        return b.done((len(tiles), heads), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        out = []
        for qkv in data["qkv"]:
            heads = []
            for h in range(shape["heads"]):
                q, k, v = qkv[:, 0, h], qkv[:, 1, h], qkv[:, 2, h]
                scores = dot(Approx.exact(q), Approx.exact(k)) * float(data["scale"])
                heads.append(attend(scores, v, -(-len(qkv) // SLICE_SPAN)))
            each = stack(heads)
            out.append(Approx(each.value.swapaxes(0, 1), each.error.swapaxes(0, 1)))
        return {"out": out}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if min(shape["slices"]) < 2:
            return ()
        faults = [
            Fault(
                "wrong position: values one patch on", "sums",
                lambda d: {"qkv": [_with(x, 2, np.roll(x[:, 2], 1, 0)) for x in d["qkv"]]},
            ),
            Fault("wrong scale of the scores", "sums", lambda d: {"scale": d["scale"] * np.float32(1.125)}),
            Fault("dropped tail: the last key", "sums", lambda d: {"keys_off": 1}),
            Fault(
                "reordered sum: keys backwards in company", "repeat",
                lambda d: {"qkv": [_backwards(x) for x in d["qkv"]]}, in_company=True,
            ),
        ]  # fmt: skip
        if shape["heads"] > 1:
            faults.append(Fault(
                "wrong axis: keys of another head", "sums",
                lambda d: {"qkv": [_with(x, 1, x[:, 1, ::-1]) for x in d["qkv"]]},
            ))  # fmt: skip
        return faults


def _with(qkv: Array, part: int, values: Array) -> Array:
    out = np.array(qkv)
    out[:, part] = values
    return out


def _backwards(qkv: Array) -> Array:
    """Keys and values from the last to the first: the same sums in another order."""
    out = np.array(qkv)
    out[:, 1:] = qkv[::-1, 1:]
    return out
