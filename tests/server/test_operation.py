"""Running a server: who may ask, what is limited, what is logged, how it loads, stalls and ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from flashnext import _core
from flashnext.server import body, chat
from flashnext.server.settings import Defaults
from flashnext.text.jsontext import loads
from support.serving import ServerThread, free_port, server_process, until

GOLDEN = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "tiny" / "golden.jsonl").read_text("utf-8").splitlines()
]

SUM: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
PLAIN: dict[str, Any] = {"model": "tiny", "messages": SUM, "temperature": 0}
KEYS = ("first-key", "schlüssel")


@pytest.fixture(scope="module")
def strict() -> Iterator[ServerThread]:
    """A server with keys, a page's origin, small limits and its own defaults."""
    server = ServerThread(
        api_keys=KEYS,
        hosts=("box.example",),
        cors_origins=("https://page.example",),
        max_body_bytes=10_000,
        strict_fields=True,
        names=("tiny", "alias"),
        defaults=Defaults(temperature=0.0, max_tokens=5, thinking=False),
    )
    yield server
    server.close()


def ask(server: ServerThread, body: Any = PLAIN, key: str | None = KEYS[0], **more: str) -> httpx.Response:
    headers = {"content-type": "application/json", **more}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(
        f"http://127.0.0.1:{server.port}/v1/chat/completions", content=data, headers=headers, timeout=60
    )


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


# --- keys


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/tiny", "/tokenizer_info", "/openapi.json", "/nowhere"]
)
def test_without_a_key_nothing_but_health_and_metrics_is_told(path: str, strict: ServerThread) -> None:
    response = httpx.get(f"http://127.0.0.1:{strict.port}{path}")
    assert error_of(response, 401)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"
    for opened in ("/health", "/livez"):
        assert httpx.get(f"http://127.0.0.1:{strict.port}{opened}").json() == {"status": "ok"}
    assert httpx.get(f"http://127.0.0.1:{strict.port}/metrics").status_code == 200  # tells of no request


def test_a_wrong_key_is_refused_and_the_client_says_so(strict: ServerThread) -> None:
    for wrong in ("", "first-ke", "first-key2", "FIRST-KEY", "\u00fc", KEYS[0] + "\u0000"):
        headers = [(b"x-api-key", wrong.encode())] if wrong.isprintable() else []
        response = httpx.get(f"http://127.0.0.1:{strict.port}/v1/models", headers=headers)
        error_of(response, 401)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{strict.port}/v1", api_key="wrong", max_retries=0)
    with closing(client), pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_each_key_opens_as_bearer_and_as_x_api_key(strict: ServerThread) -> None:
    url = f"http://127.0.0.1:{strict.port}/v1/models"
    for key in KEYS:
        assert httpx.get(url, headers={b"x-api-key": key.encode()}).status_code == 200
        assert httpx.get(url, headers={b"authorization": b"Bearer " + key.encode()}).status_code == 200
        assert httpx.get(url, headers={b"authorization": b"bearer  " + key.encode()}).status_code == 200
    assert httpx.get(url, headers={b"authorization": b"Basic first-key"}).status_code == 401


# --- names, pages, types


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1.nip.io"]
)
def test_a_foreign_host_name_is_refused(host: str, strict: ServerThread) -> None:
    assert error_of(ask(strict, host=host), 403)["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "127.0.0.1", "[::1]:8000", "192.168.1.7", "box.example:1", "a.localhost"],
)
def test_addresses_and_given_names_are_served(host: str, strict: ServerThread) -> None:
    assert ask(strict, host=host).status_code == 200


def test_only_pages_of_given_origins_are_told_that_they_may_ask(
    strict: ServerThread, watched: ServerThread
) -> None:
    ask_first = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,authorization",
    }

    def allowed(server: ServerThread, origin: str, method: str = "OPTIONS") -> str | None:
        url = f"http://127.0.0.1:{server.port}/v1/models"
        headers = {"origin": origin, "authorization": f"Bearer {KEYS[0]}"}
        headers |= ask_first if method == "OPTIONS" else {}
        found = httpx.request(method, url, headers=headers).headers
        return next((value for name, value in found.items() if name == "access-control-allow-origin"), None)

    for method in ("OPTIONS", "GET"):
        assert allowed(strict, "https://page.example", method) == "https://page.example"
        assert allowed(strict, "https://evil.example", method) is None
        assert allowed(watched, "https://page.example", method) is None  # off by default


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"]
)
def test_a_body_that_does_not_say_it_is_json_is_refused(kind: str, strict: ServerThread) -> None:
    response = ask(strict, **{"content-type": kind})
    assert error_of(response, 415)["code"] == "unsupported_media_type"
    assert ask(strict, **{"content-type": "Application/JSON; charset=utf-8"}).status_code == 200


# --- limits


def test_a_body_beyond_the_limit_is_refused_by_its_length_and_while_it_comes(strict: ServerThread) -> None:
    body = json.dumps({**PLAIN, "messages": [{"role": "user", "content": "a" * 10_000}]}).encode()
    assert error_of(ask(strict, body), 413)["code"] == "body_too_large"

    def pieces() -> Iterator[bytes]:
        yield body

    headers = {"content-type": "application/json", "authorization": f"Bearer {KEYS[0]}"}
    url = f"http://127.0.0.1:{strict.port}/v1/chat/completions"
    assert error_of(httpx.post(url, content=pieces(), headers=headers), 413)["code"] == "body_too_large"


def test_a_header_beyond_the_limit_ends_the_connection_and_not_the_server(strict: ServerThread) -> None:
    try:
        response = ask(strict, **{"x-long": "a" * 200_000})
        assert 400 <= response.status_code < 500
    except httpx.TransportError:
        pass  # the server stops reading
    assert ask(strict).status_code == 200


def test_a_full_queue_refuses_at_once_with_a_time_to_come_back() -> None:
    server = ServerThread(max_queue=4)
    try:
        server.core.endless = True
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        with httpx.Client(timeout=60) as client:
            requests = [client.build_request("POST", url, json={**PLAIN, "stream": True}) for _ in range(9)]
            responses = [client.send(request, stream=True) for request in requests]
            assert [r.status_code for r in responses] == [200] * 5 + [503] * 4
            for refused in responses[5:]:
                refused.read()
                assert error_of(refused, 503)["code"] == "queue_full"
                assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert error_of(client.post(url, json={**PLAIN, "n": 2}), 503)["code"] == "queue_full"
            # There will never be so many places.
            error = error_of(client.post(url, json={**PLAIN, "n": 6}), 400)
            assert error["param"] == "n" and "at most 5" in error["message"]
            texts = {"model": "tiny", "prompt": ["a"] * 6}
            error = error_of(client.post(url.replace("chat/", ""), json=texts), 400)
            assert error["param"] == "prompt" and "at most 5" in error["message"]
            for response in responses:
                response.close()
        until(lambda: server.service.queue.n_open == 0, "places were not given back")
        server.core.endless = False
        assert httpx.post(url, json=PLAIN, timeout=60).status_code == 200
    finally:
        server.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_that_takes_too_long_is_ended_with_an_error(stream: bool) -> None:
    server = ServerThread(timeout_s=0.5)
    try:
        server.core.endless = True
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        server.core.before = lambda what: time.sleep(0.005)
        response = httpx.post(url, json={**PLAIN, "stream": stream}, timeout=60)
        if stream:
            *_, last, done, _ = response.text.split("\n\n")
            assert done == "data: [DONE]"
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        else:
            assert error_of(response, 504)["code"] == "timeout"
        pool = server.engine.loaded.pool
        until(lambda: pool.free == pool.total, "pages were not given back")
    finally:
        server.close()


def test_too_many_connections_are_refused_and_the_rest_is_served() -> None:
    server = ServerThread(max_connections=3)
    try:
        url = f"http://127.0.0.1:{server.port}/livez"
        clients = [httpx.Client() for _ in range(3)]
        assert [client.get(url).status_code for client in clients] == [200] * 3
        assert error_of(httpx.get(url), 503)["code"] == "too_many_connections"
        clients[0].close()
        until(lambda: httpx.get(url).status_code == 200, "the place was not given back")
        for client in clients:
            client.close()
    finally:
        server.close()


# --- fields and defaults


def test_the_servers_defaults_stand_where_a_request_says_nothing(strict: ServerThread) -> None:
    body = {"model": "alias", "messages": SUM}
    reply = ask(strict, body).json()
    assert reply["model"] == "tiny"
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "3 + 4 =", "refusal": None}
    assert reply["usage"]["completion_tokens"] == 5
    thinking = ask(
        strict, {**body, "max_tokens": 40, "chat_template_kwargs": {"enable_thinking": True}}
    ).json()
    assert thinking["choices"][0]["message"]["reasoning"] == "3 + 4 = 7. So 3 + 4 = 7."
    assert ask(strict, {**body, "reasoning_effort": "low"}).json()["choices"][0]["message"]["reasoning"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"reasoning_effort": "low"},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"reasoning_effort": "medium"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
    ],
    ids=str,
)
def test_a_chats_tokens_are_its_prompts_under_the_servers_defaults(more: Any, strict: ServerThread) -> None:
    body = {"messages": SUM, **more}
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    told = httpx.post(f"http://127.0.0.1:{strict.port}/tokenize", json=body, headers=headers).json()
    reply = ask(strict, {**body, "model": "tiny", "max_tokens": 1, "return_token_ids": True}).json()
    assert told["tokens"] == reply["prompt_token_ids"]


def test_aliases_are_listed(strict: ServerThread) -> None:
    url = f"http://127.0.0.1:{strict.port}/v1/models"
    listed = httpx.get(url, headers={"x-api-key": KEYS[0]}).json()["data"]
    assert [(model["id"], model["aliases"]) for model in listed] == [("tiny", ["alias"]), ("alias", ["tiny"])]


def test_an_unknown_field_is_refused_where_fields_are_strict(strict: ServerThread) -> None:
    assert error_of(ask(strict, {**PLAIN, "temprature": 1}), 400)["param"] == "temprature"
    nested = {**PLAIN, "stream_options": {"include_usge": True}}
    assert error_of(ask(strict, nested), 400)["param"] == "stream_options.include_usge"
    message = {**PLAIN, "messages": [*SUM, {"role": "user", "content": "x", "nmae": "ann"}]}
    assert error_of(ask(strict, message), 400)["param"] == f"messages[{len(SUM)}].nmae"


def test_an_unknown_field_is_ignored_with_one_warning(
    watched: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert ask(watched, {**PLAIN, "temprature": 1, "zz\x1b[31m": 2}).status_code == 200
    told = [r.getMessage() for r in caplog.records if r.name == "flashnext.server"]
    assert len(told) == 2
    assert "temprature" in told[0] and "\x1b" not in told[1]


# --- health


def test_health_fails_while_the_engine_hangs_and_recovers() -> None:
    server = ServerThread(stall_s=0.2)
    hang, hanging = threading.Event(), threading.Event()

    def wait(what: str) -> None:
        hanging.set()
        hang.wait(30)

    try:
        base = f"http://127.0.0.1:{server.port}"
        assert httpx.get(f"{base}/health").json() == {"status": "ok"}
        server.core.before = wait
        asking = threading.Thread(target=lambda: ask(server))
        asking.start()
        assert hanging.wait(30)
        until(lambda: httpx.get(f"{base}/health").status_code == 503, "health stayed green")
        assert httpx.get(f"{base}/health").json()["status"] == "stalled"
        assert httpx.get(f"{base}/livez").json() == {"status": "ok"}
        hang.set()
        asking.join(30)
        assert httpx.get(f"{base}/health").json() == {"status": "ok"}
    finally:
        hang.set()
        server.close()


def test_health_is_red_while_it_loads_and_requests_are_told_to_wait() -> None:
    program = (
        "import sys, time, flashnext.engine.engine as e\n"
        "real = e.load_model\n"
        "def slow(*args, **more):\n"
        "    input()\n"
        "    return real(*args, **more)\n"
        "e.load_model = slow\n"
        "from flashnext.cli import serve\n"
        "sys.exit(serve())\n"
    )
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--port", str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        base = f"http://127.0.0.1:{port}"

        def health() -> Any:
            try:
                return httpx.get(f"{base}/health").json()
            except httpx.TransportError:
                return {}

        until(lambda: health().get("stage") == "weights", "it did not begin to load")
        told = httpx.get(f"{base}/health")
        assert told.status_code == 503
        assert told.json() == {"status": "loading", "stage": "weights", "percent": 20}
        assert httpx.get(f"{base}/livez").status_code == 200
        refused = httpx.post(f"{base}/v1/chat/completions", json={**PLAIN, "model": "tiny-6bit"})
        assert error_of(refused, 503)["code"] == "loading"
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{base}/v1/models").json()["data"][0]["loaded"] is False
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        until(lambda: health() == {"status": "ok"}, "it did not become ready")
    finally:
        process.kill()
        process.communicate()


# --- the end


def begin(port: int, model: str, **more: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": model, "messages": SUM, "temperature": 0, "stream": True, **more}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    return connection


LONG: dict[str, Any] = {"ignore_eos": True, "max_tokens": 300}


def test_open_replies_end_by_themselves_and_new_connections_are_not_taken() -> None:
    with (
        server_process("--drain", "60") as server,
        closing(begin(server.port, "tiny-6bit", **LONG)) as connection,
    ):
        response = connection.getresponse()
        assert b"assistant" in response.readline()
        server.process.send_signal(signal.SIGTERM)
        text = response.read()
        assert b"shutting_down" not in text and text.endswith(b"data: [DONE]\n\n")
        assert b'"finish_reason":"length"' in text
        server.process.wait(30)
        assert server.process.returncode == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/models")


def test_a_second_signal_ends_replies_at_once() -> None:
    long = {"ignore_eos": True, "max_tokens": 8000}
    with (
        server_process("--drain", "600") as server,
        closing(begin(server.port, "tiny-6bit", **long)) as connection,
    ):
        response = connection.getresponse()
        assert b"assistant" in response.readline()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert b"shutting_down" in response.read()
        server.process.wait(20)
        assert server.process.returncode == 0
        assert "Traceback" not in server.err


# --- the log, recording and replaying


def test_the_log_has_a_line_for_each_request_and_no_text_of_it(tmp_path: Path) -> None:
    record = tmp_path / "requests.jsonl"
    with server_process("--record", str(record)) as server:
        # Without a seed, so that one is drawn and logged; and as long as it may get, whatever that one gives.
        body = {"model": "tiny-6bit", "messages": SUM, "temperature": 5, "top_k": 0, "n": 2}
        body |= {"max_tokens": 10, "ignore_eos": True}
        reply = httpx.post(f"{server.url}/chat/completions", json=body, timeout=60)
        text = {"model": "tiny-6bit", "prompt": ["Count from", [70, 71]], "seed": 3, "max_tokens": 5}
        completion = httpx.post(f"{server.url}/completions", json=text, timeout=60)
        refused = httpx.post(f"{server.url}/chat/completions", json={**body, "n": 0})
        case = next(c for c in GOLDEN if c["tools"] and "<tool_call>" in c["output_text"])
        options = {"enable_thinking": case["enable_thinking"]}
        body = {"model": "tiny-6bit", "messages": case["messages"], "tools": case["tools"], "temperature": 0}
        called = httpx.post(
            f"{server.url}/chat/completions", json={**body, "chat_template_kwargs": options}, timeout=60
        )
        ids = [r.headers["x-request-id"] for r in (reply, completion, refused, called)]
        server.end(signal.SIGTERM)
        lines = {line["id"]: line for line in server.log if line["event"] == "request"}
        assert "3 + 4" not in server.err and "Count from" not in server.err
    assert len(set(ids)) == 4
    assert lines[ids[3]]["finish"] == called.json()["choices"][0]["finish_reason"] == "tool_calls"
    line = lines[ids[0]]
    choices = reply.json()["choices"]
    assert line["seed"] == [c["flashnext"]["seed"] for c in choices]
    assert line["token_sha"] == [c["flashnext"]["token_sha"] for c in choices]
    assert (line["status"], line["prompt_tokens"], line["reply_tokens"]) == (200, [18, 18], [10, 10])
    assert line["finish"] == ["length", "length"]
    assert line["timings"] == [c["flashnext"]["timings"] for c in choices]
    assert line["cached_tokens"][0] == reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert line["drafts"] == [c["flashnext"]["drafts"] for c in choices]
    assert lines[ids[1]]["prompt_tokens"] == [completion.json()["usage"]["prompt_tokens"] - 2, 2]
    line = lines[ids[2]]
    assert (line["status"], line["path"], line["param"]) == (400, "/v1/chat/completions", "n")
    assert "error" not in line  # a refusal repeats what the request says
    for request_id in ids[:2]:
        done = replay(record, request_id)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("the same") == 2
    damaged = record.read_text(encoding="utf-8").replace(choices[1]["flashnext"]["token_sha"], "0" * 16)
    record.write_text(damaged, encoding="utf-8")
    done = replay(record, ids[0])
    assert (done.returncode, done.stdout.count("differs")) == (1, 1)
    assert "1 of 2 replies differ" in done.stderr
    assert "there is no request" in replay(record, ids[2]).stderr  # refused, so there is nothing to replay


def replay(record: Path, request_id: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from flashnext.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, "replay", str(record), request_id],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def logged(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """The line of the only request."""
    until(lambda: any(r.getMessage() == "request" for r in caplog.records), "there is no line")
    (fields,) = [r.fields for r in caplog.records if r.getMessage() == "request"]  # type: ignore[attr-defined]
    return dict(fields)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "code", "status"),
    [(_core.DeviceError, "device_error", 500), (_core.OutOfMemory, "out_of_memory", 503)],
)
def test_the_log_tells_why_a_reply_failed(
    error: type[Exception],
    code: str,
    status: int,
    stream: bool,
    watched: ServerThread,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(what: str) -> None:
        if watched.core.n_rounds == 3:
            raise error("the device fell over")

    caplog.set_level(logging.INFO, "flashnext")
    watched.core.before = fail
    ask(watched, {**PLAIN, "stream": stream})
    line = logged(caplog)
    assert (line["code"], line["error"], line["finish"]) == (code, "the device fell over", "failed")
    assert line["status"] == (200 if stream else status)


def test_a_failure_of_our_own_is_told_once_with_its_request(
    watched: ServerThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(chat, "ChatResponse", fail)
    caplog.set_level(logging.INFO)
    response = ask(watched)
    assert error_of(response, 500)["code"] == "internal"
    assert logged(caplog)["code"] == "internal"
    (told,) = [r for r in caplog.records if r.exc_info]
    assert told.fields == {"id": response.headers["x-request-id"]}  # type: ignore[attr-defined]
    assert "planted" in str(told.exc_info)
    until(lambda: watched.engine.counts.running == 0, "the reply was not ended")


def test_all_that_is_written_to_the_log_has_its_form() -> None:
    with server_process("--log-format", "json") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"NO HTTP AT ALL\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400")
        server.end(signal.SIGTERM)
        (line,) = [line for line in server.err.splitlines() if "Invalid HTTP" in line]
        assert json.loads(line)["level"] == "warning"


def test_choices_share_one_reading_of_their_prompt(
    watched: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, n = watched.engine.template.render, []

    def counted(*args: Any, **more: Any) -> Any:
        n.append(1)
        return render(*args, **more)

    monkeypatch.setattr(watched.engine.template, "render", counted)
    assert len(ask(watched, {**PLAIN, "n": 5}).json()["choices"]) == 5
    assert len(n) == 1


@pytest.mark.parametrize("n", [10, 100_000])
def test_a_long_body_is_not_parsed_by_the_event_loop(
    n: int, watched: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def thread() -> threading.Thread:
        return threading.current_thread()

    threads: list[threading.Thread] = []

    def watched_loads(*args: Any, **more: Any) -> Any:
        threads.append(threading.current_thread())
        return loads(*args, **more)

    monkeypatch.setattr(body, "loads", watched_loads)
    assert ask(watched, {**PLAIN, "metadata": {"a": "a" * n}}).status_code == 200
    loop_thread = asyncio.run_coroutine_threadsafe(thread(), watched.loop).result(30)
    assert [one is loop_thread for one in threads] == [n == 10]


def test_prompts_are_logged_where_that_is_asked_for() -> None:
    with server_process("--log-prompts", "--log-format", "text") as server:
        httpx.post(f"{server.url}/chat/completions", json={**PLAIN, "model": "tiny-6bit"}, timeout=60)
        server.end(signal.SIGTERM)
        assert "What is 3 + 4?" in server.err
