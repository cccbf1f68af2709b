"""ngram_ids, ngram_gather: which rows of the hashed table a token reads, and their values.

mix_n = xor over s < n of b_s * m_s; head h of order n reads row mix_n mod size_h + offset_h. b_s is the token
s back, or the segment token once a segment token stands between.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.matrices import FORMATS, Matrix
from flashnext.contract.scalars import Array, Scalar
from flashnext.contract.sequences import MAX_ROWS, SPARE, Block, Memory, SequenceFamily, mark_faults
from flashnext.contract.structs import STRUCTS, counts, struct

SEGMENT = 7


@register
class NgramIds(SequenceFamily):
    """Table rows of each token; the last ngram - 1 tokens settle."""

    name = "ngram_ids"
    types = ()
    envelope = "2 <= ngram <= 8; products of ids and multipliers below 2^63; rows below 2^32"
    nonfinite = "no floats"
    order = "no sums"
    launch_record = (
        "0 counts, 1 sequences, 2 rows, 3 multipliers int64[ngram], 4 sizes, 5 offsets int64[H], 6 "
        "ids uint32[R, H]; grid "
        "(sequences); state int32[ngram - 1], also at marks"
    )
    row_keys = ("tokens",)
    state_keys = ("tail",)
    kept_keys = ("kept",)
    shapes = (
        *(
            {"passes": p, "ngram": 3, "heads": 2, "big": False}
            for p in ("marked", "one prompt", "one row", "one window", "mixed", "long")
        ),
        *(
            {"passes": "mixed", "ngram": n, "heads": h, "big": True}
            for n, h in ((2, 1), (3, 8), (4, 3), (8, 2))
        ),
    )

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        data, back = self.passes(shape), shape["ngram"] - 1
        vocab = 248320 if shape["big"] else 40

        def tokens(n: int) -> Array:
            ids = rng.integers(0, vocab, n).astype(np.int32)
            ids[rng.random(n) < 0.2] = SEGMENT
            ids[1:2] = SEGMENT
            return ids

        data["tokens"] = [tokens(n) for n in data["n_rows"]]
        data["kept"] = [tokens(n) for n in data["n_kept"]]
        data["tail"] = [tokens(back) for _ in data["n_rows"]]
        heads = back * shape["heads"]
        data["multipliers"] = 2 * rng.integers(0, ((1 << 63) - 1) // vocab // 2, shape["ngram"]) + 1
        data["sizes"] = rng.integers(
            20_000_000 if shape["big"] else 97, 20_100_000 if shape["big"] else 200, heads
        )
        data["offsets"] = np.concatenate([[0], np.cumsum(data["sizes"])[:-1]])
        return data

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        back, n_heads = shape["ngram"] - 1, len(data["sizes"])
        b = Builder(frame, self.kernel(None))
        state, rows = Block({"tail": (np.int32, (back,))}), Block({"kept": (np.int32, (MAX_ROWS,))})
        memory = Memory(self, data, pick, state, rows)
        firsts = self.first_rows(data, pick)
        of_pass = np.zeros(firsts[-1], STRUCTS["Row"])
        of_pass["token"] = self.packed(data, "tokens", pick)
        b.put("counts", counts(rows=firsts[-1], sequences=len(pick)))
        memory.sequences(b)
        b.put("rows", of_pass)
        for key in ("multipliers", "sizes", "offsets"):
            b.put(key, np.asarray(data[key], np.int64))
        b.room("ids", firsts[-1] * n_heads * 4)
        for unit, first in zip(pick, firsts, strict=False):
            b.output("ids", unit, "ids", first * n_heads * 4, np.uint32, (data["n_rows"][unit], n_heads))
        memory.put(b)
        params = struct(
            "NgramIdsParams",
            ngram=shape["ngram"],
            heads_per_ngram=shape["heads"],
            segment_token=data.get("segment", SEGMENT),
            state_offset=state.offsets["tail"],
            unsettled_offset=rows.offsets["kept"],
        )
        return b.done((len(pick) + SPARE,), params)

    def without_marks(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        back = shape["ngram"] - 1
        ids, tails, left = [], [], []
        for unit in range(self.units(shape)):
            settled = [*data["tail"][unit].tolist(), *data["kept"][unit].tolist()][-back:]
            tokens = data["tokens"][unit].tolist()
            seq = settled + tokens
            out = np.zeros((len(tokens), len(data["sizes"])), np.uint32)
            for r in range(len(tokens)):
                mix, stopped = seq[back + r] * int(data["multipliers"][0]), False
                for s in range(1, back + 1):
                    token = seq[back + r - s]
                    stopped = stopped or token == SEGMENT
                    mix ^= (SEGMENT if stopped else token) * int(data["multipliers"][s])
                    for h in range((s - 1) * shape["heads"], s * shape["heads"]):
                        out[r, h] = mix % int(data["sizes"][h]) + int(data["offsets"][h])
            ids.append(out)
            tails.append(np.array(settled if data["is_window"][unit] else seq[-back:], np.int32))
            left.append(np.array(tokens, np.int32))
        return {"ids": ids, "tail": tails, "kept": left}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if sum(data["n_rows"]) < 5:
            return ()
        faults = [
            Fault("wrong position: the tail from its end", "sums", _other_tail),
            Fault(
                "wrong axis: multipliers backwards", "sums", lambda d: {"multipliers": d["multipliers"][::-1]}
            ),
            *mark_faults(data),
        ]
        if shape["ngram"] > 2:  # with one token back, a segment token stands for itself
            faults.append(Fault("segments that never end", "sums", lambda d: {"segment": -1}))
        return faults


def _other_tail(data: Data) -> Data:
    return {key: [x[::-1] + 1 for x in data[key]] for key in ("tail", "kept")}


@register
class NgramGather(Family):
    """The values of the rows, head after head."""

    name = "ngram_gather"
    envelope = "row_width a multiple of 32 and of the group; ids below the shards' rows"
    nonfinite = "reaches the heads that read the row"
    order = "no sums"
    launch_record = (
        "0 counts, 1 ids uint32[R, H], 2 shards uint64[n_shards, 3] (addresses), 3 out T[R, H * "
        "row_width]; grid (R)"
    )
    shared = ("table",)
    shapes = (
        *({"rows": 5, "heads": 4, "width": 128, "shards": 2, **f} for f in FORMATS),
        {"rows": 1, "heads": 1, "width": 32, "shards": 1, "bits": 4, "group": 32},
        {"rows": 33, "heads": 16, "width": 160, "shards": 5, "bits": 6, "group": 32},
        {"rows": 4, "heads": 6, "width": 160, "shards": 3, "bits": 16, "group": 0},
    )

    def units(self, shape: Shape) -> int:
        return int(shape["rows"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        per_shard = 3
        n = per_shard * shape["shards"]
        ids = rng.integers(0, n, (shape["rows"], shape["heads"])).astype(np.uint32)
        cover = min(n, ids.size)
        ids.reshape(-1)[:cover] = rng.permutation(n)[:cover]
        return {
            "table": Matrix.draw(
                rng, (n if cover == n else int(ids.max()) + 1, shape["width"]), shape["bits"], shape["group"]
            ),
            "ids": ids,
            "per_shard": per_shard,
            "scale": np.float32(1.0 if shape["bits"] != 5 else 0.375),
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(scalar))
        table: Matrix = data["table"]
        size = shape["heads"] * shape["width"]
        n_shards = -(-len(table.codes) // data["per_shard"])
        b.put("counts", counts(rows=len(pick)))
        b.put("ids", data["ids"][list(pick)])
        b.put("shards", np.zeros((n_shards, 3), np.uint64))
        b.room("out", (len(pick) + SPARE) * size * scalar.size_bytes)
        b.rows("out", "out", pick, scalar, (size,))
        for s in range(n_shards):
            shard = table.rows(slice(s * data["per_shard"], (s + 1) * data["per_shard"]))
            shard.put(b, f"shard {s}")
            for i, part in enumerate(("", " scales", " biases")):
                if b.slots[f"shard {s}{part}"].size:
                    b.address("shards", (s * 3 + i) * 8, f"shard {s}{part}")
        params = struct(
            "NgramGatherParams",
            format=table.format,
            n_heads=shape["heads"],
            rows_per_shard=data["per_shard"],
            row_width=shape["width"],
            scale=data["scale"],
        )
        return b.done((len(pick) + SPARE,), params)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        table = data["table"].approx
        scale = float(data["scale"])
        out = []
        for ids in data["ids"]:
            row = table[ids.astype(np.int64)].reshape(-1)
            out.append(row if scale == 1 else row * scale)
        return {"out": out}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        if shape["heads"] < 2:
            return ()
        return (
            Fault("wrong position: the next head's row", "sums", lambda d: {"ids": np.roll(d["ids"], 1, 1)}),
            Fault("wrong scale", "sums", lambda d: {"scale": d["scale"] * np.float32(1.125)}),
        )
