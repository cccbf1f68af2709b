"""Brings what prompts show to the device, once for all who read it at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

from flashnext.engine.core import Features, Floats, ShownRows
from flashnext.engine.frame import Frame
from flashnext.engine.looks import Looks, Wish
from flashnext.errors import InvalidArgument

Held = dict[bytes, Features]
"""Features that a prompt is being read with, by the keys of their media."""


class Sights:
    """What is on the device, as long as somebody holds it. The engine's thread uses it.

    Attributes:
        n_made: How often features were asked for; of rows that are resumed they are not.
    """

    def __init__(self, make: Callable[[Floats], Features], looks: Looks | None = None) -> None:
        """Hold nothing yet.

        Args:
            make: Brings features to the device.
            looks: Who has media looked at ahead; without, `shown` waits for it.
        """
        self.n_made = 0
        self._make = make
        self._looks = looks
        self._made = WeakValueDictionary[bytes, Features]()

    def want(self, readers: Iterable[tuple[Frame | None, Held, int]]) -> None:
        """Have looked at what is about to be read.

        Args:
            readers: By seniority, of each its frame, what it holds, and rows that it need not read. It
                gets what others hold and it is about to read.
        """
        if self._looks is None:
            return
        wishes: list[Wish] = []
        n_held = sum(features.n for features in list(self._made.values()))
        for frame, held, start in readers:
            if frame is None:
                continue
            for span, media in frame.shown:
                if span.end <= start or media.key in held:
                    continue
                made = self._made.get(media.key)
                if made is None:
                    wishes.append((media, frame.see))
                elif n_held <= self._looks.room_tokens:  # whoever has it may end before this one reads it
                    held[media.key] = made
        self._looks.want(wishes, n_held)

    def readable(self, frame: Frame | None, held: Held, start: int, n: int) -> int:
        """Count the rows, of the next n, in front of the first that shows what has not been seen yet."""
        if self._looks is None or frame is None:
            return n
        for first, media, _, _ in frame.within(start, n):
            if not (self._there(media.key, held) or self._looks.ready(media.key)):
                return first
        return n

    @property
    def waits(self) -> bool:
        """Whether something that is wanted has not been seen."""
        return self._looks is not None and self._looks.waits

    def heard(self) -> bool:
        """Whether something has been seen since this was asked last."""
        return self._looks is not None and self._looks.heard()

    def wait(self, timeout_s: float) -> None:
        """Wait until something has been seen, or somebody calls `wake`."""
        if self._looks is not None:
            self._looks.wait(timeout_s)

    def wake(self) -> None:
        """End a wait: the one that goes on, or else the next. From any thread."""
        if self._looks is not None:
            self._looks.wake()

    def close(self) -> None:
        """Have nothing more looked at."""
        if self._looks is not None:
            self._looks.close()

    def shown(self, frame: Frame | None, held: Held, start: int, n: int) -> tuple[ShownRows, ...]:
        """Say what the next rows of a prompt show.

        Args:
            frame: Of the prompt; None without media.
            held: Gets what these rows show, and keeps it while further ones show it too.
            start: Rows that have been read.
            n: Rows that are read next.

        Raises:
            Exception: What is wrong with the features.
        """
        if frame is None:
            return ()
        for key in held.keys() - frame.behind(start):
            del held[key]
        parts = []
        for first, media, row, count in frame.within(start, n):
            features = held.get(media.key) or self._made.get(media.key)
            if features is None:
                self.n_made += 1
                seen = self._looks.take(media.key) if self._looks is not None else None
                features = self._make(frame.see(media) if seen is None else seen)
                if features.n != media.n_tokens:
                    raise InvalidArgument(
                        f"media that take {media.n_tokens} rows of the prompt have features of {features.n}"
                    )
                self._made[media.key] = features
            held[media.key] = features
            parts.append(ShownRows(first, features, row, count))
        return tuple(parts)

    def _there(self, key: bytes, held: Held) -> bool:
        return key in held or key in self._made
