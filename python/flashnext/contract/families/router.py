"""router_topk, expert_sort: which experts a row uses, and the rows of each expert.

topk   the top_k largest logits, listed by ascending id; weights = softmax over them
sort   pairs (row, slot) by expert, then row; the experts that occur, ascending, and where each one's pairs
start
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import Approx
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.structs import counts, struct

SPARE = 2


@register
class RouterTopK(Family):
    """The chosen experts and their weights; NaN is chosen last, and only where numbers run out."""

    name = "router_topk"
    types = ()
    envelope = "1 <= top_k <= min(64, n_experts)"
    nonfinite = "a NaN logit ranks last; a chosen NaN, or an infinite maximum, makes the row's weights NaN"
    order = "exponentials of the chosen by ascending id; ties at the cut to the lower id"
    launch_record = (
        "0 counts, 1 logits float[R, n_experts], 2 ids int32[R, top_k], 3 weights float[R, top_k]; grid (R)"
    )
    per_unit = ("logits",)
    shapes = tuple(
        {"rows": r, "experts": e, "top_k": k, "ties": t}
        for r, e, k, t in (
            (1, 1, 1, False),
            (5, 12, 3, False),
            (9, 12, 12, False),
            (33, 16, 4, True),
            (3, 512, 10, False),
            (4, 512, 10, True),
            (3, 65, 64, True),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        logits = rng.standard_normal((shape["rows"], shape["experts"])) * 3
        if shape["ties"]:
            logits = np.round(logits)
            logits[0] = 1.5
            logits[-1, : shape["experts"] - 2] = np.nan
        return {"logits": F32.rounded(logits)}

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, at = Builder(frame, self.kernel(None)), list(pick)
        b.put("counts", counts(rows=len(at)))
        b.put("logits", F32.encode(data["logits"][at]))
        for name, kind in (("ids", np.int32), ("weights", F32)):
            b.room(name, (len(at) + SPARE) * shape["top_k"] * 4)
            b.rows(name, name, at, kind, (shape["top_k"],))
        return b.done(
            (len(at) + SPARE,), struct("RouterParams", n_experts=shape["experts"], top_k=shape["top_k"])
        )

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        ids, weights = [], []
        for logits in data["logits"]:
            rank = np.where(np.isnan(logits), -np.inf, logits)
            # A NaN ranks behind -inf; among equals the lower id is first.
            order = np.lexsort((np.arange(len(logits)), np.isnan(logits), -rank))
            chosen = np.sort(order[: shape["top_k"]])
            ids.append(chosen.astype(np.int32))
            top = logits[order[0]]
            with np.errstate(invalid="ignore"):
                e = (Approx.exact(logits[chosen]) - Approx.exact(top)).exp()
                weights.append(e / e.sum(keepdims=True))
        return {"ids": ids, "weights": weights}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["experts"] == shape["top_k"]:
            return ()
        faults = [
            Fault("wrong position: ids off by one", "sums", lambda d: {"logits": np.roll(d["logits"], 1, 1)}),
            Fault("wrong scale of the logits", "sums", lambda d: {"logits": d["logits"] * 1.0625}),
        ]
        if shape["ties"]:
            faults.append(Fault("ties to the higher id", "sums", lambda d: {"logits": _nudged(d["logits"])}))
        return faults


def _nudged(logits: Array) -> Array:
    return np.asarray(logits + np.arange(logits.shape[1]) * 1e-6)


def sorted_pairs(ids: Array) -> tuple[Array, Array, Array]:
    """Active experts, their starts (one more) and the pairs (row * top_k + slot) of ids (R, top_k)."""
    flat = ids.reshape(-1)
    pairs = np.argsort(flat, kind="stable").astype(np.int32)
    active, n = np.unique(flat, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(n)]).astype(np.int32)
    return active.astype(np.int32), starts, pairs


@register
class ExpertSort(Family):
    """Rows sorted by expert; the unit is the pass."""

    name = "expert_sort"
    types = ()
    envelope = "ids below n_experts; a row's ids distinct and ascending"
    nonfinite = "no floats"
    order = "no sums"
    launch_record = (
        "0 counts, 1 ids int32[R, top_k], 2 active int32[1 + n_experts] (count, then ids), 3 starts "
        "int32[n_experts + 1], "
        "4 pairs int32[R * top_k]; grid (1)"
    )
    shapes = tuple(
        {"rows": r, "experts": e, "top_k": k}
        for r, e, k in ((0, 12, 3), (1, 1, 1), (5, 12, 3), (64, 16, 4), (40, 512, 10), (9, 8, 8))
    )

    def units(self, shape: Shape) -> int:
        return 1

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        rows = [np.sort(rng.permutation(shape["experts"])[: shape["top_k"]]) for _ in range(shape["rows"])]
        return {"ids": np.array(rows, np.int32).reshape(shape["rows"], shape["top_k"])}

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(None))
        ids = data["ids"]
        active, starts, _ = sorted_pairs(np.asarray(data.get("sound", ids)))
        b.put("counts", counts(rows=shape["rows"]))
        b.put("ids", ids)
        b.room("active", (1 + shape["experts"]) * 4)
        b.room("starts", (1 + shape["experts"]) * 4)
        b.room("pairs", ids.size * 4)
        b.output("active", 0, "active", 0, np.int32, (1 + len(active),))
        b.output("starts", 0, "starts", 0, np.int32, starts.shape)
        b.output("pairs", 0, "pairs", 0, np.int32, (ids.size,))
        return b.done((1,), struct("RouterParams", n_experts=shape["experts"], top_k=shape["top_k"]))

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        active, starts, pairs = sorted_pairs(data["ids"])
        return {
            "active": [np.concatenate([[len(active)], active]).astype(np.int32)],
            "starts": [starts],
            "pairs": [pairs],
        }

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 2 or shape["experts"] == shape["top_k"]:
            return ()
        rows = data["ids"]
        return (
            Fault("wrong position: rows backwards", "sums", lambda d: {"ids": rows[::-1], "sound": rows}),
        )
