"""How events reach their readers: together and alone, joined and one by one; how often a loop is woken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from flashnext.engine.arguments import SHORT_CHARS
from flashnext.engine.engine import Engine
from flashnext.engine.events import Event, Reply, TokenLogprob, joined
from flashnext.engine.inbox import Inbox, Mailbox
from flashnext.engine.request import AsyncRequest, arrivals
from flashnext.engine.sampling import Sampling
from flashnext.text.messages import InvalidField

SUM: list[dict[str, Any]] = [{"role": "user", "content": "What is 3 + 4?"}]
HOT = Sampling(temperature=5, top_k=0, top_p=1, max_tokens=40, logprobs=2)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


def has_ended(request: AsyncRequest) -> bool:
    items = request._items.items
    return bool(items) and isinstance(items[-1], Event) and items[-1].finish_reason is not None


@pytest.mark.parametrize("late", [False, True], ids=["as they come", "when all is there"])
def test_arrivals_of_several_requests_add_up_to_their_replies(engine: Engine, late: bool) -> None:
    seeds = range(4)
    alone = [engine.generate(SUM, sampling=replace(HOT, seed=seed)).result() for seed in seeds]

    async def read() -> list[list[Event]]:
        prompt = await engine.read_async(SUM)
        requests = [await engine.generate_async(prompt, sampling=replace(HOT, seed=s)) for s in seeds]
        if late:  # all of it is then joined
            while not all(has_ended(request) for request in requests):
                await asyncio.sleep(0.01)
        found: list[list[Event]] = [[] for _ in requests]
        async for came in arrivals(requests):
            assert came and [index for index, _ in came] == sorted({index for index, _ in came})
            for index, event in came:
                found[index].append(event)
        for request, events in zip(requests, found, strict=True):
            assert request.last and request.last.token_sha == events[-1].token_sha is not None
            assert request.n_read == len(Reply.of(events, request.seed).token_ids)
        return found

    found = asyncio.run(read())
    assert [Reply.of(events, seed) for seed, events in zip(seeds, found, strict=True)] == alone
    if late:
        assert [len(events) for events in found] == [1] * 4


def test_joined_events_keep_what_only_some_of_them_say() -> None:
    told = TokenLogprob(2, -1.0)
    first, second = Event((1,), "a", reasoning="x"), Event((2,), "b", (told,), finish_reason="stop")
    assert joined([first]) is first
    assert joined([first, second]) == Event((1, 2), "ab", (told,), finish_reason="stop", reasoning="x")
    assert joined([first, first]).logprobs is None


class Hand:
    """A request that a test answers itself."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.request = AsyncRequest(1, 0, [1], lambda: None, lambda: None, self.inbox)
        self.mailbox = Mailbox(asyncio.get_running_loop())

    def send(self, *items: Event | Exception) -> None:
        for item in items:
            self.mailbox.put(self.inbox, item)


def test_an_error_comes_behind_what_came_before_it() -> None:
    async def run() -> None:
        hand, other = Hand(), Hand()
        hand.send(Event((1,), "a"), Event((2,), "b"), ValueError("planted"))
        told: list[tuple[int, str]] = []
        with pytest.raises(ValueError, match="planted"):
            async for came in arrivals([other.request, hand.request]):
                told += [(index, event.text) for index, event in came]
        assert told == [(1, "ab")]

    asyncio.run(run())


def counted_wakes(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    wakes: list[Any] = []
    wake: Callable[..., Any] = loop.call_soon_threadsafe

    def counted(callback: Any, *args: Any, **more: Any) -> Any:
        wakes.append(callback)
        return wake(callback, *args, **more)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    return wakes


def test_a_loop_is_woken_once_for_all_that_comes_until_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        hand = Hand()
        wakes = counted_wakes(asyncio.get_running_loop(), monkeypatch)
        for turn in range(1, 4):
            hand.send(*(Event((i,), "a") for i in range(5)))
            assert len(wakes) == turn
            for _ in range(5):
                await anext(hand.request)

    asyncio.run(run())


def test_who_waits_for_the_end_is_woken_for_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        hand = Hand()
        wakes = counted_wakes(asyncio.get_running_loop(), monkeypatch)
        result = asyncio.ensure_future(hand.request.result())
        await asyncio.sleep(0)
        hand.send(*(Event((i,), "a") for i in range(5)))
        assert not wakes
        result.cancel()  # gives up, and wants each event after all
        await asyncio.wait([result])
        hand.send(Event((5,), "b"))
        assert len(wakes) == 1
        assert [(await anext(hand.request)).text for _ in range(6)] == [*"aaaaab"]
        result = asyncio.ensure_future(hand.request.result())
        await asyncio.sleep(0)
        hand.send(Event((6,), "c"), ValueError("planted"))
        assert len(wakes) == 2
        with pytest.raises(ValueError, match="planted"):
            await result

    asyncio.run(run())


def test_no_item_is_lost_between_threads() -> None:
    n_threads, n = 4, 2000

    async def run() -> None:
        hands = [Hand() for _ in range(n_threads)]
        mailbox = hands[0].mailbox
        for hand in hands:
            hand.mailbox = mailbox

        def send(hand: Hand) -> None:
            for i in range(n):
                hand.send(Event((i,)))
            hand.send(Event((n,), finish_reason="stop"))

        threads = [threading.Thread(target=send, args=(hand,)) for hand in hands]
        for thread in threads:
            thread.start()
        found: list[list[int]] = [[] for _ in hands]
        async for came in arrivals([hand.request for hand in hands]):
            for index, event in came:
                found[index] += event.token_ids
        assert found == [list(range(n + 1))] * n_threads

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [
        (SUM, True),
        ("a" * SHORT_CHARS, True),
        ([5] * SHORT_CHARS, True),
        ("a" * (SHORT_CHARS + 1), False),
        ([5] * (SHORT_CHARS + 1), False),
        ([{"role": "user", "content": "a" * SHORT_CHARS}], False),
        ([{"role": "assistant", "content": "a", "reasoning_content": "b" * SHORT_CHARS}, *SUM], False),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], False),
        ([{"role": "assistant", "content": "a", "tool_calls": []}, *SUM], False),
        (SUM * 17, False),
    ],
)
def test_only_what_is_soon_read_is_read_by_the_event_loop(
    prompt: Any, inside: bool, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, threads = engine._reader.read_prepared, []

    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return read(*args)

    monkeypatch.setattr(engine._reader, "read_prepared", watched)
    asyncio.run(engine.read_async(prompt))
    assert [thread is threading.current_thread() for thread in threads] == [inside]


def test_a_prompt_that_has_been_read_gives_the_same_reply(engine: Engine) -> None:
    sampling = Sampling(temperature=0, seed=1)
    prompts: list[Any] = [SUM, "Count from", [70, 71]]
    for prompt in prompts:
        read: Any = asyncio.run(engine.read_async(prompt))
        expected = engine.generate(prompt, sampling=sampling)
        again = engine.generate(read, sampling=sampling)
        assert again.prompt_ids == expected.prompt_ids == list(read.tokens)
        assert again.result() == expected.result()


@pytest.mark.parametrize("wrong", [True, 1.0, "5", -1, 2560, None])
def test_a_wrong_token_id_is_named_by_its_place(wrong: Any, engine: Engine) -> None:
    with pytest.raises(InvalidField, match=r"^prompt\[2\]: expected a token id from 0 to 2559"):
        engine.generate([1, 2, wrong, 4])
