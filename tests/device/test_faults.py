"""Planted faults fail what they are meant to fail, once, and the message names the part that failed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from flashnext import _core
from flashnext.engine.engine import BUNDLED
from flashnext.errors import DeviceError, OutOfMemory
from support.engine import Engine

testing = _core.testing
PROMPT = np.arange(20, 60, dtype=np.int32)
GREEDY = _core.Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(BUNDLED, dtype="bfloat16", max_window=16)


@pytest.fixture
def session(engine: Engine) -> Iterator[_core.Session]:
    session = engine.session()
    yield session
    session.close()
    testing.clear_faults(engine.loaded.device)


def test_the_nth_dispatch_of_a_kernel_fails_and_the_one_behind_it_does_not(engine: Engine) -> None:
    device = engine.loaded.device
    testing.fail_dispatch(device, "verdict", 3, "planted here")
    for _ in range(2):
        session = engine.session()
        assert engine.runner.prompt(session, PROMPT, True, GREEDY)
        session.close()
    session = engine.session()
    assert testing.n_faults(device) == 1
    with pytest.raises(DeviceError, match=r"^verdict: planted here$"):
        engine.runner.prompt(session, PROMPT, True, GREEDY)
    session.close()
    assert testing.n_faults(device) == 0
    session = engine.session()
    assert engine.runner.prompt(session, PROMPT, True, GREEDY)
    session.close()
    assert engine.loaded.pool.free == engine.loaded.pool.total


def test_the_nth_allocation_fails_and_nothing_of_it_stays(engine: Engine) -> None:
    device, pool = engine.loaded.device, engine.loaded.pool
    for n in range(1, 7):  # the buffers of a session
        testing.fail_allocation(device, n)
        with pytest.raises(OutOfMemory, match="planted"):
            engine.session()
        engine.session().close()
    assert pool.free == pool.total and testing.n_faults(device) == 0


def test_faults_that_are_cleared_do_not_happen(engine: Engine, session: _core.Session) -> None:
    device = engine.loaded.device
    testing.fail_dispatch(device, "verdict", 1, "planted")
    testing.fail_allocation(device, 1)
    assert testing.n_faults(device) == 2
    testing.clear_faults(device)
    assert engine.runner.prompt(session, PROMPT, True, GREEDY)


@pytest.mark.parametrize(("n", "message"), [(1, "rope: planted"), (2, "the draft head: rope: planted")])
def test_a_failure_in_the_draft_head_names_it(
    engine: Engine, session: _core.Session, n: int, message: str
) -> None:
    testing.fail_dispatch(engine.loaded.device, "rope", n, "planted")  # the same kernel in both
    with pytest.raises(DeviceError) as failure:
        engine.runner.prompt(session, PROMPT, True, GREEDY, 3)
    assert str(failure.value) == message


def test_no_memory_for_the_pages_of_drafts_costs_the_drafts_alone(engine: Engine) -> None:
    pool, device = engine.loaded.pool, engine.loaded.device
    sessions = []
    for n_pages in (16, 15, 1):  # together a slab
        sessions.append(engine.session())
        prompt = np.resize(PROMPT, 64 * n_pages)
        if n_pages > 1:
            for first in range(0, len(prompt), 512):
                engine.runner.prompt(sessions[-1], prompt[first : first + 512], False, GREEDY)
    assert (pool.total, pool.free) == (64, 33)
    n_bytes = pool.allocated_bytes
    testing.fail_allocation(device, 3)  # behind the two buffers of the reply
    assert engine.runner.prompt(sessions[-1], prompt, True, GREEDY, 3)
    assert testing.n_faults(device) == 0 and pool.allocated_bytes == n_bytes
    assert engine.runner.drafts(sessions[-1]) == []
    for session in sessions:
        session.close()
    assert pool.free == pool.total


def test_memory_of_pages_that_nobody_has_is_given_back_and_taken_again(engine: Engine) -> None:
    pool = engine.loaded.pool
    assert pool.total == 64
    for _ in range(2):
        few, *many = engine.session(), engine.session(), engine.session()
        for session, n_pages in zip((few, *many), (16, 10, 10), strict=True):  # together more than a slab
            prompt = np.resize(PROMPT, 64 * n_pages)
            for first in range(0, len(prompt), 512):
                engine.runner.prompt(session, prompt[first : first + 512], False, GREEDY)
        assert pool.allocated_bytes == 64 * pool.page_bytes
        for session in many:
            session.close()
        for n_pages, found in ((64, 64), (63, 32), (0, 32)):  # in the other slab `few` has pages
            pool.trim(n_pages)
            assert pool.allocated_bytes == found * pool.page_bytes
        few.close()
        pool.trim(1)
        assert pool.allocated_bytes == 0 and pool.free == pool.total
    assert engine.runner.prompt(engine.session(), PROMPT, True, GREEDY)
