"""Measure what HTTP adds to a reply, and what many clients that come and leave leave behind.

    python bench/server.py --requests 200 --streams 2000

First `flashnext-serve` on the bundled checkpoint is asked for streamed chats by 1 and by 8 connections at a
time, kept open: for replies of many lengths, so that connections ask at moments of their own, and then for
replies of one length, after which all of them ask at once. A first token is late by the time from sending
the request until the first piece of text has been read, less the engine's own `first_token_ms`, which the
reply tells. One thread has all connections, and looks into no more than it needs, so that the client takes
little of the processors. Then a program asks the same of an `Engine` of its own, from as many threads: its
first tokens are late too, by reading the chat and by the way between threads. HTTP adds the rest.

Longer replies, also 1 and 8 at a time, tell the processor time that the server's event loop takes for each
streamed token. Then streams are opened, all of them idle in the queue but one, and dropped; the server's
open files and memory are read before and after.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flashnext.engine.engine import Engine
from flashnext.engine.sampling import Sampling

SERVE = "import sys; from flashnext.cli import serve; sys.exit(serve())"
TIMEOUT_S = 300.0
TOKENS = 200
"""Of the replies that tell the processor time of a token."""

LENGTHS = (5, 23, 11, 31, 8, 17, 28, 13)
"""Of replies that end, and so of requests that come, one by one."""

TEXT = b'"reasoning":"'
FIRST_TOKEN = re.compile(rb'"first_token_ms":([0-9.]+)')
END = b"data: [DONE]\n\n\r\n0\r\n\r\n"


def body_of(n: int, **more: Any) -> bytes:
    """A small chat, another one for each number."""
    messages = [{"role": "user", "content": f"What is {n} + 4?"}]
    body = {"model": "flashnext", "messages": messages, "temperature": 0, "stream": True, **more}
    return json.dumps(body).encode()


def request_of(body: bytes) -> bytes:
    """The bytes of a request."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + body


class Client:
    """A connection that asks one streamed chat after the other.

    Attributes:
        socket: Of the connection.
    """

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._sent_s = 0.0
        self._first_s: float | None = None
        self._seen = b""

    def send(self, request: bytes) -> None:
        """Send a request."""
        self._seen, self._first_s = b"", None
        self._sent_s = time.perf_counter()
        self.socket.sendall(request)

    def read(self) -> float | None:
        """Read what is there; returns at the end of a reply by how much its first token was late, in ms."""
        came = self.socket.recv(1 << 16)
        if not came:
            raise SystemExit(f"server: a connection was closed inside a reply: {self._seen[-500:]!r}")
        self._seen += came
        if self._first_s is None and TEXT in self._seen:
            self._first_s = time.perf_counter()
        if not self._seen.endswith(END):
            return None
        told = FIRST_TOKEN.search(self._seen)
        if self._first_s is None or told is None:
            raise SystemExit(f"server: the reply had no text: {self._seen[:500]!r}")
        return (self._first_s - self._sent_s) * 1e3 - float(told[1])


def ask_all(
    port: int,
    n_connections: int,
    n_requests: int,
    numbers: Iterator[int],
    lengths: Sequence[int],
    **more: Any,
) -> list[float]:
    """Ask from several connections at a time for replies of these lengths in turn, over and over.

    Returns by how much each first token was late, in ms.
    """
    samples: list[float] = []
    turns = itertools.islice(itertools.cycle(lengths), n_requests)
    requests = iter([request_of(body_of(next(numbers), max_tokens=n, **more)) for n in turns])
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for request in itertools.islice(requests, n_connections):
            client = Client(port)
            selector.register(stack.enter_context(client.socket), selectors.EVENT_READ, client)
            client.send(request)
        while len(samples) < n_requests:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise SystemExit(f"server: nothing came for {TIMEOUT_S:g} s")
            for key, _ in ready:
                late_ms = key.data.read()
                if late_ms is None:
                    continue
                samples.append(late_ms)
                for request in itertools.islice(requests, 1):
                    key.data.send(request)
                    break
                else:
                    selector.unregister(key.fileobj)
    return samples


def ask_engine(engine: Engine, n_threads: int, n_requests: int, numbers: Iterator[int]) -> list[float]:
    """Ask an engine of this process from several threads; by how much first tokens are late, in ms."""
    turns = itertools.islice(itertools.cycle(LENGTHS), n_requests)

    def ask(number: int, length: int) -> float:
        body = json.loads(body_of(number))
        began_s = time.perf_counter()
        request = engine.submit(body["messages"], sampling=Sampling(temperature=0, max_tokens=length))
        next(request)
        late_ms = (time.perf_counter() - began_s) * 1e3
        first_ms = request.result().timings.first_token_ms
        assert first_ms is not None
        return late_ms - first_ms

    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(ask, numbers, turns))


def tell_first_tokens(
    port: int, engine: Engine, n_connections: int, n_requests: int, numbers: Iterator[int]
) -> None:
    """Print by how much first tokens are late over HTTP and in a program, and the difference."""
    http = sorted(ask_all(port, n_connections, n_requests, numbers, LENGTHS))
    program = sorted(ask_engine(engine, n_connections, n_requests, numbers))
    middle_ms, p90_ms = statistics.median(http), http[int(len(http) * 0.9)]
    program_ms = statistics.median(program)
    print(
        f"{n_connections} connections: first tokens are {middle_ms:.2f} ms late (median of {len(http)}; 90 % "
        f"below {p90_ms:.2f} ms), in a program {program_ms:.2f} ms: HTTP adds {middle_ms - program_ms:.2f} ms"
    )
    if n_connections > 1:
        together = statistics.median(ask_all(port, n_connections, n_requests, numbers, LENGTHS[:1]))
        print(f"where all connections ask at once they are {together:.2f} ms late")


def loop_s(pid: int) -> float:
    """Processor time of a process's first thread so far, which runs the event loop (Linux)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) * 1e-9


def state_of(pid: int) -> tuple[int, float]:
    """Open files and resident MiB of a process (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident_kib = int(status.split("VmRSS:")[1].split()[0])
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), resident_kib / 1024


def open_streams(port: int, n: int) -> list[socket.socket]:
    """Send n requests for endless replies, and wait until each stream has begun."""
    request = request_of(body_of(1, ignore_eos=True))
    streams = [socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) for _ in range(n)]
    for stream in streams:
        stream.sendall(request)
    for stream in streams:
        seen = stream.recv(4096)
        if not seen.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"server: a stream was refused: {seen[:200]!r}")
    return streams


def main() -> int:
    """Run all of it and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=200, help="requests of each sample (default 200)")
    parser.add_argument("--streams", type=int, default=2000, help="streams to open and drop (default 2000)")
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * args.streams + 1000)), hard))
    command = [sys.executable, "-c", SERVE, "--port", "0", "--log-level", "warning", "--parallel", "8"]
    command += ["--queue", str(args.streams + 64), "--max-connections", str(args.streams + 100)]
    with (
        Engine(parallel=8) as engine,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            port = 0
            for line in process.stdout:
                if line.startswith("address"):
                    port = int(line.rsplit(":", 1)[1].removesuffix("/v1\n"))
                if line.startswith("ready"):
                    break
            numbers = itertools.count()  # no prompt comes twice
            ask_all(port, 1, 20, numbers, [8])  # warm-up
            for n_connections in (1, 8):
                tell_first_tokens(port, engine, n_connections, args.requests, numbers)
                before_s = loop_s(process.pid)
                n = max(n_connections, args.requests // 10)
                ask_all(port, n_connections, n, numbers, [TOKENS], ignore_eos=True)
                token_us = (loop_s(process.pid) - before_s) / (n * TOKENS) * 1e6
                print(f"the event loop takes {token_us:.0f} us of processor time for a streamed token")
            files, mib = state_of(process.pid)
            began = time.perf_counter()
            streams = open_streams(port, args.streams)
            opened = time.perf_counter()
            files_open, mib_open = state_of(process.pid)
            for stream in streams:
                stream.close()
            while state_of(process.pid)[0] > files and time.perf_counter() - opened < TIMEOUT_S:
                time.sleep(0.05)
            gone = time.perf_counter()
            samples = ask_all(port, 1, 20, numbers, [8])
            files_after, mib_after = state_of(process.pid)
            print(
                f"{args.streams} streams: opened in {opened - began:.1f} s, gone {gone - opened:.1f} s after "
                f"they were dropped\nopen files {files}, {files_open} with them, {files_after} after them\n"
                f"resident {mib:.0f} MiB, {mib_open:.0f} with them, {mib_after:.0f} after them\n"
                f"the next first tokens are {statistics.median(samples):.2f} ms late"
            )
            return int(files_after > files + 1)
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
