"""Settings of a request: ranges, and what the checkpoint's authors recommend."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from flashnext.engine.sampling import Defaults, Sampling
from flashnext.errors import CheckpointError
from flashnext.text.messages import InvalidField

NAN, INF = float("nan"), float("inf")


FLAGS = [field.name for field in fields(Sampling) if isinstance(field.default, bool)]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, 100.5, NAN, INF, "1", True]),
        ("top_p", [0, -1, 1.01, NAN, "1"]),
        ("min_p", [-0.1, 1.01, NAN]),
        ("top_k", [-2, 1.5, 2**40, "5", True]),
        ("presence_penalty", [NAN, INF, 101]),
        ("frequency_penalty", [-INF, -101]),
        ("repetition_penalty", [0, -1, NAN]),
        ("seed", [2**64, -(2**63) - 1, 0.5, "7"]),
        ("max_tokens", [0, -1, 1.0, True]),
        ("logprobs", [-1, 21, True]),
        ("stop", ["a", ["a"] * 17]),
        ("priority", ["high", "", None, ["normal"]]),
        *((name, ["no", "", 0, 1, None]) for name in FLAGS),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidField) as caught:
            Sampling(**{field: value})
        assert caught.value.field == field, value


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop": ["x" * 4097]}, "stop[0]"),
        ({"logit_bias": {5: NAN}}, "logit_bias.5"),
        ({"logit_bias": {5: 101}}, "logit_bias.5"),
    ],
)
def test_an_item_out_of_its_range_is_refused_by_its_place(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        Sampling(**settings)
    assert caught.value.field == field


def test_edges_of_the_ranges_are_allowed() -> None:
    Sampling(
        temperature=0, top_p=1, min_p=0, top_k=-1, seed=2**64 - 1, max_tokens=1, logprobs=20, stop=["a"] * 16
    )
    Sampling(temperature=100, top_p=1e-9, min_p=1, top_k=0, seed=-(2**63), logprobs=0)


@pytest.mark.parametrize(
    ("config", "defaults"),
    [
        (None, Defaults(1.0, 0, 1.0, 0.0)),
        ({}, Defaults(1.0, 0, 1.0, 0.0)),
        ({"temperature": 0.6, "top_k": 20, "top_p": 0.95}, Defaults(0.6, 20, 0.95, 0.0)),
        ({"do_sample": False, "temperature": 0.6}, Defaults(0.0, 0, 1.0, 0.0)),
    ],
)
def test_defaults_are_those_of_generation_config(config: Any, defaults: Defaults, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert Defaults.from_folder(tmp_path) == defaults


def test_a_recommendation_out_of_range_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": -3}')
    with pytest.raises(
        CheckpointError, match=r"generation_config\.json: temperature must be a number from 0 to 100"
    ):
        Defaults.from_folder(tmp_path)
