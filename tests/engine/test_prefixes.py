"""Which prompts begin alike, as tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from flashnext.engine.prefixes import find_prefix
from flashnext.engine.radix import Keys


@dataclass
class Reader:
    keys: Keys
    n_read: int = 0


def rows(n: int, *rest: int) -> Keys:
    return np.array([*range(n), *rest], np.int64)


@pytest.mark.parametrize(
    ("keys", "readers", "found"),
    [
        (rows(9), [], None),
        (rows(9), [Reader(rows(9))], (0, 8)),  # each reads its own last token
        (rows(9), [Reader(rows(6))], (0, 5)),
        (rows(6), [Reader(rows(9))], (0, 5)),
        (rows(5), [Reader(rows(5))], (0, 4)),
        (rows(4), [Reader(rows(4))], None),
        (rows(3, 77, 1), [Reader(rows(3, 78, 1))], None),  # fewer than four do not pay
        (rows(3, -9, -8, 1, 2), [Reader(rows(3, -9, -8, 1, 3))], (0, 6)),  # media
        (rows(4, -9, -8, 1, 2), [Reader(rows(4, -9, -7, 1, 2))], (0, 5)),
        (rows(6, 70), [Reader(rows(6, 71), n_read=6)], (0, 6)),  # just there
        (rows(6, 70), [Reader(rows(9), n_read=7)], None),  # got past it
        (rows(9), [Reader(rows(5, 70)), Reader(rows(7, 70)), Reader(rows(7, 71))], (1, 7)),
        (rows(9), [Reader(rows(7, 70), n_read=8), Reader(rows(5, 70))], (1, 5)),
    ],
)
def test_who_is_waited_for(keys: Keys, readers: list[Reader], found: tuple[int, int] | None) -> None:
    prefix = find_prefix(keys, readers, 4)
    assert (prefix and ([r is prefix.reader for r in readers].index(True), prefix.n)) == found
