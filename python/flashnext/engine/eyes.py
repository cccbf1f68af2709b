"""The vision tower's place in an engine: features of pictures and videos, and a cache of recent ones."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from flashnext.engine.core import Floats
from flashnext.engine.errors import EngineClosed
from flashnext.engine.events import VisionCounts
from flashnext.errors import InvalidArgument
from flashnext.media import Media

STRETCH = 512
"""Patches that are made at a time, which takes 3 MiB; the interpreter is let go of in between."""


class Tower(Protocol):
    """What runs passes, `flashnext._core.Tower`."""

    @property
    def max_patches(self) -> int:
        """Of one slice, and of all that go through together."""

    def features(self, grids: Sequence[tuple[int, int, int]], patches: Iterable[Floats], /) -> Floats:
        """Give the features of media, one after the other."""


class Eyes:
    """Sees pictures and videos. Its methods may be called from any thread; one pass at a time runs.

    What is seen depends on the media alone, bit for bit: neither who asks, nor what else goes through the
    tower, nor whether it comes from the cache is to be seen in it.
    """

    def __init__(
        self, tower: Tower, cache_bytes: int, clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        """Begin with an empty cache.

        Args:
            tower: Of the loaded model.
            cache_bytes: Most that features of recent media take; those used longest ago give way.
            clock_s: The clock that passes are measured by.
        """
        self._tower = tower
        self._cache_bytes = cache_bytes
        self._clock_s = clock_s
        self._looking = threading.Lock()  # whoever has it runs passes
        self._books = threading.Lock()
        self._recent = OrderedDict[bytes, Floats]()
        self._recent_bytes = 0
        self._counts = VisionCounts()
        self._closed = False

    @property
    def counts(self) -> VisionCounts:
        """What has been seen."""
        return self._counts

    @property
    def max_patches(self) -> int:
        """Patches that go through the tower together, and the most of a picture or of a pair of frames."""
        return self._tower.max_patches

    def see(self, media: Media) -> Floats:
        """Give features, (n_tokens, hidden) float32, read-only.

        Raises:
            InvalidArgument: It is larger than the tower has room for.
            DeviceError: The pass failed.
            EngineClosed: It was closed before the pass began to run.
        """
        (seen,) = self.see_all([media])
        if isinstance(seen, Exception):
            raise seen
        return seen

    def see_all(self, media: Sequence[Media]) -> list[Floats | Exception]:
        """Give the features of each, or what is wrong with it; as many as have room share a pass."""
        found: dict[bytes, Floats | Exception] = {}
        with self._looking:
            for passed in self._passes(self._unseen(media, found)):
                found.update(self._run(passed))
        return [found[one.key] for one in media]

    def forget(self) -> None:
        """Empty the cache."""
        with self._books:
            self._recent.clear()
            self._recent_bytes = 0

    def close(self) -> None:
        """Begin no pass any more; one that is still being given patches ends there."""
        self._closed = True

    def _unseen(self, media: Sequence[Media], found: dict[bytes, Floats | Exception]) -> list[Media]:
        """Take what is in the cache, and list the others, each once."""
        left = dict[bytes, Media]()
        with self._books:
            for one in media:
                if one.key in found or one.key in left:
                    continue
                if (seen := self._recent.get(one.key)) is not None:
                    self._recent.move_to_end(one.key)
                    self._counts = replace(self._counts, cached=self._counts.cached + 1)
                    found[one.key] = seen
                elif wrong := self._too_large(one):
                    found[one.key] = wrong
                else:
                    left[one.key] = one
        return list(left.values())

    def _too_large(self, media: Media) -> InvalidArgument | None:
        _, h, w = media.grid
        most = self.max_patches
        if h * w <= most:
            return None
        a_token = h * w * media.grid[0] // media.n_tokens
        what = "a picture" if media.kind == "image" else "frames"
        return InvalidArgument(
            f"{what} of {h * w // a_token} tokens cannot be seen: the vision tower has room for "
            f"{most // a_token}; prepare it by the engine's own limits"
        )

    def _passes(self, media: Sequence[Media]) -> Iterator[list[Media]]:
        """Put together what has room in a pass; a video that has none takes several by itself."""
        passed: list[Media] = []
        left = self.max_patches
        for one in media:
            n = len_patches(one)
            if passed and n > left:
                yield passed
                passed, left = [], self.max_patches
            passed.append(one)
            left -= n
        if passed:
            yield passed

    def _run(self, media: Sequence[Media]) -> Iterator[tuple[bytes, Floats | Exception]]:
        """Run a pass; where it fails, each goes by itself, so that nobody's failure is another's."""
        began = self._clock_s()
        try:
            features = self._tower.features([one.grid for one in media], self._patches(media))
        except Exception as error:
            if len(media) == 1:
                yield media[0].key, error
            else:
                for one in media:
                    yield from self._run([one])
            return
        with self._books:
            before = self._counts
            self._counts = replace(
                before,
                media=before.media + len(media),
                tokens=before.tokens + len(features),
                passes=before.passes + 1,
                seconds=before.seconds + self._clock_s() - began,
            )
        at = 0
        for one in media:
            own = features[at : at + one.n_tokens]
            at += one.n_tokens
            if len(media) > 1:  # so that none keeps the others' memory
                try:
                    own = own.copy()
                except MemoryError as error:
                    yield one.key, error
                    continue
            own.flags.writeable = False
            self._keep(one.key, own)
            yield one.key, own

    def _patches(self, media: Sequence[Media]) -> Iterator[Floats]:
        for one in media:
            for at in range(0, len_patches(one), STRETCH):
                if self._closed:
                    raise EngineClosed("the engine was closed")
                yield one.patches(at, at + STRETCH)

    def _keep(self, key: bytes, features: Floats) -> None:
        if features.nbytes > self._cache_bytes:
            return
        with self._books:
            self._recent[key] = features
            self._recent_bytes += features.nbytes
            while self._recent_bytes > self._cache_bytes:
                _, old = self._recent.popitem(last=False)
                self._recent_bytes -= old.nbytes


def len_patches(media: Media) -> int:
    """Count the patches of a picture or of all slices of a video."""
    t, h, w = media.grid
    return t * h * w
