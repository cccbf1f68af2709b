"""What the engine does next: a pure function of what waits, what runs, what is free and what steps cost.

It reads no clock, holds nothing and knows neither tokens nor the core, so its tests are tables. Sequences and
requests come to it by seniority: normal ones before background ones, and each kind in the order of arrival,
which a preempted one keeps. docs/scheduling.md tells the same for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashnext.engine.defaults import GAP_MS

MOST_OVERTAKEN = 16
"""How many requests may be admitted ahead of a more senior one that does not fit."""

ROUNDS_OF_A_GAP = 4
"""The gap may be this many rounds long where that is longer than the target."""

LEAST_CHUNK = 4
"""Prompt tokens that a step reads at least, or a prompt might never end where even a row takes longer than
the gap; a row costs about the same in a chunk of 7 and of 512."""


@dataclass(frozen=True)
class Waiting:
    """A request that has not been admitted, or a sequence that reads again what it had read.

    Attributes:
        pages: For all that it reads, and two windows.
        background: Whether it yields to those that are not.
        resumed: Whether it ran before: it was preempted, or its thoughts were closed.
        overtaken: Less senior requests that were admitted before it.
    """

    id: int
    pages: int
    background: bool = False
    resumed: bool = False
    overtaken: int = 0


@dataclass(frozen=True)
class Running:
    """An admitted sequence.

    Attributes:
        unread: Tokens that it has to read before it can draw.
        limit: How many of them it may read in one go, since another's session is forked off behind them, or
            what the next one shows has not been seen yet; 0 while it waits for that, or to be forked itself.
            None: all.
        missing: Pages that it needs and does not have: while it reads, for the rest and two windows; then
            only where a round came short.
        held: Pages that it has.
        protected: It was preempted, and has drawn nothing new since.
    """

    id: int
    unread: int = 0
    limit: int | None = None
    missing: int = 0
    held: int = 0
    background: bool = False
    protected: bool = False

    @property
    def readable(self) -> int:
        """Tokens that it may read now."""
        return self.unread if self.limit is None else min(self.unread, self.limit)

    @property
    def decoding(self) -> bool:
        """Whether it has read everything."""
        return self.unread == 0


@dataclass(frozen=True)
class Limits:
    """What the engine has.

    Attributes:
        max_running: Sequences that run at once.
        max_chunk: Prompt tokens of a step.
        free_pages: Pages that nobody has.
        max_sequences: Sequences of a pass.
        gap_ms: Target of the time between a decoding sequence's rounds.
    """

    max_running: int
    max_chunk: int
    free_pages: int
    max_sequences: int = 64
    gap_ms: float = GAP_MS


@dataclass(frozen=True)
class Costs:
    """What steps took lately, in milliseconds; 0 where nothing was measured yet.

    Attributes:
        row_ms: A row of a prompt chunk.
        round_ms: A round.
    """

    row_ms: float = 0.0
    round_ms: float = 0.0

    def with_row(self, ms: float) -> Costs:
        """Follow what a row took."""
        return replace(self, row_ms=_smoothed(self.row_ms, ms))

    def with_round(self, ms: float) -> Costs:
        """Follow what a round took."""
        return replace(self, round_ms=_smoothed(self.round_ms, ms))


NO_COSTS = Costs()


@dataclass(frozen=True)
class Chunk:
    """The next n tokens of a sequence that reads."""

    id: int
    n: int


@dataclass(frozen=True)
class Step:
    """What to do now: preempt, or admit, or compute. After the first two ask again.

    Attributes:
        preempt: A sequence that gives its pages back, and runs again later; how many come free depends on
            whom it shares them with.
        admit: Waiting requests that begin to run.
        chunk: What is read in one pass, by seniority.
        round: Sequences that draw their next tokens together.
    """

    preempt: int | None = None
    admit: tuple[int, ...] = ()
    chunk: tuple[Chunk, ...] = ()
    round: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shortage:
    """Pages that are to come free before a step is decided, where somebody holds some for nobody.

    Attributes:
        running: Without them the most senior running sequence that lacks any stands still.
        waiting: Without them the most senior request that waits is not admitted, though it has a place.
    """

    running: int = 0
    waiting: int = 0


def _smoothed(before: float, now: float) -> float:
    """Go half the way to what was measured last."""
    return now if before == 0 else (before + now) / 2


def shortage(waiting: Sequence[Waiting], running: Sequence[Running], limits: Limits) -> Shortage:
    """Count the pages that are missing; the arguments are those of `next_step`."""
    lacks, free = 0, limits.free_pages
    for r in running:
        if r.missing and r.limit != 0 and not lacks:
            free -= r.missing
            lacks = max(0, -free)
    wants = 0
    if waiting and len(running) < limits.max_running:
        left = limits.free_pages - sum(r.missing for r in running)
        wants = max(0, _needed(waiting[0], running) - left)
    return Shortage(lacks, wants)


def next_step(
    waiting: Sequence[Waiting], running: Sequence[Running], limits: Limits, costs: Costs = NO_COSTS
) -> Step:
    """Decide the next step.

    Args:
        waiting: By seniority.
        running: By seniority.
        limits: What the engine has.
        costs: What steps took lately.
    """
    lacking = who_lacks(running, limits.free_pages)
    victim = _victim(running, lacking)
    if victim is None:
        victim = _yielding(waiting, running, limits)
    if victim is not None:
        return Step(preempt=victim)
    admitted = _admitted(waiting, running, limits)
    if admitted:
        return Step(admit=admitted)
    able = [r for r in running if r.id not in lacking]
    decoding = tuple(r.id for r in able if r.decoding)
    return Step(
        chunk=_chunk(able, chunk_rows(bool(decoding), limits, costs), limits.max_sequences),
        round=decoding[: limits.max_sequences],
    )


def who_lacks(running: Sequence[Running], free: int) -> set[int]:
    """Name the sequences that stand still for want of pages: the more senior ones are served first.

    One that waits for a fork, or for what it shows, needs nothing yet.
    """
    lacking = set()
    for r in running:
        if r.missing and r.limit != 0:
            free -= r.missing
            if free < 0:
                lacking.add(r.id)
    return lacking


def _victim(running: Sequence[Running], lacking: set[int]) -> int | None:
    """Choose whose pages the most senior sequence that lacks some gets: the least senior one's behind it.

    Nobody takes pages of a more senior one; who finds none stands still until some come free. A protected
    sequence gives way to the most senior one of all alone: that one never stands still, so everybody ends.
    """
    for i, needy in enumerate(running):
        if needy.id in lacking:
            behind = [r for r in running[i + 1 :] if r.held and not (r.protected and i > 0)]
            return behind[-1].id if behind else None
    return None


def _yielding(waiting: Sequence[Waiting], running: Sequence[Running], limits: Limits) -> int | None:
    """Choose a background sequence that makes room for the first normal request, where that helps it."""
    if not waiting or waiting[0].background:
        return None
    yielding = [r for r in running if r.background and not r.protected]
    free = limits.free_pages - sum(r.missing for r in running)
    if not yielding or (len(running) < limits.max_running and _needed(waiting[0], running) <= free):
        return None
    left = [r for r in running if r not in yielding]
    room = limits.free_pages + sum(r.held for r in yielding) - sum(r.missing for r in left)
    if len(left) >= limits.max_running or _needed(waiting[0], left) > room:
        return None
    return yielding[-1].id


def _needed(request: Waiting, running: Sequence[Running]) -> int:
    """Count the pages that must be free for a request to be admitted.

    One that was preempted comes back only where all that draw can take another page, so that it is not sent
    away again at once.
    """
    return request.pages + (sum(r.decoding for r in running) if request.resumed else 0)


def _admitted(waiting: Sequence[Waiting], running: Sequence[Running], limits: Limits) -> tuple[int, ...]:
    """Admit by seniority what has room for its prompt; how long the reply gets is nobody's guess.

    A request that does not fit lets MOST_OVERTAKEN others pass, and then holds all up. Background requests
    are admitted only when no normal one waits.
    """
    free = limits.free_pages - sum(r.missing for r in running)
    admitted: list[int] = []
    overtaken: int | None = None  # how often the most senior request that does not fit has been
    normal_left = False
    for request in waiting:
        if len(running) + len(admitted) >= limits.max_running or (request.background and normal_left):
            break
        if _needed(request, running) > free:
            overtaken = request.overtaken if overtaken is None else overtaken
            normal_left |= not request.background
            continue
        if overtaken is not None:
            if overtaken >= MOST_OVERTAKEN:
                break
            overtaken += 1
        free -= request.pages
        admitted.append(request.id)
    return tuple(admitted)


def chunk_rows(decoding: bool, limits: Limits, costs: Costs) -> int:
    """Size a chunk: as many rows as fit the gap between rounds; where nobody decodes as many as go.

    Args:
        decoding: Whether anybody waits for rounds.
        limits: What the engine has.
        costs: What steps took lately.
    """
    if not decoding or costs.row_ms <= 0:
        return limits.max_chunk
    left_ms = max(limits.gap_ms, ROUNDS_OF_A_GAP * costs.round_ms) - costs.round_ms
    return max(min(LEAST_CHUNK, limits.max_chunk), min(limits.max_chunk, int(left_ms / costs.row_ms)))


def _chunk(able: Sequence[Running], rows: int, max_parts: int) -> tuple[Chunk, ...]:
    """Share a chunk among the prompts that can be read, background ones behind the others.

    Half of it goes to the most senior prompt, the rest to the others, the one with least left to read
    first; what they leave goes to the most senior one too. So a short prompt is read in the first step or
    two whatever it came behind, and no prompt waits for more than twice the rows of those before it and its
    own: in time it is the most senior.
    """
    taken: dict[int, int] = {}
    for background in (False, True):
        readers = [r for r in able if r.readable and r.background == background]
        if not readers:
            continue
        first, *others = readers
        others.sort(key=lambda r: r.unread)
        shares = [(first, (rows + 1) // 2), *((r, rows) for r in others), (first, rows)]
        for reader, most in shares:
            if reader.id not in taken and len(taken) >= max_parts:
                continue
            n = min(reader.readable - taken.get(reader.id, 0), most, rows)
            if n > 0:
                taken[reader.id] = taken.get(reader.id, 0) + n
                rows -= n
    return tuple(Chunk(r.id, taken[r.id]) for r in able if r.id in taken)
