"""Limited thoughts: the block is closed at the limit, and the answer is what the model gives behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flashnext.engine.engine import Engine
from flashnext.engine.events import token_sha
from flashnext.engine.sampling import Sampling
from flashnext.engine.thoughts import closing_ids
from flashnext.text.template import TemplateOptions

SUM: list[dict[str, Any]] = [{"role": "user", "content": "What is 3 + 4?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1}
HOT: dict[str, Any] = {"temperature": 2, "top_k": 0, "top_p": 1, "seed": 5}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine
        pool = engine.loaded.pool
        assert pool.free == pool.total


@pytest.mark.parametrize("settings", [GREEDY, HOT], ids=["greedy", "sampled"])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_limited_reply_is_the_free_one_up_to_the_limit_and_then_what_follows_a_closed_block(
    budget: int, settings: dict[str, Any], engine: Engine
) -> None:
    sampling = Sampling(**settings, thinking_budget=budget, max_tokens=40)
    request = engine.generate(SUM, sampling=sampling)
    events = list(request)
    reply = request.result()
    free = engine.generate(SUM, sampling=Sampling(**settings, max_tokens=40)).result()
    closing = closing_ids(engine.tokenizer)
    ids = list(reply.token_ids)
    assert ids[:budget] == list(free.token_ids[:budget])
    assert ids[budget : budget + len(closing)] == closing
    prompt = engine.template.render(SUM).token_ids + ids[: budget + len(closing)]
    left = Sampling(**settings, max_tokens=40 - budget - len(closing))
    assert ids[budget + len(closing) :] == list(engine.generate(prompt, sampling=left).result().token_ids)
    assert "think" not in reply.text + reply.reasoning
    assert reply.reasoning == engine.tokenizer.decode(ids[:budget]).strip()
    assert reply.token_sha == token_sha(ids)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (18, len(ids))
    # The line's end and the end of the block were written for it, inside the block.
    assert reply.usage.reasoning_tokens == budget + len(closing) - 1
    assert [e.finish_reason for e in events[:-1]] == [None] * (len(events) - 1)
    assert engine.generate(SUM, sampling=sampling).result() == reply


def test_thoughts_that_end_in_time_are_left_alone(engine: Engine) -> None:
    free = engine.generate(SUM, sampling=Sampling(**GREEDY)).result()
    for budget in (free.usage.reasoning_tokens + 1, 10**6):
        limited = engine.generate(SUM, sampling=Sampling(**GREEDY, thinking_budget=budget)).result()
        assert limited == free


@pytest.mark.parametrize("cap", [1, 6, 7, 8, 9, 10])
def test_a_cap_counts_thoughts_closing_and_answer(cap: int, engine: Engine) -> None:
    reply = engine.generate(SUM, sampling=Sampling(**GREEDY, thinking_budget=7, max_tokens=cap)).result()
    assert (len(reply.token_ids), reply.finish_reason) == (cap, "length")
    longer = engine.generate(SUM, sampling=Sampling(**GREEDY, thinking_budget=7, max_tokens=20)).result()
    assert reply.token_ids == longer.token_ids[:cap]


def test_a_chat_that_does_not_think_has_nothing_to_limit(engine: Engine) -> None:
    off = TemplateOptions(enable_thinking=False)
    limited = engine.generate(SUM, sampling=Sampling(**GREEDY, thinking_budget=0), options=off).result()
    assert limited == engine.generate(SUM, sampling=Sampling(**GREEDY), options=off).result()


@pytest.mark.parametrize("when", [0, 3, 12])
def test_a_limited_reply_can_be_cancelled_in_both_parts(when: int, engine: Engine) -> None:
    sampling = Sampling(temperature=5, seed=1, thinking_budget=5, ignore_eos=True)
    request = engine.submit(SUM, sampling=sampling)
    for _ in range(when):
        next(request)
    request.cancel()
    reply = request.result()
    assert reply.finish_reason == "cancelled"
    assert len(reply.token_ids) < 4000
    assert reply.token_sha == token_sha(reply.token_ids)


def test_limited_replies_together_are_what_they_are_alone(engine: Engine) -> None:
    def sampling(seed: int) -> Sampling:
        return Sampling(temperature=2, top_k=0, seed=seed, thinking_budget=seed % 5, max_tokens=30)

    async def together() -> list[Any]:
        requests = [await engine.generate_async(SUM, sampling=sampling(seed)) for seed in range(12)]
        return [await request.result() for request in requests]

    alone = [engine.generate(SUM, sampling=sampling(seed)).result() for seed in range(12)]
    assert asyncio.run(together()) == alone


def test_a_close_in_the_middle_ends_limited_replies_too() -> None:
    engine = Engine()
    sampling = Sampling(temperature=5, seed=1, thinking_budget=2, ignore_eos=True)
    requests = [engine.submit(SUM, sampling=sampling) for _ in range(8)]
    next(requests[0])
    closing = threading.Thread(target=engine.close)
    closing.start()
    for request in requests:
        with pytest.raises(Exception, match="closed"):
            request.result()
    closing.join(30)
    assert engine.loaded.pool.free == engine.loaded.pool.total
