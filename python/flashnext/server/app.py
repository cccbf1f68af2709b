"""The routes of the server, and what all of them go through."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp

from flashnext.errors import FlashnextError
from flashnext.server import chat, completions, exposition, info, messages, openapi, page, responses, tokens
from flashnext.server.errors import ErrorResponse
from flashnext.server.guard import guarded
from flashnext.server.log import RequestLog
from flashnext.server.metrics import Metrics
from flashnext.server.service import Service
from flashnext.server.stream import ClientGone

Handler = Callable[[Service, Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat.chat),
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/responses", responses.create),
    ("POST", "/v1/responses/input_tokens", responses.count),
    ("GET", "/v1/responses/{response_id}", responses.retrieve),
    ("DELETE", "/v1/responses/{response_id}", responses.delete),
    ("GET", "/v1/responses/{response_id}/input_items", responses.input_items),
    ("POST", "/v1/messages", messages.create),
    ("POST", "/v1/messages/count_tokens", messages.count),
    ("GET", "/v1/models", info.models),
    ("GET", "/v1/models/{name:path}", info.model),
    ("POST", "/tokenize", tokens.tokenize),
    ("POST", "/detokenize", tokens.detokenize),
    ("GET", "/tokenizer_info", tokens.tokenizer_info),
    ("GET", "/health", info.health),
    ("GET", "/livez", info.livez),
    ("GET", "/metrics", exposition.metrics),
    ("GET", "/openapi.json", openapi.openapi),
)


_PATHS = tuple(dict.fromkeys(path for _, path, _ in ROUTES))
_PATTERNS = tuple(compile_path(path)[0] for path in _PATHS)
_LONGEST = 200  # of a path that is compared with those of routes


def _nearest(path: str) -> str | None:
    """Find the route that is meant by a path that is none: with /v1 or without, longer, or the most alike."""
    if len(path) > _LONGEST:
        return None
    for other in (f"/v1{path}", path, path.removeprefix("/v1")):
        if any(pattern.match(other) for pattern in _PATTERNS):
            return other
        if longer := [known for known in _PATHS if known.startswith(f"{other}/")]:
            return longer[0]
    return next(iter(difflib.get_close_matches(path, _PATHS, n=1, cutoff=0.75)), None)


async def _on_error(http: Request, error: Exception) -> Response:
    headers = None
    if isinstance(error, HTTPException):
        headers = error.headers
        told = f"{http.method} {http.url.path}: {error.detail}"
        if error.status_code == 404 and (near := _nearest(http.url.path)):
            told += f"; did you mean {near}?"
        error = HTTPException(error.status_code, told)
    return ErrorResponse(error, headers)


async def _on_gone(http: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


def create_app(service: Service) -> RequestLog:
    """Make the ASGI application."""
    routes = (*ROUTES, *(page.ROUTES if service.settings.page else ()))
    app: ASGIApp = Starlette(
        routes=[Route(path, partial(handler, service), methods=[method]) for method, path, handler in routes],
        exception_handlers={
            ClientGone: _on_gone,
            FlashnextError: _on_error,
            MemoryError: _on_error,
            HTTPException: _on_error,
            Exception: _on_error,
        },
    )
    app = guarded(app, service.settings, lambda: service.n_connections())
    return RequestLog(
        app,
        new_id=service.new_id,
        clock_s=service.clock_s,
        told=_counted(service.metrics, [path for _, path, _ in routes]),
    )


def _counted(metrics: Metrics, paths: Iterable[str]) -> Callable[[str, int, Mapping[str, Any]], None]:
    """Count requests by their routes, of which the metrics have no more than there are."""
    patterns = [(compile_path(path)[0], path) for path in dict.fromkeys(paths)]

    def told(path: str, status: int, detail: Mapping[str, Any]) -> None:
        route = next((route for pattern, route in patterns if pattern.match(path)), "other")
        metrics.request(route, status, detail)

    return told
