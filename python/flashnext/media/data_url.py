"""Reads `data:` URLs."""

from __future__ import annotations

import binascii
import re

from flashnext.media.errors import MediaError

_HEAD = re.compile(r"data:([^,]{0,300}),", re.IGNORECASE)
_OUTSIDE = re.compile(r"[^A-Za-z0-9+/]")
_PIECE = 2**16  # characters that are read at once, a millisecond in which no other thread runs


def read_data_url(url: str, most_bytes: int) -> bytes:
    """Take the bytes out of a base64 `data:` URL. What type it claims does not count: its first bytes do.

    Args:
        url: The whole URL. Padding at the end may be missing.
        most_bytes: That it may hold; nothing is decoded of a longer one.

    Raises:
        MediaError: It is not such a URL, not base64, empty or too long.
    """
    head = _HEAD.match(url)
    if head is None:
        raise MediaError("expected a URL of the form data:image/png;base64,... with a comma behind base64")
    if not head[1].lower().endswith(";base64"):
        raise MediaError("the data: URL must be base64 (data:image/png;base64,...), not percent-encoded")
    start = head.end()
    n = (len(url) - start) * 3 // 4
    if n - 2 > most_bytes:
        raise MediaError(f"the base64 holds about {n} bytes; at most {most_bytes} are read")
    tail = url[max(start, len(url) - 8) :]
    end = len(url) - len(tail) + len(tail.rstrip("="))
    n_padding = (start - end) % 4
    data = bytearray()
    for at in range(start, end, _PIECE):
        piece = url[at : min(at + _PIECE, end)]
        wrong = _OUTSIDE.search(piece)
        if wrong is not None:
            place = at + wrong.start()
            behind = url[place:].lstrip("=")
            if behind[:1].isspace():  # as the end of a line behind padding, which is what is wrong then
                place = len(url) - len(behind)
            raise MediaError(
                f"the base64 has {url[place]!a} at character {place - start}; only "
                "A-Z, a-z, 0-9, + and / are allowed, = at the end, and no white space"
            )
        if len(piece) % 4 != 1:
            data += binascii.a2b_base64(piece.encode("ascii") + b"=" * (-len(piece) % 4))
    if n_padding == 3 or len(url) not in (end, end + n_padding):
        raise MediaError("the base64 has a length that no bytes have")
    if not data:
        raise MediaError("the data: URL holds no bytes")
    if len(data) > most_bytes:
        raise MediaError(f"the base64 holds {len(data)} bytes; at most {most_bytes} are read")
    return bytes(data)
