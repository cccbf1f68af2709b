"""Has what prompts show looked at beside the engine's thread, while others' rounds go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from flashnext.engine.core import Floats
from flashnext.engine.eyes import Eyes, len_patches
from flashnext.engine.frame import See
from flashnext.engine.helper import Helper
from flashnext.errors import DeviceError
from flashnext.media import Media

Wish = tuple[Media, See]
"""Media of which features are wanted, and who gives them."""

CLOSE_S = 60.0
"""How long the pass that runs is waited for at the end."""


class Looks:
    """Features that prompts are about to be read with. The engine's thread uses it, and one of its own.

    The engine's thread says what it wants, again whenever that changes. What nobody wants any more is
    dropped: before it is looked at, or when it comes.

    Attributes:
        told: Called by the thread whenever there is something to take.
        room_tokens: Features that are asked for ahead, on the device and on the way to it, have at most so
            many tokens; those that are wanted first always come.
    """

    def __init__(self, eyes: Eyes | None, room_tokens: int) -> None:
        """Want nothing yet.

        Args:
            eyes: Those who are asked for media of several prompts at once; None where there are none, and
                each prompt brings its own.
            room_tokens: Of what is asked for ahead.
        """
        self.told: Callable[[], object] = lambda: None
        self._eyes, self.room_tokens = eyes, room_tokens
        self._helper = Helper("flashnext-eyes")
        self._changed = threading.Condition()
        self._wanted: set[bytes] = set()
        self._queue: dict[bytes, Wish] = {}
        self._begun: dict[bytes, int] = {}  # tokens of what is being looked at
        self._seen: dict[bytes, Floats | Exception] = {}
        self._running = self._news = self._woken = False

    def want(self, wishes: Sequence[Wish], held_tokens: int) -> None:
        """Say what is wanted from now on.

        Args:
            wishes: In the order in which they are needed.
            held_tokens: Of features that are on the device.
        """
        with self._changed:
            unique = {media.key: (media, see) for media, see in wishes}
            self._wanted = set(unique)
            self._queue = {}
            for key in self._seen.keys() - self._wanted:
                del self._seen[key]
            known = self._seen.keys() | self._begun.keys()
            others = [n for key, n in self._begun.items() if key not in unique]
            left = self.room_tokens - held_tokens - sum(others)
            left -= sum(media.n_tokens for key, (media, _) in unique.items() if key in known)
            for i, (key, wish) in enumerate(unique.items()):
                if key in known:
                    continue
                left -= wish[0].n_tokens
                if i and left < 0:
                    break
                self._queue[key] = wish
            if not self._queue or self._running:
                return
            self._running = True
        try:
            self._helper.call(self._look)
        except RuntimeError as error:  # the system gives no thread
            with self._changed:
                self._running = False
                self._seen.update(dict.fromkeys(self._queue, error))
                self._queue = {}

    def ready(self, key: bytes) -> bool:
        """Whether features, or what is wrong with them, can be taken."""
        return key in self._seen

    def take(self, key: bytes) -> Floats | None:
        """Give features; None where they were not asked for.

        Raises:
            Exception: What is wrong with them.
        """
        seen = self._seen.get(key)
        if isinstance(seen, Exception):
            raise seen
        return seen

    @property
    def waits(self) -> bool:
        """Whether something that is wanted has not come."""
        with self._changed:
            return bool(self._queue) or bool(self._begun.keys() & self._wanted)

    def heard(self) -> bool:
        """Whether something has come since this was asked last."""
        with self._changed:
            news, self._news = self._news, False
            return news

    def wait(self, timeout_s: float) -> None:
        """Wait until something comes, or somebody calls `wake`."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._woken, timeout_s)
            self._woken = False

    def wake(self) -> None:
        """End a wait: the one that goes on, or else the next. From any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Want nothing more, and wait for the pass that runs; whether it has ended."""
        if self._eyes is not None:
            self._eyes.close()
        self.want((), 0)
        return self._helper.close(timeout_s)

    def _look(self) -> None:
        while True:
            with self._changed:
                wishes = self._next()
                if not wishes:
                    self._running = False
                    return
                self._begun = {media.key: media.n_tokens for media, _ in wishes}
            seen = self._see(wishes)
            with self._changed:
                self._begun = {}
                for (media, _), found in zip(wishes, seen, strict=True):
                    if media.key in self._wanted:
                        self._seen[media.key] = found
                self._news = True
                self._changed.notify_all()
            self.told()

    def _next(self) -> list[Wish]:
        """Take the first wish, and those who go through the tower with it."""
        wishes: list[Wish] = []
        left = self._eyes.max_patches if self._eyes is not None else 0
        for key, (media, see) in list(self._queue.items()):
            shared = self._eyes is not None and see == self._eyes.see
            n = len_patches(media)
            if wishes and not (shared and n <= left):
                break
            wishes.append((media, see))
            del self._queue[key]
            left -= n
            if not shared:
                break
        return wishes

    def _see(self, wishes: Sequence[Wish]) -> Sequence[Floats | Exception]:
        """Look at what was taken. Whatever goes wrong is told: who waits would wait for good."""
        media, (_, see) = [media for media, _ in wishes], wishes[0]
        try:
            if self._eyes is not None and see == self._eyes.see:
                return self._eyes.see_all(media)
            return [see(media[0])]
        except Exception as error:
            return [error] * len(wishes)
        except BaseException as error:  # as of a program's own `see` that exits
            return [DeviceError(f"looking at media was ended by {error!r}")] * len(wishes)
