"""The small functions that every part of the reference uses; all keep the dtype of their input."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow on either side."""
    out = np.empty_like(x)
    positive = x >= 0
    out[positive] = 1 / (1 + np.exp(-x[positive]))
    e = np.exp(x[~positive])
    out[~positive] = e / (1 + e)
    return out


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softmax(x: Array) -> Array:
    """exp(x) normalized over the last axis; -inf entries get exactly 0."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def linear(x: Array, w: Array) -> Array:
    """x (..., n_in) times w stored as (n_out, n_in)."""
    return np.asarray(x @ w.T)


def unit_rms(x: Array, eps: float, group: int | None = None) -> Array:
    """x / sqrt(mean(x^2) + eps), the mean over each `group` values of the last axis (all of it by
    default)."""
    y = x.reshape(*x.shape[:-1], -1, group or x.shape[-1])
    y = y / np.sqrt((y * y).mean(-1, keepdims=True) + eps)
    return np.asarray(y.reshape(x.shape))


def rms(x: Array, w: Array, eps: float, group: int | None = None) -> Array:
    """Zero-centred RMSNorm: `unit_rms` times (1 + w).

    Source: Zhang and Sennrich 2019; transformers 5.23, `Qwen4ExpTextRMSNorm`.
    """
    return np.asarray(unit_rms(x, eps, group) * (1 + w))


def depthwise_causal(history: Array, x: Array, w: Array, dilation: int = 1) -> tuple[Array, Array]:
    """Causal depthwise convolution.

    Args:
        history: ((K - 1) * dilation, C) rows before `x`, oldest first.
        x: (T, C).
        w: (C, K); tap K - 1 is the row itself.
        dilation: Rows from one tap to the next.

    Returns:
        (T, C) sums and the history that the next rows need.
    """
    taps = w.shape[1]
    full = np.concatenate([history, x], 0)
    out = np.zeros_like(x)
    for j in range(taps):
        out += full[j * dilation : j * dilation + len(x)] * w[:, j]
    return out, full[len(full) - (taps - 1) * dilation :]
