"""Rates, first tokens and gaps follow from when tokens came, and from nothing else."""

from __future__ import annotations

import pytest
from arrivals import Arrivals, largest_gap, largest_gap_within, most_at_once, rate_together, rung


def reply(first_s: float, step_s: float, n: int, drafts: tuple[int, int] | None = None) -> Arrivals:
    """A reply asked for at 0 whose n tokens come at even times."""
    return Arrivals(0.0, tuple(first_s + i * step_s for i in range(n)), "", drafts)


def test_rate_of_one_sequence_leaves_the_prompt_out() -> None:
    assert rate_together([reply(5.0, 0.25, 9)]) == pytest.approx(4.0)


def test_rate_together_counts_only_what_comes_while_all_decode() -> None:
    # The first decodes alone until 4 s and the second alone from 8 s on: between, 1 and 2 tokens a second.
    slow, fast = reply(0.5, 1.0, 8), Arrivals(0.0, tuple(3.5 + i / 2 for i in range(20)))
    assert (slow.times_s[-1], fast.times_s[0]) == (7.5, 3.5)
    assert rate_together([slow, fast]) == pytest.approx((4 + 8) / 4.0)


def test_there_is_no_rate_together_where_one_ends_before_another_begins() -> None:
    assert rate_together([reply(0.0, 1.0, 3), reply(5.0, 1.0, 3)]) is None


def test_there_is_no_rate_together_of_hardly_any_tokens() -> None:
    assert rate_together([reply(0.0, 1.0, 4), reply(2.5, 1.0, 4)]) is None


def test_tokens_of_one_round_come_together_and_all_count() -> None:
    assert rate_together([Arrivals(0.0, (1.0, 2.0, 2.0, 2.0, 3.0, 3.0))]) == pytest.approx(2.5)


def test_gap_is_the_longest_between_two_tokens_of_one_sequence() -> None:
    assert largest_gap((1.0, 1.5, 4.0, 4.0)) == 2.5
    assert largest_gap((1.0,)) == 0.0
    # Two sequences that take turns each have gaps of two, whatever comes between.
    assert rung([reply(0.5, 2.0, 4), reply(1.5, 2.0, 4)]).gap_s == 2.0


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"), [(0.0, 10.0, 4.0), (0.0, 2.5, 1.0), (5.0, 6.0, 4.0), (8.5, 9.0, 1.0)]
)
def test_gap_within_a_time_may_reach_beyond_it(start_s: float, end_s: float, expected: float) -> None:
    assert largest_gap_within((1.0, 2.0, 3.0, 4.0, 8.0, 9.0), start_s, end_s) == expected


def test_most_at_once_does_not_count_a_start_at_an_end() -> None:
    assert most_at_once([0.0, 1.0, 2.0], [2.0, 5.0, 3.0]) == 2
    assert most_at_once([0.0, 1.0, 1.5], [2.0, 5.0, 3.0]) == 3


def test_figures_of_a_run_of_three() -> None:
    figures = rung([reply(1.0, 0.5, 5, (10, 4)), reply(2.0, 0.5, 5, (6, 6)), reply(2.5, 0.25, 9, (0, 0))])
    assert (figures.n, figures.together) == (3, 3)
    assert (figures.first_s, figures.first_worst_s) == (2.0, 2.5)
    assert figures.aggregate == pytest.approx(19 / 4.5)
    assert figures.each == pytest.approx(2.0)
    assert (figures.proposed, figures.accepted) == (16, 10)


def test_drafts_are_unknown_where_one_reply_does_not_say() -> None:
    figures = rung([reply(1.0, 0.5, 5, (10, 4)), reply(1.0, 0.5, 5)])
    assert (figures.proposed, figures.accepted) == (None, None)
