"""A core that plays replies from a script: pages, forks, snapshots, rounds in flight, drafts, and failures on
request.

It holds callers to the protocol of `flashnext.engine.core`: what a session has read must be what its reply
is drawn from, a closed or failed session is not used, no reply is forked, nothing is begun behind the end. A
page has the tokens of its rows and a snapshot's block their hash, and both must be those of the tokens that a
session is resumed with. A reply is drawn from what rows show where they show media, and a block is that of
what was shown.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flashnext.engine.core import Bytes, ChunkPart, Floats, ReplyOptions, Snapshot, Tokens
from flashnext.errors import InvalidArgument, OutOfMemory, OutOfPages

PAGE = 8
WINDOW = 4
BLOCK_BYTES = 32


def block_of(rows: Sequence[int]) -> bytes:
    """The recurrent block behind these tokens: their hash."""
    return hashlib.sha256(np.array(rows, np.int32).tobytes()).digest()


class FakeFeatures:
    """See `flashnext.engine.core.Features`; a row shows the whole number that it begins with."""

    def __init__(self, values: Floats) -> None:
        self.n, self.shows = len(values), values[:, 0].astype(int).tolist()


@dataclass
class FakeDrawn:
    """A token of a script."""

    token: int
    logprob: float = -0.5

    @property
    def top(self) -> list[tuple[int, float]]:
        return [(self.token, -0.5), (0, -2.0)]


@dataclass
class FakeLanded:
    """See `flashnext.engine.core.Landed`."""

    session: FakeSession
    tokens: list[FakeDrawn] = field(default_factory=list)
    ended: bool = False
    proposed: int = 0
    accepted: int = 0
    error: Exception | None = None
    short: bool = False
    scores: list[FakeDrawn] = field(default_factory=list)
    snapshots: list[FakeSnapshot | None] = field(default_factory=list)


@dataclass(eq=False)
class FakePage:
    """A page that somebody holds.

    Attributes:
        rows: The token of each row.
        writer: The one session that may write it.
        sessions, snapshots: How many of them hold it.
    """

    id: int
    writer: FakeSession | None
    rows: list[int] = field(default_factory=lambda: [0] * PAGE)
    sessions: int = 0
    snapshots: int = 0


class FakeSnapshot:
    """See `flashnext.engine.core.Snapshot`."""

    def __init__(self, core: FakeCore, n: int, block: bytes, pages: Sequence[FakePage]) -> None:
        self.core, self.n, self.block, self.pages = core, n, block, list(pages)
        for page in pages:
            page.snapshots += 1
        core.open_snapshots.append(self)
        self.closed = False

    @property
    def page_ids(self) -> tuple[int, ...]:
        return tuple(page.id for page in self.pages)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.core.open_snapshots.remove(self)
            for page in self.pages:
                page.snapshots -= 1
                self.core.give_back(page)
            self.pages = []


class FakeSession:
    """A sequence of the fake core; its rows are the token ids that it has read.

    Attributes:
        axes: Where the rows of its prompt stand.
        shown: What rows show, by row.
    """

    def __init__(self, core: FakeCore) -> None:
        self.core = core
        self.rows: list[int] = []
        self.axes: Tokens | None = None
        self.shown: dict[int, int] = {}
        self.pages: list[FakePage] = []
        self.options: ReplyOptions | None = None
        self.script: list[int] = []
        self.reply: list[int] = []
        self.in_flight = 0
        self.ended = self.broken = self.closed = False

    @property
    def n_pages(self) -> int:
        return len(self.pages)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.core.open_sessions.remove(self)
            self.give_back()

    def give_back(self) -> None:
        """Free the pages, once nothing in flight writes them."""
        if self.closed and not self.in_flight:
            for page in self.pages:
                page.sessions -= 1
                self.core.give_back(page)
            self.pages = []

    def seen(self, n: int) -> list[int]:
        """What its first n rows are to the model."""
        return [self.shown.get(at, token) for at, token in enumerate(self.rows[:n])]

    def hold(self, page: FakePage) -> None:
        """Add a page to the table."""
        page.sessions += 1
        self.pages.append(page)

    def write(self, tokens: Sequence[int]) -> None:
        """Commit rows; their pages are this session's to write."""
        for token in tokens:
            page = self.pages[len(self.rows) // PAGE]
            assert page.writer is self, "a row in a page of somebody else's"
            page.rows[len(self.rows) % PAGE] = token
            self.rows.append(token)

    def reserve(self, n_positions: int) -> bool:
        """Take the pages of n positions, or none."""
        more = -(-n_positions // PAGE) - len(self.pages)
        if more > self.core.free_pages():
            return False
        for _ in range(more):
            self.hold(self.core.take_page(self))
        return True

    def draw(self) -> int:
        """Draw the token behind what has been read; it depends on all of it."""
        assert self.options is not None
        n = self.options.n_prompt
        assert self.rows[n:] == self.reply, "the reply goes on from other tokens than it has"
        token = self.script[len(self.reply)] + self.core.slips.pop(len(self.reply), 0)
        self.reply.append(token)
        self.ended = token in (*self.options.stop_ids, -1) or n + len(self.reply) >= self.options.end
        return token


class FakeCore:
    """Replies to a prompt with `script(prompt)`.

    Attributes:
        before: Called ahead of everything with its name and a detail; may raise, as the device would.
        fault: Of a session in a step or a round: what fails of it alone;
            OutOfPages where it comes short.
        accepted: Drafts that each round keeps.
        in_flight: Rounds that are begun before the one in front has landed.
        slips: Added to the token of that number in a reply, once.
        chunks: The tokens of each part read, alone or together in `passes`.
        rounds: How many sequences each had.
        most_idle: How often there is use for a moment in which there is nothing to do.
        resumed: The known tokens of each reply that was begun with some.
        most_blocks: Snapshots that there is memory for.
        resumes: The length of each session that was resumed from a snapshot.
        n_allocated: Pages that take memory: those that were ever taken, until `trim` gives some back.
    """

    max_sequences = 64
    least_shared = 0
    prompt_equals_window = True
    block_bytes = BLOCK_BYTES
    page_bytes = 4 * PAGE
    accepted = 0
    in_flight = 1
    most_idle = 0

    def __init__(
        self,
        script: Callable[[list[int]], list[int]],
        *,
        n_pages: int = 100,
        max_chunk: int = 4,
        context: int = 10**6,
    ) -> None:
        self.script = script
        self.n_pages, self.max_chunk, self.context = n_pages, max_chunk, context
        self.before: Callable[[str, Any], object] = lambda what, detail: None
        self.fault: Callable[[FakeSession], Exception | None] = lambda session: None
        self.slips: dict[int, int] = {}
        self.open_sessions: list[FakeSession] = []
        self.open_snapshots: list[FakeSnapshot] = []
        self.most_blocks = 10**6
        self.resumes: list[int] = []
        self.chunks: list[list[int]] = []
        self.passes: list[list[list[int]]] = []
        self.rounds: list[int] = []
        self.resumed: list[tuple[int, ...]] = []
        self.shown_by: dict[bytes, dict[int, int]] = {}  # what rows show behind which a block stands
        self.n_taken = self.n_allocated = self.n_forks = self.n_shorts = self.n_idle = 0
        self._free_ids = list(range(n_pages))  # a heap
        self._going: list[FakeSession] = []  # those that were started and have not come short
        self._started: set[FakeSession] = set()
        self._queue: deque[list[FakeLanded]] = deque()  # rounds in flight
        self._woken = threading.Event()

    def free_pages(self) -> int:
        return self.n_pages - self.n_taken

    def pages(self, n_positions: int) -> int:
        return -(-min(n_positions + 2 * WINDOW, self.context) // PAGE)

    def trim(self, n_pages: int) -> None:
        self.n_allocated = max(self.n_taken, min(self.n_allocated, n_pages))

    def snapshot_pages(self) -> int:
        held = {page for snapshot in self.open_snapshots for page in snapshot.pages}
        return sum(not page.sessions for page in held)

    def snapshot_bytes(self) -> int:
        return len(self.open_snapshots) * BLOCK_BYTES

    def take_page(self, writer: FakeSession | None) -> FakePage:
        """Take a page that is free; whoever takes it holds it."""
        if not self.free_pages():
            raise OutOfPages("no page is free")
        self.n_taken += 1
        self.n_allocated = max(self.n_allocated, self.n_taken)
        return FakePage(heapq.heappop(self._free_ids), writer)

    def give_back(self, page: FakePage) -> None:
        """Free a page that nobody holds any more."""
        if not page.sessions and not page.snapshots:
            self.n_taken -= 1
            heapq.heappush(self._free_ids, page.id)

    def open(self, axes: Tokens | None = None) -> FakeSession:
        self.before("open", None)
        session = FakeSession(self)
        session.axes = axes
        self.open_sessions.append(session)
        return session

    def features(self, values: Floats) -> FakeFeatures:
        self.before("features", values)
        return FakeFeatures(values)

    def fork(self, session: Any, axes: Tokens | None = None) -> FakeSession:
        assert isinstance(session, FakeSession)
        self._check_usable(session)
        assert not session.reply and not session.in_flight, "forked off a reply"
        self.before("fork", None)
        n, copied = divmod(len(session.rows), PAGE)
        if copied and not self.free_pages():
            raise OutOfPages("no page is free")
        self.n_forks += 1
        return self._session_of(session.rows, session.pages[:n], axes, session.shown)

    def snapshot(self, session: Any) -> FakeSnapshot:
        assert isinstance(session, FakeSession)
        self._check_usable(session)
        assert session.rows and not session.in_flight and not self._going
        self.before("snapshot", session.rows)
        made = self._tap(session, len(session.rows))
        if made is None:
            raise OutOfMemory("no memory for a snapshot")
        return made

    def resume(self, snapshot: Snapshot, tokens: Tokens, axes: Tokens | None = None) -> FakeSession:
        assert isinstance(snapshot, FakeSnapshot) and not snapshot.closed
        rows = tokens.tolist()
        assert tokens.dtype == np.int32 and len(rows) == snapshot.n
        shown = self.shown_by.get(snapshot.block, {})
        seen = [shown.get(at, token) for at, token in enumerate(rows)]
        assert block_of(seen) == snapshot.block, "resumed with other tokens than it was made of"
        for at, token in enumerate(rows):
            assert snapshot.pages[at // PAGE].rows[at % PAGE] == token, "a page of other rows"
        self.before("resume", rows)
        if not self.free_pages():
            raise OutOfPages("no page is free")
        self.resumes.append(snapshot.n)
        return self._session_of(rows, snapshot.pages[: (snapshot.n - 1) // PAGE], axes, shown)

    def read_block(self, snapshot: Snapshot) -> Bytes:
        assert isinstance(snapshot, FakeSnapshot)
        self._check_open(snapshot)
        return np.frombuffer(snapshot.block, np.uint8).copy()

    def read_page(self, snapshot: Snapshot, index: int) -> Bytes:
        assert isinstance(snapshot, FakeSnapshot)
        self._check_open(snapshot)
        rows = np.array(snapshot.pages[index].rows, np.int32)
        rows[max(0, snapshot.n - index * PAGE) :] = 0
        return rows.view(np.uint8)

    def restore(self, n: int, block: Bytes, pages: Sequence[Bytes | tuple[Snapshot, int]]) -> FakeSnapshot:
        if n < 1 or block.nbytes != BLOCK_BYTES or len(pages) != -(-n // PAGE):
            raise InvalidArgument("restore: sizes do not fit")
        self.before("restore", n)
        if len(self.open_snapshots) >= self.most_blocks:
            raise OutOfMemory("no memory for a snapshot")
        if sum(not isinstance(page, tuple) for page in pages) > self.free_pages():
            raise OutOfPages("no page is free")
        held = []
        for page in pages:
            if isinstance(page, tuple):
                other, index = page
                assert isinstance(other, FakeSnapshot)
                self._check_open(other)
                held.append(other.pages[index])
            else:
                assert page.nbytes == self.page_bytes
                held.append(self.take_page(None))
                held[-1].rows = page.view(np.int32).tolist()
        return FakeSnapshot(self, n, block.tobytes(), held)

    def identity(self) -> str:
        return "0" * 64

    def _session_of(
        self,
        rows: Sequence[int],
        shared: Sequence[FakePage],
        axes: Tokens | None,
        shown: Mapping[int, int],
    ) -> FakeSession:
        """A session that has read these rows; it shares the pages of the first and copies the rest."""
        session = FakeSession(self)
        session.axes = axes
        session.shown = {at: what for at, what in shown.items() if at < len(rows)}
        self.open_sessions.append(session)
        for page in shared:
            session.hold(page)
        session.rows = list(rows[: len(shared) * PAGE])
        assert session.reserve(len(rows))
        session.write(rows[len(session.rows) :])
        return session

    def _tap(self, session: FakeSession, n: int) -> FakeSnapshot | None:
        if len(self.open_snapshots) >= self.most_blocks:
            return None
        block = block_of(session.seen(n))
        self.shown_by[block] = {at: what for at, what in session.shown.items() if at < n}
        return FakeSnapshot(self, n, block, session.pages[: -(-n // PAGE)])

    def begin(self, session: Any, options: ReplyOptions) -> None:
        self._check_usable(session)
        self.before("begin", options)
        assert options.end > options.n_prompt
        session.options = options
        if options.known:
            self.resumed.append(options.known)

    def step(self, chunk: Sequence[ChunkPart], round: Sequence[Any]) -> list[FakeLanded]:
        assert not self._going, "rounds go on by themselves"
        assert chunk or round
        sessions = [*(part.session for part in chunk), *round]
        assert len(set(map(id, sessions))) == len(sessions)
        assert sum(len(part.tokens) for part in chunk) <= self.max_chunk
        assert len(chunk) <= self.max_sequences and len(round) <= self.max_sequences
        if chunk:
            tokens = [part.tokens.tolist() for part in chunk]
            self._all_or_nothing("prompt", sessions, tokens)
            self.passes.append(tokens)
        landed = [self._read(part) for part in chunk]
        if round:
            self._begin_round(round)
            try:
                landed += self._land()
            except Exception:  # nobody gets what was tapped
                for snapshot in (s for one in landed for s in one.snapshots if s is not None):
                    snapshot.close()
                raise
        return landed

    def start(self, sessions: Sequence[Any]) -> None:
        assert sessions
        assert all(s.reply and not s.closed for s in sessions)
        if set(sessions) != self._started:
            self._going, self._started = list(sessions), set(sessions)

    def take(self) -> list[FakeLanded]:
        if self._woken.is_set():
            self._woken.clear()
            return []
        while self._going and len(self._queue) <= self.in_flight:
            if not self._begin_round([s for s in self._going if not s.closed]):
                break
        assert self._queue, "nothing will ever land"
        return self._land()

    def stop(self) -> list[FakeLanded]:
        self._going, self._started = [], set()
        landed = []
        while self._queue:
            landed += self._land()
        return landed

    def wake(self) -> None:
        self._woken.set()

    def idle(self) -> bool:
        self.n_idle += 1
        return self.n_idle < self.most_idle

    def _read(self, part: ChunkPart) -> FakeLanded:
        session = part.session
        assert isinstance(session, FakeSession) and not session.reply
        self._check_usable(session)
        tokens = part.tokens.tolist()
        assert part.tokens.dtype == np.int32 and tokens
        error = self.fault(session)
        if isinstance(error, OutOfPages):
            return FakeLanded(session, short=True)
        if error:
            session.broken = True
            return FakeLanded(session, error=error)
        if not session.reserve(len(session.rows) + len(tokens)):
            self.n_shorts += 1
            return FakeLanded(session, short=True)
        self.chunks.append(tokens)
        start = len(session.rows)
        session.write(tokens)
        for first, features, row, n in part.media:
            assert (
                isinstance(features, FakeFeatures) and first + n <= len(tokens) and session.axes is not None
            )
            session.shown.update(
                zip(range(start + first, start + first + n), features.shows[row : row + n], strict=True)
            )
        marks = part.marks
        assert list(marks) == sorted(set(marks)) and all(1 <= mark <= len(tokens) for mark in marks)
        snapshots = [self._tap(session, start + mark) for mark in marks]
        scores = [FakeDrawn(token) for token in part.scored.tolist()]
        assert len(scores) <= len(tokens) and (not scores or session.options is not None)
        if not part.last:
            return FakeLanded(session, scores=scores, snapshots=snapshots)
        options = session.options
        assert options is not None
        # All of the reply that is read like a prompt: what was drawn, where that gives the same, and thoughts
        # that were closed, always.
        known = session.rows[options.n_prompt :]
        assert known == list(options.known[: len(known)]), "not what the reply was"
        session.reply = known
        session.script = self.script(session.seen(options.n_prompt))
        drawn = [FakeDrawn(session.draw())]
        return FakeLanded(session, drawn, session.ended, scores=scores, snapshots=snapshots)

    def _begin_round(self, sessions: Sequence[FakeSession]) -> bool:
        """Begin a round over those that can take part; whether there is one."""
        landed = []
        for session in sessions:
            if not session.ended:
                self._check_usable(session)
                landed.append(self._window(session))
        if not landed:
            return False
        for one in landed:
            if one.short and one.session in self._going:
                self._going.remove(one.session)
        self.rounds.append(sum(not one.short for one in landed))
        self._queue.append(landed)
        return True

    def _window(self, session: FakeSession) -> FakeLanded:
        options = session.options
        assert options is not None and session.reply
        session.in_flight += 1
        error = self.fault(session)
        if isinstance(error, OutOfPages):
            return FakeLanded(session, short=True)
        if error:
            session.broken = session.ended = True
            return FakeLanded(session, error=error)
        n_drafts = min(options.n_drafts, WINDOW - 1, options.end - options.n_prompt - len(session.reply) - 1)
        ahead = min(len(session.rows) + 1 + n_drafts + 2 * WINDOW, self.context)
        if not session.reserve(ahead):
            self.n_shorts += 1
            return FakeLanded(session, short=True)
        known = options.known[len(session.reply) :]
        accepted = len(known[: WINDOW - 1]) if known else min(n_drafts, self.accepted)
        drawn: list[FakeDrawn] = []
        while len(drawn) <= accepted and not session.ended:
            session.write(session.reply[-1:])
            drawn.append(FakeDrawn(session.draw()))
        proposed = 0 if known else n_drafts
        return FakeLanded(session, drawn, session.ended, proposed, 0 if known else len(drawn) - 1)

    def _land(self) -> list[FakeLanded]:
        """Land the oldest round in flight."""
        if not self._queue:
            return []
        sessions = [one.session for one in self._queue[0]]
        self._all_or_nothing("round", sessions, [s.rows for s in sessions])
        landed = self._queue.popleft()
        for one in landed:
            one.session.in_flight -= 1
            one.session.give_back()
        return [one for one in landed if not one.session.closed]

    def _all_or_nothing(self, what: str, sessions: Sequence[Any], detail: Any) -> None:
        """Ask `before`; where it raises, all that is in flight is lost."""
        try:
            self.before(what, detail)
        except Exception:
            for landed in self._queue:
                for one in landed:
                    one.session.in_flight -= 1
                    one.session.broken = True
                    one.session.give_back()
            self._queue.clear()
            for session in [*sessions, *self._going]:
                session.broken = True
            self._going, self._started = [], set()
            raise

    def _check_open(self, snapshot: FakeSnapshot) -> None:
        if snapshot.closed:
            raise InvalidArgument("snapshot: used after close")

    def _check_usable(self, session: FakeSession) -> None:
        assert not session.closed, "used after close"
        assert not session.broken, "used after a failure"
