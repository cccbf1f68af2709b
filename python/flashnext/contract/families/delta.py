"""delta_conv, delta_prep, delta_rule: Gated DeltaNet between its projections.

conv       c_t = silu(sum over taps j of w_j x_{t - (n_taps - 1 - j)})
prep       q, k <- x / sqrt(sum x^2 + 1e-6) a head, q / sqrt(Dk); beta = sigmoid(b)
           decay = exp(-rate softplus(a + dt_bias))
rule       M <- decay M; delta = beta (v - M^T k); M <- M + k delta^T; o = M^T q
           out = o / sqrt(mean(o^2) + eps) * norm * gate(z)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import UNIT, Approx, gamma, stack, unit_rms
from flashnext.contract.convolution import convolution, convolution_faults, last_rows
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.sequences import MAX_ROWS, SPARE, Block, Memory, SequenceFamily, mark_faults
from flashnext.contract.structs import counts, struct

EPS = 1e-6
KEY_EPS = float(np.float32(1e-6))


@register
class DeltaConv(SequenceFamily):
    """The causal convolution of the projections with silu; its tail settles."""

    name = "delta_conv"
    envelope = "channels a multiple of 32, 1 <= n_taps <= 8"
    nonfinite = "reaches the rows whose taps read it, in its own channel"
    order = "taps from the oldest to the row itself"
    launch_record = (
        "0 counts, 1 sequences, 2 x T[R, C], 3 taps float[n_taps, C], 4 out T[R, C]; grid "
        "(sequences, ceil(C / tile)); "
        "state T[n_taps - 1, C], also at marks"
    )
    row_keys = ("x",)
    state_keys = ("tail",)
    kept_keys = ("kept",)
    per_unit = ("x", "tail", "kept")
    shared = ("taps",)
    shapes = (
        *(
            {"passes": p, "width": 96, "taps": 4}
            for p in ("marked", "one prompt", "one row", "one window", "mixed", "long")
        ),
        *({"passes": "mixed", "width": w, "taps": t} for w, t in ((32, 1), (512, 2), (544, 8))),
        {"passes": "one prompt", "width": 10240, "taps": 4},
    )

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        data, width = self.passes(shape), shape["width"]
        data["x"] = [scalar.rounded(rng.standard_normal((n, width))) for n in data["n_rows"]]
        data["kept"] = [scalar.rounded(rng.standard_normal((n, width))) for n in data["n_kept"]]
        data["tail"] = [
            scalar.rounded(rng.standard_normal((shape["taps"] - 1, width))) for _ in data["n_rows"]
        ]
        data["taps"] = F32.rounded(rng.standard_normal((shape["taps"], width)))
        return data

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        width = shape["width"]
        b = Builder(frame, self.kernel(scalar))
        state, rows = (
            Block({"tail": (scalar, (shape["taps"] - 1, width))}),
            Block({"kept": (scalar, (MAX_ROWS, width))}),
        )
        memory = Memory(self, data, pick, state, rows)
        firsts = self.first_rows(data, pick)
        b.put("counts", counts(rows=firsts[-1], sequences=len(pick)))
        memory.sequences(b)
        b.put("x", scalar.encode(self.packed(data, "x", pick)))
        b.put("taps", F32.encode(data["taps"]))
        b.room("out", firsts[-1] * width * scalar.size_bytes)
        for unit, first in zip(pick, firsts, strict=False):
            b.output(
                "out", unit, "out", first * width * scalar.size_bytes, scalar, (data["n_rows"][unit], width)
            )
        memory.put(b)
        params = struct(
            "DeltaConvParams", channels=width, n_taps=shape["taps"],
            state_offset=state.offsets["tail"], unsettled_offset=rows.offsets["kept"],
        )  # fmt: skip
        return b.done((len(pick) + SPARE, -(-width // frame.tile(b.kernel))), params)

    def without_marks(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        out, tails, left = [], [], []
        for unit in range(self.units(shape)):
            settled = last_rows(data["tail"][unit], data["kept"][unit])
            rows = np.asarray(data["x"][unit])
            out.append(convolution(settled, rows, data["taps"], 1).silu())
            tail = settled if data["is_window"][unit] else last_rows(settled, rows)
            tails.append(scalar.encode(tail))
            left.append(scalar.encode(rows))
        return {"out": out, "tail": tails, "kept": left}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        return (*convolution_faults(shape, data), *mark_faults(data))


@register
class DeltaPrep(Family):
    """Queries and keys of unit length, beta and decay of each row."""

    name = "delta_prep"
    envelope = "k_dim a multiple of 8, v_heads a multiple of k_heads"
    nonfinite = "reaches the query or key of its own head, the beta or decay of its own value head"
    order = "over a head in a fixed order"
    launch_record = (
        "0 counts, 1 conv T[R, 2 Hk Dk + Hv Dv], 2 b, 3 a float[R, Hv], 4 rate, 5 dt_bias float[Hv], "
        "6 q, 7 k "
        "float[R, Hk Dk], 8 beta, 9 decay float[R, Hv]; grid (R)"
    )
    per_unit = ("q_in", "k_in", "b", "a")
    shared = ("rate", "dt_bias")
    shapes = tuple(
        {"rows": r, "k_heads": hk, "v_heads": hv, "k_dim": dk, "v_dim": dv}
        for r, hk, hv, dk, dv in (
            (1, 1, 1, 8, 16),
            (5, 2, 6, 16, 32),
            (33, 4, 8, 32, 32),
            (3, 16, 48, 128, 128),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        r, keys, hv = shape["rows"], (shape["k_heads"], shape["k_dim"]), shape["v_heads"]
        data = {
            "q_in": scalar.rounded(rng.standard_normal((r, *keys))),
            "k_in": scalar.rounded(rng.standard_normal((r, *keys)) * 10.0 ** rng.uniform(-6, 3, (r, 1, 1))),
            "b": F32.rounded(rng.standard_normal((r, hv)) * 4),
            "a": F32.rounded(rng.standard_normal((r, hv)) * 4),
            "rate": F32.rounded(rng.uniform(0.1, 16, hv)),
            "dt_bias": F32.rounded(rng.standard_normal(hv) * 2 - 3),
        }
        data["q_in"][0] = 0
        data["a"][0], data["b"][0] = 60, -100  # decay underflows, beta is almost 0
        return data

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at = Builder(frame, self.kernel(scalar)), list(pick)
        n, hv, keys = len(at), shape["v_heads"], shape["k_heads"] * shape["k_dim"]
        q, k = (np.asarray(data[key])[at].reshape(n, keys) for key in ("q_in", "k_in"))
        unread = np.full((n, hv * shape["v_dim"]), np.nan)
        b.put("counts", counts(rows=n))
        b.put("conv", scalar.encode(np.concatenate([q, k, unread], 1)))
        b.put("b", F32.encode(data["b"][at]))
        b.put("a", F32.encode(data["a"][at]))
        b.put("rate", F32.encode(data["rate"]))
        b.put("dt_bias", F32.encode(data["dt_bias"]))
        for name, size in (("q", keys), ("k", keys), ("beta", hv), ("decay", hv)):
            b.room(name, (n + SPARE) * size * 4)
            b.rows(name, name, at, F32, (size,))
        params = struct(
            "DeltaPrepParams", **{key: shape[key] for key in ("k_heads", "v_heads", "k_dim", "v_dim")}
        )
        return b.done((n + SPARE,), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        dim = float(shape["k_dim"])

        def unit(x: Array, scale: float) -> Approx:
            a = Approx.exact(x)
            length = ((a * a).sum(keepdims=True) + Approx.exact(np.float64(KEY_EPS))).sqrt()
            return (a * (Approx.exact(np.full_like(length.value, scale)) / length)).reshape(-1)

        out: dict[str, list[Approx]] = {"q": [], "k": [], "beta": [], "decay": []}
        for r in range(shape["rows"]):
            out["q"].append(unit(data["q_in"][r], 1 / np.sqrt(dim)))
            out["k"].append(unit(data["k_in"][r], 1.0))
            out["beta"].append(Approx.exact(data["b"][r]).sigmoid())
            step = (Approx.exact(data["a"][r]) + Approx.exact(data["dt_bias"])).monotone(_softplus, 8)
            out["decay"].append((-(Approx.exact(data["rate"]) * step)).exp())
        return out

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 2 or shape["v_heads"] < 2:
            return ()
        return (
            Fault(
                "wrong axis: query and key exchanged",
                "sums",
                lambda d: {"q_in": d["k_in"], "k_in": d["q_in"]},
            ),
            Fault(
                "wrong position: bias of the next head",
                "sums",
                lambda d: {"dt_bias": np.roll(d["dt_bias"], 1)},
            ),
            Fault("wrong scale of the rate", "sums", lambda d: {"rate": d["rate"] * 1.01}),
            Fault("dropped tail of a head", "sums", lambda d: {"k_in": _without_last(d["k_in"])}),
        )


def _softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _without_last(x: Array) -> Array:
    out = np.array(x)
    out[..., -1] = 0
    return out


@register
class DeltaRule(SequenceFamily):
    """The gated delta rule over a sequence's rows, with its output norm and gate; M settles."""

    name = "delta_rule"
    envelope = "k_dim a multiple of 4 up to 256, v_dim a multiple of 16, v_heads a multiple of k_heads"
    nonfinite = "reaches M, and from there every later row of its value head"
    order = "over the key dimension in a fixed order; rows ascending"
    launch_record = (
        "0 counts, 1 sequences, 2 q, 3 k float[R, Hk Dk], 4 conv T[R, 2 Hk Dk + Hv Dv], 5 beta, 6 "
        "decay float[R, Hv], "
        "7 z T[R, Hv Dv], 8 norm float[Dv], 9 out T[R, Hv Dv]; grid (sequences, Hv); state float[Hv, Dk, "
        "Dv], also at marks"
    )
    row_keys = ("q", "k", "v", "beta", "decay", "z")
    state_keys = ("state",)
    kept_keys = ("kept_k", "kept_v", "kept_beta", "kept_decay")
    per_unit = (*row_keys, *state_keys, *kept_keys)
    shared = ("norm",)
    shapes = (
        *(
            {"passes": p, "k_heads": 2, "v_heads": 6, "k_dim": 16, "v_dim": 32, "silu": False}
            for p in ("marked", "one prompt", "one row", "one window", "mixed", "long")
        ),
        {"passes": "mixed", "k_heads": 1, "v_heads": 1, "k_dim": 8, "v_dim": 16, "silu": True},
        {"passes": "mixed", "k_heads": 3, "v_heads": 3, "k_dim": 32, "v_dim": 48, "silu": True},
        {"passes": "one window", "k_heads": 2, "v_heads": 6, "k_dim": 128, "v_dim": 128, "silu": False},
        {"passes": "one prompt", "k_heads": 1, "v_heads": 2, "k_dim": 256, "v_dim": 64, "silu": False},
    )

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        data = self.passes(shape)
        hk, hv, dk, dv = (shape[key] for key in ("k_heads", "v_heads", "k_dim", "v_dim"))

        def keys(n: int, length: float) -> Array:
            x = rng.standard_normal((n, hk, dk))
            return F32.rounded(x / np.linalg.norm(x, axis=-1, keepdims=True) * length)

        for prefix, count in (("", data["n_rows"]), ("kept_", data["n_kept"])):
            data[prefix + "k"] = [keys(n, 1.0) for n in count]
            data[prefix + "v"] = [scalar.rounded(rng.standard_normal((n, hv, dv))) for n in count]
            data[prefix + "beta"] = [F32.rounded(rng.uniform(0, 1, (n, hv))) for n in count]
            data[prefix + "decay"] = [F32.rounded(rng.uniform(0.5, 1, (n, hv))) for n in count]
        data["q"] = [keys(n, 1 / np.sqrt(dk)) for n in data["n_rows"]]
        data["z"] = [scalar.rounded(rng.standard_normal((n, hv, dv)) * 2) for n in data["n_rows"]]
        data["state"] = [F32.rounded(rng.standard_normal((hv, dk, dv)) * 0.3) for _ in data["n_rows"]]
        data["norm"] = F32.rounded(1 + 0.3 * rng.standard_normal(dv))
        return data

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        hk, hv, dk, dv = (shape[key] for key in ("k_heads", "v_heads", "k_dim", "v_dim"))
        b = Builder(frame, self.kernel(scalar))
        state = Block({"state": (F32, (hv, dk, dv))})
        rows = Block({
            "kept_k": (F32, (MAX_ROWS, hk, dk)), "kept_v": (scalar, (MAX_ROWS, hv, dv)),
            "kept_beta": (F32, (MAX_ROWS, hv)), "kept_decay": (F32, (MAX_ROWS, hv)),
        })  # fmt: skip
        memory = Memory(self, data, pick, state, rows)
        firsts = self.first_rows(data, pick)
        n = firsts[-1]
        v = self.packed(data, "v", pick).reshape(n, hv * dv)
        b.put("counts", counts(rows=n, sequences=len(pick)))
        memory.sequences(b)
        b.put("q", F32.encode(self.packed(data, "q", pick)))
        b.put("k", F32.encode(self.packed(data, "k", pick)))
        b.put("conv", scalar.encode(np.concatenate([np.full((n, 2 * hk * dk), np.nan), v], 1)))
        b.put("beta", F32.encode(self.packed(data, "beta", pick)))
        b.put("decay", F32.encode(self.packed(data, "decay", pick)))
        b.put("z", scalar.encode(self.packed(data, "z", pick)))
        b.put("norm", F32.encode(data["norm"]))
        b.room("out", n * hv * dv * scalar.size_bytes)
        for unit, first in zip(pick, firsts, strict=False):
            at = first * hv * dv * scalar.size_bytes
            b.output("out", unit, "out", at, scalar, (data["n_rows"][unit], hv, dv))
        memory.put(b)
        offsets = {name.removeprefix("kept_") + "_offset": at for name, at in rows.offsets.items()}
        params = struct(
            "DeltaRuleParams",
            k_heads=hk,
            v_heads=hv,
            k_dim=dk,
            v_dim=dv,
            gate_silu=int(shape["silu"]),
            eps=EPS,
            state_offset=state.offsets["state"],
            **offsets,
        )
        return b.done((len(pick) + SPARE, hv), params)

    def without_marks(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        per_key = shape["v_heads"] // shape["k_heads"]
        out: list[Approx] = []
        states: list[Approx] = []
        left: dict[str, list[Array]] = {}
        for key, row in zip(self.kept_keys, ("k", "v", "beta", "decay"), strict=True):
            store = scalar if row == "v" else F32
            left[key] = [store.encode(x) for x in data[row]]
        for unit in range(self.units(shape)):
            m = _Memory(np.asarray(data["state"][unit]))
            for r in range(data["n_kept"][unit]):
                k = np.repeat(data["kept_k"][unit][r], per_key, 0)
                m.step(k, data["kept_v"][unit][r], data["kept_beta"][unit][r], data["kept_decay"][unit][r])
            settled, o = m.approx(), []
            for r in range(data["n_rows"][unit]):
                q, k = (np.repeat(data[key][unit][r], per_key, 0) for key in ("q", "k"))
                m.step(k, data["v"][unit][r], data["beta"][unit][r], data["decay"][unit][r])
                o.append(m.read(q))
            if o:
                z = Approx.exact(data["z"][unit])
                gate = z.silu() if shape["silu"] else z.sigmoid()
                out.append(unit_rms(stack(o), EPS) * Approx.exact(data["norm"]) * gate)
            else:
                out.append(Approx.exact(np.zeros((0, shape["v_heads"], shape["v_dim"]))))
            states.append(settled if data["is_window"][unit] else m.approx())
        return {"out": out, "state": states, **left}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["v_heads"] < 2 or sum(data["n_rows"]) < 5:
            return ()
        faults = [
            Fault(
                "wrong axis: the state transposed",
                "sums",
                lambda d: {"state": [_across(x) for x in d["state"]]},
            ),
            Fault(
                "wrong position: keys of the row before",
                "sums",
                lambda d: {"k": [np.roll(x, 1, 0) for x in d["k"]]},
            ),
            Fault("wrong scale of beta", "sums", lambda d: {"beta": [0.99 * x for x in d["beta"]]}),
            Fault("dropped tail of the keys", "sums", lambda d: {"k": [_without_last(x) for x in d["k"]]}),
        ]
        if scalar is F32:
            faults.append(
                Fault("reordered sum: keys backwards in company", "repeat", _keys_backwards, in_company=True)
            )
        faults += mark_faults(data)
        return [f for f in faults if not f.in_company or self.units(shape) > 1]


def _across(state: Array) -> Array:
    heads, keys, values = state.shape
    return state.transpose(0, 2, 1).reshape(heads, keys, values)


def _keys_backwards(data: Data) -> Data:
    out = {key: [x[..., ::-1] for x in data[key]] for key in ("q", "k", "kept_k")}
    return {**out, "state": [x[:, ::-1] for x in data["state"]]}


class _Memory:
    """M (heads, k_dim, v_dim) with a bound on the length of the error of each column (heads, v_dim).

    A step applies decay (I - beta k k^T) to the error as to M itself, which with |k| = 1 and beta <= 1 makes
    it no longer; taking magnitudes instead, as elsewhere, would let the bound double at every row. What the
    step itself rounds is added.
    """

    def __init__(self, m: Array) -> None:
        self.m = m
        self.error = np.zeros((m.shape[0], m.shape[2]))

    def step(self, k: Array, v: Array, beta: Array, decay: Array) -> None:
        n = k.shape[-1]
        scaled = decay[:, None, None] * self.m
        length = np.linalg.norm(k, axis=-1)[:, None]
        error = decay[:, None] * self.error
        size = np.einsum("hk,hkv->hv", np.abs(k), np.abs(scaled)) + length * error
        rest = v - np.einsum("hk,hkv->hv", k, scaled)
        delta = beta[:, None] * rest
        off = beta[:, None] * (gamma(n + 1) * size + UNIT * (np.abs(rest) + size)) + 2 * UNIT * np.abs(delta)
        m = scaled + k[:, :, None] * delta[:, None, :]
        spread = np.maximum(1.0, np.abs(1 - beta[:, None] * length**2))
        rounding = (
            np.linalg.norm(scaled, axis=1) + length * np.abs(delta) + np.linalg.norm(m, axis=1) + 3 * error
        )
        self.error = spread * error + 1.01 * (length * off + UNIT * rounding)
        self.m = m

    def read(self, q: Array) -> Approx:
        size = np.einsum("hk,hkv->hv", np.abs(q), np.abs(self.m))
        length = np.linalg.norm(q, axis=-1)[:, None]
        error = length * self.error + gamma(q.shape[-1] + 1) * (size + length * self.error)
        return Approx(np.einsum("hk,hkv->hv", q, self.m), error)

    def approx(self) -> Approx:
        return Approx(self.m, np.broadcast_to(self.error[:, None, :], self.m.shape) + 0.0)
