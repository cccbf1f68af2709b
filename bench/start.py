"""Measure the start: from process start to first token on the bundled checkpoint.

    python bench/start.py --repeats 7

Two ways: `flashnext-serve` in a process of its own, asked for a streamed chat over HTTP from the very start
on, until the first text arrives; and `Engine` in a fresh Python process, which also tells where its time
went. Then the imports, package by package. The first start of a run, which reads files that may not be in
memory, is shown apart.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

TIMEOUT_S = 60.0
RETRY_S = 0.005
# What the console script that pip writes does, for this interpreter and also where nothing is installed.
SERVE = "import sys; from flashnext.cli import serve; sys.exit(serve())"
ENGINE = """\
import json, sys, time
start_s = float(sys.argv[1])
marks = {"interpreter": time.monotonic() - start_s}
from flashnext.engine.engine import Engine
from flashnext.engine.sampling import Sampling
marks["imports"] = time.monotonic() - start_s
with Engine() as engine:
    marks["checkpoint loaded"] = time.monotonic() - start_s
    for event in engine.generate([{"role": "user", "content": "Hello"}], sampling=Sampling(max_tokens=1)):
        if event.token_ids:
            marks.setdefault("first token", time.monotonic() - start_s)
print(json.dumps(marks))
"""
IMPORT = "import flashnext.cli, flashnext.engine.engine, flashnext.server.app"
REQUEST = dict(
    model="flashnext",
    messages=[dict(role="user", content="Hello")],
    max_tokens=4,
    temperature=0,
    stream=True,
)


class StartError(Exception):
    """A process that was to start did not answer."""


@dataclass(frozen=True)
class Imported:
    """What a top-level package adds to the start.

    Attributes:
        package: Its name.
        own_ms: Time in its own modules, those of other packages left out.
    """

    package: str
    own_ms: float


def imports_by_package(report: str) -> list[Imported]:
    """Add up the report of `python -X importtime` by top-level package, the longest first."""
    own_us: dict[str, int] = {}
    for line in report.splitlines():
        fields = line.removeprefix("import time:").split("|")
        if not line.startswith("import time:") or len(fields) != 3 or not fields[0].strip().isdigit():
            continue
        package = fields[2].strip().split(".")[0]
        own_us[package] = own_us.get(package, 0) + int(fields[0])
    return sorted((Imported(p, us / 1e3) for p, us in own_us.items()), key=lambda i: -i.own_ms)


def has_text(line: bytes) -> bool:
    """Whether a line of an event stream brings the first of a reply's text, thoughts included."""
    if not line.startswith(b"data: {"):
        return False
    choices = json.loads(line.removeprefix(b"data: ")).get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


def time_server() -> dict[str, float]:
    """Start flashnext-serve; seconds to its first answer and to its first text.

    Raises:
        StartError: It ended, or did not answer in time.
    """
    port = _free_port()
    start_s = time.monotonic()
    command = [sys.executable, "-c", SERVE, "--port", str(port)]
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        )
        try:
            response = stack.enter_context(_ask(port, start_s, process))
            marks = {"answers": time.monotonic() - start_s}
            for line in response:
                if has_text(line):
                    marks["first token"] = time.monotonic() - start_s
                    return marks
            raise StartError(f"flashnext-serve sent no text (status {response.status})")
        finally:
            process.terminate()


def time_engine() -> dict[str, float]:
    """Start a Python process that makes an Engine; seconds from its start to each of its marks.

    Raises:
        StartError: It failed.
    """
    command = [sys.executable, "-c", ENGINE, str(time.monotonic())]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if finished.returncode:
        raise StartError(f"Engine: exit status {finished.returncode}\n{finished.stderr[-2000:]}")
    marks: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return marks


def time_imports() -> list[Imported]:
    """Import what flashnext-serve imports, and say what each package takes."""
    command = [sys.executable, "-X", "importtime", "-c", IMPORT]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if finished.returncode:
        raise StartError(f"import: exit status {finished.returncode}\n{finished.stderr[-2000:]}")
    return imports_by_package(finished.stderr)


def summarize(name: str, runs: list[dict[str, float]]) -> Iterable[str]:
    """A line for each mark: the first start, then median, least and greatest of the later ones."""
    first, *later = runs
    for mark in first:
        values = [run[mark] for run in later or runs]
        yield (
            f"| {name} | {mark} | {statistics.median(values):.3f} | {min(values):.3f}-{max(values):.3f} "
            f"| {first[mark]:.3f} |"
        )


def _ask(port: int, start_s: float, process: subprocess.Popen[bytes]) -> http.client.HTTPResponse:
    """Post the request again and again until the server takes it."""
    body = json.dumps(REQUEST)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    while time.monotonic() - start_s < TIMEOUT_S:
        if process.poll() is not None:
            errors = process.stderr.read().decode(errors="replace") if process.stderr else ""
            raise StartError(f"flashnext-serve: exit status {process.returncode}\n{errors[-2000:]}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", "/v1/chat/completions", body, headers)
            response = connection.getresponse()
        except ConnectionError:
            connection.close()
            time.sleep(RETRY_S)
            continue
        if response.status == http.client.SERVICE_UNAVAILABLE:  # it listens, and is still loading
            connection.close()
            time.sleep(RETRY_S)
            continue
        if response.status != http.client.OK:
            message = response.read()[:500]
            connection.close()
            raise StartError(f"flashnext-serve answered {response.status}: {message!r}")
        return response  # holds the socket from here on: the request asks to close it
    raise StartError(f"flashnext-serve did not answer within {TIMEOUT_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="starts of each kind, the first apart")
    parser.add_argument("--top", type=int, default=12, help="packages of the import to list")
    args = parser.parse_args()
    ways: dict[str, Callable[[], dict[str, float]]] = {"flashnext-serve": time_server, "Engine": time_engine}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(args.repeats):  # in turns, so that both see the same machine
        for name, way in ways.items():
            runs[name].append(way())
    print(
        "| start of | until | median s | least-greatest | the first start |\n| --- | --- | --- | --- | --- |"
    )
    for name, measured in runs.items():
        print("\n".join(summarize(name, measured)))
    packages = time_imports()
    print(f"\nImports: {sum(p.own_ms for p in packages):.0f} ms under -X importtime")
    for package in packages[: args.top]:
        print(f"  {package.own_ms:7.1f} ms  {package.package}")


if __name__ == "__main__":
    try:
        main()
    except StartError as error:
        sys.exit(str(error))
