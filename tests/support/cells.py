"""Cells of the exactness matrix: the axes, what is left out and why, and subsets that cover all pairs."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, product

AXES: Mapping[str, Sequence[str]] = {
    "model": ("bundled", "random", "bundled, prompts reversed", "random, prompts reversed"),
    "together": ("alone", "2", "4", "8", "16", "staggered"),
    "drafts": ("off", "head", "copies", "both"),
    "driving": ("lone", "shared", "handed over"),
    "disturbance": ("undisturbed", "preempted", "neighbours cancelled"),
    "sampling": ("greedy", "seeded", "penalties", "hot"),
    "start": (
        "cold",
        "from a mark",
        "from bytes",
        "from a page of a running one",
        "from spill",
        "after a restart",
    ),
}


@dataclass(frozen=True)
class Cell:
    """One way to get replies.

    Attributes:
        model: The checkpoint, and whether the device sums prompt rows in another order than window rows.
        together: Sequences that are open at once; staggered ones come while the others run.
        drafts: Where drafts come from.
        driving: "lone": the lone driver, which several sequences get in turns. "shared": one round in flight,
            over all of them. "handed over": from the lone driver to shared rounds when others come, and
            back while those wait.
        disturbance: What happens to one of them, or to its neighbours, in the middle of the replies.
        sampling: Of the first sequence; the others have the others in turn.
        start: "cold": sequences read all of their prompts. Else they go on from a snapshot that another one
            left at a mark: "from a mark" of one that is gone, "from bytes" to which it was exported, "from a
            page of a running one" which goes on too and writes on in that page, "from spill": a directory has
            it in files, "after a restart" those that another process left.
    """

    model: str
    together: str
    drafts: str
    driving: str
    disturbance: str
    sampling: str
    start: str = "cold"

    def __str__(self) -> str:
        values = (getattr(self, f.name) for f in fields(self))
        return "; ".join(value for value in values if value != "cold")

    @property
    def n(self) -> int:
        """Sequences."""
        return {"alone": 1, "staggered": 5}.get(self.together) or int(self.together)

    @property
    def makes_sense(self) -> bool:
        """Whether there is such a cell.

        Rounds are shared with somebody, and so are handoffs and cancels. Who goes on from a snapshot draws
        with penalties first, for which the tokens of the prompt count: all other samplings would take thrice
        the time and ask the same.
        """
        if self.start != "cold" and self.sampling != "penalties":
            return False
        return self.n > 1 or (self.driving == "lone" and self.disturbance != "neighbours cancelled")

    @property
    def seed(self) -> int:
        """Of what the axes leave open: where prompts are cut, how many drafts, how many rows."""
        return zlib.crc32(str(self).encode())


def all_cells() -> list[Cell]:
    """The whole matrix."""
    cells = (Cell(*values) for values in product(*AXES.values()))
    return [cell for cell in cells if cell.makes_sense]


def _pairs(cell: Cell) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """The pairs of values that a cell covers."""
    return set(combinations([(name, getattr(cell, name)) for name in AXES], 2))


def covering_cells(times: int = 2, seed: int = 0, looked_at: int = 200) -> list[Cell]:
    """Few cells in which every pair of values occurs that occurs at all.

    Args:
        times: How often each pair of a cold cell is covered, by different cells where there are any.
        seed: Of the choice.
        looked_at: Candidates from which each cell is the one that covers most new pairs.
    """
    rng = random.Random(seed)
    cells, chosen = all_cells(), list[Cell]()
    for time in range(times):
        wanted = [cell for cell in cells if time == 0 or cell.start == "cold"]
        left = set().union(*map(_pairs, wanted))
        others = [cell for cell in wanted if cell not in chosen]
        while left:
            best = max(rng.sample(others, looked_at), key=lambda cell: len(_pairs(cell) & left))
            if not _pairs(best) & left:  # the last pairs are rare among random cells
                best = max(others, key=lambda cell: len(_pairs(cell) & left))
            chosen.append(best)
            others.remove(best)
            left -= _pairs(best)
    return chosen
