"""What tests of the chat page share: a server that says what it is told, and how to write to the page."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from flashnext.server.settings import Defaults

from support.serving import ServerThread

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

OpenPage = Callable[..., "Page"]

LONG = " ".join(f"word{i}" for i in range(200))
"""A reply that takes some hundred rounds."""


class Scripted(ServerThread):
    """A server whose replies say what a test wants, and stand still where it wants."""

    def __init__(self, *, thinking: bool = False) -> None:
        super().__init__(defaults=Defaults(thinking=thinking))
        self._rounds = 0
        self._held_at: int | None = None
        self._changed = threading.Condition()
        self.core.before = self._wait

    def says(self, text: str, *, thoughts: str = "", hold_at: int | None = None) -> int:
        """Script the replies from now on.

        Args:
            text: What they say.
            thoughts: What they think before, where the server thinks.
            hold_at: After how many rounds of the next one nothing goes on until `go_on`.

        Returns:
            How many tokens that is, the end included.
        """
        stop_id = min(self.engine._stop_ids)
        tokenizer = self.engine.tokenizer
        before = [*tokenizer.encode(thoughts), tokenizer.control_ids["</think>"]] if thoughts else []
        self.core.script = [*before, *tokenizer.encode(text), stop_id]
        with self._changed:
            self._rounds = 0
            self._held_at = hold_at
        return len(self.core.script)

    def go_on(self, *, hold_at: int | None = None) -> None:
        """Let a reply that stands still go on, to its end or until so many rounds of it."""
        with self._changed:
            self._held_at = hold_at
            self._changed.notify_all()

    def close(self) -> None:
        self.go_on()
        super().close()

    def _wait(self, what: str) -> None:
        if what != "round":
            return
        with self._changed:
            self._rounds += 1
            goes_on = self._changed.wait_for(
                lambda: self._held_at is None or self._rounds <= self._held_at, timeout=120
            )
        assert goes_on, "the test has forgotten to let the reply go on"


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def send(page: Page, text: str) -> None:
    page.locator("#prompt").fill(text)
    page.locator("#prompt").press("Enter")


def replies(page: Page) -> Locator:
    return page.locator("article.reply[aria-busy=false]")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
