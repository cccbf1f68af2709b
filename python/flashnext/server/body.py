"""The body of a request as JSON that can be relied on, and as what its route reads in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from flashnext.server.errors import BodyTimeout, BodyTooLarge, WrongContentType
from flashnext.server.settings import Settings
from flashnext.server.stream import ClientGone
from flashnext.text.jsontext import clean_value, loads
from flashnext.text.messages import InvalidField

SHORT_BYTES = 64 * 1024
"""Longest body that the event loop itself parses, in half a millisecond; others are parsed by a thread."""

T = TypeVar("T")


async def read_body(
    http: Request, settings: Settings, read: Callable[[dict[str, Any]], T]
) -> tuple[dict[str, Any], T]:
    """Read a JSON object: UTF-8, no key twice, no NaN, bounded depth; numbers keep their digits.

    Broken surrogates are mended by the one rule of `clean_text`.

    Args:
        http: The request.
        settings: How long a body may be and how long it may take.
        read: Reads the object for its route. Called by another thread where the body is long.

    Returns:
        The object, and what `read` makes of it.

    Raises:
        WrongContentType: The content type is not that of JSON. A web page of another origin can send other
            types without asking first.
        BodyTooLarge: It is longer than it may be.
        BodyTimeout: The rest of it does not come.
        InvalidArgument: Not such an object.
        ClientGone: The client left before all of it was there.
    """
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise WrongContentType(f"the content type is {ascii(kind)[:100]}, expected application/json")
    data = await _receive(http, settings.max_body_bytes, settings.patience_s)
    if len(data) <= SHORT_BYTES:
        return _parse(data, read)
    return await asyncio.to_thread(_parse, data, read)


async def _receive(http: Request, max_bytes: int, patience_s: float) -> bytes:
    too_large = f"the body is longer than {max_bytes} bytes, the most that is read"
    length = http.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:19]) > max_bytes:
        raise BodyTooLarge(too_large)
    data = bytearray()
    now_s = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(patience_s) as limit:
            async for piece in http.stream():
                data += piece
                if len(data) > max_bytes:
                    raise BodyTooLarge(too_large)
                limit.reschedule(now_s() + patience_s)
    except TimeoutError:
        raise BodyTimeout(
            f"the body stopped after {len(data)} bytes, and nothing came for {patience_s:g} s; send it again"
        ) from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(data)


def _parse(data: bytes, read: Callable[[dict[str, Any]], T]) -> tuple[dict[str, Any], T]:
    try:
        value = loads(data, unique_keys=True)
    except InvalidField:
        raise
    except ValueError as error:
        raise InvalidField("body", f"expected a JSON object, but {error}") from None
    if not isinstance(value, dict):
        raise InvalidField("body", f"expected a JSON object, found {type(value).__name__}")
    if b"\\ud" in data or b"\\uD" in data:
        value = clean_value(value)
        assert isinstance(value, dict)
    return value, read(value)
