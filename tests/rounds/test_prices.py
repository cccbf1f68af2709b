"""What rounds cost: measured, refined by rounds, robust against outliers."""

from __future__ import annotations

import numpy as np
import pytest
from flashnext._core.testing import PRICE_WIDTHS, Prices
from flashnext.errors import InvalidArgument


def measured(forward: dict[int, float], step: dict[int, float] | None = None) -> Prices:
    """Prices timed at these widths."""
    prices = Prices()
    for rows, ms in forward.items():
        prices.set_measured(rows, ms)
    for n, ms in (step or {}).items():
        prices.set_measured_draft_step(n, ms)
    return prices


def flat(ms: float = 10.0, step_ms: float = 1.0) -> Prices:
    return measured(dict.fromkeys(PRICE_WIDTHS, ms), dict.fromkeys(PRICE_WIDTHS, step_ms))


def test_prices_never_fall_with_width_and_cost_nothing_at_none() -> None:
    prices = Prices()
    forward = [prices.forward_ms(n) for n in range(200)]
    step = [prices.draft_step_ms(n) for n in range(200)]
    assert forward == sorted(forward) and step == sorted(step)
    assert forward[0] == step[0] == 0 and forward[1] > 0 and step[1] > 0


def test_a_measured_width_costs_what_was_measured_and_those_between_are_interpolated() -> None:
    prices = measured({8: 20.0, 16: 28.0})
    assert [prices.forward_ms(n) for n in (8, 10, 16)] == pytest.approx([20, 22, 28])


def test_beyond_the_widest_the_last_slope_goes_on() -> None:
    prices = measured({32: 30.0, 64: 62.0})
    assert prices.forward_ms(100) == pytest.approx(98)


def test_what_was_not_measured_keeps_its_shape() -> None:
    default, prices = Prices(), measured({1: 50 * Prices().forward_ms(1)})
    for n in (1, 3, 20, 64):
        assert prices.forward_ms(n) == pytest.approx(50 * default.forward_ms(n))
        assert prices.draft_step_ms(n) == pytest.approx(50 * default.draft_step_ms(n))


def test_a_lower_price_of_a_wider_forward_is_believed_of_the_narrower_too() -> None:
    prices = measured({1: 10.0, 2: 12.0, 4: 11.0})
    assert [prices.forward_ms(n) for n in (1, 2, 4)] == pytest.approx([10, 11, 11])


@pytest.mark.parametrize(
    ("width", "ms"), [(3, 1.0), (0, 1.0), (128, 1.0), (4, 0.0), (4, -1.0), (4, float("nan"))]
)
def test_a_width_or_time_that_is_none_is_refused(width: int, ms: float) -> None:
    for setter in (Prices().set_measured, Prices().set_measured_draft_step):
        with pytest.raises(InvalidArgument, match=str(width) if ms == 1 else "ms is no time"):
            setter(width, ms)


def test_a_round_costs_its_forward_and_each_draft_step() -> None:
    prices = measured({4: 10.0}, {1: 1.0, 2: 1.5, 4: 2.0})
    assert prices.round_ms(4, [4, 2, 1]) == pytest.approx(14.5)


def test_the_first_round_sets_the_scale() -> None:
    prices, default = Prices(), Prices()
    prices.observe_round(4, [2], 100 * default.round_ms(4, [2]))
    assert prices.forward_ms(32) == pytest.approx(100 * default.forward_ms(32))


@pytest.mark.parametrize("ms", [0.0, -5.0, float("nan"), float("inf")])
def test_a_time_that_is_none_changes_nothing(ms: float) -> None:
    prices = flat()
    prices.observe_round(4, [], ms)
    prices.observe_round(0, [], 5.0)
    assert prices.forward_ms(4) == 10


def test_a_single_outlier_of_ten_times_moves_a_price_by_a_few_hundredths() -> None:
    for rows in (1, 3, 8, 40):
        for drafting in ([], [4, 2, 1]):
            prices = flat()
            prices.observe_round(rows, drafting, 10 * prices.round_ms(rows, drafting))
            assert 1 < prices.forward_ms(rows) / 10 < 1.05


@pytest.mark.parametrize("seed", range(5))
def test_outliers_in_a_tenth_of_the_rounds_move_prices_by_less_than_a_tenth(seed: int) -> None:
    prices, rng = flat(), np.random.default_rng(seed)
    for _ in range(1000):
        slow = 10 if rng.random() < 0.1 else 1
        prices.observe_round(8, [], 10 * slow * float(rng.normal(1, 0.03)))
    assert 0.95 < prices.forward_ms(8) / 10 < 1.1, f"seed {seed}"


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_lasting_change_is_followed_in_tens_of_rounds(factor: float) -> None:
    prices = flat()
    for _ in range(60):
        prices.observe_round(8, [], 10 * factor)
    assert prices.forward_ms(8) == pytest.approx(10 * factor, rel=0.05)


def test_a_change_of_one_width_reaches_the_others_in_part() -> None:
    prices = flat()
    for _ in range(100):
        prices.observe_round(8, [], 5.0)
    assert prices.forward_ms(8) < prices.forward_ms(32) < 9
    assert prices.forward_ms(1) <= prices.forward_ms(8)


@pytest.mark.parametrize("seed", range(5))
def test_rounds_of_many_kinds_tell_forwards_from_draft_steps(seed: int) -> None:
    def forward(n: int) -> float:
        return 20 + 1.5 * n

    def step(n: int) -> float:
        return 1 + 0.25 * n

    prices, rng = Prices(), np.random.default_rng(seed)
    for _ in range(4000):
        n = int(rng.integers(1, 9))
        drafting = [n] * int(rng.integers(0, 6))
        ms = forward(n * (1 + len(drafting))) + sum(map(step, drafting))
        prices.observe_round(n * (1 + len(drafting)), drafting, ms * float(rng.lognormal(0, 0.03)))
    for n in (1, 4, 8, 16, 32):
        assert prices.forward_ms(n) == pytest.approx(forward(n), rel=0.12), f"seed {seed}, {n} rows"
    for n in (1, 4, 8):
        assert prices.draft_step_ms(n) == pytest.approx(step(n), rel=0.35), f"seed {seed}, {n} sequences"
