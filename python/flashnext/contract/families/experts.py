"""expert_gate_up, glu, expert_down: the experts between router and streams.

gate_up  act = silu(W_gate x) * (W_up x), for each pair of a row and an expert; glu: the same for the shared
expert down     y = sum over a row's experts by ascending id of weight_e W_down_e act_e, then shared_gate *
W_down_s act_s,
         rounded once; stream s += gates_s * y
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import Approx, gamma
from flashnext.contract.families.matmul import zero_tail
from flashnext.contract.families.router import sorted_pairs
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.matrices import Matrix
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.structs import counts, struct

SPARE = 2
_FORMATS = ((16, 0), (2, 32), (3, 64), (4, 32), (4, 64), (5, 128), (6, 32), (6, 64), (8, 64))


def _ids(rng: np.random.Generator, rows: int, experts: int, top_k: int) -> Array:
    return np.array([np.sort(rng.permutation(experts)[:top_k]) for _ in range(rows)], np.int32)


def _put_pairs(b: Builder, ids: Array) -> tuple[Array, int]:
    active, starts, pairs = sorted_pairs(ids)
    b.put("active", np.concatenate([[len(active)], active]).astype(np.int32))
    b.put("starts", starts)
    b.put("pairs", pairs)
    return pairs, len(active)


def _glu(x: Approx, gate: Matrix, up: Matrix, scalar: Scalar) -> Approx:
    return gate.dot(x, scalar).silu() * up.dot(x, scalar)


@register
class ExpertGateUp(Family):
    """The activations of each row's experts, in pair order."""

    name = "expert_gate_up"
    envelope = "n_in a multiple of 32 and of the group, width >= 1, top_k <= 64"
    nonfinite = "reaches the activations that it is multiplied into"
    order = "as matmul, for any number of rows an expert has"
    launch_record = (
        "0 counts, 1 active, 2 starts, 3 pairs, 4 x T[R, D], 5 to 7 gate, 8 to 10 up [n_experts, "
        "width, D], 11 act "
        "T[R * top_k, width]; grid (ceil(width / tile), active experts)"
    )
    per_unit = ("x",)
    shapes = (
        *(
            {"rows": 6, "experts": 5, "top_k": 2, "n_in": 128, "width": 40, "bits": b, "group": g}
            for b, g in _FORMATS
        ),
        *(
            {"rows": r, "experts": e, "top_k": k, "n_in": 64, "width": w, "bits": b, "group": g}
            for r, e, k, w, b, g in (
                (1, 3, 1, 1, 16, 0),
                (1, 9, 4, 31, 4, 32),
                (70, 4, 2, 33, 6, 64),
                (140, 2, 1, 32, 16, 0),
                (33, 4, 4, 64, 4, 32),
            )
        ),
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        size = (shape["experts"], shape["width"], shape["n_in"])
        return {
            "x": scalar.rounded(rng.standard_normal((shape["rows"], shape["n_in"]))),
            "ids": _ids(rng, shape["rows"], shape["experts"], shape["top_k"]),
            "gate": Matrix.draw(rng, size, shape["bits"], shape["group"]),
            "up": Matrix.draw(rng, size, shape["bits"], shape["group"]),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, top_k, width = Builder(frame, self.kernel(scalar)), list(pick), shape["top_k"], shape["width"]
        b.put("counts", counts(rows=len(at)))
        pairs, n_active = _put_pairs(b, data["ids"][at])
        b.put("x", scalar.encode(data["x"][at]))
        data["gate"].put(b, "gate")
        data["up"].put(b, "up")
        b.room("act", (len(pairs) + SPARE) * width * scalar.size_bytes)
        for place, pair in enumerate(pairs):
            row, slot = divmod(int(pair), top_k)
            b.output(f"act {slot}", at[row], "act", place * width * scalar.size_bytes, scalar, (width,))
        params = struct(
            "GluParams", format=data["gate"].format, n_in=shape["n_in"], width=width, top_k=top_k,
            codes_stride=data["gate"].codes_stride, scales_stride=data["gate"].scales_stride,
        )  # fmt: skip
        return b.done((-(-width // frame.tile(b.kernel)), n_active + SPARE), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        x = Approx.exact(data["x"])
        each = [_glu(x, data["gate"].rows(e), data["up"].rows(e), scalar) for e in range(shape["experts"])]
        return {
            f"act {slot}": [each[int(data["ids"][r, slot])][r] for r in range(shape["rows"])]
            for slot in range(shape["top_k"])
        }

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["width"] < 2:
            return ()
        faults = [
            Fault("wrong axis: gate and up exchanged", "sums", lambda d: {"gate": d["up"], "up": d["gate"]}),
            Fault("dropped tail of the inputs", "sums", lambda d: {"x": zero_tail(d["x"], 32)}),
        ]
        if shape["experts"] > 1:
            other = np.roll(np.arange(shape["experts"]), 1)
            faults.append(
                Fault("wrong position: the next expert", "sums", lambda d: {"up": d["up"].rows(other)})
            )
        return faults


@register
class Glu(Family):
    """The activations of the shared expert."""

    name = "glu"
    envelope = ExpertGateUp.envelope
    nonfinite = ExpertGateUp.nonfinite
    order = "as matmul"
    launch_record = (
        "0 counts, 1 x T[R, D], 2 to 4 gate, 5 to 7 up [width, D], 8 act T[R, width]; grid "
        "(ceil(width / tile), ceil(R / rows))"
    )
    per_unit = ("x",)
    shared = ("gate", "up")
    shapes = (
        *({"rows": 6, "n_in": 128, "width": 40, "bits": b, "group": g} for b, g in _FORMATS),
        *(
            {"rows": r, "n_in": n, "width": w, "bits": b, "group": g}
            for r, n, w, b, g in (
                (1, 32, 1, 16, 0),
                (1, 64, 31, 4, 32),
                (70, 64, 33, 6, 64),
                (140, 32, 32, 16, 0),
                (2, 2560, 64, 6, 32),
            )
        ),
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        size = (shape["width"], shape["n_in"])
        return {
            "x": scalar.rounded(rng.standard_normal((shape["rows"], shape["n_in"]))),
            "gate": Matrix.draw(rng, size, shape["bits"], shape["group"]),
            "up": Matrix.draw(rng, size, shape["bits"], shape["group"]),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, width = Builder(frame, self.kernel(scalar)), list(pick), shape["width"]
        b.put("counts", counts(rows=len(at)))
        b.put("x", scalar.encode(data["x"][at]))
        data["gate"].put(b, "gate")
        data["up"].put(b, "up")
        b.room("act", (len(at) + SPARE) * width * scalar.size_bytes)
        b.rows("act", "act", at, scalar, (width,))
        params = struct("GluParams", format=data["gate"].format, n_in=shape["n_in"], width=width, top_k=1)
        return b.done(frame.grid(b.kernel, width, len(at) + SPARE), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        act = _glu(Approx.exact(data["x"]), data["gate"], data["up"], scalar)
        return {"act": [act[r] for r in range(shape["rows"])]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        return (
            Fault("wrong axis: gate and up exchanged", "sums", lambda d: {"gate": d["up"], "up": d["gate"]}),
            Fault("wrong scale of the inputs", "sums", lambda d: {"x": 1.5 * d["x"]}),
        )


def _down(
    rows: int,
    experts: int,
    top_k: int,
    hidden: int,
    routed: tuple[int, int, int],
    shared: tuple[int, int, int],
) -> Shape:
    """Make a shape; an expert is (width, bits, group)."""
    return {
        "rows": rows, "experts": experts, "top_k": top_k, "hidden": hidden, "streams": 3,
        "width": routed[0], "bits": routed[1], "group": routed[2],
        "shared": shared[0], "shared_bits": shared[1], "shared_group": shared[2],
    }  # fmt: skip


@register
class ExpertDown(Family):
    """The experts' outputs, summed and written into the streams."""

    name = "expert_down"
    envelope = "width and shared_width multiples of 32 and of their group, hidden >= 1, top_k <= 64"
    nonfinite = "an activation reaches all of its row, a weight its column, a stream its place"
    order = "a row's experts by ascending id, the shared one last; each product as matmul"
    launch_record = (
        "0 counts, 1 active, 2 starts, 3 pairs, 4 weights float[R, top_k], 5 act T[R * top_k, "
        "width], 6 to 8 down "
        "[n_experts, D, width], 9 shared act T[R, shared_width], 10 to 12 shared down, 13 shared "
        "gate float[R], 14 gates "
        "float[R, S], 15 streams T[R, W] io; grid (ceil(D / tile), ceil(R / rows))"
    )
    per_unit = ("act", "weights", "shared_act", "shared_gate", "gates", "streams")
    shared = ("shared_down",)
    shapes = (
        *(_down(6, 5, 2, 40, (128, b, g), (128, b, g)) for b, g in _FORMATS),
        _down(1, 3, 1, 1, (32, 16, 0), (32, 16, 0)),
        _down(1, 9, 4, 31, (64, 4, 32), (32, 6, 32)),
        _down(70, 4, 2, 33, (64, 6, 64), (96, 16, 0)),
        _down(515, 2, 2, 31, (32, 16, 0), (32, 4, 32)),
        _down(140, 2, 1, 32, (32, 16, 0), (64, 4, 32)),
        _down(3, 12, 10, 64, (640, 6, 32), (640, 6, 32)),
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        rows, hidden, top_k = shape["rows"], shape["hidden"], shape["top_k"]
        weights = rng.uniform(0.1, 1, (rows, top_k))
        return {
            "ids": _ids(rng, rows, shape["experts"], top_k),
            "weights": F32.rounded(weights / weights.sum(1, keepdims=True)),
            "act": scalar.rounded(rng.standard_normal((rows, top_k, shape["width"]))),
            "down": Matrix.draw(
                rng, (shape["experts"], hidden, shape["width"]), shape["bits"], shape["group"]
            ),
            "shared_act": scalar.rounded(rng.standard_normal((rows, shape["shared"]))),
            "shared_down": Matrix.draw(
                rng, (hidden, shape["shared"]), shape["shared_bits"], shape["shared_group"]
            ),
            "shared_gate": F32.rounded(rng.uniform(0, 1, (rows, 1))),
            "gates": F32.rounded(rng.uniform(0, 2, (rows, shape["streams"]))),
            "streams": scalar.rounded(rng.standard_normal((rows, shape["streams"], hidden))),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, top_k = Builder(frame, self.kernel(scalar)), list(pick), shape["top_k"]
        hidden, streams = shape["hidden"], shape["streams"]
        b.put("counts", counts(rows=len(at)))
        pairs, _ = _put_pairs(b, data["ids"][at])
        b.put("weights", F32.encode(data["weights"][at]))
        act = data["act"][at].reshape(-1, shape["width"])
        b.put("act", scalar.encode(act[pairs]))
        data["down"].put(b, "down")
        b.put("shared act", scalar.encode(data["shared_act"][at]))
        data["shared_down"].put(b, "shared down")
        b.put("shared gate", F32.encode(data["shared_gate"][at]))
        b.put("gates", F32.encode(data["gates"][at]))
        spare = np.zeros((SPARE, streams, hidden))
        b.put("streams", scalar.encode(np.concatenate([data["streams"][at], spare])))
        b.rows("streams", "streams", at, scalar, (streams, hidden), updated=True)
        params = struct(
            "ExpertDownParams",
            format=data["down"].format,
            shared_format=data["shared_down"].format,
            hidden=hidden,
            width=shape["width"],
            shared_width=shape["shared"],
            top_k=top_k,
            hc_count=streams,
            codes_stride=data["down"].codes_stride,
            scales_stride=data["down"].scales_stride,
        )
        return b.done(frame.grid(b.kernel, hidden, len(at) + SPARE), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        out = []
        for r in range(shape["rows"]):
            parts = []
            for slot, e in enumerate(data["ids"][r]):
                y = data["down"].rows(int(e)).dot(Approx.exact(data["act"][r][slot][None]), scalar)[0]
                parts.append(Approx.exact(data["weights"][r][slot]) * y)
            y = data["shared_down"].dot(Approx.exact(data["shared_act"][r][None]), scalar)[0]
            parts.append(Approx.exact(data["shared_gate"][r]) * y)
            value = np.sum([p.value for p in parts], 0)
            size = np.sum([p.magnitude for p in parts], 0)
            total = Approx(value, np.sum([p.error for p in parts], 0) + gamma(len(parts)) * size).stored(
                scalar
            )
            gates = Approx.exact(np.asarray(data["gates"][r])[:, None])
            out.append(
                Approx.exact(data["streams"][r]) + gates * Approx(total.value[None], total.error[None])
            )
        return {"streams": out}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        faults = [
            Fault(
                "wrong axis: gates of the streams exchanged", "sums", lambda d: {"gates": d["gates"][:, ::-1]}
            ),
            Fault(
                "dropped tail: without the shared expert",
                "sums",
                lambda d: {"shared_gate": 0 * d["shared_gate"]},
            ),
            Fault(
                "wrong scale of the shared expert", "sums", lambda d: {"shared_gate": 1.5 * d["shared_gate"]}
            ),
        ]
        if shape["top_k"] > 1:
            faults.append(
                Fault(
                    "wrong position: weights of another expert",
                    "sums",
                    lambda d: {"weights": np.roll(d["weights"], 1, 1)},
                )
            )
        return faults
