"""Where the marks of a prompt lie: the places at which its state is worth keeping."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from flashnext.text.turns import Turns

SPACING = 4096
"""Tokens between marks that nothing but the distance speaks for."""

LEAST = 32
"""Tokens that a mark saves at least: a state is not kept for fewer."""

LEAST_PARTED = 128
"""Tokens that prompts which part share beyond the deepest mark, at least, to get a mark there."""

LEAST_NEW = 8
"""Tokens that a history, or the end of a reply, lies behind the deepest mark at least, to be kept too."""


class Kind(enum.IntEnum):
    """What speaks for a mark; of two at one place the greater counts."""

    SPACED = 0
    MESSAGE = 1  # a message ends
    TURN = 2  # the newest user turn starts
    PARTED = 3  # the prompt leaves one that was read before
    END = 4  # the prompt ends, as far as a longer one goes on from it, or the reply
    SYSTEM = 5  # the system prompt ends


@dataclass(frozen=True)
class Place:
    """Where a mark lies: behind the first n tokens."""

    n: int
    kind: Kind


def places(n_tokens: int, turns: Turns | None = None) -> tuple[Place, ...]:
    """Say where the marks of a prompt lie, in ascending order.

    Args:
        n_tokens: Of the prompt.
        turns: Where a chat may be cut; None for a prompt that is none. Its last token is then left out, so
            that the same prompt profits too.
    """
    found = [Place(n, Kind.SPACED) for n in range(SPACING, n_tokens, SPACING)]
    if turns is None:
        found.append(Place(n_tokens - 1, Kind.END))
    else:
        found += (Place(n, Kind.MESSAGE) for n in turns.messages)
        found.append(Place(turns.newest, Kind.TURN))
        found.append(Place(turns.next_turn, Kind.END))
        found.append(Place(turns.system, Kind.SYSTEM))
    return ordered(place for place in found if LEAST <= place.n <= n_tokens)


def ordered(found: Iterable[Place]) -> tuple[Place, ...]:
    """Sort places, and let the best reason count where several name one."""
    best: dict[int, Kind] = {}
    for place in found:
        best[place.n] = max(place.kind, best.get(place.n, place.kind))
    return tuple(Place(n, best[n]) for n in sorted(best))
