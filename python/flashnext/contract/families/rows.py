"""embed, embed_media, copy_rows: rows on their way into the model and out of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import Approx
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch, Result
from flashnext.contract.matrices import FORMATS, Matrix
from flashnext.contract.scalars import Scalar
from flashnext.contract.structs import STRUCTS, counts, struct

SPARE = 2
COUNT_LOGITS = 2


@register
class Embed(Family):
    """Stream s of row r is the table's row of the token, for every s."""

    name = "embed"
    envelope = "hidden a multiple of 32 and of the group; tokens below the table's rows"
    nonfinite = "a NaN or infinity in the table reaches the streams of the tokens that read it"
    order = "no sums"
    launch_record = (
        "0 counts, 1 rows Row[R], 2 codes, 3 scales, 4 biases of [vocab, D], 5 streams T[R, W]; "
        "grid (R); first step of a pass"
    )
    shared = ("table",)
    shapes = (
        *({"rows": 5, "hidden": 128, "streams": 4, **f} for f in FORMATS),
        *(
            {"rows": rows, "hidden": 64, "streams": s, "bits": 6, "group": 32}
            for rows, s in ((1, 1), (33, 2), (70, 5))
        ),
        *(
            {"rows": 3, "hidden": h, "streams": 4, "bits": b, "group": g}
            for h, b, g in ((32, 16, 0), (2560, 16, 0), (2560, 4, 64))
        ),
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n = shape["rows"]  # as many table rows, each read by one row of the pass
        return {
            "table": Matrix.draw(rng, (n, shape["hidden"]), shape["bits"], shape["group"]),
            "tokens": rng.permutation(n),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(scalar))
        rows = np.zeros(len(pick), STRUCTS["Row"])
        rows["token"] = data["tokens"][list(pick)]
        b.put("counts", counts(rows=len(pick)))
        b.put("rows", rows)
        data["table"].put(b, "table")
        size = (shape["streams"], shape["hidden"])
        b.room("streams", (len(pick) + SPARE) * size[0] * size[1] * scalar.size_bytes)
        b.rows("streams", "streams", pick, scalar, size)
        params = struct("EmbedParams", format=data["table"].format, hidden=size[1], hc_count=size[0])
        return b.done((len(pick) + SPARE,), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        table: Matrix = data["table"]
        size = (shape["streams"], shape["hidden"])
        out = []
        for token in data["tokens"]:
            row = table.approx[int(token)]
            out.append(Approx(np.broadcast_to(row.value, size), np.broadcast_to(row.error, size)))
        return {"streams": out}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        order = np.arange(shape["hidden"]).reshape(-1, shape["group"] or 32)[:, ::-1].reshape(-1)
        faults = [
            Fault(
                "wrong axis: values of a group backwards",
                "sums",
                lambda d: {"table": d["table"].inputs(order)},
            )
        ]
        if shape["rows"] > 1:
            faults.append(
                Fault("wrong position: the next token", "sums", lambda d: {"tokens": np.roll(d["tokens"], 1)})
            )
        return faults


@register
class EmbedMedia(Family):
    """Stream s of a row that shows media is its feature, for every s; the others stay."""

    name = "embed_media"
    envelope = "hidden >= 1; features anywhere, in any order; of the rows beyond the count too"
    nonfinite = "copied like any value"
    order = "no sums"
    launch_record = (
        "0 counts, 1 features uint64[R] (address of T[D]; 0: none), 2 streams T[R, W] io; grid (R); "
        "behind embed"
    )
    shapes = tuple(
        {"rows": r, "hidden": d, "streams": s}
        for r, d, s in ((1, 1, 1), (5, 128, 4), (33, 64, 2), (70, 257, 5), (3, 2560, 4))
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n, width = shape["rows"], shape["hidden"]
        features = scalar.encode(rng.standard_normal((2 * n + SPARE, width)))
        features[0] = scalar.encode(np.resize([np.nan, np.inf, -np.inf, -0.0], width))
        return {
            "features": features,
            "shown": np.append(0, 1 + rng.permutation(2 * n)[: n - 1]),
            "shows": np.append(True, rng.random(n - 1) < 0.6),
            "streams": scalar.encode(rng.standard_normal((n, shape["streams"], width))),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, n, size = Builder(frame, self.kernel(scalar)), len(pick), shape["hidden"] * scalar.size_bytes
        b.put("counts", counts(rows=n))
        b.put("features", np.zeros(n + SPARE, np.uint64))
        streams = data["streams"][list(pick)]
        b.put("streams", np.concatenate([streams, streams[:1], streams[:1]]))
        b.put("memory", data["features"])
        for i, unit in enumerate([*pick, *[pick[0]] * SPARE]):
            if i >= n or data["shows"][unit]:
                b.address("features", i * 8, "memory", int(data["shown"][unit]) * size)
        b.rows("streams", "streams", pick, scalar.bits, streams.shape[1:], updated=True)
        params = struct("EmbedMediaParams", hidden=shape["hidden"], hc_count=shape["streams"])
        return b.done((n + SPARE,), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        shown = np.repeat(data["features"][data["shown"], None], shape["streams"], 1)
        return {"streams": list(np.where(data["shows"][:, None, None], shown, data["streams"]))}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        faults = [
            Fault(
                "wrong position: the feature behind",
                "sums",
                lambda d: {"shown": d["shown"] + 1},
            ),
            Fault("the token's embedding stays", "sums", lambda d: {"shows": np.zeros_like(d["shows"])}),
        ]
        if not data["shows"].all():
            faults.append(
                Fault("a row of text is written", "sums", lambda d: {"shows": np.ones_like(d["shows"])})
            )
        if shape["streams"] > 1:
            faults.append(Fault("dropped tail: the last stream", "sums", result=self._without_last))
        if shape["hidden"] > 1:
            faults.append(
                Fault("wrong axis: values backwards", "sums", lambda d: {"features": d["features"][:, ::-1]})
            )
        return faults

    @staticmethod
    def _without_last(launch: Launch, result: Result) -> None:
        for o in launch.outputs:
            o.view(result)[-1] = o.view(launch.slots)[-1]


@register
class CopyRows(Family):
    """Row i of the result is row map[i] of the source."""

    name = "copy_rows"
    envelope = "width >= 1"
    nonfinite = "copied like any value"
    order = "no sums"
    launch_record = (
        "0 counts, 1 map int32[N], 2 source T[.., width], 3 out T[N, width]; grid (N); before the head"
    )
    shapes = tuple({"rows": r, "width": w} for r, w in ((1, 1), (5, 31), (9, 64), (33, 257), (3, 10240)))

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n = shape["rows"]
        source = scalar.encode(rng.standard_normal((2 * n, shape["width"])))
        return {"source": source, "map": rng.permutation(2 * n)[:n].astype(np.int32)}

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(scalar))
        b.put("counts", counts(logits=len(pick)))
        b.put("map", data["map"][list(pick)])
        b.put("source", data["source"])
        b.room("out", (len(pick) + SPARE) * shape["width"] * scalar.size_bytes)
        b.rows("out", "out", pick, scalar.bits, (shape["width"],))
        return b.done(
            (len(pick) + SPARE,), struct("CopyRowsParams", width=shape["width"], count=COUNT_LOGITS)
        )

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        return {"out": list(data["source"][data["map"]])}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        return (
            Fault("wrong position: the map read from its end", "sums", lambda d: {"map": d["map"][::-1]})
            if shape["rows"] > 1
            else Fault(
                "wrong axis: values backwards", "sums", lambda d: {"source": d["source"][:, ::-1] + 1}
            ),
        )
