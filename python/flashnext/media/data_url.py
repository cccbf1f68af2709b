"""Reads `data:` URLs."""

from __future__ import annotations

import binascii
import re

from flashnext.media.errors import MediaError

_HEAD = re.compile(r"data:([^,]{0,300}),", re.IGNORECASE)
_OUTSIDE = re.compile(r"[^A-Za-z0-9+/]")


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
        raise MediaError(f"the data: URL holds about {n} bytes; at most {most_bytes} are read")
    text = url[start:]
    body = text.rstrip("=")
    wrong = _OUTSIDE.search(body)
    if wrong is not None:
        raise MediaError(
            f"the base64 of the data: URL has {wrong[0]!a} at character {wrong.start()}; only "
            "A-Z, a-z, 0-9, + and / are allowed, = at the end, and no white space"
        )
    n_padding = -len(body) % 4
    if n_padding == 3 or len(text) not in (len(body), len(body) + n_padding):
        raise MediaError("the base64 of the data: URL has a length that no bytes have")
    data = binascii.a2b_base64(body.encode("ascii") + b"=" * n_padding)
    if not data:
        raise MediaError("the data: URL holds no bytes")
    if len(data) > most_bytes:
        raise MediaError(f"the data: URL holds {len(data)} bytes; at most {most_bytes} are read")
    return data
