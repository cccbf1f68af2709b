"""absorb_rows, keep_streams, draft_rows: what the draft head reads behind a verdict, and its chain of drafts.

The head absorbs the rows that a verdict kept, each with the token behind it. The last row of a reply drafts
its first token; each further step of the head is one row a reply, of the token that the step before drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from flashnext.contract.family import Data, Shape, register
from flashnext.contract.launch import NAN_BYTE, Builder, Frame, Launch
from flashnext.contract.replies import (
    ROW_FIELDS,
    SEQUENCE_FIELDS,
    SPARE,
    Reply,
    TableFamily,
    draw_state,
    elements,
    most_drafts,
    offset,
    records,
    reply_text,
    room,
)
from flashnext.contract.scalars import Array, Scalar
from flashnext.contract.structs import MAX_WINDOW, STRUCTS, counts, struct

STREAMS = 3


@register
class AbsorbRows(TableFamily):
    """The rows that the head absorbs; the unit is a window that has landed."""

    name = "absorb_rows"
    types = ()
    envelope = "n_tokens <= 16; n_steps >= 1 with a head; the text holds the tokens that landed"
    nonfinite = "whole numbers only; a reply whose last draw was of NaN is not absorbed"
    order = "no sums; those that draft most first, equal ones in order"
    launch_record = (
        "0 windows Window[n], 1 landed Landed[n] io, 2 n_copied int32[n] or empty; with a head: 3 counts "
        "Counts[steps], 4 sequences Sequence[n], 5 rows Row[R], 6 sources int32[R], 7 logit rows int32[n], "
        "8 draws DrawRow[n], 9 replies uint64[n], 10 last rows int32[n]; grid (1); behind the "
        "verdict and copy_drafts"
    )
    shapes = (
        {"n": 64, "steps": 5, "copies": True, "most": "any"},
        {"n": 1, "steps": 1, "copies": False, "most": "any"},
        {"n": 9, "steps": 3, "copies": False, "most": "equal"},
        {"n": 5, "steps": 0, "copies": True, "most": "any"},
        {"n": 33, "steps": 15, "copies": False, "most": "any"},
        {"n": 7, "steps": 2, "copies": True, "most": "none"},
        {"n": 24, "steps": 1, "copies": True, "most": "any"},
    )
    wrongs: ClassVar = {
        "order": "unstable order: of equal ones the last first",
        "least": "those that draft least first",
        "source": "wrong source row: the one behind",
        "token": "wrong position: a row with its own token",
        "position": "wrong position: rows one too far",
        "rotary": "wrong position: rows behind media rotate where text alone would",
        "draw": "wrong position: the pending token is drawn again",
        "dropped": "dropped tail: the last row that was kept",
        "copied": "the head drafts for those with copies too",
        "known": "drafts behind known text",
        "limit": "drafts behind the end of the reply",
        "head": "replies without a head are absorbed",
        "nan": "a draw of NaN is absorbed",
        "steps": "more drafts than the head has steps",
        "logits": "a step draws for those of the step before",
        "streams": "wrong scale: rows counted in place of their streams",
    }

    def units(self, shape: Shape) -> int:
        return int(shape["n"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n = shape["n"]
        windows, landed = np.zeros(n, STRUCTS["Window"]), np.zeros(n, STRUCTS["Landed"])
        windows["first_row"] = rng.permutation(n) * MAX_WINDOW  # not as the head's rows lie
        windows["most_drafts"] = {"any": rng.integers(0, MAX_WINDOW, n), "equal": 2, "none": 0}[shape["most"]]
        replies, n_copied = [], np.zeros(n, np.int32)
        for i in range(n):
            size = 0 if n > 1 and rng.random() < 0.1 else int(rng.integers(1, MAX_WINDOW + 1))
            start = int(rng.choice([0, 62, 63, 64, int(rng.integers(2000))]))
            length = start + size
            text = reply_text(rng, length)
            tokens = text[start + 1 : length + 1]
            nan = n > 1 and size > 0 and rng.random() < 0.1
            if nan:
                tokens[-1] = -1
            ended = bool(nan or not size or (n > 1 and rng.random() < 0.15))
            state = draw_state(
                rng,
                length=length,
                end=length + (rng.integers(2, 20) if rng.random() < 0.5 else 100),
                known=length + (rng.integers(2, 9) if n > 1 and rng.random() < 0.2 else rng.integers(-3, 2)),
                n_drafts=0,
                copied=0,
                ended=ended,
                has_head=n == 1 or rng.random() < 0.8,
            )
            reply = Reply(state, text)
            if shape["copies"] and rng.random() < 0.5:
                n_copied[i] = most_drafts(reply, length, ended, int(rng.integers(1, MAX_WINDOW)))
            windows["start"][i], windows["n_rows"][i] = start, min(size + i % 3, MAX_WINDOW)
            windows["is_window"][i] = i % 4 > 0
            landed["n_tokens"][i], landed["tokens"][i, :size] = size, tokens
            landed["length"][i], landed["ended"][i] = length, ended
            replies.append(reply)
        return {"windows": windows, "landed": landed, "n_copied": n_copied, "replies": replies}

    def _order(self, shape: Shape, data: Data, pick: Sequence[int], wrong: str = "") -> list[tuple[int, int]]:
        """List the places in `pick` that are absorbed, in order, and how many tokens each drafts."""
        out = []
        for i, unit in enumerate(pick):
            reply, landed = data["replies"][unit], data["landed"][unit]
            n = int(landed["n_tokens"])
            if not n or (not reply["has_head"] and wrong != "head"):
                continue
            if landed["tokens"][n - 1] == -1 and wrong != "nan":
                continue
            most = int(data["windows"]["most_drafts"][unit])
            drafts = most_drafts(reply, reply["length"], bool(reply["ended"]), most, wrong)
            if data["n_copied"][unit] and wrong != "copied":
                drafts = 0
            out.append((i, drafts if wrong == "steps" else min(drafts, shape["steps"])))
        if wrong == "order":
            out.reverse()
        return sorted(out, key=lambda x: x[1], reverse=wrong != "least")

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, n, at, steps = Builder(frame, self.kernel(None)), len(pick), list(pick), shape["steps"]
        windows = data["windows"][at].copy()
        windows["reply"] = np.add(pick, 1)
        b.put("windows", windows)
        b.put("landed", data["landed"][at])
        if shape["copies"]:
            b.put("n_copied", data["n_copied"][at])
        else:
            b.unused("n_copied")
        order = self._order(shape, data, pick) if steps else []
        n_rows = sum(int(data["landed"]["n_tokens"][at[i]]) for i, _ in order)
        if steps:
            b.room("counts", (steps + SPARE) * STRUCTS["Counts"].itemsize)
            room(b, "sequences", n, "Sequence")
            room(b, "rows", n_rows, "Row")
            room(b, "sources", n_rows, np.int32)
            room(b, "logit rows", n, np.int32)
            room(b, "draws", n, "DrawRow")
            room(b, "replies", n, np.uint64)
            room(b, "last rows", n, np.int32)
        else:
            b.unused("counts", "sequences", "rows", "sources", "logit rows", "draws", "replies", "last rows")
        for i, unit in enumerate(pick):
            b.address("windows", i * windows.itemsize, f"reply {i}")
            data["replies"][unit].put(b, i)
            records(b, unit, "landed", "Landed", (i, 1), ("n_head", "n_copied"), updated=True)
            fields = ("n_drafts", "copied")
            records(b, unit, f"reply {i}", "ReplyState", (0, 1), fields, updated=True, name="reply")
        first = 0
        for s, (i, _) in enumerate(order):
            unit, size = at[i], int(data["landed"]["n_tokens"][at[i]])
            records(b, unit, "sequences", "Sequence", (s, 1), SEQUENCE_FIELDS)
            records(b, unit, "rows", "Row", (first, size), ROW_FIELDS)
            elements(b, unit, "sources", (first, size))
            records(b, unit, "draws", "DrawRow", (s, 1), ("reply", "position", "n_counted"))
            elements(b, unit, "replies", (s, 1), np.uint64)
            elements(b, unit, "last rows", (s, 1))
            first += size
        if at == list(range(self.units(shape))):
            records(b, 0, "counts", "Counts", (0, steps), ("n",))
            records(b, 0, "sequences", "Sequence", (0, len(order)), ("first_row",))
            records(b, 0, "rows", "Row", (0, n_rows), ("sequence",))
            elements(b, 0, "logit rows", (0, len(order)))
        params = struct("AbsorbRowsParams", n_windows=n, n_steps=steps, hc_count=STREAMS)
        return b.done((1,), params)

    def after(
        self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], wrong: str = ""
    ) -> Mapping[str, Array]:
        n, at, steps = len(pick), list(pick), shape["steps"]
        order = self._order(shape, data, pick, wrong) if steps else []
        landed = data["landed"][at].copy()
        landed["n_copied"] = data["n_copied"][at]
        out: dict[str, Array] = {"landed": landed}
        for i, unit in enumerate(pick):
            out[f"reply {i}"] = state = data["replies"][unit].state.copy()
            state["n_drafts"] = data["n_copied"][unit]
            state["copied"] = data["n_copied"][unit] > 0
        sequences, draws = np.zeros(n, STRUCTS["Sequence"]), np.zeros(n, STRUCTS["DrawRow"])
        rows = np.zeros(n * MAX_WINDOW, STRUCTS["Row"])
        sources, last_rows, logit_rows = np.zeros(len(rows), np.int32), np.zeros(n, int), np.zeros(n, int)
        first = 0
        for s, (i, drafts) in enumerate(order):
            reply, window = data["replies"][at[i]], data["windows"][at[i]]
            size, start = int(landed["n_tokens"][i]) - (wrong == "dropped"), int(window["start"])
            landed["n_head"][i] = drafts
            sequences[s]["page_table"], sequences[s]["first_row"] = reply.state["page_table"][0], first
            sequences[s]["n_rows"], sequences[s]["start"] = size, start
            span = slice(first, first + size)
            place = np.arange(start, start + size)
            rows["token"][span] = reply.text[place + (wrong != "token")]
            rows["sequence"][span] = s
            rows["position"][span] = place + (wrong == "position")
            delta = 0 if wrong == "rotary" else reply["rotary_delta"]
            rows["rotary"][span] = rows["position"][span, None] + delta
            sources[span] = np.arange(size) + window["first_row"] + (wrong == "source")
            draws[s]["reply"], draws[s]["n_counted"] = at[i] + 1, reply["length"] + 1
            draws[s]["position"] = reply["length"] + (wrong != "draw")
            first += size
            logit_rows[s], last_rows[s] = first - 1, window["first_row"] + size - 1
        table = np.zeros(steps, STRUCTS["Counts"])
        for step in range(steps):
            drafting = sum(drafts > step for _, drafts in order)
            going = (first, len(order)) if step == 0 else (drafting, drafting)
            if wrong == "logits" and step:
                drafting = sum(drafts >= step for _, drafts in order)
            table[step]["n"] = *going, drafting, going[0] * (1 if wrong == "streams" else STREAMS)
        return out | {
            "counts": table,
            "sequences": sequences,
            "rows": rows,
            "sources": sources,
            "logit rows": logit_rows.astype(np.int32),
            "draws": draws,
            "replies": np.array([at[i] + 1 for i, _ in order] + [0] * (n - len(order)), np.uint64),
            "last rows": last_rows.astype(np.int32),
        }


@register
class KeepStreams(TableFamily):
    """The last row's streams of each sequence, in its recurrent block; the unit is a sequence."""

    name = "keep_streams"
    envelope = "width >= 1; state_offset a multiple of an element's size; each sequence of another reply"
    nonfinite = "copied like any value"
    order = "no sums"
    launch_record = (
        "0 counts, 1 replies uint64[L] (addresses), 2 last rows int32[L], 3 streams T[R, W]; grid "
        "(sequences); behind absorb_rows; writes the replies' recurrent blocks"
    )
    shapes = tuple(
        {"n": n, "width": w, "offset": at}
        for n, w, at in ((64, 33, 128), (1, 1, 0), (5, 256, 64), (3, 10240, 4), (2, 31, 1 << 16))
    )
    wrongs: ClassVar = {
        "row": "wrong source row: the one before",
        "axis": "wrong axis: values backwards",
        "place": "wrong position: one value too far",
        "tail": "dropped tail: the last value is not copied",
        "scale": "wrong scale: another exponent",
    }

    def units(self, shape: Shape) -> int:
        return int(shape["n"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n = shape["n"]
        streams = scalar.encode(rng.standard_normal((2 * n + 1, shape["width"])))
        streams[0] = scalar.encode(np.resize([np.nan, np.inf, -np.inf, -0.0], shape["width"]))
        last = np.append(0, 1 + rng.permutation(2 * n)[: n - 1])
        states = [draw_state(rng) for _ in range(n)]
        return {"streams": streams, "last_rows": last.astype(np.int32), "states": states}

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, n, width = Builder(frame, self.kernel(scalar)), len(pick), shape["width"]
        b.put("counts", counts(rows=3 * n, sequences=n, logits=n - 1))
        b.put("replies", np.zeros(n + SPARE, np.uint64))
        b.put("last rows", np.append(data["last_rows"][list(pick)], np.zeros(SPARE, np.int32)))
        b.put("streams", data["streams"])
        for i, unit in enumerate(pick):
            b.address("replies", i * 8, f"reply {i}")
            b.address(f"reply {i}", offset("ReplyState", "state"), f"state {i}")
            b.put(f"reply {i}", data["states"][unit])
            b.room(f"state {i}", shape["offset"] + width * scalar.size_bytes)
            b.output("streams", unit, f"state {i}", shape["offset"], scalar.bits, (width,))
        return b.done((n + SPARE,), struct("KeepStreamsParams", width=width, state_offset=shape["offset"]))

    def after(
        self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], wrong: str = ""
    ) -> Mapping[str, Array]:
        rows = data["streams"][data["last_rows"][list(pick)] - (wrong == "row")]
        if wrong == "axis":
            rows = rows[:, ::-1]
        elif wrong == "place":
            rows = np.roll(rows, 1, 1)
        elif wrong == "scale":
            rows = scalar.encode(1.25 * scalar.decode(rows))
        elif wrong == "tail":
            poison = np.full_like(rows[:, :1].view(np.uint8), NAN_BYTE).view(rows.dtype)
            rows = np.concatenate([rows[:, :-1], poison], 1)
        before = np.zeros((len(rows), shape["offset"]), np.uint8)
        held = np.concatenate([before, np.ascontiguousarray(rows).view(np.uint8)], 1)
        return {f"state {i}": held[i] for i in range(len(rows))}


@register
class DraftRows(TableFamily):
    """What a step of the head drafted, and the rows of the next one; the unit is a sequence that drafts."""

    name = "draft_rows"
    types = ()
    envelope = (
        "positions below 2^31 - 1; the next step's sequences are the first ones of this one's that draft"
    )
    nonfinite = "whole numbers only; a draw of NaN, -1, gives token 0"
    order = "no sums"
    launch_record = (
        "0 counts, 1 drafted int32[L], 2 logit rows int32[L], 3 rows Row[R], 4 sequences Sequence[L], 5 "
        "draws DrawRow[L], 6 replies uint64[L]; 7 counts, 8 rows Row[L], 9 sequences Sequence[L], 10 sources "
        "int32[L], 11 draws DrawRow[L] of the next step, empty behind the last; grid (L); behind a draw"
    )
    shapes = (
        {"n": 64, "next": 40, "rows": 300},
        {"n": 1, "next": 1, "rows": 1},
        {"n": 5, "next": 0, "rows": 9},
        {"n": 3, "next": 3, "rows": 3},
        {"n": 33, "next": -1, "rows": 33},
        {"n": 9, "next": 2, "rows": 9},
    )
    wrongs: ClassVar = {
        "token": "wrong position: the token of the next sequence",
        "place": "wrong position: a draft of the next step one too far",
        "stay": "wrong position: the next step's row does not move on",
        "rotary": "wrong axis: rotary positions of one axis alone move on",
        "source": "wrong source row: the sequence's own number",
        "counted": "the draft counts as a token of the reply",
        "nan": "a draw of NaN is a draft",
        "n_drafts": "drafts not counted",
        "table": "page table of the next sequence",
    }

    def units(self, shape: Shape) -> int:
        return int(shape["n"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n = shape["n"]
        rows = np.zeros(shape["rows"], STRUCTS["Row"])
        rows["token"] = rng.integers(0, 1 << 18, len(rows))
        rows["sequence"] = rng.integers(0, 64, len(rows))
        rows["position"] = rng.integers(0, 1 << 20, len(rows))
        rows["rotary"] = rng.integers(0, 1 << 20, (len(rows), 3))
        sequences = np.frombuffer(rng.bytes(n * STRUCTS["Sequence"].itemsize), STRUCTS["Sequence"])
        draws = np.zeros(n, STRUCTS["DrawRow"])
        draws["reply"] = rng.integers(1, 1 << 60, n)  # handed on and not followed
        drafted = rng.integers(0, 1 << 18, (n,)).astype(np.int32)
        if n > 1:
            drafted[rng.integers(0, n, 1 + n // 8)] = -1
        lengths, made = rng.integers(0, 1000, (n,)), rng.integers(0, MAX_WINDOW - 1, (n,))
        draws["position"], draws["n_counted"] = lengths + 1 + made, lengths + 1
        replies = [
            Reply(draw_state(rng, length=length, n_drafts=n_drafts), reply_text(rng, length))
            for length, n_drafts in zip(lengths.tolist(), made.tolist(), strict=True)
        ]
        return {
            "drafted": drafted,
            "logit_rows": rng.permutation(shape["rows"])[:n].astype(np.int32),
            "rows": rows,
            "sequences": sequences,
            "draws": draws,
            "replies": replies,
        }

    def _order(self, shape: Shape, pick: Sequence[int]) -> tuple[list[int], int]:
        """List the units as they stand, those first that go on, and count these."""
        on = [u for u in pick if u < shape["next"]]
        return on + [u for u in pick if u >= shape["next"]], len(on)

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, n = Builder(frame, self.kernel(None)), len(pick)
        order, n_next = self._order(shape, pick)
        spare = np.zeros(SPARE, np.int32)
        b.put("counts", counts(rows=shape["rows"], sequences=n + 1, logits=n))
        b.put("drafted", np.append(data["drafted"][order], spare))
        b.put("logit rows", np.append(data["logit_rows"][order], spare))
        b.put("rows", data["rows"])
        b.put("sequences", data["sequences"][order])
        b.put("draws", data["draws"][order])
        b.put("replies", np.zeros(n + SPARE, np.uint64))
        if shape["next"] < 0:
            b.unused("next counts", "next rows", "next sequences", "next sources", "next draws")
        else:
            b.put("next counts", counts(rows=n_next, sequences=n_next, logits=n_next))
            room(b, "next rows", n_next, "Row")
            room(b, "next sequences", n_next, "Sequence")
            room(b, "next sources", n_next, np.int32)
            room(b, "next draws", n_next, "DrawRow")
        for i, unit in enumerate(order):
            b.address("replies", i * 8, f"reply {i}")
            data["replies"][unit].put(b, i)
            at = int(data["draws"]["position"][unit])
            elements(b, unit, f"text {i}", (at, 1), name="draft")
            records(b, unit, f"reply {i}", "ReplyState", (0, 1), ("n_drafts",), updated=True, name="reply")
            # In memory a draft's place holds poison, so that a token that is not written shows.
            b.slots[f"text {i}"][at * 4 : at * 4 + 4] = frame.poison
        for i, unit in enumerate(order[:n_next]):
            records(b, unit, "next rows", "Row", (i, 1), ROW_FIELDS)
            records(b, unit, "next sequences", "Sequence", (i, 1), SEQUENCE_FIELDS)
            elements(b, unit, "next sources", (i, 1))
            b.output("next reply", unit, "next draws", i * STRUCTS["DrawRow"].itemsize, np.uint64, (1,))
            records(b, unit, "next draws", "DrawRow", (i, 1), ("position", "n_counted"))
        if order == list(range(self.units(shape))):
            records(b, 0, "next rows", "Row", (0, n_next), ("sequence",))
            records(b, 0, "next sequences", "Sequence", (0, n_next), ("first_row",))
        return b.done((n + SPARE,), None)

    def after(
        self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], wrong: str = ""
    ) -> Mapping[str, Array]:
        order, n = self._order(shape, pick)
        tokens = data["drafted"][order]
        if wrong == "token":
            tokens = np.roll(tokens, 1)
        if wrong != "nan":
            tokens = np.maximum(tokens, 0)
        out: dict[str, Array] = {}
        for i, unit in enumerate(order):
            reply = data["replies"][unit]
            state, text = reply.state.copy(), reply.text.copy()
            state["n_drafts"] += wrong != "n_drafts"
            text[data["draws"]["position"][unit]] = tokens[i]
            out |= {f"reply {i}": state, f"text {i}": text}
        on = order[:n]
        sources = data["logit_rows"][on]
        rows, draws = data["rows"][sources], data["draws"][on]
        sequences = np.zeros(n, STRUCTS["Sequence"])
        rows["token"], rows["sequence"] = tokens[:n], np.arange(n)
        rows["position"] += wrong != "stay"
        rows["rotary"] += np.array([1, 1, 1] if wrong != "rotary" else [1, 0, 0], np.int32)
        sequences["page_table"] = np.roll(data["sequences"]["page_table"][on], wrong == "table")
        sequences["first_row"], sequences["n_rows"] = np.arange(n), 1
        sequences["start"] = rows["position"]
        draws["position"] += 1 + (wrong == "place")
        draws["n_counted"] += wrong == "counted"
        if wrong == "source":
            sources = np.arange(n, dtype=np.int32)
        return out | {
            "next rows": rows,
            "next sequences": sequences,
            "next sources": sources,
            "next draws": draws,
        }
