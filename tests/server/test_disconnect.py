"""Clients that leave, devices that fail and servers that end, in the middle of a reply."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from flashnext import _core
from flashnext.media import pool
from flashnext.media.errors import Unwanted
from flashnext.server.run import Connection
from support.serving import ServerThread, until

SUM: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
PLAIN: dict[str, Any] = {"model": "tiny", "messages": SUM, "temperature": 0}


def begin(server: ServerThread, **more: Any) -> http.client.HTTPConnection:
    """Send a request and do not read the answer."""
    return post(server, "/v1/chat/completions", {**PLAIN, **more})


def post(server: ServerThread, route: str, body: dict[str, Any]) -> http.client.HTTPConnection:
    """Send a request to a route and do not read the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", route, json.dumps(body), {"content-type": "application/json"})
    return connection


def require_idle_and_well(server: ServerThread) -> None:
    """Every page is back, and a plain request gets its known reply."""
    pool = server.engine.loaded.pool
    until(lambda: pool.free == pool.total, "pages were not given back")
    server.core.endless = False
    url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    reply = httpx.post(url, json=PLAIN, timeout=60).json()
    assert reply["choices"][0]["message"]["content"] == "3 + 4 = 7"


def test_a_client_that_leaves_while_it_sends_is_no_error(
    watched: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", watched.port)) as client:
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            time.sleep(0.05)
    require_idle_and_well(watched)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_in_a_reply_cancels_it(stream: bool, watched: ServerThread) -> None:
    watched.core.endless = True
    connection = begin(watched, stream=stream)
    until(lambda: watched.core.n_rounds > 20, "the reply did not begin")
    connection.close()
    require_idle_and_well(watched)
    assert watched.core.n_rounds < 4000  # of the 8,000 that the window had room for


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_prompt_is_read_cancels_it(
    stream: bool, watched: ServerThread
) -> None:
    connection = None
    left = threading.Event()

    def leave(what: str) -> None:
        if what == "prompt" and watched.core.n_chunks == 2:
            assert connection is not None
            connection.close()
            left.set()
            time.sleep(0.5)  # for the server to notice

    watched.core.before = leave
    connection = begin(watched, stream=stream, messages=[{"role": "user", "content": " a" * 8000}])
    assert left.wait(30)
    pool = watched.engine.loaded.pool
    until(lambda: pool.free == pool.total, "pages were not given back")
    assert watched.core.n_chunks == 3  # of 16
    require_idle_and_well(watched)


def test_a_client_that_leaves_the_queue_is_forgotten(watched: ServerThread) -> None:
    watched.core.endless = True
    first = begin(watched, stream=True)
    until(lambda: watched.core.n_rounds > 5, "the reply did not begin")
    waiting = [begin(watched, stream=True) for _ in range(5)]
    time.sleep(0.2)
    for connection in [*waiting, first]:
        connection.close()
    require_idle_and_well(watched)
    assert watched.core.n_chunks == 2  # the first request's, and the plain one's


FORMAT: dict[str, Any] = {"type": "json_schema", "schema": {"type": "integer"}}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SUM, "guided_json": FORMAT["schema"]},
    "/v1/completions": {"prompt": "3 + 4 =", "guided_json": FORMAT["schema"]},
    "/v1/responses": {"input": SUM, "text": {"format": {**FORMAT, "name": "sum"}}},
    "/v1/messages": {"messages": SUM, "max_tokens": 9, "output_config": {"format": FORMAT}},
}


class Blocked:
    """Work of another thread that does not come to its end until it is let go."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self._work = work

    def __call__(self, *arguments: Any) -> Any:
        self.begun.set()
        assert self.gate.wait(120), "the test did not let it go on"
        return self._work(*arguments)


def require_leaving_is_noticed(
    server: ServerThread, blocked: Blocked, route: str, body: dict[str, Any]
) -> None:
    """A client that leaves while its request waits for other work gives its place back at once."""
    queue = server.service.queue
    try:
        connection = post(server, route, {"model": "tiny", **body})
        assert blocked.begun.wait(60), "nothing was begun"
        assert queue.n_open == 1
        connection.close()
        until(lambda: queue.n_open == 0, "it was not noticed that the client had left", 30)
    finally:
        blocked.gate.set()
    require_idle_and_well(server)
    assert server.core.n_chunks == 1  # the plain request's


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", ROUTES)
def test_a_client_that_leaves_while_its_grammar_is_compiled_is_noticed(
    route: str, stream: bool, watched: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = watched.engine._grammars
    blocked = Blocked(grammars._compile)
    monkeypatch.setattr(grammars, "_compile", blocked)
    require_leaving_is_noticed(watched, blocked, route, {**ROUTES[route], "stream": stream})


def test_who_comes_when_too_many_grammars_wait_is_told_when_to_come_again(
    watched: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashnext.engine.grammars.MOST_WAITING", 1)
    grammars = watched.engine._grammars
    blocked = Blocked(grammars._compile)
    monkeypatch.setattr(grammars, "_compile", blocked)
    route = "/v1/chat/completions"

    def ask(minimum: int) -> http.client.HTTPConnection:
        schema = {"type": "integer", "minimum": minimum}
        return post(
            watched, route, {"model": "tiny", "messages": SUM, "max_tokens": 9, "guided_json": schema}
        )

    try:
        waiting = [ask(0)]
        assert blocked.begun.wait(60)
        waiting.append(ask(1))
        until(lambda: len(grammars._waiting) == 1, "it does not wait")
        with closing(ask(2)) as late:
            response = late.getresponse()
            error = json.loads(response.read())["error"]
            assert (response.status, error["code"]) == (503, "grammars_busy"), error
            assert response.headers["retry-after"] == "5" and "try again" in error["message"]
    finally:
        blocked.gate.set()
    for connection in waiting:
        with closing(connection):
            assert connection.getresponse().status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_prompt_is_rendered_is_noticed(
    stream: bool, watched: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = Blocked(watched.engine._reader.read_prepared)
    monkeypatch.setattr(watched.engine._reader, "read_prepared", blocked)
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    body = {"messages": SUM, "tools": [tool], "stream": stream}  # with tools another thread renders it
    require_leaving_is_noticed(watched, blocked, "/v1/chat/completions", body)


SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SHOWING: dict[str, Any] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": [SHOWN]}]},
    "/tokenize": {"messages": [{"role": "user", "content": [SHOWN]}]},
    "/v1/responses/input_tokens": {
        "model": "tiny",
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:;base64,AAAA"}]}],
    },
    "/v1/messages/count_tokens": {
        "model": "tiny",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image", "source": {"type": "base64", "data": "AAAA"}}],
            }
        ],
    },
}


@pytest.mark.parametrize("route", SHOWING)
def test_for_a_client_that_leaves_while_its_video_is_decoded_no_more_is(
    route: str, watched: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, left = threading.Event(), threading.Event()

    def endless(part: Any, rules: Any, limits: Any, wanted: Callable[[], bool]) -> Any:
        begun.set()
        while wanted():
            time.sleep(0.001)
        left.set()
        raise Unwanted

    monkeypatch.setattr(pool, "prepare", endless)
    connection = post(watched, route, SHOWING[route])
    assert begun.wait(60) and not left.is_set()
    connection.close()
    assert left.wait(60)
    require_idle_and_well(watched)


def test_many_clients_that_leave_at_any_moment_leave_nothing_behind(watched: ServerThread) -> None:
    for n in range(40):
        connection = begin(watched, stream=n % 2 == 0)
        time.sleep(n % 8 * 0.01)
        connection.close()
    require_idle_and_well(watched)


def test_headers_and_the_first_chunk_come_before_the_prompt_is_read(watched: ServerThread) -> None:
    gate = threading.Event()
    watched.core.before = lambda what: gate.wait(30)
    with closing(begin(watched, stream=True)) as connection:
        response = connection.getresponse()
        assert response.status == 200
        assert b'"role":"assistant"' in response.readline()
        assert watched.core.n_chunks == 0
        gate.set()
        assert response.read().endswith(b"data: [DONE]\n\n")


def test_a_device_error_in_a_stream_is_its_last_object(watched: ServerThread) -> None:
    def fail(what: str) -> None:
        if watched.core.n_rounds == 3:
            watched.core.before = lambda what: None
            raise _core.DeviceError("the device fell over")

    watched.core.before = fail
    url = f"http://127.0.0.1:{watched.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="the device fell over"):
            list(client.chat.completions.create(model="tiny", messages=SUM, stream=True))
        require_idle_and_well(watched)


def test_a_device_error_before_a_reply_is_a_500_that_names_it(watched: ServerThread) -> None:
    def fail(what: str) -> None:
        watched.core.before = lambda what: None
        raise _core.DeviceError("the device fell over")

    watched.core.before = fail
    response = httpx.post(f"http://127.0.0.1:{watched.port}/v1/chat/completions", json=PLAIN, timeout=60)
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "the device fell over", "type": "server_error", "param": None, "code": "device_error",
    }  # fmt: skip
    require_idle_and_well(watched)


def test_a_dead_engine_is_told_by_requests_and_by_health(watched: ServerThread) -> None:
    def die(what: str) -> None:
        raise SystemExit("planted")

    watched.core.before = die
    base = f"http://127.0.0.1:{watched.port}"
    for _ in range(2):
        response = httpx.post(f"{base}/v1/chat/completions", json=PLAIN, timeout=60)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_failed"
    health = httpx.get(f"{base}/health")
    assert (health.status_code, health.json()["status"]) == (503, "failed")
    assert "planted" in health.json()["error"]


def test_a_client_that_takes_nothing_is_dropped_and_its_reply_ended() -> None:
    server = ServerThread(patience_s=0.2)
    try:
        server.core.endless = True
        with closing(begin(server, stream=True, logprobs=True, top_logprobs=20)):
            until(lambda: server.service.queue.n_open == 1, "the reply did not begin")
            until(lambda: server.service.queue.n_open == 0, "the reply was not ended")
            until(lambda: server.service.n_connections() == 0, "the connection was not dropped")
        assert server.core.n_rounds < 8000  # of what the window had room for
        require_idle_and_well(server)
    finally:
        server.close()


HALF = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    ("before", "sent"),
    [(b"", b""), (b"", HALF), (b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n", HALF)],
    ids=["nothing", "half the headers", "half of the next request"],
)
def test_a_client_whose_request_does_not_come_is_dropped(before: bytes, sent: bytes) -> None:
    server = ServerThread(patience_s=0.2)
    server._server.config.timeout_keep_alive = 600  # that between requests is uvicorn's own
    try:
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=60)) as client:
            if before:
                client.sendall(before)
                assert client.recv(65536).startswith(b"HTTP/1.1 200")
            client.sendall(sent)
            assert b"".join(iter(lambda: client.recv(65536), b"")) == b""  # the server closes it
        until(lambda: server.service.n_connections() == 0, "the connection was not dropped")
        require_idle_and_well(server)
    finally:
        server.close()


def test_a_reply_may_take_longer_than_a_client_is_waited_for() -> None:
    server = ServerThread(patience_s=0.2)
    try:
        server.core.endless = True
        with closing(begin(server, stream=True, ignore_eos=True)) as connection:
            answer = connection.getresponse()
            end = time.monotonic() + 0.6
            while time.monotonic() < end:
                assert answer.read1(), "the reply was ended"
        require_idle_and_well(server)
    finally:
        server.close()


class Transport(asyncio.Transport):
    """A connection whose waiting bytes a test says."""

    def __init__(self, waiting: list[int]) -> None:
        super().__init__()
        self.waiting = waiting
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.waiting.pop(0)

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        pass


def test_a_slow_client_is_waited_for_as_long_as_it_takes_something() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nothing is asked")

    async def run() -> None:
        config = uvicorn.Config(app, log_config=None)
        config.load()
        state = uvicorn.server.ServerState()
        connection = Connection(config=config, server_state=state, app_state={}, patience_s=0.0, most=9)
        transport = Transport([5000, 4000, 4000, 3999, 3999, 2000, 2000, 2000])
        connection.connection_made(transport)
        connection.pause_writing()
        await asyncio.wait_for(transport.aborted.wait(), 30)
        assert transport.waiting == []
        connection.connection_lost(None)

        transport = Transport([5000, 5000])
        connection.connection_made(transport)
        connection.pause_writing()
        connection.resume_writing()
        await asyncio.sleep(0.05)
        assert not transport.aborted.is_set()

    asyncio.run(run())


def test_a_body_that_stops_is_refused_and_its_connection_closed() -> None:
    server = ServerThread(patience_s=0.2)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            answer = b"".join(iter(lambda: client.recv(4096), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408")
        error = json.loads(body)["error"]
        assert error["code"] == "body_timeout" and "after 1 bytes" in error["message"]
        require_idle_and_well(server)
    finally:
        server.close()


def test_a_closing_engine_ends_streams_with_an_error(watched: ServerThread) -> None:
    watched.core.endless = True
    with closing(begin(watched, stream=True)) as connection:
        response = connection.getresponse()
        until(lambda: watched.core.n_rounds > 5, "the reply did not begin")
        watched.engine.close()
        *_, last, done, _ = response.read().decode().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert done == "data: [DONE]"


def test_many_streams_that_are_dropped_leave_no_task_no_page_and_no_file() -> None:
    n = 300
    server = ServerThread(max_queue=n)
    try:

        def n_tasks() -> int:
            return asyncio.run_coroutine_threadsafe(count_tasks(), server.loop).result(30)

        async def count_tasks() -> int:
            return len(asyncio.all_tasks())

        def n_files() -> int:
            return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

        require_idle_and_well(server)
        until(lambda: server.service.n_connections() == 0, "the first connection stayed open")
        tasks, files = n_tasks(), n_files()
        server.core.endless = True
        connections = [begin(server, stream=True) for _ in range(n)]
        for connection in connections:
            connection.sock.recv(1)  # the stream has begun
        assert server.service.queue.n_open == n
        for connection in connections:
            connection.close()
        until(lambda: server.service.queue.n_open == 0, "replies were not ended")
        require_idle_and_well(server)
        until(lambda: server.service.n_connections() == 0, "connections stayed open")
        until(lambda: n_tasks() <= tasks, "tasks were left")
        assert n_files() <= files
    finally:
        server.close()


def reset(client: socket.socket) -> None:
    """Leave with a reset and not a goodbye: whatever was on its way is lost."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_connections_reset_before_while_and_after_prompts_are_read_leave_nothing_behind() -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    server = ServerThread(parallel=8)
    try:
        for i in range(200):
            long = " a" * 1000 if i % 3 == 1 else ""
            messages = [{"role": "user", "content": f"{draw.randrange(10**6)}{long}"}]
            more: dict[str, Any] = {"messages": messages, "ignore_eos": True, "max_tokens": 200}
            if i % 3 == 0:  # before: the request is not all there, or just so
                body = json.dumps({**PLAIN, **more}).encode()
                head = (
                    "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                ).encode()
                client = socket.create_connection(("127.0.0.1", server.port))
                client.sendall((head + body)[: draw.choice([1, 30, len(head), len(head) + 20, 10**6])])
                time.sleep(draw.choice([0.0, 0.01]))
                reset(client)
            elif i % 3 == 1:  # while
                begun = server.core.n_chunks
                connection = begin(server, stream=draw.random() < 0.7, n=draw.choice([1, 3]), **more)
                until(partial(lambda n: server.core.n_chunks > n, begun), f"seed {seed}: nothing is read")
                reset(connection.sock)
            else:  # after
                connection = begin(server, stream=True, n=draw.choice([1, 3]), **more)
                response = connection.getresponse()
                for _ in range(draw.choice([8, 20])):
                    assert response.readline(), f"seed {seed}"
                response.close()
                reset(connection.sock)
        require_idle_and_well(server)
        assert server.service.queue.n_open == 0, f"seed {seed}"
        assert server.engine.counts.waiting == server.engine.counts.running == 0, f"seed {seed}"
    finally:
        server.close()
