"""What is expected of a spill directory: how fast it gives, and whether it works at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

COOL_S = 30.0
"""After a failed write, how long nothing is written; twice as long after each further one. Reads likewise."""

MOST_COOL_S = 3600.0
"""How long that is at most."""

HOPED_BYTES_PER_S = 1e9
"""How fast marks are thought to come back where nothing else is known."""

RECOVER_S = 60.0
"""In so many seconds without a read, what the directory is thought to give doubles."""

_NEWEST_SHARE = 0.3  # of what is thought that the newest measurement makes


class Pace:
    """How fast marks come back: as they did lately, and better the longer ago that was.

    From any thread; of two measurements at once one may be lost, which does no harm.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """Hope for the best.

        Args:
            clock_s: A clock that never goes back.
        """
        self._clock_s = clock_s
        self._rated = HOPED_BYTES_PER_S, clock_s()  # what was thought, and when

    @property
    def bytes_per_s(self) -> float:
        """What the directory is thought to give."""
        rate, rated_s = self._rated
        quiet = min(60.0, (self._clock_s() - rated_s) / RECOVER_S)
        return max(rate, min(HOPED_BYTES_PER_S, rate * math.pow(2.0, quiet)))

    @bytes_per_s.setter
    def bytes_per_s(self, rate: float) -> None:
        self._rated = rate, self._clock_s()

    def measure(self, n_bytes: int, seconds: float, *, ended: bool = True) -> None:
        """Take note of how long bytes took.

        Seconds for each byte are averaged, since it is seconds that are waited for: of an average of bytes
        for each second a thousandth of the speed takes a third away, and fifteen waits go by in vain.

        Args:
            n_bytes: How many.
            seconds: What they took.
            ended: Whether they have come; where not, it is known only that they take longer than that.
        """
        before_s, newest_s = 1.0 / self.bytes_per_s, max(1e-6, seconds) / max(1, n_bytes)
        if ended or newest_s > before_s:
            self.bytes_per_s = 1.0 / (before_s + _NEWEST_SHARE * (newest_s - before_s))


class Cool:
    """A pause after failures, longer with each in a row; by a clock that never goes back.

    Attributes:
        until_s: When it ends.
        told: What failed, as people were told last; "" where something has succeeded since.
    """

    def __init__(self) -> None:
        """Begin without one."""
        self.until_s = float("-inf")
        self.told = ""
        self._n_in_a_row = 0

    def fail(self, now_s: float) -> None:
        """Begin a pause."""
        self.until_s = now_s + min(MOST_COOL_S, COOL_S * 2.0**self._n_in_a_row)
        self._n_in_a_row = min(self._n_in_a_row + 1, 20)

    def succeed(self) -> None:
        """Let the next pause be a short one, and the next failure be told."""
        self._n_in_a_row, self.told = 0, ""


class Pauses:
    """When is tried again what failed: one file, or, where another one fails before any succeeds, all.

    For one thread; `until_s` may be read from any.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._all = Cool()
        self._files: dict[str, Cool] = {}
        self._last: str | None = None  # the file that failed last; None where something has succeeded since

    @property
    def until_s(self) -> float:
        """When anything at all is tried again."""
        return self._all.until_s

    def of(self, names: Iterable[str]) -> float:
        """Say when the last of some files is tried again."""
        cools = [self._files[name] for name in names if name in self._files] if self._files else []
        return max((cool.until_s for cool in cools), default=float("-inf"))

    def fail(self, now_s: float, name: str | None = None) -> None:
        """Begin a pause.

        Args:
            now_s: The time.
            name: Of the file that failed; None where it is plain that others would fail too.
        """
        if name is not None and self._last in (None, name):
            # A mark that is gone never succeeds, so what failed long ago is forgotten.
            recent = {one: cool for one, cool in self._files.items() if cool.until_s + MOST_COOL_S > now_s}
            self._files = recent
            self._files.setdefault(name, Cool()).fail(now_s)
            self._last = name
        else:
            self._all.fail(now_s)

    def succeed(self, names: Iterable[str]) -> None:
        """Take note that files could be had; the next failure is told, and its pause is a short one."""
        self._all.succeed()
        self._last = None
        for name in names if self._files else ():
            self._files.pop(name, None)

    def news(self, text: str) -> bool:
        """Whether what failed is another thing than was told last."""
        before, self._all.told = self._all.told, text
        return text != before
