"""The way of events from the engine's thread into the event loops of their readers."""

from __future__ import annotations

import asyncio
from collections import deque

from flashnext.engine.events import Event

Item = Event | Exception


class Inbox:
    """What has come of a request and has not been read; of one event loop.

    Attributes:
        items: In the order in which they came.
        came: Is set when something comes.
        patient: Whether the reader wants nothing before the end, and need not be woken for it.
    """

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.came = asyncio.Event()
        self.patient = False

    def awaits(self, item: Item) -> bool:
        """Whether the reader is to be woken for an item."""
        return not self.patient or isinstance(item, Exception) or item.finish_reason is not None


class Mailbox:
    """Brings items from any thread into the inboxes of one event loop.

    Waking a loop costs more than all else on this way, so the loop is woken once for whatever comes until it
    looks.

    Attributes:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[Inbox, Item]] = deque()
        self._woken = False

    def put(self, inbox: Inbox, item: Item) -> None:
        """Send an item. From any thread.

        Raises:
            RuntimeError: The loop is closed.
        """
        if self.loop.is_closed():
            raise RuntimeError("the event loop of the request's reader is closed")
        self._items.append((inbox, item))
        if not self._woken and inbox.awaits(item):
            self._woken = True
            self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        # First, so that who puts an item in behind the last look wakes the loop again.
        self._woken = False
        while self._items:
            inbox, item = self._items.popleft()
            inbox.items.append(item)
            if inbox.awaits(item):
                inbox.came.set()
