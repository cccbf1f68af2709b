"""The policy as tables: what waits and runs on the left, the next step on the right."""

from __future__ import annotations

import pytest
from flashnext.engine.policy import (
    LEAST_CHUNK,
    MOST_OVERTAKEN,
    Chunk,
    Costs,
    Limits,
    Running,
    Step,
    Waiting,
    next_step,
)

ONE = Limits(max_running=1, max_chunk=512, pages=128)
FOUR = Limits(max_running=4, max_chunk=512, pages=128)


@pytest.mark.parametrize(
    ("limits", "waiting", "running", "step"),
    [
        (ONE, [], [], Step()),
        (ONE, [(1, 5)], [], Step(admit=(1,))),
        (ONE, [(1, 5), (2, 5)], [], Step(admit=(1,))),
        (ONE, [(2, 5)], [(1, 5, 3)], Step(chunk=Chunk(1, 3))),
        (ONE, [(2, 5)], [(1, 5, 513)], Step(chunk=Chunk(1, 512))),
        (ONE, [(2, 5)], [(1, 5, 0)], Step(round=(1,))),
        (ONE, [(1, 129)], [], Step()),  # can never fit; refused before it gets here
        (FOUR, [(1, 64), (2, 64), (3, 1)], [], Step(admit=(1, 2))),
        (FOUR, [(1, 64), (2, 65), (3, 1)], [], Step(admit=(1, 3))),  # 3 fits behind 2, which does not
        (FOUR, [(1, 64), (2, 65, MOST_OVERTAKEN), (3, 1)], [], Step(admit=(1,))),  # has waited enough
        (FOUR, [(2, 129, MOST_OVERTAKEN - 1), (3, 1), (4, 1)], [], Step(admit=(3,))),
        (FOUR, [(5, 1)], [(1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 1, 0)], Step(round=(1, 2, 3, 4))),
        (FOUR, [(5, 29)], [(1, 100, 0)], Step(round=(1,))),
        (FOUR, [(5, 28)], [(1, 100, 0)], Step(admit=(5,), round=(1,))),
        (FOUR, [], [(1, 1, 0), (2, 1, 700), (3, 1, 9)], Step(chunk=Chunk(2, 512), round=(1,))),
        (FOUR, [], [(1, 1, 9), (2, 1, 9)], Step(chunk=Chunk(1, 9))),
    ],
)
def test_the_next_step(
    limits: Limits, waiting: list[tuple[int, ...]], running: list[tuple[int, int, int]], step: Step
) -> None:
    assert next_step([Waiting(*w) for w in waiting], [Running(*r) for r in running], limits) == step


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
    running = [Running(1, 1, 0), Running(2, 9, 4000)] if decoding else [Running(2, 9, 4000)]
    step = next_step([], running, Limits(4, 512, 128, gap_ms), costs)
    assert step.chunk == Chunk(2, rows)
