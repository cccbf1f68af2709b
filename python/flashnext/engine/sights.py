"""Brings what prompts show to the device, once for all who read it at the same time."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from flashnext.engine.core import Features, Floats, ShownRows
from flashnext.engine.frame import Frame
from flashnext.errors import InvalidArgument

Held = dict[bytes, Features]
"""Features that a prompt is being read with, by the keys of their media."""


class Sights:
    """What is on the device, as long as somebody holds it. The engine's thread uses it.

    Attributes:
        n_made: How often features were asked for; of rows that are resumed they are not.
    """

    def __init__(self, make: Callable[[Floats], Features]) -> None:
        """Hold nothing yet.

        Args:
            make: Brings features to the device.
        """
        self.n_made = 0
        self._make = make
        self._made = WeakValueDictionary[bytes, Features]()

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
                features = self._make(frame.see(media))
                if features.n != media.n_tokens:
                    raise InvalidArgument(
                        f"media that take {media.n_tokens} rows of the prompt have features of {features.n}"
                    )
                self._made[media.key] = features
            held[media.key] = features
            parts.append(ShownRows(first, features, row, count))
        return tuple(parts)
