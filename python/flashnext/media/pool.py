"""Prepares media beside the threads that must not wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from flashnext.media.errors import MediaError, PoolClosed
from flashnext.media.limits import Limits
from flashnext.media.parts import Part
from flashnext.media.patches import Media
from flashnext.media.preparing import check_counts, prepare
from flashnext.media.rules import Rules

WORKERS = 2


class _Asked(Future[Media]):
    """What somebody waits for, as long as that is so."""

    dropped = False

    def cancel(self) -> bool:
        """Wait for it no more; what has begun is told by `dropped`."""
        self.dropped = True
        return super().cancel()

    def wanted(self) -> bool:
        """Whether somebody waits for it."""
        return not self.dropped


class Preprocessor:
    """A few threads that prepare the media of all requests. Its methods may be called from any thread.

    As many parts as there are threads are decoded at a time, whoever asked for them, so that what decoding
    takes of memory is bounded; the others wait as the bytes that they came as. What has been prepared
    before is taken as it is. The threads do not hold up the end of the process.

    Attributes:
        rules: Of the checkpoint.
    """

    def __init__(self, rules: Rules, limits: Limits, workers: int = WORKERS) -> None:
        """Begin no thread before there is something to do.

        Args:
            rules: Of the checkpoint.
            limits: For every request.
            workers: Threads.
        """
        self.rules, self._limits, self._workers = rules, limits, workers
        self._changed = threading.Condition()
        self._work = deque[tuple[_Asked, Part]]()
        self._n_threads = self._n_idle = 0
        self._closed = False

    def prepare(self, parts: Sequence[Part | Media]) -> list[Media]:
        """Prepare the media of a request, in their order, and wait for it.

        Raises:
            MediaError: What is wrong with the first part that cannot be used, and which it is.
            PoolClosed: It was closed before all were begun.
        """
        begun = self._begin(parts)
        out: list[Media] = []
        try:
            for i, each in enumerate(begun):
                try:
                    out.append(each.result())
                except MediaError as error:
                    raise error.at(i) from None
            return out
        finally:
            for each in begun:
                each.cancel()

    async def prepare_async(self, parts: Sequence[Part | Media]) -> list[Media]:
        """Do the same without holding up the event loop.

        What has not begun, and the rest of a video, is dropped with the task.
        """
        waiting = [asyncio.wrap_future(each) for each in self._begin(parts)]
        out: list[Media] = []
        try:
            for i, each in enumerate(waiting):
                try:
                    out.append(await each)
                except MediaError as error:
                    raise error.at(i) from None
            return out
        finally:
            for each in waiting:
                if not each.cancel() and not each.cancelled():
                    each.exception()  # has been told, or another part's has

    def close(self) -> None:
        """Begin nothing more; what is being decoded is left to end."""
        with self._changed:
            self._closed = True
            dropped, self._work = self._work, deque()
            self._changed.notify_all()
        for future, _ in dropped:
            if future.set_running_or_notify_cancel():
                future.set_exception(PoolClosed())

    def _begin(self, parts: Sequence[Part | Media]) -> list[_Asked]:
        check_counts(parts, self._limits)
        begun = []
        with self._changed:
            if self._closed:
                raise PoolClosed
            for part in parts:
                begun.append(_Asked())
                if isinstance(part, Media):
                    begun[-1].set_result(part)
                    continue
                self._work.append((begun[-1], part))
                if len(self._work) > self._n_idle and self._n_threads < self._workers:
                    name = f"flashnext-media-{self._n_threads}"
                    threading.Thread(target=self._run, name=name, daemon=True).start()
                    self._n_threads += 1
            self._changed.notify_all()
        return begun

    def _run(self) -> None:
        while True:
            with self._changed:
                self._n_idle += 1
                while not self._work and not self._closed:
                    self._changed.wait()
                self._n_idle -= 1
                if self._closed:
                    return
                future, part = self._work.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(prepare(part, self.rules, self._limits, future.wanted))
            except BaseException as error:
                future.set_exception(error)
            del future, part  # nothing is kept while there is nothing to do
