"""The memory guard: how near the process is to its limit, and what is done about it.

The plan keeps what the core allocates within the limit. The guard sees to what nobody planned: a process that
takes more than it should makes the prefix cache smaller, and then takes no more requests until it has room.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

from flashnext.engine import darwin

SHRINK_PERCENT = 85
"""Of the limit: beyond it the prefix cache gives way."""

REFUSE_PERCENT = 95
"""Of the limit: beyond it requests are refused."""

LOOK_S = 0.25
"""How long a look at the process counts."""

COLLECT_S = 2.0
"""Between two collections of garbage, at least, while requests are refused."""

_STATM = Path("/proc/self/statm")


def private_bytes(statm: Path = _STATM) -> int | None:
    """Find what the process has in memory beside what is mapped of files; None where the system cannot say.

    Weights are mapped, and a system that is short of memory drops and reads them as it likes. On macOS
    compressed memory counts too.
    """
    if sys.platform == "darwin":
        return darwin.footprint_bytes()
    try:
        _, resident, shared, *_ = map(int, statm.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def own_footprint(
    program_bytes: int,
    margin_bytes: int,
    mapped_bytes: int,
    private: Callable[[], int | None] = private_bytes,
) -> Callable[[], int | None]:
    """Measure what a process has beyond what its program had before the engine was made.

    What the program has given back since does not count as its own any more: of that it has no more than the
    process has had in all at any time. What was in swap meanwhile is taken for given back.

    Args:
        program_bytes: What the process had then.
        margin_bytes: Of that, for interpreter and libraries, which are planned for.
        mapped_bytes: Of files, which count whether they are in memory or not.
        private: Measures the process.

    Returns:
        A call that measures; None where the system cannot say.
    """
    least = program_bytes

    def footprint() -> int | None:
        nonlocal least
        if (now := private()) is None:
            return None
        least = min(least, now)
        return now - max(0, least - margin_bytes) + mapped_bytes

    return footprint


class Guard:
    """Compares the larger of two figures with the limit: what is accounted for, and what the process has.

    What was planned is never held against anybody: where the plan takes more than 85 or 95 % of the limit,
    the cache gives way, or requests are refused, only beyond the plan. Memory that the process has and that
    is free to be taken again does not count. May be used from any thread.
    """

    def __init__(
        self,
        limit_bytes: int,
        planned_bytes: int,
        accounted: Callable[[], int],
        footprint: Callable[[], int | None],
        idle: Callable[[], int],
        clock_s: Callable[[], float],
    ) -> None:
        """Watch one process.

        Args:
            limit_bytes: Most that all of it may take.
            planned_bytes: What the plan takes, the prefix cache included.
            accounted: Sums what is in use by our own counts.
            footprint: Measures what the process has, mapped weights included; None where it cannot.
            idle: Sums what of that was allocated for pages and is free.
            clock_s: A clock that never goes back.
        """
        self.shrink_bytes = max(limit_bytes * SHRINK_PERCENT // 100, planned_bytes)
        self.refuse_bytes = max(limit_bytes * REFUSE_PERCENT // 100, planned_bytes)
        self._accounted = accounted
        self._footprint = footprint
        self._idle = idle
        self._clock_s = clock_s
        self._looked_s = self._collected_s = float("-inf")
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """The larger figure, as it was a moment ago."""
        now_s = self._clock_s()
        if now_s - self._looked_s >= LOOK_S:
            self._used = max(self._accounted(), (self._footprint() or 0) - self._idle())
            self._looked_s = now_s
        return self._used

    @property
    def room_bytes(self) -> int:
        """By how much the prefix cache may grow; negative where it has to give way."""
        return self.shrink_bytes - self.used_bytes

    @property
    def full(self) -> bool:
        """Whether requests are refused. Garbage that nobody has collected yet is held against none.

        It is collected by whoever asks, though that may be an event loop: a collection has the interpreter
        to itself in any thread, and whoever came meanwhile would only be refused.
        """
        if self.used_bytes > self.refuse_bytes and self._clock_s() - self._collected_s >= COLLECT_S:
            gc.collect()
            self._looked_s, self._collected_s = float("-inf"), self._clock_s()
        return self.used_bytes > self.refuse_bytes
