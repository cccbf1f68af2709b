"""What an engine's thread counts as it goes: tokens, rounds, drafts, and the gaps between tokens."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from flashnext.engine.defaults import MAX_WINDOW
from flashnext.engine.events import SpreadCounts, Work

GAPS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of gaps between two tokens of a reply, in seconds."""


class Spread:
    """Counts values by size. One thread adds; any may read."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Start without values.

        Args:
            bounds: Upper bounds, ascending; what is above the last one is counted too.
        """
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value; one that equals a bound is within it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    @property
    def counts(self) -> SpreadCounts:
        """What has been counted."""
        return SpreadCounts(self._bounds, tuple(self._counts), self._total)


@dataclass
class Tally:
    """What has been done since the engine was made. The engine's thread writes it; any may read `work`.

    Attributes:
        kept: Rounds with drafts by how many of their drafts were kept.
        gaps: Between a token of a reply and the one before it.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    read_tokens: int = 0
    reply_tokens: int = 0
    passes: int = 0
    rounds: int = 0
    proposed: int = 0
    kept: list[int] = field(default_factory=lambda: [0] * MAX_WINDOW)
    gaps: Spread = field(default_factory=lambda: Spread(GAPS_S))

    @property
    def work(self) -> Work:
        """All of it as it is now."""
        return Work(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            read_tokens=self.read_tokens,
            reply_tokens=self.reply_tokens,
            passes=self.passes,
            rounds=self.rounds,
            proposed=self.proposed,
            kept=tuple(self.kept),
            gaps=self.gaps.counts,
        )
