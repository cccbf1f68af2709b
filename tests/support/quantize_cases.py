"""Matrices that try every corner of affine quantization, equal on every machine and numpy version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from flashnext.checkpoint.quantize import float32_to_bf16

UInt16 = npt.NDArray[np.uint16]
ROWS, GROUPS = 48, 2


def random_bytes(seed: str, count: int) -> npt.NDArray[np.uint8]:
    """`count` bytes that depend on `seed` alone."""
    return np.frombuffer(hashlib.shake_256(seed.encode()).digest(count), np.uint8)


def bell(seed: str, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Values of about unit size, bell-shaped, on a grid of 1/256."""
    total = random_bytes(seed, 8 * shape[0] * shape[1]).reshape(*shape, 8).astype(np.float32).sum(-1)
    out: npt.NDArray[np.float32] = (total - np.float32(1020)) / np.float32(256)
    return out


def cases(group: int) -> Iterator[tuple[str, UInt16]]:
    """Yield (name, (48, 2 * group) bfloat16 bit patterns); all finite, the spans of groups too."""
    shape = (ROWS, GROUPS * group)
    x = bell("x", shape)
    first = np.arange(shape[1]) % group == 0
    steps = np.rint(x * np.float32(4))
    tables: dict[str, npt.NDArray[Any]] = {
        "bell": x,
        "small": x * np.float32(1e-3),
        "large": x * np.float32(1e30),
        "below eps": x * np.float32(1e-9),
        "subnormal": x * np.float32(2.0**-128),
        "positive": np.abs(x),
        "negative": -np.abs(x),
        "far from zero": x + np.float32(300),
        "far below zero": x - np.float32(300),
        "skewed": np.where(x > 0, x * np.float32(16), x),
        "whole numbers": steps,
        "halves": steps / np.float32(2) + np.float32(0.5),
        "zeros": np.zeros(shape, np.float32),
        "negative zeros": np.full(shape, -0.0, np.float32),
        "constant": np.full(shape, -3.5, np.float32),
        "constant rows": np.repeat(x[:, :1], shape[1], 1),
        "one value": np.where(first, x, np.float32(0)),
        "two values": np.where(x > 0, np.float32(1), np.float32(-1)),
        "equal ends": np.clip(x, -1, 1),
    }
    for name, values in tables.items():
        yield name, float32_to_bf16(values)
    any_bits = random_bytes("any", 2 * shape[0] * shape[1]).view("<u2").reshape(shape)
    exponent_full = (
        any_bits & 0x7F80
    ) >= 0x7F00  # infinite, NaN, or so large that a group's span would overflow
    yield "any bits", np.where(exponent_full, any_bits & 0x80FF, any_bits).astype(np.uint16)


def digest(*arrays: npt.NDArray[Any]) -> str:
    """SHA-256 over the bytes of the arrays."""
    out = hashlib.sha256()
    for array in arrays:
        out.update(np.ascontiguousarray(array).tobytes())
    return out.hexdigest()
