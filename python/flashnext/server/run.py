"""The HTTP side of the server: uvicorn, set up for our application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from flashnext.server.app import create_app
from flashnext.server.files import ACCEPTED_AT_ONCE, REFUSED_AT_ONCE
from flashnext.server.guard import MAX_HEADER_BYTES
from flashnext.server.service import Service

GRACE_S = 1.0
"""Seconds that connections have to take their last bytes once their replies have ended."""

BACKLOG = 2048
"""Connections that the system may hold until they are taken."""


class _Gathering:
    """A transport that sends as one what is written before the event loop goes on.

    Each sending costs a system call and wakes the client, and a stream's last chunk, its end, and the end of
    its body are written one right after the other.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._gathered: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._gathered:
            self._loop.call_soon(self._send)
        self._gathered.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._gathered:
            self._transport.write(b"".join(self._gathered))
            self._gathered.clear()


class Connection(H11Protocol):
    """A connection that is dropped once its client has done nothing of what it should for a while.

    Such a client takes nothing of what waits for it, which without an end would hold a place among the
    replies; or it sends no request, or not all of its headers. A connection is dropped at once where there
    are so many that the process would run out of files.
    """

    def __init__(self, *args: Any, patience_s: float, most: int, **kwargs: Any) -> None:
        """Take what uvicorn gives a connection, how long a client may do nothing, and most connections."""
        super().__init__(*args, **kwargs)
        self._patience_s = patience_s
        self._most = most
        self._looking: asyncio.TimerHandle | None = None
        self._waiting: asyncio.TimerHandle | None = None  # for the headers of a request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve."""
        super().connection_made(cast(asyncio.Transport, _Gathering(transport, self.loop)))
        if len(self.connections) > self._most:
            transport.abort()
        self._waiting = self.loop.call_later(self._patience_s, self.transport.close)

    def data_received(self, data: bytes) -> None:
        """Read on; a request whose headers have begun has to be there whole after a while."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self._patience_s, self.transport.close)

    def pause_writing(self) -> None:
        """Begin to look whether the client takes anything."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """Stop looking."""
        super().resume_writing()
        self._stop_looking()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop looking, and end what is served."""
        self._stop_looking()
        self._stop_waiting()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        waits = self.transport.get_write_buffer_size()
        self._looking = self.loop.call_later(self._patience_s, self._look, waits)

    def _look(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() < waited:
            self._look_later()
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()


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
                http=partial(  # type: ignore[arg-type]
                    Connection,
                    patience_s=service.settings.patience_s,
                    most=service.settings.max_connections + REFUSED_AT_ONCE,
                ),
                backlog=ACCEPTED_AT_ONCE,
                lifespan="off",
                log_config=None,
                proxy_headers=False,
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
        for listener in sockets or ():
            listener.listen(BACKLOG)  # the event loop takes its own number for both
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
