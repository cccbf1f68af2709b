"""A request's handle: its events, its whole reply, its cancellation; for threads and for asyncio."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Generic, TypeVar

from flashnext.engine.events import Event, Reply, joined
from flashnext.engine.inbox import Inbox, Item

Items = TypeVar("Items")


class _Handle(Generic[Items]):
    """What both handles share.

    A handle that is dropped cancels its request: nobody could read the rest.

    Attributes:
        id: Number of the request in its engine.
        seed: That the reply is drawn with; another request with it gives the same reply.
        prompt_ids: The token ids that the model reads.
        last: The event that was read last, None before the first.
        n_read: Tokens of the events that have been read.
        n_calls: Calls of tools in them.
    """

    def __init__(
        self,
        request_id: int,
        seed: int,
        prompt_ids: list[int],
        cancel: Callable[[], None],
        require_process: Callable[[], None],
        items: Items,
    ) -> None:
        self.id = request_id
        self.seed = seed
        self.prompt_ids = prompt_ids
        self.last: Event | None = None
        self.n_read = self.n_calls = 0
        self._cancel = cancel
        self._require_process = require_process
        self._items = items
        self._ended = False
        self._error: Exception | None = None
        self._events: list[Event] = []

    def cancel(self) -> None:
        """End the request within a chunk or a round; its last event then says "cancelled". Idempotent."""
        if not self._ended:
            self._cancel()

    def _read(self, item: Item) -> Event:
        if isinstance(item, Exception):
            self._ended, self._error = True, item
            raise item
        self._ended = item.finish_reason is not None
        self.last = item
        self.n_read += len(item.token_ids)
        self.n_calls += len(item.tool_calls)
        return item

    def _kept(self, event: Event) -> Event:
        """Keep an event for the whole reply."""
        self._events.append(event)
        return event

    def _reply(self) -> Reply:
        if self._error is not None:
            raise self._error
        return Reply.of(self._events, self.seed)

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self._cancel()


class Request(_Handle[queue.SimpleQueue[Item]]):
    """A request of the blocking interface. Its events are read by one thread; `cancel` may come from any."""

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopIteration: The last event has been given.
            EngineClosed: In a process forked off the engine's, which nothing answers.
            Exception: What ended the request, if not an event.
        """
        if self._ended:
            raise StopIteration
        self._require_process()
        return self._kept(self._read(self._items.get()))

    def result(self) -> Reply:
        """Wait for the end and return the whole reply, events that were read before included.

        Raises:
            Exception: What ended the request.
        """
        for _ in self:
            pass
        return self._reply()


class AsyncRequest(_Handle[Inbox]):
    """A request of the asyncio interface; used within the event loop that made it."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopAsyncIteration: The last event has been given.
            Exception: What ended the request, if not an event.
        """
        if self._ended:
            raise StopAsyncIteration
        self._require_process()
        while not self._items.items:
            self._items.came.clear()
            await self._items.came.wait()
        return self._kept(self._read(self._items.items.popleft()))

    async def result(self) -> Reply:
        """Wait for the end and return the whole reply, events that were read before included.

        Raises:
            Exception: What ended the request.
        """
        self._items.patient = True
        try:
            async for _ in self:
                pass
        finally:
            self._items.patient = False
        return self._reply()


async def arrivals(requests: Sequence[AsyncRequest]) -> AsyncGenerator[list[tuple[int, Event]]]:
    """Read several requests together.

    They are read by nobody else, and their events are not kept, so `result` cannot be had.

    Yields:
        What has come since the last time, of each request that has anything as one event, with the place of
        the request among all.

    Raises:
        Exception: What ended one of them, once what came of it before has been given.
    """
    came = asyncio.Event()
    for request in requests:
        request._require_process()
        request._items.came = came
    reading = list(enumerate(requests))
    while reading:
        came.clear()
        found = [(index, joined(events)) for index, request in reading if (events := _come(request))]
        if found:
            yield found
            reading = [(index, request) for index, request in reading if not request._ended]
        else:
            await came.wait()


def _come(request: AsyncRequest) -> list[Event]:
    """Read what has come of a request; an error only when nothing came before it."""
    items, events = request._items.items, list[Event]()
    while items and not (events and isinstance(items[0], Exception)):
        events.append(request._read(items.popleft()))
    return events
