"""A core that plays replies from a script, to test the engine's own conduct, failures included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flashnext.engine.core import Tokens


@dataclass
class FakeDrawn:
    """A token of a script."""

    token: int
    logprob: float = -0.5

    @property
    def top(self) -> list[tuple[int, float]]:
        return [(self.token, -0.5), (0, -2.0)]


class FakeSession:
    """A sequence of the fake core."""

    def __init__(self, core: FakeCore) -> None:
        self.core = core
        self.prompt: list[int] = []
        self.reply: list[int] = []
        self.n_drawn = self.n_drafts = 0
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.core.open_sessions.remove(self)

    def draw(self) -> FakeDrawn:
        self.n_drawn += 1
        return FakeDrawn(self.reply[self.n_drawn - 1])


class FakeCore:
    """Replies to a prompt with `script(prompt)`; `before` is called ahead of every step and may raise."""

    max_chunk = 4
    n_pages = 100
    accepted = 0  # drafts that each round keeps

    def __init__(self, script: Callable[[list[int]], list[int]]) -> None:
        self.script = script
        self.before: Callable[[str, Any], object] = lambda what, detail: None
        self.open_sessions: list[FakeSession] = []
        self.chunks: list[list[int]] = []
        self.rounds: list[int] = []

    def pages(self, n_positions: int) -> int:
        return -(-n_positions // 8)

    def open(self) -> FakeSession:
        self.before("open", None)
        session = FakeSession(self)
        self.open_sessions.append(session)
        return session

    def prompt(
        self, session: Any, tokens: Tokens, last: bool, sampling: Any, n_drafts: int
    ) -> list[FakeDrawn]:
        assert isinstance(session, FakeSession) and not session.closed
        assert tokens.dtype == np.int32 and 0 < len(tokens) <= self.max_chunk
        self.before("prompt", tokens.tolist())
        self.chunks.append(tokens.tolist())
        session.n_drafts = n_drafts
        session.prompt += tokens.tolist()
        if not last:
            return []
        session.reply = self.script(session.prompt)
        return [session.draw()]

    def round(self, sessions: Sequence[Any], n_drafts: Sequence[int]) -> list[list[FakeDrawn]]:
        assert len(n_drafts) == len(sessions)
        assert sessions and not any(s.closed for s in sessions)
        self.before("round", [s.prompt for s in sessions])
        self.rounds.append(len(sessions))
        drawn = []
        for session, n in zip(sessions, session_drafts(sessions), strict=True):
            drawn.append([session.draw() for _ in range(1 + min(n, self.accepted))])
        for session, n in zip(sessions, n_drafts, strict=True):
            session.n_drafts = n
        return drawn


def session_drafts(sessions: Sequence[Any]) -> list[int]:
    """How many drafts each session's round verifies: no more than its script goes on."""
    return [min(s.n_drafts, len(s.reply) - s.n_drawn - 1) for s in sessions]
