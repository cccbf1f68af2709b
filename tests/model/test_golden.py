"""The trained tiny checkpoint gives the token ids that transformers gave (tests/tiny/golden.jsonl), text
cases."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext import _core as core
from support.engine import PATHS, Engine

TINY = Path(__file__).parents[1] / "tiny"
LINES = (TINY / "golden.jsonl").read_text().splitlines()
CASES: list[dict[str, Any]] = [case for case in map(json.loads, LINES) if case["grid_thw"] is None]
CONTEXT = 8192
LONG = 1024  # prompts beyond this run on the best instruction path only


@pytest.fixture(scope="module")
def engine_of() -> Callable[[str], Engine]:
    """The checkpoint on an instruction path, loaded once."""
    return cache(lambda path: Engine(TINY / "hf", path, "float32", context=CONTEXT, sequences=1))


def generate(engine: Engine, prompt: list[int], n_tokens: int, chunk: int = 512) -> list[int]:
    """Greedy reply of `n_tokens` by prompt chunks and one-row windows."""
    session, sampling = engine.session(), core.Sampling(temperature=0)
    tokens = np.array(prompt, np.int32)
    chunks = np.split(tokens, range(chunk, len(tokens), chunk))
    for part in chunks[:-1]:
        engine.runner.prompt(session, part, False, sampling)
    reply = [drawn.token for drawn in engine.runner.prompt(session, chunks[-1], True, sampling)]
    while len(reply) < n_tokens:
        reply += [drawn.token for drawn in engine.runner.round([session])[0]]
    session.close()
    return reply


def test_the_golden_file_has_the_cases_that_this_file_claims_to_run() -> None:
    lengths = [len(case["prompt_ids"]) for case in CASES]
    assert len(CASES) == 65
    assert sum(n > LONG for n in lengths) == 7 and sum(n > 3000 for n in lengths) == 4


@pytest.mark.parametrize(
    ("path", "case"),
    [(p, c) for p in PATHS for c in CASES if p == PATHS[0] or len(c["prompt_ids"]) <= LONG],
    ids=lambda x: x if isinstance(x, str) else x["id"],
)
def test_float32_replies_equal_those_of_transformers(
    engine_of: Callable[[str], Engine], path: str, case: dict[str, Any]
) -> None:
    assert generate(engine_of(path), case["prompt_ids"], len(case["output_ids"])) == case["output_ids"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", [CASES[0], CASES[20], CASES[40]], ids=lambda case: case["id"])
def test_the_first_logits_are_those_of_transformers(
    engine_of: Callable[[str], Engine], path: str, case: dict[str, Any]
) -> None:
    logits = engine_of(path).alone(np.array(case["prompt_ids"], np.int32))[-1]
    ids, values = zip(*case["first_top5"], strict=True)
    assert np.argsort(-logits, kind="stable")[:5].tolist() == list(ids)
    # Recorded to four decimals by a float32 run, whose own rounding a trained model hardly amplifies.
    assert np.abs(logits[list(ids)] - values).max() < 2e-4
