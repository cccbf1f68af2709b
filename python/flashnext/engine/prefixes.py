"""Which prompts begin alike: what is being read by one is not read again by another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from flashnext.engine.core import Tokens


class Reading(Protocol):
    """Something that is being read.

    Attributes:
        feed: (n,) int32, all that is read.
        n_read: Tokens of it that have been.
    """

    feed: Tokens
    n_read: int


R = TypeVar("R", bound=Reading)


@dataclass(frozen=True)
class Prefix(Generic[R]):
    """The first n tokens of a prompt, which `reader` will have read before."""

    reader: R
    n: int


def shared_tokens(a: Tokens, b: Tokens, least: int) -> int:
    """Count the tokens that two prompts begin with alike; 0 where they are fewer than `least`."""
    n = min(len(a), len(b))
    if n < least or not np.array_equal(a[:least], b[:least]):  # nearly all pairs end here
        return 0
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def find_prefix(feed: Tokens, readers: Iterable[R], least: int) -> Prefix[R] | None:
    """Find who will read most of what `feed` begins with; the first of equals.

    The last token of either is not shared: each reads its own, and draws behind it.

    Args:
        feed: (n,) int32.
        readers: Those whose session may be forked.
        least: Tokens that pay.
    """
    best: Prefix[R] | None = None
    for reader in readers:
        most = min(len(feed), len(reader.feed)) - 1
        if most < least or most <= (best.n if best else 0):
            continue
        n = min(shared_tokens(feed, reader.feed, least), most)
        if n >= max(least, reader.n_read) and n > (best.n if best else 0):
            best = Prefix(reader, n)
    return best
