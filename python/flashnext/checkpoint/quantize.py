"""Affine quantization in numpy, bit-equal to `mlx.core.quantize` for bfloat16 input, and its inverse.

Per group of consecutive inputs, in float32: the scale is the span over the largest code, negative unless the
lower end is the larger one in size; that end (the edge) becomes the bias and gets a whole number of steps
from zero, so that zero stays exact; codes come from the unrounded scale and bias, which are stored rounded to
bfloat16.
Source: mlx 0.32, `mlx/backend/cpu/quantized.cpp`; confirmed by comparison in
tests/checkpoint/test_quantize.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flashnext.checkpoint.affine import SUPPORTED_BITS, SUPPORTED_GROUPS
from flashnext.errors import InvalidArgument

UInt16 = npt.NDArray[np.uint16]
UInt32 = npt.NDArray[np.uint32]
Float32 = npt.NDArray[np.float32]

_EPS = np.float32(1e-7)  # the least scale, so that a constant group does not divide by zero
_CHUNK_VALUES = 1 << 18  # values worked on at once; what a core's cache holds


def bf16_to_float32(bits: npt.NDArray[Any]) -> Float32:
    """Widen bfloat16 bit patterns, uint16 of any shape, to float32 values; exact."""
    out: Float32 = (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return out


def float32_to_bf16(values: npt.NDArray[Any]) -> UInt16:
    """Round float32 values to bfloat16 bit patterns (uint16), ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    out: UInt16 = np.where(nan, np.uint32(0x7FC0), rounded).astype(np.uint16)
    return out


def quantize(weights: UInt16, bits: int, group: int) -> tuple[UInt32, UInt16, UInt16]:
    """Quantize the rows of a matrix.

    Args:
        weights: (..., in) bfloat16 bit patterns; finite, `in` a multiple of `group`.
        bits: 2, 3, 4, 5, 6 or 8 bits a code.
        group: 32, 64 or 128 inputs that share a scale and a bias.

    Returns:
        Words (..., in * bits / 32) uint32, scales and biases (..., in / group) bfloat16 bit patterns.

    Raises:
        InvalidArgument: Bits, group or shape are not supported, or a weight is NaN or infinite.
    """
    check_affine(bits, group)
    if weights.ndim < 1 or weights.shape[-1] % group:
        raise InvalidArgument(f"rows of {weights.shape[-1:]} inputs cannot be cut into groups of {group}")
    rows, width = weights.shape[:-1], weights.shape[-1]
    groups = np.ascontiguousarray(weights).reshape(-1, group)
    words = np.empty((len(groups), group * bits // 32), np.uint32)
    scales = np.empty(len(groups), np.uint16)
    biases = np.empty(len(groups), np.uint16)
    step = max(1, _CHUNK_VALUES // group)
    for at in range(0, len(groups), step):
        part = slice(at, at + step)
        codes, scale, bias = _quantize_groups(bf16_to_float32(groups[part]), bits)
        words[part] = pack(codes, bits)
        scales[part], biases[part] = float32_to_bf16(scale), float32_to_bf16(bias)
    per_row = width // group
    return (
        words.reshape(*rows, width * bits // 32),
        scales.reshape(*rows, per_row),
        biases.reshape(*rows, per_row),
    )


def check_affine(bits: int, group: int) -> None:
    """Raise `InvalidArgument` for bits or a group that is not supported."""
    if bits not in SUPPORTED_BITS:
        raise InvalidArgument(f"bits is {bits}, but only {', '.join(map(str, SUPPORTED_BITS))} are supported")
    if group not in SUPPORTED_GROUPS:
        raise InvalidArgument(
            f"group is {group}, but only {', '.join(map(str, SUPPORTED_GROUPS))} are supported"
        )


def _quantize_groups(w: Float32, bits: int) -> tuple[npt.NDArray[np.uint8], Float32, Float32]:
    """Codes (n, group), scales (n,) and biases (n,) of n groups."""
    if not np.isfinite(w).all():
        raise InvalidArgument("a weight is NaN or infinite; such a matrix cannot be quantized")
    largest = np.float32((1 << bits) - 1)
    low, high = w.min(-1), w.max(-1)
    with np.errstate(over="ignore"):
        span = high - low
    if not np.isfinite(span).all():
        raise InvalidArgument(
            "the weights of a group span more than float32 holds; such a matrix cannot be quantized"
        )
    low_is_edge = np.abs(low) > np.abs(high)
    scale = np.maximum(span / largest, _EPS)
    scale = np.where(low_is_edge, scale, -scale)
    edge = np.where(low_is_edge, low, high)
    steps = np.rint(edge / scale)
    stepped = steps != 0
    scale = np.where(stepped, edge / np.where(stepped, steps, np.float32(1)), scale)
    bias = np.where(stepped, edge, np.float32(0))
    codes = np.rint((w - bias[:, None]) / scale[:, None])
    return np.clip(codes, np.float32(0), largest).astype(np.uint8), scale, bias


def pack(codes: npt.NDArray[np.uint8], bits: int) -> UInt32:
    """Pack codes (..., in) below 2^bits into one bit stream a row, (..., in * bits / 32) words."""
    eight = codes.reshape(-1, 8).astype(np.uint64)
    stream = np.zeros(len(eight), np.uint64)
    for i in range(8):
        stream |= eight[:, i] << np.uint64(i * bits)
    lanes = stream.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :bits]
    out: UInt32 = np.ascontiguousarray(lanes).reshape(*codes.shape[:-1], -1).view("<u4")
    return out


def unpack(words: UInt32, bits: int) -> npt.NDArray[np.uint8]:
    """Undo `pack`: (..., in * bits / 32) words to (..., in) codes."""
    lanes = np.ascontiguousarray(words, "<u4").view(np.uint8).reshape(-1, bits)
    wide = np.zeros((len(lanes), 8), np.uint8)
    wide[:, :bits] = lanes
    stream = wide.view("<u8")
    shifts = np.arange(8, dtype=np.uint64) * np.uint64(bits)
    codes = ((stream >> shifts) & np.uint64((1 << bits) - 1)).astype(np.uint8)
    out: npt.NDArray[np.uint8] = codes.reshape(*words.shape[:-1], words.shape[-1] * 32 // bits)
    return out


def dequantize(
    words: UInt32, scales: UInt16, biases: UInt16, bits: int, group: int
) -> npt.NDArray[np.float64]:
    """Compute scale * code + bias in float64, exactly: (..., in * bits / 32) words to (..., in) values."""
    check_affine(bits, group)
    codes = unpack(words, bits).astype(np.float64)
    grouped = codes.reshape(*codes.shape[:-1], -1, group)
    s, b = (bf16_to_float32(a).astype(np.float64)[..., None] for a in (scales, biases))
    return (s * grouped + b).reshape(codes.shape)
