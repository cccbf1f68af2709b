"""Replies of an engine with a prefix cache: bit for bit those without, and cached tokens told exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.engine.engine import Engine
from flashnext.engine.errors import MemoryShort
from flashnext.engine.events import CacheCounts, Reply
from flashnext.engine.marks import Kind
from flashnext.engine.sampling import Sampling
from flashnext.engine.spill_files import list_files, listed
from flashnext.engine.wording import FLAGS
from flashnext.errors import InvalidArgument
from flashnext.text.template import TemplateOptions
from support.pages import pages_came_back

KEPT, DROPPED = TemplateOptions(), TemplateOptions(preserve_thinking=False)
RULES = "\n".join(
    f"Rule {i}: answer question {i * 7 % 31} with care and in {i % 5 + 1} lines." for i in range(16)
)
SYSTEM: dict[str, Any] = {"role": "system", "content": RULES}
QUESTIONS = ("What is 17 + 25?", "Spell cat.", "Count from 3 to 9.", "What is 3 + 4?", "Name a color.")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def settled(engine: Engine) -> CacheCounts:
    """Wait until nothing is done in the background any more."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        counts = engine.counts
        if not (counts.running or counts.waiting or counts.cache.warming):
            return counts.cache
        time.sleep(0.005)
    raise AssertionError("the engine does not come to rest")


class Pair:
    """An engine with a cache, and one without for the same requests."""

    def __init__(self, **more: Any) -> None:
        self.engine = Engine(prefix_cache_gib=0.05, **more)
        self.plain = Engine(prefix_cache_gib=0, parallel=1)

    def ask(
        self,
        messages: list[dict[str, Any]],
        options: TemplateOptions = KEPT,
        tools: Any = None,
        **sampling: Any,
    ) -> Reply:
        """Ask both, compare all that they say, and return the reply of the first."""
        given = Sampling(**{"temperature": 0, "seed": 1, "max_tokens": 60, "logprobs": 3, **sampling})
        reply = self.engine.submit(messages, sampling=given, options=options, tools=tools).result()
        plain = self.plain.submit(
            messages, sampling=Sampling(**{**vars(given), "cache": False, "draft": False}), options=options,
            tools=tools,
        ).result()  # fmt: skip
        assert plain.usage.cached_tokens == 0
        assert reply == plain
        settled(self.engine)
        return reply

    def close(self) -> None:
        assert pages_came_back(self.engine)
        for engine in (self.engine, self.plain):
            engine.close()
        assert self.engine.loaded.pool.free == self.engine.loaded.pool.total


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def said(reply: Reply) -> dict[str, Any]:
    return {"role": "assistant", "content": reply.text, "reasoning_content": reply.reasoning}


@pytest.mark.parametrize(("options", "drafts"), [(KEPT, 3), (DROPPED, 0)], ids=["append-only", "dropped"])
def test_all_but_the_newest_turn_of_a_chat_is_cached(options: TemplateOptions, drafts: int) -> None:
    pair = Pair(drafts=drafts)
    messages = [SYSTEM]
    for turn in range(7):
        messages = [*messages, user(QUESTIONS[turn % len(QUESTIONS)])]
        reply = pair.ask(messages, options)
        if turn:
            history = len(pair.engine.template.history(messages[:-1], None, options))
            assert history - 8 < reply.usage.cached_tokens < reply.usage.prompt_tokens
        messages = [*messages, said(reply)]
    counts = settled(pair.engine)
    assert (counts.hits, counts.misses) == (6, 1)
    assert (counts.warm_passes > 0) == (options is DROPPED)
    pair.close()


def test_sampled_replies_are_those_without_the_cache(pair: Pair) -> None:
    for seed in range(4):
        reply = pair.ask([SYSTEM, user(QUESTIONS[seed])], temperature=1.5, seed=seed, repetition_penalty=1.2)
        assert (reply.usage.cached_tokens > 0) == (seed > 0)


def test_two_conversations_share_the_pages_of_their_system_prompt(pair: Pair) -> None:
    pair.ask([SYSTEM, user("What is 17 + 25?")])
    first = settled(pair.engine)
    reply = pair.ask([SYSTEM, user("Spell cat.")])
    second = settled(pair.engine)
    system = len(pair.engine.template.render([SYSTEM, user("x")], turns=True).token_ids) - 9
    assert system - 8 <= reply.usage.cached_tokens <= system + 8
    page = pair.engine.plan.page_bytes
    assert second.pages_bytes - first.pages_bytes <= 4 * page < first.pages_bytes
    assert any(mark.value.pinned for mark in marks(pair.engine))


def test_neighbours_that_share_pages_get_their_own_replies(pair: Pair) -> None:
    pair.ask([SYSTEM, user("Spell cat.")])
    asked = [
        ([SYSTEM, user(text)], Sampling(temperature=1.0, seed=seed, max_tokens=24, logprobs=1))
        for seed, text in enumerate((*QUESTIONS, "Spell cat."))
    ]
    requests = [pair.engine.submit(messages, sampling=sampling) for messages, sampling in asked]
    for request, (messages, sampling) in zip(requests, asked, strict=True):
        reply = request.result()
        assert reply == pair.plain.submit(messages, sampling=sampling).result()
        assert reply.usage.cached_tokens > 200
    settled(pair.engine)


def marks(engine: Engine) -> Any:
    return engine._thread._scheduler._caching.cache.marks


def test_one_changed_identifier_reuses_up_to_the_last_mark_before_it(pair: Pair) -> None:
    tokens = pair.engine.tokenizer.encode(RULES * 20)[:4200]
    assert len(tokens) == 4200
    given = Sampling(temperature=0, max_tokens=4)
    for changed, expected in ((None, 0), (4097, 4096), (4095, 0), (None, 4199)):
        prompt = list(tokens)
        if changed is not None:
            prompt[changed] = (prompt[changed] + 1) % 200 + 20
        reply = pair.engine.submit(prompt, sampling=given).result()
        assert reply.usage.cached_tokens == expected, changed
        if changed == 4097:
            assert reply.token_ids == pair.plain.submit(prompt, sampling=given).result().token_ids


def test_tool_calls_and_their_results_go_on_from_the_history(pair: Pair) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    messages = [SYSTEM, user("What is 17 + 25?")]
    pair.ask(messages, tools=tools)
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42"},
    ]
    reply = pair.ask(messages, tools=tools)
    assert reply.usage.cached_tokens > reply.usage.prompt_tokens - 60


def test_a_request_without_the_cache_reads_all_of_its_prompt(pair: Pair) -> None:
    pair.ask([SYSTEM, user("Spell cat.")])
    counts = settled(pair.engine)
    reply = pair.ask([SYSTEM, user("Spell cat.")], cache=False)
    assert reply.usage.cached_tokens == 0
    assert settled(pair.engine).marks == counts.marks


def test_short_thoughts_and_stops_and_limits_are_kept_right(pair: Pair) -> None:
    chat = [SYSTEM, user("Count from 3 to 9.")]
    for sampling in ({"thinking_budget": 3}, {"stop": ["5"]}, {"max_tokens": 7}, {"max_tokens": 1}):
        reply = pair.ask(chat, **sampling)
        pair.ask([*chat, said(reply), user("Spell cat.")])


# --- memory


def test_a_process_that_takes_too_much_refuses_and_recovers(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = pair.engine
    pair.ask([SYSTEM, user("Spell cat.")])
    assert len(marks(engine)) > 0
    guard = engine._guard
    used = [guard.refuse_bytes + 1]
    monkeypatch.setattr(guard, "_footprint", lambda: used[0])
    monkeypatch.setattr(guard, "_idle", lambda: 0)
    refused: list[MemoryShort] = []

    def refuses() -> bool:
        try:
            engine.submit("x").cancel()
        except MemoryShort as error:
            refused.append(error)
            return True
        return False

    wait_for(refuses)  # the guard looks a few times a second
    assert "try again later" in str(refused[0]) and refused[0].retry_after_s > 0
    assert "a higher load_limit_gib or a smaller prefix_cache_gib" in str(refused[0])
    monkeypatch.setattr(engine, "_names", FLAGS)
    with pytest.raises(MemoryShort, match="a higher --load-limit or a smaller --prefix-cache"):
        engine.submit("x")
    deadline = time.monotonic() + 120
    while len(marks(engine)) and time.monotonic() < deadline:
        time.sleep(0.05)
        with pytest.raises(MemoryShort):
            engine.submit("x")
    assert len(marks(engine)) == 0, "the cache did not give way"
    used[0] = 0
    wait_for(lambda: not refuses())
    pair.ask([SYSTEM, user("Spell cat.")])


# --- a spill directory


def leave_a_pinned_system_prompt(folder: Path) -> None:
    """Let two conversations begin with a system prompt, and the engine end when it is on disk."""
    pair = Pair(spill_dir=folder)
    pair.ask([SYSTEM, user("What is 17 + 25?")])
    pair.ask([SYSTEM, user("Spell cat.")])
    wait_for(lambda: settled(pair.engine).spilled >= 1)
    pair.close()


def test_a_pinned_system_prompt_survives_a_restart(tmp_path: Path) -> None:
    leave_a_pinned_system_prompt(tmp_path)
    (system,) = (m for m in listed(tmp_path, PAGE_TOKENS)[0] if m.entry.header["kind"] == Kind.SYSTEM)
    assert system.entry.header["pinned"]
    again = Pair(spill_dir=tmp_path)
    wait_for(lambda: settled(again.engine).stored >= 1)
    again.engine._thread.call(lambda s: setattr(s._caching.disk, "patience_s", 1e9))
    reply = again.ask([SYSTEM, user("Name a color.")])
    assert reply.usage.cached_tokens > 200
    assert settled(again.engine).restored == 1
    again.close()


def wait_for(what: Any) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_states_of_other_numbers_are_not_taken(tmp_path: Path) -> None:
    leave_a_pinned_system_prompt(tmp_path)
    assert list_files(tmp_path)
    with Engine(prefix_cache_gib=0.05, spill_dir=tmp_path, dtype="float32") as other:
        wait_for(lambda: not list_files(tmp_path))
        reply = other.submit([SYSTEM, user("Name a color.")], sampling=Sampling(max_tokens=2)).result()
        assert reply.usage.cached_tokens == 0


def test_a_second_engine_goes_without_a_directory_that_is_taken(tmp_path: Path) -> None:
    with (
        Engine(prefix_cache_gib=0.05, spill_dir=tmp_path) as first,
        Engine(prefix_cache_gib=0.05, spill_dir=tmp_path) as second,
    ):
        assert first.warnings == ()
        (warning,) = second.warnings
        assert "another process uses it" in warning
        assert second.submit("x", sampling=Sampling(max_tokens=2)).result().finish_reason == "length"


@pytest.mark.parametrize("folder", ["", Path("")])
def test_an_engine_with_an_empty_name_for_its_directory_is_refused(
    tmp_path: Path, folder: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=r"spill_dir is .*, expected the name of a folder"):
        Engine(prefix_cache_gib=0.05, spill_dir=folder)
    assert list(tmp_path.iterdir()) == []


KILLED = """
    import sys
    from flashnext.engine.engine import Engine
    from flashnext.engine.sampling import Sampling
    with Engine(prefix_cache_gib=0.05, spill_dir=sys.argv[1]) as engine:
        engine._thread.call(lambda s: setattr(s._caching.disk, 'ahead_bytes', 1 << 40))
        for i in range(400):
            engine.submit([40 + i % 100, *range(50, 450)], sampling=Sampling(max_tokens=2)).result()
            print(engine.counts.cache.spilled, flush=True)
"""


def test_an_engine_that_is_killed_while_it_writes_leaves_right_states(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    while int(process.stdout.readline()) < 3:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with (
        Engine(prefix_cache_gib=0.05, spill_dir=tmp_path) as engine,
        Engine(prefix_cache_gib=0) as plain,
    ):
        wait_for(lambda: engine.counts.cache.stored >= 3)
        assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
        engine._thread.call(lambda s: setattr(s._caching.disk, "patience_s", 1e9))
        n_cached = 0
        for i in range(6):
            prompt = [40 + i, *range(50, 450), 7]
            given = Sampling(temperature=0, seed=1, max_tokens=8, logprobs=2)
            reply = engine.submit(prompt, sampling=given).result()
            assert reply == plain.submit(prompt, sampling=given).result()
            n_cached += reply.usage.cached_tokens > 0
        assert n_cached >= 1
