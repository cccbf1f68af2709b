"""Where errors say that something is wrong: in the request as it came, not in the chat that it becomes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.serving import ServerProcess

MODEL = "tiny-6bit"
USER: Any = {"role": "user", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [USER]},
    "responses": {"input": "x"},
    "messages": {"messages": [USER], "max_tokens": 10},
}
WRONG = {"type": "object", "properties": {"a b: c": {"type": "strng"}}}
RIGHT = {"type": "object", "properties": {"a": {"type": "integer"}}}
OVERLAP = {
    "type": "object",
    "properties": {"a": {"type": "number", "oneOf": [{"type": "integer"}, {"minimum": 2}]}},
}


def tools(route: str, *schemas: Any) -> list[dict[str, Any]]:
    if route == "messages":
        return [{"name": f"f{i}", "input_schema": schema} for i, schema in enumerate(schemas)]
    plain = [{"name": f"f{i}", "parameters": schema} for i, schema in enumerate(schemas)]
    if route == "responses":
        return [{"type": "function", **one} for one in plain]
    return [{"type": "function", "function": one} for one in plain]


def form(route: str, schema: Any) -> dict[str, Any]:
    """Ask for JSON under a schema."""
    if route == "messages":
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    if route == "responses":
        return {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def must(route: str, name: str | None = None) -> Any:
    """Ask for a call: of any tool, or of one."""
    if route == "messages":
        return {"type": "any"} if name is None else {"type": "tool", "name": name}
    if name is None:
        return "required"
    named = {"name": name} if route == "responses" else {"function": {"name": name}}
    return {"type": "function", **named}


def refusal(server: ServerProcess, route: str, **more: Any) -> tuple[str, str]:
    """The place of what is wrong, and what is wrong with it."""
    body = {"model": MODEL, **BODIES[route], **more}
    response = httpx.post(f"{server.url}/{route}", json=body, timeout=60)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    place, _, problem = error["message"].partition(": ")
    assert error.get("param", place) == place
    return place, problem


PARAMETERS = {
    "chat/completions": "function.parameters", "responses": "parameters", "messages": "input_schema"
}  # fmt: skip
SCHEMA = {
    "chat/completions": "response_format.json_schema.schema",
    "responses": "text.format.schema",
    "messages": "output_config.format.schema",
}


@pytest.mark.parametrize("route", BODIES)
def test_a_tool_whose_schema_cannot_be_enforced_is_named_by_its_place(
    route: str, server: ServerProcess
) -> None:
    place = f"tools[1].{PARAMETERS[route]}"
    given = tools(route, RIGHT, WRONG)
    for choice in (must(route), must(route, "f1")):
        found = refusal(server, route, tools=given, tool_choice=choice)
        assert found[0] == place and found[1].startswith("at /properties/a b: c/type: unknown type 'strng'")
    overlap = tools(route, RIGHT, OVERLAP)
    for more in ({"tool_choice": must(route)}, form(route, RIGHT)):
        found = refusal(server, route, tools=overlap, **more)
        assert found[0] == place and found[1].startswith("at /properties/a: the alternatives of oneOf")
    whole = refusal(server, route, tools=tools(route, {}, {"type": "array"}), tool_choice=must(route))
    assert whole == (place, "at /type: the parameters of a function are an object")


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("callable_tools", [False, True])
def test_a_schema_of_the_text_is_named_by_its_place_beside_tools_too(
    callable_tools: bool, route: str, server: ServerProcess
) -> None:
    more = {"tools": tools(route, RIGHT)} if callable_tools else {}
    for schema, words in (
        (WRONG, "at /properties/a b: c/type: unknown type"),
        (OVERLAP, "at /properties/a: the alternatives of oneOf"),
        (False, "nothing is valid under it"),
    ):
        place, problem = refusal(server, route, **form(route, schema), **more)
        assert place == SCHEMA[route] and problem.startswith(words)


KWARGS = {"chat_template_kwargs": {"enable_thinking": True}}
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
THOUGHTS = {"type": "reasoning", "summary": []}
RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({"input": [USER, THOUGHTS, CALL, {**CALL, "arguments": "7"}]}, "input[3].arguments"),
    ({"input": [USER, CALL, {"type": "function_call_output", "call_id": "1", "output": [{"type": "x"}]}]},
     "input[2].output[0].type"),
    ({"instructions": "x", "input": [USER, {"role": "user", "content": [{"type": "input_image"}]}]},
     "input[1].content[0].image_url"),
    ({"input": [USER, {"type": "reasoning", "summary": [{"type": "text", "text": "x"}]}]},
     "input[1].summary[0].type"),
    ({"instructions": 5}, "instructions"),
    ({"reasoning": {"effort": "none"}, **KWARGS}, "reasoning.effort"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x"),
    ({"max_output_tokens": 2**40}, "max_output_tokens"),
    ({"thinking_budget": 2**64}, "thinking_budget"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"text": {"format": 5}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "schema": {}, "strict": 1}}}, "text.format.strict"),
    ({"text": {"format": {"type": "json_object"}}, "ignore_eos": True}, "ignore_eos"),
    ({"tools": [{"type": "function", "name": "f"}, 5]}, "tools[1]"),
    ({"tools": [{"type": "function", "name": "f", "description": 5}]}, "tools[0].description"),
    ({"tool_choice": {"type": "function", "function": 5}, "tools": [{"type": "function", "name": "f"}]},
     "tool_choice"),
    ({"include": ["x"]}, "include[0]"),
    ({"metadata": {"a": 5}}, "metadata.a"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
]  # fmt: skip
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"system": "x", "messages": [USER, {"role": "user", "content": [{"type": "text", "text": "x"}, 5]}]},
     "messages[1].content[1]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
      "content": [{"type": "text", "text": "x"}, {"type": "text"}]}]}]},
     "messages[0].content[0].content[1].text"),
    ({"system": [{"type": "text", "text": "x"}, {"type": "text"}]}, "system[1].text"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2**64}}, "thinking.budget_tokens"),
    ({"tool_choice": {"type": "tool"}, "tools": [{"name": "f"}]}, "tool_choice.name"),
    ({"tool_choice": {"type": "tool", "name": 5}, "tools": [{"name": "f"}]}, "tool_choice.name"),
    ({"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"},
      "chat_template_kwargs": {"reasoning_effort": "low"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json"}}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"stop_sequences": ["a", 5]}, "stop_sequences[1]"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x"),
    ({"max_tokens": "x"}, "max_tokens"),
]  # fmt: skip
TABLE = [("responses", *row) for row in RESPONSES] + [("messages", *row) for row in MESSAGES]


@pytest.mark.parametrize(("route", "more", "place"), TABLE, ids=[f"{row[0]} {row[2]}" for row in TABLE])
def test_what_is_wrong_is_named_as_the_client_wrote_it(
    route: str, more: dict[str, Any], place: str, server: ServerProcess
) -> None:
    assert refusal(server, route, **more)[0] == place


def test_text_that_is_no_json_is_refused_beside_tools_with_what_to_do(server: ServerProcess) -> None:
    given = {"guided_regex": "a+", "tools": tools("chat/completions", RIGHT)}
    place, problem = refusal(server, "chat/completions", **given)
    assert place == "guided_regex" and 'tool_choice "none"' in problem


HOSTILE: list[Any] = [
    {"format": []},
    {"anyOf": [{}], "items": {"$ref": "#/anyOf/²"}},
    {"enum": [10**400]},
]


@pytest.mark.parametrize("schema", HOSTILE, ids=str)
def test_a_schema_that_is_made_to_do_harm_is_refused_like_any_other(
    schema: Any, server: ServerProcess
) -> None:
    assert refusal(server, "responses", **form("responses", schema))[0] == "text.format.schema"
    given = {"tools": tools("responses", {"properties": {"x": schema}}), "tool_choice": "required"}
    assert refusal(server, "responses", **given)[0] == "tools[0].parameters"


def test_half_a_surrogate_pair_in_a_schema_that_is_text_is_refused(server: ServerProcess) -> None:
    place, problem = refusal(server, "chat/completions", guided_json='{"const": "\\ud800"}')
    assert place == "guided_json" and "surrogate" in problem
