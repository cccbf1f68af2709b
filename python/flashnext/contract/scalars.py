"""The activation types of kernels: how values are stored, and how far a store may move them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashnext.checkpoint.quantize import bf16_to_float32, float32_to_bf16

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scalar:
    """A type of stored floats.

    Attributes:
        name: The suffix of kernels that store it.
        bits: numpy dtype of the stored patterns.
        unit: Largest relative error of rounding to it.
        least: Spacing of its smallest numbers.
    """

    name: str
    bits: npt.DTypeLike
    unit: float
    least: float

    @property
    def size_bytes(self) -> int:
        """Of one element."""
        return np.dtype(self.bits).itemsize

    def encode(self, values: npt.ArrayLike) -> Array:
        """Round float64 values to stored patterns; ties to even."""
        narrow = np.asarray(values, np.float64).astype(np.float32)
        return float32_to_bf16(narrow) if self.name == "bf16" else narrow

    def decode(self, patterns: Array) -> Float64:
        """Read stored patterns."""
        wide = bf16_to_float32(patterns) if self.name == "bf16" else patterns
        return wide.astype(np.float64)

    def rounded(self, values: npt.ArrayLike) -> Float64:
        """Round values as a store does."""
        return self.decode(self.encode(values))


BF16 = Scalar("bf16", np.uint16, 2.0**-8, 2.0**-133)
F32 = Scalar("f32", np.float32, 2.0**-24, 2.0**-149)
