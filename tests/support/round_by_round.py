"""A core of which a test sees every token, however fast rounds are beside the test's own thread."""

from __future__ import annotations

from collections.abc import Sequence

from flashnext.engine.core import Landed, Session
from flashnext.engine.loaded_core import LoadedCore


class RoundByRound(LoadedCore):
    """Rounds do not go on by themselves: one lands whenever the scheduler takes what has landed."""

    _going: Sequence[Session] = ()

    def start(self, sessions: Sequence[Session]) -> None:
        """Remember whose rounds are wanted."""
        self._going = sessions

    def take(self) -> Sequence[Landed]:
        """Run one round."""
        return self.step([], self._going)

    def stop(self) -> Sequence[Landed]:
        """Forget them; nothing is in flight."""
        self._going = ()
        return []
