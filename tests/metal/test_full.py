"""All golden text cases and all cells of the exactness matrix on the Metal kernels.

It takes hours; collected with FLASHNEXT_FULL=1 alone, as `.ci/full` has it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.cells import Cell, all_cells
from support.metal_engine import CASES, desk, has_metal_host, reply_of, small_checkpoint
from support.played import Reference, play

FIRST, STEP = map(int, os.environ.get("FLASHNEXT_CELLS", "0/1").split("/"))
FIRST_CASE, STEP_CASE = map(int, os.environ.get("FLASHNEXT_CASES", "0/1").split("/"))
ORDER = "random, unchecked"

pytestmark = has_metal_host


@pytest.mark.parametrize("case", CASES[::-1][FIRST_CASE::STEP_CASE], ids=lambda case: case["id"])
def test_golden_replies(case: dict[str, Any]) -> None:
    # A case whose margin is below this may go either way: docs/model.md.
    assert case["min_margin"] > 0.01
    assert reply_of(case, ORDER) == case["output_ids"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    checkpoint: Path = small_checkpoint(tmp_path_factory.mktemp("metal"))
    return desk(checkpoint, ORDER, sequences=17).reference


@pytest.mark.parametrize("cell", [c for c in all_cells() if c.model == "random"][FIRST::STEP], ids=str)
def test_replies_are_those_of_the_plain_reference(cell: Cell, reference: Reference) -> None:
    play(cell, reference)
