"""round_rows, verdict: what stands before a round's forward and behind its draws, without the host.

A window is the pending token of a reply and its drafts. Its draws decide how many of them are kept: those
that are what was drawn, up to where the reply ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flashnext.contract.family import Data, Shape, register
from flashnext.contract.launch import Builder, Frame, Launch
from flashnext.contract.replies import (
    ROW_FIELDS,
    SEQUENCE_FIELDS,
    Records,
    Reply,
    TableFamily,
    draw_state,
    elements,
    most_drafts,
    poisoned,
    records,
    reply_text,
    room,
)
from flashnext.contract.scalars import Array, Scalar
from flashnext.contract.structs import MAX_WINDOW, STRUCTS, counts, struct

N_VALID = 40


@register
class RoundRows(TableFamily):
    """The rows of a round; the unit is a window."""

    name = "round_rows"
    types = ()
    envelope = "1 <= most_rows <= 16; the text reaches to the last row of each window; tables for all rows"
    nonfinite = "no floats"
    order = "no sums; windows in order, each window's rows by position"
    launch_record = (
        "0 windows Window[n] io, 1 counts Counts, 2 sequences Sequence[n], 3 rows Row[R], 4 logit rows "
        "int32[R], 5 draws DrawRow[R]; grid (1); first of a round"
    )
    shapes = (
        {"replies": "any", "n": 64},
        {"replies": "any", "n": 1},
        {"replies": "any", "n": 5},
        {"replies": "known", "n": 33},
        {"replies": "ended", "n": 3},
        {"replies": "far", "n": 2},
    )
    wrongs: ClassVar = {
        "parity": "parity not turned: kept rows from the buffer that is written",
        "kept": "kept row count off by one",
        "more": "dropped tail: a draft is left out",
        "known": "known text is no draft",
        "limit": "more rows than the window may have",
        "ended": "an ended reply goes on",
        "position": "wrong position: rows one too far",
        "rotary": "wrong position: rows behind media rotate where text alone would",
        "draw": "wrong position: a row draws its own token again",
        "counted": "the pending token counts twice",
    }

    def units(self, shape: Shape) -> int:
        return int(shape["n"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n, kind = shape["n"], shape["replies"]
        windows = np.zeros(n, STRUCTS["Window"])
        windows["most_rows"] = rng.integers(1, MAX_WINDOW + 1, n)
        windows["most_drafts"], windows["most_copied"] = rng.integers(0, MAX_WINDOW, (2, n))
        replies = []
        for i in range(n):
            length = (
                int(rng.choice([0, 1, 63, 64, 65, int(rng.integers(3000))])) if kind != "far" else 200_000 + i
            )
            known = length + int(rng.integers(-5, 2)) if kind != "known" else length + i % 20
            state = draw_state(
                rng,
                length=length,
                known=known,
                parity=i % 2,
                n_kept=rng.integers(0, MAX_WINDOW + 1),
                n_drafts=rng.integers(0, MAX_WINDOW) if known <= length + 1 else 0,
                ended=kind == "ended" or (kind == "any" and n > 1 and rng.random() < 0.25),
            )
            replies.append(Reply(state, reply_text(rng, length)))
        return {"windows": windows, "replies": replies}

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, n = Builder(frame, self.kernel(None)), len(pick)
        windows = poisoned("Window", n + 1, frame)
        for field in ("most_rows", "most_drafts", "most_copied"):
            windows[field][:n] = data["windows"][field][list(pick)]
        windows["reply"][:n] = np.add(pick, 1)
        b.put("windows", windows)
        sizes = [_rows_of(data["replies"][u], int(data["windows"]["most_rows"][u])) for u in pick]
        n_rows = sum(sizes)
        b.room("counts", STRUCTS["Counts"].itemsize)
        room(b, "sequences", n, "Sequence")
        room(b, "rows", n_rows, "Row")
        room(b, "logit rows", n_rows, np.int32)
        room(b, "draws", n_rows, "DrawRow")
        at = 0
        for i, unit in enumerate(pick):
            b.address("windows", i * windows.itemsize, f"reply {i}")
            data["replies"][unit].put(b, i)
            span = (at, sizes[i])
            records(b, unit, "windows", "Window", (i, 1), ("is_window", "n_rows", "start"))
            records(b, unit, "sequences", "Sequence", (i, 1), SEQUENCE_FIELDS)
            records(b, unit, "rows", "Row", span, ROW_FIELDS)
            records(b, unit, "draws", "DrawRow", span, ("reply", "position", "n_counted"))
            at += sizes[i]
        if list(pick) == list(range(self.units(shape))):
            records(b, 0, "counts", "Counts", (0, 1), ("n",))
            records(b, 0, "windows", "Window", (0, n), ("first_row", "first_logits"))
            records(b, 0, "sequences", "Sequence", (0, n), ("first_row",))
            records(b, 0, "rows", "Row", (0, n_rows), ("sequence",))
            elements(b, 0, "logit rows", (0, n_rows))
        return b.done((1,), struct("RoundRowsParams", n_windows=n))

    def after(
        self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], wrong: str = ""
    ) -> Mapping[str, Array]:
        n = len(pick)
        windows = data["windows"][list(pick)].copy()
        sequences = np.zeros(n, STRUCTS["Sequence"])
        rows = np.zeros((n + 1) * (MAX_WINDOW + 1), STRUCTS["Row"])
        draws = np.zeros(len(rows), STRUCTS["DrawRow"])
        first = 0
        for i, unit in enumerate(pick):
            reply: Reply = data["replies"][unit]
            size, start = _rows_of(reply, int(windows["most_rows"][i]), wrong), reply["length"]
            for table in (windows, sequences):
                table[i]["first_row"], table[i]["n_rows"], table[i]["start"] = first, size, start
                table[i]["is_window"] = 1
            windows[i]["first_logits"] = first
            buffers = reply.state["unsettled"][0]
            if bool(reply["parity"]) != (wrong == "parity"):
                buffers = buffers[::-1]
            sequences[i]["unsettled"], sequences[i]["kept"] = buffers
            sequences[i]["page_table"], sequences[i]["state"] = (
                reply.state[f][0] for f in ("page_table", "state")
            )
            if size:
                sequences[i]["n_kept"] = reply["n_kept"] + (wrong == "kept")
            span = slice(first, first + size)
            place = np.arange(start, start + size)
            rows["token"][span] = reply.text[place]
            rows["sequence"][span] = i
            rows["position"][span] = place + (wrong == "position")
            delta = 0 if wrong == "rotary" else reply["rotary_delta"]
            rows["rotary"][span] = rows["position"][span, None] + delta
            draws["reply"][span] = unit + 1
            draws["position"][span] = place + (wrong != "draw")
            draws["n_counted"][span] = start + (wrong != "counted")
            first += size
        return {
            "windows": windows,
            "counts": struct("Counts", n=[first, n, first, 0]),
            "sequences": sequences,
            "rows": rows,
            "logit rows": np.arange(len(rows), dtype=np.int32),
            "draws": draws,
        }


def _rows_of(reply: Reply, most_rows: int, wrong: str = "") -> int:
    """Count the rows of a window: the pending token, and drafts or known tokens behind it."""
    if reply["ended"] and wrong != "ended":
        return 0
    behind = {reply["n_drafts"], *(range(reply["known"] - reply["length"]) if wrong != "known" else ())}
    size: int = min(1 + max(behind), MAX_WINDOW if wrong == "limit" else most_rows)
    return max(1, size - 1) if wrong == "more" else size


@register
class Verdict(TableFamily):
    """What the draws of a round keep; the unit is a window."""

    name = "verdict"
    types = ()
    envelope = (
        "n_rows <= 16; drawn tokens below n_valid, or -1; the text has room for the token behind the rows"
    )
    nonfinite = "whole numbers only; a draw of logits that were all NaN is -1, and ends the reply"
    order = "no sums; draws by position, up to the first that ends the reply or is not the draft"
    launch_record = (
        "0 windows Window[n], 1 drawn int32[L], 2 landed Landed[n], 3 replies uint64[n], 4 limits int32[n], "
        "5 counts Counts; grid (1); behind the draw; moves replies, their texts and counts on"
    )
    shapes = (
        {"windows": "any", "n": 64},
        {"windows": "any", "n": 1},
        {"windows": "stops", "n": 17},
        {"windows": "nans", "n": 17},
        {"windows": "ends", "n": 17},
        {"windows": "at rest", "n": 3},
        {"windows": "prompts", "n": 5},
        {"windows": "any", "n": 33},
    )
    wrongs: ClassVar = {
        "place": "wrong position: a draft is compared with the draw behind it",
        "kept": "kept row count off by one",
        "parity": "parity not turned",
        "prompt": "a prompt's last row turns the parity",
        "counts": "counts not raised",
        "prompt counts": "wrong axis: counts of the prompt raised",
        "stop": "stop ignored",
        "stops": "dropped tail: the last stop ignored",
        "end": "end off by one",
        "rest": "a reply that had ended before goes on",
        "nan": "a draw of NaN does not end the reply",
        "pending": "wrong position: the pending token is the one drawn before",
        "drafts": "verified drafts stay",
        "limit": "copies limited as if the reply had no end",
        "known": "copies behind known text",
    }

    def units(self, shape: Shape) -> int:
        return int(shape["n"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n, kind = shape["n"], shape["windows"]
        windows = np.zeros(n, STRUCTS["Window"])
        for field in ("most_rows", "most_drafts", "first_row"):  # of no matter here
            windows[field] = rng.integers(0, 1000, n)
        windows["most_copied"] = rng.integers(0, MAX_WINDOW, n)
        windows["is_window"] = kind != "prompts"
        replies, drawn = [], []
        for i in range(n):
            window = windows[i]
            tokens = _draws(window, kind, i, n, rng)
            length = int(window["start"])
            text = reply_text(rng, length, N_VALID)
            agree = len(tokens) if kind in ("stops", "ends", "nans") else rng.integers(0, len(tokens) + 1)
            text[length + 1 : length + 1 + agree] = tokens[:agree]
            # Ids that are not drawn, and where they are to be hit, drawn ones.
            stops = rng.integers(N_VALID, 2 * N_VALID, rng.integers(0, 4))
            hit = i < n - 1 if kind == "stops" else kind == "any" and rng.random() < 0.3
            if hit and len(tokens):
                stop = tokens[i % len(tokens) if kind == "stops" else rng.integers(len(tokens))]
                stops = np.insert(stops, i % (len(stops) + 1), stop)
            end = length + (2 + i if kind == "ends" else int(rng.integers(2, 40)) if kind == "any" else 100)
            state = draw_state(
                rng,
                length=length,
                end=end,
                known=length + rng.integers(-5, MAX_WINDOW + 2) if kind in ("any", "prompts") else 0,
                parity=i % 2,
                n_drafts=max(0, len(tokens) - 1),
                ended=not len(tokens),
                copied=rng.integers(0, 2),
                n_stops=len(stops),
            )
            counted = rng.integers(0, 9, (2, N_VALID)).astype(np.int32) if i % 3 else None
            replies.append(Reply(state, text, counted, stops.astype(np.int32)))
            drawn.append(tokens)
        return {"windows": windows, "replies": replies, "drawn": drawn}

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b, n = Builder(frame, self.kernel(None)), len(pick)
        windows, drawn = self._windows(data, pick)
        b.put("windows", windows)
        b.put("drawn", drawn)
        room(b, "landed", n, "Landed")
        room(b, "replies", n, np.uint64)
        room(b, "limits", n, np.int32)
        b.room("counts", STRUCTS["Counts"].itemsize)
        updated = ("length", "parity", "n_kept", "n_drafts", "ended", "copied")
        for i, unit in enumerate(pick):
            reply: Reply = data["replies"][unit]
            b.address("windows", i * windows.itemsize, f"reply {i}")
            reply.put(b, i)
            fields = [f for f in STRUCTS["Landed"].names or () if f != "first_logits"]
            records(b, unit, "landed", "Landed", (i, 1), fields)
            if windows[i]["n_rows"]:
                at = self._kept(data, unit)[0] + reply["length"]
                records(b, unit, f"reply {i}", "ReplyState", (0, 1), updated, updated=True, name="reply")
                elements(b, unit, f"text {i}", (at, 1), updated=True, name="pending")
                if reply.counts is not None:
                    elements(b, unit, f"counts {i}", (0, 2 * N_VALID), updated=True, name="counts")
            elements(b, unit, "replies", (i, 1), np.uint64)
            elements(b, unit, "limits", (i, 1))
        if list(pick) == list(range(self.units(shape))):
            records(b, 0, "landed", "Landed", (0, n), ("first_logits",), name="all")
            records(b, 0, "counts", "Counts", (0, 1), ("n",))
        return b.done((1,), struct("VerdictParams", n_windows=n, n_valid=N_VALID))

    def _windows(self, data: Data, pick: Sequence[int]) -> tuple[Records, Array]:
        """Lay the draws of the windows one behind another."""
        windows = data["windows"][list(pick)].copy()
        windows["reply"] = np.add(pick, 1)
        windows["first_logits"] = np.cumsum(windows["n_rows"]) - windows["n_rows"]
        return windows, np.concatenate([data["drawn"][u] for u in pick] or [np.zeros(0, np.int32)])

    def _kept(self, data: Data, unit: int, wrong: str = "") -> tuple[int, bool]:
        """Count the tokens that a window keeps, and say whether they end the reply."""
        reply, drawn = data["replies"][unit], data["drawn"][unit]
        start = reply["length"]
        drafts = reply.text[start + 1 : start + len(drawn)]
        other = drawn[1:] if wrong == "place" else drawn[:-1]
        n = 1 + int(np.logical_and.accumulate(drafts == other).sum())
        ends = np.arange(start + 2, start + 2 + n) >= reply["end"] + (wrong == "end")
        if wrong != "stop":
            ends |= np.isin(drawn[:n], reply.stops[: -1 if wrong == "stops" else None])
        if wrong != "nan":
            ends |= drawn[:n] == -1
        return (int(ends.argmax()) + 1, True) if ends.any() else (n, False)

    def after(
        self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], wrong: str = ""
    ) -> Mapping[str, Array]:
        n = len(pick)
        windows, _ = self._windows(data, pick)
        landed = np.zeros(n, STRUCTS["Landed"])
        limits = np.zeros(n, np.int32)
        out: dict[str, Array] = {}
        for i, unit in enumerate(pick):
            window, reply, drawn = windows[i], data["replies"][unit], data["drawn"][unit]
            if not window["n_rows"]:
                landed[i]["ended"] = reply["ended"] and wrong != "rest"
                continue
            kept, ended = self._kept(data, unit, wrong)
            length = reply["length"] + kept
            turn = wrong != "parity" if window["is_window"] else wrong == "prompt"
            now: dict[str, Any] = {
                "length": length,
                "parity": reply["parity"] ^ turn,
                "ended": ended,
                "n_drafts": reply["n_drafts"] if wrong == "drafts" else 0,
                "copied": 0,
                "n_kept": kept + (wrong == "kept") if window["is_window"] else 0,
            }
            state, text = reply.state.copy(), reply.text.copy()
            for field, value in now.items():
                state[field] = value
            text[length] = drawn[kept - (2 if wrong == "pending" and kept > 1 else 1)]
            out |= {f"reply {i}": state, f"text {i}": text}
            if reply.counts is not None:
                seen = np.bincount(drawn[:kept][drawn[:kept] >= 0], minlength=N_VALID)
                out[f"counts {i}"] = reply.counts.copy()
                if wrong != "counts":
                    out[f"counts {i}"][int(wrong != "prompt counts")] += seen.astype(np.int32)
            landed[i]["n_tokens"], landed[i]["tokens"][:kept] = kept, drawn[:kept]
            landed[i]["n_verified"], landed[i]["n_accepted"] = len(drawn) - 1, kept - 1
            landed[i]["copied"], landed[i]["first_logits"] = reply["copied"], window["first_logits"]
            for field in ("length", "parity", "ended"):
                landed[i][field] = now[field]
            limits[i] = most_drafts(reply, length, ended, int(window["most_copied"]), wrong)
        return out | {
            "landed": landed,
            "replies": np.add(pick, 1).astype(np.uint64),
            "limits": limits,
            "counts": counts(sequences=n),
        }


def _draws(window: Records, kind: str, i: int, n: int, rng: np.random.Generator) -> Array:
    """Draw where a window stands and what its rows drew; edges have 16 rows, each with an id of its own."""
    window["start"] = rng.choice([0, 5, 63, 64, int(rng.integers(2000))])
    edge = kind in ("stops", "ends", "nans")
    size = MAX_WINDOW if edge else 1 if kind == "prompts" else int(rng.integers(1, MAX_WINDOW + 1))
    if kind == "at rest" or (kind == "any" and n > 1 and rng.random() < 0.15):
        size = 0
    window["n_rows"] = size
    tokens = rng.permutation(N_VALID)[:size] if edge else rng.integers(0, 1 + rng.integers(3), size)
    hit = i < n - 1 if kind == "nans" else kind in ("any", "prompts") and rng.random() < 0.1
    if hit and size:
        tokens[i % size] = -1
    return tokens.astype(np.int32)
