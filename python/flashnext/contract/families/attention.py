"""attention_prep, attention: sparse attention between its projections, its indexer aside.

prep       q <- rope(rms(q; gamma_q)), k <- rope(rms(k; gamma_k)) into the page, v and the raw index key into
the page,
           index_q <- rope(rms(index_q; gamma_index_q))
attention  o = softmax over the positions of the selected blocks and of the unfinished tail of (q . k *
scale), applied to v;
           out = o * sigmoid(gate)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import EXP_ULPS, UNIT, Approx, concatenate, dot, gamma, rotate, unit_rms
from flashnext.contract.families.rope import frequencies
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.pages import Pages, angles, by_page, pages_of, row_table
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.sequences import Block
from flashnext.contract.structs import ATTENTION_SPAN, PAGE_TOKENS, counts, struct

SPARE = 2
EPS = 1e-6


@register
class AttentionPrep(Family):
    """Queries ready to use, keys and values in their page."""

    name = "attention_prep"
    envelope = (
        "head_dim and index_dim multiples of 32 up to 512, 2 * half at most either; n_heads a "
        "multiple of n_kv_heads"
    )
    nonfinite = "reaches its own head, v and the raw key as copies"
    order = "over a head in a fixed order"
    launch_record = (
        "0 counts, 1 sequences, 2 rows, 3 qg T[R, H, 2, head_dim], 4 k, 5 v T[R, Hkv, head_dim], 6 index_qk "
        "T[R, Hi + 1, index_dim], 7 gamma_q, 8 gamma_k, 9 gamma_index_q, 10 cos, 11 sin float[R, "
        "half_dim], 12 q, 13 index_q; grid "
        "(R); pages: k, v T[Hkv, kPageTokens, head_dim], raw T[kPageTokens, index_dim]"
    )
    per_unit = ("q_in", "k_in", "index_in", "cos", "sin")
    shared = ("gamma_q", "gamma_k", "gamma_index_q")
    shapes = tuple(
        {"rows": r, "heads": h, "kv": kv, "dim": d, "half": half, "index_heads": hi, "index_dim": di}
        for r, h, kv, d, half, hi, di in (
            (1, 1, 1, 32, 4, 1, 32),
            (9, 4, 2, 32, 8, 8, 32),
            (70, 3, 3, 64, 16, 4, 64),
            (33, 6, 2, 96, 16, 2, 32),
            (3, 24, 2, 256, 32, 4, 128),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n, dim, half = shape["rows"], shape["dim"], shape["half"]
        angle = angles(rng.integers(0, 4096, (n, 3)), frequencies(half, 1e4), (half, 0, 0))
        index_dim = shape["index_dim"]
        return {
            "q_in": scalar.rounded(rng.standard_normal((n, shape["heads"], dim))),
            "k_in": scalar.rounded(rng.standard_normal((n, shape["kv"], dim)) * 5),
            "v_in": scalar.rounded(rng.standard_normal((n, shape["kv"], dim))),
            "index_in": scalar.rounded(rng.standard_normal((n, shape["index_heads"], index_dim))),
            "raw_in": scalar.rounded(rng.standard_normal((n, index_dim))),
            "gamma_q": F32.rounded(1 + 0.3 * rng.standard_normal(dim)),
            "gamma_k": F32.rounded(1 + 0.3 * rng.standard_normal(dim)),
            "gamma_index_q": F32.rounded(1 + 0.3 * rng.standard_normal(index_dim)),
            "cos": F32.rounded(np.cos(angle)),
            "sin": F32.rounded(np.sin(angle)),
            "sequence": np.arange(n) % 2,
            "position": rng.permutation(3 * PAGE_TOKENS)[:n],
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at = Builder(frame, self.kernel(scalar)), list(pick)
        n, heads, kv, dim = len(at), shape["heads"], shape["kv"], shape["dim"]
        index_heads, index_dim = shape["index_heads"], shape["index_dim"]
        layout = Block(
            {
                "k": (scalar, (kv, PAGE_TOKENS, dim)),
                "v": (scalar, (kv, PAGE_TOKENS, dim)),
                "raw": (scalar, (PAGE_TOKENS, index_dim)),
            }
        )
        n_pages = pages_of(3 * PAGE_TOKENS)
        pages = Pages(layout, [{}, {}], [n_pages, n_pages])
        b.put("counts", counts(rows=n))
        pages.sequences(b)
        b.put("rows", row_table(data["sequence"][at], data["position"][at]))
        q = data["q_in"][at]
        b.put("qg", scalar.encode(np.stack([q, np.full_like(q, np.nan)], 2)))  # the gate is not read
        b.put("k", scalar.encode(data["k_in"][at]))
        b.put("v", scalar.encode(data["v_in"][at]))
        b.put(
            "index_qk", scalar.encode(np.concatenate([data["index_in"][at], data["raw_in"][at][:, None]], 1))
        )
        for key in (*self.shared, "cos", "sin"):
            b.put(key, F32.encode(data[key][at] if key in self.per_unit else data[key]))
        for name, size in (("q", (heads, dim)), ("index_q", (index_heads, index_dim))):
            b.room(name, (n + SPARE) * size[0] * size[1] * scalar.size_bytes)
            b.rows(name, name, at, scalar, size)
        pages.put(b)
        for unit in at:
            page, row = divmod(int(data["position"][unit]), PAGE_TOKENS)
            place = (b, int(data["sequence"][unit]), page)
            pages.output(place[0], "k", unit, *place[1:], "k", (slice(None), row))
            pages.output(place[0], "v", unit, *place[1:], "v", (slice(None), row))
            pages.output(place[0], "raw", unit, *place[1:], "raw", (row,))
        params = struct(
            "AttentionPrepParams",
            n_heads=heads,
            n_kv_heads=kv,
            head_dim=dim,
            half_dim=shape["half"],
            index_n_heads=index_heads,
            index_dim=index_dim,
            eps=EPS,
            **{f"{key}_offset": offset for key, offset in layout.offsets.items()},
        )
        return b.done((n + SPARE,), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        out: dict[str, list[Approx]] = {"q": [], "k": [], "index_q": []}
        for r in range(shape["rows"]):
            cos, sin = Approx.exact(data["cos"][r]), Approx.exact(data["sin"][r])
            for name, key, weight in (
                ("q", "q_in", "gamma_q"),
                ("k", "k_in", "gamma_k"),
                ("index_q", "index_in", "gamma_index_q"),
            ):
                normed = unit_rms(Approx.exact(data[key][r]), EPS) * Approx.exact(data[weight])
                out[name].append(rotate(normed, cos, sin))
        exact = {name: list(scalar.encode(data[key])) for name, key in (("v", "v_in"), ("raw", "raw_in"))}
        return {**out, **exact}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        faults = [
            Fault("wrong axis: cos and sin exchanged", "sums", lambda d: {"cos": d["sin"], "sin": d["cos"]}),
            Fault("wrong scale of gamma", "sums", lambda d: {"gamma_k": d["gamma_k"] * 1.0625}),
            Fault("dropped tail: the last frequency does not turn", "sums", _one_less),
        ]
        if shape["rows"] > 1:
            faults.append(
                Fault(
                    "wrong position: angles of the next row",
                    "sums",
                    lambda d: {"cos": np.roll(d["cos"], 1, 0)},
                )
            )
        if shape["kv"] > 1:
            faults.append(
                Fault("wrong axis: kv heads exchanged", "sums", lambda d: {"v_in": d["v_in"][:, ::-1]})
            )
        return faults


def _one_less(data: Data) -> Data:
    cos, sin = data["cos"].copy(), data["sin"].copy()
    cos[:, 0], sin[:, 0] = 1, 0
    return {"cos": cos, "sin": sin}


@register
class Attention(Family):
    """Softmax attention over what each row selected, gated."""

    name = "attention"
    envelope = (
        "head_dim a multiple of 32 up to 512; ratio divides kPageTokens; every row reads at least "
        "one position"
    )
    nonfinite = (
        "a NaN that is read reaches the heads that read it; keys and values that are not selected "
        "are not read"
    )
    order = "positions ascending in absolute spans of 512, spans ascending"
    launch_record = (
        "0 counts, 1 sequences, 2 rows, 3 q T[R, H, head_dim], 4 qg T[R, H, 2, head_dim], 5 blocks "
        "int32[R, budget_blocks], 6 "
        "n_selected int32[R], 7 out T[R, H, head_dim]; grid (R, Hkv * ceil(H / Hkv / tile)); pages: k, v"
    )
    per_unit = ("q", "gate")
    shared = ("k", "v")
    shapes = tuple(
        {"rows": r, "heads": h, "kv": kv, "dim": d, "ratio": ratio, "budget": budget, "length": n}
        for r, h, kv, d, ratio, budget, n in (
            (1, 1, 1, 32, 1, 1, 1),
            (6, 4, 2, 32, 4, 8, 200),
            (9, 3, 3, 64, 16, 4, 130),
            (5, 12, 1, 32, 4, 300, 1300),
            (4, 10, 2, 64, 64, 3, 700),
            (3, 24, 2, 256, 4, 120, 560),
            (7, 2, 2, 32, 1, 40, 600),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n, length = shape["rows"], shape["length"]
        q = (n, shape["heads"], shape["dim"])
        cached = (length, shape["kv"], shape["dim"])
        position = rng.permutation(np.arange(max(0, length - 70), length))[:n]
        position[0] = length - 1
        if n > 2:
            position[-1] = 0  # the first row of a sequence reads itself alone
        blocks = []
        for at in position:
            complete = (int(at) + 1) // shape["ratio"]
            blocks.append(np.sort(rng.permutation(complete)[: shape["budget"]]).astype(np.int32))
        return {
            "q": scalar.rounded(rng.standard_normal(q) * 2),
            "gate": scalar.rounded(rng.standard_normal(q)),
            "k": [scalar.rounded(rng.standard_normal(cached)) for _ in range(2)],
            "v": [scalar.rounded(rng.standard_normal(cached)) for _ in range(2)],
            "sequence": np.arange(n) % 2,
            "position": position,
            "blocks": blocks,
            "scale": np.float32(1 / np.sqrt(shape["dim"])),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at = Builder(frame, self.kernel(scalar)), list(pick)
        n, heads, kv, dim = len(at), shape["heads"], shape["kv"], shape["dim"]
        layout = Block({"k": (scalar, (kv, PAGE_TOKENS, dim)), "v": (scalar, (kv, PAGE_TOKENS, dim))})
        n_pages = pages_of(shape["length"])
        contents = [
            {key: by_page(data[key][s], n_pages).transpose(0, 2, 1, 3) for key in ("k", "v")}
            for s in range(2)
        ]
        pages = Pages(layout, contents, [n_pages, n_pages])
        blocks = np.full((n, shape["budget"]), -7, np.int32)
        for i, unit in enumerate(at):
            blocks[i, : len(data["blocks"][unit])] = data["blocks"][unit]
        b.put("counts", counts(rows=n))
        pages.sequences(b)
        b.put("rows", row_table(data["sequence"][at], data["position"][at]))
        q, gate = data["q"][at], data["gate"][at]
        b.put("q", scalar.encode(q))
        b.put("qg", scalar.encode(np.stack([np.full_like(gate, np.nan), gate], 2)))  # its query is not read
        b.put("blocks", blocks)
        b.put("n_selected", np.array([len(data["blocks"][unit]) for unit in at], np.int32))
        b.room("out", (n + SPARE) * heads * dim * scalar.size_bytes)
        b.rows("out", "out", at, scalar, (heads, dim))
        pages.put(b)
        params = struct(
            "AttentionParams",
            n_heads=heads,
            n_kv_heads=kv,
            head_dim=dim,
            ratio=shape["ratio"],
            budget_blocks=shape["budget"],
            scale=data["scale"],
            k_offset=layout.offsets["k"],
            v_offset=layout.offsets["v"],
        )
        tiles = kv * -(-(heads // kv) // frame.tile(b.kernel))
        return b.done((n + SPARE, tiles), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        group, out = shape["heads"] // shape["kv"], []
        for r in range(shape["rows"]):
            read = positions(data["blocks"][r], int(data["position"][r]), shape["ratio"])
            s, heads = int(data["sequence"][r]), []
            for kv in range(shape["kv"]):
                k, v = data["k"][s][read, kv], data["v"][s][read, kv]
                q = Approx.exact(data["q"][r, kv * group : (kv + 1) * group])
                scores = dot(q, Approx.exact(k)) * float(data["scale"])
                heads.append(attend(scores, v, len(np.unique(read // ATTENTION_SPAN))))
            out.append(concatenate(heads, 0) * Approx.exact(data["gate"][r]).sigmoid())
        return {"out": out}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["length"] < 100:
            return ()
        faults = [
            Fault(
                "wrong position: values one row on",
                "sums",
                lambda d: {"v": [np.roll(x, 1, 0) for x in d["v"]]},
            ),
            Fault("wrong scale of the scores", "sums", lambda d: {"scale": d["scale"] * np.float32(1.125)}),
            Fault(
                "dropped tail: the last selected block",
                "sums",
                lambda d: {"blocks": [x[:-1] for x in d["blocks"]]},
            ),
        ]
        if shape["kv"] > 1:
            faults.append(
                Fault("wrong axis: kv heads exchanged", "sums", lambda d: {"k": [x[:, ::-1] for x in d["k"]]})
            )
        return faults


def positions(blocks: Array, at: int, ratio: int) -> Array:
    """List what the row at a position reads: its blocks, then the rows after the last complete one."""
    tail = np.arange((at + 1) // ratio * ratio, at + 1)
    return np.concatenate([(blocks[:, None] * ratio + np.arange(ratio)).reshape(-1), tail]).astype(np.int64)


def attend(scores: Approx, v: Array, n_spans: int) -> Approx:
    """softmax(scores) of (heads, n) applied to v (n, dim), in spans that are shifted and merged.

    A weight e^(s - m) errs by the error of s, by the rounding of s - m, and by an exponential for itself and
    for each merge; the shift m cancels. Then two sums over n and the merges, and a division.
    """
    top = scores.value.max(-1, keepdims=True)
    shifted = scores.value - top
    exponent = scores.error + 2 * UNIT * (np.abs(shifted) + scores.error)
    relative = np.expm1(exponent + (n_spans + 1) * (2 * EXP_ULPS + 2) * UNIT)
    weight = np.exp(shifted)
    total = weight.sum(-1, keepdims=True)
    value = weight @ v / total
    size = weight @ np.abs(v) / total
    chain = gamma(len(v) + 4 * n_spans + 4)
    off_values = (weight * relative) @ np.abs(v) / total
    off_total = (weight * relative).sum(-1, keepdims=True) / total
    error = (off_values + np.abs(value) * off_total + chain * (size + np.abs(value))) / (
        1 - np.minimum(off_total, 0.5)
    )
    return Approx(value, error)
