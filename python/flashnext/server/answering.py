"""One way for all routes from running replies to a response: whole or streamed, and ended with its client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import ClassVar, Protocol, Self

from starlette.responses import Response
from starlette.types import Receive

from flashnext.engine.events import Event, Reply
from flashnext.engine.request import AsyncRequest, arrivals
from flashnext.errors import FlashnextError
from flashnext.server.body import worked_out
from flashnext.server.errors import RequestTimeout
from flashnext.server.stream import Chunk, ClientGone, EventStream, Framing, while_there

_log = logging.getLogger("flashnext.server")


class Answer(Protocol):
    """A route's form of a response.

    Attributes:
        framing: How its streams are written.
    """

    framing: ClassVar[Framing]

    @property
    def repeated_bytes(self) -> int:
        """How much the end of a stream tells again of what the stream has told."""

    def whole(self, replies: Sequence[Reply]) -> bytes:
        """Write all replies as one object in JSON; by another thread where that is long."""

    def first_chunks(self) -> Sequence[Chunk]:
        """Write what opens a stream."""

    def chunks(self, index: int, event: Event) -> Sequence[Chunk]:
        """Write what an event of one reply adds to the stream."""

    def last_chunks(self) -> Sequence[Chunk]:
        """Write what ends a stream."""

    def error_chunks(self, error: Exception) -> Sequence[Chunk]:
        """Write what ends a stream that has failed."""


class Running:
    """Replies that are being written, and what has to happen at their end, whoever brings it about.

    A context, for the task that answers the request, that ends them where it is left by an error; else the
    response that `respond` makes does. A client is looked for from its beginning to the end of the response.

    Attributes:
        requests: The replies.
        fetched: What the addresses of the request held, by these, where that is kept.
        error: What they failed with.
        left: Whether nobody reads the response any more.
    """

    def __init__(
        self, receive: Receive, timeout_s: float, keepalive_s: float, told: Callable[[Running], None]
    ) -> None:
        """Begin without replies.

        Args:
            receive: Tells that the client is gone; the request's body must have been read.
            timeout_s: Longest time that they may take; 0 for any.
            keepalive_s: Longest time that a stream may be silent.
            told: Called once at the end.
        """
        self._receive = receive
        self._there = AsyncExitStack()
        self._timeout_s = timeout_s
        self._keepalive_s = keepalive_s
        self._told = told
        self._cleanup = ExitStack()
        self._ends_s: float | None = None
        self._late = False
        self._ended = False
        self.requests: list[AsyncRequest] = []
        self.fetched: dict[str, bytes] | None = None
        self.error: Exception | None = None
        self.left = False

    def hold(self, place: AbstractContextManager[object]) -> None:
        """Enter a context that ends with the replies."""
        self._cleanup.enter_context(place)

    async def __aenter__(self) -> Self:
        await self._there.enter_async_context(while_there(self._receive))
        if self._timeout_s:
            timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)
            self._ends_s = timer.when()
            self._cleanup.callback(timer.cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End what an error has left.

        Raises:
            ClientGone: The client left.
        """
        try:
            await self._there.__aexit__(kind, error, traceback)
        except ClientGone:
            self._end(left=True)
            raise
        if error is not None:
            if isinstance(error, Exception):
                self.error = error
            self._end(left=False)

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """End what is waited for before there are replies when their time is over.

        Raises:
            RequestTimeout: It is.
        """
        try:
            async with asyncio.timeout_at(self._ends_s):
                yield
        except TimeoutError:
            self._late = True
            self._require_time()
            raise

    async def respond(self, answer: Answer, *, stream: bool) -> Response:
        """Write the response; it ends the replies in any case, in a stream with its own end.

        Raises:
            Exception: What ended one of the replies.
        """
        if stream:
            return EventStream(
                self._batches(answer),
                answer.framing,
                there=self._there.pop_all(),
                keepalive_s=self._keepalive_s,
                on_end=self._end,
            )
        replies = await self._results()
        data = await worked_out(lambda: answer.whole(replies), sum(map(_told_bytes, replies)))
        response = Response(data, media_type="application/json")
        self._end(left=False)
        return response

    def _end(self, left: bool) -> None:
        """Cancel what still runs. Idempotent."""
        if self._ended:
            return
        self._ended = True
        self.left = left
        for request in self.requests:
            request.cancel()
        self._cleanup.close()
        self._told(self)

    async def _results(self) -> list[Reply]:
        self._require_time()
        tasks = [asyncio.ensure_future(request.result()) for request in self.requests]
        try:
            replies = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        self._require_time()
        return replies

    async def _batches(self, answer: Answer) -> AsyncGenerator[Sequence[Chunk]]:
        """Write the objects of a stream; an error in the middle is its last."""
        try:
            yield answer.first_chunks()
            async for came in arrivals(self.requests):
                self._require_time()
                n_bytes = sum(_told_bytes(event) for _, event in came)
                if any(event.finish_reason is not None for _, event in came):
                    n_bytes += answer.repeated_bytes
                yield await worked_out(partial(_chunks, answer, came), n_bytes)
            yield answer.last_chunks()
        except Exception as error:
            if not isinstance(error, FlashnextError):
                _log.exception("a stream failed")
            self.error = error
            yield await worked_out(partial(answer.error_chunks, error), answer.repeated_bytes)

    def _require_time(self) -> None:
        if self._late:
            raise RequestTimeout(
                f"the reply took longer than {self._timeout_s:g} s, the server's --request-timeout; "
                "ask for fewer tokens, or show less"
            )

    def _expire(self) -> None:
        self._late = True
        for request in self.requests:
            request.cancel()


def _chunks(answer: Answer, came: Sequence[tuple[int, Event]]) -> list[Chunk]:
    return [chunk for index, event in came for chunk in answer.chunks(index, event)]


def _told_bytes(told: Reply | Event) -> int:
    """Guess how much JSON a reply or event is: a hundred bytes for each log-probability that is told."""
    n = [len(found) * (1 + len(found[-1].top)) for found in (told.logprobs, told.prompt_logprobs) if found]
    return len(told.text) + len(told.reasoning) + 100 * sum(n)
