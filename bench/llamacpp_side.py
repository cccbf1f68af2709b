"""llama.cpp as a side of a comparison: its defaults, over its C API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import llamacpp
from arrivals import Arrivals
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


class LlamaBatch:
    """Several sequences that llama.cpp decodes in one batch, a row each, as its own batched benchmark does.

    Args:
        path: The GGUF file.
        context: Tokens each sequence may come to.
        n_most: Most sequences.
        threads: Threads of decoding and of prompts.
    """

    def __init__(self, path: Path, context: int, n_most: int, threads: int) -> None:
        self._model = llamacpp.Model(path)
        self._session = llamacpp.Session(self._model, context, n_most, threads=threads)

    def run(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> list[Arrivals]:
        """Read all prompts in one batch, then add a greedy token to every sequence, step by step.

        Args:
            prompts: Token ids; together at most MAX_BATCH.
            n_tokens: Of each reply.

        Returns:
            When the tokens came. There are no fingerprints: its weights are quantized otherwise.

        Raises:
            ValueError: The prompts are too long for one batch.
        """
        if sum(map(len, prompts)) > llamacpp.MAX_BATCH:
            raise ValueError(f"{len(prompts)} prompts have more than {llamacpp.MAX_BATCH} tokens together")
        self._session.clear()
        asked_s = time.perf_counter()
        rows = [(token, at, s) for s, prompt in enumerate(prompts) for at, token in enumerate(prompt)]
        ends = [at for at, (_, _, s) in enumerate(rows) if at + 1 == len(rows) or rows[at + 1][2] != s]
        pending = self._session.decode_greedy_each(rows, ends)
        times_s = [time.perf_counter()]
        for step in range(n_tokens - 1):
            rows = [(pending[s], len(prompt) + step, s) for s, prompt in enumerate(prompts)]
            pending = self._session.decode_greedy_each(rows, range(len(rows)))
            times_s.append(time.perf_counter())
        return [Arrivals(asked_s, tuple(times_s)) for _ in prompts]

    def close(self) -> None:
        """Free sequences and weights."""
        self._session.close()
        self._model.close()
