"""Servers for tests: the real command in a subprocess, and a thread whose core can be watched."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from flashnext.engine.defaults import DRAFTS
from flashnext.engine.engine import Engine
from flashnext.server.run import HttpServer
from flashnext.server.service import Service
from flashnext.server.settings import Settings

SERVE = [sys.executable, "-c", "import sys; from flashnext.cli import serve; sys.exit(serve())"]


class ServerProcess:
    """`flashnext-serve` that is ready.

    Attributes:
        banner: What it printed.
        url: Of the API.
    """

    def __init__(
        self, *arguments: str, environ: Mapping[str, str] | None = None, within: Sequence[str] = ()
    ) -> None:
        """Start it, where given as the last arguments of another command."""
        # A pipe that nobody reads would fill with the log.
        self._err = tempfile.TemporaryFile("w+", errors="surrogateescape")  # noqa: SIM115 - closed by close()
        self.process = subprocess.Popen(
            [*within, *SERVE, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            errors="surrogateescape",
            env={**os.environ, **(environ or {})},
        )
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("ready"):
                break
        self.banner = "".join(lines)
        found = re.search(r"http://\S+", self.banner)
        assert found, (self.process.wait(10), self.err)
        self.url = found.group()
        self.port = int(self.url.rsplit(":", 1)[1].removesuffix("/v1"))

    def end(self, signal_number: int, timeout_s: float = 30) -> tuple[int, str]:
        """Send a signal and wait; returns the exit status and what was written to stderr."""
        self.process.send_signal(signal_number)
        self.process.communicate(timeout=timeout_s)
        return self.process.returncode, self.err

    def close(self) -> None:
        """Forget what was written."""
        self._err.close()

    @property
    def err(self) -> str:
        """What was written to stderr so far."""
        self._err.seek(0)
        return self._err.read()

    @property
    def log(self) -> list[dict[str, Any]]:
        """The log so far."""
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]


@contextmanager
def server_process(
    *arguments: str, environ: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """A server for the time of a test."""
    server = ServerProcess(*arguments, environ=environ, within=within)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()
        server.close()


class WatchedCore:
    """Stands between an engine and its core.

    Attributes:
        before: Called ahead of each step with its name, "prompt" or "round"; may raise.
        endless: Replies never end by themselves: stop tokens are replaced.
        script: Tokens that each reply consists of, in place of what was drawn; its end token with them.
        n_chunks, n_rounds: Steps so far.
    """

    def __init__(self, core: Any, stop_ids: frozenset[int]) -> None:
        self._core = core
        self._stop_ids = stop_ids
        self.before: Callable[[str], object] = lambda what: None
        self.endless = False
        self.script: list[int] = []
        self._spoken: dict[Any, int] = {}
        self.n_chunks = self.n_rounds = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def begin(self, session: Any, options: Any) -> None:
        self._core.begin(session, replace(options, stop_ids=()) if self._replaces else options)

    def step(self, chunk: Sequence[Any], round: Sequence[Any]) -> list[Any]:
        if chunk:
            self.before("prompt")
            self.n_chunks += len(chunk)
        return self._watched(self._core.step(chunk, round))

    def take(self) -> list[Any]:
        self.before("round")
        return self._watched(self._core.take())

    def stop(self) -> list[Any]:
        return self._watched(self._core.stop())

    def _watched(self, landed: list[Any]) -> list[Any]:
        self.n_rounds += any(one.tokens for one in landed)
        return [self._replaced(one) for one in landed] if self._replaces else landed

    @property
    def _replaces(self) -> bool:
        return self.endless or bool(self.script)

    def _replaced(self, landed: Any) -> Any:
        fields = ("session", "scores", "snapshots", "ended", "proposed", "accepted", "error", "short")
        if self.script:
            at = self._spoken.get(landed.session, 0)
            self._spoken[landed.session] = at + len(landed.tokens)
            tokens = [
                SimpleNamespace(token=token, logprob=-1.0, top=[])
                for token in self.script[at : at + len(landed.tokens)]
            ]
        else:
            tokens = [self._replaced_token(drawn) for drawn in landed.tokens]
        return SimpleNamespace(tokens=tokens, **{name: getattr(landed, name) for name in fields})

    def _replaced_token(self, drawn: Any) -> Any:
        if drawn.token not in self._stop_ids:
            return drawn
        return SimpleNamespace(token=100, logprob=drawn.logprob, top=drawn.top)


class ServerThread:
    """The application on a real socket, in a thread of this process, over an engine whose core is watched.

    Attributes:
        loop: The event loop that serves.
    """

    def __init__(
        self,
        *,
        parallel: int = 1,
        drafts: int = DRAFTS,
        prices: bool = True,
        prefix_cache_gib: float = 0,
        **settings: Any,
    ) -> None:
        # One reply at a time, so that there is a queue; and no cache, whose states would be those of the
        # tokens that were drawn, not of those that a watched core tells in their place.
        self.engine = Engine(
            parallel=parallel, drafts=drafts, prices=prices, prefix_cache_gib=prefix_cache_gib
        )
        scheduler = self.engine._thread._scheduler
        self.core = WatchedCore(scheduler._core, self.engine._stop_ids)
        scheduler._core = self.core
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.service = Service(Settings(**{"names": ("tiny",), "drain_s": 0.0, **settings}))
        self.service.ready(self.engine)
        started = threading.Event()

        def on_start() -> None:
            self.loop = asyncio.get_running_loop()
            started.set()

        self._server = HttpServer(self.service, on_start=on_start, on_stop=lambda: None)
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()
        assert started.wait(60), "the server did not start"

    def close(self) -> None:
        """End the server and the engine."""
        self._server.should_exit = True
        self._thread.join(30)
        self.engine.close()


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Wait for something; `what` says what is wrong where it does not come."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
