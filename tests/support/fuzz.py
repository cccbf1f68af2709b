"""Random schedules over a loaded model: what comes, leaves and fails, and what each reply is alone.

A scenario is a function of its numbers but for the moments at which rounds land; a scheduler is stepped by
the caller's own thread.
"""

from __future__ import annotations

import itertools
import queue
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flashnext import _core
from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.engine.caching import Caching
from flashnext.engine.core import ChunkPart, CoreOptions, ReplyOptions
from flashnext.engine.errors import EngineClosed
from flashnext.engine.events import Event
from flashnext.engine.job import Job
from flashnext.engine.load import Loaded, load_model
from flashnext.engine.loaded_core import LoadedCore
from flashnext.engine.marks import Kind, Place
from flashnext.engine.prefix_cache import CacheOptions
from flashnext.engine.reply import ReplyText
from flashnext.engine.scheduler import Scheduler
from flashnext.engine.spill import Spill
from flashnext.engine.warm import WarmPass
from flashnext.text.tokenizer import Tokenizer

from support.setups import Setup
from support.spilling import Fast

CONTEXT = 320
MAX_CHUNK = 128
MOST_TOKENS = 90
STOP_IDS = frozenset([7, 11])
STOPS: tuple[tuple[str, ...], ...] = ((), (), ("e", "zz"))
TOKENIZER = Tokenizer.from_folder(Path(__file__).parents[1] / "tiny" / "hf")
NUMBERS = itertools.count(1)
PLANTED = "planted"

SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "seed": 3},
    {"temperature": 3.0, "seed": 4},
    {"temperature": 1.0, "seed": 5, "presence": 0.5, "frequency": 0.2, "repetition": 1.1},
    {"temperature": 0.7, "seed": 6, "min_p": 0.1, "bias": {42: 12.0, 43: 11.0}},  # says the same again
)

# Kernels that fail, and of how many dispatches one is chosen: of every layer, of a round, of drafts.
KERNELS = (
    ("matmul_bf16", 400), ("delta_rule_bf16", 60), ("attention_bf16", 40), ("expert_down_bf16", 60),
    ("round_rows", 20), ("verdict", 20), ("draft_rows", 20), ("absorb_rows", 20), ("keep_streams_bf16", 20),
    ("copy_drafts", 5), ("draw_pick", 20), ("embed_bf16", 20),
)  # fmt: skip
SMALL = Setup("small")
MECHANISMS = (
    "forks", "preemptions", "replies resumed", "shared rounds", "lone rounds", "chunks beside rounds",
    "lone to shared", "shared to lone", "drafts rejected", "drafts accepted", "copies accepted",
    "ends: stop", "ends: length", "ends: cancelled", "failed dispatches", "failed dispatches of the head",
    "failed allocations", "jobs failed", "cancelled waiting", "cancelled preempted", "cancelled paused",
    "cancelled reading", "cancelled decoding", "cancelled beside a paused one", "cancelled in a prompt pass",
    "cancelled in a round", "known replies drawn again", "prices timed",
    "cache hits", "hits within a page", "hits of preempted ones", "replies without the cache",
    "marks evicted", "ends of replies kept", "warm passes", "warm passes put off", "marks spilled",
    "marks restored", "restarts", "hits after a restart",
)  # fmt: skip


def prompts_of(seed: int) -> list[list[int]]:
    """Prompts in families that begin alike, some within a page, some behind it."""
    rng = random.Random(seed)
    out: list[list[int]] = []
    for n_shared in (64, 100, 140):
        shared = [rng.randrange(12, 200) for _ in range(n_shared)]
        for n_own in (1, 5, 30, 70):
            out.append(shared + [rng.randrange(12, 200) for _ in range(n_own)])
        out.append(shared)
    out += [[rng.randrange(12, 200) for _ in range(n)] for n in (1, 3, 20, 60, 8, 30, 50, 45, 25, 55)]
    return out


@dataclass(frozen=True)
class Asked:
    """What a request asks that decides its reply."""

    prompt: int
    sampling: int
    stops: int
    max_tokens: int


class Machine:
    """One checkpoint on a device, and what it replies to who is alone.

    Attributes:
        loaded: With a pool that nobody uses but the references.
    """

    def __init__(self, folder: Path, setup: Setup = SMALL, **options: Any) -> None:
        self.loaded: Loaded = load_model(
            setup.write(folder),
            device="cpu",
            context=CONTEXT,
            max_chunk=MAX_CHUNK,
            **options,
        )
        self.prompts = prompts_of(1)
        self._runner = _core.Runner(self.loaded.model)
        self._runner.keep_hashes(True)
        self._known: dict[tuple[int, int], list[Any]] = {}

    def alone(self, asked: Asked) -> list[Any]:
        """What is drawn for a request that nothing runs beside, a token a round: with hashes of logits."""
        key = asked.prompt, asked.sampling
        if key not in self._known:
            session = _core.Session(self.loaded.model, self.loaded.pool)
            prompt = np.array(self.prompts[asked.prompt], np.int32)
            sampling = _core.Sampling(**SAMPLINGS[asked.sampling])
            first, rest = prompt[:MAX_CHUNK], prompt[MAX_CHUNK:]
            if len(rest):
                self._runner.prompt(session, first, False, sampling)
            drawn = self._runner.prompt(session, rest if len(rest) else first, True, sampling)
            while len(drawn) < MOST_TOKENS:
                drawn += self._runner.round([session])[0]
            session.close()
            self._known[key] = drawn
        return self._known[key]


class FuzzJob(Job):
    """A job that keeps the hash of the logits of each of its tokens."""

    def take(self, drawn: Any, now_s: float) -> Event | None:
        hashes: dict[int, set[int]] = self.__dict__.setdefault("hashes", {})
        hashes.setdefault(self.n_drawn, set()).add(drawn.logits_hash)
        return super().take(drawn, now_s)


class Client:
    """One request and what it is told."""

    def __init__(
        self,
        asked: Asked,
        prompt: list[int],
        *,
        n_drafts: int = 0,
        background: bool = False,
        cache: bool = True,
        places: tuple[Place, ...] = (),
    ) -> None:
        self.asked = asked
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.cancelled = False
        self.job = FuzzJob(
            id=next(NUMBERS),
            prompt=np.array(prompt, np.int32),
            max_tokens=asked.max_tokens,
            stop_ids=STOP_IDS,
            sampling=_core.Sampling(**SAMPLINGS[asked.sampling]),
            logprobs=False,
            n_drafts=n_drafts,
            text=ReplyText(TOKENIZER, STOPS[asked.stops], None),
            deliver=self.items.put,
            background=background,
            cache=cache,
            places=places,
        )

    def told(self) -> list[Any]:
        """Everything it has been told since the last call."""
        items = []
        while not self.items.empty():
            items.append(self.items.get())
        return items


def reply_of(events: Sequence[Event]) -> tuple[Any, ...]:
    """What a whole reply says."""
    last = events[-1]
    tokens = tuple(i for e in events for i in e.token_ids)
    return tokens, "".join(e.text for e in events), last.finish_reason, last.token_sha


class WatchedCore:
    """Stands between the scheduler and its core: counts what happens, and calls `hook` while passes run.

    Attributes:
        tally: How often things happened.
        hook: Called inside of each step ("prompt" or "round").
        sessions: All that were ever made.
    """

    def __init__(self, core: LoadedCore) -> None:
        self.core = core
        self.tally = Counter[str]()
        self.hook: Any = lambda what: None
        self.sessions: list[Any] = []
        self._started: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def open(self, axes: Any = None) -> Any:
        self.sessions.append(self.core.open(axes))
        return self.sessions[-1]

    def fork(self, session: Any, axes: Any = None) -> Any:
        self.sessions.append(self.core.fork(session, axes))
        return self.sessions[-1]

    def resume(self, snapshot: Any, tokens: Any, axes: Any = None) -> Any:
        self.sessions.append(self.core.resume(snapshot, tokens, axes))
        self.tally["hits within a page"] += snapshot.n % PAGE_TOKENS != 0
        return self.sessions[-1]

    def snapshot(self, session: Any) -> Any:
        snapshot = self.core.snapshot(session)
        self.tally["ends of replies kept"] += 1
        return snapshot

    def begin(self, session: Any, options: ReplyOptions) -> None:
        self.core.begin(session, options)
        if options.known and not self.core.prompt_equals_window:
            self.tally["known replies drawn again"] += 1

    def step(self, chunk: Sequence[ChunkPart], round: Sequence[Any]) -> Sequence[Any]:
        landed = self.core.step(chunk, round)
        self.hook("prompt" if chunk else "round")
        return self.landed(landed)

    def start(self, sessions: Sequence[Any]) -> None:
        before = self._started
        if len(before) == 1 < len(sessions) and before[0] in sessions:
            self.tally["lone to shared"] += 1
        if len(sessions) == 1 < len(before) and sessions[0] in before:
            self.tally["shared to lone"] += 1
        self._started = list(sessions)
        self.core.start(sessions)

    def take(self) -> Sequence[Any]:
        self.hook("round")
        return self.landed(self.core.take())

    def stop(self) -> Sequence[Any]:
        return self.landed(self.core.stop())

    def landed(self, landed: Sequence[Any]) -> Sequence[Any]:
        """What the scheduler is told has landed."""
        return landed


@dataclass(frozen=True)
class Scenario:
    """The numbers that a run is made of.

    Attributes:
        cache: Marks of two pages that the prefix cache has room for.
        spill: Whether it has a directory too, and is restarted now and then.
    """

    seed: int
    n_pages: int = 12
    max_running: int = 4
    options: CoreOptions = field(default_factory=CoreOptions)
    equal: bool = True
    faults: bool = False
    n_requests: int = 7
    cache: int = 0
    spill: bool = False


class Run:
    """One scheduler over a machine, what was asked of it, and what happened."""

    def __init__(self, machine: Machine, scenario: Scenario, make: type[WatchedCore] = WatchedCore) -> None:
        self.machine, self.scenario = machine, scenario
        self.rng = rng = random.Random(scenario.seed)
        self.device = machine.loaded.device
        model = machine.loaded.model
        page_bytes = _core.PagePool(model, 1).page_bytes
        self.limit_bytes = scenario.cache * (model.snapshot_bytes + 2 * page_bytes)
        self.pool = _core.PagePool(model, scenario.n_pages + self.limit_bytes // page_bytes)
        self.folder = tempfile.TemporaryDirectory() if scenario.spill else None
        core = LoadedCore(
            replace(machine.loaded, pool=self.pool), machine.loaded.model.vocab_size, scenario.options
        )
        core.driver.keep_hashes(True)
        core.max_chunk = rng.choice([16, 64, MAX_CHUNK])
        core.prompt_equals_window = scenario.equal
        if rng.random() < 0.2:
            core.least_shared = 0
        self.core = make(core)
        self.core.hook = self._hook
        self.tally = self.core.tally
        self.restarted = False
        self.scheduler = self._start()
        self.clients: list[Client] = []
        self.planted: Counter[str] = Counter()

    def _start(self) -> Scheduler:
        """Make a scheduler, with what the directory has."""
        rng, core = self.rng, self.core
        options = CacheOptions(
            spacing=rng.choice([0, 0, 40]),
            half_life_s=rng.choice([0.01, 600]),
            least=0,
            least_new=1,
            least_parted=rng.choice([1, 128]),
        )
        caching = Caching(core, self.limit_bytes, time.perf_counter, options)
        if self.folder is not None:
            spill = Spill(
                Path(self.folder.name),
                core,
                "a model",
                page=PAGE_TOKENS,
                limit_bytes=1 << 24,
                floor_bytes=0,
            )
            spill.pace = Fast()
            caching.attach(spill, lambda: None)
            assert caching.disk is not None
            caching.disk.ahead_bytes = rng.choice([0, 1 << 40])
        resume = caching.resume

        def counted(job: Job) -> Any:
            session = resume(job)
            self.tally["hits of preempted ones"] += session is not None and job.resumed
            return session

        caching.resume = counted  # type: ignore[method-assign]
        self.caching = caching
        return Scheduler(core, self.scenario.max_running, gap_ms=rng.choice([0, 0, 250]), caching=caching)

    def restart(self) -> None:
        """End the scheduler, which has nothing to do, and begin with what was written."""
        self._settle()
        self._count_scheduler()
        self.scheduler.end_all(self.rng.choice([EngineClosed, RuntimeError])("restarted"))
        assert self.pool.free == self.pool.total and self.pool.block_bytes == 0
        self.scheduler = self._start()
        self._settle()
        self.tally["restarts"] += 1
        self.restarted = True

    def _settle(self) -> None:
        """Wait until the directory has been written and read."""
        deadline = time.monotonic() + 60
        while self.caching.tend() or (self.caching.disk is not None and self.caching.disk.busy):
            assert time.monotonic() < deadline, "the directory is never done"
            time.sleep(0.0005)

    def warm(self) -> None:
        """Have a history read that some prompts begin with."""
        prompt = self.rng.choice(self.machine.prompts)
        tokens = np.array(prompt[: self.rng.randrange(1, len(prompt) + 1)], np.int32)
        self.scheduler.add_warm(WarmPass(tokens, (Place(len(tokens), Kind.END),)))

    def places(self, n: int) -> tuple[Place, ...]:
        """Where the marks of a prompt lie: anywhere, and where pages end."""
        rng = self.rng
        at = {rng.randrange(1, n + 1) for _ in range(rng.randrange(4))} | {64, 100, 128, n - 1, n}
        return tuple(Place(i, rng.choice(list(Kind))) for i in sorted(at) if 0 < i <= n)

    def play(self, in_turn: Sequence[Asked] = ()) -> Counter[str]:
        """Run it to its end and check everything.

        Args:
            in_turn: What is asked, each when the one before is answered, in place of anything at random.

        Returns:
            How often each mechanism ran.
        """
        try:
            if in_turn:
                self._play_in_turn(in_turn)
            else:
                self._play()
        finally:
            _core.testing.clear_faults(self.device)
            self._count_scheduler()
            self.scheduler.end_all(RuntimeError("the scenario is over"))
            if self.folder is not None:
                self.folder.cleanup()
        assert self.pool.free == self.pool.total and self.pool.block_bytes == 0, "snapshots are missing"
        self._check_replies()
        self._count()
        return self.tally

    def arrive(self) -> None:
        rng = self.rng
        n_prompts = len(self.machine.prompts)
        family = rng.randrange(0, n_prompts, 5)
        for _ in range(rng.choice([1, 1, 2, 4])):  # some of a family, so that they fork
            prompt = min(n_prompts - 1, family + rng.randrange(5))
            asked = Asked(
                prompt,
                rng.randrange(len(SAMPLINGS)),
                rng.randrange(len(STOPS)),
                rng.choice([1, 2, 8, 30, MOST_TOKENS, MOST_TOKENS]),
            )
            client = Client(
                asked,
                self.machine.prompts[prompt],
                n_drafts=rng.choice([0, 1, 3, 8]),
                background=rng.random() < 0.2,
                cache=rng.random() < 0.9,
                places=self.places(len(self.machine.prompts[prompt])) if self.scenario.cache else (),
            )
            self.clients.append(client)
            self.scheduler.add(client.job)

    def cancel(self, where: str = "", among: Sequence[Client] = ()) -> None:
        open_ones = [c for c in self.clients if not c.job.ended and not c.cancelled]
        if not open_ones:
            return
        client = self.rng.choice(among or open_ones)
        client.cancelled = True
        job = client.job
        if where:
            self.tally[f"cancelled in a {where}"] += 1
        if job in self.scheduler._waiting:
            stage = "preempted" if job.resumed else "waiting"
        elif job.prefix:
            stage = "paused"
        else:
            stage = "reading" if job.unread else "decoding"
        self.tally[f"cancelled {stage}"] += 1
        if any(other.prefix and other.prefix.reader is job for other in self.scheduler._running):
            self.tally["cancelled beside a paused one"] += 1
        self.scheduler.cancel(job)

    def rare(self) -> list[Client]:
        """Those who stand where few stand for long: paused for a prefix, waited for, or preempted."""
        open_ones = [c for c in self.clients if not c.job.ended and not c.cancelled]
        paused = [c for c in open_ones if c.job.prefix]
        readers = [c for c in open_ones if any(p.job.prefix and p.job.prefix.reader is c.job for p in paused)]
        waiting = self.scheduler._waiting
        return [*paused, *readers, *(c for c in open_ones if c.job.resumed and c.job in waiting)]

    def plant(self) -> None:
        rng, testing = self.rng, _core.testing
        if testing.n_faults(self.device):
            return
        if rng.random() < 0.4:
            testing.fail_allocation(self.device, rng.randrange(1, 12))
            self.planted["allocation"] += 1
        else:
            kernel, most = rng.choice(KERNELS)
            testing.fail_dispatch(self.device, kernel, rng.randrange(1, most), PLANTED)
            self.planted["dispatch"] += 1

    # ---

    def _hook(self, what: str) -> None:
        if self.rng.random() < 0.01:
            self.cancel("prompt pass" if what == "prompt" else "round")

    def _play(self) -> None:
        rng, scheduler = self.rng, self.scheduler
        for steps in itertools.count():
            assert steps < 20_000, "this goes on for ever"
            if scheduler.idle and rng.random() < 0.5:
                self.tally["prices timed"] += scheduler.spare_time()
            if self.folder is not None and scheduler.idle and self.clients and rng.random() < 0.3:
                self.restart()
                scheduler = self.scheduler
            more = len(self.clients) < self.scenario.n_requests
            if more and (scheduler.idle or rng.random() < 0.1):
                self.arrive()
            elif scheduler.idle:
                break
            elif rng.random() < 0.015:
                self.cancel()
            elif (rare := self.rare()) and rng.random() < 0.02:
                self.cancel(among=rare)
            if self.scenario.faults and rng.random() < 0.05:
                self.plant()
            if self.scenario.cache and rng.random() < 0.02:
                self.warm()
            scheduler.step()
        _core.testing.clear_faults(self.device)
        self._require_nothing_held()
        # Whatever has happened, it still answers.
        asked = Asked(1, 0, 0, 5)
        self.clients.append(Client(asked, self.machine.prompts[1], n_drafts=2))
        scheduler.add(self.clients[-1].job)
        while not scheduler.idle:
            scheduler.step()
        assert self.clients[-1].job.ended
        self._require_nothing_held()

    def _play_in_turn(self, in_turn: Sequence[Asked]) -> None:
        self.core.hook = lambda what: None
        for asked in in_turn:
            prompt = self.machine.prompts[asked.prompt]
            self.clients.append(Client(asked, prompt, places=(Place(len(prompt), Kind.END),)))
            self.scheduler.add(self.clients[-1].job)
            while not self.scheduler.idle:
                self.scheduler.step()
            self._require_nothing_held()

    def _require_nothing_held(self) -> None:
        self._settle()
        cache = self.caching.cache
        assert self.pool.total - self.pool.free == self.pool.of_snapshots, "pages are missing"
        assert self.pool.of_snapshots * self.pool.page_bytes == cache.pages_bytes, "pages are counted wrong"
        assert self.pool.block_bytes == cache.blocks_bytes, "blocks are counted wrong"
        assert cache.size_bytes <= cache.limit_bytes
        assert all(session.size_bytes == 0 for session in self.core.sessions), "a session is not released"
        assert not self.scheduler._by_session

    def _expected(self, asked: Asked) -> tuple[tuple[Any, ...], list[Any]]:
        """The reply of who is alone, as events say it, and what was drawn for it."""
        drawn = self.machine.alone(asked)
        job = Client(asked, self.machine.prompts[asked.prompt]).job
        events: list[Event] = []
        for one in drawn:
            event = job.take(one, 0.0)
            assert event is not None
            events.append(event)
            if event.finish_reason is not None:
                break
        return reply_of(events), drawn

    def _check_replies(self) -> None:
        failed = Counter[str]()
        for client in self.clients:
            expected, drawn = self._expected(client.asked)
            *events, last = client.told()
            about = f"{client.asked}, {len(events)} events, then {last!r}"
            assert all(isinstance(e, Event) and e.finish_reason is None for e in events), about
            if isinstance(last, Exception):
                assert PLANTED in str(last), about
                kind = "allocation" if isinstance(last, MemoryError) else "dispatch"
                failed[kind] += 1
                self.tally["jobs failed"] += 1
                self.tally["failed dispatches of the head"] += "draft head" in str(last)
            else:
                events.append(last)
                self.tally[f"ends: {last.finish_reason}"] += 1
            cut = isinstance(last, Exception) or last.finish_reason == "cancelled"
            tokens = tuple(i for e in events for i in e.token_ids)
            if cut:
                assert tokens == expected[0][: len(tokens)], about
                assert isinstance(last, Exception) or client.cancelled, about
            else:
                assert reply_of(events) == expected, about
                self.tally["replies resumed"] += client.job.resumed
                self.tally["replies without the cache"] += not client.job.cache
            hashes = getattr(client.job, "hashes", {})
            assert len(hashes) >= len(tokens), about
            for at, found in hashes.items():
                assert found == {drawn[at].logits_hash}, f"logits of token {at}: {about}"
        assert failed["allocation"] <= self.planted["allocation"], "more than who got no memory failed"
        assert self.planted["dispatch"] or not failed["dispatch"]
        self.tally["failed allocations"] += failed["allocation"]
        self.tally["failed dispatches"] += failed["dispatch"] > 0

    def _count_scheduler(self) -> None:
        """Count what a scheduler has done that ends."""
        n = self.scheduler.counts
        self.tally["forks"] += n.forked
        self.tally["preemptions"] += n.preempted
        self.tally["cache hits"] += n.cache.hits
        self.tally["hits after a restart"] += n.cache.hits if self.restarted else 0
        self.tally["marks evicted"] += n.cache.evicted
        self.tally["warm passes"] += n.cache.warm_passes
        self.tally["warm passes put off"] += self.scheduler._warm.n_put_off
        self.tally["marks spilled"] += n.cache.spilled
        self.tally["marks restored"] += n.cache.restored

    def _count(self) -> None:
        counts = self.core.driver.counts()
        for name in ("shared_rounds", "lone_rounds", "chunks_beside_rounds"):
            self.tally[name.replace("_", " ")] += counts[name]
        self.tally["drafts rejected"] += counts["proposed"] - counts["accepted"]
        self.tally["drafts accepted"] += counts["accepted"]
        self.tally["copies accepted"] += counts["copies_accepted"]
