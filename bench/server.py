"""Measure what HTTP adds to a reply, and what many clients that come and leave leave behind.

    python bench/server.py --requests 200 --streams 2000

First `flashnext-serve` on the bundled checkpoint is asked for streamed chats by 1 and by 8 connections at a
time, kept open. What HTTP adds to the first token is the time from sending the request until the first piece
of text is there, less the engine's own `first_token_ms`, which the reply tells. Then streams are opened, all
of them idle in the queue but one, and dropped; the server's open files and memory are read before and after.
"""

from __future__ import annotations

import argparse
import http.client
import json
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

SERVE = "import sys; from flashnext.cli import serve; sys.exit(serve())"
HEADERS = {"Content-Type": "application/json"}
TIMEOUT_S = 300.0


def body_of(n: int, **more: Any) -> str:
    """A small chat, another one for each number."""
    messages = [{"role": "user", "content": f"What is {n % 90} + 4?"}]
    return json.dumps({"model": "flashnext", "messages": messages, "temperature": 0, "stream": True, **more})


def added_ms(connection: http.client.HTTPConnection, n: int) -> float:
    """Ask once; returns what HTTP added to the first token."""
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body_of(n, max_tokens=8), HEADERS)
    response = connection.getresponse()
    first_s = told_ms = None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        choice = json.loads(line[6:])["choices"][0]
        if first_s is None and choice["delta"].get("reasoning"):
            first_s = time.perf_counter() - began
        if "flashnext" in choice:
            told_ms = choice["flashnext"]["timings"]["first_token_ms"]
    if first_s is None or told_ms is None:
        raise SystemExit(f"server: the reply had no text (status {response.status})")
    return first_s * 1e3 - float(told_ms)


def ask_all(port: int, n_connections: int, n_requests: int) -> list[float]:
    """Ask from several connections at a time; returns what HTTP added to each first token."""
    samples: list[float] = []

    def client(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        for i in range(n_requests // n_connections):
            samples.append(added_ms(connection, first + i))
        connection.close()

    threads = [threading.Thread(target=client, args=(i * 100,)) for i in range(n_connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return samples


def state_of(pid: int) -> tuple[int, float]:
    """Open files and resident MiB of a process (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident_kib = int(status.split("VmRSS:")[1].split()[0])
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), resident_kib / 1024


def open_streams(port: int, n: int) -> list[socket.socket]:
    """Send n requests for endless replies, and wait until each stream has begun."""
    body = body_of(1, ignore_eos=True).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    request = head.encode() + b"Content-Type: application/json\r\n\r\n" + body
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
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = 0
            for line in process.stdout:
                if line.startswith("address"):
                    port = int(line.rsplit(":", 1)[1].removesuffix("/v1\n"))
                if line.startswith("ready"):
                    break
            ask_all(port, 1, 20)  # warm-up
            for n_connections in (1, 8):
                samples = sorted(ask_all(port, n_connections, args.requests))
                p90 = samples[int(len(samples) * 0.9)]
                print(
                    f"{n_connections} connections: the first token comes {statistics.median(samples):.2f} ms "
                    f"later by HTTP (median of {len(samples)}; 90 % below {p90:.2f} ms)"
                )
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
            samples = ask_all(port, 1, 20)
            files_after, mib_after = state_of(process.pid)
            print(
                f"{args.streams} streams: opened in {opened - began:.1f} s, gone {gone - opened:.1f} s after "
                f"they were dropped\nopen files {files}, {files_open} with them, {files_after} after them\n"
                f"resident {mib:.0f} MiB, {mib_open:.0f} with them, {mib_after:.0f} after them\n"
                f"the next request: HTTP adds {statistics.median(samples):.2f} ms"
            )
            return int(files_after > files + 1)
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
