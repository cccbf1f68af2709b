"""flashnext as a side of a comparison: its compiled core, driven as the engine drives it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flashnext import _core
from flashnext.engine.load import load_model
from sides import Tokens


class FlashnextSide:
    """One session on one checkpoint, whose draft head is not loaded, as the other side does not.

    Args:
        path: The checkpoint's folder.
        context: Tokens the sequence may come to.
        threads: Workers of the CPU device.
        dtype: Activation dtype.
    """

    def __init__(self, path: Path, context: int, threads: int, dtype: str = "bfloat16") -> None:
        self._loaded = load_model(
            path, device="cpu", threads=threads, dtype=dtype, context=context, draft_head=False
        )
        self._runner = _core.Runner(self._loaded.model)
        self._greedy = _core.Sampling(temperature=0.0)
        self._session = self._open()

    @property
    def n_vocab(self) -> int:
        """Ids the model knows."""
        return self._loaded.model.vocab_size

    def reset(self) -> None:
        """Give the sequence's pages back and begin another."""
        self._session.close()
        self._session = self._open()

    def prompt(self, tokens: Tokens) -> None:
        """Read (N,) tokens in the largest chunks and draw the first reply token."""
        chunks = range(0, len(tokens), self._runner.max_chunk)
        for start in chunks:
            part = np.ascontiguousarray(tokens[start : start + self._runner.max_chunk])
            self._runner.prompt(self._session, part, start == chunks[-1], self._greedy)

    def decode(self, steps: int) -> None:
        """Add `steps` greedy tokens, one round each."""
        for _ in range(steps):
            self._runner.round([self._session])

    def _open(self) -> _core.Session:
        return _core.Session(self._loaded.model, self._loaded.pool)
