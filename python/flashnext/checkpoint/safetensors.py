"""Reading headers of the safetensors format, strictly and without touching the tensors.

A file is eight bytes (little-endian length N), N bytes of JSON (name -> dtype, shape, data_offsets), then the
tensors' bytes without holes. Source: the format's specification and reference reader
(huggingface/safetensors, `tensor.rs`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashnext.checkpoint.fields import shown
from flashnext.checkpoint.folder import parse_json
from flashnext.errors import CheckpointError

HEADER_LIMIT_BYTES: Final = 100_000_000  # the cap of the format's own reader

# Bits an element. Names that flashnext cannot use are still known here, so that it can refuse a tensor by
# name.
DTYPE_BITS: Final[Mapping[str, int]] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class TensorRef:
    """Where one tensor lies.

    Attributes:
        name: As the file spells it.
        path: The file.
        offset: First byte, counted from the start of the file.
        nbytes: Bytes; equals the size of `shape` in `dtype`.
        dtype: A key of `DTYPE_BITS`.
        shape: Elements along each axis; () for a scalar.
    """

    name: str
    path: Path
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorRef]:
    """Read and check the header of a file; of the tensors' bytes only their count is looked at.

    Returns:
        The tensors by name, in order of their offsets.

    Raises:
        CheckpointError: The file is cut short, has bytes left over, or its header is not a valid one.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(_exactly(file.read(8), 8, path), "little")
            if length > HEADER_LIMIT_BYTES:
                raise CheckpointError(
                    f"{path}: the header claims {length} bytes, but at most {HEADER_LIMIT_BYTES} are allowed"
                )
            if length > size - 8:
                raise CheckpointError(
                    f"{path}: the header claims {length} bytes, but the file has only {size} bytes; fetch it "
                    "again"
                )
            header = _exactly(file.read(length), length, path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    return parse_header(header, size - 8 - length, path)


def _exactly(data: bytes, count: int, path: Path) -> bytes:
    if len(data) != count:
        raise CheckpointError(
            f"{path} ends inside its header after {len(data)} of {count} bytes; fetch it again"
        )
    return data


def parse_header(header: bytes, data_bytes: int, path: Path) -> dict[str, TensorRef]:
    """Check the JSON of a header against the count of bytes that follow it.

    Args:
        header: The bytes between the length and the data.
        data_bytes: Bytes of the file after the header; the tensors must fill them exactly.
        path: Named in errors and in the result.

    Returns:
        The tensors by name, in order of their offsets.

    Raises:
        CheckpointError: One sentence naming the file, the tensor, what is expected and what was found.
    """
    if not header.startswith(b"{"):
        raise CheckpointError(f"{path}: the header must be a JSON object, found {shown(header[:16])}")
    entries = parse_json(header, f"{path}: the header")
    _check_metadata(entries.pop("__metadata__", None), path)
    base = 8 + len(header)
    refs = [_parse_entry(name, entry, base, path) for name, entry in entries.items()]
    refs.sort(key=lambda ref: (ref.offset, ref.offset + ref.nbytes))
    end = base
    for ref in refs:
        if ref.offset != end:
            what = "overlaps the tensor before it" if ref.offset < end else "leaves a hole before it"
            raise CheckpointError(
                f"{path}: tensor {shown(ref.name)} {what}: it starts at data byte {ref.offset - base}, "
                f"expected {end - base}"
            )
        end += ref.nbytes
    if end - base > data_bytes:
        last = shown(refs[-1].name)
        raise CheckpointError(
            f"{path}: the file is shorter than its header says: tensor {last} ends at data byte "
            f"{end - base}, but only {data_bytes} bytes follow the header; fetch it again"
        )
    if end - base < data_bytes:
        raise CheckpointError(
            f"{path}: {data_bytes - (end - base)} bytes are left over after the last tensor; fetch the file "
            "again"
        )
    return {ref.name: ref for ref in refs}


def _check_metadata(metadata: Any, path: Path) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must map strings to strings, found {shown(metadata)}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _parse_entry(name: str, entry: Any, base: int, path: Path) -> TensorRef:
    where = f"{path}: tensor {shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{where} must have exactly dtype, shape and data_offsets, found {shown(entry)}"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where} has the unknown dtype {shown(dtype)}")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise CheckpointError(f"{where} has the shape {shown(shape)}, expected a list of whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise CheckpointError(f"{where} has the data_offsets {shown(offsets)}, expected two whole numbers")
    begin, end = offsets
    if begin > end:
        raise CheckpointError(f"{where} begins at data byte {begin}, after its end at {end}")
    if end - begin != tensor_bytes(dtype, shape):
        raise CheckpointError(
            f"{where} has {end - begin} bytes, but {dtype} of shape {shown(shape)} needs "
            f"{tensor_bytes(dtype, shape)}"
        )
    return TensorRef(name, path, base + begin, end - begin, dtype, tuple(shape))


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a tensor, or -1 where they exceed 2^63 or are no whole number."""
    sizes = list(shape)
    if 0 in sizes:
        return 0
    bits = DTYPE_BITS[dtype]
    for size in sizes:
        bits *= size
        if bits >= 2**66:
            return -1
    return bits // 8 if bits % 8 == 0 else -1
