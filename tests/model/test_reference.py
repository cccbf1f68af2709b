"""The numpy reference against recorded values of transformers, against itself, and against hand-made
facts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from flashnext.checkpoint import YarnConfig, parse_config
from support.random_checkpoint import random_config
from support.reference.margins import Margins, router_margin, selection_margin
from support.reference.media import frame_timestamps, patchify, rope_index, sample_frames, smart_resize_image
from support.reference.ngram import ngram_rows
from support.reference.quant import affine_codes, affine_pack, affine_unpack
from support.reference.rope import Rope, rotate, yarn_frequencies
from support.reference_cases import CASES, Case, reference_results, text_model, tolerance

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "reference_transformers.json").read_text())[
    "cases"
]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_reference_equals_the_recorded_values_of_transformers(case: Case) -> None:
    weights = case.weights()
    results, _ = reference_results(case, text_model(case, weights), weights)
    for name, recorded in RECORDED[case.name].items():
        got = results[name][recorded["rows"], recorded["columns"]]
        assert np.abs(got - recorded["values"]).max() < tolerance(case), name


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_any_cut_into_chunks_gives_the_same_rows(case: Case) -> None:
    given = case.inputs()
    model = text_model(case, case.weights())
    whole = model.forward(given.tokens, model.new_state(), given.positions)
    state = model.new_state()
    at, hidden = 0, []
    for n in (1, 2, 3, 5, 7, 1, 11, len(given.tokens)):
        rows = slice(at, at + n)
        hidden.append(model.forward(given.tokens[rows], state, given.positions[:, rows]).hidden)
        at += n
    assert np.abs(np.concatenate(hidden) - whole.hidden).max() < 1e-12


def test_a_float32_reference_stays_within_condition_of_the_float64_one() -> None:
    case = CASES["two n-gram layers"]
    weights, given, margins = case.weights(), case.inputs(), Margins()
    wide, narrow = text_model(case, weights), text_model(case, weights, np.float32)
    hidden = wide.forward(given.tokens, wide.new_state(), margins=margins).hidden
    got = narrow.forward(given.tokens, narrow.new_state()).hidden
    assert got.dtype == np.float32
    assert min(margins.smallest) > 1e-5, "the case must hold no near-tie for float32"
    assert 0 < np.abs(got - hidden).max() < 1e-4


def test_an_ngram_lookback_stops_at_the_segment_token() -> None:
    config = parse_config(random_config())
    eos = config.segment_token
    rows = ngram_rows(config, 0, [5, eos, 6, 8, 9], [eos, eos])
    (m0, m1, m2), sizes, offsets = (
        config.ngram_multipliers[0], config.ngram_sizes[0], config.ngram_offsets[0],
    )  # fmt: skip

    def row(b0: int, b1: int, b2: int) -> list[int]:
        pair = (b0 * m0) ^ (b1 * m1)
        return [
            m % s + o for m, s, o in zip([pair] * 2 + [pair ^ (b2 * m2)] * 2, sizes, offsets, strict=True)
        ]

    seen = [(5, eos, eos), (eos, 5, eos), (6, eos, eos), (8, 6, eos), (9, 8, 6)]
    assert rows.tolist() == [row(*tokens) for tokens in seen]


def test_rotation_turns_pairs_by_position_times_frequency_on_their_own_axis() -> None:
    rope = Rope(np.array([1.0, 0.5, 0.25, 0.125]), (2, 1, 1))
    assert rope.axes.tolist() == [0, 1, 2, 0]
    cos, sin = rope.tables(np.array([[3], [4], [8]]), np.float64)
    x = np.array([1.0, 1, 1, 1, 0, 0, 0, 0, 7])
    assert np.allclose(rotate(x, cos[0], sin[0])[:4], np.cos([3, 2, 2, 0.375]))
    assert np.allclose(rotate(x, cos[0], sin[0])[4:], [*np.sin([3, 2, 2, 0.375]), 7])


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones() -> None:
    inv_freq, factor = yarn_frequencies(1e7, 64, YarnConfig(factor=4.0, original_max_position=262144))
    plain = 1e7 ** (-np.arange(0, 64, 2) / 64)
    assert inv_freq[0] == plain[0] and np.isclose(inv_freq[-1], plain[-1] / 4)
    assert factor == pytest.approx(0.1 * np.log(4) + 1)


def test_margins_measure_what_would_have_to_change() -> None:
    assert router_margin(np.array([[3.0, 1, 2.5, 0]]), 2)[0] == 1.5
    assert router_margin(np.array([[3.0, 1]]), 2)[0] == np.inf
    dots = np.array([[4.0, 1, 3, 0.5]])
    assert selection_margin(dots, 0.5, 2) == 1.0
    assert selection_margin(dots, 0.5, 4) == np.inf
    zeros = np.array([[4.0, -1, -3, -0.5]])
    assert selection_margin(zeros, 1.0, 1) == 4.0  # the positive one would have to fall to 0
    assert (
        selection_margin(zeros, 1.0, 2) == 0.5
    )  # block 1 is kept by its number; block 3 would have to rise above 0


@pytest.mark.parametrize("bits", (2, 3, 4, 5, 6, 8))
def test_affine_codes_survive_packing(bits: int) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (3, 64))
    words = affine_pack(codes, bits)
    assert words.shape == (3, 64 * bits // 32)
    assert (affine_codes(words, bits) == codes).all()
    scales, biases = rng.standard_normal((2, 3, 2))
    value = affine_unpack(words, scales, biases, bits, 32)
    assert value[2, 40] == codes[2, 40] * scales[2, 1] + biases[2, 1]


def test_media_rules_give_the_documented_numbers() -> None:
    assert smart_resize_image(1, 1) == (256, 256)
    assert smart_resize_image(48, 80) == (224, 352)  # below the pixel budget: scaled up, sides rounded up
    assert sample_frames(100, 25.0).tolist() == [0, 14, 28, 42, 57, 71, 85, 99]
    assert frame_timestamps([0, 14, 28], 25.0) == pytest.approx([0.28, 1.12])
    patches, grid = patchify(np.arange(3 * 32 * 32, dtype=np.float64).reshape(1, 3, 32, 32))
    assert grid == (1, 2, 2) and patches.shape == (4, 1536)
    assert (
        patches[1, 0] == 16 and patches[2, 0] == 16 * 32 and patches[0, 256] == 0
    )  # a second frame repeats the first
    positions, delta = rope_index([0, 1, 1, 0], [(1, 2, 4)])
    assert positions.tolist() == [[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]] and delta == 0
