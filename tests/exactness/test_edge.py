"""At the end of the window: what fits exactly is answered, one token more is refused with the numbers, and a
prompt as long as a book holds nobody up and changes nobody's reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flashnext.engine.engine import Engine
from flashnext.engine.events import Reply
from flashnext.engine.sampling import Sampling
from flashnext.text.messages import InvalidField
from support.edge import END, WINDOW, write_edge
from support.full import full

NEVER_END = {END: -100.0, END + 2: -100.0}
CHUNK = 512  # most prompt tokens of a step


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_edge(tmp_path_factory.mktemp("edge"))


@pytest.fixture(scope="module")
def whole(edge: Path) -> Iterator[Engine]:
    """An engine of the whole window."""
    with Engine(edge, parallel=1) as engine:
        yield engine


def text(n: int, seed: int = 0) -> list[int]:
    """n token ids."""
    ids: list[int] = np.random.default_rng(seed).integers(0, END, n).tolist()
    return ids


def settings(n: int | None = None, seed: int | None = None) -> Sampling:
    """A reply of n tokens, or as many as fit; sampled with a seed, or greedy."""
    if seed is None:
        return Sampling(temperature=0, max_tokens=n, logit_bias=NEVER_END)
    return Sampling(temperature=1, top_k=50, top_p=1, seed=seed, max_tokens=n, logit_bias=NEVER_END)


def requires_pages_back(engine: Engine) -> None:
    """The engine still answers, and what was taken is free again."""
    assert len(engine.submit(text(20, 9), sampling=settings(2)).result().token_ids) == 2
    engine.close()
    pool = engine.loaded.pool
    assert pool.free == pool.total


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("left", [1, 5, 64])
@pytest.mark.parametrize("context", [1024, 1000])
def test_reply_that_ends_with_the_context_is_that_of_a_longer_context(
    whole: Engine, edge: Path, context: int, left: int, drafts: int
) -> None:
    prompt = text(context - left)
    expected = whole.submit(prompt, sampling=settings(left)).result()
    with Engine(edge, context=context, drafts=drafts, parallel=1) as engine:
        for asked in (None, left, left + 40):  # a limit beyond the context is lowered to what fits
            found = engine.submit(prompt, sampling=settings(asked)).result()
            assert (found.token_ids, found.finish_reason) == (expected.token_ids, "length")
        requires_pages_back(engine)


@full
@pytest.mark.timeout(3600)
def test_prompt_and_reply_fill_the_whole_window_with_drafts_and_without(edge: Path) -> None:
    prompt = text(WINDOW - 40)
    found: list[Reply] = []
    for drafts in (0, 3):
        with Engine(edge, drafts=drafts) as engine:
            found.append(engine.submit(prompt, sampling=settings()).result())
            requires_pages_back(engine)
    assert [(len(reply.token_ids), reply.finish_reason) for reply in found] == [(40, "length")] * 2
    assert found[0].token_ids == found[1].token_ids


@pytest.mark.parametrize("over", [0, 1, 1000])
def test_prompt_that_leaves_no_token_of_reply_is_refused_with_the_numbers(whole: Engine, over: int) -> None:
    numbers = f"has {WINDOW + over} tokens, .* maximum context length is {WINDOW}"
    with pytest.raises(InvalidField, match=numbers) as caught:
        whole.submit(text(WINDOW + over), sampling=settings(1))
    assert caught.value.field == "prompt"
    assert len(whole.submit(text(20), sampling=settings(3)).result().token_ids) == 3


def test_reply_longer_than_the_window_is_refused_with_the_numbers(whole: Engine) -> None:
    with pytest.raises(InvalidField, match=f"expected 1 to {WINDOW}, .*found {WINDOW + 1}") as caught:
        whole.submit(text(20), sampling=settings(WINDOW + 1))
    assert caught.value.field == "max_tokens"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(
    ("n_long", "n_beside", "gap_ms"),
    [(6_000, 1_000, 1.0), pytest.param(100_000, 8_000, 250.0, marks=full)],
    ids=["6K", "100K"],
)
def test_a_long_prompt_is_read_beside_a_reply_that_goes_on(
    whole: Engine, edge: Path, n_long: int, n_beside: int, gap_ms: float, drafts: int
) -> None:
    asked = [(text(40, 2), settings(n_beside, seed=7)), (text(n_long, 3), settings(8))]
    expected = [whole.submit(prompt, sampling=sampling).result() for prompt, sampling in asked]
    arrived_s: list[float] = []
    with Engine(edge, drafts=drafts, gap_ms=gap_ms, parallel=2) as engine:
        beside = engine.submit(asked[0][0], sampling=asked[0][1])

        def read() -> None:
            for event in beside:
                arrived_s.extend([time.perf_counter()] * len(event.token_ids))

        reader = threading.Thread(target=read)
        reader.start()
        while len(arrived_s) < 4 and reader.is_alive():
            time.sleep(0.001)
        start_s = time.perf_counter()
        long = engine.submit(asked[1][0], sampling=asked[1][1])
        next(long)
        end_s = time.perf_counter()
        reader.join()
        found = [beside.result(), long.result()]
        requires_pages_back(engine)
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]
    assert [r.token_sha for r in found] == [r.token_sha for r in expected]
    # A step is at most a chunk and a round, so the reply went on for as long as it had tokens left.
    meanwhile = sum(start_s < t < end_s for t in arrived_s)
    assert meanwhile >= min(n_long // CHUNK // 2, n_beside // 4), f"{meanwhile} tokens meanwhile"
