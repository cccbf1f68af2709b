"""hc_norm, hc_mix: the read side of a hyper-connection.

norm   n = rms_D(h; gamma), one mean square a stream
mix    u = mean over streams of sigmoid(W_up low) * n
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import Approx, unit_rms
from flashnext.contract.families.matmul import zero_tail
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.matrices import FORMATS, Matrix
from flashnext.contract.scalars import BF16, F32, Array, Scalar
from flashnext.contract.structs import COUNT_LOGITS, COUNT_ROWS, counts, struct

SPARE = 2
EPS = 1e-6


def _counts(shape: Shape, n: int) -> Array:
    return counts(logits=n) if shape.get("count") == COUNT_LOGITS else counts(rows=n)


@register
class HcNorm(Family):
    """Each stream of each row normalized and scaled."""

    name = "hc_norm"
    envelope = "hidden a multiple of 32, any number of streams"
    nonfinite = "reaches its own stream"
    order = "over D in a fixed order"
    launch_record = (
        "0 counts, 1 streams T[R, W], 2 gamma float[W], 3 out T[R, W]; grid (R, S); rows or logit rows"
    )
    per_unit = ("streams",)
    shared = ("gamma",)
    shapes = (
        *(
            {"rows": r, "hidden": d, "streams": s}
            for r, d, s in ((1, 32, 1), (5, 64, 4), (33, 96, 2), (3, 2560, 4))
        ),
        {"rows": 4, "hidden": 256, "streams": 5, "count": COUNT_LOGITS},
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        size = (shape["rows"], shape["streams"], shape["hidden"])
        streams = rng.standard_normal(size) * 10.0 ** rng.uniform(-5, 3, (*size[:2], 1))
        if size[0] > 1:
            streams[0, 0] = 0
        return {
            "streams": scalar.rounded(streams),
            "gamma": F32.rounded(1 + 0.3 * rng.standard_normal(size[1:])),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at = Builder(frame, self.kernel(scalar)), list(pick)
        size = (shape["streams"], shape["hidden"])
        b.put("counts", _counts(shape, len(at)))
        b.put("streams", scalar.encode(data["streams"][at]))
        b.put("gamma", F32.encode(data["gamma"]))
        b.room("out", (len(at) + SPARE) * size[0] * size[1] * scalar.size_bytes)
        b.rows("out", "out", at, scalar, size)
        params = struct(
            "HcNormParams", hidden=size[1], hc_count=size[0], count=shape.get("count", COUNT_ROWS), eps=EPS
        )
        return b.done((len(at) + SPARE, size[0]), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        gamma = Approx.exact(data["gamma"])
        return {"out": [unit_rms(Approx.exact(h), EPS) * gamma for h in data["streams"]]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["streams"] < 2:
            return ()
        faults = [
            Fault(
                "wrong axis: gammas of the streams exchanged", "sums", lambda d: {"gamma": d["gamma"][::-1]}
            ),
            Fault(
                "wrong position: gamma moved by one", "sums", lambda d: {"gamma": np.roll(d["gamma"], 1, 1)}
            ),
            Fault("dropped tail of a stream", "sums", lambda d: {"streams": zero_tail(d["streams"], 8)}),
        ]
        if scalar is F32:
            faults.append(
                Fault(
                    "reordered sum: one stream a little longer in company", "repeat", _longer, in_company=True
                )
            )
        return faults


def _longer(data: Data) -> Data:
    """Move what another order of a stream's sum would: here gamma, by one unit in the last place."""
    return {"gamma": np.nextafter(np.asarray(data["gamma"], np.float32), np.float32(0)).astype(np.float64)}


@register
class HcMix(Family):
    """The block input: the mean over streams of gate times normed stream."""

    name = "hc_mix"
    envelope = "rank a multiple of 32 and of the group, hidden >= 1, any number of streams"
    nonfinite = "low reaches all of its row, a weight its column, a normed value its place"
    order = "over the rank as matmul; streams ascending"
    launch_record = (
        "0 counts, 1 low T[R, rank], 2 codes, 3 scales, 4 biases of W_up [W, rank], 5 normed T[R, "
        "W], 6 out T[R, D]; grid "
        "(ceil(D / tile), ceil(R / rows)); rows or logit rows"
    )
    per_unit = ("low", "normed")
    shared = ("up",)
    shapes = (
        *({"rows": 4, "hidden": 40, "streams": 4, "rank": 128, **f} for f in FORMATS),
        *(
            {"rows": r, "hidden": d, "streams": s, "rank": k, "bits": b, "group": g}
            for r, d, s, k, b, g in (
                (1, 15, 2, 32, 16, 0),
                (1, 16, 1, 32, 4, 32),
                (65, 17, 3, 64, 6, 64),
                (130, 33, 4, 64, 16, 0),
                (2, 64, 4, 320, 6, 32),
            )
        ),
        {"rows": 3, "hidden": 32, "streams": 4, "rank": 32, "bits": 16, "group": 0, "count": COUNT_LOGITS},
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        rows, size = shape["rows"], (shape["streams"], shape["hidden"])
        return {
            "low": scalar.rounded(rng.standard_normal((rows, shape["rank"]))),
            "up": Matrix.draw(rng, (size[0] * size[1], shape["rank"]), shape["bits"], shape["group"]),
            "normed": scalar.rounded(rng.standard_normal((rows, *size))),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at = Builder(frame, self.kernel(scalar)), list(pick)
        hidden = shape["hidden"]
        b.put("counts", _counts(shape, len(at)))
        b.put("low", scalar.encode(data["low"][at]))
        data["up"].put(b, "up")
        b.put("normed", scalar.encode(data["normed"][at]))
        b.room("out", (len(at) + SPARE) * hidden * scalar.size_bytes)
        b.rows("out", "out", at, scalar, (hidden,))
        params = struct(
            "HcMixParams",
            format=data["up"].format,
            hidden=hidden,
            hc_count=shape["streams"],
            rank=shape["rank"],
            count=shape.get("count", COUNT_ROWS),
        )
        return b.done(frame.grid(b.kernel, hidden, len(at) + SPARE), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        size = (shape["streams"], shape["hidden"])
        y = data["up"].dot(Approx.exact(data["low"]), scalar)
        # Whole numbers cannot tell an infinity from a NaN, which sigmoid would.
        open_ = (~np.isfinite(y.value) & (shape["bits"] != 16) & (scalar is BF16)).reshape(-1, *size).any(1)
        gate = y.sigmoid().reshape(-1, *size)
        mixed = (gate * Approx.exact(data["normed"])).sum(1) / float(size[0])
        mixed = Approx(np.where(open_, 0.0, mixed.value), np.where(open_, np.inf, mixed.error))
        return {"out": [mixed[r] for r in range(shape["rows"])]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["streams"] < 2:
            return ()
        wide = shape["streams"] * shape["hidden"]
        across = np.arange(wide).reshape(shape["streams"], -1).T.reshape(-1)
        return (
            Fault("wrong axis: W_up read stream by stream", "sums", lambda d: {"up": d["up"].rows(across)}),
            Fault(
                "wrong position: normed moved by one",
                "sums",
                lambda d: {"normed": np.roll(d["normed"], 1, -1)},
            ),
            Fault("wrong scale of low", "sums", lambda d: {"low": d["low"] * 2}),
            Fault("dropped tail: the last stream", "sums", _one_stream_less),
        )


def _one_stream_less(data: Data) -> Data:
    normed = np.array(data["normed"])
    normed[:, -1] = 0
    return {"normed": normed}
