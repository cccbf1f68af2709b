"""A scheduler with a prefix cache over the fake core, and what its replies have to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashnext.engine.caching import Caching
from flashnext.engine.guard import Guard
from flashnext.engine.looks import Looks
from flashnext.engine.marks import Kind, Place
from flashnext.engine.prefix_cache import CacheOptions
from flashnext.engine.scheduler import Scheduler

from support.fake_core import PAGE, FakeCore
from support.jobs import Client, add, run

LIMIT = 10**6


class Clock:
    """A clock that the test moves; each look takes a microsecond."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s


class Bench:
    """A scheduler with a cache over the fake core."""

    def __init__(
        self,
        limit: int = LIMIT,
        *,
        n_pages: int = 400,
        max_running: int = 4,
        max_chunk: int = 64,
        equal: bool = True,
        spacing: int = 0,
        least_shared: int = 0,
        guard: Guard | None = None,
        core: FakeCore | None = None,
        least: int = 0,
        least_new: int = 1,
        least_parted: int = 10**6,
        looks: Looks | None = None,
    ) -> None:
        self.core = core or FakeCore(counting, n_pages=n_pages, max_chunk=max_chunk)
        self.core.least_shared = least_shared
        self.core.prompt_equals_window = equal
        self.clock = Clock()
        options = CacheOptions(
            page=PAGE, spacing=spacing, least=least, least_new=least_new, least_parted=least_parted
        )
        self.caching = Caching(self.core, limit, self.clock, options, guard)
        self.scheduler = Scheduler(
            self.core, max_running, clock_s=self.clock, caching=self.caching, looks=looks
        )

    def add(self, prompt: Sequence[int], places: Sequence[int] = (), **more: Any) -> Client:
        at = tuple(Place(n, Kind.END) for n in places)
        return add(self.scheduler, list(prompt), places=at, **{"max_tokens": 3, **more})

    def ask(self, prompt: Sequence[int], places: Sequence[int] = (), **more: Any) -> int:
        """Answer a prompt, check its reply and the books; returns how many tokens were cached."""
        client = self.add(prompt, places, **more)
        run(self.scheduler)
        self.check_books()
        return cached(client)

    def marks(self) -> list[int]:
        return sorted(mark.n for mark in self.caching.cache.marks)

    def check_books(self) -> None:
        """What the cache counts is what the core holds."""
        cache, core = self.caching.cache, self.core
        assert core.open_sessions == []
        assert len(core.open_snapshots) == len(cache.marks)
        assert core.snapshot_bytes() == cache.blocks_bytes
        assert core.n_taken * core.page_bytes == cache.pages_bytes
        assert cache.size_bytes <= cache.limit_bytes


def counting(prompt: list[int]) -> list[int]:
    """Reply with numbers that depend on the prompt, without an end."""
    return [100 + (sum(prompt) + 7 * i) % 900 for i in range(200)]


def cached(client: Client) -> int:
    """Check a reply; returns the cached tokens that its usage tells."""
    events = client.events()
    tokens = [i for event in events for i in event.token_ids]
    assert tokens == counting(client.job.prompt.tolist())[: len(tokens)]
    usage = events[-1].usage
    assert usage is not None
    return usage.cached_tokens


def prompt(n: int, first: int = 1) -> list[int]:
    return [first, *range(2, n + 1)]
