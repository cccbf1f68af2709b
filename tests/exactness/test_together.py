"""Requests that are answered together get the replies that each gets alone, bit for bit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.engine.engine import Engine
from flashnext.engine.events import Reply
from flashnext.engine.loaded_core import LoadedCore
from flashnext.engine.sampling import Sampling
from support.pages import pages_came_back

TINY = Path(__file__).parents[1] / "tiny"
CASES: list[dict[str, Any]] = [
    case
    for case in map(json.loads, (TINY / "golden.jsonl").read_text().splitlines())
    if case["grid_thw"] is None
]
# Replies that are long enough to run while the prompts of others are read.
SHORT = [case for case in CASES if len(case["prompt_ids"]) < 400 and len(case["output_ids"]) >= 30]
LONG = max(CASES, key=lambda case: len(case["prompt_ids"]))
SETTINGS = (
    Sampling(temperature=0, max_tokens=48),
    Sampling(temperature=0.8, top_k=20, top_p=0.95, seed=3, max_tokens=48),
    Sampling(temperature=3, top_k=0, top_p=1, seed=4, max_tokens=48),
    Sampling(temperature=1, seed=5, presence_penalty=0.5, repetition_penalty=1.1, max_tokens=48),
)


def counts(engine: Engine) -> dict[str, int]:
    """What the engine's rounds held so far; see `_core.Driver.counts`."""
    core = engine._thread._scheduler._core
    assert isinstance(core, LoadedCore)
    return core.driver.counts()


def asked(n: int) -> list[tuple[list[int], Sampling]]:
    """n requests, each of its own prompt, by all settings in turn."""
    cases = [SHORT[i * len(SHORT) // n] for i in range(n)]
    return [(case["prompt_ids"], SETTINGS[i % len(SETTINGS)]) for i, case in enumerate(cases)]


@pytest.fixture(scope="module")
def alone() -> Iterator[Any]:
    """The reply of a request that nothing runs beside, on an engine without drafts."""
    with Engine(parallel=1) as engine:
        known: dict[str, Reply] = {}

        def reply(prompt: list[int], sampling: Sampling) -> Reply:
            key = repr((prompt, sampling))
            if key not in known:
                known[key] = engine.submit(prompt, sampling=sampling).result()
            return known[key]

        yield reply


def same(found: Reply, expected: Reply) -> bool:
    return (found.token_ids, found.text, found.finish_reason, found.token_sha) == (
        expected.token_ids,
        expected.text,
        expected.finish_reason,
        expected.token_sha,
    )


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_requests_that_come_together(alone: Any, n: int, drafts: int) -> None:
    with Engine(drafts=drafts) as engine:
        requests = [(engine.submit(p, sampling=s), p, s) for p, s in asked(n)]
        for request, prompt, sampling in requests:
            assert same(request.result(), alone(prompt, sampling)), f"{n} together, drafts {drafts}"
        assert counts(engine)["widest"] > max(1, n // 4)
        assert pages_came_back(engine)


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_come_and_go_as_they_like(alone: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with Engine(drafts=int(rng.integers(0, 4)), parallel=6) as engine:
        kept, cancelled = [], []
        for prompt, sampling in asked(20):
            request = engine.submit(prompt, sampling=sampling)
            if rng.random() < 0.3:
                cancelled.append(request)
            else:
                kept.append((request, prompt, sampling))
            time.sleep(float(rng.exponential(0.01)))
            if cancelled and rng.random() < 0.5:
                cancelled.pop().cancel()
        for request in cancelled:
            request.cancel()
        for request, prompt, sampling in kept:
            assert same(request.result(), alone(prompt, sampling)), f"seed {seed}"
        assert counts(engine)["widest"] > 1


def test_a_long_prompt_is_read_between_the_rounds_of_others(alone: Any) -> None:
    with Engine(gap_ms=1) as engine:
        running = [(engine.submit(p, sampling=s), p, s) for p, s in asked(3)]
        next(iter(running[0][0]))
        long = engine.submit(LONG["prompt_ids"], sampling=SETTINGS[0])
        for request, prompt, sampling in running:
            assert same(request.result(), alone(prompt, sampling))
        assert same(long.result(), alone(LONG["prompt_ids"], SETTINGS[0]))
        assert counts(engine)["chunks_beside_rounds"] > 3


def test_pages_that_one_takes_ahead_are_not_those_that_another_needs() -> None:
    # Without the pages ahead, both of a pair would seem to fit the four pages of the pool.
    rng = np.random.default_rng(3)
    requests = [
        (
            rng.integers(10, 2000, n).tolist(),
            Sampling(temperature=9, top_k=0, top_p=1, seed=n, max_tokens=most),
        )
        for n, most in ((30, 34), (100, 92), (31, 33), (99, 93))
    ]
    with Engine(context=256, parallel=1) as engine:
        expected = [engine.submit(p, sampling=s).result() for p, s in requests]
    assert sum(len(reply.token_ids) for reply in expected) > 150
    with Engine(context=256, drafts=2) as engine:
        for request, reply in zip([engine.submit(p, sampling=s) for p, s in requests], expected, strict=True):
            assert same(request.result(), reply)


def test_requests_that_wait_for_pages_get_their_replies(alone: Any) -> None:
    with Engine(context=512) as engine:  # eight pages: a few of the requests at a time
        requests = [(engine.submit(p, sampling=s), p, s) for p, s in asked(12)]
        for request, prompt, sampling in requests:
            assert same(request.result(), alone(prompt, sampling))
        assert 1 < counts(engine)["widest"] < 12


def test_replies_that_outgrow_the_pages_are_preempted_and_stay_the_same() -> None:
    rng = np.random.default_rng(7)
    requests = [
        (rng.integers(10, 2000, n).tolist(), replace(settings, seed=n, max_tokens=most))
        for n, most, settings in (
            (30, 150, Sampling(temperature=9, top_k=0, top_p=1)),
            (60, 120, Sampling(temperature=9, top_k=0, top_p=1, presence_penalty=1, repetition_penalty=1.2)),
            (20, 160, Sampling(temperature=9, top_k=0, top_p=1, priority="background")),
            (50, 100, Sampling(temperature=9, top_k=0, top_p=1, frequency_penalty=0.5)),
        )
    ]
    with Engine(context=256, parallel=1) as engine:
        expected = [engine.submit(p, sampling=s).result() for p, s in requests]
    assert sum(len(reply.token_ids) for reply in expected) > 300
    for drafts in (0, 2):
        # Four pages; a prefix cache would have more of them.
        with Engine(context=256, parallel=4, drafts=drafts, prefix_cache_gib=0) as engine:
            asked = [engine.submit(p, sampling=s) for p, s in requests]
            for request, reply in zip(asked, expected, strict=True):
                assert same(request.result(), reply)
            assert engine.counts.preempted > 0


def test_a_background_request_makes_room_for_others(alone: Any) -> None:
    (first, _), (second, _) = asked(2)
    late, early = Sampling(temperature=0, max_tokens=48), Sampling(temperature=0, max_tokens=4)
    background = replace(late, priority="background")
    with Engine(parallel=1) as engine:
        slow = engine.submit(first, sampling=background)
        next(iter(slow))
        quick = engine.submit(second, sampling=early)
        assert same(quick.result(), alone(second, early))
        assert same(slow.result(), alone(first, late))
        assert engine.counts.preempted == 1
