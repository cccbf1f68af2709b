"""Numbers that carry a bound of their own error: reference and tolerance in one computation.

An `Approx` holds float64 values and, for each, how far a kernel that computes the same in fp32 may be away.
Every operation carries the errors of its inputs through and adds the rounding of one fp32 operation. Sums
take any order: n terms err by at most gamma(n) times the sum of their magnitudes. So a tolerance is derived
from the formula and the data, never tuned.

Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 3.3 (running error
analysis).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashnext.contract.scalars import Float64, Scalar

UNIT = 2.0**-24  # of fp32
TINY = 2.0**-126  # results below it may be flushed to zero
EXP_ULPS = 4.0  # what a kernel's exp may be off, in units in the last place
DIVIDE_ULPS = 2.5  # of a division or square root; Metal promises no more


def gamma(n: float) -> float:
    """Relative error of a sum or product chain of n fp32 roundings."""
    return n * UNIT / (1 - n * UNIT)


@dataclass(frozen=True)
class Approx:
    """Values and error bounds, float64 arrays of one shape."""

    value: Float64
    error: Float64

    @staticmethod
    def exact(value: npt.ArrayLike) -> Approx:
        """Values that a kernel has exactly: its inputs."""
        array = np.asarray(value, np.float64)
        return Approx(array, np.zeros_like(array))

    @property
    def magnitude(self) -> Float64:
        """The largest magnitude that a kernel may hold."""
        return np.abs(self.value) + self.error

    def _rounded(self, ulps: float = 1.0) -> Approx:
        return Approx(self.value, self.error + ulps * UNIT * self.magnitude + TINY)

    def __add__(self, other: Approx) -> Approx:
        return Approx(self.value + other.value, self.error + other.error)._rounded()

    def __sub__(self, other: Approx) -> Approx:
        return self + (-other)

    def __neg__(self) -> Approx:
        return Approx(-self.value, self.error)

    def __mul__(self, other: Approx | float) -> Approx:
        b = other if isinstance(other, Approx) else Approx.exact(np.float64(other))
        error = np.abs(self.value) * b.error + self.error * b.magnitude
        return Approx(self.value * b.value, error)._rounded()

    def __truediv__(self, other: Approx | float) -> Approx:
        b = other if isinstance(other, Approx) else Approx.exact(np.float64(other))
        value = self.value / b.value
        least = np.abs(b.value) - b.error
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.where(least > 0, (self.error + np.abs(value) * b.error) / least, np.inf)
        return Approx(value, error)._rounded(DIVIDE_ULPS)

    def __getitem__(self, index: Any) -> Approx:
        return Approx(self.value[index], self.error[index])

    def reshape(self, *shape: int) -> Approx:
        """Give the values another shape."""
        return Approx(self.value.reshape(*shape), self.error.reshape(*shape))

    def sum(self, axis: int = -1, keepdims: bool = False) -> Approx:
        """Sum in any order."""
        n = self.value.shape[axis]
        total = self.magnitude.sum(axis, keepdims=keepdims)
        error = self.error.sum(axis, keepdims=keepdims) + gamma(n) * total
        return Approx(self.value.sum(axis, keepdims=keepdims), error)

    def monotone(self, f: Callable[[Float64], Float64], ulps: float) -> Approx:
        """Apply a monotone function, itself computed to `ulps` units in the last place."""
        value, error = f(self.value), self.error
        with np.errstate(invalid="ignore", over="ignore"):
            moved = np.maximum(np.abs(f(self.value + error) - value), np.abs(f(self.value - error) - value))
        return Approx(value, moved)._rounded(2 * ulps)

    def stored(self, scalar: Scalar) -> Approx:
        """Store to `scalar`; exact for values that it holds already."""
        return Approx(self.value, self.error + scalar.unit * self.magnitude + scalar.least + TINY)

    def exp(self) -> Approx:
        """Compute e^x."""
        return self.monotone(_exp, EXP_ULPS)

    def sigmoid(self) -> Approx:
        """Compute 1 / (1 + e^-x)."""
        return self.monotone(_sigmoid, EXP_ULPS + DIVIDE_ULPS + 2)

    def silu(self) -> Approx:
        """Compute x sigmoid(x)."""
        return self * self.sigmoid()

    def sqrt(self) -> Approx:
        """Compute the square root; of a value below 0, that of 0."""
        return self.monotone(lambda x: np.sqrt(np.maximum(x, 0)), DIVIDE_ULPS)

    def positive(self) -> Approx:
        """max(0, x)."""
        return Approx(np.where(self.value < 0, 0.0, self.value), self.error)


def _exp(x: Float64) -> Float64:
    with np.errstate(over="ignore"):
        return np.exp(x)


def _sigmoid(x: Float64) -> Float64:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def dot(x: Approx, w: Approx) -> Approx:
    """Products of rows: x (..., n) with w (m, n) -> (..., m), summed in any order."""
    n = x.value.shape[-1]
    size = x.magnitude @ w.magnitude.T
    carried = x.magnitude @ w.error.T + x.error @ np.abs(w.value).T
    return Approx(x.value @ w.value.T, carried + gamma(n + 1) * size + n * TINY)


def unit_rms(x: Approx, eps: float) -> Approx:
    """X / sqrt(mean(x^2) + eps) over the last axis."""
    mean = (x * x).sum(keepdims=True) / float(x.value.shape[-1])
    return x * (
        Approx.exact(np.ones_like(mean.value)) / (mean + Approx.exact(np.float64(np.float32(eps)))).sqrt()
    )


def rotate(x: Approx, cos: Approx, sin: Approx) -> Approx:
    """Rotate the first 2 * half values of the last axis, pairing (j, j + half)."""
    half = cos.value.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return concatenate([a * cos - b * sin, b * cos + a * sin, rest])


def concatenate(parts: list[Approx], axis: int = -1) -> Approx:
    """Parts joined along an axis."""
    return Approx(
        np.concatenate([p.value for p in parts], axis), np.concatenate([p.error for p in parts], axis)
    )


def stack(parts: list[Approx]) -> Approx:
    """Parts of one shape joined along a new first axis."""
    return Approx(np.stack([p.value for p in parts]), np.stack([p.error for p in parts]))
