"""Rows of the hashed n-gram table that each token reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from flashnext.checkpoint.config import ModelConfig


def ngram_rows(
    config: ModelConfig, module: int, tokens: Sequence[int], history: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Table rows of `tokens` that follow `history`.

    A lookback stops at the nearest earlier segment token: positions at or before it read as the segment
    token. A segment token itself still sees the tokens before it; the token after it sees only segment
    tokens.

    Args:
        config: Gives the constants.
        module: Which PLE module, counted over `config.ple_layers`.
        tokens: T token ids.
        history: The `ngram_size - 1` ids before them, oldest first; segment tokens where there are none.

    Returns:
        (T, heads) int64, heads by n-gram length, then head.
    """
    multipliers = config.ngram_multipliers[module]
    sizes, offsets = config.ngram_sizes[module], config.ngram_offsets[module]
    ids = [*history, *(int(t) for t in tokens)]
    out = np.empty((len(tokens), len(sizes)), dtype=np.int64)
    for row, at in enumerate(range(len(history), len(ids))):
        mix, stopped = ids[at] * multipliers[0], False
        for back in range(1, config.ngram_size):
            stopped = stopped or ids[at - back] == config.segment_token
            # Products stay below 2^63 by the choice of the multipliers, so nothing wraps.
            mix ^= (config.segment_token if stopped else ids[at - back]) * multipliers[back]
            for head in range((back - 1) * config.heads_per_ngram, back * config.heads_per_ngram):
                out[row, head] = mix % sizes[head] + offsets[head]
    return out
