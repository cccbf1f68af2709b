"""The header reader: strict, never another exception, and in agreement with the format's own reader."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from flashnext.checkpoint.safetensors import DTYPE_BITS, parse_header, read_header, tensor_bytes
from flashnext.checkpoint.writer import SafetensorsWriter, TensorPlan
from flashnext.errors import CheckpointError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.mutate import join

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}
DATA = bytes(range(32))
GOOD = {"a": A, "b": B}


def encode(header: Any) -> bytes:
    return json.dumps(header).encode()


def test_tensors_come_with_absolute_offsets(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = encode({"__metadata__": {"format": "pt"}, "b": B, "a": A}) + b"   "
    path.write_bytes(join(header, DATA))
    refs = read_header(path)
    assert list(refs) == ["a", "b"]
    assert (refs["a"].dtype, refs["a"].shape, refs["a"].nbytes) == ("F32", (2, 3), 24)
    content = path.read_bytes()
    for name, expected in (("a", DATA[:24]), ("b", DATA[24:])):
        assert content[refs[name].offset : refs[name].offset + refs[name].nbytes] == expected


def test_scalars_empty_tensors_and_empty_files_are_valid(tmp_path: Path) -> None:
    header = {
        "empty": {"dtype": "F32", "shape": [0, 7], "data_offsets": [0, 0]},
        "scalar": {"dtype": "F64", "shape": [], "data_offsets": [0, 8]},
        "end": {"dtype": "U8", "shape": [2, 0], "data_offsets": [8, 8]},
    }
    refs = parse_header(encode(header), 8, tmp_path)
    assert refs["scalar"].shape == ()
    assert refs["empty"].nbytes == refs["end"].nbytes == 0
    assert parse_header(b"{}", 0, tmp_path) == {}


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (2**64 - 8, "the header claims 18446744073709551608 bytes, but at most 100000000 are allowed"),
        (200_000_000, "the header claims 200000000 bytes, but at most 100000000 are allowed"),
        (0, "the header must be a JSON object, found b''"),
        (1000, "the header claims 1000 bytes, but the file has only"),
        (3, "is not valid JSON"),
    ],
)
def test_a_wrong_header_length_is_refused(tmp_path: Path, length: int, words: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + encode(GOOD) + DATA)
    with pytest.raises(CheckpointError, match=words):
        read_header(path)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_file_shorter_than_the_length_field_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"\0" * size)
    with pytest.raises(CheckpointError, match=f"ends inside its header after {size} of 8 bytes"):
        read_header(path)


@pytest.mark.parametrize("cut", [1, 8, 31, 32])
def test_a_file_cut_short_after_its_header_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(join(encode(GOOD), DATA)[:-cut])
    with pytest.raises(
        CheckpointError, match="shorter than its header says: tensor 'b' ends at data byte 32"
    ):
        read_header(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(tmp_path / "x.safetensors")


def shifted(entry: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    return entry | {"data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": A}, "8 bytes are left over after the last tensor"),
        (
            {"a": A, "b": shifted(B, 20, 28)},
            "tensor 'b' overlaps the tensor before it: it starts at data byte 20",
        ),
        ({"a": A, "b": shifted(A, 0, 24)}, "tensor 'b' overlaps the tensor before it"),
        (
            {"a": A, "b": shifted(B, 26, 34)},
            "tensor 'b' leaves a hole before it: it starts at data byte 26, expected 24",
        ),
        ({"a": shifted(A, 8, 32)}, "tensor 'a' leaves a hole before it"),
        ({"a": shifted(A, 24, 0), "b": B}, "tensor 'a' begins at data byte 24, after its end at 0"),
        ({"a": shifted(A, 0, 23), "b": B}, "tensor 'a' has 23 bytes, but F32 of shape .* needs 24"),
        ({"a": A | {"shape": [2**40, 2**40]}}, "tensor 'a' has 24 bytes, but F32 of shape .* needs -1"),
        ({"a": A | {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, "has 1 bytes, but F4"),
        ({"a": A | {"dtype": "f32"}}, "tensor 'a' has the unknown dtype 'f32'"),
        ({"a": A | {"dtype": 3}}, "unknown dtype 3"),
        ({"a": A | {"dtype": ["F32"]}}, r"unknown dtype \['F32'\]"),
        ({"a": A | {"shape": [2, 3.0]}}, r"has the shape \[2, 3.0\], expected a list of whole numbers"),
        ({"a": A | {"shape": [2, True]}}, "has the shape"),
        ({"a": A | {"shape": [-2, -3]}}, "has the shape"),
        ({"a": A | {"shape": 6}}, "has the shape 6"),
        ({"a": A | {"shape": [2**64, 0]}}, "has the shape"),
        ({"a": A | {"data_offsets": [0]}}, r"has the data_offsets \[0\], expected two whole numbers"),
        ({"a": A | {"data_offsets": [0, 24.0]}}, "has the data_offsets"),
        ({"a": A | {"data_offsets": {"0": 24}}}, "has the data_offsets"),
        ({"a": A | {"strides": [3, 1]}}, "must have exactly dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32"}}, "must have exactly dtype, shape and data_offsets"),
        ({"a": None}, "must have exactly dtype, shape and data_offsets, found None"),
        ({"__metadata__": {"format": 1}}, "__metadata__ must map strings to strings"),
        ({"__metadata__": "pt"}, "__metadata__ must map strings to strings"),
    ],
    ids=str,
)
def test_bad_headers_are_refused_naming_the_tensor(tmp_path: Path, header: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        parse_header(encode(header), len(DATA), tmp_path / "x.safetensors")
    assert str(tmp_path / "x.safetensors") in str(caught.value)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"[]", "must be a JSON object"),
        (b' {"a":1}', "must be a JSON object"),
        (b'{"a":' + encode(A) + b',"a":' + encode(A) + b"}", "has the key 'a' twice"),
        (b'{"a":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}', "has the key 'dtype' twice"),
        (b'{"a":NaN}', "holds NaN, which is not JSON"),
        (b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', "has the shape"),
        (b'{"a":' + b"[" * 100_000, "is nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b'{"\xff":1}', "is not UTF-8 at byte 2"),
        (b'{"\\ud83d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', "holds half of a surrogate pair"),
        (b'{"a":1', "is not valid JSON"),
        (b'{"a\x01":1}', "is not valid JSON"),
        (b"{} x", "is not valid JSON"),
    ],
)
def test_headers_that_are_not_strict_json_are_refused(tmp_path: Path, header: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        parse_header(header, 0, tmp_path)


def accepted_by_both(content: bytes) -> bool:
    """Whether our reader takes the file; if so, the format's own must too, and see the same tensors."""
    length = int.from_bytes(content[:8], "little")
    path = Path("x.safetensors")
    if len(content) < 8 or not 0 < length <= len(content) - 8:
        return False
    try:
        refs = parse_header(content[8 : 8 + length], len(content) - 8 - length, path)
    except CheckpointError as error:
        assert str(error).isprintable()
        return False
    theirs = dict(safetensors.deserialize(content))  # type: ignore[no-untyped-call]
    assert theirs.keys() == refs.keys()
    for name, ref in refs.items():
        assert list(ref.shape) == list(theirs[name]["shape"])
        assert ref.dtype == theirs[name]["dtype"]
        assert content[ref.offset : ref.offset + ref.nbytes] == bytes(theirs[name]["data"])
    return True


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 40)
    | st.floats()
    | st.sampled_from([2**63, 2**64, "F32", "BF16", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "F8_E4M3", "X"]) | VALUE,
        "shape": st.lists(st.integers(0, 4), max_size=3) | VALUE,
        "data_offsets": st.lists(st.integers(0, 32), min_size=2, max_size=2) | VALUE,
    }
)


@settings(max_examples=300, deadline=None)
@given(
    header=st.dictionaries(
        st.sampled_from(["a", "b", "\u00e9", "__metadata__"]) | st.text(max_size=3), ENTRY | VALUE
    ),
    size=st.integers(0, 40),
)
def test_random_headers_are_accepted_only_where_the_formats_reader_agrees(header: Any, size: int) -> None:
    accepted_by_both(join(encode(header), bytes(size)))


@settings(max_examples=1000, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 3) | st.just(200),
)
@example(edits=[(300, 0)], cut=0)
def test_flipped_bytes_and_cuts_are_accepted_only_where_the_formats_reader_agrees(
    edits: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(join(encode({"__metadata__": {"k": "v"}} | GOOD), DATA))
    for at, byte in edits:
        content[at % len(content)] = byte
    accepted_by_both(bytes(content[: len(content) - cut]))


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=64))
def test_random_bytes_never_raise_another_exception(content: bytes) -> None:
    accepted_by_both(content)


def test_the_undamaged_file_is_accepted_by_both() -> None:
    assert accepted_by_both(join(encode({"__metadata__": {"k": "v"}} | GOOD), DATA))


def test_every_dtype_of_the_format_is_known() -> None:
    for name, bits in DTYPE_BITS.items():
        header = {"x": {"dtype": name, "shape": [8], "data_offsets": [0, bits]}}
        assert accepted_by_both(join(encode(header), bytes(bits))), name


def test_tensor_bytes_is_exact_and_bounded() -> None:
    assert tensor_bytes("BF16", ()) == 2
    assert tensor_bytes("F4", (2, 3)) == 3
    assert tensor_bytes("F4", (3,)) == -1
    assert tensor_bytes("U8", (2**62,)) == 2**62
    assert tensor_bytes("U8", (2**64,)) == -1
    assert tensor_bytes("U8", (2**64, 0)) == 0


def write(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    plans = [TensorPlan(name, {"f": "F32", "u": "U8"}[x.dtype.kind], x.shape) for name, x in tensors.items()]
    with SafetensorsWriter(path, plans, {"format": "pt"}) as writer:
        for name, x in tensors.items():
            writer.append(name, x.tobytes())


def test_written_files_are_read_by_the_formats_own_reader(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    shapes: list[tuple[int, ...]] = [(), (0,), (3,), (16, 16), (5, 2, 3), (64,)]
    tensors = {f"t{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    tensors["bytes"] = rng.integers(0, 255, 7).astype(np.uint8)
    write(tmp_path / "x.safetensors", tensors)
    loaded = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, x in tensors.items():
        np.testing.assert_array_equal(loaded[name], x)
    refs = read_header(tmp_path / "x.safetensors")
    for name, x in tensors.items():
        if x.nbytes % 64 == 0:
            assert refs[name].offset % 64 == 0, name


def test_pieces_of_tensors_may_come_interleaved(tmp_path: Path) -> None:
    plans = [TensorPlan("a", "U8", (6,)), TensorPlan("b", "U8", (4,))]
    with SafetensorsWriter(tmp_path / "x.safetensors", plans, {}) as writer:
        for name, piece in (("b", b"B1"), ("a", b"A12"), ("b", b"B2"), ("a", b"A34")):
            writer.append(name, piece)
    loaded = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    assert loaded["a"].tobytes() == b"A12A34"
    assert loaded["b"].tobytes() == b"B1B2"


@pytest.mark.parametrize("fail", ["exception", "too few bytes", "too many bytes", "unknown tensor"])
def test_a_failed_write_leaves_no_file(tmp_path: Path, fail: str) -> None:
    plans = [TensorPlan("a", "U8", (6,))]
    with pytest.raises((ValueError, KeyError, KeyboardInterrupt)):  # noqa: SIM117
        with SafetensorsWriter(tmp_path / "x.safetensors", plans, {}) as writer:
            writer.append("a", b"123")
            if fail == "exception":
                raise KeyboardInterrupt
            if fail == "too many bytes":
                writer.append("a", b"1234")
            if fail == "unknown tensor":
                writer.append("b", b"")
    assert list(tmp_path.iterdir()) == []


def test_a_name_planned_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tensor a is planned twice"):
        SafetensorsWriter(tmp_path / "x", [TensorPlan("a", "U8", (1,)), TensorPlan("a", "U8", (1,))], {})


def test_a_large_header_is_read_in_time_linear_in_its_size(tmp_path: Path) -> None:
    count = 20_000
    header = {f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(count)}
    refs = parse_header(encode(header), count, tmp_path)
    assert len(refs) == count
    wide = {"w": {"dtype": "U8", "shape": [1] * 200_000 + [3], "data_offsets": [0, 3]}}
    assert math.prod(parse_header(encode(wide), 3, tmp_path)["w"].shape) == 3
