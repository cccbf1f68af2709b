"""Bounds what the prepared pictures and videos of all open requests take of memory."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Self


class MediaRoom:
    """Bytes that requests wait for, one after the other. Used by one event loop.

    A request asks for the most that its media may come to, and gives back what they do not; it has the rest
    until it ends. One that asks for more than there is has its turn when all is free.

    Attributes:
        used_bytes: What open requests have.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Begin with all of it free."""
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()

    async def place(self, n_bytes: int) -> Place:
        """Wait for room; a task that is cancelled meanwhile leaves the line."""
        if n_bytes and (self._waiting or not self._fits(n_bytes)):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((n_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                with suppress(ValueError):
                    self._waiting.remove((n_bytes, turn))
                if turn.done() and not turn.cancelled():  # it had just been given
                    self.used_bytes -= n_bytes
                self._admit()
                raise
        else:
            self.used_bytes += n_bytes
        return Place(self, n_bytes)

    def give_back(self, n_bytes: int) -> None:
        """Take room back, and give it to those who wait."""
        self.used_bytes -= n_bytes
        self._admit()

    def _fits(self, n_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + n_bytes <= self._limit_bytes

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            n_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self.used_bytes += n_bytes
                turn.set_result(None)


class Place:
    """Room that a request has: a context that gives it back."""

    def __init__(self, room: MediaRoom, n_bytes: int) -> None:
        """Take what `MediaRoom.place` gave."""
        self._room, self._n_bytes = room, n_bytes

    def shrink(self, n_bytes: int) -> None:
        """Keep so much of it."""
        over, self._n_bytes = self._n_bytes - n_bytes, n_bytes
        self._room.give_back(over)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shrink(0)
