"""Prices, acceptance and allocation together, over replies whose drafts are kept by a known law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from flashnext._core.testing import PRICE_WIDTHS, Acceptance, Candidate, DraftSource, Prices, allocate

ROUNDS = 1500
ROW_LIMIT = 64
MOST = 15

Law = Callable[[int], float]  # round -> the probability that a draft is kept, given those before it were

LAWS: dict[str, Law] = {
    "always right": lambda _: 1.0,
    "70 %": lambda _: 0.7,
    "always wrong": lambda _: 0.0,
    "good and bad stretches": lambda i: 0.95 if i // 100 % 2 == 0 else 0.05,
}


@dataclass(frozen=True)
class Machine:
    """What rounds really take: a forward by its rows, a draft step by its sequences, in ms."""

    forward: tuple[float, float]
    step: tuple[float, float]

    def forward_ms(self, rows: int) -> float:
        return self.forward[0] + self.forward[1] * rows

    def step_ms(self, n: int) -> float:
        return self.step[0] + self.step[1] * n

    def round_ms(self, rows: int, drafting: list[int]) -> float:
        return self.forward_ms(rows) + sum(map(self.step_ms, drafting))


MACHINES = {
    "bound by memory": Machine((10.0, 0.15), (0.8, 0.02)),
    "bound by rows": Machine((0.85, 0.4), (0.25, 0.07)),
}


def kept(law: Law, i: int, n: int, rng: np.random.Generator) -> int:
    return int(np.cumprod(rng.random(n) < law(i)).sum()) if n else 0


def fixed(machine: Machine, law: Law, n_sequences: int, n_drafts: int) -> float:
    """Tokens a millisecond with the same number of drafts in every round."""
    ms = machine.round_ms(n_sequences * (1 + n_drafts), [n_sequences] * n_drafts)
    tokens = sum(n_sequences * sum(law(i) ** d for d in range(n_drafts + 1)) for i in range(ROUNDS))
    return tokens / (ms * ROUNDS)


def best_fixed(machine: Machine, law: Law, n_sequences: int) -> float:
    most = min(MOST, ROW_LIMIT // n_sequences - 1)
    return max(fixed(machine, law, n_sequences, n) for n in range(most + 1))


def allocated(machine: Machine, law: Law, n_sequences: int, seed: int, timed: bool = True) -> float:
    """Tokens a millisecond with the drafts that prices and acceptance come to; rounds' times are noisy."""
    rng, prices = np.random.default_rng(seed), Prices()
    if timed:
        for width in PRICE_WIDTHS:
            prices.set_measured(width, machine.forward_ms(width) * float(rng.lognormal(0, 0.05)))
            prices.set_measured_draft_step(width, machine.step_ms(width) * float(rng.lognormal(0, 0.05)))
    all_, own = Acceptance.of_all(), [Acceptance() for _ in range(n_sequences)]
    tokens, total_ms = 0, 0.0
    for i in range(ROUNDS):
        candidates = [Candidate.of(a, all_, MOST, 0) for a in own]
        given = [n for n, _ in allocate(candidates, prices, ROW_LIMIT)]
        rows, drafting = n_sequences + sum(given), [sum(n > s for n in given) for s in range(max(given))]
        ms = machine.round_ms(rows, drafting)
        seen = ms * float(rng.lognormal(0, 0.05)) * (10 if rng.random() < 0.02 else 1)
        prices.observe_round(rows, drafting, seen)
        for a, n in zip(own, given, strict=True):
            accepted = kept(law, i, n, rng)
            tokens += 1 + accepted
            for statistics in (a, all_):
                statistics.observe(DraftSource.HEAD, n, accepted)
        total_ms += ms
    return tokens / total_ms


each_machine = pytest.mark.parametrize("machine", MACHINES)
each_number = pytest.mark.parametrize("n_sequences", [1, 4, 16])


@each_machine
@each_number
@pytest.mark.parametrize("law", ["always right", "70 %"])
def test_a_stationary_law_gets_97_percent_of_the_best_fixed_number(
    machine: str, law: str, n_sequences: int
) -> None:
    seeds = (1, 2, 3)
    found = float(np.mean([allocated(MACHINES[machine], LAWS[law], n_sequences, s) for s in seeds]))
    assert found >= 0.97 * best_fixed(MACHINES[machine], LAWS[law], n_sequences), f"seeds {seeds}"


@each_machine
@each_number
def test_drafts_that_are_always_wrong_cost_a_few_percent(machine: str, n_sequences: int) -> None:
    seed = 2
    found = allocated(MACHINES[machine], LAWS["always wrong"], n_sequences, seed)
    assert found >= 0.96 * fixed(MACHINES[machine], LAWS["always wrong"], n_sequences, 0), f"seed {seed}"


@each_machine
@each_number
def test_good_and_bad_stretches_get_no_less_than_the_best_fixed_number(
    machine: str, n_sequences: int
) -> None:
    seed = 3
    law = LAWS["good and bad stretches"]
    found = allocated(MACHINES[machine], law, n_sequences, seed)
    assert found >= 0.97 * best_fixed(MACHINES[machine], law, n_sequences), f"seed {seed}"


@each_number
def test_without_timing_rounds_teach_most_of_the_prices(n_sequences: int) -> None:
    seed, law = 4, LAWS["70 %"]
    for name, machine in MACHINES.items():
        found = allocated(machine, law, n_sequences, seed, timed=False)
        assert found >= 0.8 * best_fixed(machine, law, n_sequences), f"{name}, seed {seed}"


@each_machine
def test_a_sequence_that_is_always_wrong_does_not_cost_its_neighbours_their_drafts(machine: str) -> None:
    of = MACHINES[machine]
    prices, all_ = Prices(), Acceptance.of_all()
    for width in PRICE_WIDTHS:
        prices.set_measured(width, of.forward_ms(width))
        prices.set_measured_draft_step(width, of.step_ms(width))
    own, proposed = [Acceptance() for _ in range(4)], np.zeros(4)
    for _ in range(300):
        given = [n for n, _ in allocate([Candidate.of(a, all_, MOST, 0) for a in own], prices, ROW_LIMIT)]
        for k, (a, n) in enumerate(zip(own, given, strict=True)):
            for statistics in (a, all_):
                statistics.observe(DraftSource.HEAD, n, 0 if k == 0 else n)
        proposed += given
    assert proposed[0] < proposed[1:].min() / 20 and proposed[1:].min() > 600
