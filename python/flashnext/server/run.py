"""The HTTP side of the server: uvicorn, set up for our application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from flashnext.server.app import create_app
from flashnext.server.service import Service

GRACE_S = 1.0
"""Seconds that connections have to take their last bytes once their replies have ended."""

MAX_HEADER_BYTES = 64 * 1024


class HttpServer(uvicorn.Server):
    """Serves until a signal; then takes no more connections, lets open replies end, and cancels the rest."""

    def __init__(
        self, service: Service, on_start: Callable[[], object], on_stop: Callable[[], object]
    ) -> None:
        """Make a server whose `run([socket])` serves until SIGINT or SIGTERM.

        Args:
            service: What is served.
            on_start: Called in the event loop once connections are taken and signals end the server.
            on_stop: Called in the event loop when replies have had their time to end, or at once after a
                second signal; ends those that are still open and must not block.
        """
        super().__init__(
            uvicorn.Config(
                create_app(service),
                access_log=False,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                http="h11",
                lifespan="off",
                log_config=None,
                loop="asyncio",
                server_header=False,
                ws="none",
            )
        )
        self._service = service
        self._on_start = on_start
        self._on_stop = on_stop
        self._at_once = False
        service.n_connections = lambda: len(self.server_state.connections)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; the second one ends all replies at once."""
        self._at_once |= self.should_exit
        self._captured_signals.append(sig)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: see the class."""
        drain_s = self._service.settings.drain_s
        # A keep-alive connection would otherwise bring further requests.
        self.config.timeout_graceful_shutdown = int(drain_s + GRACE_S + 1)
        stopping = asyncio.ensure_future(self._stop_after(drain_s))
        await super().shutdown(sockets)
        self._on_stop()
        stopping.cancel()

    async def _stop_after(self, drain_s: float) -> None:
        end = self._service.clock_s() + drain_s
        while self._service.queue.n_open and self._service.clock_s() < end and not self._at_once:
            await asyncio.sleep(0.05)
        self._on_stop()
        await asyncio.sleep(GRACE_S)
        self.force_exit = True  # whoever has not taken the last bytes by now is not waited for
