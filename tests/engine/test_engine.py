"""The engine over the real core and the bundled checkpoint, end to end."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.errors import EngineClosed
from flashnext.engine.events import Event, Reply, token_sha
from flashnext.engine.load import open_device
from flashnext.engine.plan import MemoryPlan
from flashnext.engine.sampling import Sampling
from flashnext.errors import CheckpointError, DeviceError, InvalidArgument, OutOfMemory
from flashnext.text.messages import InvalidField
from flashnext.text.template import TemplateOptions
from support.mutate import edit_tensors
from support.pages import pages_came_back

TINY = Path(__file__).parents[1] / "tiny"
GOLDEN = {
    case["id"]: case
    for case in map(json.loads, (TINY / "golden.jsonl").read_text(encoding="utf-8").splitlines())
    if case["grid_thw"] is None and len(case["prompt_ids"]) < 600
}
SUM: list[dict[str, Any]] = [{"role": "user", "content": "What is 3 + 4?"}]
COUNT: list[dict[str, Any]] = [{"role": "user", "content": "Count from 31 to 111."}]
OFF = TemplateOptions(enable_thinking=False)
GREEDY = Sampling(temperature=0)
HOT = Sampling(temperature=5, top_k=0, top_p=1, max_tokens=40, seed=11)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine
        assert pages_came_back(engine)


@pytest.fixture(scope="module")
def exact_engine() -> Iterator[Engine]:
    with Engine(TINY / "hf", dtype="float32") as engine:
        yield engine


def wait_for_idle(engine: Engine) -> None:
    """Let the thread close what it ran: a later request's reply shows that it has."""
    engine.generate(SUM, sampling=Sampling(max_tokens=1)).result()


# --- replies


@pytest.mark.parametrize("case", GOLDEN.values(), ids=GOLDEN)
def test_golden_chats_get_their_golden_replies(case: dict[str, Any], exact_engine: Engine) -> None:
    reply = exact_engine.generate(
        case["messages"],
        sampling=Sampling(temperature=0, max_tokens=len(case["output_ids"])),
        tools=case["tools"],
        options=TemplateOptions(enable_thinking=case["enable_thinking"]),
    ).result()
    assert list(reply.token_ids) == case["output_ids"]
    assert reply.token_sha == token_sha(case["output_ids"])
    assert reply.usage.prompt_tokens == len(case["prompt_ids"])
    before, closed, after = case["output_text"].partition("</think>")
    assert reply.reasoning == (before.strip() if closed else "")
    if not reply.tool_calls:
        assert reply.text == (after if closed else before).removesuffix("<|im_end|>").lstrip()


def test_a_device_that_is_open_is_taken_and_the_reply_does_not_depend_on_its_workers(engine: Engine) -> None:
    expected = engine.submit(COUNT, sampling=HOT, options=OFF).result().token_ids
    for workers in (1, 3):
        with Engine(device=open_device("cpu", threads=workers), context=4096) as other:
            assert other.loaded.device.limits.workers == workers
            assert other.submit(COUNT, sampling=HOT, options=OFF).result().token_ids == expected


def test_a_golden_tool_call_arrives_as_a_call(exact_engine: Engine) -> None:
    case = next(case for case in GOLDEN.values() if "<tool_call>" in case["output_text"])
    reply = exact_engine.generate(
        case["messages"],
        sampling=GREEDY,
        tools=case["tools"],
        options=TemplateOptions(enable_thinking=case["enable_thinking"]),
    ).result()
    (call,) = reply.tool_calls
    assert f"<function={call.name}>" in case["output_text"]
    for key, value in json.loads(call.arguments).items():
        assert f"<parameter={key}>\n{value}\n</parameter>" in case["output_text"]
    assert "tool_call" not in reply.text


def test_events_add_up_to_the_reply(engine: Engine) -> None:
    request = engine.generate(SUM, sampling=GREEDY)
    events = list(request)
    reply = request.result()
    assert len(events) == reply.usage.completion_tokens == len(reply.token_ids)
    assert "".join(e.text for e in events) == reply.text == "3 + 4 = 7"
    assert "".join(e.reasoning for e in events) == reply.reasoning == "3 + 4 = 7. So 3 + 4 = 7."
    assert [e.finish_reason for e in events] == [None] * (len(events) - 1) + ["stop"]


@pytest.mark.parametrize("settings", [Sampling(temperature=0, max_tokens=20), HOT], ids=["greedy", "seeded"])
def test_text_token_ids_and_messages_are_prompts(settings: Sampling, engine: Engine) -> None:
    as_chat = engine.generate(SUM, sampling=settings).result()
    as_ids = engine.generate(engine.template.render(SUM).token_ids, sampling=settings).result()
    assert (as_ids.token_ids, as_ids.reasoning) == (as_chat.token_ids, "")
    as_text = engine.generate("Count from", sampling=settings).result()
    as_ids = engine.generate(engine.tokenizer.encode("Count from"), sampling=settings).result()
    assert as_ids.token_ids == as_text.token_ids


def test_a_plain_text_prompt_gives_no_control_token(engine: Engine) -> None:
    request = engine.generate("<|im_start|>user\nHi<|im_end|>", sampling=Sampling(max_tokens=1))
    assert len(request.prompt_ids) > 5
    assert not set(request.prompt_ids) & set(engine.tokenizer.control_ids.values())


# --- sampling


def test_a_seed_gives_the_same_reply_and_another_seed_another(engine: Engine) -> None:
    replies = {
        seed: engine.generate(
            SUM, sampling=Sampling(temperature=5, top_k=0, top_p=1, max_tokens=40, seed=seed)
        ).result()
        for seed in range(3)
    }
    assert len({reply.token_sha for reply in replies.values()}) == 3
    again = Sampling(temperature=5, top_k=0, top_p=1, max_tokens=40, seed=1)
    assert engine.generate(SUM, sampling=again).result() == replies[1]


def test_a_negative_seed_is_its_64_bits(engine: Engine) -> None:
    request = engine.generate(SUM, sampling=Sampling(seed=-1, max_tokens=1))
    assert request.seed == 2**64 - 1


def test_without_a_seed_replies_differ_and_each_can_be_replayed(engine: Engine) -> None:
    free = Sampling(temperature=5, top_k=0, top_p=1, max_tokens=30)
    replies = [engine.generate(SUM, sampling=free).result() for _ in range(5)]
    assert len({reply.token_sha for reply in replies}) == 5
    for reply in replies:
        assert 0 <= reply.seed < 2**53  # so that every JSON reader keeps it
        replay = Sampling(temperature=5, top_k=0, top_p=1, max_tokens=30, seed=reply.seed)
        assert engine.generate(SUM, sampling=replay).result() == reply


def test_seeds_come_from_the_source_that_was_given() -> None:
    with Engine(random_bits=lambda n: n) as engine:
        assert engine.generate(SUM, sampling=Sampling(max_tokens=1)).seed == 53


def test_the_checkpoints_recommendation_counts_where_a_request_says_nothing(engine: Engine) -> None:
    said = Sampling(temperature=0.6, top_k=20, top_p=0.95, seed=5, max_tokens=30)
    assert (
        engine.generate("Write", sampling=Sampling(seed=5, max_tokens=30)).result()
        == engine.generate("Write", sampling=said).result()
    )


def test_logprobs_are_those_of_the_drawn_tokens(engine: Engine) -> None:
    request = engine.generate(SUM, sampling=Sampling(temperature=0, logprobs=3))
    reply = request.result()
    assert reply.logprobs is not None
    assert [p.token_id for p in reply.logprobs] == list(reply.token_ids)
    for p in reply.logprobs:
        assert p.logprob <= 0
        assert len(p.top) == 3
        assert p.top[0] == (p.token_id, p.logprob)  # greedy takes the likeliest
    assert engine.generate(SUM, sampling=GREEDY).result().logprobs is None


def test_a_bias_forces_and_forbids_tokens(engine: Engine) -> None:
    (token,) = engine.tokenizer.encode("Z")
    forced = Sampling(temperature=0, logit_bias={token: 100}, max_tokens=5)
    assert engine.generate("a", sampling=forced).result().text == "ZZZZZ"


def test_padded_ids_are_never_drawn(engine: Engine) -> None:
    reply = engine.generate("a", sampling=Sampling(temperature=100, max_tokens=200, seed=1)).result()
    assert max(reply.token_ids) < engine.tokenizer.n_tokens


# --- ends and limits


def test_a_stop_string_ends_the_reply_before_it(engine: Engine) -> None:
    reply = engine.generate(COUNT, sampling=Sampling(temperature=0, stop=["35"]), options=OFF).result()
    assert (reply.text, reply.finish_reason) == ("31, 32, 33, 34, ", "stop")


def test_a_stop_token_of_the_request_ends_the_reply_without_its_text(engine: Engine) -> None:
    (comma,) = engine.tokenizer.encode(",")
    reply = engine.generate(
        COUNT, sampling=Sampling(temperature=0, stop_token_ids=[comma]), options=OFF
    ).result()
    assert (reply.text, reply.finish_reason, reply.token_ids[-1]) == ("31", "stop", comma)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_max_tokens_counts_every_token(n: int, engine: Engine) -> None:
    reply = engine.generate(COUNT, sampling=Sampling(temperature=0, max_tokens=n)).result()
    assert (len(reply.token_ids), reply.finish_reason) == (n, "length")


def test_the_window_is_filled_to_its_last_token_and_not_beyond() -> None:
    with Engine(context=128) as engine:
        assert engine.context == 128
        for n, drawn in ((127, 1), (126, 2), (100, 28)):
            reply = engine.generate(
                [100] * n, sampling=Sampling(temperature=1, seed=1, logit_bias={2549: -100, 2547: -100})
            ).result()
            assert (len(reply.token_ids), reply.finish_reason) == (drawn, "length")
        with pytest.raises(InvalidField, match=r"has 128 tokens, .* context length is 128 tokens") as caught:
            engine.generate([100] * 128)
        assert caught.value.field == "prompt"
        with pytest.raises(InvalidField, match="max_tokens: expected 1 to 128, the context, found 129"):
            engine.generate([100], sampling=Sampling(max_tokens=129))
        long_chat = [{"role": "user", "content": "word " * 200}]
        with pytest.raises(InvalidField) as caught:
            engine.generate(long_chat)
        assert caught.value.field == "messages"
        assert pages_came_back(engine)


@pytest.mark.parametrize(
    ("prompt", "more", "field"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ([1, -1], {}, "prompt[1]"),
        ([2560], {}, "prompt[0]"),
        ([1, 2.0], {}, "prompt[1]"),
        ([True], {}, "prompt[0]"),
        ("x", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("x", {"options": OFF}, "options"),
        ("x", {"sampling": Sampling(logit_bias={2560: 1})}, "logit_bias"),
        ("x", {"sampling": Sampling(logit_bias={999999: 5})}, "logit_bias"),
        ("x", {"sampling": Sampling(stop_token_ids=[-1])}, "stop_token_ids"),
        ([{"role": "user"}, 5], {}, "messages[1]"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_by_name(
    prompt: Any, more: dict[str, Any], field: str, engine: Engine
) -> None:
    with pytest.raises(InvalidField) as caught:
        engine.generate(prompt, **more)
    assert caught.value.field == field


# --- cancellation


def test_a_cancelled_request_ends_soon_with_what_it_has(engine: Engine) -> None:
    request = engine.submit(COUNT, sampling=GREEDY, options=OFF)
    seen = [next(request) for _ in range(5)]
    request.cancel()
    rest = list(request)
    assert rest[-1].finish_reason == "cancelled"
    reply = request.result()
    assert len(seen) + len(rest) - 1 == len(reply.token_ids) < 300
    request.cancel()


def test_leaving_the_loop_cancels(engine: Engine) -> None:
    endless = Sampling(temperature=0, logit_bias={2549: -100, 2547: -100})
    for event in engine.generate(COUNT, sampling=endless):
        assert event.finish_reason is None
        break
    gc.collect()
    started = time.perf_counter()
    wait_for_idle(engine)
    assert time.perf_counter() - started < 10  # 8,000 tokens would take longer on any machine of today
    assert pages_came_back(engine)


def test_cancelling_a_long_prompt_takes_effect_between_chunks(engine: Engine) -> None:
    request = engine.submit([100] * 8000, sampling=GREEDY)
    request.cancel()
    assert request.result().finish_reason == "cancelled"
    assert request.result().token_ids == ()


def test_a_neighbours_cancellation_changes_nothing(engine: Engine) -> None:
    alone = engine.generate(COUNT, sampling=HOT).result()
    requests = [engine.submit(COUNT, sampling=HOT) for _ in range(6)]
    for request in requests[::2]:
        request.cancel()
    assert all(request.result() == alone for request in requests[1::2])


# --- threads, asyncio, processes


def test_many_threads_get_the_replies_they_would_get_alone(engine: Engine) -> None:
    def ask(n: int) -> Reply:
        settings = Sampling(temperature=1.5, top_k=0, top_p=1, max_tokens=25, seed=n)
        return engine.generate([{"role": "user", "content": f"What is {n} + 4?"}], sampling=settings).result()

    alone = [ask(n) for n in range(12)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(ask, range(12))) == alone


def test_the_asyncio_twin_gives_the_same_events(engine: Engine) -> None:
    async def ask() -> tuple[list[Event], Reply]:
        request = await engine.generate_async(SUM, sampling=HOT)
        events = [event async for event in request]
        return events, await request.result()

    async def together() -> list[tuple[list[Event], Reply]]:
        return await asyncio.gather(*(ask() for _ in range(4)))

    request = engine.generate(SUM, sampling=HOT)
    expected = (list(request), request.result())
    assert asyncio.run(together()) == [expected] * 4


def test_the_asyncio_twin_cancels_and_refuses(engine: Engine) -> None:
    async def run() -> None:
        request = await engine.generate_async(COUNT, sampling=GREEDY, options=OFF)
        async for _ in request:
            request.cancel()
        assert (await request.result()).finish_reason == "cancelled"
        with pytest.raises(InvalidField):
            await engine.generate_async([])
        async for _ in await engine.generate_async(COUNT, sampling=GREEDY, options=OFF):
            break

    asyncio.run(run())
    wait_for_idle(engine)
    assert pages_came_back(engine)


def test_an_event_loop_that_is_gone_hurts_nobody(engine: Engine) -> None:
    kept: list[Any] = []

    async def leave() -> None:
        kept.append(await engine.generate_async(COUNT, sampling=GREEDY, options=OFF))

    asyncio.run(leave())
    assert engine.generate(SUM, sampling=GREEDY).result().text == "3 + 4 = 7"
    assert engine.failure is None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_by_name_and_the_parent_goes_on(engine: Engine) -> None:
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()

    def child() -> None:
        try:
            engine.generate(SUM)
        except EngineClosed as error:
            told.put(str(error))
        else:
            told.put("served")
        try:
            next(running)
        except EngineClosed as error:
            told.put(str(error))
        running.cancel()
        engine.close()

    running = engine.submit(COUNT, sampling=GREEDY, options=OFF)
    next(running)
    process = context.Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert "cannot be used in process" in told.get()
    assert "cannot be used in process" in told.get()
    assert running.result().finish_reason == "stop"
    assert engine.generate(SUM, sampling=GREEDY).result().text == "3 + 4 = 7"


def test_a_closed_engine_is_refused_by_name_and_ends_what_was_open() -> None:
    engine = Engine()
    request = engine.submit(COUNT, sampling=GREEDY, options=OFF)
    next(request)
    assert engine.close()
    with pytest.raises(EngineClosed, match="closed before the reply was complete"):
        list(request)
    for _ in range(2):
        with pytest.raises(EngineClosed, match="closed before the reply was complete"):
            request.result()
    for _ in range(2):
        with pytest.raises(EngineClosed, match="the engine is closed"):
            engine.generate(SUM)
    assert engine.close()


@pytest.mark.parametrize("prompt", [None, 5, b"ab", {"role": "user", "content": "x"}, iter([1, 2])])
def test_a_prompt_of_another_kind_is_refused(engine: Engine, prompt: Any) -> None:
    with pytest.raises(InvalidField, match="expected text, a list of token ids or a list of messages"):
        engine.generate(prompt)


def test_options_of_another_kind_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidField, match="expected TemplateOptions, found dict"):
        engine.generate(SUM, options={"enable_thinking": True})  # type: ignore[arg-type]


def test_token_ids_may_come_as_an_array(engine: Engine) -> None:
    ids = engine.tokenizer.encode("one two")
    prompts: list[Any] = [ids, np.array(ids)]
    replies = [engine.generate(prompt, sampling=GREEDY).result() for prompt in prompts]
    assert replies[0].token_ids == replies[1].token_ids


def test_a_template_that_makes_nothing_of_a_chat_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(BUNDLED, folder)
    (folder / "chat_template.jinja").write_text("")
    with Engine(folder) as engine, pytest.raises(InvalidField, match="the chat template makes nothing"):
        engine.generate(SUM)


def test_weights_that_are_not_numbers_end_a_reply_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(BUNDLED, folder)

    def spoil(tensors: Any) -> None:
        dtype, shape, data = tensors["language_model.lm_head.scales"]
        tensors["language_model.lm_head.scales"] = (dtype, shape, b"\xc0\x7f" * (len(data) // 2))

    edit_tensors(folder, spoil)
    with Engine(folder) as engine:
        for settings in (GREEDY, HOT):
            with pytest.raises(DeviceError, match="logits are not numbers"):
                engine.generate(SUM, sampling=settings).result()


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
def test_drafts_change_no_reply(engine: Engine, sampling: Sampling) -> None:
    with Engine(drafts=5) as drafting:
        for draft in (True, False):
            asked = replace(sampling, draft=draft)
            expected = engine.generate(COUNT, sampling=asked, options=OFF).result()
            found = drafting.generate(COUNT, sampling=asked, options=OFF).result()
            assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
    with pytest.raises(InvalidArgument, match="drafts is 16, expected 0 to 15"):
        Engine(drafts=16)


def test_a_dropped_engine_ends_its_thread() -> None:
    def names() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name == "flashnext-engine"]

    before = len(names())
    engine = Engine()
    request = engine.submit(SUM, sampling=GREEDY)
    assert len(names()) == before + 1
    del engine
    gc.collect()
    assert request.result().text == "3 + 4 = 7"  # a request keeps its engine
    del request
    gc.collect()
    assert len(names()) == before


def test_a_program_that_forgets_to_close_exits_cleanly() -> None:
    program = (
        "from flashnext.engine.engine import Engine\n"
        "engine = Engine()\n"
        "request = engine.submit([100] * 8000)\n"
        "print('started', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ.copy()
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


# --- loading


def test_loading_tells_its_stages_and_refuses_by_name(tmp_path: Path) -> None:
    stages: list[str] = []
    Engine(progress=stages.append).close()
    assert stages[-1] == "weights"
    with pytest.raises(CheckpointError, match="not found"):
        Engine(tmp_path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"parallel": 0}, "parallel is 0, expected 1 to 64"),
        ({"round_rows": 65}, "round_rows is 65, expected 1 to 64"),
        ({"parallel": 33}, "parallel is 33, and a round has 32 rows"),
        ({"gap_ms": -1}, "gap_ms is -1, expected 0 or more"),
        ({"load_limit_gib": 0}, r"load_limit_gib is 0, expected GiB from 0\.001 to 1,000,000"),
        ({"load_limit_gib": float("nan")}, "load_limit_gib is nan"),
        ({"load_limit_gib": "x"}, r"load_limit_gib is 'x', expected GiB from 0\.001"),
        ({"prefix_cache_gib": "x"}, r"prefix_cache_gib is 'x', expected GiB from 0\.001 to 1,000,000, or 0"),
        ({"prefix_cache_gib": True}, "prefix_cache_gib is True, expected GiB"),
        ({"spill_limit_gib": [1], "spill_dir": "x"}, r"spill_limit_gib is \[1\], expected GiB"),
        (
            {"spill_limit_gib": 1},
            "spill_limit_gib is 1, but there is no spill directory .* give spill_dir too",
        ),
        ({"spill_dir": ""}, "spill_dir is '', expected the name of a folder"),
        ({"spill_dir": "."}, "spill_dir is '.', .*current folder is meant, give its whole path"),
        ({"spill_dir": 3}, "spill_dir is 3, expected the name of a folder"),
        ({"gap_ms": "x"}, "gap_ms is 'x', expected 0 or more"),
        ({"gap_ms": float("nan")}, "gap_ms is nan, expected 0 or more"),
        ({"drafts": "x"}, "drafts is 'x', expected 0 to 15"),
        ({"drafts": 1.0}, r"drafts is 1\.0, expected 0 to 15"),
        ({"parallel": "x"}, "parallel is 'x', expected 1 to 64"),
        ({"round_rows": None}, "round_rows is None, expected 1 to 64"),
        ({"context": "x"}, "context is 'x', expected a whole number of tokens"),
        ({"ngram_table": 1}, "ngram_table is 1, expected one of auto, resident, streamed"),
        ({"dtype": "int3"}, "dtype is 'int3', expected one of bfloat16, float32"),
        ({"lone": "no"}, "lone is 'no', expected True or False"),
        ({"prices": 0}, "prices is 0, expected True or False"),
        ({"serial_drafts": None}, "serial_drafts is None, expected True or False"),
    ]
    for arguments, message in wrong:
        with pytest.raises(InvalidArgument, match=message):
            Engine(**arguments)
    with pytest.raises(InvalidArgument, match="device"):
        Engine(device="abacus")
    with pytest.raises(InvalidArgument, match="dtype"):
        Engine(dtype="int3")
    with pytest.raises(InvalidArgument, match="context"):
        Engine(context=0)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_text_files_that_are_links_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(BUNDLED, folder)
    shutil.move(folder / name, tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name} is a link that leads out of the folder"):
        Engine(folder)


def test_as_many_requests_run_at_once_as_there_are_pages_for() -> None:
    with Engine(context=512) as engine:
        assert engine.parallel == 8
    with Engine(context=512, parallel=12) as engine:
        assert engine.parallel == 12


def test_a_load_limit_lowers_what_nobody_asked_for_and_replies_stay_the_same(engine: Engine) -> None:
    plans: list[MemoryPlan] = []
    with Engine(parallel=1, round_rows=1, prefix_cache_gib=0, planned=plans.append) as one:
        least = one.plan
        assert plans == [least]
        assert (least.context, least.n_sessions) == (8192, 1)
    limit = (least.total_bytes - least.page_bytes) / 2**30  # room for one sequence, not of the whole window
    # The n-gram table would give way before the context.
    with Engine(round_rows=1, load_limit_gib=limit, prefix_cache_gib=0, ngram_table="resident") as tight:
        assert tight.parallel == 1
        assert tight.context == tight.plan.context == 8192 - 1024
        assert tight.loaded.pool.total == tight.plan.n_pages
        reply = tight.submit(SUM, sampling=GREEDY).result()
        assert reply.token_sha == engine.submit(SUM, sampling=GREEDY).result().token_sha
    with pytest.raises(OutOfMemory, match="what would fit: a smaller context"):
        Engine(context=8192, round_rows=1, load_limit_gib=limit, ngram_table="resident")


def test_what_is_refused_was_not_loaded() -> None:
    stages: list[str] = []
    with pytest.raises(OutOfMemory, match=r"of memory are needed for one .* and the limit is 10\.2 MiB"):
        Engine(load_limit_gib=0.01, progress=stages.append, planned=lambda plan: pytest.fail("planned"))
    assert "weights" not in stages


def test_a_reply_tells_drafts_and_timings(engine: Engine) -> None:
    request = engine.generate(SUM, sampling=GREEDY)
    events = list(request)
    reply = request.result()
    assert (events[-1].drafts, events[-1].timings) == (reply.drafts, reply.timings)
    assert (reply.drafts.proposed, reply.drafts.accepted) == (0, 0)
    timings = reply.timings
    assert timings.queued_ms is not None and timings.prompt_ms is not None
    assert timings.first_token_ms == pytest.approx(timings.queued_ms + timings.prompt_ms)
    assert timings.decode_ms is not None and timings.largest_gap_ms is not None
    assert timings.decode_ms >= timings.largest_gap_ms > 0
    with Engine(drafts=3, prices=False) as drafting:
        drafts = drafting.generate(SUM, sampling=GREEDY).result().drafts
    assert drafts.proposed >= drafts.accepted > 0
