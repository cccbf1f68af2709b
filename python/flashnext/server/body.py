"""The body of a request as JSON that can be relied on."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from flashnext.server.errors import BodyTooLarge
from flashnext.text.jsontext import clean_value, loads
from flashnext.text.messages import InvalidField

MAX_BODY_BYTES = 64 * 1024 * 1024


async def read_object(request: Request) -> dict[str, Any]:
    """Read a JSON object: UTF-8, no key twice, no NaN, bounded depth; numbers keep their digits.

    Broken surrogates are mended by the one rule of `clean_text`.

    Raises:
        BodyTooLarge: More than MAX_BODY_BYTES.
        InvalidArgument: Not such an object.
    """
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body is longer than {MAX_BODY_BYTES} bytes, the most that is read")
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
