"""The engine on the Metal kernels, on the metal-host device: golden replies, cells of the exactness matrix,
and with every access checked what passes and rounds are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cells import AXES, Cell
from support.metal_engine import CASES, desk, has_metal_host, reply_of, small_checkpoint
from support.played import Reference, Request, play, require_same
from support.seen import GOLDEN

# Checked kernels take seconds a token, unchecked ones a tenth of that.
ORDERS = ("random", "reverse", *["random, unchecked"] * 6)

CELLS = (
    Cell("random", "alone", "off", "lone", "undisturbed", "greedy"),
    Cell("random", "2", "copies", "lone", "preempted", "hot"),
    Cell("random", "4", "head", "shared", "undisturbed", "seeded"),
    Cell("random", "staggered", "both", "handed over", "undisturbed", "penalties"),
    Cell("random", "2", "head", "shared", "neighbours cancelled", "greedy"),
    Cell("random", "8", "both", "shared", "preempted", "hot"),
    Cell("random", "alone", "both", "lone", "preempted", "seeded"),
    Cell("random", "alone", "both", "lone", "undisturbed", "penalties", "from a mark"),
    Cell("random", "2", "off", "shared", "preempted", "penalties", "from bytes"),
    Cell("random", "2", "head", "handed over", "undisturbed", "penalties", "from a page of a running one"),
    Cell("random", "alone", "copies", "lone", "undisturbed", "penalties", "from spill"),
    Cell("random", "alone", "head", "lone", "preempted", "penalties", "after a restart"),
)

pytestmark = has_metal_host


@pytest.mark.parametrize(
    ("case", "order"),
    list(zip(CASES, ORDERS, strict=False)),
    ids=lambda x: x if isinstance(x, str) else x["id"],
)
def test_float32_replies_equal_those_of_transformers(case: dict[str, Any], order: str) -> None:
    assert reply_of(case, order) == case["output_ids"]


def test_a_float32_reply_about_an_image_equals_that_of_transformers() -> None:
    assert reply_of(GOLDEN["image-5"], "random, unchecked") == GOLDEN["image-5"]["output_ids"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("metal"))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return desk(checkpoint, "random, unchecked", sequences=9).reference


def test_the_cells_have_every_value_of_every_axis() -> None:
    assert all(cell.makes_sense for cell in CELLS)
    for axis, values in AXES.items():
        # The other models and 16 sequences, which take minutes, are those of the full run.
        left_out = {"model": {v for v in values if v != "random"}, "together": {"16"}}.get(axis, set())
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
    prompt, session, other = checked.reference.prompts[0], checked.open(0), checked.open()
    marks = checked.read(session, prompt[:-1], 30, (17, 30, 33), 0)
    require_same(checked.reply(session, alone, 2), reference.left(alone), "drafted by the lone driver")
    resumed = checked.resume(marks[33], prompt[:33], 0)
    checked.begin({resumed: alone, other: beside}, 2)
    checked.run([resumed, other])
    require_same(checked.left(resumed), reference.left(alone), "from a mark, in shared rounds")
    require_same(checked.left(other), reference.left(beside), "beside it")
    # What a mark taps are the bytes of a session that read just so far.
    for n, snapshot in marks.items():
        session = checked.open(0)
        (so_far,) = checked.read(session, prompt[:n], 64, (n,), 0).values()
        assert checked.image(snapshot) == checked.image(so_far), f"mark {n}"
