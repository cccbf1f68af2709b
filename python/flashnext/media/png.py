"""Counts what a PNG's rows hold: Pillow leaves rows that are missing black and says nothing."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of an interlaced file: first column and row, steps to the next ones (PNG specification, 8.2)."""
_PIECE = 2**16


def rows_are_missing(data: bytes) -> bool:
    """Whether the compressed rows of a PNG end, without a fault of their own, before its height.

    Args:
        data: The whole file, of which a header could be read.
    """
    need = _row_bytes(data)
    inflate = zlib.decompressobj()
    n = 0
    for packed in _row_chunks(data):
        while packed and not inflate.eof:
            try:
                n += len(inflate.decompress(packed, _PIECE))
            except zlib.error:
                return False  # which the decoder finds too
            if n >= need:
                return False
            packed = inflate.unconsumed_tail
    return inflate.eof


def _row_bytes(data: bytes) -> int:
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    depth, colour, interlaced = data[24], data[25], data[28]
    bits = depth * _CHANNELS.get(colour, 0)
    passes = _PASSES if interlaced else ((0, 0, 1, 1),)
    sizes = ((-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in passes)
    return sum(rows * (1 + -(-columns * bits // 8)) for columns, rows in sizes if columns > 0)


def _row_chunks(data: bytes) -> Iterator[bytes]:
    at = 8
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IDAT":
            yield data[at + 8 : at + 8 + length]
        at += length + 12
