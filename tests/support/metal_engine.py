"""The engine on the Metal kernels, for the tests that run always and for those of the full run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.engine.load import load_model

from support.engine import DEVICES, METAL_HOST
from support.matrix_models import LAYERS
from support.seen import drawn, golden, noise
from support.setups import Setup
from support.states import Desk

TINY = Path(__file__).parents[1] / "tiny"
CASES: list[dict[str, Any]] = sorted(
    (
        case
        for case in map(json.loads, (TINY / "golden.jsonl").read_text().splitlines())
        if not case["grid_thw"]
    ),
    key=lambda case: len(case["prompt_ids"]) + len(case["output_ids"]),
)
"""The golden text cases, the shortest first."""
# More ids than a block of the sampler has, and more positions than the index selects.
SMALL = Setup("small, attention first", {**LAYERS, "num_hidden_layers": 3, "vocab_size": 1100})
LENGTHS = (40, 1, 70, 9)
"""Tokens of the prompts of a desk."""

has_metal_host = pytest.mark.skipif(
    METAL_HOST not in DEVICES, reason="needs a build with FLASHNEXT_METAL_HOST=ON (docs/metal.md)"
)


def reply_of(case: dict[str, Any], order: str, kind: str = METAL_HOST) -> list[int]:
    """The greedy reply to a golden case, in float32; the order is the path of a device of that kind."""
    device = core.open_device(kind, 0, order, shuffle_seed=1)
    n = len(case["prompt_ids"]) + len(case["output_ids"])
    loaded = load_model(
        TINY / "hf", device=device, dtype="float32", context=max(512, n), max_window=4, sequences=1
    )
    runner, session = core.Runner(loaded.model), core.Session(loaded.model, loaded.pool)
    prompt, sampling, media = np.array(case["prompt_ids"], np.int32), core.Sampling(temperature=0), []
    if case["grid_thw"] is not None:
        prompt, frame = golden(case)
        session.set_frame(frame.axes)
        for first, one, row, count in frame.within(0, len(prompt)):
            media.append((first, core.Features(loaded.model, frame.see(one)), row, count))
    reply: list[int] = [drawn.token for drawn in runner.prompt(session, prompt, True, sampling, 0, media)]
    while len(reply) < len(case["output_ids"]):
        reply += [drawn.token for drawn in runner.round([session])[0]]
    return reply


def small_checkpoint(folder: Path) -> Path:
    """A small random checkpoint in a folder that there is not yet in this one."""
    return SMALL.write(folder / "checkpoint")


def desk(checkpoint: Path, order: str, sequences: int = 6, kind: str = METAL_HOST) -> Desk:
    """The small checkpoint with room for so many sequences, and prompts of LENGTHS; one shows images."""
    device = core.open_device(kind, 0, order, shuffle_seed=2)
    loaded = load_model(checkpoint, device=device, context=320, sequences=sequences)
    config, rng = loaded.checkpoint.config, np.random.default_rng(3)
    assert LENGTHS[0] > config.index_budget
    prompts = [rng.integers(0, config.vocab_size, n, np.int32) for n in LENGTHS]
    images = [(5, noise(1, (1, 4, 6))), (15, noise(2, (1, 2, 8)))]
    prompts[0], frame = drawn(prompts[0], images, 7, config.hidden_size)
    return Desk(loaded, prompts, [frame, None, None, None])
