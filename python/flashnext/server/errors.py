"""What an exception becomes on the wire: one table, one envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from flashnext.engine.errors import EngineClosed, EngineFailed
from flashnext.errors import DeviceError, InvalidArgument, OutOfMemory
from flashnext.text.messages import InvalidField


class ModelNotFound(InvalidField):
    """The request names a model that is not served."""


class BodyTooLarge(InvalidArgument):
    """The request's body is longer than the server reads."""


# The first class that fits counts: (exception, status, type, code)
TABLE: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (ModelNotFound, 404, "invalid_request_error", "model_not_found"),
    (BodyTooLarge, 413, "invalid_request_error", None),
    (InvalidArgument, 400, "invalid_request_error", None),
    (EngineClosed, 503, "server_error", "shutting_down"),
    (EngineFailed, 503, "server_error", "engine_failed"),
    (OutOfMemory, 503, "server_error", "out_of_memory"),
    (MemoryError, 503, "server_error", "out_of_memory"),
    (DeviceError, 500, "server_error", "device_error"),
)


def envelope(error: Exception) -> tuple[int, dict[str, Any]]:
    """Find the status of an error and its body in OpenAI's form."""
    if isinstance(error, HTTPException):
        return error.status_code, _body(error.detail, "invalid_request_error", None, None)
    for kind, status, error_type, code in TABLE:
        if isinstance(error, kind):
            field = error.field if isinstance(error, InvalidField) else None
            return status, _body(str(error), error_type, field, code)
    return 500, _body(
        "the server failed on this request; its log says more", "server_error", None, "internal"
    )


def response(error: Exception, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Answer with an error."""
    status, body = envelope(error)
    return JSONResponse(body, status, headers)


def _body(message: str, error_type: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}
