"""Server-sent events, and noticing that a client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

KEEPALIVE_S = 5.0
"""A comment line is sent whenever the client has seen nothing for this long."""

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


class ClientGone(Exception):
    """The client closed the connection before the answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do work for as long as the client is there. The request's body must have been read.

    Raises:
        ClientGone: The client left; the work was cancelled.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends objects as server-sent events as they come, and `[DONE]` after the last.

    Headers go out at once. The objects' iterator is closed whatever happens: when it ends, when it fails (it
    is meant to turn its own errors into objects) and when the client goes.
    """

    def __init__(
        self,
        objects: AsyncGenerator[Mapping[str, Any]],
        keepalive_s: float = KEEPALIVE_S,
        on_end: Callable[..., object] = lambda *, left: None,
    ) -> None:
        """Stream objects.

        Args:
            objects: What to send.
            keepalive_s: How long a client may see nothing before it is sent a comment.
            on_end: Called once at the end with `left`, whether the client was gone before it.
        """
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._objects = objects
        self._keepalive_s = keepalive_s
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        left = True
        try:
            with suppress(ClientGone, OSError):
                await unless_gone(receive, self._send(send))
                left = False
        finally:
            self._on_end(left=left)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        step: asyncio.Task[Mapping[str, Any]] | None = None
        try:
            while True:
                step = step or asyncio.ensure_future(anext(self._objects))
                await asyncio.wait({step}, timeout=self._keepalive_s)
                if not step.done():
                    await _write(send, ": still here\n\n")
                    continue
                try:
                    data = json.dumps(step.result(), ensure_ascii=False, separators=(",", ":"))
                except StopAsyncIteration:
                    break
                step = None
                await _write(send, f"data: {data}\n\n")
            await _write(send, "data: [DONE]\n\n")
            await send({"type": "http.response.body", "body": b""})
        finally:
            if step is not None:
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
            await self._objects.aclose()


async def _write(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
