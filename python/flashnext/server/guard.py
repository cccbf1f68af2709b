"""Who may ask: the name the server was asked under, the key, and web pages of other origins."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from flashnext.errors import InvalidArgument
from flashnext.server.errors import ErrorResponse, HostRefused, KeyRefused, TooManyConnections
from flashnext.server.page import is_page
from flashnext.server.settings import Settings

MAX_HEADER_BYTES = 64 * 1024
"""Longest target and headers of a request."""

OPEN_PATHS = ("/health", "/livez", "/metrics")
"""Served without a key, for whoever watches the server."""


class Guard:
    """Refuses requests to foreign host names, and those without a key where there is one.

    A web page can make a browser send requests to a name of its own that it has pointed at this machine;
    names that are addresses cannot be pointed anywhere.
    """

    def __init__(self, app: ASGIApp, settings: Settings, connections: Callable[[], int]) -> None:
        self._app = app
        self._max_connections = settings.max_connections
        self._connections = connections
        self._keys = tuple(key.encode() for key in settings.api_keys)
        self._hosts = {host.lower() for host in settings.hosts}
        self._page = settings.page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = (
                _size(scope)
                or self._host(scope, headers)
                or self._key(scope["path"], headers)
                or self._crowd()
            )
            if refusal is not None:
                await ErrorResponse(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _host(self, scope: Scope, headers: Headers) -> HostRefused | None:
        if scope["http_version"] == "1.0" and "host" not in headers:
            return None  # no browser sends that
        host = headers.get("host", "")
        name = host_name(host)
        if name == "localhost" or name.endswith(".localhost") or name in self._hosts or _is_address(name):
            return None
        return HostRefused(
            f"this server does not go by the name {ascii(host)[:200]}; ask under its address, "
            "or start it with --allowed-host NAME"
        )

    def _key(self, path: str, headers: Headers) -> KeyRefused | None:
        if not self._keys or path in OPEN_PATHS or (self._page and is_page(path)):
            return None
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        # Only what HTTP takes for white space: the last byte of a key's UTF-8 may be another kind in Latin-1.
        given = [bearer.strip(" \t")] if kind.lower() == "bearer" else []
        given += [value for value in [headers.get("x-api-key")] if value is not None]
        # Every key is compared with every other in constant time, so that time tells nothing of them.
        found = [hmac.compare_digest(one.encode("latin-1"), key) for one in given for key in self._keys]
        if any(found):
            return None
        problem = "is not one of this server's" if given else "is missing"
        return KeyRefused(
            f"the API key {problem}; give it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
        )

    def _crowd(self) -> TooManyConnections | None:
        n = self._connections()
        if n <= self._max_connections:
            return None
        return TooManyConnections(
            f"{n} connections are open and at most {self._max_connections} may be; try again later", 1
        )


def _size(scope: Scope) -> InvalidArgument | None:
    """Refuse what came all at once; of what comes in pieces the connection does not wait for the end."""
    n = len(scope["raw_path"]) + len(scope["query_string"])
    n += sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    if n <= MAX_HEADER_BYTES:
        return None
    return InvalidArgument(f"target and headers have {n} bytes, and at most {MAX_HEADER_BYTES} are read")


def host_name(host: str) -> str:
    """Read the name of a Host header, without port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def guarded(app: ASGIApp, settings: Settings, connections: Callable[[], int]) -> ASGIApp:
    """Put the guard before an application, and before it the rules for web pages where some may ask."""
    app = Guard(app, settings, connections)
    if not settings.cors_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "request-id", "retry-after"],
    )
