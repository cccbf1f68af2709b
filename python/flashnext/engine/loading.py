"""A mark on its way from the spill directory: what of the pool it has by now, and who ends that."""

from __future__ import annotations

import threading
from collections.abc import Callable

from flashnext.engine.core import Snapshot
from flashnext.errors import FlashnextError


class Ended(FlashnextError):
    """What was being read or written is of no use any more; nothing is wrong with the directory."""


class Loading:
    """A read, as two threads see it: one reads, and puts what it has into the pool; the other may end that.

    Files are read without the pool, so that a read which hangs in one holds nothing that `give_up` does not
    give back.

    Attributes:
        again_s: Where the system could not read it: when it may be asked for again, by the directory's clock.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._held: Snapshot | None = None  # has the pages that came so far, under a block of no meaning
        self._n_pages = 0
        self._ended = self._moving = False
        self.again_s = float("-inf")

    @property
    def ended(self) -> bool:
        """Whether it was given up."""
        return self._ended

    @property
    def n_pages(self) -> int:
        """Whole pages of the pool that it has and nobody else."""
        return self._n_pages

    @property
    def moving(self) -> bool:
        """Whether it may have more of the pool than `give_up` gives back: for a moment, behind no disk."""
        return self._moving

    @property
    def holds(self) -> bool:
        """Whether it has anything of the pool."""
        return self._held is not None or self._moving

    def give_up(self) -> None:
        """Have it end, and give back what it has. From any thread."""
        with self._lock:
            self._ended = True
            held, self._held, self._n_pages = self._held, None, 0
        if held is not None:
            held.close()

    # --- by who reads

    def grow(self, make: Callable[[Snapshot | None], Snapshot], n_pages: int) -> None:
        """Put more into the pool.

        Args:
            make: Makes a snapshot of what it has, None for nothing, and what has come.
            n_pages: That have come.

        Raises:
            Ended: It was given up.
            FlashnextError: There is no room, or what it had was given back meanwhile.
        """
        with self._lock:
            if self._ended:
                raise Ended("nobody waits for it")
            before, self._moving = self._held, True
        try:
            made = make(before)
            with self._lock:
                if not (ended := self._ended):
                    self._held = made
                    self._n_pages += n_pages
            if ended:
                made.close()
                raise Ended("nobody waits for it")
            if before is not None:
                before.close()
        finally:
            self._moving = False

    def whole(self) -> Snapshot:
        """Hand over what there is, all of it: whoever gets it closes it. `told` follows.

        Raises:
            Ended: It was given up.
        """
        with self._lock:
            if self._ended or self._held is None:
                raise Ended("nobody waits for it")
            self._moving = True
            made, self._held, self._n_pages = self._held, None, 0
            return made

    def told(self) -> None:
        """Take note that whoever waits has been told, and nothing is held for it any more."""
        self._moving = False
