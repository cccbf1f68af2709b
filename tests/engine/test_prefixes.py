"""Which prompts begin alike, as tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from flashnext.engine.core import Tokens
from flashnext.engine.prefixes import find_prefix, shared_tokens


@dataclass
class Reader:
    feed: Tokens
    n_read: int = 0


def tokens(n: int, *rest: int) -> Tokens:
    return np.array([*range(n), *rest], np.int32)


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [
        (tokens(9), tokens(9), 9),
        (tokens(9), tokens(20), 9),
        (tokens(9, 77), tokens(9, 78), 9),
        (tokens(4), tokens(4), 4),
        (tokens(4, 77), tokens(4, 78), 4),
        (tokens(3, 77, 1), tokens(3, 78, 1), 0),  # fewer than four do not pay
        (tokens(3), tokens(3), 0),
        (tokens(0), tokens(9), 0),
    ],
)
def test_shared_tokens(a: Tokens, b: Tokens, n: int) -> None:
    assert shared_tokens(a, b, 4) == shared_tokens(b, a, 4) == n


@pytest.mark.parametrize(
    ("feed", "readers", "found"),
    [
        (tokens(9), [], None),
        (tokens(9), [Reader(tokens(9))], (0, 8)),  # each reads its own last token
        (tokens(9), [Reader(tokens(6))], (0, 5)),
        (tokens(6), [Reader(tokens(9))], (0, 5)),
        (tokens(5), [Reader(tokens(5))], (0, 4)),
        (tokens(4), [Reader(tokens(4))], None),
        (tokens(6, 70), [Reader(tokens(6, 71), n_read=6)], (0, 6)),  # just there
        (tokens(6, 70), [Reader(tokens(9), n_read=7)], None),  # got past it
        (tokens(9), [Reader(tokens(5, 70)), Reader(tokens(7, 70)), Reader(tokens(7, 71))], (1, 7)),
        (tokens(9), [Reader(tokens(7, 70), n_read=8), Reader(tokens(5, 70))], (1, 5)),
    ],
)
def test_who_is_waited_for(feed: Tokens, readers: list[Reader], found: tuple[int, int] | None) -> None:
    prefix = find_prefix(feed, readers, 4)
    assert (prefix and ([r is prefix.reader for r in readers].index(True), prefix.n)) == found
