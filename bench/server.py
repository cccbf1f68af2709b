"""Measure what HTTP costs, and what many clients that come and leave leave behind.

    python bench/server.py                     all parts, on the bundled checkpoint
    python bench/server.py MODEL --part rates  one part, on another checkpoint

`first-token`: `flashnext-serve` is asked for streamed chats by 1 and by 8 connections at a time, kept open:
for replies of many lengths, so that connections ask at moments of their own, and then for replies of one
length, after which all of them ask at once. A first token is late by the time from sending the request until
the first piece of text has been read, less the engine's own `first_token_ms`, which the reply tells. One
thread has all connections, and looks into no more than it needs, so that the client takes little of the
processors. Then a program asks the same of an `Engine` of its own, from as many threads: its first tokens are
late too, by reading the chat and by the way between threads. HTTP adds the rest. Longer replies, also 1 and 8
at a time, tell the processor time that the server's event loop takes for each streamed token.

`rates`: tokens a second of streamed replies over 1, 8 and 32 connections, and of the same replies in a
program, in turns.

`streams`: streams are opened, all of them idle in the queue but one, and dropped; the server's open files and
memory are read before and after.
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

from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.sampling import Sampling

SERVE = "import sys; from flashnext.cli import serve; sys.exit(serve())"
TIMEOUT_S = 300.0
TOKENS = 200
"""Of the replies that tell the processor time of a token."""

PARTS = ("first-token", "rates", "streams")
CONNECTIONS = (1, 8, 32)

LENGTHS = (5, 23, 11, 31, 8, 17, 28, 13)
"""Of replies that end, and so of requests that come, one by one."""

TEXT = b'"reasoning":"'
FIRST_TOKEN = re.compile(rb'"first_token_ms":([0-9.]+)')
END = b"data: [DONE]\n\n\r\n0\r\n\r\n"


def messages_of(n: int) -> list[dict[str, str]]:
    """A small chat, another one for each number."""
    return [{"role": "user", "content": f"What is {n} + 4?"}]


def body_of(n: int, **more: Any) -> bytes:
    """The body that asks for the reply to a small chat."""
    body = {"model": "flashnext", "messages": messages_of(n), "temperature": 0, "stream": True, **more}
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
        messages = messages_of(number)
        began_s = time.perf_counter()
        request = engine.submit(messages, sampling=Sampling(temperature=0, max_tokens=length))
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


def tell_loop(port: int, pid: int, n_connections: int, n_requests: int, numbers: Iterator[int]) -> None:
    """Print what the event loop takes for a streamed token."""
    before_s = loop_s(pid)
    n = max(n_connections, n_requests // 10)
    ask_all(port, n_connections, n, numbers, [TOKENS], ignore_eos=True)
    token_us = (loop_s(pid) - before_s) / (n * TOKENS) * 1e6
    print(f"the event loop takes {token_us:.0f} us of processor time for a streamed token")


def engine_rate(engine: Engine, n_threads: int, numbers: Iterator[int], n_tokens: int) -> float:
    """Tokens a second of as many replies at once in this program."""
    how = Sampling(temperature=0, max_tokens=n_tokens, ignore_eos=True)

    def ask(number: int) -> int:
        return len(engine.submit(messages_of(number), sampling=how).result().token_ids)

    began_s = time.perf_counter()
    with ThreadPoolExecutor(n_threads) as pool:
        n = sum(pool.map(ask, itertools.islice(numbers, n_threads)))
    return n / (time.perf_counter() - began_s)


def server_rate(port: int, n_connections: int, numbers: Iterator[int], n_tokens: int) -> float:
    """Tokens a second of as many streamed replies at once."""
    began_s = time.perf_counter()
    ask_all(port, n_connections, n_connections, numbers, [n_tokens], ignore_eos=True)
    return n_connections * n_tokens / (time.perf_counter() - began_s)


def tell_rates(
    port: int, engine: Engine, n_connections: int, n_rounds: int, numbers: Iterator[int], n_tokens: int
) -> None:
    """Print tokens a second over HTTP and in a program, and the ratio, medians of rounds in turns."""
    rates = [
        (
            server_rate(port, n_connections, numbers, n_tokens),
            engine_rate(engine, n_connections, numbers, n_tokens),
        )
        for _ in range(n_rounds)
    ]
    server, program = (statistics.median(side) for side in zip(*rates, strict=True))
    shares = sorted(server / program for server, program in rates)
    print(
        f"{n_connections} connections: {server:.1f} tokens a second, {program:.1f} in a program: share "
        f"{statistics.median(shares):.3f} (median of {n_rounds} rounds, {shares[0]:.3f} to {shares[-1]:.3f})"
    )


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


def tell_streams(port: int, pid: int, n: int, numbers: Iterator[int]) -> bool:
    """Open and drop streams, and print what they leave behind; returns whether that is nothing."""
    files, mib = state_of(pid)
    began = time.perf_counter()
    streams = open_streams(port, n)
    opened = time.perf_counter()
    files_open, mib_open = state_of(pid)
    for stream in streams:
        stream.close()
    while state_of(pid)[0] > files and time.perf_counter() - opened < TIMEOUT_S:
        time.sleep(0.05)
    gone = time.perf_counter()
    samples = ask_all(port, 1, 20, numbers, [8])
    files_after, mib_after = state_of(pid)
    print(
        f"{n} streams: opened in {opened - began:.1f} s, gone {gone - opened:.1f} s after they were dropped\n"
        f"open files {files}, {files_open} with them, {files_after} after them\n"
        f"resident {mib:.0f} MiB, {mib_open:.0f} with them, {mib_after:.0f} after them\n"
        f"the next first tokens are {statistics.median(samples):.2f} ms late"
    )
    return files_after <= files + 1


def main() -> int:
    """Run what is asked for and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", type=Path, default=BUNDLED)
    parser.add_argument("--part", choices=PARTS, action="append", help="by default all of them")
    parser.add_argument("--requests", type=int, default=200, help="requests of each sample (default 200)")
    parser.add_argument("--streams", type=int, default=2000, help="streams to open and drop (default 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of rates (default 3)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of their replies (default 64)")
    args = parser.parse_args()
    parts = args.part or PARTS
    parallel = max(CONNECTIONS) if "rates" in parts else 8
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * args.streams + 1000)), hard))
    command = [sys.executable, "-c", SERVE, str(args.checkpoint), "--port", "0", "--log-level", "warning"]
    command += ["--served-model-name", "flashnext", "--context", "4096", "--parallel", str(parallel)]
    command += ["--queue", str(args.streams + 64), "--max-connections", str(args.streams + 100)]
    with (
        Engine(args.checkpoint, context=4096, parallel=parallel) as engine,
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
            ask_engine(engine, 1, 20, numbers)
            if "first-token" in parts:
                for n_connections in CONNECTIONS[:2]:
                    tell_first_tokens(port, engine, n_connections, args.requests, numbers)
                    tell_loop(port, process.pid, n_connections, args.requests, numbers)
            if "rates" in parts:
                for n_connections in CONNECTIONS:
                    tell_rates(port, engine, n_connections, args.rounds, numbers, args.tokens)
            return int("streams" in parts and not tell_streams(port, process.pid, args.streams, numbers))
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
