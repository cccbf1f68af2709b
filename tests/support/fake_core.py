"""A core that plays replies from a script, to test the engine's own conduct, failures included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flashnext.engine.core import Tokens


class FakeSession:
    """A sequence of the fake core."""

    def __init__(self, core: FakeCore) -> None:
        self.core = core
        self.prompt: list[int] = []
        self.reply: list[int] = []
        self.n_drawn = 0
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.core.open_sessions.remove(self)

    def draw(self) -> int:
        self.n_drawn += 1
        return self.reply[self.n_drawn - 1]


class FakeCore:
    """Replies to a prompt with `script(prompt)`; `before` is called ahead of every step and may raise."""

    max_chunk = 4
    n_pages = 100
    page_tokens = 8

    def __init__(self, script: Callable[[list[int]], list[int]]) -> None:
        self.script = script
        self.before: Callable[[str, Any], object] = lambda what, detail: None
        self.open_sessions: list[FakeSession] = []
        self.chunks: list[list[int]] = []
        self.rounds: list[int] = []

    def open(self) -> FakeSession:
        self.before("open", None)
        session = FakeSession(self)
        self.open_sessions.append(session)
        return session

    def prompt(self, session: Any, tokens: Tokens, last: bool, sampling: Any) -> int:
        assert isinstance(session, FakeSession) and not session.closed
        assert tokens.dtype == np.int32 and 0 < len(tokens) <= self.max_chunk
        self.before("prompt", tokens.tolist())
        self.chunks.append(tokens.tolist())
        session.prompt += tokens.tolist()
        if not last:
            return -1
        session.reply = self.script(session.prompt)
        return session.draw()

    def round(self, sessions: Sequence[Any]) -> list[int]:
        assert sessions and not any(s.closed for s in sessions)
        self.before("round", [s.prompt for s in sessions])
        self.rounds.append(len(sessions))
        return [s.draw() for s in sessions]

    def logprobs(self, session: Any) -> tuple[float, list[tuple[int, float]]]:
        return -0.5, [(session.reply[session.n_drawn - 1], -0.5), (0, -2.0)]
