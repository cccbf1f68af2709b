"""Rotary frequencies against those of transformers, recorded in tests/data/rope_transformers.json.gz."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.checkpoint import ModelConfig, parse_config, rope_tables
from flashnext.errors import InvalidArgument
from support.random_checkpoint import random_config

CASES: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "data" / "rope_transformers.json.gz").read_bytes())
)["cases"]
# A vectorized float32 power, which the oracle uses, may miss the correctly rounded one by a unit in the last
# place.
POWER_ULPS = 1


def read(text_config: dict[str, Any]) -> ModelConfig:
    raw = random_config({"indexer_head_dim": 256})
    text = raw["text_config"]
    del text["rope_parameters"]
    text |= json.loads(json.dumps(text_config))
    rope = text.get("rope_scaling") or text["rope_parameters"]
    half = (
        int(text["head_dim"] * rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 1.0))) // 2
    )
    rope["mrope_section"] = [len(range(axis, half, 3)) for axis in range(3)]
    return parse_config(raw)


@pytest.mark.parametrize("name", CASES)
def test_frequencies_and_attention_factor_equal_those_of_transformers(name: str) -> None:
    case = CASES[name]
    frequencies, factor = rope_tables(read(case["text_config"]), 1)
    assert frequencies.dtype == np.float32
    distance = np.abs(frequencies.view(np.int32).astype(np.int64) - np.array(case["bits"]))
    assert distance.max() <= (POWER_ULPS if name.startswith("sweep") else 0)
    assert factor == case["attention_factor"]


@pytest.mark.parametrize(("plain", "yarn"), [("real", "real yarn"), ("tiny", "tiny yarn")])
def test_a_context_beyond_the_window_gets_static_yarn_and_no_other_does(plain: str, yarn: str) -> None:
    config = read(CASES[plain]["text_config"])
    window = config.max_position
    for context, name in ((1, plain), (window, plain), (window + 1, yarn), (4 * window, yarn)):
        frequencies, factor = rope_tables(config, context)
        assert frequencies.view(np.int32).tolist() == CASES[name]["bits"], context
        assert factor == CASES[name]["attention_factor"]


@pytest.mark.parametrize(("name", "largest"), [("tiny", 32768), ("tiny yarn", 32768), ("factor 2", 524288)])
def test_a_context_past_the_factor_is_refused_with_the_numbers(name: str, largest: int) -> None:
    config = read(CASES[name]["text_config"])
    rope_tables(config, largest)
    for context in (largest + 1, 0, -5):
        with pytest.raises(InvalidArgument, match=f"context is {context}, .* from 1 to {largest} tokens"):
            rope_tables(config, context)


def test_default_context_is_the_stretched_window_where_the_config_asks_for_yarn() -> None:
    assert read(CASES["real"]["text_config"]).default_context == 262144
    assert read(CASES["real yarn"]["text_config"]).default_context == 1048576
    assert read(CASES["real yarn, window set"]["text_config"]).default_context == 1010000


def test_plain_frequencies_are_powers_of_theta_rounded_twice() -> None:
    frequencies, factor = rope_tables(read(CASES["real"]["text_config"]), 100)
    for j, frequency in enumerate(frequencies):
        exact = math.exp(-2 * j / 64 * math.log(1e7))
        assert abs(frequency - exact) <= 2 * 2**-24 * exact  # the power's rounding and the quotient's
    assert factor == 1.0
