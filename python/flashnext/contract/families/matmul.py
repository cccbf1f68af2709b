"""matmul: y = x W^T for a stored matrix W, with what a projection does to y before it is stored.

store        out = y                          silu     out = silu(alpha y)
store_f32    out = y, fp32                    sigmoid  out = beta sigmoid(alpha y), fp32
residual     stream s += gates[r, s] * round_T(y)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import Approx
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.matrices import FORMATS, Matrix
from flashnext.contract.scalars import BF16, F32, Array, Scalar
from flashnext.contract.structs import RESIDUAL, SIGMOID, SILU, STORE, STORE_F32, counts, struct

SPARE = 2  # rows beyond the count, which the grid covers and nothing may touch
STREAMS = 3


def _shape(n_in: int, n_out: int, rows: int, epilogue: int, bits: int = 16, group: int = 0) -> Shape:
    return {"n_in": n_in, "n_out": n_out, "rows": rows, "epilogue": epilogue, "bits": bits, "group": group}


@register
class Matmul(Family):
    """Products of rows with a stored matrix."""

    name = "matmul"
    envelope = "n_in a multiple of 32 and of the group, n_out >= 1, rows >= 0"
    nonfinite = "a NaN or infinity in a row or a weight reaches every output it is multiplied into"
    order = (
        "fp32: a fixed order of all inputs for any number of rows; bfloat16 rows with affine codes: "
        "exact sums of whole "
        "numbers in a group, groups in a fixed order"
    )
    launch_record = (
        "0 counts, 1 x T[R, n_in], 2 codes, 3 scales, 4 biases of W [n_out, n_in], 5 out, 6 gates "
        "float[R, S]; grid "
        "(ceil(n_out / tile), ceil(R / rows)); every projection of cpp/model/model.cpp"
    )
    per_unit = ("x",)
    shared = ("w",)
    shapes = (
        *(_shape(128, 50, 5, STORE, **f) for f in FORMATS),
        *(_shape(256, n, 3, STORE) for n in (1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 97)),
        *(_shape(256, n, 2, STORE, 4, 32) for n in (1, 7, 8, 9, 63, 64, 65)),
        *(_shape(n, 20, 4, STORE) for n in (32, 64, 480, 512, 544, 1056)),
        *(_shape(n, 20, 4, STORE, 6, 32) for n in (32, 64, 480, 512, 544, 1056)),
        *(_shape(96, 33, rows, STORE, 5, 32) for rows in (1, 2, 4, 8, 31, 63, 64, 65, 130)),
        *(_shape(96, 33, rows, STORE) for rows in (1, 2, 4, 8, 31, 63, 64, 65, 130)),
        *(
            _shape(128, 20, 5, e, **f)
            for e in (STORE_F32, SILU, SIGMOID, RESIDUAL)
            for f in (FORMATS[0], FORMATS[7], FORMATS[13])
        ),
        _shape(2560, 40, 3, STORE_F32, 6, 64),
        _shape(2560, 40, 3, STORE_F32),
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        rows, n_out = shape["rows"], shape["n_out"]
        return {
            "x": scalar.rounded(rng.standard_normal((rows, shape["n_in"]))),
            "w": Matrix.draw(rng, (n_out, shape["n_in"]), shape["bits"], shape["group"]),
            "gates": F32.rounded(rng.uniform(0, 2, (rows, STREAMS))),
            "streams": scalar.rounded(rng.standard_normal((rows, STREAMS, n_out))),
            "alpha": np.float32(0.25),
            "beta": np.float32(2.0),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        n_out, epilogue, at = shape["n_out"], shape["epilogue"], list(pick)
        b = Builder(frame, self.kernel(scalar))
        b.put("counts", counts(rows=len(at)))
        b.put("x", scalar.encode(data["x"][at]))
        data["w"].put(b, "w")
        kind = F32 if epilogue in (STORE_F32, SIGMOID) else scalar
        if epilogue == RESIDUAL:
            spare = np.zeros((SPARE, STREAMS, n_out))
            b.put("out", scalar.encode(np.concatenate([data["streams"][at], spare])))
            b.put("gates", F32.encode(data["gates"][at]))
            b.rows("out", "out", at, scalar, (STREAMS, n_out), updated=True)
        else:
            b.room("out", (len(at) + SPARE) * n_out * kind.size_bytes)
            b.unused("gates")
            b.rows("out", "out", at, kind, (n_out,))
        params = struct(
            "MatmulParams",
            format=data["w"].format,
            n_in=shape["n_in"],
            n_out=n_out,
            epilogue=epilogue,
            count=0,
            hc_count=STREAMS,
            alpha=data["alpha"],
            beta=data["beta"],
        )
        return b.done(frame.grid(b.kernel, n_out, len(at) + SPARE), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        y = data["w"].dot(Approx.exact(data["x"]), scalar)
        epilogue = shape["epilogue"]
        if epilogue == SILU:
            y = (y * float(data["alpha"])).silu()
        elif epilogue == SIGMOID:
            # Whole numbers cannot tell an infinity from a NaN, which sigmoid would.
            open_ = ~np.isfinite(y.value) & (shape["bits"] != 16) & (scalar is BF16)
            y = (y * float(data["alpha"])).sigmoid() * float(data["beta"])
            y = Approx(np.where(open_, 0.5, y.value), np.where(open_, np.inf, y.error))
        elif epilogue == RESIDUAL:
            rounded = y.stored(scalar)
            each = Approx(rounded.value[:, None], rounded.error[:, None])
            y = Approx.exact(data["streams"]) + Approx.exact(data["gates"][:, :, None]) * each
        return {"out": [y[r] for r in range(shape["rows"])]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        group = shape["group"] or 32
        if shape["n_in"] <= group or shape["n_out"] < 4:
            return ()
        groups = shape["n_in"] // group
        across = np.arange(shape["n_in"]).reshape(groups, group).T.reshape(-1)
        # Of groups alone, an order that adds lanes in a tree would not tell.
        backwards = np.arange(shape["n_in"])[::-1]
        w: Matrix = data["w"]
        faults = [
            Fault(
                "dropped tail: the last group of inputs", "sums", lambda d: {"x": zero_tail(d["x"], group)}
            ),
            Fault(
                "wrong position: rows of W moved by one",
                "sums",
                lambda d: {"w": w.rows(np.roll(np.arange(len(w.codes)), 1))},
            ),
            Fault("wrong axis: inputs read across the groups", "sums", lambda d: {"x": d["x"][:, across]}),
            Fault("wrong scale of the inputs", "sums", lambda d: {"x": d["x"] * 2}),
        ]
        # Stored as bfloat16, few results show that a sum ran in another order.
        if shape["rows"] > 1 and (scalar is F32 or shape["epilogue"] == STORE_F32):
            faults.append(Fault(
                "reordered sum: inputs backwards in company", "repeat",
                lambda d: {"x": d["x"][:, backwards], "w": w.inputs(backwards)}, in_company=True,
            ))  # fmt: skip
        return faults


def zero_tail(x: Array, n: int) -> Array:
    """Set the last n values of the last axis to zero, in a copy."""
    out = x.copy()
    out[..., -n:] = 0
    return out
