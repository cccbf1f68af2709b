"""copy_drafts: a reply's next tokens guessed from its own text.

Of the places e before the pending token, text[length], those count whose tokens up to e agree with those up
to the pending one over the most tokens; the tokens behind the latest of them are copied as drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashnext.contract.family import Data, Expected, Family, Shape, register
from flashnext.contract.faults import Fault
from flashnext.contract.launch import Builder, Frame, Launch, Result
from flashnext.contract.scalars import Array, Scalar
from flashnext.contract.structs import MAX_WINDOW, STRUCTS, counts, struct

SPARE = 2
LEAST, MOST = 3, 16  # kLeastCopy, kMostMatch


def copied(
    text: Array,
    limit: int,
    least: int = LEAST,
    most: int = MOST,
    *,
    latest: bool = True,
    overlap: bool = True,
) -> Array:
    """Find the drafts of a text.

    Args:
        text: (n,) int32, the pending token last.
        limit: Most drafts.
        least: Tokens that a match has at least.
        most: Tokens of a match beyond which more do not count.
        latest: Of equal matches take the latest, as the kernel does, or the earliest.
        overlap: Let the copy run on into what it has written, as the kernel does.

    Returns:
        (n_copied,) int32.
    """
    last = len(text) - 1
    limit = min(limit, MAX_WINDOW - 1)
    alike = np.flatnonzero(text[:last] == text[last])
    longest = np.ones(len(alike), np.int64)
    going = np.ones(len(alike), bool)
    for m in range(1, most):
        going &= (alike >= m) & (text[np.maximum(alike - m, 0)] == text[max(last - m, 0)])
        longest += going
    if limit <= 0 or not len(alike) or longest.max() < least:
        return np.zeros(0, np.int32)
    best = alike[longest == longest.max()]
    at = int(best[-1] if latest else best[0]) + 1
    period = text[at : last + 1]
    return np.resize(period, limit) if overlap else period[:limit]


@register
class CopyDrafts(Family):
    """Drafts from the text itself; the unit is a reply."""

    name = "copy_drafts"
    types = ()
    envelope = (
        "2 <= least_match <= most_match; length < 2^31 - 16; a text has room for 15 tokens behind length"
    )
    nonfinite = "no floats"
    order = "no sums; of equal matches the latest"
    launch_record = (
        "0 counts, 1 replies uint64[L] (addresses), 2 limits int32[L], 3 n_copied int32[L]; grid (L); writes "
        "the replies' text"
    )
    shapes = (
        *({"texts": kind, "n": n} for kind, n in (("edges", 40), ("phrases", 24), ("few ids", 64))),
        {"texts": "one", "n": 1},
        {"texts": "long", "n": 3},
        {"texts": "at rest", "n": 9},
    )

    def units(self, shape: Shape) -> int:
        return int(shape["n"])

    def draw(self, shape: Shape, scalar: Scalar, rng: np.random.Generator) -> Data:
        n, kind = shape["n"], shape["texts"]
        texts = [_text(kind, i, rng).astype(np.int32) for i in range(n)]
        limits = rng.integers(1, 16, n) if kind != "edges" else np.arange(n) % 19 - 1
        rest = np.arange(n) % 3 if kind == "at rest" else np.zeros(n, int)
        return {
            "text": texts,
            "limit": limits.astype(np.int32),
            "ended": (rest == 1).astype(int),
            "known": [len(t) + int(r == 2) for t, r in zip(texts, rest, strict=True)],
        }

    def launch(self, shape: Shape, scalar: Scalar, data: Data, pick: Sequence[int], frame: Frame) -> Launch:
        b = Builder(frame, self.kernel(None))
        b.put("counts", counts(sequences=len(pick)))
        b.put("replies", np.zeros(len(pick) + SPARE, np.uint64))
        b.put("limits", data["limit"][list(pick)])
        b.room("n_copied", (len(pick) + SPARE) * 4)
        b.rows("n_copied", "n_copied", pick, np.int32, (1,))
        fields = STRUCTS["ReplyState"].fields
        assert fields is not None
        for i, unit in enumerate(pick):
            text = data["text"][unit]
            b.address("replies", i * 8, f"reply {i}")
            b.address(f"reply {i}", int(fields["text"][1]), f"text {i}")
            b.put(
                f"reply {i}",
                struct(
                    "ReplyState", length=len(text) - 1, known=data["known"][unit], ended=data["ended"][unit]
                ),
            )
            behind = np.full((MAX_WINDOW - 1) * 4, frame.poison, np.uint8).view(np.int32)
            b.put(f"text {i}", np.concatenate([text, behind]))
        sound = data.get("sound", data)
        for i, unit in enumerate(pick):
            n = len(self._drafts(sound, unit))
            b.output("drafts", unit, f"text {i}", len(data["text"][unit]) * 4, np.int32, (n,))
        return b.done((len(pick) + SPARE,), struct("CopyDraftsParams", least_match=LEAST, most_match=MOST))

    def _drafts(self, data: Data, unit: int, **rules: Any) -> Array:
        if data["ended"][unit] or data["known"][unit] > len(data["text"][unit]):
            return np.zeros(0, np.int32)
        return copied(data["text"][unit], int(data["limit"][unit]), **rules)

    def reference(self, shape: Shape, scalar: Scalar, data: Data) -> Expected:
        drafts = [self._drafts(data, unit) for unit in range(self.units(shape))]
        return {"drafts": drafts, "n_copied": [np.array([len(d)], np.int32) for d in drafts]}

    def faults(self, shape: Shape, scalar: Scalar, data: Data) -> Sequence[Fault]:
        faults = [
            Fault("one draft more than the limit", "shapes", lambda d: {"limit": d["limit"] + 1, "sound": d})
        ]
        if not any(0 < limit < MAX_WINDOW - 1 and len(self._drafts(data, u)) for u, limit in _limits(data)):
            faults = []
        for what, rules in (
            ("wrong position: the earliest of equal matches", {"latest": False}),
            ("wrong position: the first match of three tokens", {"most": 3}),
            ("a match of two tokens is enough", {"least": 2}),
            ("dropped tail: a copy stops at the pending token", {"overlap": False}),
        ):
            other = [self._drafts(data, u, **rules) for u in range(self.units(shape))]
            sound = [self._drafts(data, u) for u in range(self.units(shape))]
            if any(a.tobytes() != b.tobytes() for a, b in zip(other, sound, strict=True)):
                faults.append(Fault(what, "sums", result=_Given(other)))
        return faults


def _limits(data: Data) -> list[tuple[int, int]]:
    return list(enumerate(data["limit"].tolist()))


class _Given:
    """Puts these drafts of each unit in place of what came out, as far as there is room for them."""

    def __init__(self, drafts: Sequence[Array]) -> None:
        self.drafts = drafts

    def __call__(self, launch: Launch, result: Result) -> None:
        for o in launch.outputs:
            drafts = self.drafts[o.unit]
            if o.name == "n_copied":
                o.view(result)[0] = len(drafts)
            else:
                n = min(len(drafts), *o.shape)
                o.view(result)[:n] = drafts[:n]
                o.view(result)[n:] = -1


def _text(kind: str, i: int, rng: np.random.Generator) -> Array:
    """Draw a text of 1 or more ids."""
    if kind == "edges":  # every length about the steps of the search, many matches, and runs of one id
        length = (1, 2, 3, 4, 5, 16, 17, 18, 63, 64, 65, 66, 67, 68, 127, 128, 129, 130, 131, 200)[i // 2]
        return rng.integers(0, 2, length) if i % 2 else np.full(length, 7)
    if kind == "few ids":
        return rng.integers(0, 2 + i % 4, rng.integers(1, 400))
    if kind == "one":
        return np.concatenate([np.arange(100), np.arange(40, 60)])
    if kind == "long":  # found at the far end, nowhere, and as soon as it is looked for
        text = rng.integers(1000, 248320, 262144 - 16)
        if i == 0:
            text[:5] = text[-5:]
        return text if i < 2 else np.resize(text[:70], 100_000)
    words = [rng.integers(0, 500, rng.integers(2, 30)) for _ in range(6)]
    return np.concatenate([words[w] for w in rng.integers(0, 6, rng.integers(1, 40))])
