"""Responses and messages in the record and under --strict-fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from flashnext import Engine
from flashnext.server import chat_form, messages_response
from flashnext.server.record import Record
from flashnext.text.parser import ToolCall
from support.serving import ServerProcess, ServerThread, server_process

QUESTION: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
PLAIN: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": "flashnext", "input": "What is 3 + 4?", "max_output_tokens": 30},
    "/v1/messages": {"model": "flashnext", "messages": QUESTION, "max_tokens": 30, "temperature": 1},
}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("record") / "record.jsonl"


@pytest.fixture(scope="module")
def server(record: Path) -> Iterator[ServerProcess]:
    with server_process("--context", "1024", "--record", str(record), "--strict-fields") as server:
        yield server


def send(server: ServerProcess, route: str, **more: Any) -> httpx.Response:
    return httpx.post(server.url.removesuffix("/v1") + route, json={**PLAIN[route], **more}, timeout=60)


def test_what_was_recorded_is_answered_again_also_what_went_on_from_a_kept_response(
    server: ServerProcess, record: Path
) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    first = send(server, "/v1/responses", instructions="Be brief.", tools=tools, seed=5)
    again = send(server, "/v1/responses", previous_response_id=first.json()["id"], input="And 1 + 1?")
    message = send(server, "/v1/messages", thinking={"type": "adaptive"}, stop_sequences=["7"])
    with Engine(context=1024) as engine:
        for response in (first, again, message):
            assert response.status_code == 200, response.text
            found = Record.find(record, response.headers["x-request-id"])
            assert list(found.replay(engine)) == found.token_shas
            assert found.token_shas == [response.json()["flashnext"]["token_sha"]]
    last = json.loads(record.read_text().splitlines()[1])["body"]
    assert last["previous_response_id"] is None and len(last["input"]) > 2


def content(kind: str, **more: Any) -> list[Any]:
    return [{"role": "user", "content": [{"type": kind, "text": "x", **more}]}]


@pytest.mark.parametrize(
    ("route", "more", "field"),
    [
        ("/v1/responses", {"temprature": 1}, "temprature"),
        ("/v1/responses", {"reasoning": {"efort": "low"}}, "reasoning.efort"),
        ("/v1/responses", {"text": {"fromat": 1}}, "text.fromat"),
        ("/v1/responses", {"input": [{"role": "user", "content": "x", "nmae": 1}]}, "input[0].nmae"),
        ("/v1/responses", {"input": content("input_text", txt=1)}, "input[0].content[0].txt"),
        ("/v1/responses", {"tools": [{"name": "f", "schema": {}}]}, "tools[0].schema"),
        ("/v1/messages", {"temprature": 1}, "temprature"),
        ("/v1/messages", {"thinking": {"type": "disabled", "budget": 1}}, "thinking.budget"),
        ("/v1/messages", {"tool_choice": {"type": "auto", "mode": 1}}, "tool_choice.mode"),
        ("/v1/messages", {"messages": [{**QUESTION[0], "nmae": 1}]}, "messages[0].nmae"),
        ("/v1/messages", {"messages": content("text", txt=1)}, "messages[0].content[0].txt"),
        ("/v1/messages", {"system": [{"type": "text", "text": "x", "txt": 1}]}, "system[0].txt"),
        ("/v1/messages", {"tools": [{"name": "f", "parameters": {}}]}, "tools[0].parameters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unknown_field_is_refused_by_its_place(
    route: str, more: dict[str, Any], field: str, server: ServerProcess
) -> None:
    response = send(server, route, **more)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"].startswith(f"{field}: unknown field")


@pytest.mark.parametrize("route", PLAIN)
def test_a_known_field_that_has_no_effect_is_no_unknown_one(route: str, server: ServerProcess) -> None:
    more: dict[str, dict[str, Any]] = {
        "/v1/responses": {
            "reasoning": {"summary": "auto", "context": "auto"},
            "input": content("input_text", prompt_cache_breakpoint={"mode": "explicit"}),
            "tools": [{"type": "function", "name": "f", "strict": False, "defer_loading": False}],
        },
        "/v1/messages": {
            "messages": content("text", cache_control={"type": "ephemeral"}, citations=[]),
            "tools": [{"name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral"}}],
        },
    }
    assert send(server, route, **more[route]).status_code == 200


def test_a_reply_is_told_though_its_request_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Record, path: Path) -> None:
        "\ud83d".encode()

    monkeypatch.setattr(Record, "append_to", fail)
    server = ServerThread(record=tmp_path / "record.jsonl")
    try:
        url = f"http://127.0.0.1:{server.port}/v1/messages"
        body = {**PLAIN["/v1/messages"], "model": "tiny", "max_tokens": 1}
        assert httpx.post(url, json=body, timeout=60).status_code == 200
    finally:
        server.close()
    assert any("could not be recorded" in message for message in caplog.messages)


def test_half_a_surrogate_pair_in_arguments_can_be_written_again() -> None:
    arguments = '{"a\\ud83d": "\\ud83d"}'
    told = messages_response._input(ToolCall(name="f", arguments=arguments))
    assert told == chat_form.arguments_in(arguments, "x") == {"a\ufffd": "\ufffd"}
