"""`Core` over a loaded model, round by round on the engine's own thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from flashnext import _core
from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.engine.core import ChunkPart, CoreOptions, Drawn, Landed, ReplyOptions, Session
from flashnext.engine.load import MAX_WINDOW, Loaded
from flashnext.errors import FlashnextError, InvalidArgument, OutOfPages

# The runner counts a prompt's tokens only for a sampling that penalizes; the reply's own comes with `begin`.
_COUNTING = _core.Sampling(repetition=2.0)


class _Session:
    """A session and how far its reply is."""

    def __init__(self, inner: _core.Session) -> None:
        self.inner = inner
        self.options: ReplyOptions | None = None
        self.ended = False
        self.n_drawn = 0
        self.counts = (0, 0)  # of drafts, as far as they have been reported

    @property
    def n_pages(self) -> int:
        return self.inner.n_pages

    def close(self) -> None:
        self.inner.close()

    @property
    def n_drafts(self) -> int:
        """Most drafts of the round after the next step, which draws a token at least."""
        if self.options is None:
            return 0
        left = self.options.end - self.options.n_prompt - self.n_drawn
        return max(0, min(self.options.n_drafts, left - 2))


@dataclass(frozen=True)
class _Landed:
    """See `Landed`."""

    session: _Session
    tokens: Sequence[Drawn] = ()
    ended: bool = False
    proposed: int = 0
    accepted: int = 0
    error: Exception | None = None
    short: bool = False


class LoadedCore:
    """The core of a loaded model.

    Resumed replies are drawn anew, prompt and all, so `prompt_equals_window` is False whatever the device
    says. Sessions are not forked.
    """

    least_shared = 0
    prompt_equals_window = False

    def __init__(self, loaded: Loaded, n_tokens: int, options: CoreOptions | None = None) -> None:
        """Make the runner.

        Args:
            loaded: The model.
            n_tokens: Ids at or beyond it are padding of the vocabulary and are never drawn.
            options: How rounds are run.
        """
        self._loaded = loaded
        self._runner = _core.Runner(loaded.model, n_tokens)
        self._going: list[_Session] = []
        self._woken = threading.Event()
        self.max_chunk = self._runner.max_chunk
        self.max_sequences = (options or CoreOptions()).round_rows
        self.n_pages = loaded.pool.total

    def free_pages(self) -> int:
        """Count the free pages."""
        return self._loaded.pool.free

    def pages(self, n_positions: int) -> int:
        """Count the pages of n positions and two windows."""
        # Windows take pages two windows ahead (cpp/session/session.cpp).
        return -(-min(n_positions + 2 * MAX_WINDOW, self._loaded.context) // PAGE_TOKENS)

    def open(self) -> Session:
        """Make the session of a new sequence."""
        return _Session(_core.Session(self._loaded.model, self._loaded.pool))

    def fork(self, session: Session) -> Session:
        """Refuse: with `least_shared` 0 nobody asks."""
        raise InvalidArgument("fork: sessions of this core cannot be forked")

    def begin(self, session: Session, options: ReplyOptions) -> None:
        """Begin a reply."""
        cast(_Session, session).options = options

    def step(self, chunk: Sequence[ChunkPart], round: Sequence[Session]) -> list[Landed]:
        """Read each part of the chunk, then run the round."""
        landed: list[Landed] = [self._read(part) for part in chunk]
        return landed + self._round(cast(Sequence[_Session], round))

    def start(self, sessions: Sequence[Session]) -> None:
        """Choose whose rounds `take` runs."""
        self._going = list(cast(Sequence[_Session], sessions))

    def take(self) -> list[Landed]:
        """Run one round."""
        if self._woken.is_set():
            self._woken.clear()
            return []
        return self._round(self._going)

    def stop(self) -> list[Landed]:
        """Run no more rounds; none is in flight."""
        self._going = []
        return []

    def wake(self) -> None:
        """Let `take` return without a round."""
        self._woken.set()

    def idle(self) -> bool:
        """Do nothing."""
        return False

    def _read(self, part: ChunkPart) -> _Landed:
        session = cast(_Session, part.session)
        sampling = session.options.sampling if session.options and part.last else _COUNTING
        n_drafts = session.n_drafts if part.last else 0
        try:
            drawn = self._runner.prompt(session.inner, part.tokens, part.last, sampling, n_drafts)
        except OutOfPages:
            return _Landed(session, short=True)
        except (FlashnextError, MemoryError) as error:
            return _Landed(session, error=error)
        return self._landed(session, drawn) if part.last else _Landed(session)

    def _round(self, sessions: Sequence[_Session]) -> list[Landed]:
        going = [s for s in sessions if not s.ended]
        if not going:
            return []
        try:
            drawn = self._runner.round([s.inner for s in going], [s.n_drafts for s in going])
        except OutOfPages:  # nothing of it has run
            if len(going) == 1:
                return [_Landed(going[0], short=True)]
            return [landed for one in going for landed in self._round([one])]
        return [self._landed(s, tokens) for s, tokens in zip(going, drawn, strict=True)]

    def _landed(self, session: _Session, drawn: Sequence[Drawn]) -> _Landed:
        options = session.options
        assert options is not None
        session.n_drawn += len(drawn)
        over = {-1, *options.stop_ids}
        session.ended = (
            any(one.token in over for one in drawn) or options.n_prompt + session.n_drawn >= options.end
        )
        if drawn[-1].token < 0:
            return _Landed(session, drawn, ended=True)
        before, session.counts = session.counts, self._runner.draft_counts(session.inner)
        proposed, accepted = (now - was for now, was in zip(session.counts, before, strict=True))
        return _Landed(session, drawn, session.ended, proposed, accepted)
