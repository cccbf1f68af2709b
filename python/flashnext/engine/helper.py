"""A thread for what must not hold up the engine's."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger("flashnext.engine")


class Helper:
    """A thread for what must not hold up the engine's. It is made when it is first needed."""

    def __init__(self, name: str, most: int | None = None, dry: Callable[[], object] = lambda: None) -> None:
        """Begin with nothing to do.

        Args:
            name: Of the thread.
            most: Calls that may wait; beyond them the oldest is left out.
            dry: Called by the thread whenever no call waits any more, and `n_waiting` is 0.
        """
        self._name, self._dry = name, dry
        self._changed = threading.Condition()
        self._work: deque[Callable[[], object]] = deque(maxlen=most)
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False

    @property
    def n_waiting(self) -> int:
        """Calls that have not been made, the one that is being made included."""
        with self._changed:
            return len(self._work) + self._busy

    def call(self, work: Callable[[], object]) -> None:
        """Have something called soon, and what it raises dropped."""
        with self._changed:
            if self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()  # which fails where the system gives no more
                self._thread = thread
            self._work.append(work)
            self._changed.notify()

    def close(self, timeout_s: float = 0.0) -> bool:
        """Call nothing more, and wait for what is being called; whether that has ended."""
        with self._changed:
            self._closed = True
            self._work.clear()
            self._changed.notify()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                dry = not self._work and not self._closed
            if dry:  # whoever hears of it may call at once
                self._make(self._dry)
            with self._changed:
                while not self._work and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                work, self._busy = self._work.popleft(), True
            self._make(work)
            del work  # nothing is kept while there is nothing to do

    def _make(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            _log.exception("%s failed", self._name)
