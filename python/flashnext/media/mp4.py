"""Looks over the headers of an MP4 file before a demuxer does.

FFmpeg makes an index of all samples that a header declares, also of samples that lie nowhere: of 2^25, which
a file of 584 bytes can declare, it takes 1.2 GiB. PCM sound really has millions. So all tracks but video are
taken out, and the rest is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flashnext.media.errors import MediaError

_PATHS = {b"moov": b"", b"trak": b"moov", b"mdia": b"trak"}
"""Boxes that are looked into, and where they belong."""

_COUNTS = {b"stsz": 8, b"stz2": 8, b"trun": 4}
"""Boxes that declare samples, and where in them the count stands."""

_TELLING = re.compile(b"stsz|stz2|trun|cmov")
_MOST_BOXES = 1_000_000
_FRAGMENTED = 8
"""Fragments do not say what they are of: together they may have that many times as many samples."""


def video_only(data: bytes, most_samples: int) -> bytes:
    """Take out tracks that are not video, and refuse headers that declare too much.

    Args:
        data: The whole file.
        most_samples: Of all its video tracks together.

    Returns:
        The file, with the other tracks named so that demuxers skip them.

    Raises:
        MediaError: Compressed headers, too many boxes or too many samples.
    """
    unread, tracks = _laid_out(data)
    others = [(start, end) for start, end, handlers in tracks if handlers != {b"vide"}]
    whole = fragments = at = 0
    for start, end in [*sorted([*unread, *others]), (len(data), len(data))]:
        for found in _TELLING.finditer(data, at, max(at, start)):
            kind = found[0]
            if kind == b"cmov":
                raise MediaError("the MP4 has compressed headers, which are not read")
            count = found.end() + _COUNTS[kind]
            n = int.from_bytes(data[count : count + 4], "big")
            whole, fragments = (whole, fragments + n) if kind == b"trun" else (whole + n, fragments)
        at = max(at, end)
    n = max(whole, fragments // _FRAGMENTED)
    if n > most_samples:
        raise MediaError(f"the MP4 says that it has {n} frames; at most {most_samples} are read")
    if not others:
        return data
    out = bytearray(data)
    for start, _ in others:
        out[start + 4 : start + 8] = b"skip"
    return bytes(out)


def _laid_out(data: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int, set[bytes]]]]:
    """Find where samples lie, and the tracks: start, end and what their handlers say that they are of."""
    samples: list[tuple[int, int]] = []
    tracks: list[tuple[int, int, set[bytes]]] = []
    for n, (path, start, inside, end) in enumerate(_boxes(data)):
        if n == _MOST_BOXES:
            raise MediaError(f"the MP4 has more than {_MOST_BOXES} boxes")
        if path == (b"mdat",):
            samples.append((start, end))
        elif path == (b"moov", b"trak"):
            tracks.append((start, end, set()))
        elif path == (b"moov", b"trak", b"mdia", b"hdlr"):
            tracks[-1][2].add(data[inside + 8 : inside + 12])
    return samples, tracks


def _boxes(data: bytes) -> Iterator[tuple[tuple[bytes, ...], int, int, int]]:
    """Yield each box: its path of kinds, where it starts, where what it holds does, and where that ends."""
    around: list[tuple[bytes, int]] = []
    at = 0
    while True:
        limit = around[-1][1] if around else len(data)
        size, inside = int.from_bytes(data[at : at + 4], "big"), at + 8
        if size == 1:
            size, inside = int.from_bytes(data[at + 8 : at + 16], "big"), at + 16
        end = min(at + size, limit) if size else limit
        if inside > end:  # nothing more here, or a box shorter than its own head
            if not around:
                return
            at = around.pop()[1]
            continue
        kind = data[at + 4 : at + 8]
        yield (*(outer for outer, _ in around), kind), at, inside, end
        if kind in _PATHS and _PATHS[kind] == (around[-1][0] if around else b""):
            around.append((kind, end))
            at = inside
        else:
            at = end
