"""docs/api.md has every field of every route, as the server treats it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx
import pytest
from flashnext.server.chat_request import ChatRequest
from flashnext.server.completion_request import CompletionRequest
from flashnext.server.errors import TABLE
from flashnext.server.fields import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    MESSAGE,
    MESSAGES,
    MESSAGES_COUNT,
    RESPONSES,
    RESPONSES_COUNT,
    TOKENIZE,
    Rule,
    Table,
)
from flashnext.server.messages_blocks import BLOCKS
from flashnext.server.messages_request import MessagesCount, MessagesRequest
from flashnext.server.responses_items import ITEMS
from flashnext.server.responses_request import TOOL, ResponsesCount, ResponsesRequest
from flashnext.server.tokens import Detokenize, Tokenize
from openai.types import completion_create_params, responses
from openai.types.chat import (
    ChatCompletionFunctionMessageParam,
    ChatCompletionMessage,
    ChatCompletionMessageParam,
)
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.responses.response_input_item_param import FunctionCallOutput
from pydantic import ValidationError
from support.serving import ServerProcess

DOCS = Path(__file__).parents[2] / "docs"
API = (DOCS / "api.md").read_text(encoding="utf-8")
ROUTES: dict[str, Table] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": RESPONSES_COUNT,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES_COUNT,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
MODELS: dict[str, Any] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/input_tokens": ResponsesCount,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": MessagesCount,
    "/tokenize": Tokenize,
    "/detokenize": Detokenize,
}
REFUSED = [
    (route, name, rule.neutral)
    for route, table in ROUTES.items()
    for name, rule in table.items()
    if rule.kind == "refused"
]
HARMLESS = [
    (r, name) for r, table in ROUTES.items() for name, rule in table.items() if rule.kind == "harmless"
]
CONVERSATION = [{"role": "user", "content": "What is 3 + 4?"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny-6bit", "messages": CONVERSATION, "max_tokens": 1},
    "/v1/completions": {"model": "tiny-6bit", "prompt": "a", "max_tokens": 1},
    "/v1/responses": {"model": "tiny-6bit", "input": "a", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "a"},
    "/v1/messages": {"model": "tiny-6bit", "messages": CONVERSATION, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "tiny-6bit", "messages": CONVERSATION},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
}


def rows_of(heading: str) -> dict[str, str]:
    """The table under a heading: each field's name and what happens to it."""
    section = API.split(f"### {heading}\n")[1].split("\n#")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE))


@pytest.mark.parametrize("route", ROUTES)
def test_the_documented_fields_are_those_of_the_table(route: str) -> None:
    assert rows_of(f"POST {route}") == {name: rule.kind for name, rule in ROUTES[route].items()}


def test_the_documented_fields_of_a_message_are_those_of_the_table() -> None:
    assert rows_of("A message") == {name: rule.kind for name, rule in MESSAGE.items()}


def test_every_field_of_a_message_that_the_openai_package_knows_is_in_the_table() -> None:
    for kind in get_args(ChatCompletionMessageParam):
        assert set(kind.__annotations__) <= set(MESSAGE) or kind is ChatCompletionFunctionMessageParam
    assert set(ChatCompletionMessage.model_fields) <= set(MESSAGE)


@pytest.mark.parametrize(("name", "rule"), MESSAGE.items())
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_field_of_a_message_is_treated_as_the_table_says(
    role: str, name: str, rule: Rule, server: ServerProcess
) -> None:
    url = f"{server.url}/chat/completions"
    for value in ({"a": 1}, None):
        message = {"role": role, "content": "x", name: value}
        response = httpx.post(url, json={**BODIES["/v1/chat/completions"], "messages": [message]}, timeout=60)
        if value is not None and rule.kind == "refused":
            assert response.status_code == 400
            assert response.json()["error"]["param"] == f"messages[0].{name}"
        elif rule.kind == "harmless" or (value is None and name not in ("role", "content")):
            assert response.status_code == 200


USED: dict[str, tuple[str, Any]] = {  # a role, and a value that is not what its absence means
    "role": ("system", "system"),
    "content": ("user", "y"),
    "refusal": ("assistant", "no"),
    "reasoning_content": ("assistant", "hm"),
    "reasoning": ("assistant", "hm"),
    "tool_calls": (
        "assistant",
        [{"id": "1", "function": {"name": "f", "arguments": "{}"}, "type": "function"}],
    ),
}


def test_every_honoured_field_of_a_message_changes_the_prompt(server: ServerProcess) -> None:
    def prompt_of(message: dict[str, Any]) -> list[int]:
        messages = [{"role": "user", "content": "x"}, message, {"role": "user", "content": "z"}]
        messages = messages[1:] if message["role"] == "system" else messages
        options = {"chat_template_kwargs": {"preserve_thinking": True}, "return_token_ids": True}
        body = {**BODIES["/v1/chat/completions"], **options, "messages": messages}
        response = httpx.post(f"{server.url}/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        ids: list[int] = response.json()["prompt_token_ids"]
        return ids

    assert set(USED) == {name for name, rule in MESSAGE.items() if rule.kind == "honoured"}
    for name, (role, value) in USED.items():
        plain: dict[str, Any] = {"role": role, "content": None if name == "refusal" else "x"}
        without = {**plain, "role": "user"} if name == "role" else plain
        assert prompt_of({**plain, name: value}) != prompt_of(without), name


def test_a_field_is_honoured_where_the_request_has_it_and_only_there() -> None:
    for route, table in ROUTES.items():
        honoured = {name for name, rule in table.items() if rule.kind == "honoured"}
        assert set(MODELS[route].model_fields) == honoured, route


def test_a_list_that_is_wrong_throughout_is_one_error() -> None:
    # One for each element would take gigabytes for a body that may be sent.
    for model in MODELS.values():
        lists = [name for name in model.model_fields if "list[" in str(model.model_fields[name].annotation)]
        for name in lists:
            with pytest.raises(ValidationError) as refused:
                model.model_validate({name: [object()] * 60, "no such field": 1})
            assert sum(error["loc"][0] == name for error in refused.value.errors()) <= 1, (model, name)
    assert lists


def test_every_field_that_the_openai_package_sends_is_in_a_table() -> None:
    for params, table in ((chat_params, CHAT), (completion_create_params, COMPLETIONS)):
        assert set(params.CompletionCreateParamsBase.__annotations__) | {"stream"} <= set(table)
    assert set(ResponseCreateParamsBase.__annotations__) | {"stream"} <= set(RESPONSES)
    assert set(InputTokenCountParams.__annotations__) <= set(RESPONSES_COUNT)


def test_every_field_of_an_item_that_the_openai_package_knows_is_known() -> None:
    for kind, known in (
        (responses.EasyInputMessageParam, ITEMS["message"]),
        (responses.ResponseOutputMessageParam, ITEMS["message"]),
        (responses.ResponseReasoningItemParam, ITEMS["reasoning"]),
        (responses.ResponseFunctionToolCallParam, ITEMS["function_call"]),
        (FunctionCallOutput, ITEMS["function_call_output"]),
        (responses.FunctionToolParam, TOOL),
    ):
        assert set(get_type_hints(kind)) <= set(known), kind


def test_the_documented_items_and_blocks_are_those_that_are_read() -> None:
    for heading, kinds in (("An item", ITEMS), ("A block", BLOCKS)):
        section = API.split(f"### {heading}\n")[1].split("\n#")[0]
        assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) - {"type"} == set(kinds)


@pytest.mark.parametrize(("route", "name", "neutral"), REFUSED, ids=[f"{r} {n}" for r, n, _ in REFUSED])
def test_a_refused_field_is_named_and_its_neutral_values_are_served(
    route: str, name: str, neutral: tuple[Any, ...], server: ServerProcess
) -> None:
    url = server.url.removesuffix("/v1") + route
    values: tuple[Any, ...] = ("something", {"a": 1}, [1], 7, False)
    for value in (value for value in values if value not in neutral):
        error = httpx.post(url, json={**BODIES[route], name: value}, timeout=60)
        assert error.status_code == 400
        assert error.json()["error"]["message"].startswith(f"{name}: ")
        assert error.json()["error"].get("param", name) == name
    for value in (*neutral, None):
        assert httpx.post(url, json={**BODIES[route], name: value}, timeout=60).status_code == 200


@pytest.mark.parametrize(("route", "name"), HARMLESS)
def test_a_harmless_field_is_taken_whatever_it_says(route: str, name: str, server: ServerProcess) -> None:
    url = server.url.removesuffix("/v1") + route
    for value in (False, "x", {"a": [1]}):
        assert httpx.post(url, json={**BODIES[route], name: value}, timeout=60).status_code == 200


def test_every_status_and_code_of_errors_is_documented() -> None:
    table = API.split("## Errors")[1]
    for _, status, error_type, code in TABLE:
        lines = [
            line for line in table.splitlines() if line.startswith(f"| {status} ") and error_type in line
        ]
        assert any(code is None or f"`{code}`" in line for line in lines), (status, code)
