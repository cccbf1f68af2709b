"""Prepares media beside the threads that must not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from flashnext.media.errors import MediaError
from flashnext.media.limits import Limits
from flashnext.media.parts import Part
from flashnext.media.patches import Media
from flashnext.media.prepare import check_counts, prepare
from flashnext.media.rules import Rules

WORKERS = 2


class Preprocessor:
    """A few threads that prepare the media of all requests. Its methods may be called from any thread.

    As many parts as there are threads are decoded at a time, whoever asked for them, so that what decoding
    takes of memory is bounded; the others wait as the bytes that they came as.
    """

    def __init__(self, rules: Rules, limits: Limits, workers: int = WORKERS) -> None:
        """Begin no thread before there is something to do.

        Args:
            rules: Of the checkpoint.
            limits: For every request.
            workers: Threads.
        """
        self._rules, self._limits = rules, limits
        self._pool = ThreadPoolExecutor(workers, "flashnext-media")

    def prepare(self, parts: Sequence[Part]) -> list[Media]:
        """Prepare the media of a request, in their order, and wait for it.

        Raises:
            MediaError: What is wrong with the first part that cannot be used, and which it is.
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

    async def prepare_async(self, parts: Sequence[Part]) -> list[Media]:
        """Do the same without holding up the event loop; what has not begun is dropped with the task."""
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
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, parts: Sequence[Part]) -> list[Future[Media]]:
        check_counts(parts, self._limits)
        return [self._pool.submit(prepare, part, self._rules, self._limits) for part in parts]
