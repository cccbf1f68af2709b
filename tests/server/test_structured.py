"""Structured output over HTTP: what the fields ask for comes, and what cannot be enforced is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import openai
import pytest
from flashnext.engine.sampling import choice_seed
from pydantic import BaseModel
from support.grammars import compiler
from support.serving import ServerProcess, server_process

MODEL = "tiny-6bit"
ASK: list[Any] = [{"role": "user", "content": "Spell cat."}]
QUICK = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--drafts", "4", "--no-prices") as server:
        yield server


class Point(BaseModel):
    x: int
    kind: Literal["a", "b"]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS: list[Any] = [
    tool("a", n={"type": "integer", "minimum": 3, "maximum": 9}),
    tool("b", s={"enum": ["x", "y"]}),
]


def post(server: ServerProcess, path: str = "chat/completions", **body: Any) -> httpx.Response:
    given: dict[str, Any] = {"model": "flashnext", "messages": ASK, "max_tokens": 300, **QUICK, **body}
    if path == "completions":
        given = {"model": "flashnext", "prompt": "x", "max_tokens": 100, **body}
    return httpx.post(f"{server.url}/{path}", json=given, timeout=120)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop", response.text
    found: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return found


@pytest.mark.parametrize("thinking", [False, True])
def test_the_official_client_parses_a_model(client: openai.OpenAI, thinking: bool) -> None:
    extra: dict[str, Any] = {"thinking_budget": 10} if thinking else QUICK
    parsed = client.chat.completions.parse(
        model="flashnext", messages=ASK, response_format=Point, max_tokens=2000, seed=3, extra_body=extra
    )
    assert isinstance(parsed.choices[0].message.parsed, Point)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"guided_regex": r"\d{3}-\d{3}"}, r"\d{3}-\d{3}"),
        ({"guided_choice": ["alpha", "beta"]}, "alpha|beta"),
        ({"guided_json": '{"enum": [17]}'}, "17"),
        ({"guided_grammar": 'start: "<" /[a-c]{2}/ ">"'}, "<[a-c]{2}>"),
        ({"structured_outputs": {"regex": "z{5}"}}, "z{5}"),
        ({"structured_outputs": {"json": {"const": None}}}, "null"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "boolean"}}}},
            "true|false",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_reply_matches_what_was_asked_for(
    server: ServerProcess, path: str, asked: Any, pattern: str
) -> None:
    for seed in range(3):
        assert re.fullmatch(pattern, text_of(post(server, path, seed=seed, temperature=2, **asked)))


def test_json_object_without_being_told_of_json_has_bounded_white_space(server: ServerProcess) -> None:
    for seed in range(4):
        how: dict[str, Any] = {
            "response_format": {"type": "json_object"},
            "seed": seed,
            "temperature": 1.2,
            "max_tokens": 150,
        }
        choice = post(server, **how).json()["choices"][0]
        text = choice["message"]["content"]
        assert text.startswith("{")
        assert not re.search(r"\s{35}", re.sub(r'"(?:[^"\\]|\\.)*("|$)', '""', text)), text
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)


def chosen(client: openai.OpenAI, given: dict[str, Any], *, stream: bool) -> Any:
    """The choice of a reply, also where the package puts it together from a stream."""
    if not stream:
        return client.chat.completions.create(**given).choices[0]
    with client.chat.completions.stream(**given) as events:
        return events.get_final_completion().choices[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "b"])
def test_a_tool_is_called_where_it_has_to_be(client: openai.OpenAI, choice: str, stream: bool) -> None:
    asked: Any = choice if choice == "required" else {"type": "function", "function": {"name": choice}}
    given: Any = {
        "model": "flashnext", "messages": ASK, "tools": TOOLS, "tool_choice": asked, "seed": 5,
        "temperature": 1.5, "parallel_tool_calls": False, "extra_body": {"thinking_budget": 6},
    }  # fmt: skip
    final = chosen(client, given, stream=stream)
    assert final.finish_reason == "tool_calls" and not final.message.content
    [call] = final.message.tool_calls
    values = json.loads(call.function.arguments)
    assert call.function.name in (("a", "b") if choice == "required" else (choice,))
    assert values["s"] in "xy" if call.function.name == "b" else 3 <= values["n"] <= 9


def test_four_choices_with_drafts_equal_four_requests_with_their_seeds(server: ServerProcess) -> None:
    how: dict[str, Any] = {"guided_regex": "([a-z]{2,5} ){6}", "temperature": 1.3, "seed": 8}
    four = post(server, n=4, **how).json()["choices"]
    for choice in four:
        seed = choice_seed(8, choice["index"])
        alone = post(server, **{**how, "seed": seed, "draft": False, "cache": False}).json()["choices"][0]
        assert alone["message"]["content"] == choice["message"]["content"]
        assert alone["flashnext"]["token_sha"] == choice["flashnext"]["token_sha"]
    assert len({choice["flashnext"]["token_sha"] for choice in four}) > 1


def test_plain_and_structured_streams_go_together(client: openai.OpenAI) -> None:
    def say(extra: dict[str, Any]) -> str:
        stream = client.chat.completions.create(
            model="flashnext", messages=ASK, seed=4, max_tokens=80, stream=True, extra_body={**QUICK, **extra}
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    alone = say({})
    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(say, [{}, {"guided_regex": "[a-z]{60}"}] * 3))
    assert told[::2] == [alone] * 3
    assert told[1] == told[3] == told[5] and re.fullmatch("[a-z]{60}", told[1])


def test_a_cut_reply_says_length(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}
    choice = post(server, guided_json=schema, max_tokens=5).json()["choices"][0]
    assert choice["finish_reason"] == "length" and '{"value":'.startswith(choice["message"]["content"][:8])


@pytest.mark.parametrize(
    ("schema", "strict", "words"),
    [
        ({"type": "strng"}, False, "at /type: "),
        ({"properties": {"a": {"$ref": "#/$defs/no"}}}, False, "at /properties/a/$ref: "),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, True, "at /additionalProperties: "),
        ({"type": "string", "pattern": "^(?=.*\\d).+$"}, False, "look-around"),
    ],
)
def test_a_refusal_names_the_place_by_json_pointer(
    server: ServerProcess, schema: Any, strict: bool, words: str
) -> None:
    for stream in (False, True):
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "strict": strict, "schema": schema}}
        response = post(server, response_format=wanted, stream=stream)
        error = response.json()["error"]
        assert response.status_code == 400 and error["param"] == "response_format.json_schema.schema"
        assert words in error["message"], error


def test_a_schema_that_is_nested_deep_is_refused_and_the_server_goes_on(server: ServerProcess) -> None:
    schema: Any = "{}"
    for levels in (70, 120, 10_000):
        schema = '{"type":"array","items":' * levels + "{}" + "}" * levels
        body = f'{{"model":"flashnext","messages":[{{"role":"user","content":"x"}}],"guided_json":{schema}}}'
        headers = {"content-type": "application/json"}
        response = httpx.post(f"{server.url}/chat/completions", content=body, headers=headers, timeout=60)
        assert response.status_code == 400, response.text
    tree = {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}}}
    assert post(server, guided_json=tree, seed=1).status_code == 200


def test_a_reply_tells_of_its_drafts(server: ServerProcess) -> None:
    choice = post(server, guided_choice=["the same the same the same the same"]).json()["choices"][0]
    assert choice["flashnext"]["drafts"]["accepted"] > 0


def test_responses_and_messages_ask_for_the_same(server: ServerProcess) -> None:
    """The same schema and the same calls by the fields of the other routes."""
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [3]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "n", "strict": True, "schema": schema}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    url = server.url
    given = {"model": "flashnext", "input": "x", "text": {"format": form}, "seed": 1, **off}
    response = httpx.post(f"{url}/responses", json=given, timeout=60).json()
    assert json.loads(response["output"][-1]["content"][0]["text"]) == {"n": 3}
    given = {"model": "flashnext", "messages": ASK, "max_tokens": 99, "seed": 1}
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = httpx.post(f"{url}/messages", json={**given, "output_config": config}, timeout=60).json()
    assert json.loads(message["content"][0]["text"]) == {"n": 3}
    tools = [{"name": "f", "input_schema": schema}]
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        asked = {**given, "tools": tools, "tool_choice": {**choice, "disable_parallel_tool_use": True}}
        message = httpx.post(f"{url}/messages", json=asked, timeout=60).json()
        assert [(block["type"], block["input"]) for block in message["content"]] == [("tool_use", {"n": 3})]
        assert message["stop_reason"] == "tool_use"


# --- tools that may be called beside a form of the text

FORM = {
    "type": "object",
    "properties": {"n": {"enum": [3, 4]}},
    "required": ["n"],
    "additionalProperties": False,
}


def biased(calls: bool) -> dict[str, Any]:
    """Make a reply call, or not."""
    opening = compiler().vocabulary.control_ids["<tool_call>"]
    return {"logit_bias": {str(opening): 100 if calls else -100}, "temperature": 1, "seed": 2}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("calls", [False, True])
def test_a_reply_calls_a_tool_or_has_the_form_in_chats(
    client: openai.OpenAI, calls: bool, stream: bool
) -> None:
    schema = {"name": "n", "strict": True, "schema": FORM}
    given: Any = {
        "model": "flashnext", "messages": ASK, "tools": TOOLS, "max_tokens": 300,
        "response_format": {"type": "json_schema", "json_schema": schema},
        "extra_body": {**QUICK, **biased(calls)},
    }  # fmt: skip
    final = chosen(client, given, stream=stream)
    if calls:
        assert final.finish_reason == "tool_calls" and not final.message.content
        for call in final.message.tool_calls:
            values = json.loads(call.function.arguments)
            assert values["s"] in "xy" if call.function.name == "b" else 3 <= values["n"] <= 9
    else:
        assert final.finish_reason == "stop" and not final.message.tool_calls
        assert json.loads(final.message.content)["n"] in (3, 4)


@pytest.mark.parametrize("calls", [False, True])
def test_a_reply_calls_a_tool_or_has_the_form_in_responses_and_messages(
    server: ServerProcess, calls: bool
) -> None:
    form = {"type": "json_schema", "name": "n", "strict": True, "schema": FORM}
    plain = [one["function"] for one in TOOLS]
    given = {
        "model": "flashnext", "input": "x", "text": {"format": form}, **QUICK, **biased(calls),
        "tools": [{"type": "function", **one} for one in plain], "max_output_tokens": 300,
    }  # fmt: skip
    response = httpx.post(f"{server.url}/responses", json=given, timeout=60).json()
    kinds = {item["type"] for item in response["output"]}
    assert kinds == ({"function_call"} if calls else {"message"})
    if not calls:
        assert json.loads(response["output"][0]["content"][0]["text"])["n"] in (3, 4)
    given = {
        "model": "flashnext", "messages": ASK, "max_tokens": 300, **biased(calls),
        "output_config": {"format": {"type": "json_schema", "schema": FORM}},
        "tools": [{"name": one["name"], "input_schema": one["parameters"]} for one in plain],
    }  # fmt: skip
    message = httpx.post(f"{server.url}/messages", json=given, timeout=60).json()
    assert {block["type"] for block in message["content"]} == ({"tool_use"} if calls else {"text"})
    if not calls:
        assert json.loads(message["content"][0]["text"])["n"] in (3, 4)


def test_a_call_that_has_to_be_made_leaves_no_room_for_the_form(server: ServerProcess) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": FORM}}
    how: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "response_format": form, "seed": 1}
    with_form = post(server, **how).json()["choices"][0]
    del how["response_format"]
    assert with_form["message"]["tool_calls"][0]["function"]["name"] in ("a", "b")
    assert (
        with_form["flashnext"]["token_sha"]
        == post(server, **how).json()["choices"][0]["flashnext"]["token_sha"]
    )


@pytest.mark.parametrize("route", ["responses", "messages"])
def test_every_route_tells_of_its_windows_with_drafts(server: ServerProcess, route: str) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"const": "the same the same the same the same"}}
    given: dict[str, Any] = {"model": "flashnext", "seed": 1}
    if route == "responses":
        given |= {"input": "x", "text": {"format": form}, **QUICK}
    else:
        given |= {"messages": ASK, "max_tokens": 99, "output_config": {"format": form}}
    for stream in (False, True):
        response = httpx.post(f"{server.url}/{route}", json={**given, "stream": stream}, timeout=60)
        told = response.json() if not stream else None
        if stream:
            events = [
                json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")
            ]
            last = next(e for e in reversed(events) if e["type"] != "message_stop")
            told = last.get("response", last)
            assert all("metrics" not in e.get("response", e) for e in events if e is not last)
        assert told is not None
        steps, drafts = told["metrics"]["speculative_decoding"], told["flashnext"]["drafts"]
        kept = steps["acceptance_histogram"]
        assert sum(kept) == steps["num_spec_steps"] > 0
        assert sum(n * times for n, times in enumerate(kept)) == drafts["accepted"] > 0
    none = httpx.post(f"{server.url}/{route}", json={**given, "draft": False}, timeout=60).json()
    assert "metrics" not in none
