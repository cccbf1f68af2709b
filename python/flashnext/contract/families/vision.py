"""layer_norm, linear, patch_place, patch_turn: the vision tower without its attention, in float32.

norm    (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias
linear  y = x W^T + bias, then: store y; y sigmoid(2 sqrt(2 / pi) (y + 0.044715 y^3)); y Phi(y); out + y
place   x += the table at the patch, between four of its places; cos and sin of row and column angles
turn    heads of q and k turned by their patch's angles
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import (
    DIVIDE_ULPS,
    EXP_ULPS,
    UNIT,
    Approx,
    concatenate,
    dot,
    rotate,
    unit_rms,
)
from flashnext.contract.families.matmul import zero_tail
from flashnext.contract.families.rope import cos_sin, frequencies
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.scalars import BF16, F32, Array, Float64, Scalar
from flashnext.contract.structs import (
    LINEAR_ADD,
    LINEAR_GELU,
    LINEAR_GELU_TANH,
    LINEAR_STORE,
    STRUCTS,
    struct,
)

SPARE = 2  # rows of room that nothing may touch
EPS = 1e-6
CUBIC = 0.044715
TWO_ROOTS = 2 * math.sqrt(2 / math.pi)
# Phi below 0 is e^(-x^2 / 2) h(k), at most 1/2: an exponential, a division that h hangs on, ten fma, four
# products.
PHI_UNITS = (2 * EXP_ULPS + 2 * DIVIDE_ULPS + 10 + 4) / 2 + 2

_phi = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[np.float64])


def gelu_tanh(y: Approx) -> Approx:
    """Compute the tanh form of GELU, as y sigmoid(2 u)."""
    cube = y * y * y * CUBIC
    return y * ((cube + y) * TWO_ROOTS).sigmoid()


def gelu(y: Approx) -> Approx:
    """Compute GELU by the normal distribution."""
    share = y.monotone(_phi, 0)
    return y * Approx(share.value, share.error + PHI_UNITS * UNIT)


@register
class LayerNorm(Family):
    """Each row normalized, scaled and shifted."""

    name = "layer_norm"
    types = ()
    envelope = "width a multiple of 8"
    nonfinite = "reaches all of its row; of weight and bias their column"
    order = "mean, then squared distances from it, in a fixed order"
    launch_record = (
        "0 x float[R, n], 1 weight, 2 bias float[n], 3 out float[R, n]; grid (R); before each block's halves "
        "and the merger (cpp/model/tower.cpp)"
    )
    per_unit = ("x",)
    shared = ("weight", "bias")
    shapes = tuple({"rows": r, "width": n} for r, n in ((1, 8), (5, 48), (33, 128), (7, 264), (3, 1152)))

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        rows, n = shape["rows"], shape["width"]
        x = rng.standard_normal((rows, n)) * 10.0 ** rng.uniform(-3, 3, (rows, 1))
        x += rng.standard_normal((rows, 1)) * np.abs(x).max(1, keepdims=True)
        if rows > 1:
            x[0] = 0
        return {
            "x": F32.rounded(x),
            "weight": F32.rounded(1 + 0.3 * rng.standard_normal(n)),
            "bias": F32.rounded(rng.standard_normal(n)),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, n = Builder(frame, self.kernel(None)), list(pick), shape["width"]
        b.put("x", F32.encode(data["x"][at]))
        b.put("weight", F32.encode(data["weight"]))
        b.put("bias", F32.encode(data["bias"]))
        b.room("out", (len(at) + SPARE) * n * 4)
        b.rows("out", "out", at, F32, (n,))
        return b.done((len(at),), struct("LayerNormParams", width=n, eps=EPS))

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        x = Approx.exact(data["x"])
        mean = x.sum(keepdims=True) / float(shape["width"])
        y = unit_rms(x - mean, EPS) * Approx.exact(data["weight"]) + Approx.exact(data["bias"])
        return {"out": [y[r] for r in range(shape["rows"])]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 2:
            return ()
        backwards = np.arange(shape["width"])[::-1]
        return (
            Fault("wrong position: weights moved", "sums", lambda d: {"weight": np.roll(d["weight"], 1)}),
            Fault("wrong axis: the bias backwards", "sums", lambda d: {"bias": d["bias"][backwards]}),
            Fault("dropped tail of a row", "sums", lambda d: {"x": zero_tail(d["x"], 4)}),
            Fault("wrong scale of the weight", "sums", lambda d: {"weight": d["weight"] * 1.125}),
            Fault(
                "reordered sum: a row's mean a little larger in company", "repeat",
                lambda d: {"bias": np.nextafter(np.float32(d["bias"]), np.float32(9)).astype(np.float64)},
                in_company=True,
            ),
        )  # fmt: skip


def _linear(n_in: int, n_out: int, rows: int, finish: int = LINEAR_STORE, bits: int = 16) -> Shape:
    return {"n_in": n_in, "n_out": n_out, "rows": rows, "finish": finish, "bits": bits}


@register
class Linear(Family):
    """Products of rows with a plain matrix, with a bias and what is done with them."""

    name = "linear"
    types = ()
    envelope = "n_in a multiple of 16 up to 65,536, n_out >= 1, rows >= 1; weights bfloat16 or float32"
    nonfinite = "a NaN or infinity reaches every output it is multiplied into or added to"
    order = "a fixed order of all inputs for any number of rows, then the bias"
    launch_record = (
        "0 x float[R, n_in], 1 weight [n_out, n_in], 2 bias float[n_out], 3 out float[R, n_out]; grid "
        "(ceil(n_out / tile), ceil(R / rows)); every product of cpp/model/tower.cpp"
    )
    per_unit = ("x",)
    shared = ("weight", "bias")
    shapes = (
        *(_linear(96, n, 3) for n in (1, 7, 8, 9, 15, 16, 17, 63, 64, 65)),
        *(_linear(n, 20, 4, bits=b) for n in (16, 48, 80, 496, 512, 528, 4304) for b in (16, 32)),
        *(_linear(48, 33, rows) for rows in (1, 2, 4, 8, 31, 63, 64, 65, 130)),
        *(_linear(64, 35, 5, finish, b) for finish in (1, 2, 3) for b in (16, 32)),
        _linear(1536, 40, 3),
        _linear(128, 64, 40, LINEAR_GELU_TANH),
        _linear(128, 64, 40, LINEAR_GELU),
        _linear(128, 64, 40, LINEAR_ADD),
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n_in, n_out, rows = shape["n_in"], shape["n_out"], shape["rows"]
        stored = BF16 if shape["bits"] == 16 else F32
        # Up to where each form of GELU has ended.
        size = 10.0 ** rng.uniform(-3, 1.2, (rows, 1))
        return {
            "x": F32.rounded(rng.standard_normal((rows, n_in)) * size),
            "weight": stored.rounded(rng.standard_normal((n_out, n_in)) / math.sqrt(n_in)),
            "bias": F32.rounded(rng.standard_normal(n_out)),
            "out": F32.rounded(rng.standard_normal((rows, n_out))),
            "finish": shape["finish"],
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, n_out = Builder(frame, self.kernel(None)), list(pick), shape["n_out"]
        stored = BF16 if shape["bits"] == 16 else F32
        b.put("x", F32.encode(data["x"][at]))
        b.put("weight", stored.encode(data["weight"]))
        b.put("bias", F32.encode(data["bias"]))
        updated = shape["finish"] == LINEAR_ADD
        if updated:
            b.put("out", F32.encode(np.concatenate([data["out"][at], np.zeros((SPARE, n_out))])))
        else:
            b.room("out", (len(at) + SPARE) * n_out * 4)
        b.rows("out", "out", at, F32, (n_out,), updated=updated)
        params = struct(
            "LinearParams", n_in=shape["n_in"], n_out=n_out, n_rows=len(at), bits=shape["bits"],
            finish=data["finish"],
        )  # fmt: skip
        return b.done(frame.grid(b.kernel, n_out, len(at) + SPARE), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        y = dot(Approx.exact(data["x"]), Approx.exact(data["weight"])) + Approx.exact(data["bias"])
        if shape["finish"] == LINEAR_GELU_TANH:
            y = gelu_tanh(y)
        elif shape["finish"] == LINEAR_GELU:
            y = gelu(y)
        elif shape["finish"] == LINEAR_ADD:
            y = y + Approx.exact(data["out"])
        return {"out": [y[r] for r in range(shape["rows"])]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["n_out"] < 4 or shape["n_in"] < 32:
            return ()
        backwards = np.arange(shape["n_in"])[::-1]
        across = np.arange(shape["n_in"]).reshape(-1, 16).T.reshape(-1)
        faults = [
            Fault("dropped tail: the last inputs", "sums", lambda d: {"x": zero_tail(d["x"], 8)}),
            Fault("wrong position: the bias moved by one", "sums", lambda d: {"bias": np.roll(d["bias"], 1)}),
            Fault("wrong axis: inputs read across", "sums", lambda d: {"x": d["x"][:, across]}),
            Fault("wrong scale of the inputs", "sums", lambda d: {"x": d["x"] * 2}),
        ]
        if shape["rows"] > 1:
            faults.append(Fault(
                "reordered sum: inputs backwards in company", "repeat",
                lambda d: {"x": d["x"][:, backwards], "weight": d["weight"][:, backwards]}, in_company=True,
            ))  # fmt: skip
        if shape["finish"] in (LINEAR_GELU, LINEAR_GELU_TANH):
            other = LINEAR_GELU + LINEAR_GELU_TANH - shape["finish"]
            faults.append(Fault("the other form of GELU", "sums", lambda d: {"finish": other}))
        return faults


def between(i: int, n: int, side: int) -> tuple[int, int, Approx]:
    """Where patch i of n lies on an axis of the table: two places, and how far from the first."""
    low, rest = divmod(i * (side - 1), max(n - 1, 1))
    return low, min(low + 1, side - 1), Approx.exact(float(rest)) / float(max(n - 1, 1))


@register
class PatchPlace(Family):
    """The learned table added to each patch, and its angles."""

    name = "patch_place"
    types = ()
    envelope = "width a multiple of 8, side and quarter >= 1, rows * (side - 1) below 2^32"
    nonfinite = "of a patch its place, of the table whoever lies beside it, of a frequency its angles"
    order = "along the row, then down; x last"
    launch_record = (
        "0 patches Patch[R], 1 table float[side^2, D'], 2 inv_freq float[quarter], 3 x float[R, D'], 4 cos, "
        "5 sin float[R, 2 quarter]; grid (R); once a pass (cpp/model/tower.cpp)"
    )
    per_unit = ("x",)
    shared = ("table", "inv_freq")
    shapes = tuple(
        {"rows": r, "width": n, "side": side, "quarter": q, "grid": grid}
        for r, n, side, q, grid in (
            (1, 8, 1, 1, (1, 1)),
            (6, 48, 6, 3, (4, 6)),
            (20, 64, 4, 8, (1, 40)),
            (33, 128, 16, 8, (14, 22)),
            (9, 32, 48, 18, (48, 48)),
            (12, 1152, 48, 18, (400, 2)),
            (7, 16, 5, 2, (4096, 4094)),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n_rows, n_cols = shape["grid"]
        at = np.stack([rng.integers(0, n_rows, shape["rows"]), rng.integers(0, n_cols, shape["rows"])], 1)
        at[-1] = n_rows - 1, n_cols - 1
        if len(at) > 2:
            at[0] = 0
        return {
            "x": F32.rounded(rng.standard_normal((shape["rows"], shape["width"]))),
            "table": F32.rounded(rng.standard_normal((shape["side"] ** 2, shape["width"]))),
            "inv_freq": frequencies(shape["quarter"], 1e4),
            "at": at,
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, half = Builder(frame, self.kernel(None)), list(pick), 2 * shape["quarter"]
        patches = np.zeros(len(at), STRUCTS["Patch"])
        patches["row"], patches["col"] = data["at"][at].T
        patches["n_rows"], patches["n_cols"] = shape["grid"]
        b.put("patches", patches)
        b.put("table", F32.encode(data["table"]))
        b.put("inv_freq", F32.encode(data["inv_freq"]))
        spare = np.zeros((SPARE, shape["width"]))
        b.put("x", F32.encode(np.concatenate([data["x"][at], spare])))
        b.rows("x", "x", at, F32, (shape["width"],), updated=True)
        for name in ("cos", "sin"):
            b.room(name, (len(at) + SPARE) * half * 4)
            b.rows(name, name, at, F32, (half,))
        params = struct(
            "PatchPlaceParams", width=shape["width"], side=shape["side"], quarter=shape["quarter"]
        )
        return b.done((len(at),), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        side, (n_rows, n_cols) = shape["side"], shape["grid"]
        table, x, freq = data["table"].reshape(side, side, -1), data["x"], data["inv_freq"]
        out: dict[str, list[Approx]] = {"x": [], "cos": [], "sin": []}
        one = Approx.exact(1.0)
        for r, (row, col) in enumerate(data["at"]):
            r0, r1, down = between(int(row), n_rows, side)
            c0, c1, right = between(int(col), n_cols, side)
            above, below = (
                (one - right) * Approx.exact(table[i, c0]) + right * Approx.exact(table[i, c1])
                for i in (r0, r1)
            )
            out["x"].append(Approx.exact(x[r]) + ((one - down) * above + down * below))
            angle = np.concatenate([F32.rounded(row * freq), F32.rounded(col * freq)])
            for name, value in zip(("cos", "sin"), cos_sin(angle, 1.0), strict=True):
                out[name].append(value)
        return out

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 2 or min(shape["grid"]) < 2:
            return ()
        n_rows, n_cols = shape["grid"]
        side = shape["side"]
        moved = np.minimum(data["at"] + 1, [n_rows - 1, n_cols - 1])
        across = np.arange(side * side).reshape(side, side).T.reshape(-1)
        faults = [
            Fault(
                "wrong axis: the table's rows and columns", "sums", lambda d: {"table": d["table"][across]}
            ),
            Fault("wrong scale of the frequencies", "sums", lambda d: {"inv_freq": d["inv_freq"] * 1.01}),
            Fault("dropped tail of the table", "sums", lambda d: {"table": zero_tail(d["table"], 4)}),
        ]
        if (moved != data["at"]).any():
            faults.append(Fault("wrong position: the next patch", "sums", lambda d: {"at": moved}))
        return faults


@register
class PatchTurn(Family):
    """Queries and keys turned; values stay."""

    name = "patch_turn"
    types = ()
    envelope = "n_heads >= 1, half_dim >= 1"
    nonfinite = "reaches its pair; an angle's the pairs that it turns"
    order = "no sums"
    launch_record = (
        "0 cos, 1 sin float[R, half_dim], 2 qkv float[R, 3 D']; grid (R); behind each product for q, k and v "
        "(cpp/model/tower.cpp)"
    )
    per_unit = ("qkv", "cos", "sin")
    shapes = tuple(
        {"rows": r, "heads": h, "half": n}
        for r, h, n in ((1, 1, 1), (5, 4, 6), (9, 3, 16), (33, 2, 40), (4, 16, 36))
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        rows, half = shape["rows"], shape["half"]
        angle = rng.uniform(0, 100, (rows, half))
        return {
            "cos": F32.rounded(np.cos(angle)),
            "sin": F32.rounded(np.sin(angle)),
            "qkv": F32.rounded(rng.standard_normal((rows, 3, shape["heads"], 2 * half))),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at = Builder(frame, self.kernel(None)), list(pick)
        size = (3, shape["heads"], 2 * shape["half"])
        for name in ("cos", "sin"):
            b.put(name, F32.encode(data[name][at]))
        b.put("qkv", F32.encode(np.concatenate([data["qkv"][at], np.zeros((SPARE, *size))])))
        b.rows("qkv", "qkv", at, F32, size, updated=True)
        params = struct("PatchTurnParams", n_heads=shape["heads"], half_dim=shape["half"])
        return b.done((len(at),), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        out = []
        for r in range(shape["rows"]):
            turned = rotate(
                Approx.exact(data["qkv"][r, :2]), Approx.exact(data["cos"][r]), Approx.exact(data["sin"][r])
            )
            out.append(concatenate([turned, Approx.exact(data["qkv"][r, 2:])], 0))
        return {"qkv": out}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["half"] < 2:
            return ()
        return (
            Fault("wrong axis: neighbours paired", "sums", lambda d: {"qkv": _neighbours(d["qkv"])}),
            Fault("wrong position: angles moved by one", "sums", lambda d: {"cos": np.roll(d["cos"], 1, 1)}),
            Fault("wrong scale of the sines", "sums", lambda d: {"sin": -d["sin"]}),
            Fault("dropped tail: the last head", "sums", lambda d: {"qkv": _without_last(d["qkv"])}),
        )


def _neighbours(qkv: Array) -> Float64:
    half = qkv.shape[-1] // 2
    return np.asarray(qkv.reshape(*qkv.shape[:-1], half, 2).swapaxes(-1, -2).reshape(qkv.shape))


def _without_last(qkv: Array) -> Float64:
    out = np.array(qkv)
    out[:, 1, -1] = 0
    return out
