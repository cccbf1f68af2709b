"""Samples that say how disturbed they were: a rate, and what others took of the machine meanwhile."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

QUIET_WINDOW_S = 0.5
QUIET_SHARE = 0.1  # of one core: what a machine that does nothing else still uses


@dataclass(frozen=True)
class Counters:
    """Clocks and counters of one moment; only differences mean anything.

    Attributes:
        wall_s: Wall clock.
        everything_s: CPU time of every process of the machine.
        own_s: CPU time of this process, all threads.
        caller_s: CPU time of the calling thread.
        waited_s: Time this process's threads were ready and had no core.
        stolen_s: CPU time that the host took from this machine.
        major_faults: Pages that this process had to read from disk.
    """

    wall_s: float
    everything_s: float
    own_s: float
    caller_s: float
    waited_s: float
    stolen_s: float
    major_faults: int


@dataclass(frozen=True)
class Sample:
    """One measured stretch of work.

    Attributes:
        value: Work per second of wall time.
        undisturbed: Work per second as an idle machine would have given it, estimated from CPU time: that of
            the calling thread, which takes part in every parallel loop, or of all threads over their number
            if longer.
        foreign: Share of the machine's CPU time that other processes took.
        stolen: Share of it that the host took.
        waited: Share of its wall time that a thread of this process waited for a core.
        major_faults: Pages read from disk.
    """

    value: float
    undisturbed: float
    foreign: float
    stolen: float
    waited: float
    major_faults: int

    @property
    def disturbance(self) -> float:
        """The larger of what others took and what this process waited, as a share."""
        return max(self.foreign + self.stolen, self.waited)

    def is_quiet(self, limit: float) -> bool:
        """Whether others left the sample alone."""
        return self.disturbance <= limit and self.major_faults == 0

    def as_json(self) -> dict[str, Any]:
        """The sample as a JSON object."""
        return asdict(self)


def read_counters() -> Counters:
    """Read the counters of this moment (Linux)."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    tick_hz = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, irq, softirq, steal = ticks
    return Counters(
        wall_s=time.perf_counter(),
        everything_s=(user + nice + system + irq + softirq) / tick_hz,
        own_s=time.process_time(),
        caller_s=time.thread_time(),
        waited_s=_waited_s(),
        stolen_s=steal / tick_hz,
        major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
    )


def sample_between(before: Counters, after: Counters, work: float, threads: int, n_cores: int) -> Sample:
    """The sample that two readings enclose.

    Args:
        before: Counters at its start.
        after: Counters at its end.
        work: What was done between them, in the unit of the rate.
        threads: Threads that did it.
        n_cores: Cores of the machine.
    """
    seconds = after.wall_s - before.wall_s
    own_s = after.own_s - before.own_s
    busy_s = max(after.caller_s - before.caller_s, own_s / threads)
    capacity_s = seconds * n_cores
    return Sample(
        value=work / seconds,
        undisturbed=work / busy_s if busy_s > 0 else work / seconds,
        foreign=max(0.0, (after.everything_s - before.everything_s - own_s) / capacity_s),
        stolen=(after.stolen_s - before.stolen_s) / capacity_s,
        waited=max(0.0, after.waited_s - before.waited_s) / (seconds * threads),
        major_faults=after.major_faults - before.major_faults,
    )


class Meter:
    """Collects samples by metric, each after a wait for a quiet moment.

    Args:
        threads: Threads of the measured work.
        patience_s: Longest wait for a quiet moment before a sample.
        read: Reads the counters.
        sleep: Sleeps some seconds.
    """

    def __init__(
        self,
        threads: int,
        patience_s: float,
        read: Callable[[], Counters] = read_counters,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.samples: dict[str, list[Sample]] = {}
        self._threads, self._patience_s = threads, patience_s
        self._read, self._sleep = read, sleep

    def time(self, metric: str, work: float, run: Callable[[], object]) -> None:
        """Run once and keep a sample of it.

        Args:
            metric: Where the sample belongs.
            work: What `run` does, in the unit of the rate.
            run: The measured work.
        """
        self._wait_for_quiet()
        before = self._read()
        run()
        sample = sample_between(before, self._read(), work, self._threads, os.cpu_count() or 1)
        self.samples.setdefault(metric, []).append(sample)

    def _wait_for_quiet(self) -> None:
        start = last = self._read()
        while last.wall_s - start.wall_s < self._patience_s:
            self._sleep(QUIET_WINDOW_S)
            now = self._read()
            others_s = (now.everything_s - last.everything_s) - (now.own_s - last.own_s)
            if others_s < QUIET_SHARE * (now.wall_s - last.wall_s):
                return
            last = now


def _waited_s() -> float:
    """Run-queue time of this process's threads; 0 where the kernel keeps none."""
    total_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[1])
        except OSError:  # a thread that has just ended
            continue
    return total_ns / 1e9
