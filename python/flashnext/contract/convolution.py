"""What the depthwise convolutions of both layers share: sums over taps, tails of rows, planted faults."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashnext.contract.approx import Approx, stack
from flashnext.contract.family import Data, Shape
from flashnext.contract.faults import Fault
from flashnext.contract.scalars import Array


def last_rows(tail: Array, rows: Array) -> Array:
    """Move rows into the end of a tail: (n_tail, width), as long as it was."""
    full = np.concatenate([tail, rows])
    return full[len(full) - len(tail) :]


def without_history(data: Data) -> Data:
    """Change data to that of sequences that have had no rows before."""
    return {key: [0 * x for x in data[key]] for key in ("tail", "kept")}


def convolution(history: Array, rows: Array, taps: Array, dilation: int) -> Approx:
    """Sum over taps j of taps[j] * row_{t - (n_taps - 1 - j) dilation}: (rows, width)."""
    full = np.concatenate([history, rows])
    n_taps = len(taps)
    parts = [
        Approx.exact(full[j * dilation : j * dilation + len(rows)]) * Approx.exact(taps[j])
        for j in range(n_taps)
    ]
    return stack(parts).sum(0)


def convolution_faults(shape: Shape, data: Data) -> Sequence[Fault]:
    """Plant faults in the taps and in the history; none where they could not be seen."""
    if shape["taps"] < 2 or not sum(data["n_rows"]) > 3:
        return ()
    return (
        Fault("wrong position: taps from the newest", "sums", lambda d: {"taps": d["taps"][::-1]}),
        Fault("wrong axis: channels backwards in the taps", "sums", lambda d: {"taps": d["taps"][:, ::-1]}),
        Fault("wrong scale of the taps", "sums", lambda d: {"taps": d["taps"] * 1.25}),
        Fault("dropped tail: history read as zero", "sums", without_history),
    )
