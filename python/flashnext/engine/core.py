"""The part of the core that the engine's thread drives, as one small object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from flashnext import _core
from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.engine.load import MAX_WINDOW, Loaded

Tokens = npt.NDArray[np.int32]


class Session(Protocol):
    """What one sequence owns on the device."""

    def close(self) -> None:
        """Give it back; idempotent."""


class Drawn(Protocol):
    """A token that was drawn; -1 where all logits were NaN.

    Attributes:
        logprob: Its log-probability, where the sampling asks for it.
        top: Of the likeliest ids, (id, log-probability).
    """

    @property
    def token(self) -> int: ...  # noqa: D102
    @property
    def logprob(self) -> float: ...  # noqa: D102
    @property
    def top(self) -> list[tuple[int, float]]: ...  # noqa: D102


class Core(Protocol):
    """What the engine's thread asks of a model. One thread at a time; calls block and release the GIL.

    Attributes:
        max_chunk: Most prompt tokens of a chunk.
        n_pages: Pages of the pool.
    """

    max_chunk: int
    n_pages: int

    def pages(self, n_positions: int) -> int:
        """Most pages that a sequence of n positions takes, those that its rounds take ahead included."""

    def open(self) -> Session:
        """Make the session of a new sequence."""

    def prompt(
        self, session: Session, tokens: Tokens, last: bool, sampling: _core.Sampling, n_drafts: int
    ) -> Sequence[Drawn]:
        """Read a prompt chunk; with last, draw the first token of the reply and up to n_drafts drafts."""

    def round(self, sessions: Sequence[Session], n_drafts: Sequence[int]) -> Sequence[Sequence[Drawn]]:
        """Feed each session's pending token and drafts and draw one token or more; then draft again."""


class LoadedCore:
    """`Core` over a loaded model."""

    def __init__(self, loaded: Loaded, n_tokens: int) -> None:
        """Make the runner.

        Args:
            loaded: The model.
            n_tokens: Ids at or beyond it are padding of the vocabulary and are never drawn.
        """
        self._loaded = loaded
        self._runner = _core.Runner(loaded.model, n_tokens)
        self.max_chunk = self._runner.max_chunk
        self.n_pages = loaded.pool.total

    def pages(self, n_positions: int) -> int:
        """Count the pages of a sequence."""
        # Windows take pages two windows ahead (cpp/session/session.cpp).
        return -(-min(n_positions + 2 * MAX_WINDOW, self._loaded.context) // PAGE_TOKENS)

    def open(self) -> _core.Session:
        """Make the session of a new sequence."""
        return _core.Session(self._loaded.model, self._loaded.pool)

    def prompt(
        self, session: Session, tokens: Tokens, last: bool, sampling: _core.Sampling, n_drafts: int
    ) -> Sequence[Drawn]:
        """Read a prompt chunk."""
        return self._runner.prompt(cast(_core.Session, session), tokens, last, sampling, n_drafts)

    def round(self, sessions: Sequence[Session], n_drafts: Sequence[int]) -> Sequence[Sequence[Drawn]]:
        """Run a round."""
        return self._runner.round(cast(Sequence[_core.Session], sessions), list(n_drafts))
