"""Affine quantization: bit-equal to mlx, and a packing that the float64 reference and mlx both read."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flashnext.checkpoint.quantize import (
    bf16_to_float32,
    dequantize,
    float32_to_bf16,
    pack,
    quantize,
    unpack,
)
from flashnext.errors import InvalidArgument
from hypothesis import given, settings
from hypothesis import strategies as st
from support.quantize_cases import bell, cases, digest

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
RECORDED: dict[str, str] = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "data" / "quantize_mlx.json.gz").read_bytes())
)["digests"]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", BITS)
def test_every_bit_equals_what_mlx_was_recorded_to_give(bits: int, group: int) -> None:
    for name, weights in cases(group):
        found = digest(weights, *quantize(weights, bits, group))
        assert found == RECORDED[f"{bits} bits, group {group}, {name}"], name


@pytest.fixture(scope="module")
def mx() -> Any:
    module = pytest.importorskip("mlx.core", reason="needs the extra `oracle` (mlx, and mlx-cpu on Linux)")
    module.set_default_device(module.cpu)
    return module


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", BITS)
def test_every_bit_equals_what_mlx_gives_now(mx: Any, bits: int, group: int) -> None:
    seed = 1000 * bits + group
    rng = np.random.default_rng(seed)
    random = rng.standard_normal((3, 40, 2 * group)) * np.exp(rng.normal(0, 8, (3, 40, 1)))
    tables = [*cases(group), (f"random stack, seed {seed}", float32_to_bf16(random.astype(np.float32)))]
    for name, weights in tables:
        theirs = mx.quantize(mx.array(weights).view(mx.bfloat16), group_size=group, bits=bits)
        words, scales, biases = quantize(weights, bits, group)
        np.testing.assert_array_equal(words, np.array(theirs[0]), err_msg=name)
        np.testing.assert_array_equal(scales, np.array(theirs[1].view(mx.uint16)), err_msg=name)
        np.testing.assert_array_equal(biases, np.array(theirs[2].view(mx.uint16)), err_msg=name)


@pytest.mark.parametrize("bits", BITS)
def test_mlx_reads_back_the_values_that_dequantize_gives(mx: Any, bits: int) -> None:
    weights = float32_to_bf16(bell("read", (32, 128)))
    words, scales, biases = quantize(weights, bits, 32)
    # In float32 mlx multiplies and adds with at most two roundings.
    wide = [mx.array(bf16_to_float32(x)) for x in (scales, biases)]
    theirs = np.array(mx.dequantize(mx.array(words), *wide, group_size=32, bits=bits)).astype(np.float64)
    ours = dequantize(words, scales, biases, bits, 32)
    bound = 2 * 2.0**-24 * (np.abs(ours) + np.abs(np.repeat(bf16_to_float32(biases), 32, -1)))
    assert (np.abs(ours - theirs) <= bound).all()


def reference_pack(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    """One little-endian bit stream a row: code i occupies bits [i * bits, (i + 1) * bits)."""
    stream = (codes[..., None].astype(np.int64) >> np.arange(bits)) & 1
    flat = stream.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    return np.packbits(flat, axis=-1, bitorder="little").view("<u4")


@settings(max_examples=100, deadline=None)
@given(
    bits=st.sampled_from(BITS), rows=st.integers(1, 5), words=st.integers(1, 5), seed=st.integers(0, 2**32)
)
def test_packing_is_one_little_endian_bit_stream_a_row(bits: int, rows: int, words: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (rows, 32 * words)).astype(np.uint8)
    packed = pack(codes, bits)
    np.testing.assert_array_equal(packed, reference_pack(codes, bits))
    np.testing.assert_array_equal(unpack(packed, bits), codes)


@pytest.mark.parametrize("bits", BITS)
def test_a_value_moves_by_at_most_a_step(bits: int) -> None:
    weights = float32_to_bf16(bell("move", (64, 256)))
    words, scales, biases = quantize(weights, bits, 64)
    found = dequantize(words, scales, biases, bits, 64)
    exact = bf16_to_float32(weights).astype(np.float64)
    step = np.repeat(np.abs(bf16_to_float32(scales)).astype(np.float64), 64, -1)
    # Half a step by rounding, half a step by clipping at the far end, and the rounding of the scale times the
    # largest code.
    assert (np.abs(found - exact) <= step * (1 + 2.0**-8 * (1 << bits)) + 1e-12).all()


def test_zero_stays_exactly_zero() -> None:
    weights = float32_to_bf16(bell("zero", (64, 128)))
    weights[:, ::7] = 0
    for bits in BITS:
        words, scales, biases = quantize(weights, bits, 32)
        codes = unpack(words, bits)[:, ::7].astype(np.float64)
        groups = np.arange(0, 128, 7) // 32
        steps = bf16_to_float32(biases).astype(np.float64)[:, groups] / bf16_to_float32(scales)[:, groups]
        # bias is a whole number of unrounded scales; the stored scale is rounded by 2^-9 of itself
        np.testing.assert_allclose(codes, -steps, rtol=2**-8)


@pytest.mark.parametrize("value", [0x7FC0, 0x7F80, 0xFF80, 0xFFFF])
def test_nan_and_infinity_are_refused(value: int) -> None:
    weights = np.zeros((4, 64), np.uint16)
    weights[2, 40] = value
    with pytest.raises(InvalidArgument, match="a weight is NaN or infinite"):
        quantize(weights, 4, 32)


def test_a_span_beyond_float32_is_refused() -> None:
    weights = np.zeros((1, 32), np.uint16)
    weights[0, :2] = 0x7F00, 0xFF00  # +-1.7e38
    with pytest.raises(InvalidArgument, match="span more than float32 holds"):
        quantize(weights, 4, 32)


@pytest.mark.parametrize(
    ("bits", "group", "width", "words"),
    [
        (0, 32, 64, "bits is 0, but only 2, 3, 4, 5, 6, 8 are supported"),
        (7, 32, 64, "bits is 7"),
        (4, 16, 64, "group is 16, but only 32, 64, 128 are supported"),
        (4, 64, 160, "cannot be cut into groups of 64"),
    ],
)
def test_unsupported_sizes_are_refused(bits: int, group: int, width: int, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        quantize(np.zeros((2, width), np.uint16), bits, group)


def test_rounding_to_bfloat16_is_to_nearest_even_with_nan_kept() -> None:
    values = np.array(
        [1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -2.5, 3.4e38, np.inf, np.nan], np.float32
    )
    expected = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC020, 0x7F80, 0x7F80, 0x7FC0]
    assert float32_to_bf16(values).tolist() == expected
    patterns = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    finite = patterns[(patterns & 0x7F80) != 0x7F80]
    np.testing.assert_array_equal(float32_to_bf16(bf16_to_float32(finite)), finite)


def test_memory_beside_the_result_does_not_grow_with_the_matrix() -> None:
    weights = np.zeros((8192, 1024), np.uint16)
    tracemalloc.start()
    result = quantize(weights, 4, 32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sum(part.nbytes for part in result) + 24e6
