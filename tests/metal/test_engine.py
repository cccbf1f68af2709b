"""The engine on the Metal kernels: golden replies on the metal-host device, in several orders of threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.engine.load import load_model
from support.engine import DEVICES, METAL_HOST

TINY = Path(__file__).parents[1] / "tiny"
CASES: list[dict[str, Any]] = [
    case for case in map(json.loads, (TINY / "golden.jsonl").read_text().splitlines()) if not case["grid_thw"]
]
SHORT = sorted(CASES, key=lambda case: len(case["prompt_ids"]) + len(case["output_ids"]))

pytestmark = pytest.mark.skipif(
    METAL_HOST not in DEVICES, reason="needs a build with -Ccmake.define.FLASHNEXT_METAL_HOST=ON"
)


@pytest.mark.parametrize(
    ("case", "order"),
    [(SHORT[0], "random"), (SHORT[1], "reverse")],
    ids=lambda x: x if isinstance(x, str) else x["id"],
)
def test_float32_replies_equal_those_of_transformers(case: dict[str, Any], order: str) -> None:
    device = core.open_device(METAL_HOST, 0, order, shuffle_seed=1)
    loaded = load_model(TINY / "hf", device=device, dtype="float32", context=512, max_window=4, sequences=1)
    runner, session = core.Runner(loaded.model), core.Session(loaded.model, loaded.pool)
    prompt, sampling = np.array(case["prompt_ids"], np.int32), core.Sampling(temperature=0)
    reply = [drawn.token for drawn in runner.prompt(session, prompt, True, sampling)]
    while len(reply) < len(case["output_ids"]):
        reply += [drawn.token for drawn in runner.round([session])[0]]
    assert reply == case["output_ids"]
