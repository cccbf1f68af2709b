"""The one thread that owns the core: takes jobs from any other, steps the scheduler while there is work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from flashnext.engine.errors import EngineClosed, EngineFailed
from flashnext.engine.events import Counts
from flashnext.engine.job import Job
from flashnext.engine.scheduler import Scheduler


class EngineThread:
    """Runs a scheduler. All methods may be called from any thread.

    While there is nothing to do it lets the core use the time, and then sleeps. If it dies, every open job
    ends with EngineFailed, and so does every later one at once; nothing waits for ever.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._changed = threading.Condition()
        self._inbox: list[Job] = []
        self._calls: list[Callable[[Scheduler], object]] = []
        self._nudged = False  # whether a step is to be taken though there may be nothing to do
        self._open: set[Job] = set()  # jobs that may still be waiting for something
        self._closing = False
        self._failure: EngineFailed | None = None
        self.last_step_s = 0.0  # by time.monotonic; a thread that hangs is told by it
        # A daemon, since the interpreter must be able to exit while a long chunk is being read.
        self._thread = threading.Thread(target=self._run, name="flashnext-engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> EngineFailed | None:
        """Why the thread died, None while it has not."""
        return self._failure

    @property
    def counts(self) -> Counts:
        """What is going on."""
        with self._changed:
            counts = self._scheduler.counts
            warming = counts.cache.warming + len(self._calls)
            return replace(
                counts,
                waiting=counts.waiting + len(self._inbox),
                cache=replace(counts.cache, warming=warming),
            )

    def submit(self, job: Job) -> None:
        """Hand in a job.

        Raises:
            EngineFailed: The thread died.
            EngineClosed: The engine is closed.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise EngineClosed("the engine is closed; open another one")
            if self._idle():
                self.last_step_s = time.monotonic()
            job.times.arrived = self._scheduler.now_s()
            alone = not self._inbox  # who came before it and still waits here has woken the thread
            self._inbox.append(job)
            if alone:
                self._changed.notify()
        if alone:
            self._scheduler.wake()

    def call(self, work: Callable[[Scheduler], object]) -> None:
        """Have the thread do something with its scheduler between two steps, soon; not once it closes.

        Until then it counts as a history that waits.
        """
        with self._changed:
            self._calls.append(work)
            self._changed.notify()
        self._scheduler.wake()

    def nudge(self) -> None:
        """Have the thread take a step soon, in which it hears what there is."""
        with self._changed:
            self._nudged = True
            self._changed.notify()
        self._scheduler.wake()

    def cancel(self, job: Job) -> None:
        """End a job after the chunk or round that is running; its last event says "cancelled"."""
        self._scheduler.cancel(job)

    def close(self, timeout_s: float | None = None) -> bool:
        """End all jobs with EngineClosed at once, and the thread after the step that is running.

        Returns:
            Whether the thread has ended within the time.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
            jobs = [*self._open, *self._inbox]
        for job in jobs:
            job.send(EngineClosed("the engine was closed before the reply was complete"))
        self._scheduler.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._turn():
                self.last_step_s = time.monotonic()
                self._scheduler.step()
        except BaseException as error:  # whatever it is, nobody may be left waiting
            failure = EngineFailed(f"the engine's thread died: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._end(failure)
        else:
            self._end(None)

    def _turn(self) -> bool:
        """Wait for work and take new jobs; False where the engine closes."""
        spare = True
        while True:
            with self._changed:
                while not spare and self._idle():
                    self._changed.wait()
                if not self._idle():
                    self._take_inbox()
                    return not self._closing
                self._open.clear()
            spare = self._scheduler.spare_time()

    def _idle(self) -> bool:
        called = self._inbox or self._calls or self._nudged or self._closing
        return not called and self._scheduler.idle

    def _take_inbox(self) -> None:
        if self._inbox:
            self._open = {job for job in self._open if not job.ended} | {*self._inbox}
            for job in self._inbox:
                self._scheduler.add(job)
            self._inbox.clear()
        calls, self._calls, self._nudged = self._calls, [], False
        for call in calls:
            call(self._scheduler)

    def _end(self, failure: EngineFailed | None) -> None:
        with self._changed:
            self._failure = failure
            self._closing = True
            jobs = [*self._open, *self._inbox]
        error = failure or EngineClosed("the engine was closed before the reply was complete")
        for job in jobs:
            job.send(error)
        self._scheduler.end_all(error)
