"""The HTTP side of the server: uvicorn, set up for our application."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

GRACE_S = 1
"""Seconds that connections have to take their last bytes once the server ends."""


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, on_start: Callable[[], object], on_stop: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._on_start = on_start
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()  # ends open replies, so that their connections end too
        await super().shutdown(sockets)


def make_server(
    app: ASGIApp, on_start: Callable[[], object], on_stop: Callable[[], object]
) -> uvicorn.Server:
    """Make a server whose `run([socket])` serves until SIGINT or SIGTERM.

    Args:
        app: The application.
        on_start: Called in the event loop once connections are taken and signals end the server.
        on_stop: Called in the event loop when the end begins; must not block.
    """
    config = uvicorn.Config(
        app,
        access_log=False,
        http="h11",
        lifespan="off",
        log_config=None,
        loop="asyncio",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        ws="none",
    )
    return _Server(config, on_start, on_stop)
