"""When the tokens of replies arrived, and the figures that follow from it: rates, first tokens, gaps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

LEAST_STEPS = 2  # tokens that every sequence must draw while all decode, for a rate of all together


@dataclass(frozen=True)
class Arrivals:
    """One reply.

    Attributes:
        asked_s: When the request was handed in.
        times_s: When each token arrived; at least one, in order. Tokens of one round come together.
        sha: The reply's fingerprint; "" where the engine gives none.
        drafts: (proposed, accepted) drafts of the reply; None where the engine does not say.
    """

    asked_s: float
    times_s: tuple[float, ...]
    sha: str = ""
    drafts: tuple[int, int] | None = None


@dataclass(frozen=True)
class Rung:
    """The figures of one run of several sequences, all asked for at once.

    Attributes:
        n: Sequences.
        together: Most of them that decoded at the same time.
        decode: Tokens per second of all sequences while all n decode, prompts behind them; None where that
            time is too short.
        aggregate: Tokens per second from the requests to the last token, prompts included.
        each: Tokens per second of one sequence between its first and last token, the median.
        first_s: Seconds to the first token, the median.
        first_worst_s: The longest.
        gap_s: Largest time between two tokens of one sequence.
        proposed: Drafts of all replies, None where the engine does not say.
        accepted: Those that were kept.
    """

    n: int
    together: int
    decode: float | None
    aggregate: float
    each: float
    first_s: float
    first_worst_s: float
    gap_s: float
    proposed: int | None
    accepted: int | None

    def as_json(self) -> dict[str, Any]:
        """The figures as a JSON object."""
        return asdict(self)


def rung(replies: Sequence[Arrivals]) -> Rung:
    """Work the figures of a run out; every reply has two tokens or more, at two different times."""
    first = [r.times_s[0] for r in replies]
    last = [r.times_s[-1] for r in replies]
    waits = [r.times_s[0] - r.asked_s for r in replies]
    drafts = [r.drafts for r in replies if r.drafts is not None]
    known = len(drafts) == len(replies)
    return Rung(
        n=len(replies),
        together=most_at_once(first, last),
        decode=rate_together(replies),
        aggregate=sum(len(r.times_s) for r in replies) / (max(last) - min(r.asked_s for r in replies)),
        each=statistics.median((len(r.times_s) - 1) / (r.times_s[-1] - r.times_s[0]) for r in replies),
        first_s=statistics.median(waits),
        first_worst_s=max(waits),
        gap_s=max(largest_gap(r.times_s) for r in replies),
        proposed=sum(d[0] for d in drafts) if known else None,
        accepted=sum(d[1] for d in drafts) if known else None,
    )


def largest_gap(times_s: Sequence[float]) -> float:
    """The longest time between two tokens that follow each other; 0 for one token."""
    return max((later - earlier for earlier, later in pairwise(times_s)), default=0.0)


def largest_gap_within(times_s: Sequence[float], start_s: float, end_s: float) -> float:
    """The longest of the gaps that have a part in the time from start to end; 0 where there is none."""
    gaps = [b - a for a, b in pairwise(times_s) if b > start_s and a < end_s]
    return max(gaps, default=0.0)


def most_at_once(starts: Sequence[float], ends: Sequence[float]) -> int:
    """How many of the stretches from a start to its end overlap at most; touching is no overlap."""
    most = now = 0
    for _, change in sorted([(t, 1) for t in starts] + [(t, -1) for t in ends]):
        now += change
        most = max(most, now)
    return most


def rate_together(replies: Sequence[Arrivals]) -> float | None:
    """Tokens per second of all while all of them decode.

    That is from the last first token to the first last token; what arrives at its beginning is not counted,
    what arrives at its end is.

    Returns:
        None where it is too short for LEAST_STEPS tokens of every reply.
    """
    start = max(r.times_s[0] for r in replies)
    end = min(r.times_s[-1] for r in replies)
    counts = [sum(start < t <= end for t in r.times_s) for r in replies]
    if min(counts) < LEAST_STEPS:
        return None
    return sum(counts) / (end - start)
