"""The body of a request as JSON that can be relied on, and as what its route reads in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from flashnext.errors import InvalidArgument
from flashnext.server.errors import BodyTimeout, BodyTooLarge, WrongContentType
from flashnext.server.long_texts import cut_out, put_back
from flashnext.server.settings import Settings
from flashnext.server.stream import ClientGone
from flashnext.text.jsontext import clean_value, loads
from flashnext.text.messages import InvalidField, cut

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
        WrongContentType: The content type is not that of JSON in UTF-8, or the body is compressed. A web page
            of another origin can send other types without asking first.
        BodyTooLarge: It is longer than it may be.
        BodyTimeout: The rest of it does not come.
        InvalidArgument: Not such an object.
        ClientGone: The client left before all of it was there.
    """
    _check_form(http.headers)
    data = await _receive(http, settings.max_body_bytes, settings.patience_s)
    return await worked_out(lambda: _parse(data, read), len(data))


async def worked_out(work: Callable[[], T], n_bytes: int) -> T:
    """Do what takes as long as so much JSON is: here where that is short, else by a thread."""
    return work() if n_bytes <= SHORT_BYTES else await asyncio.to_thread(work)


def _check_form(headers: Headers) -> None:
    """Refuse what is not sent as JSON, in UTF-8, as it is."""
    kind, *parameters = headers.get("content-type", "").split(";")
    if kind.strip().lower() != "application/json":
        kind = cut(ascii(kind.strip().lower()), 100)
        raise WrongContentType(f"the content type is {kind}, expected application/json")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"')
        if name.strip().lower() == "charset" and charset.lower() not in ("utf-8", "utf8"):
            raise WrongContentType(
                f"the content type has the charset {cut(ascii(charset), 100)}, expected utf-8"
            )
    for value in headers.getlist("content-encoding"):
        for encoding in value.split(","):
            if encoding.strip().lower() not in ("", "identity"):
                raise WrongContentType(
                    f"the content encoding is {cut(ascii(encoding.strip()), 100)}, expected none; "
                    "send the body as it is"
                )


async def _receive(http: Request, max_bytes: int, patience_s: float) -> bytearray:
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
    return data


def _parse(data: bytearray, read: Callable[[dict[str, Any]], T]) -> tuple[dict[str, Any], T]:
    short, texts = cut_out(data)
    try:
        try:
            value = loads(short, unique_keys=True)
        except InvalidArgument:
            value = loads(data, unique_keys=True)  # tells where in that it goes wrong
    except ValueError as error:
        raise InvalidField("body", f"expected a JSON object, but {error}") from None
    if not isinstance(value, dict):
        raise InvalidField("body", f"expected a JSON object, found {type(value).__name__}")
    if b"\\ud" in short or b"\\uD" in short:
        value = clean_value(value)
        assert isinstance(value, dict)
    if texts:
        value = put_back(value, texts)
        assert isinstance(value, dict)
    return value, read(value)
