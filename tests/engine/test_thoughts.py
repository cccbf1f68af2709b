"""Limited thoughts: the block is closed at the limit, and the answer is what the model gives behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.events import token_sha
from flashnext.engine.load import Loaded, load_model
from flashnext.engine.reply import Chat, closing_ids
from flashnext.engine.sampling import Sampling
from flashnext.engine.scheduler import Scheduler
from flashnext.text.template import TemplateOptions
from support.fake_core import FakeCore
from support.jobs import TOKENIZER, Client, add, run
from support.pages import pages_came_back
from support.plain import plain_reply
from support.reference.sampler import Rules
from support.round_by_round import RoundByRound

SUM: list[dict[str, Any]] = [{"role": "user", "content": "What is 3 + 4?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1}
HOT: dict[str, Any] = {"temperature": 2, "top_k": 0, "top_p": 1, "seed": 5}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine
        assert pages_came_back(engine)


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    """The same model once more, for the plain loop."""
    return load_model(BUNDLED, dtype="bfloat16", draft_head=False)


RULES: list[tuple[str, dict[str, float], dict[str, float]]] = [
    ("plain", {}, {}),
    ("presence", {"presence": 2}, {"presence_penalty": 2}),
    ("frequency", {"frequency": 1.5}, {"frequency_penalty": 1.5}),
    ("repetition", {"repetition": 1.5}, {"repetition_penalty": 1.5}),
    ("reward", {"presence": -1, "frequency": -1}, {"presence_penalty": -1, "frequency_penalty": -1}),
]


@pytest.mark.parametrize("temperature", [0.0, 3.0])
@pytest.mark.parametrize("budget", [None, 0, 3, 9])
@pytest.mark.parametrize(("rules", "asked"), [row[1:] for row in RULES], ids=[row[0] for row in RULES])
def test_a_limited_reply_is_that_of_a_plain_loop_that_writes_the_closing(
    rules: Any, asked: Any, budget: int | None, temperature: float, engine: Engine, loaded: Loaded
) -> None:
    more: Any = {"temperature": temperature, "top_k": 20, "top_p": 1.0, "min_p": 0.0, "seed": 11}
    sampling = Sampling(**more, **asked, thinking_budget=budget, max_tokens=30)
    reply = engine.generate(SUM, sampling=sampling).result()
    expected = plain_reply(
        loaded,
        engine.tokenizer.n_tokens,
        engine.template.render(SUM).token_ids,
        Rules(**more, **rules),
        30,
        stop_ids=loaded.checkpoint.stop_tokens,
        forced=[] if budget is None else closing_ids(engine.tokenizer),
        forced_at=budget or 0,
    )
    assert list(reply.token_ids) == expected


def test_penalties_count_limited_thoughts(engine: Engine) -> None:
    digits = {engine.tokenizer.encode(str(digit))[0]: 100.0 for digit in range(10)}

    def written(**more: Any) -> str:
        sampling = Sampling(
            temperature=0, logit_bias=digits, max_tokens=13, ignore_eos=True, thinking_budget=5, **more
        )
        reply = engine.generate(SUM, sampling=sampling).result()
        return reply.reasoning + reply.text

    assert len(set(written())) < 10
    assert sorted(written(presence_penalty=100)) == sorted("0123456789")


# --- over a scripted core

THOUGHTS = TOKENIZER.encode("one two three four five six seven eight nine ten eleven twelve")
CLOSING = closing_ids(TOKENIZER)
END = TOKENIZER.control_ids["<|im_end|>"]


def scripted(**more: Any) -> FakeCore:
    """A core whose replies are thoughts, and the number of each token behind the first twelve."""
    return FakeCore(lambda prompt: [*THOUGHTS[:12], *range(200 + prompt[0], 300 + prompt[0])], **more)


def limited(scheduler: Scheduler, first: int = 1, **more: Any) -> Client:
    more = {"most_thoughts": 5, "max_tokens": 30, **more}
    return add(scheduler, [first, *range(2, 9)], chat=Chat(in_thinking=True), **more)


def expected(first: int = 1, n: int = 30, budget: int = 5) -> list[int]:
    script = [*THOUGHTS[:12], *range(200 + first, 300 + first)]
    return [*script[:budget], *CLOSING, *script[budget + len(CLOSING) :]][:n]


def test_a_limited_reply_keeps_its_place_before_those_who_wait() -> None:
    core = scripted()
    scheduler = Scheduler(core, 1)
    ended: list[int] = []
    clients = [limited(scheduler, first) for first in (1, 2, 3)]
    for number, client in enumerate(clients):
        deliver = client.job.deliver

        def note(item: Any, number: int = number, deliver: Any = deliver) -> None:
            if isinstance(item, Exception) or item.finish_reason:
                ended.append(number)
            deliver(item)

        client.job.deliver = note
    run(scheduler)
    assert ended == [0, 1, 2]
    assert [client.token_ids() for client in clients] == [expected(first) for first in (1, 2, 3)]
    assert core.open_sessions == []


@pytest.mark.parametrize("budget", [0, 5])
@pytest.mark.parametrize("equal", [True, False])
def test_a_limited_reply_that_is_preempted_goes_on_with_the_same_tokens(equal: bool, budget: int) -> None:
    core = scripted(n_pages=14)
    core.prompt_equals_window = equal
    scheduler = Scheduler(core, 4)
    clients = [limited(scheduler, first, most_thoughts=budget, n_drafts=2) for first in (1, 2, 3)]
    run(scheduler)
    assert scheduler.counts.preempted >= 1 and clients[2].job.resumed
    for first, client in enumerate(clients, 1):
        events = client.events()
        assert [i for event in events for i in event.token_ids] == expected(first, budget=budget)
        assert events[-1].finish_reason == "length"
    assert core.open_sessions == []


@pytest.mark.parametrize("most", range(1, 12))
def test_a_cap_anywhere_ends_a_limited_reply_by_length(most: int) -> None:
    core = scripted()
    core.accepted = 3
    scheduler = Scheduler(core, 2)
    client = limited(scheduler, max_tokens=most, n_drafts=3)
    run(scheduler)
    events = client.events()
    assert [i for event in events for i in event.token_ids] == expected(n=most)
    assert [event.finish_reason for event in events if event.finish_reason] == ["length"]
    assert events[-1].usage is not None and events[-1].usage.completion_tokens == most
    assert core.open_sessions == []


def test_a_prompt_that_is_read_for_several_limited_replies_counts_as_the_prompt_it_is() -> None:
    core = scripted()
    core.least_shared = 4
    scheduler = Scheduler(core, 4)
    clients = [limited(scheduler, most_thoughts=0) for _ in range(3)]
    run(scheduler)
    usages = [client.events()[-1].usage for client in clients]
    assert [usage and usage.cached_tokens for usage in usages] == [0, 8, 8]


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


@pytest.mark.parametrize("order", ["as windows", "reversed"])
def test_a_limited_reply_is_resumed_on_devices_of_either_arithmetic(order: str) -> None:
    model = load_model(BUNDLED, dtype="float32", draft_head=False, context=256, prompt_order=order)
    core = RoundByRound(model, TOKENIZER.n_tokens)
    assert core.prompt_equals_window == (order == "as windows")
    prompt = TOKENIZER.encode("The wolf went to the river and")

    def reply(preempted_at: int | None, budget: int) -> list[int]:
        scheduler = Scheduler(core, 2)
        chat = Chat(in_thinking=True)
        client = add(scheduler, prompt, chat=chat, most_thoughts=budget, max_tokens=24)
        client.job.stop_ids = frozenset()
        while not scheduler.idle:
            scheduler.step()
            job = client.job
            if preempted_at and job.session and not job.unread and len(job.token_ids) >= preempted_at:
                preempted_at = None
                scheduler._stop()
                scheduler._preempt(job)
        assert preempted_at is None
        return client.token_ids()

    for budget in (0, 5):
        plain = reply(None, budget)
        closing = closing_ids(TOKENIZER)
        assert plain[budget : budget + len(closing)] == closing
        for at in range(budget + len(closing) + 1, 20, 3):
            assert reply(at, budget) == plain
    assert model.pool.free == model.pool.total
