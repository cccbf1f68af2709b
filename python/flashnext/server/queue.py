"""How many requests are open, how many more may come, and when to try again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flashnext.server.errors import QueueFull
from flashnext.text.messages import InvalidField

_SMOOTHING = 0.2
_LONGEST_RETRY_S = 60


class Queue:
    """Counts open replies, those that wait included. Used by one event loop.

    Attributes:
        n_open: Open replies.
    """

    def __init__(self, parallel: int, max_waiting: int, clock_s: Callable[[], float]) -> None:
        """Start with none.

        Args:
            parallel: Replies that are written at once.
            max_waiting: How many more may be open.
            clock_s: A clock that never goes back.
        """
        self._parallel = parallel
        self._max_open = parallel + max_waiting
        self._clock_s = clock_s
        self._mean_s = 0.0
        self.n_open = 0

    @contextmanager
    def place(self, n: int, field: str = "n") -> Iterator[None]:
        """Hold places for n replies.

        Args:
            n: How many.
            field: Of the request, that asks for so many.

        Raises:
            QueueFull: There are not that many now.
            InvalidField: There are never that many.
        """
        if n > self._max_open:
            raise InvalidField(
                field,
                f"{n} replies are asked for, and at most {self._max_open} may be open here; ask for fewer, "
                "or start the server with a larger --queue",
            )
        if self.n_open + n > self._max_open:
            raise QueueFull(
                f"{self.n_open} replies are open and at most {self._max_open} may be; try again later",
                self.retry_after_s(n),
            )
        began = self._clock_s()
        self.n_open += n
        try:
            yield
        finally:
            self.n_open -= n
            took = self._clock_s() - began
            self._mean_s += _SMOOTHING * (took - self._mean_s) if self._mean_s else took

    def retry_after_s(self, n: int) -> int:
        """Estimate when there will be n places, from how long replies took lately; 1 to 60 seconds."""
        behind = self.n_open + n - self._max_open
        # A reply's time holds its wait in the queue, in which all open replies take their turns.
        each_s = self._mean_s / max(1, self.n_open)
        return max(1, min(_LONGEST_RETRY_S, math.ceil(behind * each_s)))
