"""The routes of a server without a socket: requests of this process, answered as a server answers them."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message

from flashnext.engine.engine import Engine
from flashnext.server.app import ROUTES, create_app
from flashnext.server.service import Service
from flashnext.server.settings import Settings
from flashnext.text.jsontext import loads

BATCHED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""Routes that a batch may ask, where this version has them."""

URLS = tuple(path for method, path, _ in ROUTES if method == "POST" and path in BATCHED)


class Offline:
    """The application over an engine.

    Attributes:
        service: What its routes share.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        """Serve an engine, which stays the caller's to close."""
        self.service = Service(settings)
        self.service.ready(engine)
        self._app = create_app(self.service)

    async def post(self, url: str, body: bytes) -> tuple[int, dict[str, str], Any]:
        """Ask a route.

        Args:
            url: Its path.
            body: JSON.

        Returns:
            Status, headers by their names in lower case, and the answer's JSON.
        """
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": url,
            "raw_path": url.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": None,
            "server": None,
        }
        sent, came = [{"type": "http.request", "body": body}], list[Message]()

        async def receive() -> Message:
            if sent:
                return sent.pop()
            await asyncio.Event().wait()  # for a client that stays until it is cancelled
            raise AssertionError

        async def send(message: Message) -> None:
            came.append(message)

        await self._app(scope, receive, send)
        start, *pieces = came
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        return start["status"], headers, loads(b"".join(piece.get("body", b"") for piece in pieces))
