"""What the engine does next: a pure function of what waits, what runs, what is free and what steps cost.

It reads no clock, holds nothing and knows neither tokens nor the core, so its tests are tables. One step is
at most one prompt chunk and one round. While sequences decode, the chunk is as long as keeps their gap, the
time from one round to the next, under a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_OVERTAKEN = 16
"""How many requests may be admitted ahead of one that came earlier and does not fit."""

ROUNDS_OF_A_GAP = 4
"""The gap may be this many rounds long where that is longer than the target."""

LEAST_CHUNK = 16
"""Prompt tokens that a step reads at least: shorter chunks would read the weights for too few rows."""


@dataclass(frozen=True)
class Waiting:
    """A request that has not been admitted.

    Attributes:
        pages: What it takes to its end.
        overtaken: Requests that came later and were admitted before it.
    """

    id: int
    pages: int
    overtaken: int = 0


@dataclass(frozen=True)
class Running:
    """An admitted sequence; `unread` counts the prompt tokens that no chunk has read yet."""

    id: int
    pages: int
    unread: int


@dataclass(frozen=True)
class Limits:
    """What the engine has.

    Attributes:
        max_running: Sequences that run at once.
        max_chunk: Prompt tokens of a step.
        pages: All pages, free and taken.
        gap_ms: Target of the time between a decoding sequence's rounds.
    """

    max_running: int
    max_chunk: int
    pages: int
    gap_ms: float = 250.0


@dataclass(frozen=True)
class Costs:
    """What steps took lately, in milliseconds; 0 where nothing was measured yet.

    Attributes:
        row_ms: A row of a prompt chunk.
        round_ms: A round.
    """

    row_ms: float = 0.0
    round_ms: float = 0.0


NO_COSTS = Costs()


@dataclass(frozen=True)
class Chunk:
    """The next n prompt tokens of a sequence."""

    id: int
    n: int


@dataclass(frozen=True)
class Step:
    """What to do now, in this order.

    Attributes:
        admit: Waiting requests that begin to run.
        chunk: A prompt chunk to read.
        round: Sequences that draw their next token together.
    """

    admit: tuple[int, ...] = ()
    chunk: Chunk | None = None
    round: tuple[int, ...] = ()


def next_step(
    waiting: Sequence[Waiting], running: Sequence[Running], limits: Limits, costs: Costs = NO_COSTS
) -> Step:
    """Decide the next step.

    Requests are admitted in the order of arrival; one whose pages are not free lets MOST_OVERTAKEN others
    pass, and then holds all up until it fits.

    Args:
        waiting: In the order of arrival.
        running: In the order of admission.
        limits: What the engine has.
        costs: What steps took lately.
    """
    decoding = tuple(r.id for r in running if r.unread == 0)
    unread = next((r for r in running if r.unread > 0), None)
    return Step(
        admit=_admitted(waiting, running, limits),
        chunk=Chunk(unread.id, min(unread.unread, _chunk_rows(bool(decoding), limits, costs)))
        if unread
        else None,
        round=decoding,
    )


def _admitted(waiting: Sequence[Waiting], running: Sequence[Running], limits: Limits) -> tuple[int, ...]:
    free = limits.pages - sum(r.pages for r in running)
    admitted: list[int] = []
    overtaken: int | None = None  # how often the oldest request that does not fit has been
    for request in waiting:
        if len(running) + len(admitted) >= limits.max_running:
            break
        if request.pages > free:
            overtaken = request.overtaken if overtaken is None else overtaken
            continue
        if overtaken is not None:
            if overtaken >= MOST_OVERTAKEN:
                break
            overtaken += 1
        free -= request.pages
        admitted.append(request.id)
    return tuple(admitted)


def _chunk_rows(decoding: bool, limits: Limits, costs: Costs) -> int:
    if not decoding or costs.row_ms <= 0:
        return limits.max_chunk
    left_ms = max(limits.gap_ms, ROUNDS_OF_A_GAP * costs.round_ms) - costs.round_ms
    return max(LEAST_CHUNK, min(limits.max_chunk, int(left_ms / costs.row_ms)))
