"""A scheduler over the fake core with a prefix cache and a real spill directory, stepped by the test."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flashnext.engine import spill_files as files
from flashnext.engine.caching import Caching
from flashnext.engine.marks import Kind, Place
from flashnext.engine.pace import Pace
from flashnext.engine.prefix_cache import CacheOptions
from flashnext.engine.scheduler import Scheduler
from flashnext.engine.spill import Spill

from support.fake_core import PAGE, FakeCore
from support.jobs import Client, add

GIB = 1 << 30
IDENTITY = "this model, this build"
MOST_S = 120.0
"""For what takes milliseconds, on a machine that is busy with much else."""


def counting(prompt: list[int]) -> list[int]:
    return [100 + (sum(prompt) + 7 * i) % 900 for i in range(200)]


class LockedCore(FakeCore):
    """The fake core for several threads: states are read and restored by others than the engine's."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.mutex = threading.RLock()
        self.reading: Callable[[], object] = lambda: None
        self.calling: Callable[[str], object] = lambda name: None

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("read_page", "read_block", "restore", "step", "resume", "snapshot", "open", "stop"):
            return found

        def locked(*args: Any, **more: Any) -> Any:
            if name.startswith("read"):
                self.reading()
            self.calling(name)
            with self.mutex:
                return found(*args, **more)

        return locked


class Fast(Pace):
    """Whatever was measured, every mark is worth its way: a small core reads faster than any disk."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock_s)
        self.bytes_per_s = 1e15

    def measure(self, n_bytes: int, seconds: float, *, ended: bool = True) -> None:
        pass


class PatientSpill(Spill):
    """A directory that is given back when it is closed, however slow this machine is.

    Attributes:
        close_s: How long its threads are waited for.
    """

    close_s = MOST_S

    def close(self, timeout_s: float | None = None) -> None:
        super().close(self.close_s if timeout_s is None else timeout_s)


class Server:
    """A scheduler with a cache and a spill directory, stepped by the test.

    Attributes:
        now_s: The time of day of the directory.
        clock_s: Its clock that never goes back.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit: int = 10**6,
        disk: int = GIB,
        floor: int = 0,
        identity: str = IDENTITY,
        n_pages: int = 400,
        settle: bool = True,
    ) -> None:
        self.core = LockedCore(counting, n_pages=n_pages, max_chunk=64)
        self.now_s, self.clock_s = 1e9, 1e3
        self.caching = Caching(
            self.core, limit, time.perf_counter, CacheOptions(page=PAGE, spacing=0, least=0, least_new=1)
        )
        self.spill = PatientSpill(
            folder,
            self.core,
            identity,
            page=PAGE,
            limit_bytes=disk,
            floor_bytes=floor,
            now=lambda: self.now_s,
            clock_s=lambda: self.clock_s,
        )
        self.spill.pace = Fast(lambda: self.clock_s)
        self.scheduler = Scheduler(self.core, 4, caching=self.caching)
        self.caching.attach(self.spill, lambda: None)
        assert self.caching.disk is not None
        self.disk = self.caching.disk
        self.disk.patience_s = 1e9  # however slow this machine is
        if settle:
            self.settle()

    def ask(self, prompt: Sequence[int], places: Sequence[Place] = (), **more: Any) -> int:
        """Answer a prompt, check the reply; returns its cached tokens."""
        client: Client = add(self.scheduler, list(prompt), places=tuple(places), **{"max_tokens": 2, **more})
        self.run()
        events = client.events()
        tokens = [i for event in events for i in event.token_ids]
        assert tokens == counting(list(prompt))[: len(tokens)]
        usage = events[-1].usage
        assert usage is not None
        return usage.cached_tokens

    def run(self) -> None:
        deadline = time.monotonic() + MOST_S
        while not self.scheduler.idle:
            assert time.monotonic() < deadline, "it goes on for ever"
            self.scheduler.step()

    def settle(self) -> None:
        """Step until nothing is being written or looked for."""
        deadline = time.monotonic() + MOST_S
        quiet = 0
        while quiet < 3:
            assert time.monotonic() < deadline, "it goes on for ever"
            self.caching.tend()
            quiet = 0 if self.disk.busy else quiet + 1
            time.sleep(0.001)

    def spill_all(self) -> None:
        """Write all marks that can be written."""
        self.disk.ahead_bytes, self.disk._all_stored = 1 << 40, -1
        self.settle()

    def evict_all(self) -> None:
        """Write all marks, and drop them from memory."""
        self.spill_all()
        self.caching.cache.clear()

    def close(self) -> None:
        self.scheduler.end_all(RuntimeError("over"))
        assert self.core.open_snapshots == []
        assert self.core.free_pages() == self.core.n_pages

    @property
    def counts(self) -> Any:
        return self.scheduler.counts.cache


def end(n: int, kind: Kind = Kind.END) -> Place:
    return Place(n, kind)


def prompt(n: int, first: int = 1) -> list[int]:
    return [first, *range(2, n + 1)]


def spilled(folder: Path, **more: Any) -> Server:
    """A server whose only mark, at 50, is on disk alone."""
    server = Server(folder, **more)
    server.ask(prompt(60), [end(50)], max_tokens=1, stops=())
    server.caching.cache.give_way(0.0, [mark for mark in server.caching.cache.marks if mark.n == 50])
    server.evict_all()
    return server


def step_until_loading(server: Server, client: Client) -> None:
    """Step until a request waits for a mark from disk."""
    deadline = time.monotonic() + MOST_S
    while not client.job.loading:
        assert time.monotonic() < deadline, "it never waits for the disk"
        server.scheduler.step()


def hang(
    monkeypatch: pytest.MonkeyPatch, name: str, after: int = 0
) -> tuple[threading.Event, threading.Event]:
    """Let calls of a function of files hang, the first ones aside; returns what is set when one has begun,
    and what ends them."""
    begun, ends, call = threading.Event(), threading.Event(), getattr(files, name)
    n_calls = itertools.count()

    def slow(*args: Any) -> Any:
        if next(n_calls) >= after:
            begun.set()
            ends.wait()
        return call(*args)

    monkeypatch.setattr(files, name, slow)
    return begun, ends
