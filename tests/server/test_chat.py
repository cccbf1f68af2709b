"""The official client against `flashnext-serve` on the bundled checkpoint."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from flashnext.engine.events import token_sha
from flashnext.text.tokenizer import Tokenizer
from support.serving import ServerProcess

TINY = Path(__file__).parents[1] / "tiny"
TOKENIZER = Tokenizer.from_folder(TINY / "hf")
GOLDEN = {
    case["id"]: case
    for case in map(json.loads, (TINY / "golden.jsonl").read_text(encoding="utf-8").splitlines())
}
MODEL = "tiny-6bit"
SUM: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


def ask(client: openai.OpenAI, messages: Any = SUM, **more: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=messages, **{"temperature": 0, **more})


def test_a_question_is_answered_with_thoughts_and_content_apart(client: openai.OpenAI) -> None:
    reply = ask(client)
    (choice,) = reply.choices
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    assert reply.model == MODEL
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert choice.message.content == "3 + 4 = 7"
    assert choice.message.reasoning_content == choice.message.reasoning == "3 + 4 = 7. So 3 + 4 = 7."
    assert choice.message.tool_calls is None
    usage = reply.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (18, 28, 46)
    assert usage.completion_tokens_details.reasoning_tokens == 19
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_a_stream_adds_up_to_the_reply_that_is_not_streamed(client: openai.OpenAI) -> None:
    whole = ask(client, extra_body={"return_token_ids": True})
    chunks = list(ask(client, stream=True, extra_body={"return_token_ids": True}))
    choices = [chunk.choices[0] for chunk in chunks]
    assert len({chunk.id for chunk in chunks}) == 1
    assert [c.delta.role for c in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert [c.finish_reason for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert "".join(c.delta.content or "" for c in choices) == whole.choices[0].message.content
    reasoning = "".join(getattr(c.delta, "reasoning_content", None) or "" for c in choices)
    assert reasoning == whole.choices[0].message.reasoning_content
    ids = [i for c in choices for i in getattr(c, "token_ids", [])]
    assert ids == whole.choices[0].token_ids
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    assert choices[-1].flashnext["token_sha"] == whole.choices[0].flashnext["token_sha"] == token_sha(ids)


def test_without_thinking_content_comes_at_once(client: openai.OpenAI) -> None:
    reply = ask(client, extra_body=OFF)
    assert reply.choices[0].message.content == "3 + 4 = 7"
    assert not hasattr(reply.choices[0].message, "reasoning_content")
    chunks = list(ask(client, extra_body=OFF, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "3 + 4 = 7"


@pytest.mark.parametrize("stream", [True, False])
def test_token_ids_come_only_where_they_are_asked_for(stream: bool, client: openai.OpenAI) -> None:
    reply = ask(client, stream=stream)
    text = json.dumps([chunk.model_dump() for chunk in reply] if stream else reply.model_dump())
    assert "token_ids" not in text
    assert "token_sha" in text


def test_usage_ends_a_stream_that_asks_for_it_and_only_such(client: openai.OpenAI) -> None:
    *chunks, last = ask(client, stream=True, stream_options={"include_usage": True})
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (18, 28)
    for options in ({}, {"stream_options": {"include_usage": False}}):
        chunks = list(ask(client, stream=True, **options))
        assert all(chunk.choices and "usage" not in chunk.model_fields_set for chunk in chunks)


def test_the_stream_is_framed_as_server_sent_events(server: ServerProcess) -> None:
    body = {"model": MODEL, "messages": SUM, "stream": True, "temperature": 0}
    with httpx.stream("POST", f"{server.url}/chat/completions", json=body, timeout=60) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        text = "".join(response.iter_text())
    *events, done, empty = text.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    assert all(
        json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events
    )


@pytest.mark.parametrize("name", ["dialog-1", "system-0", "copy-1", "json-0", "long-dialog"])
def test_golden_chats_get_the_prompts_of_transformers(name: str, client: openai.OpenAI) -> None:
    case = GOLDEN[name]
    more = {"chat_template_kwargs": {"enable_thinking": case["enable_thinking"]}, "return_token_ids": True}
    reply = ask(client, case["messages"], max_tokens=1, extra_body=more)
    assert reply.prompt_token_ids == case["prompt_ids"]


# --- sampling and ends


def test_a_seed_is_replayed_and_no_seed_is_drawn_and_told(client: openai.OpenAI) -> None:
    hot = {"temperature": 5, "top_p": 1, "max_tokens": 25}
    extra = {"top_k": 0, "min_p": 0, "return_token_ids": True}
    free = [ask(client, **hot, extra_body=extra).choices[0] for _ in range(3)]
    assert len({choice.flashnext["token_sha"] for choice in free}) == 3
    for choice in free:
        again = ask(client, **hot, seed=choice.flashnext["seed"], extra_body=extra).choices[0]
        assert again.token_ids == choice.token_ids


def test_top_k_1_is_greedy_at_any_temperature(client: openai.OpenAI) -> None:
    assert ask(client, temperature=5, extra_body={"top_k": 1}).choices[0].message.content == "3 + 4 = 7"


def test_min_p_1_is_greedy_at_any_temperature(client: openai.OpenAI) -> None:
    assert ask(client, temperature=1, extra_body={"min_p": 1}).choices[0].message.content == "3 + 4 = 7"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_cap_ends_by_length_inside_the_thoughts(field: str, client: openai.OpenAI) -> None:
    reply = ask(client, **{field: 5})
    assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 5)
    assert reply.choices[0].message.content == ""
    assert reply.choices[0].message.reasoning_content == "3 + 4 ="


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("4", "3 + "),
        (["= 7", "zz"], "3 + 4 "),
        ([], "3 + 4 = 7"),
        (None, "3 + 4 = 7"),
        ("x" * 500, "3 + 4 = 7"),
    ],
)
def test_stop_strings_end_the_answer_and_not_the_thoughts(
    stop: Any, text: str, stream: bool, client: openai.OpenAI
) -> None:
    reply = ask(client, stop=stop, stream=stream)
    if stream:
        chunks = list(reply)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (text, "stop")
        assert reply.choices[0].message.reasoning_content == "3 + 4 = 7. So 3 + 4 = 7."


# --- tools


def tool_case() -> Any:
    return next(c for c in GOLDEN.values() if c["tools"] and "<tool_call>" in c["output_text"])


def test_a_tool_is_called_and_its_result_is_read(client: openai.OpenAI) -> None:
    case = tool_case()
    more: dict[str, Any] = {
        "tools": case["tools"],
        "extra_body": {"chat_template_kwargs": {"enable_thinking": case["enable_thinking"]}},
    }
    first = ask(client, case["messages"], **more).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert isinstance(call.function.arguments, str)
    assert isinstance(json.loads(call.function.arguments), dict)
    assert f"<function={call.function.name}>" in case["output_text"]
    assert first.message.content is None
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 3 degrees"}
    more["extra_body"]["return_token_ids"] = True
    second = ask(client, [*case["messages"], first.message.model_dump(), result], **more)
    prompt = TOKENIZER.decode(second.prompt_token_ids)
    value = list(json.loads(call.function.arguments).values())[-1]
    assert f"<function={call.function.name}>\n<parameter=" in prompt
    assert f"\n{value}\n</parameter>\n</function>\n</tool_call><|im_end|>" in prompt
    assert "<tool_response>\nsunny, 3 degrees\n</tool_response><|im_end|>" in prompt


def test_a_streamed_call_is_one_delta_with_one_id_and_equals_the_other(client: openai.OpenAI) -> None:
    case = tool_case()
    more = {
        "tools": case["tools"],
        "extra_body": {"chat_template_kwargs": {"enable_thinking": case["enable_thinking"]}},
    }
    whole = ask(client, case["messages"], **more).choices[0].message.tool_calls
    chunks = list(ask(client, case["messages"], stream=True, **more))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(d.index, d.function.name, d.function.arguments) for d in deltas] == [
        (i, c.function.name, c.function.arguments) for i, c in enumerate(whole)
    ]
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["tool_calls"]


def test_tool_choice_none_means_no_tools(client: openai.OpenAI) -> None:
    case = tool_case()
    extra = {"return_token_ids": True}
    without = ask(client, case["messages"], max_tokens=1, extra_body=extra)
    none = ask(
        client, case["messages"], tools=case["tools"], tool_choice="none", max_tokens=1, extra_body=extra
    )
    auto = ask(
        client, case["messages"], tools=case["tools"], tool_choice="auto", max_tokens=1, extra_body=extra
    )
    assert none.prompt_token_ids == without.prompt_token_ids
    assert auto.prompt_token_ids != without.prompt_token_ids


# --- the other routes


def test_the_model_is_listed_with_its_window(client: openai.OpenAI) -> None:
    model: Any
    other: Any
    model, other = client.models.list().data
    assert (model.aliases, other.id, other.aliases) == (["flashnext"], "flashnext", [MODEL])
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "flashnext")
    assert model.context_window == 8192
    listed: dict[str, Any] = model.to_dict()
    found: Any = client.models.retrieve(MODEL).to_dict()
    assert listed.pop("prefix_cache").keys() == found.pop("prefix_cache").keys()  # counts, which go on
    assert listed == found
    assert model.capabilities["json_schema"] and model.capabilities["tools"]
    assert model.loaded and model.quantization["bits"] == [6]
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.models.retrieve("gpt-9")


def test_health_is_ok(server: ServerProcess) -> None:
    response = httpx.get(server.url.replace("/v1", "/health"))
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nowhere", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405)],
)
def test_an_unknown_route_gets_the_envelope(
    method: str, path: str, status: int, server: ServerProcess
) -> None:
    response = httpx.request(method, server.url.removesuffix("/v1") + path)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"{method} {path}: ")
    assert ("allow" in response.headers) == (status == 405)


def test_an_unknown_model_is_not_found_and_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=SUM)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "tiny-6bit" in str(caught.value)


def test_eight_clients_at_once_get_the_replies_they_get_alone(server: ServerProcess) -> None:
    async def ask_all(together: bool) -> list[list[int]]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:

            async def ask_one(n: int) -> list[int]:
                reply: Any = await client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": f"What is {n} + 4?"}],
                    temperature=2,
                    seed=n,
                    max_tokens=20,
                    extra_body={"return_token_ids": True},
                )
                return list(reply.choices[0].token_ids)

            if together:
                return list(await asyncio.gather(*(ask_one(n) for n in range(8))))
            return [await ask_one(n) for n in range(8)]

    assert asyncio.run(ask_all(True)) == asyncio.run(ask_all(False))
