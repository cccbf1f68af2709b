"""A stream whose events come faster than they are written says in fewer chunks what it says otherwise."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from support.serving import ServerThread

SUM = [{"role": "user", "content": "What is 3 + 4?"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread(parallel=4)
    yield server
    server.close()


def post(server: ServerThread, route: str, body: dict[str, Any]) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", route, json.dumps(body), {"content-type": "application/json"})
    return connection


def merged(server: ServerThread, route: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream while whose reply the event loop stands still."""
    begun, ended = threading.Event(), threading.Event()

    def hold(what: str) -> None:
        if not begun.is_set():
            server.loop.call_soon_threadsafe(ended.wait, 30)
            begun.set()

    server.core.before = hold
    connection = post(server, route, {**body, "stream": True})
    assert begun.wait(30)
    while server.engine.counts.running or server.engine.counts.waiting:
        time.sleep(0.005)
    server.core.before = lambda what: None
    # The engine's thread has sent the last event once it goes on to something else.
    server.engine.generate(SUM).result()
    ended.set()
    *events, done, empty = connection.getresponse().read().decode().split("\n\n")
    connection.close()
    assert (done, empty) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def whole(server: ServerThread, route: str, body: dict[str, Any]) -> dict[str, Any]:
    connection = post(server, route, body)
    reply: dict[str, Any] = json.load(connection.getresponse())
    connection.close()
    return reply


def added(choices: list[dict[str, Any]], *keys: str) -> Any:
    """What the chunks of a choice say at a place, one after the other."""
    found: list[Any] = choices
    for key in keys:
        found = [one[key] for one in found if one and one.get(key) is not None]
    return "".join(found) if all(isinstance(one, str) for one in found) else list(chain(*found))


@pytest.mark.parametrize("n", [1, 3])
def test_a_chat_that_is_merged_says_the_same(n: int, server: ServerThread) -> None:
    body = {"model": "tiny", "messages": SUM, "temperature": 1, "seed": 5, "n": n, "max_tokens": 60}
    body |= {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    reply = whole(server, "/v1/chat/completions", body)
    chunks = merged(server, "/v1/chat/completions", {**body, **options})
    assert len(chunks) <= 3 * n + 1
    assert chunks[-1]["usage"] == chunks[-2]["usage"] == reply["usage"]
    for choice in reply["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert added(mine, "delta", "content") == choice["message"]["content"]
        assert added(mine, "delta", "reasoning_content") == choice["message"]["reasoning_content"]
        assert added(mine, "token_ids") == choice["token_ids"]
        for kind in ("content", "reasoning_content"):
            assert added(mine, "logprobs", kind) == choice["logprobs"][kind]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        for key in ("seed", "token_sha"):
            assert mine[-1]["flashnext"][key] == choice["flashnext"][key]


def test_completions_that_are_merged_say_the_same(server: ServerThread) -> None:
    body = {"model": "tiny", "prompt": ["Count from", [70, 71]], "temperature": 1, "seed": 5, "n": 2}
    body |= {"max_tokens": 30, "logprobs": 2, "echo": True, "return_token_ids": True}
    reply = whole(server, "/v1/completions", body)
    chunks = merged(server, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert len(chunks) == 4 * 2 + 1
    assert chunks[-1]["usage"] == reply["usage"]
    for choice in reply["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert added(mine, "text") == choice["text"]
        assert added(mine, "token_ids") == choice["token_ids"]
        for key, value in choice["logprobs"].items():
            assert added(mine, "logprobs", key) == value
        assert mine[-1]["finish_reason"] == choice["finish_reason"]


def test_calls_that_are_merged_are_the_same(server: ServerThread) -> None:
    tokenizer = server.engine.tokenizer
    call = "\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n"
    ids = tokenizer.encode("I call.")
    for value in ("1", "2"):
        for tag, text in (("<tool_call>", call.format(value)), ("</tool_call>", "")):
            ids += [tokenizer.control_ids[tag], *tokenizer.encode(text)]
    server.core.script = [tokenizer.control_ids["</think>"], *ids, tokenizer.control_ids["<|im_end|>"]]
    body = {"model": "tiny", "messages": SUM, "tools": [TOOL]}
    try:
        message = whole(server, "/v1/chat/completions", body)["choices"][0]["message"]
        chunks = merged(server, "/v1/chat/completions", body)
    finally:
        server.core.script = []
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert added(deltas, "content") == message["content"] == "I call."
    assert [call["index"] for call in calls] == [0, 1]
    assert [call["function"] for call in calls] == [call["function"] for call in message["tool_calls"]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
