"""Grammars are compiled one after the other: who waits, leaves or comes too late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from flashnext.engine import grammars as module
from flashnext.engine.errors import EngineClosed, GrammarsBusy
from flashnext.engine.grammars import Grammars
from flashnext.grammar import Compiled, Grammar
from flashnext.text.messages import InvalidField
from support.grammars import compiler, tokenizer
from support.serving import until


class Watched(Grammars):
    """Tells what it compiles, and waits there while its gate is shut."""

    def __init__(self) -> None:
        super().__init__(tokenizer(), compiler().vocabulary.end_ids)
        self.compiled: list[str] = []
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    @property
    def n_asking(self) -> int:
        return sum(one.n_asking for one in {*self._kept.values(), *self._waiting.values()})

    def _compile(self, grammar: Grammar) -> Compiled:
        self.compiled.append(grammar.source)
        self.begun.set()
        assert self.gate.wait(120), "the test did not let it go on"
        return super()._compile(grammar)


@pytest.fixture
def grammars() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.gate.set()
    made.close()


@pytest.fixture
def asking(grammars: Watched) -> Iterator[Callable[[str], Future[Compiled]]]:
    """Has a regex compiled by a thread of its own; the first one is begun before others are asked for."""
    with ThreadPoolExecutor(8) as pool:
        grammars.gate.clear()

        def ask(pattern: str) -> Future[Compiled]:
            n = grammars.n_asking
            asked = pool.submit(grammars.compile, Grammar.regex(pattern))
            until(lambda: grammars.n_asking > n and grammars.begun.is_set(), "it does not wait")
            return asked

        yield ask
        grammars.gate.set()


def test_equal_grammars_are_compiled_once_and_a_refusal_is_kept(grammars: Watched) -> None:
    first = grammars.compile(Grammar.regex("ab"))
    assert grammars.compile(Grammar.regex("ab", field="elsewhere")) is first
    for field in ("guided_regex", "structured_outputs.regex"):
        with pytest.raises(InvalidField, match="unclosed") as raised:
            grammars.compile(Grammar.regex("(", field=field))
        assert raised.value.field == field
    assert grammars.compiled == ["ab", "("]
    (refusal,) = [found for one in grammars._kept.values() if isinstance(found := one.done.result(), str)]
    assert "unclosed" in refusal  # and no error, which would grow with each who is told


def test_a_failure_that_is_not_the_grammars_is_not_kept(
    grammars: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(grammar: Grammar) -> Compiled:
        raise MemoryError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(grammars, "_compile", fail)
        with pytest.raises(MemoryError, match="planted"):
            grammars.compile(Grammar.regex("ab"))
    assert grammars.compile(Grammar.regex("ab"))


def test_what_is_kept_is_bounded_in_number_and_in_size(grammars: Watched) -> None:
    for i in range(module.MOST_KEPT + 5):
        grammars.compile(Grammar.regex(f"a{i}"))
    assert len(grammars._kept) == module.MOST_KEPT
    assert grammars.compile(Grammar.regex("a68")) and len(grammars.compiled) == module.MOST_KEPT + 5
    schema = {"description": "x" * 200_000}
    for i in range(7):
        grammars.compile(Grammar.json_schema({**schema, "const": i}))
    assert 4 <= len(grammars._kept) <= 5
    assert sum(len(grammar.source) for grammar in grammars._kept) <= module.MOST_KEPT_CHARS


def test_who_comes_when_too_many_wait_is_told_to_come_again(
    grammars: Watched, asking: Callable[[str], Future[Compiled]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    asked = [asking(pattern) for pattern in ("a", "b", "c")]
    with pytest.raises(GrammarsBusy, match="try again later") as raised:
        grammars.compile(Grammar.regex("d"))
    assert raised.value.retry_after_s == 5
    asked.append(asking("b"))  # waits already
    grammars.gate.set()
    assert [one.result(60) for one in asked][1] is asked[3].result()
    assert grammars.compile(Grammar.regex("d"))
    assert grammars.compiled == ["a", "b", "c", "d"]


def test_what_nobody_asks_for_any_more_is_not_compiled(
    grammars: Watched, asking: Callable[[str], Future[Compiled]]
) -> None:
    first = asking("a")

    async def leave(pattern: str, n: int) -> None:
        tasks = [
            asyncio.create_task(grammars.compile_async(Grammar.regex(pattern)), name=str(i)) for i in range(n)
        ]
        await asyncio.sleep(0)
        assert Grammar.regex(pattern) in grammars._waiting
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()

    asyncio.run(leave("b", 3))
    shared = asking("c")
    asyncio.run(leave("c", 1))
    assert list(grammars._waiting) == [Grammar.regex("c")]
    grammars.gate.set()
    assert first.result(60) and shared.result(60)
    assert grammars.compiled == ["a", "c"]
    assert grammars.compile(Grammar.regex("b"))


@pytest.mark.parametrize("way", ["a thread", "asyncio"])
def test_a_compilation_that_takes_too_long_is_refused_and_a_long_wait_is_not_its_fault(
    way: str,
    grammars: Watched,
    asking: Callable[[str], Future[Compiled]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = asking("a")
    monkeypatch.setattr(module, "COMPILE_TIMEOUT_S", 0.3)  # of those who come from here on

    def compile(pattern: str) -> Any:
        grammar = Grammar.regex(pattern, field="guided_regex")
        if way == "a thread":
            return grammars.compile(grammar)
        return asyncio.run(grammars.compile_async(grammar))

    with pytest.raises(GrammarsBusy):
        compile("b")
    with pytest.raises(InvalidField, match="takes longer than 0 s; give a smaller one") as raised:
        compile("a")
    assert raised.value.field == "guided_regex"
    grammars.gate.set()
    assert first.result(60)
    monkeypatch.setattr(module, "COMPILE_TIMEOUT_S", 60.0)
    assert compile("a") and grammars.compiled == ["a"]


def test_closing_waits_for_nothing_and_leaves_nobody_waiting(
    grammars: Watched, asking: Callable[[str], Future[Compiled]]
) -> None:
    asked = [asking(pattern) for pattern in ("a", "b")]
    grammars.close()
    for one in asked:
        with pytest.raises(EngineClosed):
            one.result(60)
    with pytest.raises(EngineClosed):
        grammars.compile(Grammar.regex("a"))
    thread = grammars._helper._thread
    assert thread is not None and thread.daemon  # a process ends though it is compiling
    grammars.gate.set()
    thread.join(60)
    assert not thread.is_alive() and grammars.compiled == ["a"]
