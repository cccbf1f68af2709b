"""Stored matrices: bfloat16, or affine codes with scales and biases a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashnext.checkpoint.quantize import float32_to_bf16
from flashnext.contract.approx import UNIT, Approx, gamma
from flashnext.contract.launch import Builder
from flashnext.contract.scalars import BF16, Array, Float64, Scalar

BLOCK_BITS = 15  # of the integers that a product of bfloat16 rows with codes may turn inputs into


@dataclass(frozen=True)
class Matrix:
    """A matrix (..., n_out, n_in).

    Attributes:
        bits: 16 for bfloat16, else 2, 3, 4, 5, 6 or 8.
        group: Inputs that share a scale and a bias; 0 for bfloat16.
        codes: Float values (bits 16), or whole numbers from 0 to 2^bits - 1.
        scales, biases: (..., n_out, n_in / group) float values of bfloat16; empty for bits 16.
    """

    bits: int
    group: int
    codes: Array
    scales: Float64
    biases: Float64

    @staticmethod
    def draw(rng: np.random.Generator, shape: Sequence[int], bits: int, group: int) -> Matrix:
        """Random weights of about 1 / sqrt(n_in), with every code in use."""
        size = 1 / np.sqrt(shape[-1])
        if bits == 16:
            none = np.zeros((0,))
            return Matrix(16, 0, BF16.rounded(rng.standard_normal(shape) * size), none, none)
        grouped = (*shape[:-1], shape[-1] // group)
        scales = BF16.rounded(
            rng.uniform(1, 2, grouped) * rng.choice([-1, 1], grouped) * 4 * size / (1 << bits)
        )
        biases = BF16.rounded(-scales * ((1 << bits) - 1) / 2 * rng.uniform(0.8, 1.2, grouped))
        return Matrix(bits, group, rng.integers(0, 1 << bits, shape), scales, biases)

    @property
    def format(self) -> tuple[int, int]:
        """The Format struct."""
        return self.bits, self.group

    @property
    def values(self) -> Float64:
        """The exact weights."""
        if self.bits == 16:
            return np.asarray(self.codes, np.float64)
        return np.asarray(self._each(self.scales) * self.codes + self._each(self.biases))

    @property
    def approx(self) -> Approx:
        """The weights as a kernel may decode them: a product and a sum, each rounded."""
        if self.bits == 16:
            return Approx.exact(self.values)
        product = np.abs(self._each(self.scales) * self.codes)
        value = self.values
        return Approx(value, UNIT * (product + np.abs(value)))

    def _each(self, grouped: Float64) -> Float64:
        return np.repeat(grouped, self.group, -1)

    def dot(self, x: Approx, scalar: Scalar) -> Approx:
        """X (R, n_in) times the matrix (n_out, n_in) -> (R, n_out), as any permitted kernel computes it.

        Permitted are fp32 products with decoded weights and, for bfloat16 rows and codes, whole numbers:
        inputs rounded to BLOCK_BITS bits under the largest of their group, exact sums of codes and inputs,
        then scale and bias.
        """
        w = self.approx
        n = x.value.shape[-1]
        value = x.value @ self.values.T
        with np.errstate(invalid="ignore"):
            error = x.magnitude @ w.error.T + x.error @ np.abs(w.value).T
            if self.bits == 16 or scalar is not BF16:
                return Approx(value, error + gamma(n + 1) * (x.magnitude @ w.magnitude.T))
            step = self._largest(x.magnitude) * 2.0**-BLOCK_BITS  # half a unit of q, at most
            error = error + step @ np.abs(w.value).T
            # I * scale, S * bias and their sum are rounded before the chain over groups.
            parts = np.abs(self._each(self.scales) * self.codes) + np.abs(self._each(self.biases))
            return Approx(value, error + gamma(n / self.group + 4) * (x.magnitude @ parts.T))

    def _largest(self, magnitude: Float64) -> Float64:
        groups = magnitude.reshape(*magnitude.shape[:-1], -1, self.group)
        return np.repeat(groups.max(-1), self.group, -1)

    def rows(self, pick: Any) -> Matrix:
        """Take the matrix at an index of its leading axes."""
        if self.bits == 16:
            return replace(self, codes=self.codes[pick])
        return Matrix(self.bits, self.group, self.codes[pick], self.scales[pick], self.biases[pick])

    def inputs(self, order: Array) -> Matrix:
        """Put the inputs in another order, which keeps groups whole."""
        if self.bits == 16:
            return replace(self, codes=self.codes[..., order])
        groups = order.reshape(-1, self.group)[:, 0] // self.group
        return replace(
            self,
            codes=self.codes[..., order],
            scales=self.scales[..., groups],
            biases=self.biases[..., groups],
        )

    def with_nonfinite(self, value: float, rng: np.random.Generator) -> Matrix:
        """Make one weight, or one group's scale, NaN or infinite."""
        array = np.array(self.codes if self.bits == 16 else self.scales)
        array[tuple(int(rng.integers(n)) for n in array.shape)] = value
        return replace(self, codes=array) if self.bits == 16 else replace(self, scales=array)

    def put(self, b: Builder, name: str) -> None:
        """Add the three slots of the matrix; those that it does not have are empty."""
        if self.bits == 16:
            b.put(name, BF16.encode(self.codes))
            b.unused(f"{name} scales", f"{name} biases")
            return
        b.put(name, self.words())
        b.put(f"{name} scales", float32_to_bf16(self.scales))
        b.put(f"{name} biases", float32_to_bf16(self.biases))

    def words(self) -> Array:
        """Pack codes as one little-endian bit string a row."""
        bit = (self.codes[..., None] >> np.arange(self.bits)) & 1
        return np.packbits(
            bit.reshape(*self.codes.shape[:-1], -1).astype(np.uint8), axis=-1, bitorder="little"
        )

    @property
    def codes_stride(self) -> int:
        """Bytes from one matrix of a stack to the next."""
        return int(np.prod(self.codes.shape[-2:])) * self.bits // 8

    @property
    def scales_stride(self) -> int:
        """Bytes from one matrix's scales to the next one's."""
        return 0 if self.bits == 16 else int(np.prod(self.scales.shape[-2:])) * 2


FORMATS: tuple[dict[str, Any], ...] = (
    {"bits": 16, "group": 0},
    *({"bits": bits, "group": group} for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)),
)
