"""Gaps at the two places where the model decides, so that a test can tell a legitimate near-tie from a
fault."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from support.reference.primitives import Array


@dataclass
class Margins:
    """How far each row was from deciding otherwise, by layer; infinite where there was nothing to decide.

    Attributes:
        router: Layer -> one (T,) array a forward: the gap between the last chosen and the first refused
            router logit.
        selection: Attention layer -> one (T,) array a forward: how much a block's score would have to move
            until another set of blocks were selected. Blocks that score exactly 0 tie by rule (the lower
            block wins), so there it is the distance of the nearest block from changing between zero and
            positive.
    """

    router: dict[int, list[Array]] = field(default_factory=dict)
    selection: dict[int, list[Array]] = field(default_factory=dict)

    def rows(self, which: dict[int, list[Array]]) -> npt.NDArray[np.float64]:
        """(layers, T) of `router` or `selection`, all forwards joined."""
        return np.array([np.concatenate(parts) for _, parts in sorted(which.items())], dtype=np.float64)

    @property
    def smallest(self) -> tuple[float, float]:
        """The smallest router and selection margin of all; infinite where there was none."""
        pick = [self.rows(which) for which in (self.router, self.selection)]
        first, second = (float(rows.min()) if rows.size else np.inf for rows in pick)
        return first, second


def router_margin(logits: Array, top_k: int) -> Array:
    """(T,) gap between the top_k-th and the next logit of each row of (T, experts)."""
    if top_k >= logits.shape[1]:
        return np.full(len(logits), np.inf)
    ordered = -np.sort(-logits, axis=1)
    return np.asarray(ordered[:, top_k - 1] - ordered[:, top_k])


def selection_margin(dots: Array, scale: float, kept: int) -> float:
    """The margin of one query.

    Args:
        dots: (heads, blocks) products of the query's heads with the pooled keys.
        scale: Multiplies a block's score.
        kept: Blocks that are selected.
    """
    if kept >= dots.shape[1]:
        return float("inf")
    score = np.maximum(dots, 0).sum(0) * scale
    ordered = -np.sort(-score)
    if ordered[kept] > 0:
        return float(ordered[kept - 1] - ordered[kept])
    # The cut lies beside or among blocks of score 0: a positive block must not fall to 0 and, where zero
    # blocks are kept, no other zero block may rise above it.
    positive = score > 0
    fall = float(score[positive].min()) if positive.any() else float("inf")
    rise = float((-dots[:, ~positive].max(0) * scale).min())
    return fall if positive.sum() == kept else min(fall, rise)
