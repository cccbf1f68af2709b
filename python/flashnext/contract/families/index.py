"""index_pool, index_score, index_select: which blocks of positions a query reads.

pool    pooled_c = rope(rms(round_T(mean of the block's raw keys); gamma), rotary position of the block's
first row) score   score_c = sum over index heads of max(0, <q_h, pooled_c>) / sqrt(index_dim)
select  the best budget_blocks complete blocks, ties to the lower id, listed by ascending id
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import Approx, dot, rotate, unit_rms
from flashnext.contract.families.rope import cos_sin, frequencies
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.pages import Pages, angles, by_page, pages_of, row_table
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.sequences import Block
from flashnext.contract.structs import PAGE_TOKENS, counts, struct

SPARE = 2
EPS = 1e-6
FIRST_ROW = 2  # rows of the pass in front of those that a launch of score or select covers


@register
class IndexPool(Family):
    """Pooled keys of the blocks that the rows complete."""

    name = "index_pool"
    envelope = "index_dim a multiple of 32 up to 512; ratio divides kPageTokens"
    nonfinite = "a NaN in a raw key reaches the pooled key of its block"
    order = "positions of a block ascending; the mean square in a fixed order"
    launch_record = (
        "0 counts, 1 sequences, 2 rows, 3 gamma float[index_dim], 4 inv_freq float[half_dim]; grid (R); "
        "pages: raw, rotary read, "
        "pooled T[kPageTokens / ratio, index_dim] written"
    )
    shared = ("raw", "gamma", "inv_freq")
    shapes = tuple(
        {"length": n, "rows": r, "dim": d, "ratio": ratio, "section": section, "factor": f}
        for n, r, d, ratio, section, f in (
            (1, 1, 32, 1, (4, 2, 2), 1.0),
            (150, 150, 32, 4, (4, 2, 2), 1.0),
            (140, 80, 64, 16, (6, 5, 5), 1.25),
            (192, 130, 64, 64, (6, 5, 5), 1.0),
            (90, 60, 128, 4, (11, 11, 10), 1.1386294),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        length = shape["length"]
        return {
            "raw": [scalar.rounded(rng.standard_normal((length, shape["dim"]))) for _ in range(2)],
            "rotary": [rng.integers(0, 1 << 20, (length, 3)).astype(np.int32) for _ in range(2)],
            "gamma": F32.rounded(1 + 0.3 * rng.standard_normal(shape["dim"])),
            "inv_freq": frequencies(sum(shape["section"]), 1e7),
            "sequence": np.arange(shape["rows"]) % 2,
            "position": np.arange(length - shape["rows"], length),
            "section": shape["section"],
            "ratio": shape["ratio"],
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, ratio, dim = Builder(frame, self.kernel(scalar)), list(pick), shape["ratio"], shape["dim"]
        blocks = PAGE_TOKENS // ratio
        layout = Block(
            {
                "rotary": (np.int32, (PAGE_TOKENS, 3)),
                "raw": (scalar, (PAGE_TOKENS, dim)),
                "pooled": (scalar, (blocks, dim)),
            }
        )
        n_pages = pages_of(shape["length"])
        contents = [{key: by_page(data[key][s], n_pages) for key in ("raw", "rotary")} for s in range(2)]
        pages = Pages(layout, contents, [n_pages, n_pages])
        b.put("counts", counts(rows=len(at)))
        pages.sequences(b)
        b.put("rows", row_table(data["sequence"][at], data["position"][at]))
        b.put("gamma", F32.encode(data["gamma"]))
        b.put("inv_freq", F32.encode(data["inv_freq"]))
        pages.put(b)
        for unit in at:
            page, row = divmod(int(data["position"][unit]), PAGE_TOKENS)
            if (row + 1) % ratio == 0:
                pages.output(b, "pooled", unit, int(data["sequence"][unit]), page, "pooled", (row // ratio,))
        params = struct(
            "IndexPoolParams",
            index_dim=dim,
            ratio=ratio,
            half_dim=sum(shape["section"]),
            section=data["section"],
            attention_factor=shape["factor"],
            eps=EPS,
            **{f"{key}_offset": at_ for key, at_ in layout.offsets.items()},
        )
        return b.done((len(at) + SPARE,), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        ratio, out = shape["ratio"], []
        for r in range(shape["rows"]):
            s, at = int(data["sequence"][r]), int(data["position"][r])
            first = max(0, at + 1 - ratio)  # a row that completes no block has no result
            mean = Approx.exact(data["raw"][s][first : at + 1]).sum(0) / float(ratio)
            normed = unit_rms(mean.stored(scalar), EPS) * Approx.exact(data["gamma"])
            angle = angles(data["rotary"][s][first : first + 1], data["inv_freq"], shape["section"])[0]
            out.append(rotate(normed, *cos_sin(angle, shape["factor"])))
        return {"pooled": out}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 2 * shape["ratio"] or shape["ratio"] == 1:
            return ()
        return (
            Fault(
                "wrong position: rotated at the next row",
                "sums",
                lambda d: {"rotary": [np.roll(x, -1, 0) for x in d["rotary"]]},
            ),
            Fault(
                "wrong axis: h and w exchanged",
                "sums",
                lambda d: {"rotary": [x[:, [0, 2, 1]] for x in d["rotary"]]},
            ),
            Fault("wrong scale of gamma", "sums", lambda d: {"gamma": d["gamma"] * 1.0625}),
            Fault(
                "dropped tail: the block's last row",
                "sums",
                lambda d: {"raw": [_without_last_rows(x, shape["ratio"]) for x in d["raw"]]},
            ),
        )


def _without_last_rows(raw: Array, ratio: int) -> Array:
    out = raw.copy()
    out[ratio - 1 :: ratio] = 0
    return out


@register
class IndexScore(Family):
    """Scores of a row's complete blocks; rows whose blocks all fit the budget have none."""

    name = "index_score"
    envelope = "index_dim a multiple of 32 up to 512, index_n_heads up to 64"
    nonfinite = "a NaN in a query or pooled key makes the score NaN"
    order = "a product in a fixed order; index heads ascending"
    launch_record = (
        "0 counts, 1 sequences, 2 rows, 3 index_q T[R, Hi, index_dim], 4 scores float[G, stride]; grid "
        "(ceil(max_blocks / tile), G), G rows from first_row on; pages: pooled"
    )
    per_unit = ("q",)
    shared = ("pooled",)
    shapes = tuple(
        {"rows": r, "heads": h, "dim": d, "ratio": ratio, "budget": budget, "length": n}
        for r, h, d, ratio, budget, n in (
            (1, 4, 32, 1, 0, 1),
            (6, 8, 32, 4, 8, 200),
            (9, 4, 64, 16, 4, 130),
            (5, 4, 128, 4, 64, 1100),
            (4, 2, 32, 64, 3, 700),
            (3, 4, 32, 1, 256, 600),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n, length = shape["rows"], shape["length"]
        blocks = length // shape["ratio"]
        position = rng.permutation(np.arange(max(0, length - 70), length))[:n]
        position[0] = length - 1
        if n > 2:
            position[-1] = 0  # nothing to score
        return {
            "q": scalar.rounded(rng.standard_normal((n, shape["heads"], shape["dim"]))),
            "pooled": [scalar.rounded(rng.standard_normal((blocks, shape["dim"]))) for _ in range(2)],
            "sequence": np.arange(n) % 2,
            "position": position,
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, ratio = Builder(frame, self.kernel(scalar)), list(pick), shape["ratio"]
        n, per_page = len(at), PAGE_TOKENS // shape["ratio"]
        layout = Block({"other": (scalar, (3,)), "pooled": (scalar, (per_page, shape["dim"]))})
        n_pages, max_blocks = pages_of(shape["length"]), max(1, shape["length"] // ratio)
        contents = [{"pooled": by_page(data["pooled"][s], n_pages, per_page)} for s in range(2)]
        pages = Pages(layout, contents, [n_pages, n_pages])
        rows = [at[0]] * FIRST_ROW + at
        stride = max_blocks + 3
        b.put("counts", counts(rows=len(rows)))
        pages.sequences(b)
        b.put("rows", row_table(data["sequence"][rows], data["position"][rows]))
        b.put("index_q", scalar.encode(data["q"][rows]))
        b.room("scores", (n + SPARE) * stride * 4)
        for i, unit in enumerate(at):
            blocks = (int(data["position"][unit]) + 1) // ratio
            if blocks > shape["budget"]:
                b.output("scores", unit, "scores", i * stride * 4, F32, (blocks,))
        pages.put(b)
        params = struct(
            "IndexScoreParams",
            index_n_heads=shape["heads"],
            index_dim=shape["dim"],
            ratio=ratio,
            budget_blocks=shape["budget"],
            first_row=FIRST_ROW,
            stride=stride,
            pooled_offset=layout.offsets["pooled"],
        )
        return b.done((-(-max_blocks // frame.tile(b.kernel)), n + SPARE), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        out = []
        for r in range(shape["rows"]):
            blocks = (int(data["position"][r]) + 1) // shape["ratio"]
            keys = Approx.exact(data["pooled"][int(data["sequence"][r])][:blocks])
            each = dot(Approx.exact(data["q"][r]), keys).positive()
            out.append(each.sum(0) * float(np.float32(1 / np.sqrt(np.float64(shape["dim"])))))
        return {"scores": out}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["length"] < 100:
            return ()
        faults = [
            Fault(
                "wrong position: the next block",
                "sums",
                lambda d: {"pooled": [np.roll(x, 1, 0) for x in d["pooled"]]},
            ),
            Fault("wrong scale", "sums", lambda d: {"q": d["q"] * 1.125}),
            Fault("dropped tail: the last head", "sums", _one_head_less),
        ]
        if shape["ratio"] <= 4:  # enough scores that another order shows in one
            faults.append(
                Fault("reordered sum: dimensions backwards in company", "repeat", _backwards, in_company=True)
            )
        return faults


def _backwards(data: Data) -> Data:
    return {"q": data["q"][..., ::-1], "pooled": [x[:, ::-1] for x in data["pooled"]]}


def _one_head_less(data: Data) -> Data:
    q = data["q"].copy()
    q[:, -1] = 0
    return {"q": q}


@register
class IndexSelect(Family):
    """The selected blocks; NaN counts as the largest score."""

    name = "index_select"
    types = ()
    envelope = "any number of blocks and budget; scores are never below zero"
    nonfinite = "a NaN score is selected before every number"
    order = "no sums; ties at the cut to the lower id, the list ascending"
    launch_record = (
        "0 counts, 1 rows, 2 scores float[G, stride], 3 blocks int32[R, budget_blocks], 4 n_selected "
        "int32[R]; grid (G), G rows "
        "from first_row on"
    )
    per_unit = ("scores",)
    shapes = tuple(
        {"rows": r, "ratio": ratio, "budget": budget, "length": n, "kind": kind}
        for r, ratio, budget, n, kind in (
            (1, 1, 1, 1, "random"),
            (6, 4, 8, 200, "random"),
            (9, 16, 4, 130, "random"),
            (5, 4, 64, 1100, "ties"),
            (4, 4, 512, 4200, "equal"),
            (4, 4, 512, 4200, "zeros"),
            (3, 1, 256, 600, "one large block"),
            (2, 4, 512, 262144, "random"),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n, length = shape["rows"], shape["length"]
        blocks = length // shape["ratio"]
        scores = F32.rounded(np.abs(rng.standard_normal((n, blocks))))
        if shape["kind"] == "ties":
            scores = np.round(scores * 2)
        elif shape["kind"] == "equal":
            scores[:] = 0.75
        elif shape["kind"] == "zeros":
            scores[rng.random(scores.shape) < 0.95] = 0
        elif shape["kind"] == "one large block":
            scores[:] = 1e-30
            scores[:, 300:310] = 3e38
        position = rng.permutation(np.arange(max(0, length - 70), length))[:n]
        position[0] = length - 1
        if n > 2:
            position[-1] = min(length - 1, shape["ratio"] - 1)
        return {"scores": scores, "position": position}

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at, budget = Builder(frame, self.kernel(None)), list(pick), shape["budget"]
        rows = [at[0]] * FIRST_ROW + at
        scores = data["scores"][at]
        padded = np.concatenate([scores, np.full((len(at), 3), np.nan)], 1)
        b.put("counts", counts(rows=len(rows)))
        b.put("rows", row_table(np.zeros(len(rows)), data["position"][rows]))
        b.put("scores", F32.encode(padded))
        b.room("blocks", (len(rows) + SPARE) * budget * 4)
        b.room("n_selected", (len(rows) + SPARE) * 4)
        for i, unit in enumerate(at):
            n = min(budget, (int(data["position"][unit]) + 1) // shape["ratio"])
            b.output("blocks", unit, "blocks", (FIRST_ROW + i) * budget * 4, np.int32, (n,))
            b.output("n_selected", unit, "n_selected", (FIRST_ROW + i) * 4, np.int32, (1,))
        params = struct(
            "IndexSelectParams",
            ratio=shape["ratio"],
            budget_blocks=budget,
            first_row=FIRST_ROW,
            stride=padded.shape[1],
        )
        return b.done((len(at) + SPARE,), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        blocks, n_selected = [], []
        for r in range(shape["rows"]):
            n = (int(data["position"][r]) + 1) // shape["ratio"]
            score = data["scores"][r][:n]
            rank = np.where(np.isnan(score), np.inf, np.maximum(score, 0))
            # Descending; a NaN before every number, among equals the lower id first.
            order = np.lexsort((np.arange(n), ~np.isnan(score), -rank))
            chosen = np.sort(order[: shape["budget"]]).astype(np.int32)
            blocks.append(chosen)
            n_selected.append(np.array([len(chosen)], np.int32))
        return {"blocks": blocks, "n_selected": n_selected}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["length"] < 100 or shape["kind"] == "one large block":
            return ()
        faults = [Fault("ties to the higher id", "sums", _nudged)] if shape["kind"] != "random" else []
        if shape["kind"] == "random":
            faults.append(
                Fault(
                    "wrong position: scores of the next block",
                    "sums",
                    lambda d: {"scores": np.roll(d["scores"], 1, 1)},
                )
            )
        return faults


def _nudged(data: Data) -> Data:
    scores = data["scores"]
    return {"scores": scores + np.arange(scores.shape[1]) * 1e-5}
