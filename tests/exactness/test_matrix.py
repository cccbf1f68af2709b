"""The exactness matrix: however a reply comes about, its tokens, its logits and its state are those of the
plain reference, bit for bit. Cells that cover all pairs run always; with FLASHNEXT_FULL=1 all of them, or
with FLASHNEXT_CELLS=k/n every n-th from the k-th on."""

from __future__ import annotations

import os
from itertools import combinations

import pytest
from support.cells import AXES, Cell, all_cells, covering_cells
from support.matrix_models import References
from support.played import play

FIRST, STEP = map(int, os.environ.get("FLASHNEXT_CELLS", "0/1").split("/"))
CELLS = all_cells()[FIRST::STEP] if os.environ.get("FLASHNEXT_FULL") else covering_cells()


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_replies_are_those_of_the_plain_reference(cell: Cell, references: References) -> None:
    play(cell, references[cell.model])


def test_the_covering_cells_are_few_and_hold_every_pair() -> None:
    cells = covering_cells()
    assert len(cells) <= 200 and len(set(cells)) == len(cells) and all(cell.makes_sense for cell in cells)

    def pairs(of: list[Cell]) -> set[object]:
        return {pair for cell in of for pair in combinations([(a, getattr(cell, a)) for a in AXES], 2)}

    assert pairs(cells) == pairs(all_cells())
    once = covering_cells(times=1)
    assert len(once) < 55 and pairs(once) == pairs(all_cells()) != pairs(once[:-1])
