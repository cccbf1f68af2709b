"""The affine format of quantized matrices: codes, words, values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from support.reference.primitives import Array


def affine_unpack(
    words: npt.NDArray[np.uint32], scales: Array, biases: Array, bits: int, group: int
) -> npt.NDArray[np.float64]:
    """scale * code + bias, without rounding.

    Args:
        words: (..., n_in * bits / 32); each row is one little-endian bit string, code i at bits [i * bits, (i
            + 1) * bits).
        scales: (..., n_in / group), `biases` likewise.

    Returns:
        (..., n_in).
    """
    scale = np.repeat(np.asarray(scales, np.float64), group, -1)
    bias = np.repeat(np.asarray(biases, np.float64), group, -1)
    return np.asarray(affine_codes(words, bits) * scale + bias)


def affine_codes(words: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.int64]:
    """The codes of packed rows: (..., n_in * bits / 32) words -> (..., n_in)."""
    rows = np.ascontiguousarray(words, dtype="<u4")
    bit = np.unpackbits(rows.view(np.uint8), axis=-1, bitorder="little").reshape(*rows.shape[:-1], -1, bits)
    return np.asarray((bit.astype(np.int64) << np.arange(bits)).sum(-1))


def affine_pack(codes: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.uint32]:
    """The inverse of `affine_codes`; n_in * bits is a multiple of 32."""
    bit = ((codes[..., None] >> np.arange(bits)) & 1).reshape(*codes.shape[:-1], -1).astype(np.uint8)
    return np.packbits(bit, axis=-1, bitorder="little").view("<u4")
