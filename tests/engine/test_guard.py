"""The memory guard by itself: which figure counts, and what is held against nobody."""

from __future__ import annotations

import gc

from flashnext.engine.guard import Guard


def test_the_larger_figure_counts() -> None:
    def used(accounted: int, footprint: int | None, idle: int = 0) -> int:
        return Guard(1000, 0, lambda: accounted, lambda: footprint, lambda: idle, lambda: 0.0).used_bytes

    assert used(400, 300) == 400
    assert used(200, 300) == 300
    assert used(200, 300, idle=60) == 240
    assert used(200, None) == 200


def test_garbage_that_was_not_collected_yet_is_held_against_nobody() -> None:
    used, now_s = [1000], [0.0]

    class Garbage:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            used[0] = 300

    guard = Guard(1000, 0, lambda: 200, lambda: used[0], lambda: 0, lambda: now_s[0])
    gc.disable()
    try:
        Garbage()
        assert guard.used_bytes == 1000 and not guard.full and guard.used_bytes == 300
    finally:
        gc.enable()
    used[0] = 1000
    now_s[0] += 1
    assert guard.full
