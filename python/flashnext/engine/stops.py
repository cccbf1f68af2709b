"""Stop strings: the text before the first one, and nothing held back that cannot become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Watches a growing text for the first stop string that is complete in it.

    What is held back is exactly the longest end of the text that is the beginning of a stop string. Any split
    of the text gives the same end.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take more text; returns what is sure to stand before any stop string. After a match, nothing."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            end, negative_length, self.matched = min(ends)
            self._held = ""
            return text[: end + negative_length]
        n = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - n :]
        return text[: len(text) - n]

    def flush(self) -> str:
        """End the text without a match; returns what was held."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that begins stop, and is not all of it."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
