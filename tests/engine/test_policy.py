"""The policy as tables: what waits and runs on the left, the next step on the right."""

from __future__ import annotations

from typing import Any

import pytest
from flashnext.engine.policy import (
    LEAST_CHUNK,
    MOST_OVERTAKEN,
    Chunk,
    Costs,
    Limits,
    Running,
    Shortage,
    Step,
    Waiting,
    next_step,
    shortage,
)


def w(id: int, pages: int, **more: Any) -> Waiting:
    return Waiting(id, pages, **more)


def bg(id: int, **more: Any) -> Running:
    return Running(id, background=True, **more)


r = Running


def step(
    waiting: list[Waiting], running: list[Running], free: int = 128, max_running: int = 4, **limits: Any
) -> Step:
    return next_step(waiting, running, Limits(max_running, 512, free, **limits))


# --- one at a time, as it goes


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [
        ([], [], Step()),
        ([w(1, 5)], [], Step(admit=(1,))),
        ([w(1, 5), w(2, 5)], [], Step(admit=(1,))),
        ([w(2, 5)], [r(1, 3)], Step(chunk=(Chunk(1, 3),))),
        ([w(2, 5)], [r(1, 513)], Step(chunk=(Chunk(1, 512),))),
        ([w(2, 5)], [r(1)], Step(round=(1,))),
        ([w(1, 129)], [], Step()),  # can never fit
    ],
)
def test_one_reply_at_a_time(waiting: list[Waiting], running: list[Running], expected: Step) -> None:
    assert step(waiting, running, max_running=1) == expected


# --- admission


@pytest.mark.parametrize(
    ("waiting", "running", "admitted"),
    [
        ([w(1, 64), w(2, 64), w(3, 1)], [], (1, 2)),
        ([w(1, 64), w(2, 65), w(3, 1)], [], (1, 3)),  # 3 fits behind 2, which does not
        ([w(1, 64), w(2, 65, overtaken=MOST_OVERTAKEN), w(3, 1)], [], (1,)),  # has waited enough
        ([w(2, 129, overtaken=MOST_OVERTAKEN - 1), w(3, 1), w(4, 1)], [], (3,)),
        ([w(5, 1)], [r(1), r(2), r(3), r(4)], ()),
        ([w(5, 1)], [r(1), r(2), r(3)], (5,)),
        ([w(5, 128)], [r(1, held=500)], (5,)),  # what others may come to is not counted
        ([w(5, 118)], [r(1, 99, missing=10)], (5,)),  # what one that reads still needs is
        ([w(5, 119)], [r(1, 99, missing=10)], ()),
        ([w(5, 128, resumed=True)], [r(1), r(2, 4)], ()),  # comes back when those that draw can go on
        ([w(5, 127, resumed=True)], [r(1), r(2, 4)], (5,)),
        ([w(5, 128, resumed=True)], [], (5,)),
        ([w(1, 9), w(2, 9, background=True)], [], (1, 2)),
        ([w(1, 129), w(2, 9, background=True)], [], ()),  # a normal one waits
        ([w(1, 129), w(2, 9), w(3, 9, background=True)], [], (2,)),
        ([w(1, 129, background=True), w(2, 9, background=True)], [], (2,)),
    ],
)
def test_who_is_admitted(waiting: list[Waiting], running: list[Running], admitted: tuple[int, ...]) -> None:
    assert step(waiting, running).admit == admitted


# --- chunks


@pytest.mark.parametrize(
    ("gap_ms", "costs", "decoding", "rows"),
    [
        (250, Costs(), True, 512),  # nothing measured yet
        (250, Costs(row_ms=1, round_ms=50), True, 200),  # what the round leaves of the gap
        (250, Costs(row_ms=1, round_ms=50), False, 512),  # nobody waits
        (250, Costs(row_ms=0.1, round_ms=50), True, 512),
        (250, Costs(row_ms=1, round_ms=100), True, 300),  # four rounds are longer than the target
        (250, Costs(row_ms=100, round_ms=1), True, LEAST_CHUNK),
        (0, Costs(row_ms=1, round_ms=10), True, 30),
    ],
)
def test_a_chunk_is_as_long_as_the_gap_allows(gap_ms: float, costs: Costs, decoding: bool, rows: int) -> None:
    running = [r(1), r(2, 4000)] if decoding else [r(2, 4000)]
    found = next_step([], running, Limits(4, 512, 128, gap_ms=gap_ms), costs)
    assert found == Step(chunk=(Chunk(2, rows),), round=(1,) if decoding else ())


@pytest.mark.parametrize(
    ("running", "chunk"),
    [
        ([r(1, 9), r(2, 7)], {1: 9, 2: 7}),
        ([r(1, 600), r(2, 9)], {1: 503, 2: 9}),  # a short prompt rides along with a long one
        ([r(1, 600), r(2, 900)], {1: 256, 2: 256}),
        ([r(1, 600), r(2, 900), r(3, 100), r(4, 50)], {1: 256, 2: 106, 3: 100, 4: 50}),
        ([r(1, 600), r(2, 900), r(3, 250), r(4, 50)], {1: 256, 3: 206, 4: 50}),
        ([r(1, 40), r(2, 900), r(3, 900)], {1: 40, 2: 472}),
        ([r(1, 600, limit=30), r(2, 900)], {1: 30, 2: 482}),  # another is forked off 1 behind 30
        ([r(1, 600), r(2, 900, limit=0)], {1: 512}),  # 2 waits to be forked
        ([r(1, 300), bg(2, unread=5)], {1: 300, 2: 5}),
        ([r(1, 600), bg(2, unread=5)], {1: 512}),  # background prompts get what is left
        ([bg(1, unread=600), bg(2, unread=9)], {1: 503, 2: 9}),
    ],
)
def test_prompts_share_a_chunk(running: list[Running], chunk: dict[int, int]) -> None:
    assert step([], running).chunk == tuple(Chunk(id, n) for id, n in chunk.items())


def test_a_pass_has_no_more_sequences_than_it_may() -> None:
    running = [r(i, 5) for i in range(4)] + [r(i) for i in range(4, 8)]
    found = step([], running, max_running=8, max_sequences=3)
    assert [part.id for part in found.chunk] == [0, 1, 2]
    assert found.round == (4, 5, 6)


def test_no_prompt_waits_for_more_than_twice_the_rows_before_it_and_its_own() -> None:
    """With a stream of short prompts that would always be read first."""
    unread = {1: 700, 2: 400}
    rows_read = 0
    ended = {}
    for n in range(3, 400):
        if 1 in ended and 2 in ended:
            break
        unread[n] = 20  # comes new in every step
        chunk = next_step([], [r(i, u) for i, u in unread.items()], Limits(999, 40, 9)).chunk
        assert sum(part.n for part in chunk) == 40
        rows_read += 40
        for part in chunk:
            unread[part.id] -= part.n
            if not unread[part.id]:
                del unread[part.id]
                ended[part.id] = rows_read
    assert ended[1] <= 2 * 700 + 40
    assert ended[2] <= 2 * (700 + 400) + 40


# --- pages run short


@pytest.mark.parametrize(
    ("running", "free", "victim", "going"),
    [
        ([r(1, missing=1), r(2, held=3), r(3, held=3)], 0, 3, ()),  # the youngest
        ([r(1, missing=1), r(2, held=3), bg(3, held=3)], 0, 3, ()),  # background before it
        ([r(1, held=3), r(2, missing=1, held=1), r(3, held=3)], 0, 3, ()),
        ([r(1, held=3), r(2, missing=1, held=1)], 0, None, (1,)),  # nobody younger: stands still
        ([r(1, held=3), r(2, missing=1, held=1)], 1, None, (1, 2)),
        ([r(1, held=3), r(2, missing=1), r(3, missing=1), r(4)], 1, None, (1, 2, 4)),
        ([r(1), r(2, missing=1), r(3, held=3), r(4, held=3, protected=True)], 0, 3, ()),
        ([r(1), r(2, missing=1), r(4, held=3, protected=True)], 0, None, (1, 4)),
        ([r(1, missing=1), r(4, held=3, protected=True)], 0, 4, ()),  # the oldest never stands still
        ([r(1, missing=1), r(2), r(3)], 0, None, (2, 3)),  # those have none to give
        ([r(1), r(2, 9, missing=2), r(3, held=1)], 1, 3, ()),  # one that reads counts the rest of its prompt
        ([r(1, 9, missing=2, limit=0), r(2, held=1)], 1, None, (2,)),  # not while it waits to be forked
    ],
)
def test_the_youngest_makes_room(
    running: list[Running], free: int, victim: int | None, going: tuple[int, ...]
) -> None:
    found = step([], running, free=free)
    assert (found.preempt, found.round) == (victim, going)


@pytest.mark.parametrize(
    ("waiting", "running", "free", "victim"),
    [
        ([w(9, 1)], [bg(1), bg(2), bg(3), bg(4)], 9, 4),  # for its place
        ([w(9, 1)], [bg(1), bg(2), bg(3), bg(4, protected=True)], 9, 3),
        ([w(9, 1)], [r(1), r(2), r(3), r(4)], 9, None),
        ([w(9, 1, background=True)], [bg(1), bg(2), bg(3), bg(4)], 9, None),
        ([w(9, 6)], [r(1, held=8), bg(2, held=3), bg(3, held=3)], 2, 3),  # for its pages
        ([w(9, 9)], [r(1, held=8), bg(2, held=3), bg(3, held=3)], 2, None),  # it would not help
        ([w(9, 2)], [r(1, held=8), bg(2, held=3), bg(3, held=3)], 2, None),  # it fits anyway
    ],
)
def test_background_sequences_yield_to_a_normal_request(
    waiting: list[Waiting], running: list[Running], free: int, victim: int | None
) -> None:
    assert step(waiting, running, free=free).preempt == victim


# --- what is short before a step is decided


@pytest.mark.parametrize(
    ("waiting", "running", "free", "expected"),
    [
        ([], [], 0, Shortage()),
        ([w(1, 5)], [], 5, Shortage()),
        ([w(1, 9)], [], 5, Shortage(waiting=4)),
        ([w(1, 9), w(2, 90)], [], 5, Shortage(waiting=4)),  # the most senior one alone
        ([w(1, 9)], [r(2, 10, missing=3)], 5, Shortage(waiting=7)),
        ([w(1, 9)], [r(i) for i in range(4)], 0, Shortage()),  # it has no place anyway
        ([w(1, 9, resumed=True)], [r(2), r(3)], 10, Shortage(waiting=1)),
        ([], [r(1, missing=2)], 2, Shortage()),
        ([], [r(1, missing=2)], 1, Shortage(running=1)),
        ([], [r(1, missing=2), r(2, missing=9)], 3, Shortage(running=8)),
        ([], [r(1, missing=5), r(2, missing=9)], 3, Shortage(running=2)),  # the first that lacks any
        ([], [r(1, 8, limit=0, missing=5)], 0, Shortage()),  # it waits for a fork
    ],
)
def test_what_is_short(waiting: list[Waiting], running: list[Running], free: int, expected: Shortage) -> None:
    assert shortage(waiting, running, Limits(4, 512, free)) == expected
