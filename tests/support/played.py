"""Plays a cell of the exactness matrix on the driver, and the plain reference that it is compared with."""

from __future__ import annotations

import queue
import random
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from flashnext import _core
from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.engine.core import ChunkPart, CoreOptions, ReplyOptions, ShownRows, Snapshot
from flashnext.engine.frame import Frame
from flashnext.engine.job import Job
from flashnext.engine.load import Loaded
from flashnext.engine.loaded_core import LoadedCore
from flashnext.engine.marks import Kind
from flashnext.engine.radix import Keys
from flashnext.engine.sights import Sights
from flashnext.engine.spill import Spill, Stored

from support.cells import Cell

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
    "penalties": {
        "temperature": 1.0, "min_p": 0.01, "presence": 0.5, "frequency": 0.3, "repetition": 1.2,
    },
    "hot": {"temperature": 3.0},
}  # fmt: skip
REPLY = 24  # tokens,
MORE = 36  # and so many more where one has to outlive the others, or where there are few to copy in
CANCELLED = 180  # tokens of one that is to be cancelled, which has to run still when the host comes to it
FEW = (60, 61)  # ids of replies that repeat themselves, for copies of the reply's own text


@dataclass(frozen=True)
class Request:
    """What one sequence asks.

    Attributes:
        prompt: Its number among the model's prompts.
        n: Tokens of the reply.
        few: Only the ids of FEW are drawn.
    """

    prompt: int
    sampling: str
    seed: int
    n: int
    few: bool

    def rules(self) -> _core.Sampling:
        """How it is drawn."""
        bias = {i: 100.0 for i in FEW} if self.few else {}
        return _core.Sampling(**SAMPLINGS[self.sampling], seed=self.seed, bias=bias)


@dataclass(frozen=True)
class Left:
    """What a sequence leaves.

    Attributes:
        tokens: Drawn.
        rows: Hashes of the logits that each was drawn from.
        length: Committed positions.
        state: Hash of the settled state behind all rows but the last token's.
        head: Hash of what the draft head has absorbed.
    """

    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    length: int
    state: int
    head: int


def require_same(found: Left, expected: Left, what: str) -> None:
    """Fail at the first difference, whatever bit it is."""
    assert len(found.tokens) == len(expected.tokens), f"{what}: {len(found.tokens)} tokens"
    for i, (row, plain) in enumerate(zip(found.rows, expected.rows, strict=True)):
        assert row == plain, f"{what}: the logits of token {i} differ"
        assert found.tokens[i] == expected.tokens[i], f"{what}: token {i} differs"
    assert found.length == expected.length, f"{what}: {found.length} rows, expected {expected.length}"
    assert found.state == expected.state, f"{what}: the settled state differs"
    assert found.head == expected.head, f"{what}: the draft head's cache differs"


class Reference:
    """The plain way: a sequence alone on a fresh session, without drafts, one round at a time."""

    def __init__(
        self,
        loaded: Loaded,
        prompts: Sequence[np.ndarray[Any, Any]],
        frames: Sequence[Frame | None] = (),
    ) -> None:
        """Take a model and prompts.

        Args:
            loaded: The model.
            prompts: Tokens of each.
            frames: What each shows; by default nothing.
        """
        self.loaded, self.prompts = loaded, prompts
        self.frames = frames or [None] * len(prompts)
        self._sights = Sights(lambda values: _core.Features(loaded.model, values))
        self.runner = _core.Runner(loaded.model)
        self.runner.keep_hashes(True)
        self._known: dict[Request, Left] = {}

    def left(self, request: Request) -> Left:
        """What a request leaves, computed once."""
        if request not in self._known:
            self._known[request] = self._play(request)
        return self._known[request]

    def shown(self, prompt: int, start: int, n: int) -> tuple[ShownRows, ...]:
        """What n rows of a prompt show."""
        return self._sights.shown(self.frames[prompt], {}, start, n)

    def _play(self, request: Request) -> Left:
        session = _core.Session(self.loaded.model, self.loaded.pool)
        prompt, rules = self.prompts[request.prompt], request.rules()
        frame = self.frames[request.prompt]
        if frame is not None:
            session.set_frame(frame.axes)
        media = cast(Any, self.shown(request.prompt, 0, len(prompt)))
        drawn = self.runner.prompt(session, prompt, True, rules, media=media)
        while len(drawn) < request.n:
            drawn += self.runner.round([session])[0]
        left = self.of(session, [(d.token, d.logits_hash) for d in drawn])
        session.close()
        return left

    def of(self, session: _core.Session, drawn: Iterable[tuple[int, int]]) -> Left:
        """What a session leaves; nothing may be in flight."""
        tokens, rows = zip(*drawn, strict=True)
        return Left(
            tokens,
            rows,
            session.length,
            self.runner.state_hash(session),
            self.runner.head_hash(session, session.head_length),
        )


@dataclass(eq=False)
class Running:
    """A request on its way: its job, which knows how to go on after a preemption, and what was drawn."""

    request: Request
    job: Job
    drawn: dict[int, tuple[int, int]] = field(default_factory=dict)
    ended: bool = False
    cancelled: bool = False

    @property
    def session(self) -> _core.Session:
        assert self.job.session is not None
        return cast(_core.Session, self.job.session)

    @property
    def active(self) -> bool:
        return self.job.session is not None and not self.ended and not self.cancelled


class Play:
    """One cell, played once.

    Attributes:
        counts: What the driver counted from the beginning to the end.
        did: What else happened, by name.
    """

    def __init__(self, cell: Cell, reference: Reference, expected: Reference | None = None) -> None:
        """Make the driver and the requests.

        Args:
            cell: What is played.
            reference: Whose model it is played on.
            expected: What it is compared with, where that is another.
        """
        self.cell, self.reference = cell, reference
        self.expected = expected or reference
        self.rng = random.Random(cell.seed)
        drafts = cell.drafts
        self.core = LoadedCore(
            reference.loaded,
            reference.loaded.model.vocab_size,
            CoreOptions(
                lone=cell.driving != "shared",
                prices=False,
                round_rows=self.rng.choice((32, 32, 64, 6)) if drafts == "off" else 32,
                head=drafts in ("head", "both"),
                copies=drafts in ("copies", "both"),
            ),
        )
        self.core.driver.keep_hashes(True)
        most = 0 if drafts == "off" else self.rng.choice((1, 3, 3, 7))
        settings = list(SAMPLINGS)
        first = settings.index(cell.sampling)
        self.sequences = [
            self._sequence(i, settings[(first + i) % len(settings)], most) for i in range(cell.n)
        ]
        self.by_session: dict[_core.Session, Running] = {}
        self.did: dict[str, int] = {"preempted": 0, "cancelled while it ran": 0, "joined": 0, "resumed": 0}
        self.marked: dict[int, Any] = {}  # snapshots by prompt
        self.neighbours: list[_core.Session] = []  # that left them and go on
        self.counts: dict[str, int] = {}

    def _sequence(self, i: int, sampling: str, most_drafts: int) -> Running:
        cell = self.cell
        few = cell.drafts in ("copies", "both")
        cancels = cell.disturbance == "neighbours cancelled"
        longer = (i == 0 and cell.driving == "handed over") + (cell.n < 3 and few) + cancels
        n = CANCELLED if cancels and i >= cell.n - cell.n // 2 else REPLY + longer * MORE
        prompt = i % len(self.reference.prompts)
        request = Request(prompt, sampling, i, n, few)
        job = Job(
            id=i,
            prompt=self.reference.prompts[prompt],
            frame=self.reference.frames[prompt],
            max_tokens=n,
            stop_ids=frozenset(),
            sampling=request.rules(),
            logprobs=False,
            n_drafts=most_drafts,
            text=cast(Any, None),  # nobody reads it
            deliver=lambda item: None,
        )
        return Running(request, job)

    # --- what is done to sequences

    def land(self, landed: Iterable[Any]) -> None:
        """Take note of what was drawn; what was drawn before is compared with it."""
        for one in landed:
            sequence = self.by_session.get(one.session)
            if sequence is None or sequence.cancelled:
                continue
            assert one.error is None and not one.short, f"{self.cell}: {one.error or 'short of pages'}"
            for drawn in one.tokens:
                at, found = sequence.job.n_drawn, (drawn.token, drawn.logits_hash)
                assert sequence.drawn.setdefault(at, found) == found, f"{self.cell}: token {at} drawn again"
                if at == len(sequence.job.token_ids):
                    sequence.job.token_ids.append(drawn.token)
                sequence.job.n_drawn += 1
            sequence.ended |= one.ended

    def read(self, sequences: Sequence[Running], beside: Sequence[Running] = ()) -> None:
        """Read prompts by chunks that several share, cut anywhere, each with a round of those beside."""
        while unread := [s for s in sequences if s.job.unread]:
            room, parts = self.core.max_chunk, []
            for s in unread[: self.rng.randrange(1, 6)]:
                job = s.job
                if job.session is None:
                    self.open(s)
                n = min(job.unread, self.rng.choice((7, 64, 200, 512)), room)
                if n == 0:
                    break
                room -= n
                if n == job.unread:
                    self.core.begin(s.session, job.options())
                tokens = job.feed[job.n_read : job.n_read + n]
                media = self.reference.shown(s.request.prompt, job.n_read, n)
                parts.append(ChunkPart(s.session, tokens, n == job.unread, media=media))
                job.n_read += n
            running = [s for s in beside if s.active]
            self.did["joined"] += bool(running)
            self.land(self.core.step(parts, [s.session for s in running]))

    def open(self, sequence: Running) -> None:
        """Give a sequence a session: an empty one, or one that goes on from a snapshot."""
        job = sequence.job
        if self.cell.start == "cold" or len(job.prompt) == 1:
            job.session = self.core.open(job.axes)
        else:
            if sequence.request.prompt not in self.marked:
                self.marked[sequence.request.prompt] = self.mark(job, sequence.request.prompt)
            snapshot = self.marked[sequence.request.prompt]
            job.session = self.core.resume(snapshot, job.prompt[: snapshot.n], job.axes)
            job.n_read = snapshot.n
            self.did["resumed"] += 1
        self.by_session[sequence.session] = sequence

    def mark(self, job: Job, prompt: int) -> Any:
        """Let another session read the job's prompt, and take a snapshot on the way."""
        other, n = cast(_core.Session, self.core.open(job.axes)), len(job.prompt)
        at = self.rng.choice([i for i in (1, 64, 65, 128, n - 1, self.rng.randrange(1, n)) if i < n])
        self.core.begin(other, ReplyOptions(_core.Sampling(seed=1), (), n, n + REPLY))
        media = self.reference.shown(prompt, 0, n)
        landed = self.core.step([ChunkPart(other, job.prompt, True, marks=(at,), media=media)], [])
        self.land(landed)
        (snapshot,) = next(one.snapshots for one in landed if one.session is other)
        if self.cell.start == "from a page of a running one":
            self.neighbours.append(other)
            return snapshot
        other.close()
        if self.cell.start == "from bytes":
            assert snapshot is not None
            pages = [self.core.read_page(snapshot, i) for i in range(len(snapshot.page_ids))]
            block = self.core.read_block(snapshot)
            snapshot.close()
            return self.core.restore(at, block, pages)
        if self.cell.start in ("from spill", "after a restart"):
            assert snapshot is not None
            return self.spilled(snapshot, job.keys[:at])
        return snapshot

    def spilled(self, snapshot: Snapshot, rows: Keys) -> Snapshot:
        """Write a snapshot to a directory, and read it from there; after a restart where the cell says so."""
        found, answers = queue.Queue[Stored](), queue.Queue[Any]()

        def opened(folder: str) -> Spill:
            limit = 1 << 30
            made = Spill(
                Path(folder), self.core, "a model", page=PAGE_TOKENS, limit_bytes=limit, floor_bytes=0
            )
            made.begin(lambda mark, file: found.put(mark), lambda rows, again: None, lambda: None)
            return made

        with tempfile.TemporaryDirectory() as folder:
            spill = opened(folder)
            mark = Stored(rows, Kind.END, 1.0, 0.0, pinned=False)
            spill.store(mark, snapshot, lambda *answer: answers.put(answer))
            file, _ = answers.get(timeout=60)
            assert file is not None and file.there
            snapshot.close()
            if self.cell.start == "after a restart":
                spill.close(60)
                spill = opened(folder)
                assert np.array_equal(found.get(timeout=60).rows, rows)
            spill.load(rows, None, 0, lambda *answer: answers.put(answer))
            made, has = answers.get(timeout=60)
            spill.close(60)
        assert made is not None and has and spill.counts.spill_failures == 0
        return cast(Snapshot, made)

    def round(self, sequences: Iterable[Running]) -> None:
        """One round, and no other behind it."""
        self.land(self.core.step([], [s.session for s in sequences if s.active]))

    def run(self, sequences: Iterable[Running], n: int | None = None) -> None:
        """Let rounds go on until each has n more tokens, or has ended; they may get more."""
        running = [s for s in sequences if s.active]
        if not running:
            return
        until = {s: len(s.job.token_ids) + n if n else s.request.n for s in running}
        self.core.start([s.session for s in running])
        while any(s.active and len(s.job.token_ids) < until[s] for s in running):
            self.land(self.core.take())
        self.land(self.core.stop())

    def go_on(self, n: int | None = None) -> None:
        """Run all that have been read: together, or one after the other; neighbours get a round each."""
        for neighbour in self.neighbours:
            self.land(self.core.step([], [neighbour]))
        active = [s for s in self.sequences if s.active]
        for part in [[s] for s in active] if self.cell.driving == "lone" else [active]:
            self.run(part, n)

    def most_left(self) -> list[Running]:
        """Those that run, the furthest from their ends first."""
        active = [s for s in self.sequences if s.active]
        return sorted(active, key=lambda s: len(s.job.token_ids) - s.request.n)

    def preempt(self, sequence: Running, others: Sequence[Running]) -> None:
        """Take a sequence's session away, and read it again."""
        self.did["preempted"] += 0 < len(sequence.job.token_ids) < sequence.request.n
        self.by_session.pop(sequence.session)
        sequence.session.close()
        sequence.job.rewind(self.core.prompt_equals_window)
        self.read([sequence], others)

    def cancel(self, neighbours: Sequence[Running]) -> None:
        """Close sessions while rounds over them are in flight."""
        running = [s for s in self.sequences if s.active]
        for part in [[s] for s in neighbours if s.active] if self.cell.driving == "lone" else [running]:
            self.core.start([s.session for s in part])
            self.land(self.core.take())
            for s in part:
                if s in neighbours:
                    self.did["cancelled while it ran"] += s.active
                    s.cancelled = True
                    s.session.close()
        self.run([s for s in running if not s.cancelled][:1], 1)  # in place of those, without a stop

    # --- the cell

    def play(self) -> None:
        """Play it, and require that all that was left is what the reference leaves."""
        cell, all_ = self.cell, self.sequences
        before = self.core.driver.counts()
        groups = [all_]
        if cell.together == "staggered":
            groups = [[s] for s in all_]
        elif cell.driving == "handed over":
            groups = [all_[:1], all_[1:]]
        for group in groups:
            beside = [] if cell.driving == "lone" else [s for s in all_ if s.active]
            self.read(group, beside)
            self.go_on(2)
        if cell.disturbance == "preempted":
            for victim in self.most_left()[:1]:
                self.preempt(victim, [] if cell.driving == "lone" else [s for s in all_ if s is not victim])
        elif cell.disturbance == "neighbours cancelled":
            self.cancel([s for s in all_ if s.request.n == CANCELLED])
        if cell.driving == "handed over":
            self.run(self.most_left()[:1], 1)
        self.go_on()
        self.land(self.core.stop())  # rounds of those who were cancelled: the reference has the same model
        after = self.core.driver.counts()
        self.counts = {name: after[name] - before[name] for name in after if name != "widest"}
        self.counts["widest"] = after["widest"]
        for s in all_:
            what = f"{cell}, sequence {s.job.id} ({s.request.sampling})"
            expected = self.expected.left(s.request)
            if s.cancelled:
                drawn = [s.drawn[i] for i in range(len(s.drawn))]
                assert drawn == list(zip(expected.tokens, expected.rows, strict=True))[: len(drawn)], what
            else:
                require_same(self.left(s), expected, what)
        for one in (*(s.session for s in all_), *self.neighbours, *self.marked.values()):
            one.close()

    def left(self, running: Running) -> Left:
        """What a sequence has left; nothing may be in flight."""
        return self.reference.of(running.session, [running.drawn[i] for i in range(len(running.drawn))])

    def missing(self) -> list[str]:
        """Name what the cell is for and what did not happen in it."""
        cell, counts = self.cell, self.counts
        heads, copies = cell.drafts in ("head", "both"), cell.drafts in ("copies", "both")
        need = {
            "rounds with two in flight": cell.driving == "shared" or counts["lone_rounds"] > 0,
            "a shared round of several sequences": cell.driving == "lone" or counts["shared_rounds"] > 0,
            "a handoff to shared rounds": cell.driving != "handed over" or counts["to_shared"] > 0,
            "a handoff to the lone driver": cell.driving != "handed over" or counts["to_lone"] > 0,
            "no two in flight": cell.driving != "shared" or counts["lone_rounds"] == 0,
            "a resumed session for each": cell.start == "cold"
            or self.did["resumed"] >= sum(len(s.job.prompt) > 1 for s in self.sequences),
            "a preemption": cell.disturbance != "preempted" or self.did["preempted"] > 0,
            "a cancelled neighbour": cell.disturbance != "neighbours cancelled"
            or self.did["cancelled while it ran"] > 0,
            "a chunk beside a round": cell.together != "staggered"
            or cell.driving == "lone"
            or counts["chunks_beside_rounds"] > 0,
            "drafts of the head": (counts["proposed"] > 0) == heads,
            "copies": (counts["copies_proposed"] > 0) == copies,
            "an accepted copy": not copies or counts["copies_accepted"] > 0,
            "a rejected draft": cell.drafts == "off"
            or not self.rejects
            or counts["proposed"] + counts["copies_proposed"]
            > counts["accepted"] + counts["copies_accepted"],
            "an accepted draft": not heads or not self.accepts or counts["accepted"] > 0,
        }
        return [name for name, happened in need.items() if not happened]

    @property
    def rejects(self) -> bool:
        """Whether drafts are wrong at times: those of a random head, or where much is left to chance."""
        if self.cell.drafts == "copies":
            end = self.cell.n // 2 if self.cell.disturbance == "neighbours cancelled" else 0
            return self.cell.n - end > 3 or self.cell.sampling in ("penalties", "hot")
        return "random" in self.cell.model or self.cell.sampling == "hot" or self.cell.n > 3

    @property
    def accepts(self) -> bool:
        """Whether drafts are right at times: those of a trained head."""
        return "bundled" in self.cell.model and (
            self.cell.sampling in ("greedy", "seeded") or self.cell.n > 3
        )


def play(cell: Cell, reference: Reference, most_attempts: int = 3) -> Play:
    """Play a cell until it has exercised what it is for; every attempt is compared.

    A host thread that comes late finds replies ended which it was to disturb, so a few attempts are allowed.
    """
    for _ in range(most_attempts):
        played = Play(cell, reference)
        played.play()
        missing = played.missing()
        if not missing:
            return played
    raise AssertionError(f"{cell}: did not happen: {', '.join(missing)}; {played.counts}, {played.did}")
