"""Fields of chat completions that shape or count replies, through the official client."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import openai
import pytest
from flashnext import _core
from flashnext.engine.events import Usage
from flashnext.engine.sampling import choice_seed
from flashnext.server.usage import usage_of
from flashnext.text.tokenizer import Tokenizer
from openai.types.shared import ReasoningEffort
from support.serving import server_process

TINY = Path(__file__).parents[1] / "tiny"
TOKENIZER = Tokenizer.from_folder(TINY / "hf")
MODEL = "tiny-6bit"
SUM: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
HOT: dict[str, Any] = {"temperature": 5, "top_p": 1, "max_tokens": 12, "extra_body": {"top_k": 0}}


def ask(client: openai.OpenAI, messages: Any = SUM, **more: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=messages, **{"temperature": 0, **more})


def streamed(client: openai.OpenAI, **more: Any) -> list[Any]:
    return list(ask(client, stream=True, **more))


# --- several choices


def test_the_seed_of_a_choice_is_the_cores() -> None:
    for seed in (0, 1, 7, 2**53 - 1, 2**64 - 1):
        for i in (0, 1, 2, 63):
            assert choice_seed(seed, i) == _core.testing.choice_seed(seed, i)


def test_choices_are_the_requests_with_their_seeds(client: openai.OpenAI) -> None:
    hot = {**HOT, "extra_body": {"top_k": 0, "return_token_ids": True}}
    reply = ask(client, **hot, n=3, seed=7)
    assert [c.index for c in reply.choices] == [0, 1, 2]
    seeds = [c.flashnext["seed"] for c in reply.choices]
    assert seeds == [choice_seed(7, i) for i in range(3)]
    alone = [ask(client, **hot, seed=seed) for seed in seeds]
    assert [c.token_ids for c in reply.choices] == [one.choices[0].token_ids for one in alone]
    assert len({c.flashnext["token_sha"] for c in reply.choices}) == 3
    assert reply.usage.prompt_tokens == 18
    assert reply.usage.completion_tokens == sum(one.usage.completion_tokens for one in alone)


def test_choices_of_no_seed_differ_and_can_be_replayed(client: openai.OpenAI) -> None:
    reply = ask(client, **HOT, n=2)
    first, second = (c.flashnext for c in reply.choices)
    assert second["seed"] == choice_seed(first["seed"], 1)
    again = ask(client, **HOT, n=2, seed=first["seed"])
    assert [c.flashnext["token_sha"] for c in again.choices] == [first["token_sha"], second["token_sha"]]


def test_a_stream_of_choices_adds_up_to_the_whole(client: openai.OpenAI) -> None:
    whole = ask(client, **HOT, n=3, seed=7)
    *chunks, last = streamed(client, **HOT, n=3, seed=7, stream_options={"include_usage": True})
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    for choice in whole.choices:
        mine = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert [c.delta.role for c in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason]
        reasoning = "".join(getattr(c.delta, "reasoning", None) or "" for c in mine)
        assert reasoning == (getattr(choice.message, "reasoning", None) or "")
        assert mine[-1].flashnext["token_sha"] == choice.flashnext["token_sha"]


def test_what_one_choice_read_and_the_others_found_is_not_cached(client: openai.OpenAI) -> None:
    assert usage_of([Usage(100, 5, 0, 0), Usage(100, 5, 0, 99)])["prompt_tokens_details"] == {
        "cached_tokens": 0
    }
    assert usage_of([Usage(100, 5, 0, 64), Usage(100, 5, 0, 99)])["prompt_tokens_details"] == {
        "cached_tokens": 64
    }
    long = [{"role": "user", "content": "Count the wolves, " * 60}]
    other = [{"role": "user", "content": "Count the sheep, " * 60}]
    reply = ask(client, other, n=3, max_tokens=2)
    assert reply.usage.prompt_tokens_details.cached_tokens == 0
    *_, last = ask(client, long, n=3, max_tokens=2, stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens_details.cached_tokens == 0


# --- logprobs


def test_logprobs_spell_the_answer_and_the_thoughts_apart(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=3).choices[0]
    for entries, text in (
        (choice.logprobs.content, choice.message.content),
        ([type(choice.logprobs.content[0]).model_validate(e) for e in choice.logprobs.reasoning_content],
         choice.message.reasoning),
    ):  # fmt: skip
        # The last token of the thoughts spells the line's end too, which is not part of them.
        assert bytes(b for e in entries for b in e.bytes).decode().rstrip() == text
        for e in entries:
            assert len(e.top_logprobs) == 3
            assert e.logprob == e.top_logprobs[0].logprob  # greedy
            assert e.token == e.top_logprobs[0].token
            values = [top.logprob for top in e.top_logprobs]
            assert values == sorted(values, reverse=True)
            assert sum(math.exp(v) for v in values) <= 1 + 1e-6


@pytest.mark.parametrize("extra", [{}, OFF], ids=["thinking", "plain"])
def test_streamed_logprobs_come_with_their_text_and_equal_the_whole(
    extra: Any, client: openai.OpenAI
) -> None:
    whole = ask(client, logprobs=True, top_logprobs=2, extra_body=extra).choices[0].logprobs
    chunks = [c.choices[0] for c in streamed(client, logprobs=True, top_logprobs=2, extra_body=extra)]
    content = [e for c in chunks if c.logprobs for e in c.logprobs.content]
    assert [e.model_dump() for e in content] == [e.model_dump() for e in whole.content]
    for c in chunks:
        if c.logprobs:
            told = bytes(b for e in c.logprobs.content for b in e.bytes).decode()
            assert told == (c.delta.content or "")


EMOJI: list[Any] = [{"role": "user", "content": "Repeat: \U0001f600 naïve \U0001f680 Ж"}]


def test_a_character_of_several_tokens_has_the_bytes_of_each(client: openai.OpenAI) -> None:
    bias = {str(i): 100 for i in TOKENIZER.encode("\U0001f600")}
    choice = ask(
        client, EMOJI, logprobs=True, logit_bias=bias, max_tokens=12, extra_body=OFF, temperature=1, seed=1
    ).choices[0]
    data = bytes(b for e in choice.logprobs.content for b in e.bytes)
    assert len(TOKENIZER.encode("\U0001f600")) > 1
    assert any(len(e.bytes) and e.token == "\ufffd" for e in choice.logprobs.content)
    assert data.decode("utf-8", "replace") == choice.message.content


def test_logprobs_do_not_tell_what_a_stop_string_cut_off(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True, stop=["= 7"], extra_body=OFF).choices[0]
    assert choice.message.content == "3 + 4 "
    # The token " =" begins in the text, the token " 7" does not.
    assert [e.token for e in choice.logprobs.content] == ["3", " +", " ", "4", " ="]


def test_logprobs_are_absent_unless_asked_for(client: openai.OpenAI) -> None:
    assert ask(client).choices[0].logprobs is None
    assert all(c.choices[0].logprobs is None for c in streamed(client))


# --- bias and penalties


def test_logit_bias_forbids_and_forces(client: openai.OpenAI) -> None:
    (seven,) = TOKENIZER.encode("7")
    text = ask(client, logit_bias={str(seven): -100}, extra_body=OFF).choices[0].message.content
    assert "7" not in text
    forced = (
        ask(client, logit_bias={str(seven): 100}, extra_body=OFF, max_tokens=4).choices[0].message.content
    )
    assert forced == "7777"


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_penalties_end_a_repetition(field: str, client: openai.OpenAI) -> None:
    digits = {str(TOKENIZER.encode(str(i))[0]): 100 for i in range(10)}

    def n_distinct(**more: Any) -> int:
        extra = {**OFF, "ignore_eos": True, **more}
        reply = ask(client, logit_bias=digits, max_tokens=24, extra_body=extra)
        return len(set(reply.choices[0].message.content))

    assert n_distinct(**{field: 2}) > n_distinct()


# --- ends


def test_ignore_eos_goes_on_to_the_cap(client: openai.OpenAI) -> None:
    choice = ask(client, max_tokens=60, extra_body={"ignore_eos": True, "min_tokens": 60}).choices[0]
    assert (choice.finish_reason, choice.flashnext["seed"] >= 0) == ("length", True)
    reply = ask(client, max_tokens=60, extra_body={"ignore_eos": True})
    assert reply.usage.completion_tokens == 60


def test_a_stop_token_ends_a_reply(client: openai.OpenAI) -> None:
    (seven,) = TOKENIZER.encode("7")
    reply = ask(client, extra_body={**OFF, "stop_token_ids": [seven], "return_token_ids": True})
    assert reply.choices[0].token_ids[-1] == seven
    assert reply.choices[0].finish_reason == "stop"


# --- usage and fingerprints


def test_usage_comes_with_every_chunk_that_asks(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = streamed(client, stream_options=options)
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {18}
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0 and counts[-1] == last.usage.completion_tokens == 28
    assert last.choices == []


def test_the_fingerprint_is_one_for_all_replies(client: openai.OpenAI) -> None:
    replies = [ask(client, seed=i) for i in range(2)]
    chunks = streamed(client)
    prints = {r.system_fingerprint for r in (*replies, *chunks)}
    assert len(prints) == 1
    assert prints.pop().startswith("fp_")


# --- thinking


def test_reasoning_effort_none_does_not_think(client: openai.OpenAI) -> None:
    reply = ask(client, reasoning_effort="none")
    assert reply.choices[0].message.content == "3 + 4 = 7"
    assert not hasattr(reply.choices[0].message, "reasoning")
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("effort", [e for e in get_args(get_args(ReasoningEffort)[0]) if e != "none"])
def test_every_effort_of_openai_is_served(effort: Any, client: openai.OpenAI) -> None:
    assert ask(client, reasoning_effort=effort).choices[0].message.content == "3 + 4 = 7"


# --- tools


def test_tools_stream_and_logprobs_go_together(client: openai.OpenAI) -> None:
    cases = map(json.loads, (TINY / "golden.jsonl").read_text(encoding="utf-8").splitlines())
    case = next(c for c in cases if c["tools"] and "<tool_call>" in c["output_text"])
    more: Any = {
        "tools": case["tools"],
        "logprobs": True,
        "top_logprobs": 1,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": case["enable_thinking"]}},
    }
    chunks = list(ask(client, case["messages"], stream=True, **more))
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["tool_calls"]
    whole = ask(client, case["messages"], parallel_tool_calls=False, **more)
    assert len(whole.choices[0].message.tool_calls) == 1
    assert whole.choices[0].finish_reason == "tool_calls"


def test_a_thinking_budget_closes_the_block(client: openai.OpenAI) -> None:
    reply = ask(client, extra_body={"thinking_budget": 5}, logprobs=True)
    message = reply.choices[0].message
    assert message.reasoning == "3 + 4 ="
    assert message.content and "think" not in message.content
    told = bytes(b for e in reply.choices[0].logprobs.content for b in e.bytes).decode()
    assert told == message.content
    chunks = [c.choices[0] for c in streamed(client, extra_body={"thinking_budget": 5})]
    assert "".join(c.delta.content or "" for c in chunks) == message.content
    assert chunks[-1].flashnext["token_sha"] == reply.choices[0].flashnext["token_sha"]


def test_timings_and_drafts_are_told_with_each_choice(client: openai.OpenAI) -> None:
    whole = [c.flashnext for c in ask(client, n=2).choices]
    last = streamed(client)[-1].choices[0].flashnext
    for told in (*whole, last):
        assert set(told) == {"token_sha", "seed", "timings", "drafts"}
        assert set(told["drafts"]) == {"proposed", "accepted"}
        timings = told["timings"]
        assert timings["first_token_ms"] >= timings["prompt_ms"] > 0
        assert timings["decode_ms"] > 0


def test_background_requests_are_served_and_other_priorities_refused(client: openai.OpenAI) -> None:
    reply = ask(client, extra_body={"priority": "background"})
    assert reply.choices[0].message.content == "3 + 4 = 7"
    with pytest.raises(openai.BadRequestError, match="priority"):
        ask(client, extra_body={"priority": "vip"})


def test_drafts_change_no_log_probability() -> None:
    hot: Any = {"temperature": 2, "seed": 3, "max_tokens": 60, "logprobs": True, "top_logprobs": 5}
    with (
        server_process("--drafts", "4", "--no-prices") as server,
        openai.OpenAI(base_url=server.url, api_key="none") as client,
    ):
        with_drafts, without = (
            ask(client, **hot, extra_body={"draft": draft, "top_k": 0}).choices[0] for draft in (True, False)
        )
    assert with_drafts.flashnext["drafts"]["proposed"] > 0 == without.flashnext["drafts"]["proposed"]
    assert with_drafts.logprobs == without.logprobs
    entries = [*with_drafts.logprobs.reasoning_content]
    assert all(-9999 <= e["logprob"] <= 0 and e["bytes"] for e in entries)


# --- the client's own helpers


def test_the_streaming_helper_builds_the_whole_reply(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=SUM, temperature=0, logprobs=True, stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "3 + 4 = 7"
    assert final.usage is not None and final.usage.completion_tokens == 28
    assert "content.delta" in kinds and "content.done" in kinds and "logprobs.content.delta" in kinds


def test_the_streaming_helper_builds_a_call(client: openai.OpenAI) -> None:
    cases = map(json.loads, (TINY / "golden.jsonl").read_text(encoding="utf-8").splitlines())
    case = next(c for c in cases if c["tools"] and "<tool_call>" in c["output_text"])
    extra = {"chat_template_kwargs": {"enable_thinking": case["enable_thinking"]}}
    with client.chat.completions.stream(
        model=MODEL, messages=case["messages"], tools=case["tools"], temperature=0, extra_body=extra
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.tool_calls is not None
    (call,) = final.choices[0].message.tool_calls
    assert f"<function={call.function.name}>" in case["output_text"]
    json.loads(call.function.arguments)
