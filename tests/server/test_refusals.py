"""What is refused says so in words of this server, with the field's name, and briefly."""

from __future__ import annotations

import errno
import gzip
import json
import re
import socket
from typing import Any

import httpx
import pytest
from flashnext.engine.sampling import Sampling
from flashnext.server.chat_request import ChatRequest
from flashnext.server.completion_request import CompletionRequest
from flashnext.server.drawing import invalid
from flashnext.server.fields import Unknown
from flashnext.server.messages_request import MessagesRequest
from flashnext.server.responses_request import ResponsesRequest
from flashnext.server.tokens import Detokenize, Tokenize
from flashnext.text.messages import InvalidField
from flashnext.text.written import MAX_CHARS
from pydantic import BaseModel, ValidationError
from support.serving import ServerProcess

CHAT: dict[str, Any] = {
    "model": "tiny-6bit",
    "messages": [{"role": "user", "content": "What is 3 + 4?"}],
    "max_tokens": 1,
}
LONG = "x" * 100_000


def post(server: ServerProcess, body: Any, **headers: str) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **headers}
    return httpx.post(f"{server.url}/chat/completions", content=data, headers=headers, timeout=60)


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return dict(response.json()["error"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"messages": []}, "messages: should not be empty, found []"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids: should have at most 64 items, found 65"),
        ({"stream_options": []}, "stream_options: should be an object, found []"),
        ({"model": ""}, "model: should not be empty, found ''"),
        ({"top_p": 2}, "top_p: should be less than or equal to 1, found 2"),
        ({"top_p": 1e-46}, "top_p: expected a number from above 0 to 1, found 1e-46"),
        (
            {"repetition_penalty": 1e-46},
            "repetition_penalty: expected a number from above 0 to 100, found 1e-46",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_refusal_is_one_sentence_with_the_fields_name(
    changes: dict[str, Any], message: str, server: ServerProcess
) -> None:
    error = error_of(post(server, {**CHAT, **changes}))
    assert (error["message"], error["param"]) == (message, next(iter(changes)))


WRONG: list[Any] = [
    *(
        None,
        True,
        5,
        -(2**70),
        2**70,
        1e300,
        -1e300,
        1.5,
        float("inf"),
        float("nan"),
        "",
        "x",
        [],
        {},
    ),
    *([None], [5.5], ["x"] * 70, [1] * 70, [[]], {"a": 1}, {"include_usage": 5}, {"more": 1}),
]


@pytest.mark.parametrize(
    "model", [ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest, Tokenize, Detokenize]
)
def test_no_error_is_in_the_words_of_the_library(model: type[BaseModel]) -> None:
    told = set()
    for name in model.model_fields:
        for value in WRONG:
            try:
                model.model_validate({name: value})
            except ValidationError as error:
                for one in error.errors(include_url=False):
                    if one["loc"][0] == name and one["type"] != "missing":
                        shown = invalid(ValidationError.from_exception_data("x", [_line(one)])).problem
                        told.add(shown.rpartition(", found ")[0] or shown)
    assert told
    for sentence in told:
        assert not re.search(r"valid|instance|Input|List|String|validation|[{}]|should should", sentence), (
            told
        )


def _line(error: Any) -> Any:
    return {key: error[key] for key in ("type", "loc", "input", "ctx") if key in error}


@pytest.mark.parametrize("name", ["top_p", "repetition_penalty"])
def test_what_rounds_to_zero_in_float32_is_zero(name: str) -> None:
    def drawn(value: float) -> Sampling:
        fields: dict[str, Any] = {name: value}
        return Sampling(**fields)

    smallest = 2.0**-149
    assert getattr(drawn(smallest), name) == smallest
    for zero in (smallest / 2, 1e-46, 5e-324):
        with pytest.raises(InvalidField, match="above 0"):
            drawn(zero)


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"content-encoding": "gzip"}, "'gzip'"),
        ({"content-encoding": "identity, br"}, "'br'"),
        ({"content-type": "application/json; charset=utf-16"}, "'utf-16'"),
        ({"content-type": 'application/json; a=b; Charset="latin-1"'}, "'latin-1'"),
    ],
    ids=str,
)
def test_a_body_in_another_form_is_refused_with_its_name(
    headers: dict[str, str], named: str, server: ServerProcess
) -> None:
    error = error_of(post(server, gzip.compress(json.dumps(CHAT).encode()), **headers), 415)
    assert named in error["message"] and error["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-encoding": "Identity"},
        {"content-type": 'application/json; charset="UTF-8"'},
        {"content-type": "application/json;"},
    ],
    ids=str,
)
def test_a_plain_body_may_say_that_it_is_plain(headers: dict[str, str], server: ServerProcess) -> None:
    assert post(server, CHAT, **headers).status_code == 200


def test_a_byte_order_mark_is_one_sentence(server: ServerProcess) -> None:
    error = error_of(post(server, b"\xef\xbb\xbf" + json.dumps(CHAT).encode()))
    assert error["message"] == (
        "body: expected a JSON object, but it begins with a byte order mark, which JSON has not; leave it out"
    )


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/health", "/health"),
        ("/responses/resp_1", "/v1/responses/resp_1"),
        ("/nowhere", None),
        ("/v1/embeddings", None),
    ],
)
def test_a_path_without_a_route_is_told_the_one_that_is_meant(
    path: str, meant: str | None, server: ServerProcess
) -> None:
    url = f"http://127.0.0.1:{server.port}{path}"
    hint = f"; did you mean {meant}?" if meant else ""
    assert error_of(httpx.post(url, json=CHAT), 404)["message"] == f"POST {path}: Not Found{hint}"


def test_a_model_that_is_not_served_is_told_the_names_and_how_it_gets_one(server: ServerProcess) -> None:
    error = error_of(post(server, {**CHAT, "model": "gpt-4"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["message"] == (
        "model: 'gpt-4' is not served here; this server's model has the names 'tiny-6bit', 'flashnext'; "
        "start it with --served-model-name NAME to give it another"
    )


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("model", "wrong", "told"),
    [
        (ResponsesRequest, "messages", "input: missing; this route reads input, and messages belongs to "
         "/v1/chat/completions and /v1/messages"),
        (ChatRequest, "prompt", "messages: missing; this route reads messages, and prompt belongs to "
         "/v1/completions"),
        (ChatRequest, "input", "messages: missing; this route reads messages, and input belongs to "
         "/v1/responses"),
        (MessagesRequest, "input", "messages: missing; this route reads messages, and input belongs to"),
        (CompletionRequest, "messages", "prompt: missing; this route reads prompt, and messages belongs to"),
        (ResponsesRequest, "prompt", "prompt: there are no templates here; give instructions and input"),
    ],
)  # fmt: skip
def test_what_is_asked_under_the_name_of_another_route_is_told_both_names(
    model: Any, wrong: str, told: str, strict: bool
) -> None:
    with pytest.raises(InvalidField) as refused:
        model.read({"model": "x", wrong: "a"}, Unknown(strict))
    assert str(refused.value).startswith(told)


SCHEMA: dict[str, Any] = {"schema": {"type": "object", "unknown": 1}}
ANSWER = {"type": "json_schema", "json_schema": SCHEMA}
NAMED = {"type": "function", "function": {"name": "f"}}
NESTED: list[tuple[Any, dict[str, Any], str]] = [
    (ChatRequest, {"response_format": {**ANSWER, "strict": True}}, "response_format.strict"),
    (ChatRequest, {"response_format": {**ANSWER, "json_schema": {**SCHEMA, "x": 1}}},
     "response_format.json_schema.x"),
    (ChatRequest, {"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
    (CompletionRequest, {"response_format": {"type": "text", "x": 1}}, "response_format.x"),
    (ChatRequest, {"tool_choice": {**NAMED, "x": 1}}, "tool_choice.x"),
    (ChatRequest, {"tool_choice": {"type": "function", "function": {"name": "f", "x": 1}}},
     "tool_choice.function.x"),
    (ChatRequest, {"stream_options": {"x": 1}}, "stream_options.x"),
    (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
     "messages[0].content[0].x"),
    (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [{**NAMED, "x": 1}]}]},
     "messages[0].tool_calls[0].x"),
    (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "x": 1}}]}]},
     "messages[0].tool_calls[0].function.x"),
    (ResponsesRequest, {"text": {"format": {"type": "json_schema", **SCHEMA, "x": 1}}}, "text.format.x"),
    (ResponsesRequest, {"text": {"x": 1}}, "text.x"),
    (ResponsesRequest, {"reasoning": {"x": 1}}, "reasoning.x"),
    (ResponsesRequest, {"tool_choice": {"type": "function", "name": "f", "x": 1}}, "tool_choice.x"),
    (ResponsesRequest, {"tools": [{"type": "function", "name": "f", "x": 1}]}, "tools[0].x"),
    (ResponsesRequest, {"input": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
     "input[0].content[0].x"),
    (MessagesRequest, {"output_config": {"format": {"type": "json_schema", **SCHEMA, "x": 1}}},
     "output_config.format.x"),
    (MessagesRequest, {"thinking": {"type": "adaptive", "x": 1}}, "thinking.x"),
    (MessagesRequest, {"tool_choice": {"type": "auto", "x": 1}}, "tool_choice.x"),
    (MessagesRequest, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
     "messages[0].content[0].x"),
]  # fmt: skip
PLAIN: dict[Any, dict[str, Any]] = {
    ChatRequest: {"messages": [{"role": "user", "content": "a"}]},
    CompletionRequest: {"prompt": "a"},
    ResponsesRequest: {"input": "a", "tools": [{"type": "function", "name": "f"}]},
    MessagesRequest: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5},
}


@pytest.mark.parametrize(("model", "more", "field"), NESTED, ids=[f"{m.__name__} {f}" for m, _, f in NESTED])
def test_an_unknown_field_at_any_depth_is_warned_of_or_refused_with_its_place(
    model: Any, more: dict[str, Any], field: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"model": "x", **PLAIN[model], **more}
    with pytest.raises(InvalidField, match="unknown field") as refused:
        model.read(body, Unknown(strict=True))
    assert refused.value.field == field
    with caplog.at_level("WARNING"):
        model.read(body, Unknown())
    assert f"the field {re.sub('[0-9]+', '', field)} is unknown" in caplog.text


def test_a_part_that_is_no_text_is_refused_for_that_and_not_for_its_fields() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    ChatRequest.read({"model": "x", "messages": [{"role": "user", "content": [part]}]}, Unknown(strict=True))


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "yaml", "yaml": {}}},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]},
        {"response_format": {"type": "json_schema", "schema": {}, "json_schema": None}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "index": 0, "id": "x"}]}]},
    ],
)
def test_what_is_refused_for_what_it_is_or_known_has_no_unknown_fields(more: dict[str, Any]) -> None:
    ChatRequest.read({"model": "x", **PLAIN[ChatRequest], **more}, Unknown(strict=True))


def user(**message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x", **message}]}


@pytest.mark.parametrize(
    "changes",
    [
        user(role=LONG),
        user(role=[LONG]),
        user(content=[{"type": LONG}]),
        user(role="assistant", tool_calls=[{"function": {"name": LONG}}]),
        {"model": LONG},
        {"stop": {LONG: 1}},
        {"temperature": LONG},
        {"priority": LONG},
        {"tool_choice": LONG},
        {"reasoning_effort": LONG},
        {"logit_bias": {LONG: 1}},
        {"chat_template_kwargs": {LONG: 1}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_refusal_quotes_is_cut(changes: dict[str, Any], server: ServerProcess) -> None:
    response = post(server, {**CHAT, **changes})
    assert error_of(response)["message"] if response.status_code == 400 else response.status_code == 404
    assert len(response.content) < 1500


def test_a_long_key_that_stands_twice_and_a_long_path_are_cut(server: ServerProcess) -> None:
    twice = f'{{"{LONG}": 1, "{LONG}": 2}}'.encode()
    assert len(post(server, twice).content) < 1500
    response = httpx.get(f"{server.url}/{'a' * 30_000}")
    assert response.status_code == 404 and len(response.content) < 1500


# --- what comes before a body


@pytest.mark.parametrize("where", ["header", "headers", "target", "query"])
def test_64_kib_before_the_body_are_read_and_no_more(where: str, server: ServerProcess) -> None:
    for n, fits in ((60_000, True), (66_000, False), (200_000, False)):
        headers = {"x-long": "a" * n} if where == "header" else {}
        headers |= {f"x-{i}": "a" * (n // 100) for i in range(100)} if where == "headers" else {}
        path = {"target": "/" + "a" * n, "query": "?" + "a" * n}.get(where, "")
        # By hand, since clients have limits of their own for addresses.
        lines = [
            f"GET /livez{path} HTTP/1.1",
            "host: localhost",
            "connection: close",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        status = status_of(server, "\r\n".join(lines).encode() + b"\r\n\r\n")
        if fits:
            assert status == (404 if where == "target" else 200)
        else:
            assert status in (400, None), n  # None: closed while the rest was still being sent


def test_only_http_1_0_may_come_without_a_host(server: ServerProcess) -> None:
    assert status_of(server, b"GET /livez HTTP/1.0\r\n\r\n") == 200
    assert status_of(server, b"GET /livez HTTP/1.0\r\nhost: evil.example\r\n\r\n") == 403
    assert status_of(server, b"GET /livez HTTP/1.0\r\nhost:\r\n\r\n") == 403
    assert status_of(server, b"GET /livez HTTP/1.1\r\n\r\n") == 400


def status_of(server: ServerProcess, request: bytes) -> int | None:
    try:
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as answer:
                return int(answer.readline().split()[1])
    except OSError as error:
        if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
            raise
        return None  # answered and closed before all of it was sent


def test_a_chat_beyond_all_that_a_template_may_write_exceeds_the_context(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "a" * (MAX_CHARS + 1)}]
    error = error_of(post(server, {**CHAT, "messages": messages}))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
