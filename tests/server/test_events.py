"""The events of responses and messages, whatever the model says: in the protocol's order, and all of it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from flashnext import _core
from flashnext.server import stream as stream_module
from flashnext.server.ids import CHARACTERS, RandomIds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.script import TOKENIZER, ids_of
from support.serving import ServerProcess, ServerThread, server_process, until

ROUTES = ("/v1/responses", "/v1/messages")
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}}}


@pytest.fixture(scope="module")
def scripted() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


@pytest.fixture(scope="module")
def small() -> Iterator[ServerProcess]:
    with server_process("--context", "64") as server:
        yield server


def body(route: str, **more: Any) -> dict[str, Any]:
    """A question with two tools; thoughts are on."""
    if route == "/v1/responses":
        tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in ("f", "g")]
        return {"model": "tiny", "input": "x", "tools": tools, **more}
    tools = [{"name": name, "input_schema": SCHEMA} for name in ("f", "g")]
    messages = [{"role": "user", "content": "x"}]
    on = {"type": "adaptive"}
    return {"model": "tiny", "max_tokens": 8000, "messages": messages, "thinking": on, "tools": tools, **more}


def send(server: ServerThread, route: str, **more: Any) -> httpx.Response:
    url = f"http://127.0.0.1:{server.port}{route}"
    response = httpx.post(url, json=body(route, **more), timeout=60)
    assert response.status_code == 200, response.text
    return response


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.strip().split("\n\n"):
        name, _, data = block.partition("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


Said = tuple[str, str, list[tuple[str, Any]], str]


def response_said(response: Any) -> Said:
    """Thoughts, text, calls and the end of a response."""
    texts = {"reasoning": "", "message": ""}
    calls = []
    for item in response["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], json.loads(item["arguments"])))
        else:
            texts[item["type"]] += item["content"][0]["text"]
    return texts["reasoning"], texts["message"], calls, response["status"]


def message_said(message: Any) -> Said:
    texts = {"thinking": "", "text": ""}
    calls = []
    for block in message["content"]:
        if block["type"] == "tool_use":
            calls.append((block["name"], block["input"]))
        else:
            texts[block["type"]] += block[block["type"]]
    return texts["thinking"], texts["text"], calls, message["stop_reason"]


def built_response(stream: list[Any]) -> Any:
    """Build a response of its events, and require their order."""
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    created, in_progress, *rest, last = stream
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    for event in (created, in_progress):
        assert event["response"]["status"] == "in_progress" and event["response"]["output"] == []
    output: list[Any] = []
    item: Any = None
    part: Any = None
    for event in rest:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert item is None and event["output_index"] == len(output)
            item = event["item"]
            assert item["status"] == "in_progress"
            continue
        assert item is not None and event["output_index"] == len(output)
        if kind == "output_item.done":
            assert part is None
            done = event["item"]
            assert (done["id"], done["type"]) == (item["id"], item["type"])
            told = done["arguments"] if item["type"] == "function_call" else done["content"]
            assert told == (item["arguments"] if item["type"] == "function_call" else item["content"])
            output.append(done)
            item = None
            continue
        assert event["item_id"] == item["id"]
        if kind.startswith("function_call_arguments"):
            if kind.endswith("delta"):
                assert 0 < len(event["delta"]) <= 4096
                item["arguments"] += event["delta"]
            else:
                assert event["arguments"] == item["arguments"]
            continue
        assert event["content_index"] == 0
        name = "reasoning_text" if item["type"] == "reasoning" else "output_text"
        if kind == "content_part.added":
            assert part is None and event["part"]["type"] == name and item["content"] == []
            part = event["part"]
        elif kind == f"{name}.delta":
            part["text"] += event["delta"]
        elif kind == f"{name}.done":
            assert event["text"] == part["text"]
        else:
            assert kind == "content_part.done" and event["part"] == part
            item["content"].append(part)
            part = None
    assert item is None and last["response"]["output"] == output
    assert last["type"] == f"response.{last['response']['status']}"
    assert last["response"]["id"] == created["response"]["id"]
    return last["response"]


def built_message(stream: list[Any]) -> Any:
    """The same for a message."""
    start, ping, *rest, end, stop = stream
    assert (start["type"], ping, stop) == ("message_start", {"type": "ping"}, {"type": "message_stop"})
    message = start["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    block: Any = None
    written = signature = ""
    for event in rest:
        if event["type"] == "ping":
            continue
        if event["type"] == "content_block_start":
            assert block is None and event["index"] == len(message["content"])
            block, written, signature = event["content_block"], "", ""
            assert block.get("text", "") == block.get("thinking", "") == "" and block.get("input", {}) == {}
            continue
        assert event["index"] == len(message["content"])
        if event["type"] == "content_block_delta":
            kind, value = [v for k, v in sorted(event["delta"].items(), key=lambda one: one[0] != "type")]
            names = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
            if kind == "signature_delta":
                assert block["type"] == "thinking" and value
                signature = value
            else:
                assert kind == names[block["type"]] and value
                assert kind != "input_json_delta" or len(value) <= 4096
                written += value
        else:
            assert event["type"] == "content_block_stop"
            if block["type"] == "tool_use":
                block["input"] = json.loads(written)
            else:
                block[block["type"]] = written
                assert (block["type"] == "thinking") == bool(signature)
                block |= {"signature": signature} if signature else {}
            message["content"].append(block)
            block = None
    assert block is None and end["type"] == "message_delta"
    return {**message, **end["delta"], "usage": end["usage"], "flashnext": end["flashnext"]}


def say(server: ServerThread, route: str, text: str, *sizes: int, **more: Any) -> list[Said]:
    """A whole reply and one streamed in each split, to the same script: what they say, and why they ended."""
    server.core.script = ids_of(text)
    whole = send(server, route, **more).json()
    told = [response_said(whole) if route == "/v1/responses" else message_said(whole)]
    for size in sizes:
        server.core.script = ids_of(text, size)
        stream = events(send(server, route, stream=True, **more))
        if route == "/v1/responses":
            told.append(response_said(built_response(stream)))
        else:
            built = built_message(stream)
            assert built["usage"]["output_tokens"] == len(server.core.script)
            told.append(message_said(built))
    return told


CALL = "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>"
SAID: list[tuple[str, str, tuple[str, str, list[Any]]]] = [
    ("thinks and answers", "I add.\n</think>\n\n7", ("I add.", "7", [])),
    ("never closes", "I wonder", ("I wonder", "", [])),
    ("says nothing", "</think>", ("", "", [])),
    ("calls", "a</think>\n\n" + CALL.format(7), ("a", "", [("f", {"x": 7})])),
    ("says and calls twice", "</think>Let me see.\n" + CALL.format(1) + "\n" + CALL.format(2),
     ("", "Let me see.", [("f", {"x": 1}), ("f", {"x": 2})])),
    ("19 digits", "</think>" + CALL.format("1234567890123456789"),
     ("", "", [("f", {"x": 1234567890123456789})])),
    ("goes on behind a call", "</think>So:" + CALL.format(1) + "Done.",
     ("", "So:\n\nDone.", [("f", {"x": 1})])),
    ("thinks again", "a\n</think>\n\nb<think>\nc\n</think>\n\nd", ("a\n\nc", "b\n\nd", [])),
    ("no call after all", "</think><tool_call>nothing</tool_call>", ("", "nothing", [])),
    ("calls without arguments", "</think><tool_call><function=g></function></tool_call>",
     ("", "", [("g", {})])),
]  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in SAID], ids=[row[0] for row in SAID])
def test_a_reply_is_told_the_same_streamed_and_whole(
    text: str, expected: Any, route: str, scripted: ServerThread
) -> None:
    end = "completed" if route == "/v1/responses" else "tool_use" if expected[2] else "end_turn"
    assert say(scripted, route, text, 10**6, 1) == [(*expected, end)] * 3


PIECES = st.sampled_from([
    "<think>", "</think>", "<tool_call>", "</tool_call>", "\n<function=f>\n", "</function>", "<parameter=x>",
    "<parameter=s>", "</parameter>", "a", " 7", "\n\n", "<", "é\U0001f680", '"', "\\",
])  # fmt: skip


@given(st.sampled_from(ROUTES), st.lists(PIECES, max_size=12), st.integers(1, 6))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_reply_is_told_the_same_in_any_split(
    scripted: ServerThread, route: str, pieces: list[str], size: int
) -> None:
    whole, streamed = say(scripted, route, "".join(pieces), size)
    assert whole == streamed


@pytest.mark.parametrize("route", ROUTES)
def test_numbers_keep_their_spelling_in_calls_and_in_what_is_told_back(
    route: str, scripted: ServerThread
) -> None:
    scripted.core.script = ids_of("</think>" + CALL.replace("=x>", "=n>").format("1e309"))
    schema = {"type": "object", "properties": {"n": {"type": "number", "maximum": 777}}}
    key = "parameters" if route == "/v1/responses" else "input_schema"
    kind = {"type": "function"} if route == "/v1/responses" else {}
    data = json.dumps(body(route, tools=[{"name": "f", key: schema, **kind}])).replace("777", "1.10")
    response = httpx.post(
        f"http://127.0.0.1:{scripted.port}{route}",
        content=data,
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert response.status_code == 200
    if route == "/v1/responses":
        assert r'"arguments":"{\"n\": 1e309}"' in response.text
        assert '"maximum":1.10' in response.text
    else:
        assert '"input":{"n":1e309}' in response.text


@pytest.mark.parametrize("stream", [False, True])
def test_without_parallel_calls_the_first_ends_the_reply(stream: bool, scripted: ServerThread) -> None:
    text = "</think>" + CALL.format(1) + "\n" + CALL.format(2)
    whole, streamed = say(scripted, "/v1/responses", text, 1, parallel_tool_calls=False)
    assert whole == streamed == ("", "", [("f", {"x": 1})], "completed")
    one = {"type": "auto", "disable_parallel_tool_use": True}
    server = scripted
    server.core.script = ids_of(text)
    response = send(server, "/v1/messages", tool_choice=one, stream=stream)
    message = built_message(events(response)) if stream else response.json()
    assert message_said(message) == ("", "", [("f", {"x": 1})], "tool_use")


@pytest.mark.parametrize("route", ROUTES)
def test_no_choice_of_tools_reads_no_call(route: str, scripted: ServerThread) -> None:
    none: Any = "none" if route == "/v1/responses" else {"type": "none"}
    whole, streamed = say(scripted, route, "</think>" + CALL.format(1), 1, tool_choice=none)
    assert whole == streamed
    assert whole[2] == [] and "<function=f>" in whole[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stops", [["7.", "7"], ["a 7"], ["x", "7"]], ids=str)
def test_the_stop_sequence_that_ended_a_message_is_told(
    stops: list[str], stream: bool, scripted: ServerThread
) -> None:
    scripted.core.script = ids_of("7 a 7</think>It is a 7. And on", 1)
    response = send(scripted, "/v1/messages", stop_sequences=stops, stream=stream)
    message = built_message(events(response)) if stream else response.json()
    found = "a 7" if "a 7" in stops else "7"  # the first that is complete
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", found)
    assert message_said(message)[1] == "It is a 7."[: "It is a 7.".index(found)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_that_fills_the_context_says_so(stream: bool, small: ServerProcess) -> None:
    url = f"{small.url}/messages"
    asked = {**body("/v1/messages"), "tools": [], "ignore_eos": True, "max_tokens": 10**9, "stream": stream}
    response = httpx.post(url, json={**asked, "model": "flashnext"}, timeout=60)
    message = built_message(events(response)) if stream else response.json()
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert message["usage"]["input_tokens"] + message["usage"]["output_tokens"] == 64


@pytest.mark.parametrize("hidden", [False, True])
def test_thoughts_that_are_hidden_come_sealed_and_go_back(hidden: bool, scripted: ServerThread) -> None:
    thinking = {"type": "adaptive", "display": "omitted" if hidden else "summarized"}
    scripted.core.script = ids_of("I add.\n</think>\n\n7", 1)
    whole = send(scripted, "/v1/messages", thinking=thinking).json()
    built = built_message(events(send(scripted, "/v1/messages", thinking=thinking, stream=True)))
    assert built["content"] == whole["content"]
    assert whole["content"][0]["thinking"] == ("" if hidden else "I add.")
    shown = {"type": "thinking", "thinking": "I add.", "signature": "x"}
    prompts = []
    for block in (whole["content"][0], shown):
        messages = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [block, {"type": "text", "text": "7"}]},
            {"role": "user", "content": "y"},
        ]
        reply = send(scripted, "/v1/messages", messages=messages, return_token_ids=True).json()
        prompts.append(reply["prompt_token_ids"])
    assert prompts[0] == prompts[1]
    assert "I add." in TOKENIZER.decode(prompts[0])


# --- what goes wrong in a stream


@pytest.mark.parametrize("route", ROUTES)
def test_a_device_error_in_a_stream_is_its_last_event(route: str, watched: ServerThread) -> None:
    def fail(what: str) -> None:
        if watched.core.n_rounds == 3:
            watched.core.before = lambda what: None
            raise _core.DeviceError("the device fell over")

    watched.core.before = fail
    *_, last = events(send(watched, route, stream=True))
    if route == "/v1/responses":
        assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
        assert last["response"]["error"] == {"code": "server_error", "message": "the device fell over"}
        assert all(item["status"] == "incomplete" for item in last["response"]["output"])
    else:
        assert last["error"] == {"type": "api_error", "message": "the device fell over"}
    assert watched.service.queue.n_open == 0
    assert len(watched.service.responses) == 0


@pytest.mark.parametrize("route", ROUTES)
def test_a_silent_stream_is_kept_alive_in_the_words_of_its_route(route: str) -> None:
    server = ServerThread(keepalive_s=0.05)
    gate = threading.Event()
    server.core.before = lambda what: gate.wait(30)
    words = ": still here\n\n" if route == "/v1/responses" else 'event: ping\ndata: {"type":"ping"}\n\n'
    text = ""
    try:
        url = f"http://127.0.0.1:{server.port}{route}"
        with httpx.stream("POST", url, json=body(route, stream=True), timeout=60) as response:
            for piece in response.iter_text():
                text += piece
                if text.count(words) >= 3:
                    gate.set()
    finally:
        gate.set()
        server.close()
    assert text.count(words) >= 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_a_client_that_leaves_cancels_its_reply(route: str, stream: bool, watched: ServerThread) -> None:
    watched.core.endless = True
    connection = http.client.HTTPConnection("127.0.0.1", watched.port, timeout=60)
    data = json.dumps(body(route, stream=stream))
    connection.request("POST", route, data, {"content-type": "application/json"})
    pool = watched.engine.loaded.pool
    until(lambda: watched.core.n_rounds > 3, "the reply did not begin")
    connection.close()
    until(lambda: pool.free == pool.total and watched.service.queue.n_open == 0, "the reply went on")


# --- what is long


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_response_tells_back_is_not_written_again_by_the_event_loop(
    stream: bool, scripted: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.core.script = ids_of("</think>7")
    written = stream_module._encode
    longest = []

    def watched_encode(value: Any) -> str:
        text = written(value)
        longest.append(len(text))
        return text

    monkeypatch.setattr(stream_module, "_encode", watched_encode)
    long = "x" * 300_000
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"description": long}}
    form = {"type": "json_schema", "name": "n", "schema": {"description": long[:200_000]}}
    more: Any = {
        "tools": [tool],
        "tool_choice": "none",
        "text": {"format": form},
        "instructions": "Be brief.",
    }
    response = send(scripted, "/v1/responses", stream=stream, **more)
    if stream:
        told = [event["response"] for event in events(response) if "response" in event]
        assert len(told) == 3
    else:
        told = [response.json()]
    for one in told:
        assert {name: one[name] for name in more} == more
    assert longest and max(longest) < 10_000
    url = f"http://127.0.0.1:{scripted.port}/v1/responses/{told[-1]['id']}"
    assert httpx.get(url, timeout=60).json() == told[-1]


@pytest.mark.parametrize("n", [1, 60])
def test_a_long_reply_is_not_written_by_the_event_loop(
    n: int, watched: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def thread() -> threading.Thread:
        return threading.current_thread()

    written = stream_module._encode
    threads: list[threading.Thread] = []

    def watched_encode(value: Any) -> str:
        threads.append(threading.current_thread())
        return written(value)

    monkeypatch.setattr(stream_module, "_encode", watched_encode)
    loop_thread = asyncio.run_coroutine_threadsafe(thread(), watched.loop).result(30)
    include = ["message.output_text.logprobs"]
    more: Any = {
        "include": include,
        "top_logprobs": 20,
        "max_output_tokens": n,
        "ignore_eos": True,
        "seed": 1,
    }
    response = send(watched, "/v1/responses", tools=[], **more).json()
    assert response["usage"]["output_tokens"] == n
    assert {one is loop_thread for one in threads} == {n == 1}
    url = f"http://127.0.0.1:{watched.port}/v1/responses/{response['id']}"
    assert httpx.get(url, timeout=60).json() == response


@pytest.mark.parametrize("n", [1, 90])
def test_the_end_of_a_streamed_response_is_written_by_a_thread_where_that_is_long_and_encoded_once(
    n: int, watched: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = stream_module._encode
    threads: dict[str, threading.Thread] = {}
    tokens: list[Any] = []

    def watched_encode(value: Any) -> str:
        threads[value.get("type", "")] = threading.current_thread()
        tokens.extend([value] if "top_logprobs" in value and "token" in value else [])
        return written(value)

    monkeypatch.setattr(stream_module, "_encode", watched_encode)
    more: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 20, "stream": True}
    more |= {
        "max_output_tokens": n,
        "ignore_eos": True,
        "seed": 1,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    told = events(send(watched, "/v1/responses", tools=[], **more))
    assert (threads["response.output_item.done"] is threads["response.created"]) == (n == 1)
    deltas = [one for e in told if e["type"] == "response.output_text.delta" for one in e["logprobs"]]
    assert len(deltas) == len(tokens) and n >= len(deltas) > n // 2
    by_type = {e["type"]: e for e in told}
    (item,) = told[-1]["response"]["output"]
    assert by_type["response.output_item.done"]["item"] == item
    assert by_type["response.content_part.done"]["part"] == item["content"][0]
    assert by_type["response.output_text.done"]["logprobs"] == item["content"][0]["logprobs"] == deltas


def test_ids_are_asked_for_by_several_threads_at_once() -> None:
    new_id = RandomIds()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_id(), range(20_000)))
    assert len(set(made)) == len(made) and {len(one) for one in made} == {CHARACTERS}
