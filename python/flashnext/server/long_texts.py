"""JSON with long plain texts, which pictures in base64 are: they are cut out before it is parsed.

The parser of the standard library reads a text in one go, in which no other thread runs, the event loop's and
the engine's among them. What is cut out needs no parser: it has no quote, no backslash and no white space.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from typing import Any

LONG_BYTES = 64 * 1024
"""Texts from twice this length on are cut out."""
_BEGINS = frozenset((string.ascii_letters + string.digits + "+/").encode())
_PLAIN = (string.ascii_letters + string.digits + "+/=:;,.-_~%*").encode()
_PIECE = 2**20


def cut_out(data: bytes | bytearray) -> tuple[bytes | bytearray, dict[str, str]]:
    """Put short words in place of long plain texts.

    Args:
        data: JSON, perhaps.

    Returns:
        What is JSON if that was, and the texts by their words, which nobody can guess.
    """
    pieces: list[bytes | bytearray] = []
    texts: dict[str, str] = {}
    word = secrets.token_hex(16)
    done = at = 0
    while at + LONG_BYTES <= len(data):
        if data.find(b'"', at, at + LONG_BYTES) >= 0:
            at += LONG_BYTES
            continue
        before, behind = data.rfind(b'"', done, at), data.find(b'"', at + LONG_BYTES)
        if behind < 0:
            break
        if before >= 0 and _is_plain(data, before, behind):
            key = f"{word}{len(texts)}"
            pieces += [data[done : before + 1], key.encode()]
            texts[key] = data[before + 1 : behind].decode("ascii")
            done = behind
        at = behind + 1
    return (b"".join([*pieces, data[done:]]), texts) if texts else (data, texts)


def put_back(value: Any, texts: Mapping[str, str]) -> Any:
    """Put the texts in place of their words, wherever these stand."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, dict):
        return {key: put_back(one, texts) for key, one in value.items()}
    if isinstance(value, list):
        return [put_back(one, texts) for one in value]
    return value


def _is_plain(data: bytes | bytearray, before: int, behind: int) -> bool:
    """Whether a text stands between two quotes, if all is JSON, whose characters stand for themselves.

    Behind a quote that ends a text no letter stands, and a quote within a text has a backslash before it.
    Names of fields are left to the parser, which looks for those that stand twice.
    """
    if data[before + 1] not in _BEGINS or (before and data[before - 1] == ord("\\")):
        return False
    if data[behind + 1 : behind + 100].lstrip(b" \t\r\n")[:1] not in (b",", b"]", b"}"):
        return False
    return not any(
        data[at : min(at + _PIECE, behind)].translate(None, _PLAIN)
        for at in range(before + 1, behind, _PIECE)
    )
