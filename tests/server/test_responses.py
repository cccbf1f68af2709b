"""/v1/responses by the official client: replies, events, tools, and the responses that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from flashnext.server.errors import ResponseNotFound
from flashnext.server.responses_store import Kept, ResponseStore
from support.serving import ServerProcess, server_process

MODEL = "tiny-6bit"
QUESTION = "What is 3 + 4?"
GOLDEN = Path(__file__).parents[1] / "tiny" / "golden.jsonl"
IDS = {"return_token_ids": True}


@pytest.fixture(scope="module")
def small() -> Iterator[openai.OpenAI]:
    """A server that keeps two responses."""
    with (
        server_process("--max-responses", "2") as server,
        openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def ask(client: openai.OpenAI, given: Any = QUESTION, **more: Any) -> Any:
    extra = {**IDS, **more.pop("extra_body", {})}
    return client.responses.create(model=MODEL, input=given, extra_body=extra, **{"temperature": 0, **more})


def tool_case() -> tuple[Any, Any]:
    """A recorded chat in which a tool is called, with its tools as responses have them."""
    cases = map(json.loads, GOLDEN.read_text(encoding="utf-8").splitlines())
    case = next(c for c in cases if c["tools"] and "<tool_call>" in c["output_text"])
    tools = [{"type": "function", "strict": True, **tool["function"]} for tool in case["tools"]]
    effort = None if case["enable_thinking"] else "none"
    return case, {"tools": tools, "reasoning": {"effort": effort}}


def test_a_question_is_answered_with_thoughts_and_text_in_items(client: openai.OpenAI) -> None:
    reply = ask(client, metadata={"a": "b"}, instructions="Be brief.")
    assert (reply.object, reply.status, reply.model) == ("response", "completed", MODEL)
    assert reply.id.startswith("resp_") and reply.output_text == "3 + 4 = 7"
    thoughts, message = reply.output
    assert (thoughts.type, thoughts.content[0].text) == ("reasoning", "3 + 4 = 7. So 3 + 4 = 7.")
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (reply.metadata, reply.instructions, reply.error) == ({"a": "b"}, "Be brief.", None)
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    assert len(reply.flashnext["token_sha"]) == 16


def test_the_streaming_helper_builds_the_whole_reply(client: openai.OpenAI) -> None:
    whole = ask(client)
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final: Any = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.flashnext["token_sha"] == whole.flashnext["token_sha"]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    shown = list(dict.fromkeys(kinds))
    assert shown == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.completed",
    ]


def test_a_tool_is_called_and_its_result_is_read(client: openai.OpenAI) -> None:
    case, more = tool_case()
    given: Any = [{"role": m["role"], "content": m["content"]} for m in case["messages"]]
    reply = ask(client, given, **more)
    call = next(item for item in reply.output if item.type == "function_call")
    assert f"<function={call.name}>" in case["output_text"]
    assert isinstance(json.loads(call.arguments), dict) and call.call_id.startswith("call_")
    with client.responses.stream(model=MODEL, input=given, temperature=0, **more) as stream:
        deltas = [event for event in stream if event.type == "response.function_call_arguments.delta"]
        built = next(item for item in stream.get_final_response().output if item.type == "function_call")
    assert deltas[-1].snapshot == built.arguments == call.arguments
    # The whole history and what is kept of it are the same prompt.
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    sent = ask(client, [*given, *(item.to_dict() for item in reply.output), result], **more)
    kept = ask(client, [result], previous_response_id=reply.id, **more)
    assert sent.prompt_token_ids == kept.prompt_token_ids
    assert sent.flashnext["token_sha"] == kept.flashnext["token_sha"]
    assert kept.previous_response_id == reply.id


def test_log_probabilities_are_those_of_chats(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, logprobs=True, top_logprobs=2
    )
    assert chat.choices[0].logprobs is not None
    expected = [entry.to_dict() for entry in chat.choices[0].logprobs.content or []]
    include = ["message.output_text.logprobs"]
    reply = ask(client, include=include, top_logprobs=2)
    assert [entry.to_dict() for entry in reply.output[-1].content[0].logprobs] == expected
    events = list(ask(client, include=include, top_logprobs=2, stream=True))
    streamed = [one for e in events if e.type == "response.output_text.delta" for one in e.logprobs]
    assert [entry.to_dict() for entry in streamed] == expected
    with pytest.raises(openai.BadRequestError, match="needs include"):
        ask(client, top_logprobs=2)


def test_thoughts_come_sealed_where_that_is_asked_for_and_go_back(client: openai.OpenAI) -> None:
    reply = ask(client, include=["reasoning.encrypted_content"], store=False)
    thoughts, message = (item.to_dict() for item in reply.output)
    assert thoughts["encrypted_content"]
    assert "encrypted_content" not in ask(client).output[0].to_dict()
    sealed = {key: value for key, value in thoughts.items() if key != "content"}
    other = {**sealed, "encrypted_content": "another server's"}
    prompts = [
        ask(client, [{"role": "user", "content": "x"}, item, message, {"role": "user", "content": "y"}])
        for item in (thoughts, sealed, other)
    ]
    assert prompts[0].prompt_token_ids == prompts[1].prompt_token_ids
    assert len(prompts[2].prompt_token_ids) < len(prompts[0].prompt_token_ids)


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh"])
def test_every_effort_is_served_and_none_does_not_think(effort: Any, client: openai.OpenAI) -> None:
    reply = ask(client, reasoning={"effort": effort, "summary": "auto"}, max_output_tokens=30)
    assert (reply.output[0].type == "reasoning") == (effort != "none")
    assert reply.reasoning.effort == effort


def test_what_a_response_would_read_is_counted(client: openai.OpenAI) -> None:
    _, more = tool_case()
    first = ask(client)
    for asked in (
        {"input": QUESTION},
        {"input": QUESTION, "instructions": "Be brief.", **more},
        {"input": "And 5 + 5?", "previous_response_id": first.id},
    ):
        told: Any = client.responses.create(model=MODEL, max_output_tokens=1, **asked)
        counted = client.responses.input_tokens.count(model=MODEL, **asked)
        assert counted.input_tokens == told.usage.input_tokens


# --- items


REFUSED_ITEMS = [
    ({"type": "item_reference", "id": "x"}, "input[0].type", "'item_reference'"),
    ({"type": "web_search_call", "id": "x", "status": "completed"}, "input[0].type", "'web_search_call'"),
    ({"role": "system", "content": [{"type": "input_image", "image_url": "data:"}]},
     "input[0].content[0].type", "'input_image' cannot stand here"),
    ({"role": "user", "content": [{"type": "input_image", "file_id": "x"}]},
     "input[0].content[0].file_id", "no files are kept here; give image_url"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
     "input[0].content[0].type", "expected one of input_text"),
    ({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]},
     "input[0].content[0].type", "'input_file' is not read here"),
    ({"role": "tool", "content": "x"}, "input[0].role", "'tool'"),
    ({"role": "user", "content": [5]}, "input[0].content[0]", "found 5"),
    ({"role": "user", "content": 5}, "input[0].content", "found 5"),
    ({"role": "user", "content": [{"type": "input_text", "text": 5}]}, "input[0].content[0].text", "found 5"),
    ({"type": "function_call", "name": "a b", "arguments": "{}", "call_id": "1"}, "input[0].name", "'a b'"),
    ({"type": "function_call", "name": "f", "arguments": "[1]", "call_id": "1"},
     "input[0].arguments", "found [1]"),
    ({"type": "function_call", "name": "f", "arguments": "{", "call_id": "1"},
     "input[0].arguments", "JSON object"),
    ({"type": "function_call_output", "call_id": 5, "output": "x"}, "input[0].call_id", "found 5"),
    ({"type": "reasoning", "content": "x", "summary": 7}, "input[0].summary", "found 7"),
    (5, "input[0]", "found 5"),
]  # fmt: skip


@pytest.mark.parametrize(("item", "field", "words"), REFUSED_ITEMS, ids=[row[1] for row in REFUSED_ITEMS])
def test_an_item_that_cannot_be_read_is_named(
    item: Any, field: str, words: str, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, [item])
    assert caught.value.param == field
    assert words in caught.value.message


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools[0].parameters"),
    ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools[1].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"text": {"format": {"type": "json"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "text.format.schema"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"reasoning": {"effort": [1]}}, "reasoning.effort"),
    ({"include": ["x"]}, "include[0]"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 8193}, "max_output_tokens"),
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": {}}, "input"),
    ({"stop": [""]}, "stop[0]"),
]


@pytest.mark.parametrize(("more", "field"), REFUSED, ids=[f"{row[1]} {i}" for i, row in enumerate(REFUSED)])
def test_what_there_is_not_is_refused_by_its_name(
    more: dict[str, Any], field: str, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **{"extra_body": {**more, "chat_template_kwargs": {}}})
    assert caught.value.param == field


def test_what_asks_for_nothing_is_served(server: ServerProcess) -> None:
    body = {
        "model": MODEL, "input": [{"type": None, "role": "user", "content": None}], "max_output_tokens": 1,
        "tools": [], "tool_choice": "auto", "truncation": "disabled", "background": False, "reasoning": {},
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "include": [], "instructions": None,
        "parallel_tool_calls": True, "stream_options": {"include_obfuscation": False}, "service_tier": "auto",
    }  # fmt: skip
    assert httpx.post(f"{server.url}/responses", json=body, timeout=60).status_code == 200


# --- what is kept


def test_a_response_is_told_again_and_forgotten(client: openai.OpenAI) -> None:
    reply = ask(client, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                         {"role": "user", "content": "What is 1 + 1?"}])  # fmt: skip
    assert client.responses.retrieve(reply.id).to_dict() == reply.to_dict()
    listed: Any = client.responses.input_items.list(reply.id, order="asc").data
    assert [item.content[0].text for item in listed] == ["a", "b", "What is 1 + 1?"]
    assert [item.content[0].type for item in listed][:2] == ["input_text", "output_text"]
    paged = list(client.responses.input_items.list(reply.id, limit=2))  # the client asks for the next page
    assert paged == listed[::-1]
    client.responses.delete(reply.id)
    for gone in (
        lambda: client.responses.retrieve(reply.id),
        lambda: client.responses.input_items.list(reply.id),
        lambda: client.responses.delete(reply.id),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            gone()
        assert caught.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, previous_response_id=reply.id)
    assert (refused.value.code, refused.value.param) == (
        "previous_response_not_found",
        "previous_response_id",
    )


PAGES = ["limit=0", "limit=x", "limit=101", "limit=000000100999", f"limit={1:09}{'0' * 4292}"]


@pytest.mark.parametrize("query", [*PAGES, "order=x", "after=x"], ids=lambda query: query[:20])
def test_a_page_that_cannot_be_is_refused_by_its_name(query: str, client: openai.OpenAI) -> None:
    reply = ask(client, max_output_tokens=1)
    response = httpx.get(f"{client.base_url}responses/{reply.id}/input_items?{query}", timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]
    streamed = httpx.get(f"{client.base_url}responses/{reply.id}?stream=true", timeout=60)
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_goes_on_from_what_is_kept_as_from_what_is_sent(stream: bool, client: openai.OpenAI) -> None:
    instructions = "Be brief."
    if stream:
        first = list(ask(client, instructions=instructions, stream=True))[-1].response
    else:
        first = ask(client, instructions=instructions)
    second = ask(client, "What is 5 + 1?", previous_response_id=first.id)
    third = ask(client, "And 2 + 2?", previous_response_id=second.id, instructions=instructions)
    messages: Any = [
        {"role": "system", "content": instructions},
        {"role": "user", "content": QUESTION},
        *({"role": "assistant", "reasoning_content": r.output[0].content[0].text, "content": r.output_text}
          for r in (first,)),
        {"role": "user", "content": "What is 5 + 1?"},
        *({"role": "assistant", "reasoning_content": r.output[0].content[0].text, "content": r.output_text}
          for r in (second,)),
        {"role": "user", "content": "And 2 + 2?"},
    ]  # fmt: skip
    chat: Any = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, extra_body=IDS)
    assert third.prompt_token_ids == chat.prompt_token_ids
    assert third.flashnext["token_sha"] == chat.choices[0].flashnext["token_sha"]
    listed: Any = client.responses.input_items.list(third.id).data
    assert [item.content[0].text for item in listed] == ["And 2 + 2?"]


def test_what_is_not_to_be_kept_is_not(client: openai.OpenAI) -> None:
    reply = ask(client, store=False)
    assert not reply.store
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(reply.id)


def test_the_response_that_was_used_longest_ago_goes_first(small: openai.OpenAI) -> None:
    first, second = ask(small, max_output_tokens=1), ask(small, max_output_tokens=1)
    small.responses.retrieve(first.id)
    third = ask(small, max_output_tokens=1)
    assert [small.responses.retrieve(one.id).id for one in (first, third)] == [first.id, third.id]
    with pytest.raises(openai.NotFoundError, match="too old"):
        small.responses.retrieve(second.id)


def kept(n_bytes: int) -> Kept:
    return Kept(bytes(n_bytes), b"", ())


@pytest.mark.parametrize(
    ("most", "most_bytes", "sizes", "left"),
    [
        (3, 100, [10, 10, 10, 10], "bcd"),
        (9, 100, [60, 30, 30], "bc"),
        (9, 100, [50, 101], "a"),  # larger than all may be, so nothing goes for it
        (9, 100, [50, 100], "b"),
        (0, 100, [1], ""),
        (9, 0, [1], ""),
    ],
)
def test_a_store_is_bounded_in_number_and_bytes(
    most: int, most_bytes: int, sizes: list[int], left: str
) -> None:
    store = ResponseStore(most, most_bytes)
    for name, size in zip("abcd", sizes, strict=False):
        store.put(name, kept(size))
        assert len(store) <= most and store.n_bytes <= most_bytes
    assert "".join(name for name in "abcd" if store.get(name)) == left
    for name in left:
        store.delete(name)
    assert (len(store), store.n_bytes) == (0, 0)
    with pytest.raises(ResponseNotFound):
        store.require("a")


def test_what_is_kept_is_counted_as_what_it_takes() -> None:
    shared = b"[" + b"[]," * 500 + b"[]]"
    one = Kept(b"{}", shared, (shared,))
    assert one.n_bytes == 2 + 2 * len(shared)
    assert {type(part) for part in (one.response, one.items, *one.chat)} == {bytes}


def test_a_long_chain_is_kept_though_each_of_its_requests_has_many_tools() -> None:
    tools = [{"type": "function", "name": "f", "description": "x" * 200_000}]
    with (
        server_process("--max-responses-size", "2") as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        ids: list[str] = []
        for i in range(6):
            body = {
                "model": MODEL,
                "input": "x",
                "max_output_tokens": 1,
                "tools": tools,
                "tool_choice": "none",
            }
            more = {"previous_response_id": ids[-1]} if i else {}
            response = http.post("/responses", json={**body, **more})
            assert response.status_code == 200, response.text
            ids.append(response.json()["id"])
        told = [http.get(f"/responses/{one}").status_code for one in ids]
    assert told == [200] * 6  # 1.2 MB in all; the tools of those before are not in what a response takes


def test_a_response_that_is_too_large_to_keep_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    store = ResponseStore(9, 100)
    store.put("resp_1", kept(101))
    (warning,) = caplog.messages
    assert warning.startswith("resp_1 takes 101 bytes") and "--max-responses-size" in warning


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({str(i): "" for i in range(17)}, "metadata"),
        ({"k" * 65: ""}, "metadata"),
        ({"k": "v" * 513}, "metadata.k"),
        ({"k": [[]] * 10}, "metadata.k"),
    ],
)
def test_metadata_is_as_small_as_on_openais_route(metadata: Any, field: str, client: openai.OpenAI) -> None:
    most = {f"{i:064}": "v" * 512 for i in range(16)}
    assert ask(client, metadata=most, max_output_tokens=1).metadata == most
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, metadata=metadata)
    assert caught.value.param == field


def test_a_call_that_is_sent_after_a_kept_text_is_of_the_same_turn(client: openai.OpenAI) -> None:
    first = ask(client)
    more: Any = [
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x": 1.10}'},
        {"type": "function_call_output", "call_id": "1", "output": "42"},
    ]
    kept = ask(client, more, previous_response_id=first.id, max_output_tokens=1)
    question = {"role": "user", "content": QUESTION}
    sent = ask(client, [question, *(one.to_dict() for one in first.output), *more], max_output_tokens=1)
    assert kept.prompt_token_ids == sent.prompt_token_ids


def test_items_are_paged_whatever_ids_they_came_with(client: openai.OpenAI) -> None:
    given: Any = [
        {"role": "user", "content": c, "id": i} for c, i in zip("abcde", ["x", "x", "", None, 5], strict=True)
    ]
    reply = ask(client, given, max_output_tokens=1)
    for order in ("asc", "desc"):
        paged: Any = list(client.responses.input_items.list(reply.id, limit=1, order=order))
        assert "".join(item.content[0].text for item in paged) == ("abcde" if order == "asc" else "edcba")
