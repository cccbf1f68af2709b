"""The policy as tables: what waits and runs on the left, the next step on the right."""

from __future__ import annotations

import pytest
from flashnext.engine.policy import Chunk, Limits, Running, Step, Waiting, next_step

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
        (FOUR, [(1, 64), (2, 65), (3, 1)], [], Step(admit=(1,))),  # nobody overtakes
        (FOUR, [(5, 1)], [(1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 1, 0)], Step(round=(1, 2, 3, 4))),
        (FOUR, [(5, 29)], [(1, 100, 0)], Step(round=(1,))),
        (FOUR, [(5, 28)], [(1, 100, 0)], Step(admit=(5,), round=(1,))),
        (FOUR, [], [(1, 1, 0), (2, 1, 700), (3, 1, 9)], Step(chunk=Chunk(2, 512), round=(1,))),
        (FOUR, [], [(1, 1, 9), (2, 1, 9)], Step(chunk=Chunk(1, 9))),
    ],
)
def test_the_next_step(
    limits: Limits, waiting: list[tuple[int, int]], running: list[tuple[int, int, int]], step: Step
) -> None:
    assert next_step([Waiting(*w) for w in waiting], [Running(*r) for r in running], limits) == step
