"""docs/haproxy.cfg: chats stay with the server that has read them, whatever else comes or goes."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import free_port, until

CONFIG = Path(__file__).parents[2] / "docs" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="needs haproxy (.ci/apt.txt)")


class Fake(ThreadingHTTPServer):
    """A server that answers with its port."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def end(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer()

    def _answer(self) -> None:
        assert isinstance(self.server, Fake)
        self.server.asked += 1
        body = str(self.server.server_port).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Front:
    """HAProxy with the documented configuration before three servers."""

    def __init__(self, folder: Path) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.servers = [Fake() for _ in range(3)]
        self.port = free_port()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        try:
            self._start(folder)
        except BaseException:
            self.close()
            raise

    def _start(self, folder: Path) -> None:
        text = CONFIG.read_text(encoding="utf-8")
        for old, new in zip((8080, 8001, 8002, 8003), (self.port, *self.ports), strict=True):
            assert text.count(f":{old}") == 1
            text = text.replace(f":{old}", f":{new}")
        # No bound: what is seen to end late counts as open, and would send the next one elsewhere.
        for there, here in (
            ("inter 2s", "inter 100ms"),
            ("hash-balance-factor 150", "hash-balance-factor 0"),
        ):
            assert text.count(there) == 1
            text = text.replace(there, here)
        path = folder / "haproxy.cfg"
        path.write_text(text)
        assert HAPROXY is not None
        self.process = subprocess.Popen([HAPROXY, "-db", "-f", str(path)], stderr=subprocess.PIPE, text=True)
        until(self.answers, "haproxy does not answer")
        until(lambda: all(server.asked for server in self.servers), "not all servers are looked after")

    @property
    def ports(self) -> list[int]:
        return [server.server_port for server in self.servers]

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.process.communicate()[1]
        try:
            return self.client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, body: Any, **headers: str) -> int:
        """The port of the server that a request goes to."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self.client.post("/v1/chat/completions", content=json.dumps(body), headers=named)
        assert response.status_code == 200, response.text
        return int(response.text)

    def close(self) -> None:
        self.client.close()
        if self.process is not None:
            self.process.terminate()
            self.process.communicate(timeout=30)
        for server in self.servers:
            server.end()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path)
    yield front
    front.close()


def chat(system: Any, *turns: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, *[{"role": "user", "content": turn} for turn in turns]]
    return {"model": "flashnext", "messages": messages}


def test_chats_that_begin_alike_go_to_one_server_and_others_spread(front: Front) -> None:
    systems = [f"You are number {n}." for n in range(40)]
    first = {system: front.ask(chat(system, "a")) for system in systems}
    assert set(first.values()) == set(front.ports)
    assert {system: front.ask(chat(system, "a", "b")) for system in systems} == first
    parts = [{"type": "text", "text": systems[0]}]
    assert len({front.ask(chat(parts, turn)) for turn in "abc"}) == 1
    long = "a" * 300_000
    assert len({front.ask(chat(long + system, turn)) for system in systems[:1] for turn in "abc"}) == 1
    texts = {front.ask({"input": f"{n}"}) for n in range(40)}
    items = {front.ask({"input": [{"role": "user", "content": f"{n}"}]}) for n in range(40)}
    assert texts == items == set(front.ports)
    prompts = {front.ask({"prompt": f"{n} +"}) for n in range(40)}
    assert prompts == set(front.ports)


def test_a_header_outranks_the_cache_key_and_that_the_messages(front: Front) -> None:
    numbers = range(40)
    by_header = {n: front.ask(chat("x"), x_affinity=f"user {n}") for n in numbers}
    assert set(by_header.values()) == set(front.ports)
    both = {n: {**chat(f"y{n}"), "prompt_cache_key": f"k{n}"} for n in numbers}
    assert {n: front.ask(body, x_affinity=f"user {n}") for n, body in both.items()} == by_header
    by_key = {n: front.ask({**chat("x"), "prompt_cache_key": f"k{n}"}) for n in numbers}
    assert set(by_key.values()) == set(front.ports)
    assert {n: front.ask(body) for n, body in both.items()} == by_key


def test_what_says_nothing_goes_by_the_clients_address(front: Front) -> None:
    assert len({front.ask({"n": n}) for n in range(10)}) == 1
    assert len({front.ask("no object") for _ in range(10)}) == 1


def test_when_a_server_goes_only_its_own_chats_move(front: Front) -> None:
    systems = [f"You are number {n}." for n in range(40)]
    before = {system: front.ask(chat(system)) for system in systems}
    gone = front.servers.pop()
    gone.end()
    after = {system: front.ask(chat(system)) for system in systems}
    left = set(front.ports)
    assert set(after.values()) <= left
    assert {s: port for s, port in after.items() if before[s] in left} == {
        s: port for s, port in before.items() if port in left
    }
