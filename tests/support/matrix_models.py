"""The models of the exactness matrix, each with its prompts and its plain reference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flashnext.engine.engine import BUNDLED
from flashnext.engine.frame import Frame
from flashnext.engine.load import load_model

from support.played import Reference
from support.seen import drawn, noise
from support.setups import REAL_HEADS, Setup

TINY = Path(__file__).parents[1] / "tiny"
# Beyond the index budget (256 positions of the bundled checkpoint, 32 of the random one) and below it.
PROMPTS = ("count-0", "talk-1", "needle-0", "code-1", "story-1", "dialog-0", "tool_call-0", "json-1")
RANDOM_LENGTHS = (1, 20, 131, 33, 64, 150, 7, 48)
# Of their numbers, where images begin and how many patches they are high and wide: over the ends of pages and
# pooled blocks, at the first row, next to each other.
SHOWN: dict[str, dict[int, tuple[tuple[int, int, int], ...]]] = {
    "bundled": {1: ((4, 4, 6),), 5: ((30, 12, 10), (60, 2, 8))},
    "random": {3: ((1, 6, 8), (13, 2, 14)), 4: ((0, 14, 16),), 7: ((40, 4, 4),)},
}
# Attention stands first too, so that its rows reach the states behind them; the draft head is almost always
# wrong.
LAYERS = {"layer_types": ["full_attention", "linear_attention", "full_attention"]}
RANDOM = Setup("heads of the real model, attention first", {**REAL_HEADS, **LAYERS})


def make_reference(checkpoint: str, folder: Path, reversed_prompts: bool = False) -> Reference:
    """Load a model and make its reference.

    Args:
        checkpoint: "bundled" or "random".
        folder: Where the random checkpoint is, or is written.
        reversed_prompts: Whether prompt rows sum in another order than window rows.
    """
    path = BUNDLED
    if checkpoint == "random":
        path = folder
        if not path.exists():
            RANDOM.write(path)
    order = "reversed" if reversed_prompts else "as windows"
    # In float32 another order of a sum shows in every row, in bfloat16 in few.
    dtype = "float32" if checkpoint == "random" and reversed_prompts else "bfloat16"
    loaded = load_model(path, device="cpu", dtype=dtype, context=1024, sequences=17, prompt_order=order)
    assert loaded.device.limits.prompt_equals_window != reversed_prompts
    if checkpoint == "random":
        rng = np.random.default_rng(1)
        vocab = loaded.checkpoint.config.vocab_size
        prompts = [rng.integers(0, vocab, n, np.int32) for n in RANDOM_LENGTHS]
    else:
        cases = map(json.loads, (TINY / "golden.jsonl").read_text().splitlines())
        by_id = {case["id"]: case["prompt_ids"] for case in cases}
        prompts = [np.array(by_id[name], np.int32) for name in PROMPTS]
    frames: list[Frame | None] = [None] * len(prompts)
    config = loaded.checkpoint.config
    for i, images in SHOWN[checkpoint].items():
        media = [(start, noise(100 * i + start, (1, h, w))) for start, h, w in images]
        prompts[i], frames[i] = drawn(prompts[i], media, config.image_token or 0, config.hidden_size)
    budget = config.index_budget
    assert min(map(len, prompts)) < budget < max(map(len, prompts))
    return Reference(loaded, prompts, frames)


class References(dict[str, Reference]):
    """Of each model, by its name in `cells.AXES`; made when it is asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, model: str) -> Reference:
        made = make_reference(model.split(",")[0], self._folder / "checkpoint", "reversed" in model)
        self[model] = made
        return made
