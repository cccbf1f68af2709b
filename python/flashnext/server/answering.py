"""One way for all routes from running replies to a response: whole or streamed, and ended with its client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flashnext.engine.events import Event, Reply
from flashnext.engine.request import AsyncRequest
from flashnext.errors import FlashnextError
from flashnext.server.errors import RequestTimeout, envelope
from flashnext.server.stream import ClientGone, EventStream, unless_gone

_log = logging.getLogger("flashnext.server")


class Answer(Protocol):
    """A route's form of a response."""

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """Write all replies as one object."""

    def first_chunks(self) -> list[dict[str, Any]]:
        """Write what opens a stream."""

    def chunks(self, index: int, event: Event) -> list[dict[str, Any]]:
        """Write what an event of one reply adds to the stream."""

    def last_chunks(self) -> list[dict[str, Any]]:
        """Write what ends a stream."""


class Running:
    """Replies that are being written, and what has to happen at their end, whoever brings it about."""

    def __init__(self, timeout_s: float, told: Callable[[Sequence[AsyncRequest], bool], None]) -> None:
        """Begin without replies.

        Args:
            timeout_s: Longest time that they may take; 0 for any.
            told: Called once at the end with the requests, and whether their client left.
        """
        self._timeout_s = timeout_s
        self._told = told
        self._cleanup = ExitStack()
        self._late = False
        self._ended = False
        self.requests: list[AsyncRequest] = []
        if timeout_s:
            self._cleanup.callback(asyncio.get_running_loop().call_later(timeout_s, self._expire).cancel)

    def hold(self, place: AbstractContextManager[None]) -> None:
        """Enter a context that ends with the replies."""
        self._cleanup.enter_context(place)

    def end(self, *, left: bool = False) -> None:
        """Cancel what still runs. Idempotent.

        Args:
            left: Whether nobody reads the response any more.
        """
        if self._ended:
            return
        self._ended = True
        for request in self.requests:
            request.cancel()
        self._cleanup.close()
        self._told(self.requests, left)

    async def respond(self, http: Request, answer: Answer, *, stream: bool, keepalive_s: float) -> Response:
        """Write the response; it ends the replies in any case, in a stream with its own end."""
        if stream:
            return EventStream(self._objects(answer), keepalive_s, on_end=self.end)
        left = False
        try:
            return JSONResponse(answer.whole(await unless_gone(http.receive, self._results())))
        except ClientGone:
            left = True
            return Response(status_code=499)  # nobody reads it
        finally:
            self.end(left=left)

    async def _results(self) -> list[Reply]:
        async for _ in self._events():
            pass
        return [await request.result() for request in self.requests]

    async def _objects(self, answer: Answer) -> AsyncGenerator[dict[str, Any]]:
        """Write the objects of a stream; an error in the middle is its last."""
        try:
            for chunk in answer.first_chunks():
                yield chunk
            async for index, event in self._events():
                for chunk in answer.chunks(index, event):
                    yield chunk
            for chunk in answer.last_chunks():
                yield chunk
        except Exception as error:
            if not isinstance(error, FlashnextError):
                _log.exception("a stream failed")
            yield envelope(error)[1]

    async def _events(self) -> AsyncIterator[tuple[int, Event]]:
        """Give the events of all replies as they come.

        Raises:
            RequestTimeout: The replies' time is over.
        """
        steps: dict[asyncio.Task[Event | None], int] = {}
        try:
            for index, request in enumerate(self.requests):
                steps[_next_of(request)] = index
            while steps:
                done, _ = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
                for step in sorted(done, key=lambda step: steps[step]):
                    index = steps.pop(step)
                    event = step.result()
                    if self._late:
                        raise RequestTimeout(
                            f"the reply took longer than {self._timeout_s:g} s, the server's "
                            "--request-timeout; ask for fewer tokens"
                        )
                    if event is not None:
                        yield index, event
                        steps[_next_of(self.requests[index])] = index
        finally:
            for step in steps:
                step.cancel()
            await asyncio.gather(*steps, return_exceptions=True)

    def _expire(self) -> None:
        self._late = True
        for request in self.requests:
            request.cancel()


def _next_of(request: AsyncRequest) -> asyncio.Task[Event | None]:
    async def step() -> Event | None:
        return await anext(request, None)

    return asyncio.ensure_future(step())
