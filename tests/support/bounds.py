"""How far the engine's logits may be from the float64 reference, and why.

The bound of a setup is measured on the reference itself, never on the engine. The reference run in the
engine's precision rounds in the same places and adds sums of the same lengths, in another order; so its own
distance from float64, the
*condition* of the setup, estimates how much this model amplifies rounding. An engine without a fault makes an
error of the same distribution. Both are maxima over more than ten thousand logits (or means over as many),
whose ratio over all setups is near one; `FACTOR` leaves room for the difference of two such draws and no
more: a fault moves logits by thousands of conditions, which `test_bounds.py` shows for a list of planted
ones.

A decision (an expert, a block) that two correct computations take differently moves logits by much more than
rounding. In float32 a setup is therefore chosen so that none of its decisions is near: each gap in the
reference must exceed `FACTOR` times the error that float32 makes in that gap, again measured on the
reference. In bfloat16 near-ties cannot be avoided; there bounds are strict for models that decide nothing,
and for the others hold for the median row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from support.reference.margins import Margins
from support.reference.primitives import Array
from support.setups import Oracle, store_bfloat16

FACTOR = 4.0
UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Bound:
    """Bounds of one setup in one precision.

    Attributes:
        largest: Of |engine - float64| over all logits.
        median_row: Of the median over rows of a row's largest |engine - float64|.
    """

    largest: float
    median_row: float


def row_errors(logits: Array, expected: Array) -> Array:
    """(T,) the largest absolute error of each row; a NaN counts as infinite."""
    error = np.abs(logits.astype(np.float64) - expected).max(1)
    return np.where(np.isnan(error), np.inf, error)


@cache
def float32_bound(oracle: Oracle) -> Bound:
    """The bound of float32 mode.

    Raises:
        AssertionError: A decision of the setup is a near-tie for float32; choose another seed.
    """
    margins = Margins()
    errors = row_errors(oracle.run(np.float32, margins=margins), oracle.logits)
    for ours, exact in (
        (margins.router, oracle.margins.router),
        (margins.selection, oracle.margins.selection),
    ):
        if exact:
            gaps, narrow = oracle.margins.rows(exact), oracle.margins.rows(ours)
            decided = np.isfinite(gaps)
            if decided.any():
                noise = np.abs(narrow[decided] - gaps[decided]).max()
                assert gaps.min() > FACTOR * noise, (
                    f"{oracle.setup}: a gap of {gaps.min():.2e}, noise {noise:.2e}"
                )
    return _bound(errors, oracle, "float32")


@cache
def bfloat16_bound(oracle: Oracle) -> Bound:
    """The bound of bfloat16 mode: the reference rounds each stored activation to bfloat16 and nothing
    else."""
    return _bound(row_errors(oracle.run(store=store_bfloat16), oracle.logits), oracle, "bfloat16")


def _bound(errors: Array, oracle: Oracle, dtype: str) -> Bound:
    # The head's own rounding is there even where a tiny model amplifies nothing.
    floor = UNIT[dtype] * float(np.abs(oracle.logits).max())
    return Bound(FACTOR * (float(errors.max()) + floor), FACTOR * (float(np.median(errors)) + floor))
