"""`Engine.batch`: the replies that single requests get, in the order of the items, some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flashnext import BatchItem, Engine, Sampling, TemplateOptions
from flashnext.engine.errors import EngineClosed, MemoryShort
from flashnext.engine.events import Reply
from flashnext.engine.many import Outcome, answered
from flashnext.engine.request import Request
from flashnext.errors import InvalidArgument
from flashnext.text.messages import InvalidField

QUICK = TemplateOptions(enable_thinking=False)
SHORT = Sampling(max_tokens=12, seed=7)
ITEMS: list[Any] = [
    "1, 2, 3,",
    [{"role": "user", "content": "What is 3 + 4?"}],
    BatchItem([{"role": "user", "content": "Spell cat."}], options=TemplateOptions(enable_thinking=True)),
    [70, 71, 72],
    BatchItem("a", sampling=Sampling(temperature=0, max_tokens=40, logprobs=2, seed=1)),
    *[f"{n} + 4 =" for n in range(12)],
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(parallel=4) as engine:
        yield engine


def test_replies_are_bit_for_bit_those_of_single_requests_in_order(engine: Engine) -> None:
    found = list(engine.batch(ITEMS, sampling=SHORT, options=QUICK))
    assert [one.index for one in found] == list(range(len(ITEMS)))
    assert [one.item for one in found] == ITEMS
    with Engine(parallel=1, prefix_cache_gib=0) as alone:
        for one in found:
            item = one.item if isinstance(one.item, BatchItem) else BatchItem(one.item)
            options = QUICK if one.index == 1 else item.options  # for the chat that does not say
            sampling = item.sampling or SHORT
            reply = alone.generate(item.prompt, sampling=sampling, options=options).result()
            assert one.error is None and one.reply == reply
            assert one.reply.logprobs == reply.logprobs


def test_an_item_that_is_refused_is_its_own_outcome_alone(engine: Engine) -> None:
    items: list[Any] = ["a", 3, "b", BatchItem("c", options=QUICK), "d" * 100_000, "e"]
    found = list(engine.batch(items, sampling=SHORT))
    assert [one.error is None for one in found] == [True, False, True, False, False, True]
    with pytest.raises(InvalidField, match="expected text"):
        _ = found[1].reply
    assert found[5].reply == engine.generate("e", sampling=SHORT).result()


def test_items_are_taken_as_there_is_room_and_without_an_end(engine: Engine) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield f"{taken} + 1 ="

    batch = engine.batch(endless(), sampling=SHORT, ahead=3)
    assert taken == 0
    for i in range(6):
        assert next(batch).index == i
        assert taken == i + 4
    batch.close()  # type: ignore[attr-defined]
    assert len(list(engine.batch(["a"], sampling=SHORT))) == 1


def test_what_is_open_is_cancelled_where_the_iterator_is_dropped(engine: Engine) -> None:
    endless = Sampling(max_tokens=8000, ignore_eos=True)
    batch = engine.batch([BatchItem("a", sampling=SHORT), *["b"] * 5], sampling=endless)
    assert next(batch).reply.usage.completion_tokens <= 12
    del batch
    assert engine.generate("c", sampling=SHORT).result().finish_reason  # it has a place at once
    counts = engine.counts
    while counts.running or counts.waiting:
        counts = engine.counts


def test_what_is_awaited_is_cancelled_too_where_the_wait_is_ended(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[Request] = []
    cancel = Request.cancel

    def interrupted(request: Request) -> Reply:
        raise KeyboardInterrupt

    def noted(request: Request) -> None:
        cancelled.append(request)
        cancel(request)

    monkeypatch.setattr(Request, "result", interrupted)
    monkeypatch.setattr(Request, "cancel", noted)
    batch = engine.batch(["b"] * 3, sampling=Sampling(max_tokens=8000, ignore_eos=True))
    with pytest.raises(KeyboardInterrupt):
        next(batch)
    assert len(set(cancelled)) == 3


@pytest.mark.parametrize("ahead", [0, -1, True, 1.5])
def test_how_many_are_open_is_a_number_from_1(ahead: Any, engine: Engine) -> None:
    with pytest.raises(InvalidArgument, match="ahead is"):
        engine.batch([], ahead=ahead)


def test_a_closed_engine_ends_a_batch() -> None:
    engine = Engine(parallel=1)
    batch = engine.batch(["a"] * 3, sampling=SHORT)
    assert next(batch).error is None
    engine.close()
    with pytest.raises(EngineClosed):
        next(batch)


class _Request:
    """A request that has its reply, and is none."""

    def result(self) -> str:
        return "reply"

    def cancel(self) -> None:
        raise AssertionError("it had been read")


def test_an_item_that_finds_no_memory_waits_for_those_that_are_open() -> None:
    refusals = {"b": 2, "c": 0, "d": 10**9}
    tried: list[str] = []

    def submit(item: str) -> Any:
        tried.append(item)
        if refusals.get(item, 0) > 0:
            refusals[item] -= 1
            raise MemoryShort("later")
        return _Request()

    found: list[Outcome] = list(answered("aabcd", submit, 9))
    assert [one.item for one in found] == list("aabcd")
    assert [one.error is None for one in found] == [True] * 4 + [False]
    assert tried == list("aabbbcddd")
