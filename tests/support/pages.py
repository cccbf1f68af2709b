"""Whether an engine's pages have come back."""

from __future__ import annotations

import time

from flashnext.engine.engine import Engine


def pages_came_back(engine: Engine, timeout_s: float = 10.0) -> bool:
    """Wait for the rounds that were in flight when a reply ended, and for nothing else."""
    pool = engine.loaded.pool
    deadline = time.monotonic() + timeout_s
    while pool.free < pool.total and time.monotonic() < deadline:
        time.sleep(0.002)
    return pool.free == pool.total
