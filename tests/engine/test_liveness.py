"""The policy over a model of pages: whatever comes, every request ends, in a bounded number of steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashnext.engine.policy import Chunk, Limits, Running, Step, Waiting, next_step
from hypothesis import example, given, settings
from hypothesis import strategies as st

PAGE = 8
AHEAD = 8  # positions that a round takes pages for beyond its own
CONTEXT = 160
CHUNK = 32


def pages(n: int) -> int:
    return -(-min(n + AHEAD, CONTEXT) // PAGE)


@dataclass
class Sequence:
    """One request, as lengths alone."""

    id: int
    prompt: int
    reply: int
    background: bool
    arrives: int
    drawn: int = 0
    read: int = 0
    held: int = 0
    wanted: int = 0
    again: int = 0  # tokens of the reply that are read like the prompt
    resumed: bool = False
    protected: bool = False
    overtaken: int = 0

    @property
    def unread(self) -> int:
        return self.prompt + self.again - self.read

    @property
    def rank(self) -> tuple[bool, int, int]:
        return self.background, self.arrives, self.id


@dataclass
class World:
    """Applies the policy's steps and holds it to its word."""

    n_pages: int
    max_running: int
    coming: list[Sequence]
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    time: int = 0
    n_preempted: int = 0

    @property
    def free(self) -> int:
        return self.n_pages - sum(s.held for s in self.running)

    def turn(self) -> None:
        self.time += 1
        self.waiting += [s for s in self.coming if s.arrives <= self.time]
        self.coming = [s for s in self.coming if s.arrives > self.time]
        self.waiting.sort(key=lambda s: s.rank)
        self.running.sort(key=lambda s: s.rank)
        step = next_step(
            [
                Waiting(s.id, pages(s.prompt + s.again), s.background, s.resumed, s.overtaken)
                for s in self.waiting
            ],
            [self._running(s) for s in self.running],
            Limits(self.max_running, CHUNK, self.free),
        )
        assert step != Step() or not (self.waiting or self.running), "nothing is done while there is work"
        if step.preempt is not None:
            self._preempt(step.preempt)
        for id in step.admit:
            self._admit(id)
        by_id = {s.id: s for s in self.running}
        for part in step.chunk:
            self._read(by_id[part.id], part)
        for id in step.round:
            self._draw(by_id[id])

    def _running(self, s: Sequence) -> Running:
        missing = max(s.wanted, pages(s.prompt + s.again) - s.held) if s.unread else s.wanted
        return Running(s.id, s.unread, None, missing, s.held, s.background, s.protected)

    def _preempt(self, id: int) -> None:
        victim = next(s for s in self.running if s.id == id)
        oldest = self.running[0]
        room_for_normal = victim.background and any(not s.background for s in self.waiting)
        assert victim is not oldest or room_for_normal, "the most senior one runs to its end"
        if victim.protected:
            assert oldest.wanted or oldest.unread, "preempted before it got a token, for less than the oldest"
        self.running.remove(victim)
        self.waiting.append(victim)
        victim.read = victim.held = victim.wanted = 0
        victim.again = max(0, victim.drawn - 1)
        victim.resumed = victim.protected = True
        self.n_preempted += 1

    def _admit(self, id: int) -> None:
        admitted = next(s for s in self.waiting if s.id == id)
        for s in self.waiting[: self.waiting.index(admitted)]:
            s.overtaken += 1
        self.waiting.remove(admitted)
        self.running.append(admitted)
        assert len(self.running) <= self.max_running

    def _take(self, s: Sequence, n_positions: int) -> bool:
        more = -(-min(n_positions, CONTEXT) // PAGE) - s.held
        if more > self.free:
            return False
        s.held += max(0, more)
        return True

    def _read(self, s: Sequence, part: Chunk) -> None:
        assert 0 < part.n <= s.unread
        assert self._take(s, s.read + part.n), "a chunk is given only where its pages are"
        s.read += part.n
        if not s.unread:
            self._drew(s, again=s.resumed and s.drawn > 0)

    def _draw(self, s: Sequence) -> None:
        if self._take(s, s.prompt + s.drawn + 1 + AHEAD):
            s.wanted = 0
            self._drew(s, again=False)
        else:
            s.wanted = max(1, pages(s.prompt + s.drawn + 1) - s.held)

    def _drew(self, s: Sequence, *, again: bool) -> None:
        if not again:
            s.drawn += 1
            s.protected = False
        if s.drawn == s.reply:
            self.running.remove(s)


requests = st.tuples(
    st.integers(1, 120),  # prompt
    st.integers(1, 39),  # reply
    st.booleans(),  # background
    st.integers(0, 60),  # when it comes
)


@settings(max_examples=300, deadline=None)
@given(
    n_pages=st.integers(CONTEXT // PAGE, 60),
    max_running=st.integers(1, 8),
    asked=st.lists(requests, min_size=1, max_size=14),
)
@example(n_pages=20, max_running=8, asked=[(40, 39, False, 0)] * 8)
@example(n_pages=20, max_running=4, asked=[(9, 39, True, 0)] * 4 + [(120, 39, False, n) for n in range(8)])
def test_every_request_ends(n_pages: int, max_running: int, asked: list[tuple[int, int, bool, int]]) -> None:
    world = World(n_pages, max_running, [Sequence(i, *one) for i, one in enumerate(asked)])
    work = sum(prompt + reply for prompt, reply, _, _ in asked)
    while world.coming or world.waiting or world.running:
        world.turn()
        assert world.time < 100 + 4 * work, "this goes on for ever"
    assert world.free == n_pages


def test_pages_run_short_in_this_model() -> None:
    """What the test above is about does happen in it."""
    world = World(20, 8, [Sequence(i, 40, 39, False, 0) for i in range(8)])
    while world.coming or world.waiting or world.running:
        world.turn()
    assert world.n_preempted > 3
