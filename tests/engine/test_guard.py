"""The memory guard by itself: which figure counts, and what is held against nobody."""

from __future__ import annotations

import gc

from flashnext.engine.guard import Guard, own_footprint


def test_the_larger_figure_counts() -> None:
    def used(accounted: int, footprint: int | None, idle: int = 0) -> int:
        return Guard(1000, 0, lambda: accounted, lambda: footprint, lambda: idle, lambda: 0.0).used_bytes

    assert used(400, 300) == 400
    assert used(200, 300) == 300
    assert used(200, 300, idle=60) == 240
    assert used(200, None) == 200


def test_what_a_program_has_given_back_is_not_taken_off_for_ever() -> None:
    has: list[int | None] = [None]
    footprint = own_footprint(1000, 100, 7, lambda: has[0])

    def after(n_bytes: int | None) -> int | None:
        has[0] = n_bytes
        return footprint()

    assert after(None) is None
    assert after(1300) == 1300 - 900 + 7
    assert after(400) == 400 - 300 + 7  # it has 400 of the 1,000 at most
    assert after(1300) == 1300 - 300 + 7
    assert after(50) == 50 + 7
    assert after(1300) == 1300 + 7


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
