"""Figures come from quiet samples where there are any, and pairs compare like with like."""

from __future__ import annotations

import json

import pytest
from machine import GEMM, READ
from report import (
    MACHINE,
    Contender,
    Round,
    figures,
    limit_share,
    metrics_of,
    pairs_of,
    pooled,
    rate,
    ratio,
    table,
)
from samples import Sample

LIMIT = 0.05
DECODE, PROMPT = "decode @128", "prompt 512"
OURS = Contender("flashnext 4", 4, "MLX 4 bit", 700e6, 2e9)
THEIRS = Contender("llama.cpp 4", 4, "Q4_K_M", 800e6, 2e9)


def quiet(value: float) -> Sample:
    return Sample(value, value * 1.1, 0.01, 0.0, 0.0, 0)


def disturbed(value: float, estimate: float) -> Sample:
    return Sample(value, estimate, 0.5, 0.0, 0.3, 0)


def one(ours: list[Sample], theirs: list[Sample], metric: str = DECODE) -> Round:
    return {OURS.name: {metric: ours}, THEIRS.name: {metric: theirs}}


def test_median_is_of_the_quiet_samples() -> None:
    figure = rate([quiet(10), disturbed(1, 11), quiet(12), quiet(11)], LIMIT)
    assert figure is not None
    assert (figure.median, figure.low, figure.high, figure.n, figure.n_all) == (11, 10, 12, 3, 4)
    assert not figure.is_estimate


def test_estimates_stand_in_where_no_sample_was_quiet_and_say_so() -> None:
    figure = rate([disturbed(4, 9), disturbed(5, 11)], LIMIT)
    assert figure is not None
    assert (figure.median, figure.is_estimate) == (10, True)
    assert str(figure).startswith("~10 ")


def test_metric_without_samples_has_no_figure() -> None:
    assert rate([], LIMIT) is None


def test_pooling_keeps_the_order_of_the_rounds_and_skips_rounds_without_the_contender() -> None:
    rounds: list[Round] = [one([quiet(1), quiet(2)], []), {MACHINE: {}}, one([quiet(3)], [])]
    assert [s.value for s in pooled(rounds, OURS.name, DECODE)] == [1, 2, 3]


def test_ratio_is_of_medians_and_of_each_round() -> None:
    rounds = [one([quiet(10)], [quiet(5)]), one([quiet(30)], [quiet(10)]), one([quiet(20)], [quiet(20)])]
    compared = ratio(rounds, OURS.name, THEIRS.name, DECODE, LIMIT)
    assert compared is not None
    assert compared.of_medians == 2.0
    assert compared.pairs == (2.0, 3.0, 1.0)
    assert str(compared) == "2.00 | 2.00 (1.00-3.00, 3)"


def test_round_without_the_other_side_is_no_pair() -> None:
    rounds = [one([quiet(10)], [quiet(5)]), one([quiet(10)], [])]
    compared = ratio(rounds, OURS.name, THEIRS.name, DECODE, LIMIT)
    assert compared is not None
    assert compared.pairs == (2.0,)


def test_ratio_needs_both_sides() -> None:
    assert ratio([one([quiet(10)], [])], OURS.name, THEIRS.name, DECODE, LIMIT) is None


def test_pair_with_one_disturbed_side_compares_estimates_of_both() -> None:
    compared = ratio([one([quiet(10)], [disturbed(1, 22)])], OURS.name, THEIRS.name, DECODE, LIMIT)
    assert compared is not None
    assert list(compared.pairs) == [pytest.approx(0.5)]  # 11 over 22, not 10 over 22 nor 10 over 1


def test_decoding_is_measured_against_the_read_bandwidth() -> None:
    figure = rate([quiet(14)], LIMIT)
    machine = {READ: rate([quiet(20)], LIMIT), GEMM: rate([quiet(100)], LIMIT)}
    assert figure is not None
    assert limit_share(OURS, DECODE, figure, machine) == pytest.approx(14 * 0.7 / 20)


def test_prompts_are_measured_against_the_matrix_peak() -> None:
    figure = rate([quiet(30)], LIMIT)
    machine = {READ: rate([quiet(20)], LIMIT), GEMM: rate([quiet(100)], LIMIT)}
    assert figure is not None
    assert limit_share(OURS, PROMPT, figure, machine) == pytest.approx(30 * 2 / 100)


def test_no_limit_measured_gives_no_share() -> None:
    figure = rate([quiet(30)], LIMIT)
    assert figure is not None
    assert limit_share(OURS, PROMPT, figure, {}) is None


def test_pairs_are_of_the_same_bits() -> None:
    ours6, theirs6 = Contender("flashnext 6", 6, "", 1, 1), Contender("llama.cpp 6", 6, "", 1, 1)
    paired = pairs_of([OURS, THEIRS, ours6, theirs6])
    assert [(a.name, b.name) for a, b in paired] == [
        ("flashnext 4", "llama.cpp 4"),
        ("flashnext 6", "llama.cpp 6"),
    ]


def test_one_side_alone_has_no_pairs() -> None:
    assert pairs_of([OURS]) == []


def test_metrics_appear_in_the_order_they_were_measured() -> None:
    rounds = [
        {OURS.name: {DECODE: [quiet(1)], PROMPT: [quiet(1)]}},
        {OURS.name: {"decode @2048": [quiet(1)]}},
    ]
    assert metrics_of(rounds, OURS.name) == [DECODE, PROMPT, "decode @2048"]


def test_table_shows_bytes_rates_shares_and_ratios() -> None:
    rounds: list[Round] = [{**one([quiet(10)], [quiet(5)]), MACHINE: {READ: [quiet(20)], GEMM: [quiet(100)]}}]
    lines = list(table(rounds, [OURS, THEIRS], LIMIT))
    assert "read memory GB/s: 20 (20-20, 1 of 1)" in lines
    assert "| flashnext 4 | MLX 4 bit | 700 | decode @128 | 10 (10-10, 1 of 1) | 35% |" in lines
    assert "| llama.cpp 4 | Q4_K_M | 800 | decode @128 | 5 (5-5, 1 of 1) | 20% |" in lines
    assert "| flashnext 4 / llama.cpp 4 | decode @128 | 2.00 | 2.00 (2.00-2.00, 1) |" in lines


def test_table_of_one_side_has_no_ratios() -> None:
    lines = list(table([{OURS.name: {DECODE: [quiet(10)]}}], [OURS], LIMIT))
    assert any(line.startswith("| flashnext 4") for line in lines)
    assert not any("/ llama.cpp" in line for line in lines)


def test_figures_are_json_and_hold_what_the_table_shows() -> None:
    rounds: list[Round] = [{**one([quiet(10)], [quiet(5)]), MACHINE: {READ: [quiet(20)], GEMM: [quiet(100)]}}]
    found = json.loads(json.dumps(figures(rounds, [OURS, THEIRS], LIMIT)))
    assert found["flashnext 4"][DECODE]["limit_share"] == pytest.approx(0.35)
    assert found["ratios"]["flashnext 4 / llama.cpp 4"][DECODE] == {"of_medians": 2.0, "pairs": [2.0]}
    assert found[MACHINE][READ]["median"] == 20
