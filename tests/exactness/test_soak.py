"""After many requests and clients that vanish the server holds what it held, and says what it said."""

from __future__ import annotations

import concurrent.futures
import json
import os
import random
import socket
import struct
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from flashnext import _core
from support.pages import pages_came_back
from support.serving import ServerThread

FULL = bool(os.environ.get("FLASHNEXT_FULL"))
N_REQUESTS, N_RESETS = (1000, 200) if FULL else (100, 20)
N_AT_ONCE = 6
# What the interpreter, the event loop and the allocator may still take once all has been used; a session
# that was kept would be 0.7 MiB, a page 0.08.
MOST_GROWTH_MIB = 16

SUM: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 3 + 4?"}], "temperature": 0}
KNOWN = "3 + 4 = 7"
TOPICS = ("the sea", "a small town", "prime numbers", "sorting a list", "bread", "two trains", "the moon")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread(parallel=8, drafts=3, max_queue=64, prefix_cache_gib=0.005)
    yield server
    server.close()


@pytest.fixture(scope="module")
def drafting() -> Iterator[ServerThread]:
    server = ServerThread(drafts=3, prices=False)  # prices may find that drafts do not pay here
    yield server
    server.close()


def url(server: ServerThread) -> str:
    return f"http://127.0.0.1:{server.port}/v1/chat/completions"


def ask(server: ServerThread, body: dict[str, Any]) -> Any:
    response = httpx.post(url(server), json={"model": "tiny", **body}, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def sha_of(server: ServerThread, body: dict[str, Any]) -> str:
    return str(ask(server, body)["flashnext"]["token_sha"])


def distinct(i: int) -> dict[str, Any]:
    """The i-th of requests of which no two are alike."""
    text = f"Tell me {i} things about {TOPICS[i % len(TOPICS)]}. " + "Please be brief. " * (i * 7 % 40)
    settings: dict[str, Any] = (
        {"temperature": 0},
        {"temperature": 1, "seed": i},
        {"temperature": 3, "seed": i},
        {"temperature": 0.8, "seed": i, "presence_penalty": 0.5, "top_p": 0.9},
    )[i % 4]
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4 + i % 29, **settings}


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def reset(server: ServerThread, body: dict[str, Any], rng: random.Random) -> None:
    """Send a request, or a part of it, and reset the connection at a random moment."""
    content = json.dumps({"model": "tiny", **body}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    ).encode()
    whole = head + content
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(whole if rng.random() < 0.8 else whole[: rng.randrange(len(whole))])
        time.sleep(rng.choice([0, 0.002, 0.02, 0.1, 0.3]) * rng.random())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN


def leave(server: ServerThread, body: dict[str, Any], n_events: int) -> None:
    """Read some events of a stream and go."""
    with (
        httpx.Client(timeout=120) as client,
        client.stream("POST", url(server), json={"model": "tiny", "stream": True, **body}) as response,
    ):
        for at, _ in enumerate(response.iter_lines()):
            if at >= n_events:
                return


def require_idle(server: ServerThread, timeout_s: float = 30) -> None:
    """Nothing runs or waits, no connection's request is open, and all pages are back."""
    deadline = time.monotonic() + timeout_s
    while server.service.queue.n_open or server.engine.counts.running or server.engine.counts.waiting:
        assert time.monotonic() < deadline, (server.service.queue.n_open, server.engine.counts)
        time.sleep(0.01)
    assert pages_came_back(server.engine)


def all_of(server: ServerThread, numbers: range, rng: random.Random) -> dict[int, str]:
    """Ask for distinct replies, a few at once; the fingerprints of those that are not left or reset."""
    kinds = {i: rng.random() for i in numbers}
    seeds = {i: rng.randrange(2**32) for i in numbers}
    share = N_RESETS / N_REQUESTS

    def one(i: int) -> str | None:
        if kinds[i] < share:
            reset(server, {**distinct(i), "stream": i % 2 == 0}, random.Random(seeds[i]))
        elif kinds[i] < share + 0.1:
            leave(server, distinct(i), seeds[i] % 20)
        else:
            return sha_of(server, distinct(i))
        return None

    with concurrent.futures.ThreadPoolExecutor(N_AT_ONCE) as pool:
        return {i: sha for i, sha in zip(numbers, pool.map(one, numbers), strict=True) if sha}


@pytest.mark.timeout(7200 if FULL else 300)
def test_a_soak_leaves_nothing_behind_and_changes_no_neighbour(server: ServerThread) -> None:
    rng = random.Random(1)
    alone = {i: sha_of(server, {**distinct(i), "draft": False}) for i in range(-8, 0)}
    n_warm = N_REQUESTS // 3
    found = all_of(server, range(n_warm), rng)
    require_idle(server)
    before = resident_mib()
    found |= all_of(server, range(n_warm, N_REQUESTS), rng)
    neighbours = all_of(server, range(-8, 0), rng)
    require_idle(server)
    after = resident_mib()
    assert after < before + MOST_GROWTH_MIB, f"{before:.1f} MiB, then {after:.1f}"
    assert len(neighbours) > 3 and all(alone[i] == sha for i, sha in neighbours.items())
    assert all(alone[i] == sha_of(server, distinct(i)) for i in alone)
    assert len(found) > N_REQUESTS / 2 and len(set(found.values())) > 0.7 * len(found)
    for i in rng.sample(
        sorted(found), 20
    ):  # and what they were told in the crowd is what they are told alone
        assert found[i] == sha_of(server, {**distinct(i), "draft": False}), distinct(i)
    assert ask(server, SUM)["message"]["content"] == KNOWN
    print(
        f"{N_REQUESTS} requests, {len(found)} whole; {before:.1f} MiB after {n_warm}, {after:.1f} at the end"
    )


ENGLISH = (
    *(f"What is {a} + {b}?" for a, b in ((3, 4), (17, 25), (8, 9), (40, 2))),
    *(f"Count from {a} to {b}." for a, b in ((3, 9), (1, 12), (5, 8))),
    *(f"Spell {word}." for word in ("cat", "river", "house", "window")),
    *("Hello!", "Name the days of the week.", "Tell me a story about a wolf."),
)


def foreign(text: str) -> set[str]:
    """Letters of other scripts than that of English."""
    return {c for c in text if c.isalpha() and not unicodedata.name(c, "").startswith("LATIN")}


def test_english_questions_of_many_streams_get_no_letters_of_other_scripts(server: ServerThread) -> None:
    assert foreign("na\u00efve: 3 + 4 = 7 \U0001f600") == set()
    assert len(foreign("A \u0e44\u0e17\u0e22 \u0416 \u4e2d")) == 5

    def stream(i: int) -> str:
        question, thinks = ENGLISH[i % len(ENGLISH)], i % 2 == 0
        body = {
            **{"model": "tiny", "stream": True, "seed": i, "temperature": 0.6, "max_tokens": 60},
            "messages": [{"role": "user", "content": question}],
            "chat_template_kwargs": {"enable_thinking": thinks},
        }
        said = ""
        with httpx.stream("POST", url(server), json=body, timeout=120) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                    said += (delta.get("content") or "") + (delta.get("reasoning_content") or "")
        return said

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(stream, range(N_REQUESTS)))
    assert all(replies)
    assert [(i, foreign(reply)) for i, reply in enumerate(replies) if foreign(reply)] == []


def test_who_is_left_by_a_peer_after_three_tokens_says_the_same(server: ServerThread) -> None:
    body = {**distinct(3), "max_tokens": 60}
    alone = sha_of(server, {**body, "draft": False})
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        leaving = pool.submit(leave, server, {**distinct(6), "max_tokens": 60}, 8)
        assert pool.submit(sha_of, server, body).result() == alone
        leaving.result()
    require_idle(server)


def test_after_a_prompt_that_fills_the_window_a_short_one_gets_its_known_reply(server: ServerThread) -> None:
    with httpx.Client(timeout=300) as client:
        response = client.post(
            url(server).replace("chat/completions", "completions"),
            json={"model": "tiny", "prompt": [100 + i % 1000 for i in range(8150)], "max_tokens": 32},
        )
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == 8150
    assert ask(server, SUM)["message"]["content"] == KNOWN


def test_a_reply_goes_on_while_a_prompt_that_fills_the_window_is_read(server: ServerThread) -> None:
    running = {**distinct(5), "temperature": 3, "seed": 5, "max_tokens": 2000, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        begun, beside = server.core.n_rounds, server.core.driver.counts()["chunks_beside_rounds"]
        reply = pool.submit(ask, server, running)
        while server.core.n_rounds < begun + 5:
            time.sleep(0.005)
        response = httpx.post(
            url(server).replace("chat/completions", "completions"),
            json={"model": "tiny", "prompt": [100 + i % 1000 for i in range(6000)], "max_tokens": 2},
            timeout=300,
        )
        assert response.status_code == 200
        long = response.json()["choices"][0]["flashnext"]["timings"]
        assert not reply.done()
        gap_ms = reply.result()["flashnext"]["timings"]["largest_gap_ms"]
    assert server.core.driver.counts()["chunks_beside_rounds"] > beside + 5
    # The target is 250 ms, and twice that on a quiet machine; on any, a fraction of the whole prompt.
    assert gap_ms < max(500, long["prompt_ms"] / 3), long


def test_a_short_request_beside_six_long_replies_ends_before_them(server: ServerThread) -> None:
    hot = {"temperature": 3, "max_tokens": 300, "ignore_eos": True}
    ends: list[str] = []

    def run(name: str, body: dict[str, Any]) -> None:
        ask(server, body)
        ends.append(name)

    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        replies = [pool.submit(run, "long", {**distinct(i), **hot, "seed": i}) for i in range(6)]
        while server.engine.counts.running < 6:
            time.sleep(0.002)
        replies.append(pool.submit(run, "short", {**SUM, "max_tokens": 2}))
        for one in replies:
            one.result()
    assert ends[0] == "short"


def test_of_many_requests_at_once_those_beyond_the_limit_are_told_at_once_to_come_back() -> None:
    server = ServerThread(parallel=2, max_queue=8)
    try:
        server.core.endless = True
        body = {"model": "tiny", **SUM, "max_tokens": 8000, "stream": True}

        def ask_for_the_status(client: httpx.Client) -> tuple[int, str | None]:
            with client.stream("POST", url(server), json=body) as response:
                if response.status_code == 200:
                    full.wait(60)  # keep the place until all others have been answered
                else:
                    refused.append(time.monotonic() - began)
                return response.status_code, response.headers.get("retry-after")

        full, refused = threading.Event(), list[float]()
        began = time.monotonic()
        with httpx.Client(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
            with concurrent.futures.ThreadPoolExecutor(100) as pool:
                answers = [pool.submit(ask_for_the_status, client) for _ in range(100)]
                while len(refused) < 90:
                    assert time.monotonic() < began + 60, len(refused)
                    time.sleep(0.01)
                full.set()
            told = [answer.result() for answer in answers]
        assert Counter(status for status, _ in told) == {200: 10, 503: 90}
        assert all(after and 1 <= int(after) <= 60 for status, after in told if status == 503)
        require_idle(server)
        server.core.endless = False
        assert ask(server, SUM)["message"]["content"] == KNOWN
    finally:
        server.close()


def test_ten_requests_without_a_seed_differ_and_each_can_be_replayed(server: ServerThread) -> None:
    body = {**SUM, "temperature": 5, "top_p": 1, "top_k": 0, "max_tokens": 12}
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        told = [one["flashnext"] for one in pool.map(lambda _: ask(server, body), range(10))]
    assert len({one["token_sha"] for one in told}) == len({one["seed"] for one in told}) == 10
    for one in told:
        assert sha_of(server, {**body, "seed": one["seed"]}) == one["token_sha"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_in_the_draft_head_is_not_told_as_the_prompts(drafting: ServerThread, stream: bool) -> None:
    server, device = drafting, drafting.engine.loaded.device
    _core.testing.fail_dispatch(device, "draft_rows", 2, "the accelerator stalled")
    try:
        response = httpx.post(url(server), json={"model": "tiny", **SUM, "stream": stream}, timeout=60)
    finally:
        _core.testing.clear_faults(device)
    if stream:
        events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
        error = json.loads(events[-2])["error"]
    else:
        assert response.status_code == 500
        error = response.json()["error"]
    assert error["message"] == "the draft head: draft_rows: the accelerator stalled"
    assert error["code"] == "device_error" and error["param"] is None
    assert ask(server, SUM)["message"]["content"] == KNOWN
    require_idle(server)
