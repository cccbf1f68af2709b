"""Rotary positions: frequencies (plain and YaRN), the tables of three interleaved axes, the half-split
rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from flashnext.checkpoint.config import ModelConfig, YarnConfig

from support.reference.primitives import Array


def plain_frequencies(theta: float, rotary_dim: int) -> npt.NDArray[np.float64]:
    """theta^(-2j / rotary_dim) for j < rotary_dim / 2, in radians a position."""
    return np.asarray(theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim))


def yarn_frequencies(
    theta: float, rotary_dim: int, yarn: YarnConfig
) -> tuple[npt.NDArray[np.float64], float]:
    """Static YaRN: fast frequencies stay, slow ones are divided by the factor, a linear ramp joins them.

    Returns:
        (rotary_dim / 2,) frequencies and the factor that multiplies cos and sin.

    Source: Peng et al. 2023, section 3; transformers 5.23, `_compute_yarn_parameters`.
    """

    def dimension(rotations: float) -> float:
        turns = yarn.original_max_position / (rotations * 2 * math.pi)
        return rotary_dim * math.log(turns) / (2 * math.log(theta))

    low, high = dimension(yarn.beta_fast), dimension(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(rotary_dim // 2) - low) / (high - low), 0, 1)
    plain = plain_frequencies(theta, rotary_dim)
    return np.asarray(plain / yarn.factor * ramp + plain * (1 - ramp)), yarn_attention_factor(yarn)


def yarn_attention_factor(yarn: YarnConfig) -> float:
    """What YaRN multiplies cos and sin by: the configured value, or one derived from the factor and the
    mscales."""
    if yarn.attention_factor is not None:
        return yarn.attention_factor

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(yarn.factor) + 1.0 if yarn.factor > 1 else 1.0

    if yarn.mscale and yarn.mscale_all_dim:
        return mscale(yarn.mscale) / mscale(yarn.mscale_all_dim)
    return mscale(1)


@dataclass(frozen=True)
class Rope:
    """The rotary tables of a model.

    Attributes:
        inv_freq: (half,) frequencies in radians a position.
        section: Frequencies of the t, h and w axes.
        attention_factor: Multiplies cos and sin.
        angle: "exact" multiplies position and frequency in the model's dtype; "float32" rounds position,
            frequency and their product to float32 first, which is how the engine defines an angle, and leaves
            cos and sin to the model's dtype.
    """

    inv_freq: Array
    section: tuple[int, int, int]
    attention_factor: float = 1.0
    angle: Literal["exact", "float32"] = "exact"

    @staticmethod
    def of(config: ModelConfig) -> Rope:
        """The tables of `config` itself, in exact angles."""
        if config.yarn is None:
            return Rope(plain_frequencies(config.rope_theta, config.rotary_dim), config.mrope_section)
        inv_freq, factor = yarn_frequencies(config.rope_theta, config.rotary_dim, config.yarn)
        return Rope(inv_freq, config.mrope_section, factor)

    @property
    def axes(self) -> npt.NDArray[np.int64]:
        """(half,) the axis of each frequency: h at 1, 4, 7, ..., w at 2, 5, 8, ..., t elsewhere."""
        out = np.zeros(len(self.inv_freq), dtype=np.int64)
        for axis in (1, 2):
            out[axis : 3 * self.section[axis] : 3] = axis
        return out

    def tables(self, positions: npt.ArrayLike, dtype: npt.DTypeLike) -> tuple[Array, Array]:
        """cos and sin, (T, half) each, for (3, T) positions on the t, h and w axes."""
        at = np.asarray(positions)[self.axes].T
        exact: Any = np.dtype(dtype).type
        if self.angle == "float32":
            angle = (at.astype(np.float32) * self.inv_freq.astype(np.float32)).astype(dtype)
        else:
            angle = at.astype(dtype) * self.inv_freq.astype(dtype)
        factor = exact(self.attention_factor)
        return np.cos(angle) * factor, np.sin(angle) * factor


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the first 2 * half dimensions of the last axis, pairing (j, j + half); the others pass.

    Args:
        x: (..., dims), dims >= 2 * half.
        cos: (..., half), broadcast over x; `sin` likewise.
    """
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
