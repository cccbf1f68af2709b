"""What the engine's thread asks of the core: prompt passes, rounds that go on by themselves, sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from flashnext import _core
from flashnext.engine.defaults import ROUND_ROWS
from flashnext.grammar import Matching

Tokens = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Session(Protocol):
    """What one sequence owns on the device. Compared and hashed by identity."""

    @property
    def n_pages(self) -> int:
        """Pages in its table, shared ones included; may be read while rounds run."""

    def close(self) -> None:
        """Give it back; idempotent. Rounds in flight are dropped, and its pages come free after them."""


class Snapshot(Protocol):
    """Where a sequence stood behind n tokens: a copy of its recurrent block, and its pages, by reference.

    The pages hold the main layers' rows below n and the draft head's below n - 1; the block holds the streams
    of row n - 1, which the head reads again when the next token is known. Compared and hashed by identity.
    """

    @property
    def n(self) -> int:
        """Positions it covers, 1 or more."""

    @property
    def page_ids(self) -> tuple[int, ...]:
        """Its pages by position; an id names one page of the pool while somebody holds it."""

    def close(self) -> None:
        """Give block and references back; idempotent, from any thread."""


class Drawn(Protocol):
    """A token that was drawn; -1 where all logits were NaN, or a grammar allowed none.

    Attributes:
        logprob: Its log-probability, where the sampling asks for it.
        top: Of the likeliest ids, (id, log-probability).
    """

    @property
    def token(self) -> int: ...  # noqa: D102
    @property
    def logprob(self) -> float: ...  # noqa: D102
    @property
    def top(self) -> list[tuple[int, float]]: ...  # noqa: D102


class Landed(Protocol):
    """What one session got out of one round, or out of its part of a prompt pass.

    Attributes:
        tokens: Drawn, in the order of the reply.
        scores: Of the chunk's scored tokens, in their order.
        snapshots: Of the chunk's marks, in their order; None where there was no memory for one. Empty where
            the chunk failed or came short.
        ended: The device saw a stop id, the end of the reply or NaN: no more rounds for this session.
        proposed: Drafts that were verified.
        accepted: Those of them that were kept.
        error: What failed of this session alone; it can only be closed.
        short: It needed a page and there was none. Nothing of it ran, and it is left out until a later
            `start` or `step` names it again.
    """

    @property
    def session(self) -> Session: ...  # noqa: D102
    @property
    def tokens(self) -> Sequence[Drawn]: ...  # noqa: D102
    @property
    def scores(self) -> Sequence[Drawn]: ...  # noqa: D102
    @property
    def snapshots(self) -> Sequence[Snapshot | None]: ...  # noqa: D102
    @property
    def ended(self) -> bool: ...  # noqa: D102
    @property
    def proposed(self) -> int: ...  # noqa: D102
    @property
    def accepted(self) -> int: ...  # noqa: D102
    @property
    def error(self) -> Exception | None: ...  # noqa: D102
    @property
    def short(self) -> bool: ...  # noqa: D102


class Features(Protocol):
    """Rows on the device that stand in for embeddings: what a picture or a video shows the model."""

    @property
    def n(self) -> int:
        """Rows."""


class ShownRows(NamedTuple):
    """Rows of a chunk next to each other that show something.

    Attributes:
        first: The first of them in the chunk.
        features: What they show.
        row: Which row of the features the first one shows; those behind it go on from there.
        n: How many.
    """

    first: int
    features: Features
    row: int
    n: int


@dataclass(frozen=True)
class ChunkPart:
    """The next tokens of one prompt.

    Attributes:
        tokens: (n,) int32, n > 0.
        last: Whether the prompt ends with them, so that a token is drawn behind them.
        scored: (m,) int32, m <= n: the tokens behind the first of them, where their log-probabilities are
            wanted; `Core.begin` has been called then.
        marks: Numbers of its first tokens behind which a snapshot is taken, ascending, 1 to n. The chunk is
            not cut for them, and its bits stay the same.
        media: Rows that show something in place of their tokens, which stay for hashing alone.
    """

    session: Session
    tokens: Tokens = field(repr=False)
    last: bool
    scored: Tokens = field(default_factory=lambda: np.empty(0, np.int32), repr=False)
    marks: tuple[int, ...] = ()
    media: tuple[ShownRows, ...] = ()


@dataclass(frozen=True)
class ReplyOptions:
    """How the reply of one session is drawn and where it ends.

    Attributes:
        stop_ids: Ids that end it.
        n_prompt: Tokens of the prompt proper; those that are read behind them belong to the reply.
        end: Positions at which it ends: prompt and most tokens of the reply.
        n_drafts: Most drafts of a round.
        known: Its first tokens, where it was preempted and goes on. With `Core.prompt_equals_window` all of
            them but the last are read like a prompt; without, rounds are fed with them in place of drafts.
        grammar: What its tokens have to match, standing behind those of `known` that are read; it is held
            by others as long as the reply runs. Where it allows none, -1 is drawn and the reply ends.
    """

    sampling: _core.Sampling
    stop_ids: tuple[int, ...]
    n_prompt: int
    end: int
    n_drafts: int = 0
    known: tuple[int, ...] = ()
    grammar: Matching | None = None


@dataclass(frozen=True)
class CoreOptions:
    """How rounds are run; nothing here changes a token.

    Attributes:
        lone: Let a single sequence run by rounds that need no host.
        serial_drafts: Draft when the host has seen a round land, not behind it in the same command buffer.
        prices: Weigh what drafts cost; without, each sequence gets the most it may have.
        round_rows: Most rows of a round, 1 to MAX_ROUND_ROWS.
        head: Draft by the draft head, where the model has been loaded with it.
        copies: Draft by copies of the reply's own text.
    """

    lone: bool = True
    serial_drafts: bool = False
    prices: bool = True
    round_rows: int = ROUND_ROWS
    head: bool = True
    copies: bool = True


class Core(Protocol):
    """What the engine's thread asks of a model.

    One thread calls it, save for `wake`; calls that wait release the GIL. A failure of the device is an
    exception out of `step`, `start`, `take` or `stop`: all sessions of the step, or all that were started,
    are lost and can only be closed, the others go on, and no rounds are running after it.

    Attributes:
        max_chunk: Prompt tokens of a pass, of all prompts together.
        max_sequences: Sequences of a pass.
        n_pages: Pages of the pool.
        least_shared: Tokens that two prompts share at least for a fork to pay; 0 where there are no forks.
        prompt_equals_window: Whether prompt passes and rounds give the same bits.
        block_bytes: What the block of one snapshot takes.
        page_bytes: What one page takes.
    """

    max_chunk: int
    max_sequences: int
    n_pages: int
    least_shared: int
    prompt_equals_window: bool
    block_bytes: int
    page_bytes: int

    def free_pages(self) -> int:
        """Count the pages that nobody has; may be called while rounds run."""

    def trim(self, n_pages: int) -> None:
        """Give back memory of pages that nobody has, so that at most so many take any; from any thread.

        As far as can be: the core takes memory for several pages at once, and gives it back likewise.
        """

    def snapshot_pages(self) -> int:
        """Count the pages that snapshots have and no session; from any thread."""

    def snapshot_bytes(self) -> int:
        """Sum the blocks of all snapshots, pages not included; from any thread."""

    def pages(self, n_positions: int) -> int:
        """Count the pages of n positions and two windows ahead of them, within the context."""

    def open(self, axes: Tokens | None = None) -> Session:
        """Make an empty session.

        Args:
            axes: (n, 3) int32, where the rows of its prompt stand on the rotary axes, where it shows media;
                rows behind go on from there. By default rows stand at their positions.
        """

    def fork(self, session: Session, axes: Tokens | None = None) -> Session:
        """Make a session with the same committed prompt rows; the other has no reply yet.

        Full pages are shared; the last one and the recurrent block are copied. Raises OutOfPages.

        Args:
            session: The other one.
            axes: Of the new one's prompt, as `open` takes them.
        """

    def features(self, values: Floats) -> Features:
        """Bring what a picture or a video shows to the device. Raises OutOfMemory.

        Args:
            values: (n, hidden) float32.
        """

    def snapshot(self, session: Session) -> Snapshot:
        """Take a snapshot of a session that has read something and has nothing in flight; settles it first.

        Rows that rounds made are like those of a prompt where `prompt_equals_window` says so. Raises
        OutOfMemory, and InvalidArgument where the draft head could not follow (a reply that ended by NaN).
        """

    def resume(self, snapshot: Snapshot, tokens: Tokens, axes: Tokens | None = None) -> Session:
        """Make a session that stands where the snapshot was taken; the snapshot stays.

        Shares all pages but the one with row n - 1, which is copied. Raises OutOfPages or OutOfMemory with
        nothing changed.

        Args:
            snapshot: Where from; as often as wanted.
            tokens: (n,) int32, the ids that it was made of.
            axes: Of the whole prompt, as `open` takes them.
        """

    def read_block(self, snapshot: Snapshot) -> Bytes:
        """Copy the recurrent block, (block_bytes,) uint8; from any thread, beside rounds.

        Equal states give equal bytes, of blocks and of pages. Raises InvalidArgument for a closed snapshot.
        """

    def read_page(self, snapshot: Snapshot, index: int) -> Bytes:
        """Copy the page of that index, (page_bytes,) uint8; from any thread, beside rounds.

        Rows that the snapshot does not cover are zero. Raises InvalidArgument for a closed snapshot.
        """

    def restore(self, n: int, block: Bytes, pages: Sequence[Bytes | tuple[Snapshot, int]]) -> Snapshot:
        """Make a snapshot of what `read_block` and `read_page` gave under the same `identity`.

        From any thread, beside rounds.

        Raises OutOfPages or OutOfMemory with nothing changed, and InvalidArgument where sizes do not fit.

        Args:
            n: Positions it covers.
            block: (block_bytes,) uint8.
            pages: By position, as many as n positions have: (page_bytes,) uint8, or the page of that index
                of another snapshot, which is then shared.
        """

    def identity(self) -> str:
        """Hash what the bits of a state depend on, the checkpoint aside: 64 hexadecimal digits.

        Numeric options, element type, kernel sources and compiler, device and instruction path, layouts of
        block and page.
        """

    def begin(self, session: Session, options: ReplyOptions) -> None:
        """Say how the reply is drawn, before a chunk that reads the last token of the prompt or is scored."""

    def step(self, chunk: Sequence[ChunkPart], round: Sequence[Session]) -> Sequence[Landed]:
        """Read a chunk and run a round, and wait for both; one of the two may be empty.

        Nothing is going on by itself: `stop` has been called. Every part of the chunk has been read but those
        that landed with an error or short.
        """

    def start(self, sessions: Sequence[Session]) -> None:
        """From now on run rounds over these sessions in place of others. The same set: does nothing.

        Sessions that ended take no part.
        """

    def take(self) -> Sequence[Landed]:
        """Wait until something has landed, or no round can follow, or somebody called `wake`."""

    def stop(self) -> Sequence[Landed]:
        """Begin no more rounds, and wait for those in flight."""

    def wake(self) -> None:
        """Let `take` return soon: the one that waits now, or else the next. From any thread."""

    def idle(self) -> bool:
        """Use a short moment in which there is nothing to do; whether there is use for another."""
