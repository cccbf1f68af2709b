"""Which prompts begin alike: what is being read by one is not read again by another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from flashnext.engine.radix import Keys, shared_rows


class Reading(Protocol):
    """Something that is being read.

    Attributes:
        keys: (n,) int64, of all rows that are read.
        n_read: How many of them have been.
    """

    keys: Keys
    n_read: int


R = TypeVar("R", bound=Reading)


@dataclass(frozen=True)
class Prefix(Generic[R]):
    """The first n rows of a prompt, which `reader` will have read before."""

    reader: R
    n: int


def find_prefix(keys: Keys, readers: Iterable[R], least: int) -> Prefix[R] | None:
    """Find who will read most of the rows that `keys` begin with; the first of equals.

    The last row of either is not shared: each reads its own, and draws behind it.

    Args:
        keys: (n,) int64.
        readers: Those whose session may be forked.
        least: Rows that pay.
    """
    best: Prefix[R] | None = None
    for reader in readers:
        most = min(len(keys), len(reader.keys)) - 1
        if most < least or most <= (best.n if best else 0):
            continue
        if not np.array_equal(keys[:least], reader.keys[:least]):  # nearly all pairs end here
            continue
        n = min(shared_rows(keys, reader.keys), most)
        if n >= max(least, reader.n_read) and n > (best.n if best else 0):
            best = Prefix(reader, n)
    return best
