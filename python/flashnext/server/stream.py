"""Server-sent events, and noticing that a client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
LONG_BYTES = 256 * 1024
"""What is longer goes out by itself."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(value: Any) -> bytes:
    """Write JSON in UTF-8, of which no number came from a request."""
    return _encode(value).encode()


@dataclass(frozen=True)
class Encoded:
    """An object of a stream as JSON, of which a large part may have been written before.

    Attributes:
        type: Of the object, as its own JSON says it too.
        data: In UTF-8.
    """

    type: str
    data: bytes


Chunk = Mapping[str, Any] | Encoded
"""An object of a stream."""


@dataclass(frozen=True)
class Framing:
    """How a route writes the objects of a stream.

    Attributes:
        named: Whether an `event:` line tells the type of each.
        end: What comes behind the last.
        still: What a client is sent that has seen nothing for a while.
    """

    named: bool
    end: str
    still: str

    def write(self, one: Chunk) -> bytes:
        """Write an object of a stream."""
        data = one.data if isinstance(one, Encoded) else encode(one)
        if not self.named:
            return b"data: %s\n\n" % data
        kind: str = one.type if isinstance(one, Encoded) else one["type"]
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


CHUNKS = Framing(named=False, end="data: [DONE]\n\n", still=": still here\n\n")
"""Of OpenAI's completions."""
EVENTS = Framing(named=True, end="", still=": still here\n\n")
"""Of OpenAI's responses; the last event says itself that it is."""
PINGS = Framing(named=True, end="", still='event: ping\ndata: {"type":"ping"}\n\n')
"""Of Anthropic's messages."""


class ClientGone(Exception):
    """The client closed the connection before the answer was complete."""


@asynccontextmanager
async def while_there(receive: Receive) -> AsyncGenerator[None]:
    """Be in the block for as long as the client is there. The request's body must have been read.

    Raises:
        ClientGone: The client left; what the block awaited was cancelled.
    """
    task = asyncio.current_task()
    assert task is not None
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        task.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        yield
    except asyncio.CancelledError:
        # Somebody else may have cancelled it as well.
        if not left or task.cancelling() > 1:
            raise
        raise ClientGone from None
    finally:
        watching.cancel()
        if left:
            task.uncancel()


class EventStream(Response):
    """Sends objects as server-sent events as they come.

    Headers go out at once. The objects' iterator is closed whatever happens: when it ends, when it fails (it
    is meant to turn its own errors into objects) and when the client goes.
    """

    def __init__(
        self,
        batches: AsyncGenerator[Sequence[Chunk]],
        framing: Framing = CHUNKS,
        *,
        there: AbstractAsyncContextManager[object],
        keepalive_s: float,
        on_end: Callable[[bool], object],
    ) -> None:
        """Stream objects.

        Args:
            batches: What to send; the objects of a batch go out together, and there may be none in it.
            framing: How they are written.
            there: Is left as soon as the client is gone; it may have been entered before.
            keepalive_s: A client that has been sent nothing for this long is sent that all is well.
            on_end: Called once at the end with whether the client was gone before it.
        """
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._batches = batches
        self._framing = framing
        self._there = there
        self._keepalive_s = keepalive_s
        self._on_end = on_end
        self._sent_s = 0.0  # when something was sent last, by the event loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        left = True
        try:
            with suppress(ClientGone, OSError):
                async with self._there:
                    await self._send(send)
                left = False
        finally:
            self._on_end(left)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        comments = asyncio.ensure_future(self._keep_alive(send))
        try:
            async for batch in self._batches:
                for data in self._written(batch):
                    await self._write(send, data)
            await self._write(send, self._framing.end.encode(), more=False)
        finally:
            comments.cancel()
            await self._batches.aclose()

    def _written(self, batch: Sequence[Chunk]) -> Iterator[bytes]:
        """Write a batch in one piece, but what is long apart, so that nothing takes long at once."""
        gathered: list[bytes] = []
        for one in batch:
            data = self._framing.write(one)
            if len(data) > LONG_BYTES and gathered:
                yield b"".join(gathered)
                gathered.clear()
            gathered.append(data)
            if len(data) > LONG_BYTES:
                yield gathered.pop()
        if gathered:
            yield b"".join(gathered)

    async def _keep_alive(self, send: Send) -> None:
        """Send a sign of life whenever nothing has been sent for a while."""
        now_s = asyncio.get_running_loop().time
        self._sent_s = now_s()
        while True:
            rest_s = self._sent_s + self._keepalive_s - now_s()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            else:
                await self._write(send, self._framing.still.encode())

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": more})
        self._sent_s = asyncio.get_running_loop().time()
