"""Loading in a thread while the server already answers that it is loading."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from flashnext.engine.engine import Engine
from flashnext.server.service import Service


class Load(Protocol):
    """What makes the engine."""

    def __call__(self, *, progress: Callable[[str], None]) -> Engine:
        """Load, telling each stage as it begins."""


class Loading:
    """One load, begun and ended in the event loop; a signal cannot interrupt the core, so it has a thread.

    Attributes:
        engine: What was loaded.
        error: Why it was not.
    """

    def __init__(
        self, load: Load, progress: AbstractContextManager[Callable[[str], None]], service: Service
    ) -> None:
        """Prepare a load.

        Args:
            load: Makes the engine.
            progress: Shows the stages.
            service: Is told the stages.
        """
        self._load = load
        self._progress = progress
        self._service = service
        self._thread: threading.Thread | None = None
        self.engine: Engine | None = None
        self.error: BaseException | None = None

    def begin(self, on_loaded: Callable[[Engine], object], on_error: Callable[[], object]) -> None:
        """Begin to load.

        Args:
            on_loaded: Called in the event loop with the engine; if it raises, that counts as an error.
            on_error: Called in the event loop when `error` is set.
        """
        loop = asyncio.get_running_loop()

        def done() -> None:
            try:
                if self.engine is not None:
                    on_loaded(self.engine)
            except BaseException as error:  # told by whoever waits for the server's end
                self.error = error
            if self.error is not None:
                on_error()

        def work() -> None:
            try:
                with self._progress as show:
                    self.engine = self._load(progress=lambda stage: self._tell(show, stage))
            except BaseException as error:
                self.error = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(done)

        self._thread = threading.Thread(target=work, name="flashnext-load", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Close what was loaded; False where that takes longer, or loading itself still does."""
        if self._thread is not None:
            self._thread.join(0 if self.engine is None and self.error is None else timeout_s)
            if self._thread.is_alive():
                return False
        return self.engine is None or self.engine.close(timeout_s)

    def _tell(self, show: Callable[[str], None], stage: str) -> None:
        self._service.stage = stage
        show(stage)
