"""The engine's thread and scheduler over a scripted core: ends, limits, cancellation, failures."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flashnext import _core
from flashnext.engine.errors import EngineClosed, EngineFailed
from flashnext.engine.events import token_sha
from flashnext.engine.reply import Chat
from flashnext.engine.scheduler import Scheduler
from flashnext.engine.thread import EngineThread
from flashnext.errors import DeviceError, OutOfMemory
from support.fake_core import FakeCore
from support.jobs import END, TOKENIZER, Client, ids

Start = Callable[..., tuple[FakeCore, EngineThread]]


@pytest.fixture
def start() -> Iterator[Start]:
    threads: list[EngineThread] = []

    def begin(reply: str = "Hello world", max_running: int = 1) -> tuple[FakeCore, EngineThread]:
        core = FakeCore(lambda prompt: [*ids(reply), END])
        threads.append(EngineThread(Scheduler(core, max_running)))
        return core, threads[-1]

    yield begin
    for thread in threads:
        assert thread.close(timeout_s=20)


def submit(thread: EngineThread, *args: Any, **more: Any) -> Client:
    client = Client(*args, **more)
    thread.submit(client.job)
    return client


# --- between replies


def test_a_nudge_is_a_step_and_no_history_that_waits(start: Start) -> None:
    core, thread = start()
    begun, goes = threading.Event(), threading.Event()

    def before(what: str, detail: object) -> None:
        if what == "prompt":
            begun.set()
            goes.wait(20)

    core.before = before
    client = submit(thread, [1, 2, 3])
    assert begun.wait(20)
    thread.nudge()
    thread.nudge()
    assert thread.counts.cache.warming == 0
    thread.call(lambda scheduler: None)
    assert thread.counts.cache.warming == 1
    goes.set()
    assert client.text() == "Hello world"
    stepped, step = threading.Event(), thread._scheduler.step

    def watched() -> None:
        step()
        stepped.set()

    thread._scheduler.step = watched  # type: ignore[method-assign]
    deadline = time.monotonic() + 20
    while not thread._idle():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    stepped.clear()
    thread.nudge()
    assert stepped.wait(20), "it sleeps on"


# --- how replies end


def test_a_prompt_is_read_in_chunks_and_the_reply_ends_at_its_stop_token(start: Start) -> None:
    core, thread = start()
    events = submit(thread, list(range(1, 11))).events()
    assert core.chunks == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert "".join(e.text for e in events) == "Hello world"
    last = events[-1]
    assert (last.finish_reason, last.token_ids) == ("stop", (END,))
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (10, len(ids("Hello world")) + 1)
    assert last.token_sha == token_sha([*ids("Hello world"), END])
    assert {(e.finish_reason, e.usage, e.token_sha) for e in events[:-1]} == {(None, None, None)}
    assert core.open_sessions == []


def test_the_fingerprint_is_that_of_the_design() -> None:
    raw = b"\x01\x00\x00\x00\xf5\x09\x00\x00"
    assert token_sha([1, 2549]) == hashlib.sha256(raw).hexdigest()[:16]


def test_max_tokens_ends_a_reply_by_length(start: Start) -> None:
    core, thread = start("one two three four")
    events = submit(thread, [1], max_tokens=3).events()
    assert [len(e.token_ids) for e in events] == [1, 1, 1]
    assert events[-1].finish_reason == "length"
    assert len(core.rounds) == 2  # the last token is not fed


def test_a_stop_string_ends_a_reply_within_a_token_and_across_tokens(start: Start) -> None:
    _, thread = start("count 1, 2, 3, 4, 5")
    events = submit(thread, [1], stops=("2, 3", "zzz")).events()
    assert ("".join(e.text for e in events), events[-1].finish_reason) == ("count 1, ", "stop")
    spent = [i for e in events for i in e.token_ids]
    assert TOKENIZER.decode(spent) == "count 1, 2, 3"
    assert submit(thread, [1], stops=("oun",)).text() == "c"


@pytest.mark.parametrize("part", ["push", "finish"])
def test_a_reply_whose_text_fails_ends_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    _, thread = start("Hello world")
    client = Client([1])

    def fail(*args: Any, **more: Any) -> Any:
        raise RuntimeError("a reply nobody can read")

    monkeypatch.setattr(client.job.text, part, fail)
    thread.submit(client.job)
    with pytest.raises(RuntimeError, match="nobody can read"):
        client.events()
    assert submit(thread, [1]).text() == "Hello world"


def test_drafts_that_are_kept_come_as_tokens_of_their_own(start: Start) -> None:
    core, thread = start("one two three four five")
    core.accepted = 2
    events = submit(thread, [1], n_drafts=3).events()
    assert "".join(e.text for e in events) == "one two three four five"
    assert {len(e.token_ids) for e in events} == {1}
    assert len(core.rounds) < len(events) - 1


def test_no_drafts_are_made_for_tokens_beyond_the_limit(start: Start) -> None:
    core, thread = start("one two three four five six")
    core.accepted = 9
    for limit in range(1, 8):
        spent = sum(len(e.token_ids) for e in submit(thread, [1], n_drafts=3, max_tokens=limit).events())
        assert spent == limit


def test_half_a_stop_string_at_the_end_is_text(start: Start) -> None:
    _, thread = start("a STO")
    assert submit(thread, [1], stops=("STOP",)).text() == "a STO"
    assert submit(thread, [1], stops=("STOP",), max_tokens=len(ids("a STO"))).text() == "a STO"


def test_half_a_character_at_the_end_is_one_replacement_character(start: Start) -> None:
    _, thread = start("a🚀")
    assert submit(thread, [1], max_tokens=len(ids("a🚀")) - 1).text() == "a\ufffd"


def test_a_chat_is_taken_apart_and_stop_strings_are_for_its_answer_only(start: Start) -> None:
    _, thread = start("First STOP.\n</think>\n\nThen\n\nSTOP no more")
    client = submit(thread, [1], stops=("STOP", "\n\n\n"), chat=Chat(in_thinking=True))
    events = client.events()
    assert "".join(e.reasoning for e in events) == "First STOP."
    assert "".join(e.text for e in events) == "Then\n\n"
    assert events[-1].usage is not None
    assert events[-1].usage.reasoning_tokens == len(ids("First STOP.\n</think>"))


def test_white_space_after_thoughts_is_no_stop_string(start: Start) -> None:
    _, thread = start("T\n</think>\n\nA\n\nB")
    assert submit(thread, [1], stops=("\n\n",), chat=Chat(in_thinking=True)).text() == "A"


def test_a_call_is_given_when_it_is_complete(start: Start) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    _, thread = start("So:\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>")
    events = submit(thread, [1], chat=Chat(False, tools)).events()
    assert [(c.name, c.arguments) for e in events for c in e.tool_calls] == [("f", "{}")]
    assert "".join(e.text for e in events) == "So:"


# --- order and sharing


def test_requests_are_served_first_come_first_served(start: Start) -> None:
    core, thread = start()
    gate = threading.Event()
    core.before = lambda what, detail: gate.wait(20)
    clients = [submit(thread, [n]) for n in range(1, 6)]
    gate.set()
    assert [client.text() for client in clients] == ["Hello world"] * 5
    assert core.chunks == [[1], [2], [3], [4], [5]]
    assert set(core.rounds) == {1}


def test_several_running_sequences_share_rounds(start: Start) -> None:
    core, thread = start("one two three four five six seven", max_running=3)
    gate = threading.Event()
    core.before = lambda what, detail: gate.wait(20)
    clients = [submit(thread, [n]) for n in range(1, 6)]
    gate.set()
    assert [client.text() for client in clients] == ["one two three four five six seven"] * 5
    assert max(core.rounds) == 3


# --- cancellation


def test_a_cancelled_request_ends_within_a_round_and_frees_its_session(start: Start) -> None:
    core, thread = start("a b c d e f g h " * 5)
    client = submit(thread, [1])
    core.before = lambda what, detail: thread.cancel(client.job) if len(core.rounds) == 3 else None
    events = client.events()
    assert events[-1].finish_reason == "cancelled"
    assert len(core.rounds) <= 4
    assert events[-1].usage is not None and events[-1].usage.completion_tokens <= 5
    assert core.open_sessions == []


def test_a_cancelled_request_ends_within_a_chunk(start: Start) -> None:
    core, thread = start()
    client = submit(thread, list(range(1, 100)))
    core.before = lambda what, detail: thread.cancel(client.job) if len(core.chunks) == 2 else None
    assert client.events()[-1].finish_reason == "cancelled"
    assert len(core.chunks) == 3
    assert core.open_sessions == []


def test_a_waiting_request_can_be_cancelled_and_the_one_in_front_goes_on(start: Start) -> None:
    core, thread = start()
    gate = threading.Event()
    core.before = lambda what, detail: gate.wait(20)
    first, second, third = (submit(thread, [n]) for n in (1, 2, 3))
    thread.cancel(second.job)
    gate.set()
    assert second.events()[-1].finish_reason == "cancelled"
    assert first.text() == third.text() == "Hello world"
    assert [2] not in core.chunks


def test_cancelling_what_has_ended_does_nothing(start: Start) -> None:
    _, thread = start()
    client = submit(thread, [1])
    assert client.text() == "Hello world"
    thread.cancel(client.job)
    assert submit(thread, [2]).text() == "Hello world"
    assert client.items.empty()


def test_a_receiver_that_is_gone_cancels_its_request_and_hurts_nobody(start: Start) -> None:
    core, thread = start()
    client = Client([1])

    def gone(item: Any) -> None:
        raise RuntimeError("Event loop is closed")

    client.job.deliver = gone
    thread.submit(client.job)
    assert submit(thread, [2]).text() == "Hello world"
    assert core.open_sessions == []
    assert thread.failure is None


# --- failures


@pytest.mark.parametrize("where", ["open", "prompt", "round"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_core.DeviceError("the device is gone"), DeviceError),
        (_core.OutOfPages("no page is free"), OutOfMemory),
        (MemoryError("no memory"), MemoryError),
    ],
)
def test_a_failing_request_ends_alone_with_its_own_error(
    where: str, error: Exception, expected: type[Exception], start: Start
) -> None:
    core, thread = start()
    failed: list[str] = []

    def fail_once(what: str, detail: Any) -> None:
        if what == where and not failed:
            failed.append(what)
            raise error

    core.before = fail_once
    clients = [submit(thread, [n]) for n in (1, 2, 3)]
    with pytest.raises(expected, match=str(error)):
        clients[0].events()
    assert clients[1].text() == clients[2].text() == "Hello world"
    assert core.open_sessions == []


def test_the_death_of_the_thread_is_told_to_everybody_at_once_and_later(start: Start) -> None:
    core, thread = start()
    gate = threading.Event()

    def die(what: str, detail: Any) -> None:
        gate.wait(20)
        raise SystemExit("planted")

    core.before = die
    clients = [submit(thread, [n]) for n in (1, 2, 3)]
    gate.set()
    for client in clients:
        with pytest.raises(EngineFailed, match="the engine's thread died: SystemExit: planted"):
            client.events()
    with pytest.raises(EngineFailed, match="planted"):
        submit(thread, [4])
    assert isinstance(thread.failure, EngineFailed)


def test_closing_ends_open_requests_at_once_even_while_a_chunk_is_being_read(start: Start) -> None:
    core, thread = start()
    gate = threading.Event()
    inside = threading.Event()

    def wait(what: str, detail: Any) -> None:
        if what == "prompt":
            inside.set()
            gate.wait(20)

    core.before = wait
    running, waiting = submit(thread, [1]), submit(thread, [2])
    assert inside.wait(20)
    assert not thread.close(timeout_s=0)
    for client in (running, waiting):
        with pytest.raises(EngineClosed, match="closed before the reply was complete"):
            client.events()
    with pytest.raises(EngineClosed, match="the engine is closed"):
        submit(thread, [3])
    gate.set()
    assert thread.close(timeout_s=20)
    assert core.open_sessions == []
    assert running.items.empty() and waiting.items.empty()


def test_an_idle_thread_sleeps(start: Start) -> None:
    _, thread = start()
    assert submit(thread, [1]).text() == "Hello world"
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_an_idle_core_is_asked_until_it_has_no_use_for_more(start: Start) -> None:
    core, thread = start()
    assert submit(thread, [1]).text() == "Hello world"
    core.most_idle = core.n_idle + 5
    assert submit(thread, [1]).text() == "Hello world"
    most = time.monotonic() + 20
    while core.n_idle < core.most_idle and time.monotonic() < most:
        time.sleep(0.01)
    time.sleep(0.05)
    assert core.n_idle == core.most_idle


def test_counts_tell_what_waits_and_runs(start: Start) -> None:
    core, thread = start(max_running=2)
    submitted, gate = threading.Event(), threading.Event()

    def wait(what: str, detail: Any) -> None:
        submitted.wait(20)  # the first may be admitted alone
        if thread.counts.running == 2:
            gate.wait(20)

    core.before = wait
    clients = [submit(thread, [n]) for n in range(1, 6)]
    submitted.set()
    most = time.monotonic() + 20
    while (thread.counts.waiting, thread.counts.running) != (3, 2):
        assert time.monotonic() < most, thread.counts
        time.sleep(0.01)
    gate.set()
    for client in clients:
        client.events()
