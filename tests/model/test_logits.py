"""The engine's logits against the float64 reference; the bounds and their reasons are in `support.bounds`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.bounds import bfloat16_bound, float32_bound, row_errors
from support.engine import PATHS, Engine, first_difference, row_hashes
from support.setups import SETUPS, Oracle, Setup

CHUNKS = (1, 7, 64, 512)
WINDOWS = (1, 2, 3, 8, 31, 64)
# In bfloat16 one setup of each kind is enough: what differs from float32 is the rounding of stores alone.
KINDS = (
    "three linear layers and one attention layer",
    "eight layers, two n-gram layers",
    "heads of the real model",
    "silu gate",
    "twelve heads on one key",
    "images, three rotary axes",
    "4 bits in groups of 64",
    "6 bits in groups of 32",
    "yarn",
)
BFLOAT16 = [setup for setup in SETUPS if setup.name in KINDS]
OracleOf = Callable[[Setup], Oracle]

each_path = pytest.mark.parametrize("path", PATHS)


@each_path
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_float32_logits_are_within_the_bound_for_every_chunk_and_window(
    oracle_of: OracleOf, setup: Setup, path: str
) -> None:
    oracle = oracle_of(setup)
    bound, tokens = float32_bound(oracle), oracle.tokens
    engine = Engine(oracle.path, path)
    expected: list[str] | None = None
    for chunk in CHUNKS:
        logits = engine.alone(tokens, chunk, oracle.frame)
        error = row_errors(logits, oracle.logits)
        assert error.max() < bound.largest, f"{setup}, chunk {chunk}: row {error.argmax()}"
        assert np.median(error) < bound.median_row, f"{setup}, chunk {chunk}"
        expected = expected or row_hashes(logits)
        assert first_difference(expected, row_hashes(logits)) is None, f"{setup}, chunk {chunk}"
    for width in WINDOWS:
        session, rows = engine.session(oracle.frame), []
        for at in range(0, len(tokens), width):
            part = tokens[at : at + width]
            rows.append(engine.window(session, part, media=engine.shown(oracle.frame, at, len(part))))
        logits = np.concatenate(rows)
        session.close()
        error = row_errors(logits, oracle.logits)
        assert error.max() < bound.largest, f"{setup}, window {width}: row {error.argmax()}"


@each_path
@pytest.mark.parametrize("setup", BFLOAT16, ids=str)
def test_bfloat16_logits_are_within_the_bound_where_nothing_is_decided(
    oracle_of: OracleOf, setup: Setup, path: str
) -> None:
    oracle = oracle_of(setup.without_decisions())
    bound = bfloat16_bound(oracle)
    error = row_errors(
        Engine(oracle.path, path, "bfloat16").alone(oracle.tokens, frame=oracle.frame), oracle.logits
    )
    assert error.max() < bound.largest, f"{setup}: row {error.argmax()}"
    assert np.median(error) < bound.median_row, str(setup)


@each_path
@pytest.mark.parametrize("setup", BFLOAT16, ids=str)
def test_bfloat16_logits_are_within_the_bound_for_the_median_row_where_near_ties_flip(
    oracle_of: OracleOf, setup: Setup, path: str
) -> None:
    oracle = oracle_of(setup)
    error = row_errors(
        Engine(oracle.path, path, "bfloat16").alone(oracle.tokens, frame=oracle.frame), oracle.logits
    )
    assert np.isfinite(error).all()
    assert np.median(error) < bfloat16_bound(oracle).median_row, str(setup)
