"""A request's handle: its events, its whole reply, its cancellation; for threads and for asyncio."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from flashnext.engine.events import Event, Reply, ReplyBuilder

Item = Event | Exception
Items = TypeVar("Items")


class _Handle(Generic[Items]):
    """What both handles share.

    A handle that is dropped cancels its request: nobody could read the rest.

    Attributes:
        id: Number of the request in its engine.
        seed: That the reply is drawn with; another request with it gives the same reply.
        prompt_ids: The token ids that the model reads.
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
        self._cancel = cancel
        self._require_process = require_process
        self._items = items
        self._ended = False
        self._error: Exception | None = None
        self._builder = ReplyBuilder()

    def cancel(self) -> None:
        """End the request within a chunk or a round; its last event then says "cancelled". Idempotent."""
        if not self._ended:
            self._cancel()

    @property
    def events(self) -> tuple[Event, ...]:
        """The events that have been read so far."""
        return tuple(self._builder.events)

    def _take(self, item: Item) -> Event:
        if isinstance(item, Exception):
            self._ended, self._error = True, item
            raise item
        self._ended = item.finish_reason is not None
        self._builder.add(item)
        return item

    def _reply(self) -> Reply:
        if self._error is not None:
            raise self._error
        return self._builder.reply(self.seed)

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
        return self._take(self._items.get())

    def result(self) -> Reply:
        """Wait for the end and return the whole reply, events that were read before included.

        Raises:
            Exception: What ended the request.
        """
        for _ in self:
            pass
        return self._reply()


class AsyncRequest(_Handle[asyncio.Queue[Item]]):
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
        return self._take(await self._items.get())

    async def result(self) -> Reply:
        """Wait for the end and return the whole reply, events that were read before included.

        Raises:
            Exception: What ended the request.
        """
        async for _ in self:
            pass
        return self._reply()
