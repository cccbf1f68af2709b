"""`Core` over a loaded model: the driver of its rounds, and its pages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast

import numpy as np

from flashnext import _core
from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.engine.core import (
    Bytes,
    ChunkPart,
    CoreOptions,
    Features,
    Floats,
    Landed,
    ReplyOptions,
    Session,
    Snapshot,
    Tokens,
)
from flashnext.engine.defaults import MAX_WINDOW
from flashnext.engine.grammars import MaskSource
from flashnext.engine.load import Loaded
from flashnext.engine.sizes import n_pages


class LoadedCore:
    """The core of a loaded model; see `Core`."""

    least_shared = PAGE_TOKENS

    def __init__(self, loaded: Loaded, n_tokens: int, options: CoreOptions | None = None) -> None:
        """Make the driver.

        Args:
            loaded: The model.
            n_tokens: Ids at or beyond it are padding of the vocabulary and are never drawn.
            options: How rounds are run.
        """
        options = options or CoreOptions()
        self._loaded = loaded
        self._options = options
        self._masks = MaskSource(n_tokens)
        self.driver = _core.Driver(
            loaded.model,
            n_tokens,
            row_limit=options.round_rows,
            lone=options.lone,
            prices=options.prices,
            serial_drafts=options.serial_drafts,
            masks=self._masks,
        )
        self.max_chunk = self.driver.max_chunk
        self.max_sequences = self.driver.max_sequences
        self.n_pages = loaded.pool.total
        self.prompt_equals_window = loaded.device.limits.prompt_equals_window
        self.block_bytes = loaded.model.snapshot_bytes
        self.page_bytes = loaded.pool.page_bytes

    def free_pages(self) -> int:
        """Count the free pages."""
        return self._loaded.pool.free

    def idle_page_bytes(self) -> int:
        """Sum what is allocated for pages that nobody has; from any thread."""
        pool = self._loaded.pool
        # Taken pages are counted first: one that is taken in between makes the sum too large, never negative.
        taken = pool.total - pool.free
        return max(0, pool.allocated_bytes - taken * pool.page_bytes)

    def trim(self, n_pages: int) -> None:
        """Give back memory of free pages."""
        self._loaded.pool.trim(max(0, n_pages))

    def pages(self, n_positions: int) -> int:
        """Count the pages of n positions and two windows."""
        return n_pages(min(n_positions + 2 * MAX_WINDOW, self._loaded.context))

    def open(self, axes: Tokens | None = None) -> Session:
        """Make the session of a new sequence."""
        return _placed(_core.Session(self._loaded.model, self._loaded.pool), axes)

    def fork(self, session: Session, axes: Tokens | None = None) -> Session:
        """Make a session with the same committed prompt rows."""
        return _placed(cast(_core.Session, session).fork(), axes)

    def features(self, values: Floats) -> Features:
        """Bring features to the device."""
        return _core.Features(self._loaded.model, np.ascontiguousarray(values, np.float32))

    def snapshot_pages(self) -> int:
        """Count the pages that only snapshots have."""
        return self._loaded.pool.of_snapshots

    def snapshot_bytes(self) -> int:
        """Sum the blocks of all snapshots."""
        return self._loaded.pool.block_bytes

    def snapshot(self, session: Session) -> Snapshot:
        """Take a snapshot."""
        return self.driver.snapshot(cast(_core.Session, session))

    def resume(self, snapshot: Snapshot, tokens: Tokens, axes: Tokens | None = None) -> Session:
        """Make a session of a snapshot."""
        ids = np.ascontiguousarray(tokens, np.int32)
        return _placed(_core.Session.resume(cast(_core.Snapshot, snapshot), ids), axes)

    def read_block(self, snapshot: Snapshot) -> Bytes:
        """Copy a snapshot's block."""
        return cast(_core.Snapshot, snapshot).read_block()

    def read_page(self, snapshot: Snapshot, index: int) -> Bytes:
        """Copy a snapshot's page."""
        return cast(_core.Snapshot, snapshot).read_page(index)

    def restore(self, n: int, block: Bytes, pages: Sequence[Bytes | tuple[Snapshot, int]]) -> Snapshot:
        """Make a snapshot of bytes."""
        sources = cast(Sequence[Bytes | tuple[_core.Snapshot, int]], pages)
        return _core.Snapshot.restore(self._loaded.model, self._loaded.pool, n, block, sources)

    def identity(self) -> str:
        """Hash what the bits of a state depend on."""
        return hashlib.sha256(self._loaded.model.identity.encode()).hexdigest()

    def begin(self, session: Session, options: ReplyOptions) -> None:
        """Begin a reply."""
        self.driver.begin(
            cast(_core.Session, session),
            options.sampling,
            list(options.stop_ids),
            options.n_prompt,
            options.end,
            known=[] if self.prompt_equals_window else list(options.known),
            most_head=options.n_drafts if self._options.head else 0,
            most_copied=options.n_drafts if self._options.copies else 0,
            grammar=self._masks.add(options.grammar) if options.grammar else 0,
        )

    def step(self, chunk: Sequence[ChunkPart], round: Sequence[Session]) -> Sequence[Landed]:
        """Read a chunk, and run a round."""
        parts = [
            (
                cast(_core.Session, part.session),
                np.ascontiguousarray(part.tokens, np.int32),
                part.last,
                np.ascontiguousarray(part.scored, np.int32),
                part.marks,
                cast(list[tuple[int, _core.Features, int, int]], list(part.media)),
            )
            for part in chunk
        ]
        return self.driver.step(parts, cast(Sequence[_core.Session], round))

    def start(self, sessions: Sequence[Session]) -> None:
        """Let rounds go on by themselves."""
        self.driver.start(cast(Sequence[_core.Session], sessions))

    def take(self) -> Sequence[Landed]:
        """Await what lands."""
        return self.driver.take()

    def stop(self) -> Sequence[Landed]:
        """Await what is in flight."""
        return self.driver.stop()

    def wake(self) -> None:
        """Let `take` return."""
        self.driver.wake()

    def idle(self) -> bool:
        """Time what a round costs."""
        return self.driver.time_a_price(self._loaded.pool)


def _placed(session: _core.Session, axes: Tokens | None) -> _core.Session:
    """Say where the rows of a new session's prompt stand; one that was forked had another's."""
    session.set_frame(np.ascontiguousarray(np.empty((0, 3)) if axes is None else axes, np.int32))
    return session
