"""The body of a request as JSON that can be relied on."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from flashnext.server.errors import BodyTooLarge, WrongContentType
from flashnext.text.jsontext import clean_value, loads
from flashnext.text.messages import InvalidField


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """Read a JSON object: UTF-8, no key twice, no NaN, bounded depth; numbers keep their digits.

    Broken surrogates are mended by the one rule of `clean_text`.

    Raises:
        WrongContentType: The content type is not that of JSON. A web page of another origin can send other
            types without asking first.
        BodyTooLarge: More than max_bytes.
        InvalidArgument: Not such an object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise WrongContentType(f"the content type is {ascii(kind)[:100]}, expected application/json")
    too_large = f"the body is longer than {max_bytes} bytes, the most that is read"
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:19]) > max_bytes:
        raise BodyTooLarge(too_large)
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > max_bytes:
            raise BodyTooLarge(too_large)
    try:
        value = loads(bytes(data), unique_keys=True)
    except InvalidField:
        raise
    except ValueError as error:
        raise InvalidField("body", f"expected a JSON object, but {error}") from None
    if not isinstance(value, dict):
        raise InvalidField("body", f"expected a JSON object, found {type(value).__name__}")
    if b"\\ud" in data or b"\\uD" in data:
        value = clean_value(value)
        assert isinstance(value, dict)
    return value
