"""llama.cpp as a side of a comparison: its defaults, over its C API."""

from __future__ import annotations

from pathlib import Path

import llamacpp
from sides import Tokens


class LlamaSide:
    """One sequence on one GGUF file.

    Args:
        path: The file.
        context: Tokens the sequence may come to.
        threads: Threads of decoding and of prompts.
    """

    def __init__(self, path: Path, context: int, threads: int) -> None:
        self._model = llamacpp.Model(path)
        self._session = llamacpp.Session(self._model, context, threads=threads)
        self._n_tokens = 0
        self._pending = 0

    @property
    def n_vocab(self) -> int:
        """Ids the model knows."""
        return self._model.n_vocab

    def reset(self) -> None:
        """Forget the sequence."""
        self._session.clear()
        self._n_tokens = 0

    def prompt(self, tokens: Tokens) -> None:
        """Read (N,) tokens in llama.cpp's largest batches and pick the first reply token."""
        ids = tokens.tolist()
        for start in range(0, len(ids), llamacpp.MAX_BATCH):
            part = ids[start : start + llamacpp.MAX_BATCH]
            self._pending = self._session.decode_greedy([(t, start + i, 0) for i, t in enumerate(part)])
        self._n_tokens = len(ids)

    def decode(self, steps: int) -> None:
        """Add `steps` greedy tokens."""
        for _ in range(steps):
            self._pending = self._session.decode_greedy([(self._pending, self._n_tokens, 0)])
            self._n_tokens += 1
