"""/v1/messages as Anthropic's clients send it, over plain HTTP: blocks, tools, thinking, refusals."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.serving import ServerProcess, ServerThread

MODEL = "tiny-6bit"
QUESTION: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
PLAIN: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "messages": QUESTION, "temperature": 0}
THINKS: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 50}}


def send(server: ServerProcess, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/messages", json={**PLAIN, **more}, timeout=60)


def ask(server: ServerProcess, **more: Any) -> Any:
    response = send(server, **more)
    assert response.status_code == 200, response.text
    return response.json()


def prompt_of(server: ServerProcess, messages: Any, **more: Any) -> list[int]:
    ids: list[int] = ask(server, messages=messages, max_tokens=1, return_token_ids=True, **more)[
        "prompt_token_ids"
    ]
    return ids


def chat_prompt_of(server: ServerProcess, messages: Any) -> list[int]:
    off = {"chat_template_kwargs": {"enable_thinking": False}, "return_token_ids": True}
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, **off}
    ids: list[int] = httpx.post(f"{server.url}/chat/completions", json=body, timeout=60).json()[
        "prompt_token_ids"
    ]
    return ids


def test_a_question_is_answered_without_thoughts_unless_they_are_asked_for(server: ServerProcess) -> None:
    for off in ({}, {"thinking": {"type": "disabled"}}, {"output_config": {"effort": "low"}}):
        message = ask(server, **off)
        assert message["content"] == [{"type": "text", "text": "3 + 4 = 7"}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    assert message["id"].startswith("msg_")
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    for on in (THINKS, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}):
        thoughts, text = ask(server, **on)["content"]
        assert thoughts["thinking"] == "3 + 4 = 7. So 3 + 4 = 7." and thoughts["signature"]
        assert text == {"type": "text", "text": "3 + 4 = 7"}


def test_a_budget_closes_the_thoughts(server: ServerProcess) -> None:
    message = ask(server, thinking={"type": "enabled", "budget_tokens": 4})
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] <= 8
    assert message["content"][0]["thinking"].startswith("3 + 4")


def test_a_request_as_claude_code_sends_it_is_served(server: ServerProcess) -> None:
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    response = httpx.post(
        f"{server.url}/messages?beta=true",
        headers={
            "x-api-key": "none",
            "authorization": "Bearer none",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
            "x-stainless-lang": "js",
        },
        json={
            "model": MODEL,
            "max_tokens": 32000,
            "temperature": 1,
            "stream": True,
            "system": [{"type": "text", "text": "You are a tool."},
                       {"type": "text", "text": "Be brief.", **cached}],
            "messages": [
                {"role": "user", "content": [
                    {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                    {"type": "text", "text": "What is 3 + 4?", **cached}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "abc"},
                    {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a"}},
                    {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": True},
                    {"type": "tool_result", "tool_use_id": "toolu_1",
                     "content": [{"type": "text", "text": "7"}], **cached},
                    {"type": "text", "text": "Go on."}]},
            ],
            "tools": [{"name": "Read", "description": "Reads.", "input_schema": {"type": "object"},
                       "eager_input_streaming": True, **cached}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
            "thinking": {"type": "enabled", "budget_tokens": 31999},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "metadata": {"user_id": "user_1"},
        },
        timeout=120,
    )  # fmt: skip
    assert response.status_code == 200, response.text
    assert response.text.startswith("event: message_start\n")
    assert response.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_results_come_in_the_order_of_their_calls_and_errors_say_so(server: ServerProcess) -> None:
    calls = [{"type": "tool_use", "id": i, "name": "f", "input": {"x": i}} for i in "ab"]
    results = [
        {"type": "tool_result", "tool_use_id": "b", "content": "second"},
        {"type": "tool_result", "tool_use_id": "a", "is_error": True},
        {"type": "text", "text": "Go "},
        {"type": "text", "text": "on."},
    ]
    given = [
        *QUESTION,
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
        {"role": "system", "content": [{"type": "text", "text": "Late."}]},
        {"role": "user", "content": []},
    ]
    chat = [
        *QUESTION,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"x": i}}} for i in "ab"
            ],
        },
        {"role": "tool", "content": "Error: "},
        {"role": "tool", "content": "second"},
        {"role": "user", "content": "Go on."},
        {"role": "system", "content": "Late."},
        {"role": "user", "content": ""},
    ]
    assert prompt_of(server, given) == chat_prompt_of(server, chat)


def test_what_a_message_would_read_is_counted(server: ServerProcess) -> None:
    tools = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    for more in ({}, THINKS, {"system": "Be brief.", "tools": tools}):
        body = {"model": MODEL, "messages": QUESTION, **more}
        counted = httpx.post(f"{server.url}/messages/count_tokens", json=body, timeout=60)
        assert counted.json() == {"input_tokens": ask(server, **more)["usage"]["input_tokens"]}


def content(*blocks: Any, role: str = "user") -> dict[str, Any]:
    last = [] if role == "user" else QUESTION
    return {"messages": [{"role": role, "content": list(blocks)}, *last]}


SERVER_TOOL = {"type": "web_search_20250305", "name": "web_search"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages: should not be empty"),
    ({"messages": None}, "messages: missing"),
    ({"messages": [5]}, "messages[0]: should be an object"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: expected one of user, assistant"),
    ({"messages": [{"role": "user"}]}, "messages[0].content: expected a list of objects, found None"),
    ({"messages": [*QUESTION, {"role": "assistant", "content": "It is"}]}, "messages[1]: the last message"),
    ({"max_tokens": None}, "max_tokens: missing"),
    ({"max_tokens": 0}, "max_tokens: should be greater than or equal to 1"),
    ({"system": 5}, "system: expected text or a list of blocks, found 5"),
    ({"system": [{"type": "image"}]}, "system[0].type: 'image' cannot stand here"),
    (content({"type": "image", "source": {"type": "file", "file_id": "x"}}),
     "messages[0].content[0].source.type: no files are kept here"),
    (content({"type": "image", "source": {"type": "base64", "data": 5}}),
     "messages[0].content[0].source.data: expected text, found 5"),
    (content({"type": "image", "source": "x"}), "messages[0].content[0].source: expected an object"),
    (content({"type": "image"}, role="assistant"), "messages[0].content[0].type: 'image' cannot stand here"),
    (content({"type": "document", "source": {}}), "messages[0].content[0].type: 'document' is not read here"),
    (content({"type": "search_result"}), "messages[0].content[0].type: 'search_result' is not"),
    (content({"type": "tool_use", "id": "1", "name": "f", "input": {}}), "messages[0].content[0].type: "),
    (content({"type": "tool_result", "content": "x"}), "messages[0].content[0].tool_use_id: expected text"),
    (content({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}),
     "messages[0].content[0].content[0].source: expected an object"),
    (content({"type": "tool_result", "tool_use_id": "1", "is_error": "no"}),
     "messages[0].content[0].is_error: expected true or false"),
    (content({"type": "text"}), "messages[0].content[0].text: expected text, found None"),
    (content({"type": "server_tool_use", "id": "1"}, role="assistant"), "messages[0].content[0].type: "),
    (content({"type": "tool_use", "id": "1", "name": "a b", "input": {}}, role="assistant"),
     "messages[0].content[0].name: expected 1 to 256"),
    (content({"type": "tool_use", "id": "1", "name": "f", "input": "x"}, role="assistant"),
     "messages[0].content[0].input: expected an object"),
    ({"tools": [SERVER_TOOL]}, "tools[0].type: this server runs no tools; expected 'custom', found 'web"),
    ({"tools": [{"name": "f", "input_schema": 5}]}, "tools[0].input_schema: expected a JSON schema"),
    ({"tools": [{"name": "f"}, {"name": "f"}]}, "tools[1].name: 'f' stands twice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: a call is required, and there are no tools"),
    ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice: 'f' is not one of the tools"),
    ({"tool_choice": {}}, "tool_choice.type: expected one of auto, any, tool, none"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type: expected one of enabled, adaptive, disabled"),
    ({"thinking": {}}, "thinking.type: expected"),
    ({"thinking": {"type": ["enabled"]}}, "thinking.type: expected"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: expected a whole number from 0, found None"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens: expected"),
    ({"thinking": {"type": "adaptive", "display": "x"}}, "thinking.display: expected one of summarized"),
    ({"output_config": {"effort": "none"}}, "output_config.effort: expected one of low"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
     "output_config.format.schema: at /not: "),
    ({"stop_sequences": [""]}, "stop_sequences[0]: expected text of 1 to"),
    ({"stop_sequences": [5]}, "stop_sequences[0]: expected text of 1 to"),
    ({"stop_sequences": "x"}, "stop_sequences: should be a list"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "words"), REFUSED, ids=[row[1][:50] for row in REFUSED])
def test_what_cannot_be_is_refused_with_its_place(
    more: dict[str, Any], words: str, server: ServerProcess
) -> None:
    response = send(server, **more)
    assert response.status_code == 400, response.text
    told = response.json()
    assert told["type"] == "error" and told["error"]["type"] == "invalid_request_error"
    assert told["error"]["message"].startswith(words)
    assert told["request_id"] == response.headers["request-id"]


def test_every_error_has_the_types_of_the_route() -> None:
    server = ServerThread(api_keys=("sesame",), max_queue=0, max_body_bytes=1000)
    url = f"http://127.0.0.1:{server.port}/v1/messages"
    key = {"x-api-key": "sesame"}
    body = {**PLAIN, "model": "tiny"}
    try:
        found = {
            "authentication_error": httpx.post(url, json=body, timeout=60),
            "permission_error": httpx.post(
                url, json=body, headers={**key, "host": "evil.example"}, timeout=60
            ),
            "not_found_error": httpx.post(url, json={**body, "model": "x"}, headers=key, timeout=60),
            "request_too_large": httpx.post(
                url, json={**body, "system": "x" * 2000}, headers=key, timeout=60
            ),
            "invalid_request_error": httpx.get(url, headers=key, timeout=60),
        }
        with server.service.queue.place(1):
            found["overloaded_error"] = httpx.post(url, json=body, headers=key, timeout=60)
        assert int(found["overloaded_error"].headers["retry-after"]) >= 1
        assert httpx.post(url, json=body, headers=key, timeout=60).status_code == 200
        assert (
            httpx.post(url, json=body, headers={"authorization": "Bearer sesame"}, timeout=60).status_code
            == 200
        )
    finally:
        server.close()
    assert {kind: r.status_code for kind, r in found.items()} == {
        "authentication_error": 401,
        "permission_error": 403,
        "not_found_error": 404,
        "request_too_large": 413,
        "invalid_request_error": 405,
        "overloaded_error": 503,
    }
    for kind, response in found.items():
        told = response.json()
        assert (told["type"], told["error"]["type"]) == ("error", kind)
        assert told["request_id"] == response.headers["request-id"]
