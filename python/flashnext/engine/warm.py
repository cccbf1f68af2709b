"""Warm passes: the history of a chat read in the background, as its next prompt will tell it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flashnext.engine.caching import Caching
from flashnext.engine.core import ChunkPart, Core, Landed, Session, Tokens
from flashnext.engine.frame import Frame
from flashnext.engine.marks import LEAST_NEW, Place
from flashnext.engine.radix import Keys, row_keys
from flashnext.engine.sights import Held, Sights

MOST_WAITING = 16
"""Histories that wait to be read; beyond them the oldest is left out."""


@dataclass(eq=False)
class WarmPass:
    """One history.

    Attributes:
        tokens: (n,) int32.
        places: Where its marks lie, its end among them.
        frame: What it shows beside text; None where that is nothing.
        held: What of that is on the device for it.
        session: While it is being read.
        n_read: Tokens that have been read.
        n_kept: Those of them that the cache has.
        read_s: What reading them took.
    """

    tokens: Tokens = field(repr=False)
    places: tuple[Place, ...]
    frame: Frame | None = None
    held: Held = field(default_factory=dict, repr=False)
    keys: Keys = field(init=False, repr=False)
    session: Session | None = None
    n_read: int = 0
    n_kept: int = 0
    read_s: float = 0.0

    def __post_init__(self) -> None:
        self.keys = row_keys(self.tokens) if self.frame is None else self.frame.keys(self.tokens)

    @property
    def axes(self) -> Tokens | None:
        """Where its rows stand on the rotary axes; None: at their positions."""
        return None if self.frame is None else self.frame.axes


class WarmPasses:
    """Those that are to be read; the engine's thread reads one at a time, while nobody waits or reads.

    Attributes:
        n_done: Histories that were read to their end.
        n_put_off: How often one made room for requests.
    """

    def __init__(self, core: Core, caching: Caching, sights: Sights) -> None:
        self._core = core
        self._caching = caching
        self._sights = sights
        self._queue: deque[WarmPass] = deque(maxlen=MOST_WAITING)
        self._taps: tuple[Place, ...] = ()  # of the chunk that is being read
        self._put_off = False  # since it was read last
        self.n_done = self.n_put_off = 0

    @property
    def n_pending(self) -> int:
        """How many have not been read to their end."""
        return len(self._queue)

    @property
    def can_go_on(self) -> bool:
        """Whether `next` may find one: not while what its rows show is being looked at."""
        return bool(self._queue) and (self._queue[0].session is None or self._readable(1) > 0)

    @property
    def readers(self) -> Iterator[tuple[Frame | None, Held, int]]:
        """What the one that is being read shows, as `Sights.want` takes it."""
        if self._queue and self._queue[0].session is not None:
            warm = self._queue[0]
            yield warm.frame, warm.held, warm.n_read

    def add(self, warm: WarmPass) -> None:
        """Read a history in its turn; the oldest that waits gives way."""
        if len(self._queue) == MOST_WAITING:
            self._close(self._queue[0])
        self._queue.append(warm)

    def next(self) -> bool:
        """Find the next one that keeps anything, and begin to read it; False where there is none."""
        while self._queue:
            warm = self._queue[0]
            if warm.session is not None and not self._put_off:
                return True
            if warm.session is not None and self._keeps_anything(warm, warm.n_kept):
                return True  # it was held
            self._close(warm)
            if self._begin(warm):
                return True
            self._queue.popleft()
        return False

    def part(self, n_rows: int) -> ChunkPart | None:
        """Give the next tokens of the one that `next` has begun.

        None where what they show cannot be had, or has not been looked at yet.
        """
        warm = self._queue[0]
        assert warm.session is not None
        self._put_off = False
        n_rows = self._readable(n_rows)
        if not n_rows:
            return None
        tokens = warm.tokens[warm.n_read : warm.n_read + n_rows]
        try:
            media = self._sights.shown(warm.frame, warm.held, warm.n_read, len(tokens))
        except Exception:  # nobody waits for it, and whoever asks for the same is told what is wrong
            self._close(warm)
            self._queue.popleft()
            return None
        self._taps = self._caching.taps(warm.keys, warm.places, warm.n_read, len(tokens), None)
        marks = tuple(place.n - warm.n_read for place in self._taps)
        return ChunkPart(warm.session, tokens, last=False, marks=marks, media=media)

    def landed(self, n_rows: int, landed: Sequence[Landed], row_s: float) -> None:
        """Take what has landed of a part.

        Args:
            n_rows: Of the part.
            landed: Empty where the pass failed.
            row_s: What a row took.
        """
        warm = self._queue[0]
        for one in landed:
            if one.error is None and not one.short:
                kept = self._caching.keep(
                    warm.keys, self._taps, one.snapshots, warm.n_read, warm.read_s, row_s
                )
                warm.n_kept = max(warm.n_kept, kept)
                warm.n_read += n_rows
                warm.read_s += n_rows * row_s
                if warm.n_read < len(warm.tokens):
                    return
                self.n_done += 1
        self._close(warm)
        self._queue.popleft()

    def yield_now(self, hold: bool) -> None:
        """Make room for requests, and go on another time from where it stands.

        What has been read is kept where there is as much of it as lies between marks: a copy takes time, for
        which they wait. Less than that is held, or else read again. Nothing may be in flight.

        Args:
            hold: Whether the session may stay: `give_way` gets its pages when somebody needs them.
        """
        if not self._queue or (session := self._queue[0].session) is None:
            return
        warm = self._queue[0]
        if not self._put_off:
            self._put_off = True
            self.n_put_off += 1
            if warm.n_read - warm.n_kept >= max(LEAST_NEW, self._caching.cache.options.spacing):
                kept = self._caching.keep_end(session, warm.keys[: warm.n_read], warm.read_s)
                warm.n_kept = max(warm.n_kept, kept)
        if not hold or warm.n_kept >= warm.n_read:
            self._close(warm)

    def give_way(self) -> bool:
        """Give up the one that is being read, or the session of one that is held; whether there was one."""
        if not self._queue or self._queue[0].session is None:
            return False
        self._close(self._queue[0])
        if not self._put_off:
            self._queue.popleft()
        return True

    def clear(self) -> None:
        """Give up all."""
        for warm in self._queue:
            self._close(warm)
        self._queue.clear()

    def _begin(self, warm: WarmPass) -> bool:
        """Begin to read a history, from the deepest mark both share; False where that would keep nothing."""
        cache, n = self._caching.cache, len(warm.tokens)
        hit = cache.deepest(warm.keys)
        if not self._keeps_anything(warm, hit.n if hit is not None else 0):
            return False
        shared = (hit.n - 1) // cache.options.page if hit is not None else 0
        if self._core.pages(n) - shared > self._caching.free_pages():
            return False
        try:
            session = self._caching.resumed(hit, warm.tokens, warm.keys, warm.axes)
            if session is not None and hit is not None:
                warm.n_read, warm.read_s = hit.n, hit.value.cost_s
            else:
                session, warm.n_read, warm.read_s = self._core.open(warm.axes), 0, 0.0
        except MemoryError:
            return False
        warm.session, warm.n_kept = session, warm.n_read
        return True

    def _keeps_anything(self, warm: WarmPass, n_read: int) -> bool:
        """Whether it pays to read a history from somewhere on."""
        cache = self._caching.cache
        if cache.find_mark(warm.keys) is not None:  # also where the spill directory alone has it
            return False
        return len(warm.tokens) - n_read >= LEAST_NEW and bool(cache.wanted(warm.keys, warm.places))

    def _readable(self, n_rows: int) -> int:
        """Count the next rows of the first history that can be read, of n."""
        warm = self._queue[0]
        return self._sights.readable(
            warm.frame, warm.held, warm.n_read, min(n_rows, len(warm.tokens) - warm.n_read)
        )

    def _close(self, warm: WarmPass) -> None:
        warm.held.clear()
        if warm.session is not None:
            warm.session.close()
            warm.session = None
