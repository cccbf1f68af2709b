"""ple_gate, ple_conv: the n-gram embedding on its way into the streams.

k = rms_D(key; gamma_key), q = rms_D(streams; gamma_query), s_j = <k_j, q_j> / sqrt(D)
a_j = sigmoid(sign(s_j) sqrt(max(|s_j|, 1e-6))), U = (a_j value), N = rms_D(U; gamma_conv)
h += U + silu(sum over taps j of w_j N_{t - (n_taps - 1 - j) dilation})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashnext.contract.approx import Approx, unit_rms
from flashnext.contract.convolution import convolution, convolution_faults, last_rows
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.sequences import MAX_ROWS, SPARE, Block, Memory, SequenceFamily, mark_faults
from flashnext.contract.structs import counts, struct

EPS = 1e-6
GATE_FLOOR = float(np.float32(1e-6))


@register
class PleGate(Family):
    """U and N of each row; a score of exactly 0 has the gate one half."""

    name = "ple_gate"
    envelope = "hidden a multiple of 32, any number of streams"
    nonfinite = "reaches U and N of its own row and stream; a value's NaN reaches all streams"
    order = "over D in a fixed order; each stream alone"
    launch_record = (
        "0 counts, 1 key T[R, W], 2 value T[R, D], 3 streams T[R, W], 4 gamma_key, 5 gamma_query, 6 "
        "gamma_conv float[W], "
        "7 gated T[R, W], 8 normed T[R, W]; grid (R)"
    )
    per_unit = ("key", "value", "streams")
    shared = ("gamma_key", "gamma_query", "gamma_conv")
    shapes = tuple(
        {"rows": r, "hidden": d, "streams": s}
        for r, d, s in ((1, 32, 1), (5, 64, 4), (33, 96, 2), (3, 2560, 4))
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        size = (shape["rows"], shape["streams"], shape["hidden"])
        data: dict[str, Any] = {
            "key": scalar.rounded(rng.standard_normal(size)),
            "value": scalar.rounded(rng.standard_normal((size[0], size[2]))),
            "streams": scalar.rounded(rng.standard_normal(size) * 3),
        }
        for name in self.shared:
            data[name] = F32.rounded(1 + 0.3 * rng.standard_normal(size[1:]))
        data["key"][0, 0] = 0  # a score of zero
        return data

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at = Builder(frame, self.kernel(scalar)), list(pick)
        b.put("counts", counts(rows=len(at)))
        for name in self.per_unit:
            b.put(name, scalar.encode(np.asarray(data[name])[at]))
        for name in self.shared:
            b.put(name, F32.encode(data[name]))
        size = (shape["streams"], shape["hidden"])
        for name in ("gated", "normed"):
            b.room(name, (len(at) + SPARE) * size[0] * size[1] * scalar.size_bytes)
            b.rows(name, name, at, scalar, size)
        params = struct("PleGateParams", hidden=size[1], hc_count=size[0], eps=EPS)
        return b.done((len(at) + SPARE,), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        gated, normed = [], []
        for r in range(shape["rows"]):
            k = unit_rms(Approx.exact(data["key"][r]), EPS) * Approx.exact(data["gamma_key"])
            q = unit_rms(Approx.exact(data["streams"][r]), EPS) * Approx.exact(data["gamma_query"])
            score = (k * q).sum(keepdims=True) / float(np.sqrt(shape["hidden"]))
            u = _gate(score) * Approx.exact(data["value"][r][None])
            gated.append(u)
            normed.append(unit_rms(u, EPS) * Approx.exact(data["gamma_conv"]))
        return {"gated": gated, "normed": normed}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["streams"] < 2:
            return ()
        return (
            Fault("wrong axis: streams exchanged", "sums", lambda d: {"key": d["key"][:, ::-1]}),
            Fault(
                "wrong scale of the key's gamma", "sums", lambda d: {"gamma_conv": d["gamma_conv"] * 1.125}
            ),
            Fault("dropped tail of the streams", "sums", lambda d: {"streams": _without_tail(d["streams"])}),
        )


def _without_tail(x: Array) -> Array:
    out = np.array(x)
    out[..., out.shape[-1] // 2 :] = 0
    return out


def _gate(score: Approx) -> Approx:
    """Apply sigmoid(sign(s) sqrt(max(|s|, floor))); where the sign is open, on either side of one half."""

    def f(s: Array) -> Array:
        size = np.sqrt(np.maximum(np.abs(s), GATE_FLOOR))
        return np.asarray(1 / (1 + np.exp(-np.sign(s) * size)))

    return score.monotone(f, 12)


@register
class PleConv(SequenceFamily):
    """Streams plus U plus the convolution of N; the tail of N settles."""

    name = "ple_conv"
    envelope = "width a multiple of 32, 1 <= n_taps <= 8, dilation >= 1"
    nonfinite = "a NaN in N reaches the rows whose taps read it, a NaN in U or a stream its own row"
    order = "taps from the oldest to the row itself"
    launch_record = (
        "0 counts, 1 sequences, 2 normed T[R, W], 3 gated T[R, W], 4 taps float[n_taps, W], 5 "
        "streams T[R, W] io; "
        "grid (sequences, ceil(W / tile)); state T[(n_taps - 1) * dilation, W], also at marks"
    )
    row_keys = ("normed", "gated", "streams")
    state_keys = ("tail",)
    kept_keys = ("kept",)
    per_unit = ("normed", "gated", "streams", "tail", "kept")
    shared = ("taps",)
    shapes = (
        *(
            {"passes": p, "width": 96, "taps": 4, "dilation": 3}
            for p in ("marked", "one prompt", "one row", "one window", "mixed", "long")
        ),
        *(
            {"passes": "mixed", "width": w, "taps": t, "dilation": d}
            for w, t, d in ((32, 1, 1), (512, 2, 2), (544, 4, 1), (1056, 3, 5))
        ),
        {"passes": "one prompt", "width": 10240, "taps": 4, "dilation": 3},
    )

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        data = self.passes(shape)
        width, n_tail = shape["width"], (shape["taps"] - 1) * shape["dilation"]
        for key in self.row_keys:
            data[key] = [scalar.rounded(rng.standard_normal((n, width))) for n in data["n_rows"]]
        data["kept"] = [scalar.rounded(rng.standard_normal((n, width))) for n in data["n_kept"]]
        data["tail"] = [scalar.rounded(rng.standard_normal((n_tail, width))) for _ in data["n_rows"]]
        data["taps"] = F32.rounded(rng.standard_normal((shape["taps"], width)))
        return data

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        width, n_tail = shape["width"], (shape["taps"] - 1) * shape["dilation"]
        b = Builder(frame, self.kernel(scalar))
        state, rows = Block({"tail": (scalar, (n_tail, width))}), Block({"kept": (scalar, (MAX_ROWS, width))})
        memory = Memory(self, data, pick, state, rows)
        firsts = self.first_rows(data, pick)
        b.put("counts", counts(rows=firsts[-1], sequences=len(pick)))
        memory.sequences(b)
        b.put("normed", scalar.encode(self.packed(data, "normed", pick)))
        b.put("gated", scalar.encode(self.packed(data, "gated", pick)))
        b.put("taps", F32.encode(data["taps"]))
        b.put("streams", scalar.encode(self.packed(data, "streams", pick)))
        for unit, first in zip(pick, firsts, strict=False):
            at = first * width * scalar.size_bytes
            b.output("streams", unit, "streams", at, scalar, (data["n_rows"][unit], width), updated=True)
        memory.put(b)
        params = struct(
            "PleConvParams", width=width, n_taps=shape["taps"], dilation=shape["dilation"],
            state_offset=state.offsets["tail"], unsettled_offset=rows.offsets["kept"],
        )  # fmt: skip
        return b.done((len(pick) + SPARE, -(-width // frame.tile(b.kernel))), params)

    def without_marks(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        streams, tails, left = [], [], []
        for unit in range(self.units(shape)):
            settled = last_rows(data["tail"][unit], data["kept"][unit])
            rows = np.asarray(data["normed"][unit])
            sums = convolution(settled, rows, data["taps"], shape["dilation"])
            added = Approx.exact(data["gated"][unit]) + sums.silu()
            streams.append(Approx.exact(data["streams"][unit]) + added)
            tail = settled if data["is_window"][unit] else last_rows(settled, rows)
            tails.append(scalar.encode(tail))
            left.append(scalar.encode(rows))
        return {"streams": streams, "tail": tails, "kept": left}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        return (*convolution_faults(shape, data), *mark_faults(data))
