"""What an exception becomes on the wire: one table, one envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from flashnext.engine.errors import (
    ContextExceeded,
    EngineClosed,
    EngineFailed,
    GrammarDeadEnd,
    GrammarsBusy,
    MemoryShort,
)
from flashnext.errors import DeviceError, FlashnextError, InvalidArgument, OutOfMemory
from flashnext.text.messages import InvalidField, cut
from flashnext.text.written import TooLong

MESSAGES = "/v1/messages"
"""What the paths begin with whose errors have Anthropic's form."""

MAX_MESSAGE = 1000
MAX_PARAM = 200
"""Most characters of an error's text, and of the name of the field that it is about."""


class ModelNotFound(InvalidField):
    """The request names a model that is not served."""


class ResponseNotFound(InvalidField):
    """The request asks for a response that is not kept."""


class PreviousNotFound(InvalidField):
    """The request goes on from a response that is not kept."""


class BodyTooLarge(InvalidArgument):
    """The request's body is longer than the server reads."""


class BodyTimeout(InvalidArgument):
    """The rest of the request's body did not come."""


class WrongContentType(InvalidArgument):
    """The request's body does not say that it is JSON in UTF-8, sent as it is."""


class HostRefused(InvalidArgument):
    """The request was sent to a name that is not this server's."""


class KeyRefused(InvalidArgument):
    """The request has no API key, or a wrong one."""


class RequestTimeout(FlashnextError):
    """The reply took longer than the server gives a request."""


class Unready(FlashnextError):
    """The server takes no request now.

    Attributes:
        retry_after_s: When to try again.
    """

    def __init__(self, problem: str, retry_after_s: int) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


class QueueFull(Unready):
    """As many requests wait as may."""


class TooManyConnections(Unready):
    """As many connections are open as may be."""


class ModelLoading(Unready):
    """The model is still being loaded."""


_INVALID = "invalid_request_error"
# The first class that fits counts: (exception, status, type, code)
TABLE: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (ModelNotFound, 404, _INVALID, "model_not_found"),
    (ResponseNotFound, 404, _INVALID, "response_not_found"),
    (PreviousNotFound, 400, _INVALID, "previous_response_not_found"),
    (BodyTooLarge, 413, _INVALID, "body_too_large"),
    (BodyTimeout, 408, _INVALID, "body_timeout"),
    (WrongContentType, 415, _INVALID, "unsupported_media_type"),
    (HostRefused, 403, _INVALID, "host_not_allowed"),
    (KeyRefused, 401, _INVALID, "invalid_api_key"),
    (ContextExceeded, 400, _INVALID, "context_length_exceeded"),
    (TooLong, 400, _INVALID, "context_length_exceeded"),
    (InvalidArgument, 400, _INVALID, None),
    (QueueFull, 503, "server_error", "queue_full"),
    (TooManyConnections, 503, "server_error", "too_many_connections"),
    (ModelLoading, 503, "server_error", "loading"),
    (GrammarsBusy, 503, "server_error", "grammars_busy"),
    (RequestTimeout, 504, "server_error", "timeout"),
    (EngineClosed, 503, "server_error", "shutting_down"),
    (EngineFailed, 503, "server_error", "engine_failed"),
    (MemoryShort, 503, "server_error", "memory_short"),
    (OutOfMemory, 503, "server_error", "out_of_memory"),
    (MemoryError, 503, "server_error", "out_of_memory"),
    (GrammarDeadEnd, 500, "server_error", "grammar_dead_end"),
    (DeviceError, 500, "server_error", "device_error"),
)


def envelope(error: Exception) -> tuple[int, dict[str, Any]]:
    """Find the status of an error and its body in OpenAI's form."""
    if isinstance(error, HTTPException):
        return error.status_code, _body(error.detail, _INVALID, None, None)
    for kind, status, error_type, code in TABLE:
        if isinstance(error, kind):
            field = error.field if isinstance(error, InvalidField) else None
            return status, _body(str(error), error_type, field, code)
    return 500, _body(
        "the server failed on this request; its log says more", "server_error", None, "internal"
    )


# What Anthropic calls an error of a status; others are `invalid_request_error` below 500, else `api_error`.
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_envelope(error: Exception, request_id: str) -> tuple[int, dict[str, Any]]:
    """Find the status of an error and its body in Anthropic's form."""
    status, body = envelope(error)
    kind = _ANTHROPIC.get(status, _INVALID if status < 500 else "api_error")
    told = {"type": kind, "message": body["error"]["message"]}
    return status, {"type": "error", "error": told, "request_id": request_id}


def logged(error: Exception) -> dict[str, Any]:
    """Say for the log what an error is: its text only where that is the server's own words."""
    status, body = envelope(error)
    told = body["error"]
    named = {key: told[key] for key in ("code", "param") if told[key] is not None}
    return {**named, "error": told["message"]} if status >= 500 else named


class ErrorResponse(Response):
    """Answers with an error in the form of its route, and tells it to the log's line of the request."""

    def __init__(self, error: Exception, headers: Mapping[str, str] | None = None) -> None:
        """Take an error, and headers to send with it."""
        more = dict(headers or {})
        if isinstance(error, Unready | GrammarsBusy | MemoryShort):
            more["retry-after"] = str(error.retry_after_s)
        if isinstance(error, KeyRefused):
            more["www-authenticate"] = "Bearer"
        if isinstance(error, BodyTimeout | TooManyConnections):
            more["connection"] = "close"
        super().__init__(status_code=envelope(error)[0], headers=more)
        self._error = error
        self._more = more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        detail = scope["state"]["detail"]
        detail.update(logged(self._error))
        if scope["path"].startswith(MESSAGES):
            status, body = anthropic_envelope(self._error, detail["id"])
        else:
            status, body = envelope(self._error)
        await JSONResponse(body, status, self._more)(scope, receive, send)


def _body(message: str, error_type: str, param: str | None, code: str | None) -> dict[str, Any]:
    # Names and values of a request are told in errors, and may be as long as a body.
    param = None if param is None else cut(param, MAX_PARAM)
    return {"error": {"message": cut(message, MAX_MESSAGE), "type": error_type, "param": param, "code": code}}
