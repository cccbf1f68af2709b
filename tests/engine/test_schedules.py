"""Whatever comes, leaves, fails or runs short: every reply is what it is alone, and all pages come back."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from flashnext.engine.events import Event
from flashnext.engine.scheduler import Scheduler
from flashnext.errors import DeviceError, OutOfMemory
from hypothesis import given, note, settings
from hypothesis import strategies as st
from support.fake_core import PAGE, WINDOW, FakeCore, FakeSession
from support.jobs import END, Client, add

PREFIXES = [list(range(first, first + n)) for first, n in ((10, 30), (10, 17), (100, 40), (500, 3))]
REASONS = {"stop", "length", "cancelled"}


def reply_to(prompt: list[int]) -> list[int]:
    """Draw the same long reply for a prompt each time; some end by themselves."""
    rng = random.Random(str(prompt))
    out = [rng.randrange(1000, 2000) for _ in range(80)]
    if rng.random() < 0.5:
        out[rng.randrange(1, 60)] = END
    return out


def alone(prompt: list[int], max_tokens: int) -> list[int]:
    out = reply_to(prompt)[:max_tokens]
    return out[: out.index(END) + 1] if END in out else out


@dataclass
class Run:
    """One scheduler, what was asked of it, and what happened."""

    core: FakeCore
    scheduler: Scheduler
    rng: random.Random
    clients: list[Client] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    drawn: dict[int, int] = field(default_factory=dict)
    still: Counter[int] = field(default_factory=Counter)
    n_failures: int = 0

    def arrive(self) -> None:
        rng = self.rng
        rest = [rng.randrange(2000, 2400) for _ in range(rng.choice([1, 2, 9, 30]))]
        prompt = rng.choice(PREFIXES) + rng.choice([rest, []])
        self.clients.append(
            add(
                self.scheduler,
                prompt,
                max_tokens=rng.choice([1, 2, 5, 20, 70]),
                n_drafts=rng.randrange(0, WINDOW),
                background=rng.random() < 0.3,
            )
        )

    def cancel(self) -> None:
        client = self.rng.choice(self.clients)
        self.cancelled.add(client.job.id)
        self.scheduler.cancel(client.job)

    def fault(self, session: FakeSession) -> Exception | None:
        if self.rng.random() < 0.01:
            self.n_failures += 1
            return OutOfMemory("planted")
        return None

    def before(self, what: str, detail: Any) -> None:
        if self.rng.random() < {"open": 0.02, "fork": 0.05, "begin": 0.01}.get(what, 0.005):
            self.n_failures += 1
            raise DeviceError("planted")

    def nobody_stands_still(self) -> None:
        """Who could draw, draws: unless pages are short, or all wait for a prompt to be read."""
        scheduler = self.scheduler
        running = [scheduler._as_running(job, {}) for job in scheduler._running]
        enough = sum(r.missing for r in running) <= self.core.free_pages()
        for job in scheduler._running:
            same = enough and not job.unread and self.drawn.get(job.id) == job.n_drawn
            self.still[job.id] = self.still[job.id] + 1 if same else 0
            self.drawn[job.id] = job.n_drawn
            assert self.still[job.id] < 10

    def check(self) -> Counter[str]:
        """Check every reply; returns how they ended."""
        ends = Counter[str]()
        for client in self.clients:
            job = client.job
            expected = alone(job.prompt.tolist(), job.max_tokens)
            items = []
            while not client.items.empty():
                items.append(client.items.get())
            *events, last = items
            assert all(isinstance(e, Event) and e.finish_reason is None for e in events)
            found = [i for e in items if isinstance(e, Event) for i in e.token_ids]
            if isinstance(last, Exception):
                assert str(last) == "planted", last
                ends["failed"] += 1
            else:
                assert last.finish_reason in REASONS
                ends[last.finish_reason] += 1
            if isinstance(last, Exception) or last.finish_reason == "cancelled":
                assert found == expected[: len(found)]
                assert isinstance(last, Exception) or job.id in self.cancelled
            else:
                assert found == expected
        return ends


def play(seed: int, n_pages: int, max_running: int, *, equal: bool, failures: bool, n_requests: int) -> Run:
    rng = random.Random(seed)
    core = FakeCore(reply_to, n_pages=n_pages, max_chunk=rng.choice([4, 16, 64]))
    core.least_shared = PAGE * rng.choice([0, 1, 1])
    core.prompt_equals_window = equal
    core.accepted = rng.randrange(0, WINDOW)
    core.in_flight = rng.choice([0, 1, 1, 2])
    core.max_sequences = rng.choice([max_running, 64])
    run = Run(core, Scheduler(core, max_running, gap_ms=0), rng)
    if failures:
        core.fault, core.before = run.fault, run.before
    steps = 0
    while len(run.clients) < n_requests or not run.scheduler.idle:
        chance = rng.random()
        if len(run.clients) < n_requests and (chance < 0.1 or run.scheduler.idle):
            for _ in range(rng.choice([1, 1, 1, 4])):
                run.arrive()
        elif run.clients and chance > 0.98:
            run.cancel()
        run.scheduler.step()
        run.nobody_stands_still()
        steps += 1
        assert steps < 30_000, "this goes on for ever"
    assert core.open_sessions == []
    assert core.free_pages() == n_pages
    return run


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_pages=st.integers(20, 60),
    max_running=st.integers(1, 9),
    equal=st.booleans(),
    failures=st.booleans(),
)
def test_every_reply_is_what_it_is_alone(
    seed: int, n_pages: int, max_running: int, equal: bool, failures: bool
) -> None:
    run = play(seed, n_pages, max_running, equal=equal, failures=failures, n_requests=12)
    note(f"{run.check()}, forks {run.core.n_forks}, resumed {len(run.core.resumed)}")


@pytest.mark.parametrize("equal", [True, False])
def test_the_schedules_above_come_to_forks_preemptions_cancels_and_failures(equal: bool) -> None:
    ends = Counter[str]()
    forks = resumed = shorts = failures = 0
    for seed in range(40):
        run = play(seed, 24, 6, equal=equal, failures=seed % 2 == 0, n_requests=12)
        ends += run.check()
        forks += run.core.n_forks
        resumed += len(run.core.resumed)
        shorts += run.core.n_shorts
        failures += run.n_failures
    found = f"{ends}, {forks} forks, {resumed} resumed, {shorts} short, {failures} failures"
    assert min(ends["stop"], ends["length"], ends["cancelled"], ends["failed"]) > 10, found
    assert min(forks, resumed, shorts, failures) > 20, found
