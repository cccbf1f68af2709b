"""What other threads may do to a driver while its rounds run: look, wake it, close sessions, take it down."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from flashnext import _core
from support.fuzz import MAX_CHUNK, MOST_TOKENS, SAMPLINGS, Asked, Machine

NOT_SCORED = np.empty(0, np.int32)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("threads") / "small", threads=2)


class Others:
    """A thread that looks, wakes and closes all the time."""

    def __init__(self, driver: _core.Driver, pool: _core.PagePool, seed: int) -> None:
        self._driver, self._pool, self._seed, self._rng = driver, pool, seed, random.Random(seed)
        self.sessions: list[_core.Session] = []
        self.lengths: dict[int, int] = {}
        """Tokens at which a session that leaves is closed, so that no speed of a machine decides who does."""
        self.closed: set[int] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def add(self, session: _core.Session, n_prompt: int) -> None:
        at = len(self.sessions)
        if leaves(self._seed, at):
            self.lengths[at] = n_prompt + self._rng.randrange(MOST_TOKENS - 8)
        self.sessions.append(session)

    def _run(self) -> None:
        rng = random.Random(f"{self._seed} others")
        while not self._end.is_set():
            assert 0 <= self._pool.free <= self._pool.total
            self._driver.counts()
            self._driver.prices([1, 4])
            for at, session in enumerate(list(self.sessions)):
                assert session.n_pages >= 0 and session.length >= 0
                if at in self.lengths and at not in self.closed and session.length >= self.lengths[at]:
                    self.closed.add(at)
                    session.close()
            if rng.random() < 0.3:
                self._driver.wake()
            time.sleep(rng.random() * 0.002)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def leaves(seed: int, at: int) -> bool:
    """Whether a session is closed while rounds run."""
    return (seed + at) % 3 == 0


def play(machine: Machine, seed: int, n: int, lone: bool) -> int:
    """Run replies while others disturb; returns how many were closed before their end."""
    rng = random.Random(seed)
    pool = _core.PagePool(machine.loaded.model, 5 * n)
    driver = _core.Driver(machine.loaded.model, lone=lone)
    driver.keep_hashes(True)
    others = Others(driver, pool, seed)
    asked = [Asked(rng.randrange(19), rng.randrange(len(SAMPLINGS)), 0, MOST_TOKENS) for _ in range(n)]
    found: dict[Any, list[tuple[int, int]]] = {}
    begun: list[_core.Session] = []

    def note(landed: list[Any]) -> None:
        for one in landed:
            assert one.error is None and not one.short
            found[one.session].extend((t.token, t.logits_hash) for t in one.tokens)

    for one in asked:
        session = _core.Session(machine.loaded.model, pool)
        prompt = np.array(machine.prompts[one.prompt], np.int32)
        sampling = _core.Sampling(**SAMPLINGS[one.sampling])
        end = len(prompt) + MOST_TOKENS
        driver.begin(session, sampling, [], len(prompt), end, most_head=rng.choice([0, 3]), most_copied=3)
        found[session] = []
        if prompt[MAX_CHUNK:].size:
            note(driver.step([(session, prompt[:MAX_CHUNK], False, NOT_SCORED, [], [])], []))
            prompt = prompt[MAX_CHUNK:]
        note(driver.step([(session, prompt, True, NOT_SCORED, [], [])], begun))
        begun.append(session)
        others.add(session, len(machine.prompts[one.prompt]))
        driver.start(begun)
        for _ in range(rng.randrange(4)):
            note(driver.take())
        note(driver.stop())
    driver.start(begun)
    deadline = time.monotonic() + 120
    while not all(
        at in others.closed or (at not in others.lengths and len(found[session]) == MOST_TOKENS)
        for at, session in enumerate(begun)
    ):
        assert time.monotonic() < deadline
        note(driver.take())
    note(driver.stop())
    others.end()
    for one, session in zip(asked, begun, strict=True):
        expected = [(t.token, t.logits_hash) for t in machine.alone(one)]
        assert found[session] == expected[: len(found[session])], one
        session.close()
        assert session.size_bytes == 0
    assert pool.free == pool.total
    assert others.closed == {at for at in range(n) if leaves(seed, at)}
    return sum(len(found[begun[at]]) < MOST_TOKENS for at in others.closed)


@pytest.mark.parametrize("n", [1, 3], ids="{}-together".format)
def test_replies_and_pages_are_right_whatever_other_threads_do(n: int, machine: Machine) -> None:
    assert sum(play(machine, seed, n, lone=seed % 3 > 0) for seed in range(20)) > 0


def test_a_driver_that_is_taken_down_in_its_rounds_waits_for_them(machine: Machine) -> None:
    for seed in range(20):
        pool = _core.PagePool(machine.loaded.model, 5)
        driver = _core.Driver(machine.loaded.model)
        session = _core.Session(machine.loaded.model, pool)
        prompt = np.array(machine.prompts[1], np.int32)
        driver.begin(session, _core.Sampling(temperature=0.0), [], len(prompt), 200, most_head=2)
        driver.step([(session, prompt, True, NOT_SCORED, [], [])], [])
        driver.start([session])
        time.sleep(random.Random(seed).random() * 0.004)
        if seed % 2:
            session.close()
        del driver
        session.close()
        assert pool.free == pool.total
