"""How many drafts each sequence gets: tables, and an oracle that tries every allotment."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flashnext._core.testing import PRICE_WIDTHS, Acceptance, Candidate, DraftSource, Prices, allocate
from flashnext.errors import InvalidArgument

HEAD, COPY = DraftSource.HEAD, DraftSource.COPY
DEPTHS = 15
Allotment = tuple[int, DraftSource]


def priced(forward: dict[int, float] | float, step: dict[int, float] | float) -> Prices:
    """Prices at widths, or the same at every width."""
    prices = Prices()
    for width in PRICE_WIDTHS:
        prices.set_measured(width, forward[width] if isinstance(forward, dict) else forward)
        prices.set_measured_draft_step(width, step[width] if isinstance(step, dict) else step)
    return prices


FLAT = priced(10.0, 1e-6)
STEEP = priced({n: 10.0 * n for n in PRICE_WIDTHS}, 5.0)


def head(rate: float, most: int = DEPTHS, **more: Any) -> Candidate:
    return Candidate([rate] * DEPTHS, [0.0] * DEPTHS, most, 0, **more)


def copy(rate: float, most: int = DEPTHS, **more: Any) -> Candidate:
    return Candidate([0.0] * DEPTHS, [rate] * DEPTHS, 0, most, **more)


def drafts(candidates: Sequence[Candidate], prices: Prices, row_limit: int = 64) -> list[int]:
    return [n for n, _ in allocate(candidates, prices, row_limit)]


def test_flat_prices_draft_to_the_limit() -> None:
    assert drafts([head(0.9)], FLAT) == [15]
    assert drafts([copy(0.9, 7)], FLAT) == [7]
    assert drafts([head(0.9)] * 2, FLAT, 12) == [5, 5]


def test_steep_prices_draft_nothing() -> None:
    assert drafts([head(0.9), copy(0.9), head(0.99)], STEEP) == [0, 0, 0]


def test_drafts_that_are_never_kept_get_no_row() -> None:
    assert drafts([head(0.0), copy(0.0)], FLAT) == [0, 0]


def test_a_copy_pays_where_steps_of_the_head_do_not() -> None:
    dear_steps = priced(10.0, 20.0)
    assert allocate([head(0.9), copy(0.9, 4)], dear_steps, 64) == [(0, HEAD), (4, COPY)]


def test_the_better_source_is_taken() -> None:
    both = Candidate([0.9] * DEPTHS, [0.3] * DEPTHS, 15, 15)
    ((_, source),) = allocate([both], FLAT, 8)
    assert source == HEAD
    both = Candidate([0.9] * DEPTHS, [0.9] * DEPTHS, 15, 15)
    ((n, source),) = allocate([both], priced(10.0, 1.0), 64)
    assert (n, source) == (15, COPY)


def test_rows_go_where_they_bring_most() -> None:
    assert drafts([head(0.6), head(0.9), head(0.05)], FLAT, 3 + 8) == [1, 7, 0]


@pytest.mark.parametrize(
    ("n", "limit", "expected"), [(3, 5, [1, 1, 0]), (2, 9, [4, 3]), (4, 6, [1, 1, 0, 0])]
)
def test_equal_gains_go_by_depth_then_to_the_lower_index(n: int, limit: int, expected: list[int]) -> None:
    assert drafts([head(1.0)] * n, FLAT, limit) == expected


@pytest.mark.parametrize("limit", [0, 1, 32, 64])
def test_a_limit_below_the_sequences_leaves_each_its_pending_row(limit: int) -> None:
    assert drafts([head(1.0)] * 64, FLAT, limit) == [0] * 64


def test_sixty_four_sequences_of_fifteen_drafts_fill_their_windows() -> None:
    assert drafts([head(1.0)] * 64, FLAT, 64 * 16) == [15] * 64


def test_a_window_is_never_wider_than_its_most() -> None:
    assert drafts([head(1.0, 99)], FLAT, 99) == [15]
    assert drafts([head(1.0, -3)], FLAT, 99) == [0]


def test_no_sequence_is_no_allotment_and_too_many_are_refused() -> None:
    assert allocate([], FLAT, 64) == []
    with pytest.raises(InvalidArgument, match="65 sequences"):
        allocate([head(1.0)] * 65, FLAT, 100)


def test_drafts_stop_where_the_next_row_is_dear() -> None:
    cliff = priced({1: 10, 2: 10, 4: 10, 8: 200, 16: 400, 32: 800, 64: 1600}, 1e-3)
    assert drafts([head(0.95)], cliff) == [3]


def test_a_cliff_is_climbed_where_what_lies_behind_pays() -> None:
    # One row more costs half a forward, fifteen more cost no more than that.
    step = priced({1: 10, **{n: 15.0 for n in PRICE_WIDTHS[1:]}}, 1e-6)
    assert drafts([head(0.45, 1)], step) == [0]
    assert drafts([head(0.8)], step) == [15]


def test_a_probe_that_is_due_gets_one_draft_where_a_kept_one_would_pay() -> None:
    assert drafts([head(0.0, probe_head=True), head(0.0)], FLAT) == [1, 0]
    assert allocate([copy(0.0, probe_copy=True)], FLAT, 64) == [(1, COPY)]
    assert drafts([head(0.0, probe_head=True)], STEEP) == [0]
    assert drafts([head(0.0, probe_head=True)], FLAT, 1) == [0]
    assert drafts([copy(0.0, 0, probe_copy=True)], FLAT) == [0]


def test_probes_that_share_a_step_are_weighed_together() -> None:
    # A step costs as much as a fifth of a round: one token more of sixteen does not pay for it, sixteen do.
    prices = priced(10.0, 2.0)
    due = [head(0.0, probe_head=True) for _ in range(16)]
    idle = [head(0.0) for _ in range(15)]
    assert drafts(due, prices) == [1] * 16
    assert drafts([due[0], *idle], prices) == [0] * 16
    assert drafts(due, prices, 20) == [1] * 4 + [0] * 12


def test_a_probe_of_the_other_source_takes_the_place_of_the_drafts() -> None:
    both = Candidate([0.9] * DEPTHS, [0.1] * DEPTHS, 15, 15, probe_copy=True)
    assert allocate([both, head(0.9)], FLAT, 64) == [(1, COPY), (15, HEAD)]


def test_a_candidate_has_the_rates_of_its_sequence() -> None:
    bad, all_ = Acceptance(), Acceptance.of_all()
    for _ in range(40):
        bad.observe(HEAD, 3, 0)
    prices = priced({n: 8.0 + n for n in PRICE_WIDTHS}, 0.5)
    candidates = [Candidate.of(own, all_, 15, 0) for own in (bad, Acceptance())]
    found = drafts(candidates, prices)
    assert found[0] == 0 and found[1] >= 1


def rate(candidates: Sequence[Any], given: Sequence[Allotment], prices: Prices) -> float:
    """Expected tokens per millisecond of the round."""
    tokens, n_drafts = float(len(candidates)), [n for n, s in given if s == HEAD]
    for (head_rates, copy_rates, *_), (n, source) in zip(candidates, given, strict=True):
        tokens += float(np.cumprod((head_rates if source == HEAD else copy_rates)[:n]).sum())
    drafting = [sum(n > s for n in n_drafts) for s in range(max(n_drafts, default=0))]
    return tokens / prices.round_ms(len(candidates) + sum(n for n, _ in given), drafting)


def random_prices(rng: np.random.Generator) -> Prices:
    """Monotone prices from flat to steep, with cliffs."""

    def curve(first: float, steepness: float) -> dict[int, float]:
        rises = rng.exponential(steepness, len(PRICE_WIDTHS)) * (rng.random(len(PRICE_WIDTHS)) < 0.7)
        return dict(zip(PRICE_WIDTHS, (first * np.cumprod(1 + rises)).tolist(), strict=True))

    steepness = float(rng.choice([0.02, 0.2, 0.6]))
    return priced(curve(10.0, steepness), curve(float(rng.choice([0.05, 0.5, 2.0])), steepness))


@pytest.mark.parametrize("seed", range(300))
def test_no_allotment_brings_a_hundredth_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, most = ((1, 15), (2, 6), (3, 3), (4, 2))[seed % 4]
    prices, limit = random_prices(rng), int(rng.integers(n, n * (most + 1) + 2))
    candidates = []
    for _ in range(n):
        level = rng.random(2)
        head_rates, copy_rates = (np.clip(x + rng.normal(0, 0.1, DEPTHS), 0, 1).tolist() for x in level)
        heads = int(rng.integers(0, most + 1)) if rng.random() < 0.8 else 0
        copied = int(rng.integers(0, most + 1)) if rng.random() < 0.4 else 0
        candidates.append((head_rates, copy_rates, heads, copied))
    choices = [
        [(0, HEAD), *((k, HEAD) for k in range(1, h + 1)), *((k, COPY) for k in range(1, c + 1))]
        for _, _, h, c in candidates
    ]
    fits = (g for g in itertools.product(*choices) if n + sum(k for k, _ in g) <= limit)
    best = max(rate(candidates, g, prices) for g in fits)
    given = allocate([Candidate(*c) for c in candidates], prices, limit)
    assert n + sum(k for k, _ in given) <= limit
    assert rate(candidates, given, prices) >= 0.99 * best, f"seed {seed}: {given}"
