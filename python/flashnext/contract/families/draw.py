"""draw_max, draw_blocks, draw_pick: the tokens of rows of logits, each by the rules of its reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from flashnext.contract.draws import Draw, Rules, Text
from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.scalars import F32, Array, Scalar
from flashnext.contract.structs import COUNT_LOGITS, MAX_WINDOW, SAMPLER_BLOCK, STRUCTS, counts, struct

SPARE = 2
INPUTS = "0 counts, 1 draws DrawRow[L], 2 logits float[L, vocab]"

RULES = (
    Rules(temperature=0, n_logprobs=5),
    Rules(n_logprobs=20),
    Rules(temperature=0.7, top_k=20, top_p=0.95, n_logprobs=0),
    Rules(top_p=0.9, presence=0.5, frequency=0.25, repetition=1.25, n_logprobs=1),
    Rules(temperature=1.5, min_p=0.05, bias={0: 3.5, 3: -2.0}),
    Rules(temperature=0, presence=1.5, frequency=0.75, repetition=1.1, bias={1: 4.0}, n_logprobs=20),
    Rules(temperature=2.0, top_k=3, presence=-0.5, n_logprobs=3),
    Rules(temperature=3.0, top_p=0.5, min_p=0.02, frequency=0.5),
)
"""One unit after the other is drawn by these."""


class DrawFamily(Family):
    """A kernel over rows to draw.

    A shape has rows, vocab, valid, whether logits are few and tied, and whether masks apply; where they do
    not, replies have some all the same.
    """

    types = ()
    per_unit = ("logits",)
    envelope = "1 <= n_valid <= vocab, at most kMaxDrawn; bias by ascending id; counts where penalties are"
    shapes: ClassVar[Sequence[Shape]] = tuple(
        {"rows": r, "vocab": v, "valid": n, "ties": t, "masked": m}
        for r, v, n, t, m in (
            (1, 7, 7, False, False),
            (16, 9, 7, True, True),
            (24, 64, 64, False, True),
            (33, 300, 297, False, True),
            (16, 1025, 1024, True, False),
            (9, 2500, 2049, False, False),
            (20, 2500, 2049, False, True),
            (16, 8200, 8193, False, True),
            (3, 20000, 19999, True, False),
        )
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        size = shape["rows"], shape["vocab"]
        logits = rng.integers(-3, 4, size) if shape["ties"] else rng.standard_normal(size) * 3
        logits = F32.rounded(logits)
        logits[:, shape["valid"] :] = 100
        if shape["rows"] > 8:
            logits[-1, : shape["valid"]] = np.nan
            logits[-2, 1 : shape["valid"]] = np.nan
            logits[-3, rng.integers(0, shape["valid"], 5)] = -np.inf
            logits[0, shape["valid"] - 1] = 50  # what a dropped tail would lose
        texts: list[Text] = []
        for row in logits:
            # Few tokens, so that they repeat, and one of them likely.
            pool = rng.integers(0, shape["valid"], 4)
            pool[0] = np.nan_to_num(row[: shape["valid"]], nan=-np.inf).argmax()
            n_prompt, n_reply, n_drafts = (int(n) for n in rng.integers([1, 1, 0], [9, 9, 16]))
            n_drafts += n_prompt % 2  # two drafts in three
            known = n_prompt + n_reply + n_drafts
            tokens = [int(t) for t in rng.choice(pool, known + 3)]
            seed = int(rng.integers(1, 2**63, dtype=np.int64))
            texts.append(
                Text(tokens, n_prompt, n_prompt + n_reply, known, seed, _mask(rng, shape, len(texts)))
            )
        return {"logits": logits, "texts": texts, "rules": [RULES[u % len(RULES)] for u in range(size[0])]}

    def of(self, shape: Shape, data: Data, unit: int) -> Draw:
        """One unit's draw."""
        n, text = valid(shape, data), data["texts"][unit]
        text = text if data.get("masked", shape["masked"]) else replace(text, mask=None)
        return Draw(F32.encode(data["logits"][unit][:n]), data["rules"][unit], text)

    def inputs(self, b: Builder, data: Data, pick: Sequence[int]) -> None:
        """Add the first three slots."""
        rows = np.zeros(len(pick), STRUCTS["DrawRow"])
        for i, unit in enumerate(pick):
            rows[i]["position"] = data["texts"][unit].position
            rows[i]["n_counted"] = data["texts"][unit].n_counted
        b.put("counts", counts(logits=len(pick)))
        b.put("draws", rows)
        b.put("logits", F32.encode(data["logits"][list(pick)]))
        for i in range(len(pick)):
            b.address("draws", i * rows.itemsize, f"reply {i}")

    def replies(self, b: Builder, shape: Shape, data: Data, pick: Sequence[int]) -> None:
        """Add the memory behind the rows, after all slots."""
        fields = STRUCTS["ReplyState"].fields
        assert fields is not None
        n = valid(shape, data)
        for i, unit in enumerate(pick):
            rules, text = data["rules"][unit], data["texts"][unit]
            state = struct("ReplyState", seed=text.seed, n_bias=len(rules.bias), n_logprobs=rules.n_logprobs)
            for name in (
                "temperature",
                "top_p",
                "min_p",
                "presence",
                "frequency",
                "repetition",
                "top_k",
            ):
                state[name] = getattr(rules, name)
            b.put(f"reply {i}", state)
            places = {"text": np.array(text.tokens, np.int32)}
            if rules.penalizes:
                places["counts"] = np.stack([text.prompt(n), text.reply(n, counted=True)])
            if rules.bias:
                places["bias"] = np.array(sorted(rules.bias.items()), STRUCTS["BiasEntry"])
            if text.mask is not None:
                places["masks"] = _words(text, n)
            for name, array in places.items():
                b.put(f"{name} {i}", array)
                b.address(f"reply {i}", fields[name][1], f"{name} {i}")

    def maxima(self, b: Builder, shape: Shape, data: Data, pick: Sequence[int]) -> None:
        """Add what draw_max leaves."""
        b.put("maxima", np.concatenate([self.of(shape, data, u).maxima() for u in pick]))

    def params(self, shape: Shape, data: Data) -> Any:
        """DrawParams."""
        n = valid(shape, data)
        masked = data.get("masked", shape["masked"])
        return struct("DrawParams", vocab=shape["vocab"], n_valid=n, count=COUNT_LOGITS, masked=masked)

    def grid(self, shape: Shape, data: Data, pick: Sequence[int], frame: Frame) -> tuple[int, int]:
        """Tiles of ids and rows."""
        n = valid(shape, data)
        return -(-n // frame.tile(self.kernel(None))), len(pick) + SPARE

    def table(self, b: Builder, name: str, kind: str, pick: Sequence[int], n_blocks: int) -> None:
        """Add a slot of one struct a block and the results that are its fields."""
        dtype = STRUCTS[kind]
        assert dtype.fields is not None
        b.room(name, (len(pick) + SPARE) * n_blocks * dtype.itemsize)
        for i, unit in enumerate(pick):
            for field, (type_, offset, *_) in dtype.fields.items():
                at = i * n_blocks * dtype.itemsize + offset
                b.output(field, unit, name, at, type_, (n_blocks,), (dtype.itemsize,))

    def expected_table(self, shape: Shape, data: Data, of: Callable[[Draw], Array]) -> Expected:
        """Fields of one struct a block, of every unit."""
        rows = [of(self.of(shape, data, u)) for u in range(shape["rows"])]
        return {field: [row[field] for row in rows] for field in rows[0].dtype.names or ()}


def _mask(rng: np.random.Generator, shape: Shape, unit: int) -> Array | None:
    """Draw the ids that a grammar allows: of units in turn all, few, most, hardly any, none."""
    share = (1.0, 0.1, 0.9, 1.0, 0.01, 0.0, 0.5)[unit % 7]
    if share == 1:
        return None
    mask: Array = np.less(rng.random(shape["vocab"]), share)
    if shape["vocab"] > 2 * SAMPLER_BLOCK:
        mask[SAMPLER_BLOCK : SAMPLER_BLOCK + 64] = unit % 2  # whole words, and of some units whole blocks
    return mask


def _words(text: Text, n: int) -> Array:
    """Write a mask into its row of a reply's; the rows of other positions have the opposite."""
    assert text.mask is not None
    padded = np.zeros(-(-n // 32) * 32, bool)
    padded[:n] = text.mask[:n]
    row = np.packbits(padded, bitorder="little").view(np.uint32)
    rows = np.tile(~row, (MAX_WINDOW, 1))
    rows[text.position % MAX_WINDOW] = row
    return rows


def valid(shape: Shape, data: Data) -> int:
    """How many ids the kernel is told are valid."""
    return int(data["valid"] if "valid" in data else shape["valid"])


def n_blocks(shape: Shape) -> int:
    """Blocks of a row."""
    return -(-int(shape["valid"]) // SAMPLER_BLOCK)


def each_text(**change: Callable[[Text], Any]) -> Callable[[Data], Data]:
    """Make a fault that changes fields of every row's text."""
    return lambda d: {"texts": [replace(t, **{k: f(t) for k, f in change.items()}) for t in d["texts"]]}


def each_rules(**change: Callable[[Rules], Any]) -> Callable[[Data], Data]:
    """Make a fault that changes fields of every row's rules."""
    return lambda d: {"rules": [replace(r, **{k: f(r) for k, f in change.items()}) for r in d["rules"]]}


UNCOUNTED = Fault(
    "wrong penalty count: drafts before the row do not count",
    "sums",
    each_text(position=lambda t: t.n_counted),
)
AS_PROMPT = Fault(
    "wrong penalty count: reply tokens count as the prompt's",
    "sums",
    each_text(n_prompt=lambda t: t.n_counted),
)
UNSCALED = Fault("wrong scale: temperature is left out", "sums", each_rules(temperature=lambda r: 1.0))
NEXT_POSITION = Fault(
    "wrong position: drawn as the next token", "sums", each_text(position=lambda t: t.position + 1)
)


def unmasked(shape: Shape) -> Sequence[Fault]:
    """Plant masks that are not looked at, where there are any."""
    if not shape["masked"]:
        return ()
    return (Fault("wrong mask: ids that a grammar forbids are drawn", "sums", lambda d: {"masked": 0}),)


def beyond(shape: Shape) -> Sequence[Fault]:
    """Plant a read of ids beyond the valid ones, where there are any."""
    if shape["vocab"] == shape["valid"] or -(-shape["vocab"] // SAMPLER_BLOCK) != n_blocks(shape):
        return ()
    return (
        Fault(
            "dropped tail: ids beyond the valid ones are read",
            "sums",
            lambda d: {
                "logits": np.where(np.arange(shape["vocab"]) == shape["valid"] - 1, 100.0, d["logits"])
            },
        ),
    )


def last_block_dropped(shape: Shape) -> Sequence[Fault]:
    """Plant a last block that is never looked at, where there is another."""
    first = (n_blocks(shape) - 1) * SAMPLER_BLOCK
    if first == 0:
        return ()
    ids = np.arange(shape["vocab"])
    return (
        Fault(
            "dropped tail block", "sums", lambda d: {"logits": np.where(ids >= first, np.nan, d["logits"])}
        ),
    )


@register
class DrawMax(DrawFamily):
    """Per block the largest value, the largest logit, how many of each are numbers, and where rules apply."""

    name = "draw_max"
    nonfinite = "NaN never counts; a block of NaN gives -inf and no numbers; infinities are numbers"
    order = "no sums; bias first, then repetition, then frequency and presence, then the mask"
    launch_record = f"{INPUTS}, 3 maxima BlockMax[L, B]; grid (ceil(n_valid / tile), L); first of a draw"

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(None))
        self.inputs(b, data, pick)
        self.table(b, "maxima", "BlockMax", pick, n_blocks(shape))
        self.replies(b, shape, data, pick)
        return b.done(self.grid(shape, data, pick, frame), self.params(shape, data))

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        return self.expected_table(shape, data, Draw.maxima)

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 9:
            return ()
        faults = [] if shape["ties"] else [AS_PROMPT]  # tied values hide it behind equal ones
        return (*faults, UNCOUNTED, *unmasked(shape), *beyond(shape), *last_block_dropped(shape))


@register
class DrawBlocks(DrawFamily):
    """Per block the sum of weights where top_p cuts, and the best noisy distance where top_k does not."""

    name = "draw_blocks"
    nonfinite = "NaN is skipped; an infinite largest value leaves all others at -inf, weight 0"
    order = "weights of a block by ascending id; equal noisy distances to the lower id"
    launch_record = (
        f"{INPUTS}, 3 maxima BlockMax[L, B], 4 parts BlockPart[L, B]; grid (ceil(n_valid / tile), L); "
        "after draw_max"
    )

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(None))
        self.inputs(b, data, pick)
        self.maxima(b, shape, data, pick)
        self.table(b, "parts", "BlockPart", pick, n_blocks(shape))
        self.replies(b, shape, data, pick)
        return b.done(self.grid(shape, data, pick, frame), self.params(shape, data))

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        return self.expected_table(shape, data, Draw.parts)

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 9:
            return ()
        faults = (NEXT_POSITION, UNSCALED, UNCOUNTED, *unmasked(shape))
        return (*faults, *beyond(shape), *last_block_dropped(shape))


@register
class DrawPick(DrawFamily):
    """The token of each row."""

    name = "draw_pick"
    nonfinite = (
        "NaN, and what a mask leaves out, is never drawn; nothing left gives -1; infinities are numbers"
    )
    order = "weights by value descending, then id; those of the vocabulary by block; ties to the lower id"
    launch_record = (
        f"{INPUTS}, 3 maxima BlockMax[L, B], 4 parts BlockPart[L, B], 5 out int32[L]; grid (L); "
        "last of a draw"
    )

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(None))
        self.inputs(b, data, pick)
        self.maxima(b, shape, data, pick)
        b.put("parts", np.concatenate([self.of(shape, data, u).parts() for u in pick]))
        b.room("out", (len(pick) + SPARE) * 4)
        b.rows("out", "out", pick, np.int32, (1,))
        self.replies(b, shape, data, pick)
        return b.done((len(pick) + SPARE,), self.params(shape, data))

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        return {"out": [np.array([self.of(shape, data, u).token()], np.int32) for u in range(shape["rows"])]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["rows"] < 9:
            return ()
        faults = [NEXT_POSITION, UNSCALED, UNCOUNTED, *unmasked(shape), *beyond(shape)]
        if shape["ties"]:
            ids = np.arange(shape["vocab"])
            faults.append(
                Fault("wrong tie: the higher id", "sums", lambda d: {"logits": d["logits"] + ids * 1e-6})
            )
        return (*faults, *last_block_dropped(shape))
