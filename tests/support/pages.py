"""Whether an engine's pages have come back."""

from __future__ import annotations

import time

from flashnext.engine.engine import Engine


def pages_came_back(engine: Engine, timeout_s: float = 120.0) -> bool:
    """Wait for the rounds that were in flight when a reply ended and for warm passes, and for nothing else.

    Pages that only the prefix cache has are nobody's, and its own count of them is the pool's. Where they do
    not come back the counts are printed.
    """
    pool = engine.loaded.pool
    deadline = time.monotonic() + timeout_s
    while not _balanced(engine) and time.monotonic() < deadline:
        time.sleep(0.002)
    back = pool.free + pool.of_snapshots == pool.total and _balanced(engine)
    if not back:
        print(f"pages: {pool.free} free, {pool.of_snapshots} of snapshots, of {pool.total}; {engine.counts}")
    return back


def _balanced(engine: Engine) -> bool:
    pool, cache = engine.loaded.pool, engine.counts.cache
    in_cache = cache.pages_bytes // pool.page_bytes
    return not cache.warming and pool.total - pool.free == pool.of_snapshots == in_cache
