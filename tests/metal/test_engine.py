"""The engine on the Metal kernels, on the metal-host device: golden replies, cells of the exactness matrix,
and with every access checked what passes and rounds are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.engine.load import load_model
from support.cells import AXES, Cell
from support.engine import DEVICES, METAL_HOST
from support.matrix_models import LAYERS
from support.played import Reference, Request, play, require_same
from support.setups import Setup
from support.states import Desk

TINY = Path(__file__).parents[1] / "tiny"
CASES: list[dict[str, Any]] = [
    case for case in map(json.loads, (TINY / "golden.jsonl").read_text().splitlines()) if not case["grid_thw"]
]
SHORT = sorted(CASES, key=lambda case: len(case["prompt_ids"]) + len(case["output_ids"]))
# Checked kernels take seconds a token, unchecked ones a tenth of that.
ORDERS = ("random", "reverse", *["random, unchecked"] * 6)

# More ids than a block of the sampler has, and more positions than the index selects.
SMALL = Setup("small, attention first", {**LAYERS, "num_hidden_layers": 3, "vocab_size": 1100})
LENGTHS = (40, 1, 70, 9)
CELLS = (
    Cell("random", "alone", "off", "lone", "undisturbed", "greedy"),
    Cell("random", "2", "copies", "lone", "preempted", "hot"),
    Cell("random", "4", "head", "shared", "undisturbed", "seeded"),
    Cell("random", "staggered", "both", "handed over", "undisturbed", "penalties"),
    Cell("random", "2", "head", "shared", "neighbours cancelled", "greedy"),
    Cell("random", "alone", "both", "lone", "undisturbed", "penalties", "from a mark"),
    Cell("random", "2", "off", "shared", "preempted", "penalties", "from bytes"),
    Cell("random", "2", "head", "handed over", "undisturbed", "penalties", "from a page of a running one"),
    Cell("random", "alone", "copies", "lone", "undisturbed", "penalties", "from spill"),
    Cell("random", "alone", "head", "lone", "preempted", "penalties", "after a restart"),
)

pytestmark = pytest.mark.skipif(
    METAL_HOST not in DEVICES, reason="needs a build with FLASHNEXT_METAL_HOST=ON (docs/metal.md)"
)


@pytest.mark.parametrize(
    ("case", "order"),
    list(zip(SHORT, ORDERS, strict=False)),
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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SMALL.write(tmp_path_factory.mktemp("metal") / "checkpoint")


def desk(checkpoint: Path, order: str) -> Desk:
    device = core.open_device(METAL_HOST, 0, order, shuffle_seed=2)
    loaded = load_model(checkpoint, device=device, context=320, sequences=6)
    config, rng = loaded.checkpoint.config, np.random.default_rng(3)
    assert LENGTHS[0] > config.index_budget
    prompts = [rng.integers(0, config.vocab_size, n, np.int32) for n in LENGTHS]
    return Desk(loaded, prompts)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return desk(checkpoint, "random, unchecked").reference


def test_the_cells_have_every_value_of_every_axis() -> None:
    assert all(cell.makes_sense for cell in CELLS)
    for axis, values in AXES.items():
        left_out = {"model": {v for v in values if v != "random"}, "together": {"8", "16"}}.get(axis, set())
        assert {getattr(cell, axis) for cell in CELLS} == set(values) - left_out, axis


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_replies_are_those_of_the_plain_reference(cell: Cell, reference: Reference) -> None:
    play(cell, reference)


@pytest.mark.parametrize("order", ["random", "reverse"])
def test_with_every_access_checked_a_reply_from_a_mark_is_the_same(
    order: str, checkpoint: Path, reference: Reference
) -> None:
    checked = desk(checkpoint, order)
    alone, beside = Request(0, "seeded", 1, 6, few=False), Request(3, "penalties", 2, 6, few=False)
    prompt, session, other = checked.reference.prompts[0], checked.open(), checked.open()
    marks = checked.read(session, prompt[:-1], 30, (17, 30, 33))
    require_same(checked.reply(session, alone, 2), reference.left(alone), "drafted by the lone driver")
    resumed = checked.resume(marks[33], prompt[:33])
    checked.begin({resumed: alone, other: beside}, 2)
    checked.run([resumed, other])
    require_same(checked.left(resumed), reference.left(alone), "from a mark, in shared rounds")
    require_same(checked.left(other), reference.left(beside), "beside it")
    # What a mark taps are the bytes of a session that read just so far.
    for n, snapshot in marks.items():
        session = checked.open()
        (so_far,) = checked.read(session, prompt[:n], 64, (n,)).values()
        assert checked.image(snapshot) == checked.image(so_far), f"mark {n}"
