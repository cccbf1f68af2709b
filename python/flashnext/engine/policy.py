"""What the engine does next: a pure function of what waits, what runs and what is free.

It reads no clock, holds nothing and knows neither tokens nor the core, so its tests are tables. One step is
at most one prompt chunk and one round, so that reading a prompt holds up nobody's reply for longer than a
chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Waiting:
    """A request that has not been admitted; `pages` is what it takes to its end."""

    id: int
    pages: int


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
    """

    max_running: int
    max_chunk: int
    pages: int


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


def next_step(waiting: Sequence[Waiting], running: Sequence[Running], limits: Limits) -> Step:
    """Decide the next step, first come first served.

    Args:
        waiting: In the order of arrival.
        running: In the order of admission.
        limits: What the engine has.
    """
    free = limits.pages - sum(r.pages for r in running)
    admitted: list[int] = []
    for request in waiting:
        if len(running) + len(admitted) >= limits.max_running or request.pages > free:
            break
        free -= request.pages
        admitted.append(request.id)
    unread = next((r for r in running if r.unread > 0), None)
    return Step(
        admit=tuple(admitted),
        chunk=Chunk(unread.id, min(unread.unread, limits.max_chunk)) if unread else None,
        round=tuple(r.id for r in running if r.unread == 0),
    )
