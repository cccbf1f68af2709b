"""logprob_sums, token_logprobs: log-probabilities of unmodified logits; logits_hash: what tests compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.draws import Draw, digest
from flashnext.contract.families.draw import (
    INPUTS,
    SPARE,
    DrawFamily,
    beyond,
    each_rules,
    last_block_dropped,
    n_blocks,
    valid,
)
from flashnext.contract.family import Data, Expected, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.structs import COUNT_LOGITS, MAX_TOP, SAMPLER_BLOCK, counts, struct


def backwards(logits: Array, n_valid: int) -> Array:
    """Each block's logits in reverse."""
    out = logits.copy()
    for at in range(0, n_valid, SAMPLER_BLOCK):
        end = min(at + SAMPLER_BLOCK, n_valid)
        out[:, at:end] = logits[:, at:end][:, ::-1]
    return out


@register
class LogprobSums(DrawFamily):
    """Per block the sum of e^(logit - the row's largest), where the reply asks for log-probabilities."""

    name = "logprob_sums"
    nonfinite = "NaN is skipped; an infinite largest logit gives 0"
    order = "ids of a block ascending"
    launch_record = (
        f"{INPUTS}, 3 maxima BlockMax[L, B], 4 sums float[L, B]; grid (ceil(n_valid / tile), L); "
        "after draw_max"
    )

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(None))
        self.inputs(b, data, pick)
        self.maxima(b, shape, data, pick)
        n = n_blocks(shape)
        b.room("sums", (len(pick) + SPARE) * n * 4)
        b.rows("sums", "sums", pick, np.float32, (n,))
        self.replies(b, shape, data, pick)
        return b.done(self.grid(shape, data, pick, frame), self.params(shape, data))

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        return {"sums": [self.of(shape, data, u).log_sums() for u in range(shape["rows"])]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 9:
            return ()
        n = shape["valid"]
        return (
            Fault("reordered sum: ids descending", "sums", lambda d: {"logits": backwards(d["logits"], n)}),
            Fault("wrong scale of the logits", "sums", lambda d: {"logits": d["logits"] * 1.0625}),
            *beyond(shape),
            *last_block_dropped(shape),
        )


@register
class TokenLogprobs(DrawFamily):
    """Log-probabilities of the drawn token and of the likeliest ids."""

    name = "token_logprobs"
    nonfinite = "NaN is never listed; all are NaN where the largest logit is infinite, or all logits NaN"
    order = "sums of blocks ascending; listed by value descending, ties to the lower id"
    launch_record = (
        f"{INPUTS}, 3 maxima BlockMax[L, B], 4 sums float[L, B], 5 tokens int32[L], 6 chosen float[L], "
        "7 top ids int32[L, kMaxTop], 8 top values float[L, kMaxTop]; grid (L); "
        "after logprob_sums and draw_pick"
    )

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(None))
        draws = [self.of(shape, data, u) for u in pick]
        self.inputs(b, data, pick)
        self.maxima(b, shape, data, pick)
        b.put("sums", np.concatenate([d.log_sums() for d in draws]))
        b.put("tokens", np.array([_token(d) for d in draws], np.int32))
        for name, kind, width in (
            ("chosen", np.float32, 1),
            ("ids", np.int32, MAX_TOP),
            ("values", np.float32, MAX_TOP),
        ):
            b.room(name, (len(pick) + SPARE) * width * 4)
            b.rows(name, name, pick, kind, (width,))
        self.replies(b, shape, data, pick)
        return b.done((len(pick) + SPARE,), self.params(shape, data))

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        draws = [self.of(shape, data, u) for u in range(shape["rows"])]
        found = [d.logprobs(_token(d)) for d in draws]
        return {
            "chosen": [np.array([chosen]) for chosen, _, _ in found],
            "ids": [ids for _, ids, _ in found],
            "values": [values for _, _, values in found],
        }

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 9:
            return ()
        faults = [
            Fault("wrong scale of the logits", "sums", lambda d: {"logits": d["logits"] * 1.0625}),
            Fault("dropped tail of the list", "sums", each_rules(n_logprobs=lambda r: min(r.n_logprobs, 1))),
            *beyond(shape),
        ]
        if shape["ties"]:
            ids = np.arange(shape["vocab"])
            faults.append(
                Fault("wrong tie: the higher id", "sums", lambda d: {"logits": d["logits"] + ids * 1e-6})
            )
        return faults


def _token(d: Draw) -> int:
    """Take some token that is not NaN; the draw itself is no matter here."""
    numbers = np.flatnonzero(~np.isnan(d.logits))
    return int(numbers[d.text.seed % len(numbers)]) if numbers.size else -1


@register
class LogitsHash(DrawFamily):
    """A hash of each row's logits."""

    name = "logits_hash"
    envelope = "1 <= n_valid <= vocab"
    nonfinite = "bits like any others"
    order = "a sum modulo 2^64, in any order"
    launch_record = "0 counts, 1 logits float[L, vocab], 2 out uint64[L]; grid (L); where a test asks"

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(None))
        b.put("counts", counts(logits=len(pick)))
        b.put("logits", F32.encode(data["logits"][list(pick)]))
        b.room("out", (len(pick) + SPARE) * 8)
        b.rows("out", "out", pick, np.uint64, (1,))
        n = valid(shape, data)
        return b.done(
            (len(pick) + SPARE,), struct("DrawParams", vocab=shape["vocab"], n_valid=n, count=COUNT_LOGITS)
        )

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        rows = data["logits"][:, : shape["valid"]]
        return {"out": [np.array([digest(F32.encode(row))]) for row in rows]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        n = shape["valid"]
        faults = [
            Fault("wrong position: ids backwards", "sums", lambda d: {"logits": backwards(d["logits"], n)})
        ]
        if shape["vocab"] > n:
            faults.append(Fault("dropped tail: the last id is not read", "sums", lambda d: {"valid": n - 1}))
        return faults
