"""flashnext as the ladder drives it: its public engine, and requests whose events are timed as they come."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from arrivals import Arrivals, largest_gap_within
from flashnext.engine.engine import Engine
from flashnext.engine.events import Event
from flashnext.engine.request import Request
from flashnext.engine.sampling import Sampling

WARM_UP_TOKENS = 512  # at ten experts a token, every page of the weights is touched
SETTLE_S = 1.0  # what an engine does for itself when it is idle is done before anything is timed
ENGINE_THREAD = "flashnext-engine"
NEVER = -100.0  # the bias of a token that is not to be drawn
ROUNDS_OF_A_GAP = 4  # the target gap is this many rounds where that is longer


@dataclass(frozen=True)
class HostTime:
    """What a lone sequence's decoding took outside the device, from its first token to its last.

    Attributes:
        wall_s: The whole.
        rounds: Rounds of it.
        busy_s: Time that the device ran work; None where the core does not count it.
        host_s: CPU time of the engine's own thread, which sleeps while the device runs: scheduling,
            recording, sampling on the host, events. Wake-ups are not in it. None where it cannot be read.
    """

    wall_s: float
    rounds: int
    busy_s: float | None
    host_s: float | None


@dataclass(frozen=True)
class LongPrompt:
    """What a decoding sequence felt of another's long prompt.

    Attributes:
        n_tokens: Of the long prompt.
        read_s: From the request to its first token.
        gap_s: Largest time between two tokens of the decoding sequence meanwhile.
        round_s: The same before, the median.
        target_s: The target gap: that of the engine, or ROUNDS_OF_A_GAP rounds.
        is_whole: Whether the sequence still decoded when the prompt had been read.
    """

    n_tokens: int
    read_s: float
    gap_s: float
    round_s: float
    target_s: float
    is_whole: bool


@dataclass
class _Reader:
    """Reads one request's events in a thread of its own."""

    request: Request
    asked_s: float
    clock: HostClock | None = None
    times_s: list[float] = field(default_factory=list)
    last: Event | None = None
    error: Exception | None = None
    marks: list[tuple[float | None, float | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for event in self.request:
                now = time.perf_counter()
                first = not self.times_s
                self.times_s += [now] * len(event.token_ids)
                if self.clock is not None and (first or event.finish_reason):
                    self.marks.append(self.clock.read())
                self.last = event
        except Exception as error:
            self.error = error

    def join(self) -> _Reader:
        self.thread.join()
        if self.error is not None:
            raise self.error
        return self

    def arrivals(self) -> Arrivals:
        assert self.last is not None
        return Arrivals(self.asked_s, tuple(self.times_s), self.last.token_sha or "", drafts_of(self.last))


class HostClock:
    """CPU time of the engine's thread and busy time of the device, both in seconds since some moment."""

    def __init__(self, engine: Engine) -> None:
        self._device: Any = engine.loaded.device
        threads = [t for t in threading.enumerate() if t.name == ENGINE_THREAD]
        self._path = Path(f"/proc/self/task/{threads[-1].native_id}/schedstat") if threads else None

    def read(self) -> tuple[float | None, float | None]:
        """(device, engine's thread); None for what cannot be known here."""
        busy_ns = getattr(self._device, "busy_ns", None)
        try:
            host_s = int(self._path.read_text().split()[0]) / 1e9 if self._path else None
        except OSError:
            host_s = None
        return (None if busy_ns is None else busy_ns / 1e9), host_s


def drafts_of(event: Event) -> tuple[int, int] | None:
    """(proposed, accepted) drafts of a reply, from its last event; None where the engine does not say."""
    drafts: Any = getattr(event, "drafts", None)
    return None if drafts is None else (drafts.proposed, drafts.accepted)


class EngineRuns:
    """An engine, and runs of several sequences on it.

    Args:
        path: The checkpoint.
        drafts: Most drafts of a round.
        parallel: Most sequences at once.
        threads: Workers that its device must have; the engine takes one for each processor it may use.
        context: Largest prompt plus reply, None for the checkpoint's.

    Raises:
        RuntimeError: The device has another number of workers.
    """

    def __init__(self, path: Path, drafts: int, parallel: int, threads: int, context: int | None) -> None:
        available = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, available[:threads])
        self.gap_s = 0.25
        self.engine = Engine(  # without a cache: prompts come again, and are to be read again
            path,
            drafts=drafts,
            parallel=parallel,
            gap_ms=self.gap_s * 1e3,
            context=context,
            prefix_cache_gib=0,
        )
        workers = self.engine.loaded.device.limits.workers
        if workers != threads:
            raise RuntimeError(
                f"the device has {workers} workers, expected {threads}: {len(available)} processors are "
                "there, give --threads as many or fewer"
            )
        self._drafts = drafts

    def warm_up(self) -> None:
        """Read a random prompt, so that every page of the weights is in memory, and leave time to settle."""
        n = min(WARM_UP_TOKENS, self.engine.context // 2)
        ids = np.random.default_rng(0).integers(0, self.engine.tokenizer.n_tokens, n)
        self.engine.submit(ids.tolist(), sampling=Sampling(temperature=0, max_tokens=4)).result()
        time.sleep(SETTLE_S)

    def sampling(self, n_tokens: int, seed: int | None) -> Sampling:
        """A reply of exactly so many tokens: end tokens are never drawn. Greedy without a seed."""
        never = dict.fromkeys(self.engine.loaded.checkpoint.stop_tokens, NEVER)
        if seed is None:
            return Sampling(temperature=0, max_tokens=n_tokens, logit_bias=never)
        return Sampling(
            temperature=0.8, top_k=20, top_p=0.95, seed=seed, max_tokens=n_tokens, logit_bias=never
        )

    def run(
        self, prompts: Sequence[Sequence[int]], n_tokens: int, seeds: Sequence[int] = ()
    ) -> tuple[list[Arrivals], HostTime | None]:
        """Hand all requests in, wait for all replies.

        Args:
            prompts: Token ids.
            n_tokens: Of each reply.
            seeds: One for each, to draw with; none for greedy replies.

        Returns:
            When the tokens came; and for a lone sequence without drafts what the host took.

        Raises:
            RuntimeError: A reply has another length.
        """
        clock = HostClock(self.engine) if len(prompts) == 1 else None
        readers = []
        for i, prompt in enumerate(prompts):
            sampling = self.sampling(n_tokens, seeds[i] if seeds else None)
            asked_s = time.perf_counter()
            readers.append(_Reader(self.engine.submit(prompt, sampling=sampling), asked_s, clock))
        replies = [reader.join().arrivals() for reader in readers]
        for reply in replies:
            if len(reply.times_s) != n_tokens:
                raise RuntimeError(f"a reply has {len(reply.times_s)} tokens, expected {n_tokens}")
        return replies, self._host_time(readers[0]) if clock is not None else None

    def long_prompt(self, ids: Sequence[int], beside: Sequence[int], n_beside: int) -> LongPrompt:
        """Read a long prompt while another sequence decodes.

        Args:
            ids: The long prompt.
            beside: The prompt of the sequence that decodes.
            n_beside: Most tokens of its reply.
        """
        decoding = _Reader(
            self.engine.submit(beside, sampling=self.sampling(n_beside, None)), time.perf_counter()
        )
        while len(decoding.times_s) < min(16, n_beside // 2) and decoding.thread.is_alive():
            time.sleep(0.001)
        asked_s = time.perf_counter()
        self.engine.submit(ids, sampling=Sampling(temperature=0, max_tokens=1)).result()
        end_s = time.perf_counter()
        decoding.request.cancel()
        times_s = decoding.join().times_s
        before = [b - a for a, b in pairwise(t for t in times_s if t <= asked_s)]
        round_s = statistics.median(before)
        assert decoding.last is not None
        return LongPrompt(
            n_tokens=len(ids),
            read_s=end_s - asked_s,
            gap_s=largest_gap_within(times_s, asked_s, end_s),
            round_s=round_s,
            target_s=max(self.gap_s, ROUNDS_OF_A_GAP * round_s),
            is_whole=decoding.last.finish_reason == "cancelled",
        )

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def _host_time(self, reader: _Reader) -> HostTime | None:
        if self._drafts or len(reader.marks) != 2:
            return None
        (busy_0, host_0), (busy_1, host_1) = reader.marks
        return HostTime(
            wall_s=reader.times_s[-1] - reader.times_s[0],
            rounds=len(reader.times_s) - 1,
            busy_s=busy_1 - busy_0 if busy_0 is not None and busy_1 is not None else None,
            host_s=host_1 - host_0 if host_0 is not None and host_1 is not None else None,
        )
