"""The compiled reference sampler: bits against a Python twin, distributions against softmax, hostile
logits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from flashnext import _core as core
from support.reference import sampler as twin

F = np.float32
VOCAB = 300


def compiled(
    logits: np.ndarray, rules: twin.Rules, position: int = 0, n_valid: int | None = None, **seen: Any
) -> int:
    given = {field.name: getattr(rules, field.name) for field in dataclasses.fields(rules)}
    sampling = core.Sampling(**given)
    return core.testing.draw(logits.astype(np.float32), n_valid or len(logits), sampling, position, **seen)


def test_exp_equals_its_twin_and_is_accurate() -> None:
    rng = np.random.default_rng(1)
    for x in [F(0), F(-87), F(-87.5), F(-1e-30), *rng.uniform(-88, 0, 3000).astype(np.float32)]:
        found = F(core.testing.exact_exp(float(x)))
        assert found == twin.exp(x), x
        if x >= -87:
            assert abs(float(found) / np.exp(np.float64(x)) - 1) < 2.0**-22, x
    assert np.isnan(core.testing.exact_exp(float("nan")))


def test_log_equals_its_twin_and_is_accurate() -> None:
    rng = np.random.default_rng(2)
    close = 1 - np.arange(1, 200) * 2.0**-24
    for x in [
        F(1),
        F(0.70710677),
        F(0.7071068),
        *close.astype(F),
        *np.exp(rng.uniform(-80, 80, 3000)).astype(F),
    ]:
        found, exact = F(core.testing.exact_log(float(x))), np.log(np.float64(x))
        assert found == twin.log(x), x
        assert abs(float(found) - exact) < 2.0**-22 * max(1, abs(exact)), x


def test_noise_is_a_function_of_seed_position_and_id_alone() -> None:
    rng = np.random.default_rng(3)
    for _ in range(2000):
        seed, position, token = (int(rng.integers(0, n, dtype=np.uint64)) for n in (2**63, 2**40, 2**31))
        assert F(core.testing.gumbel(seed, position, token)) == twin.gumbel(seed, position, token)


def test_the_noise_law_never_changes() -> None:
    # Logged seeds must replay on every later version; values by the Python twin.
    known = {(0, 0, 0): -0.680758, (1, 2, 3): 1.3340108, (2**64 - 1, 10**6, 248319): 0.35469133}
    for (seed, position, token), value in known.items():
        assert F(core.testing.gumbel(seed, position, token)) == F(value)


def test_choice_zero_draws_with_the_seed_itself_and_the_others_differ() -> None:
    seeds = [core.testing.choice_seed(123, i) for i in range(50)]
    assert seeds[0] == 123 and len(set(seeds)) == 50


@pytest.mark.parametrize("seed", range(120))
def test_draws_equal_those_of_the_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab = int(rng.choice([7, VOCAB, 2500]))
    logits = (rng.standard_normal(vocab) * rng.choice([0.5, 3, 12])).astype(np.float32)
    if seed % 5 == 0:
        logits = np.round(logits)  # many ties
    if seed % 7 == 0:
        logits[rng.integers(0, vocab, vocab // 4)] = np.nan
    n_valid = vocab - int(rng.integers(0, 3))

    def sometimes(value: Any, other: Any) -> Any:
        return value if rng.random() < 0.5 else other

    rules = twin.Rules(
        temperature=sometimes(float(rng.uniform(0.2, 2)), 1.0),
        top_k=sometimes(int(rng.integers(1, 40)), 0),
        top_p=sometimes(float(rng.uniform(0.05, 1)), 1.0),
        min_p=sometimes(float(rng.uniform(0, 0.3)), 0.0),
        seed=int(rng.integers(0, 2**63)),
        presence=sometimes(float(rng.uniform(-1, 1)), 0.0),
        frequency=sometimes(float(rng.uniform(-1, 1)), 0.0),
        repetition=sometimes(float(rng.uniform(0.7, 1.5)), 1.0),
        bias=sometimes({int(i): float(rng.uniform(-3, 3)) for i in rng.integers(0, n_valid, 3)}, {}),
    )
    prompt, reply = (rng.integers(0, n_valid, 8).tolist() for _ in range(2))
    for position in range(4):
        expected = twin.draw(logits, n_valid, rules, position, prompt, reply)
        found = compiled(logits, rules, position, n_valid, prompt=prompt, reply=reply)
        assert found == expected, f"seed {seed}, position {position}, {rules}"


def test_draws_follow_the_distribution() -> None:
    logits = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 3.0])
    probability = np.exp(logits / 1.3) / np.exp(logits / 1.3).sum()
    n = 20000
    drawn = np.array([compiled(logits, twin.Rules(temperature=1.3, seed=11), at) for at in range(n)])
    seen = np.bincount(drawn, minlength=6)
    chi_square = ((seen - n * probability) ** 2 / (n * probability)).sum()
    assert chi_square < 30.9  # five degrees of freedom, exceeded by chance once in 100,000


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    logits, n = np.zeros(2), 20000
    by_position = np.array([compiled(logits, twin.Rules(seed=5), at) for at in range(n)])
    by_seed = np.array([compiled(logits, twin.Rules(seed=at), 5) for at in range(n)])
    for drawn in (by_position, by_seed):
        assert abs(drawn.mean() - 0.5) < 4.5 * 0.5 / np.sqrt(n)
        assert abs((drawn[1:] == drawn[:-1]).mean() - 0.5) < 4.5 * 0.5 / np.sqrt(n)


def test_a_token_that_was_drawn_is_drawn_from_any_smaller_set_that_holds_it() -> None:
    # What makes drafting free of charge: other candidates can be masked without changing the winner.
    rng = np.random.default_rng(8)
    for position in range(200):
        logits = rng.standard_normal(50)
        winner = compiled(logits, twin.Rules(seed=3), position)
        masked = np.where(rng.random(50) < 0.5, np.nan, logits)
        masked[winner] = logits[winner]
        assert compiled(masked, twin.Rules(seed=3), position) == winner


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_hostile_logits_give_a_valid_id(temperature: float) -> None:
    rules = twin.Rules(temperature=temperature, top_p=0.9, min_p=0.1)
    nan, inf = np.nan, np.inf
    assert compiled(np.full(9, nan), rules) == 0
    assert compiled(np.array([nan, nan, 1.0, nan]), rules) == 2
    assert compiled(np.array([-inf, -inf, -5.0, -inf]), rules) == 2
    assert compiled(np.array([1.0, inf, 2.0]), rules) == 1
    assert compiled(np.full(5, -inf), rules) in range(5)
    assert compiled(np.array([1.0, 2.0, 99.0]), rules, n_valid=2) in (0, 1)


@pytest.mark.parametrize("temperature", (1e-3, 1e-30, 1e-38, 1e-45))
def test_small_temperatures_take_the_best(temperature: float) -> None:
    logits = np.array([0.0, 2.0, -4.0, 1.0, 0.5, 10.0, 4.0, 9.0], np.float32)
    drawn = {compiled(logits, twin.Rules(temperature=temperature, seed=3), at) for at in range(50)}
    assert drawn == {5}


def test_temperature_zero_takes_the_lower_id_of_equals() -> None:
    assert compiled(np.array([1.0, 5.0, 5.0, 5.0]), twin.Rules(temperature=0)) == 1


NAN, INFINITY = float("nan"), float("inf")
BAD: tuple[dict[str, Any], ...] = (
    *({"temperature": x} for x in (-1.0, NAN, INFINITY)),
    {"top_k": -1},
    *({"top_p": x} for x in (0.0, 1.5, NAN)),
    *({"min_p": x} for x in (-0.1, 1.1)),
    {"presence": INFINITY},
    {"frequency": NAN},
    *({"repetition": x} for x in (0.0, INFINITY)),
    *({"bias": x} for x in ({999999: 1.0}, {-1: 1.0}, {3: NAN})),
)


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_values_out_of_range_are_refused_by_name(bad: dict[str, Any]) -> None:
    (name,) = bad
    names = {
        "presence": "presence_penalty",
        "frequency": "frequency_penalty",
        "repetition": "repetition_penalty",
    }
    with pytest.raises(ValueError, match=names.get(name, "logit_bias" if name == "bias" else name)):
        core.Sampling(**bad).check(VOCAB)


def test_logprobs_are_those_of_the_unmodified_distribution() -> None:
    rng = np.random.default_rng(4)
    logits = (rng.standard_normal(3000) * 4).astype(np.float32)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    value, top = core.testing.logprobs(logits, 2990, 17, 5)
    exact -= np.log(np.exp(exact[:2990]).sum())
    assert value == pytest.approx(exact[17], abs=2e-5)
    order = sorted(range(2990), key=lambda i: (-logits[i], i))[:5]
    assert [i for i, _ in top] == order
    assert [v for _, v in top] == pytest.approx(exact[order].tolist(), abs=2e-5)
