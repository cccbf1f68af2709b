"""What prompts show is looked at beside the rounds of others, once, together, and while somebody wants it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from flashnext.engine.core import Floats
from flashnext.engine.errors import EngineClosed
from flashnext.engine.eyes import Eyes
from flashnext.engine.frame import Frame, See
from flashnext.engine.looks import Looks, Wish
from flashnext.errors import DeviceError, InvalidArgument
from flashnext.media import Media
from flashnext.media.patches import picture
from flashnext.media.rules import ImageRule
from support.cached import Bench, counting
from support.jobs import Client, run
from support.seen import noise

A, B, C = (noise(seed, (1, 4, 6)) for seed in (1, 2, 3))  # of 24 patches, 6 tokens each
FILM = noise(4, (3, 4, 4))  # of three slices of 16 patches
WAIT_S = 60.0
PAD = 900


class FakeTower:
    """Gives features that say which pass they come of.

    Attributes:
        passes: Grids of each.
        broken: Grids that no pass with them survives.
        gate: Waited for in each pass.
    """

    def __init__(self, max_patches: int = 60) -> None:
        self.max_patches = max_patches
        self.passes: list[list[tuple[int, int, int]]] = []
        self.broken: set[tuple[int, int, int]] = set()
        self.gate = threading.Event()
        self.gate.set()

    def features(self, grids: Sequence[tuple[int, int, int]], patches: Iterable[Floats]) -> Floats:
        assert self.gate.wait(WAIT_S)
        self.passes.append(list(grids))
        if self.broken & set(grids):
            raise DeviceError("the vision tower failed")
        n = sum(t * h * w // 4 for t, h, w in grids)
        return np.full((n, 1), len(self.passes), np.float32)


def eyes(tower: FakeTower, cache_tokens: int = 100) -> Eyes:
    return Eyes(tower, 4 * cache_tokens)


def first(seen: Floats | Exception) -> float:
    assert not isinstance(seen, Exception)
    return float(seen[0, 0])


# --- eyes


def test_what_was_seen_lately_is_not_looked_at_again_until_it_has_to_give_way() -> None:
    tower = FakeTower()
    sees = eyes(tower, cache_tokens=12)
    assert [first(sees.see(one)) for one in (A, B, A, C, A, B)] == [1, 2, 1, 3, 1, 4]
    counts = sees.counts
    assert (counts.media, counts.tokens, counts.passes, counts.cached) == (4, 24, 4, 2)
    assert counts.seconds > 0
    sees.forget()
    assert first(sees.see(B)) == 5


def test_features_that_are_larger_than_the_cache_are_not_kept() -> None:
    tower = FakeTower()
    sees = eyes(tower, cache_tokens=5)
    assert [first(sees.see(A)) for _ in range(2)] == [1, 2]
    assert sees.counts.cached == 0


def test_as_many_as_have_room_share_a_pass_each_once() -> None:
    tower = FakeTower(60)
    found = eyes(tower).see_all([A, B, A, C, FILM])
    assert [first(seen) for seen in found] == [1, 1, 1, 2, 3]
    assert [len(grids) for grids in tower.passes] == [2, 1, 1]
    assert not any(seen.flags.writeable for seen in found if not isinstance(seen, Exception))
    assert found[0].base is None  # type: ignore[union-attr]


def test_who_cannot_be_seen_takes_nobody_with_it() -> None:
    tower = FakeTower()
    tower.broken = {FILM.grid}
    sees = eyes(tower)
    small = noise(7, (1, 2, 2))
    film, ok = sees.see_all([FILM, small])
    assert isinstance(film, DeviceError) and first(ok) == 3
    with pytest.raises(DeviceError, match="vision tower failed"):
        sees.see(FILM)
    tower.broken = set()
    assert first(sees.see(FILM)) == 5  # what failed was not kept
    assert sees.counts.media == 2


def test_a_picture_without_room_is_refused_with_the_numbers() -> None:
    sees = eyes(FakeTower(20))
    with pytest.raises(InvalidArgument, match=r"a picture of 6 tokens cannot be seen.*room for 5"):
        sees.see(A)
    assert len(sees.see(FILM)) == 12  # by its slices
    with pytest.raises(InvalidArgument, match="frames of 6 tokens"):
        sees.see(noise(9, (2, 4, 6)))


# --- looks


def wished(see: See, *media: Media) -> list[Wish]:
    return [(one, see) for one in media]


def came(looks: Looks, *media: Media) -> None:
    while not all(looks.ready(one.key) for one in media):
        looks.heard()
        looks.wait(WAIT_S)


def test_media_of_several_prompts_go_through_the_tower_together() -> None:
    tower = FakeTower(100)
    sees = eyes(tower)
    looks = Looks(sees, 100)
    tower.gate.clear()
    looks.want(wished(sees.see, A), 0)
    looks.want(wished(sees.see, A, B, C), 0)
    tower.gate.set()
    came(looks, A, B, C)
    assert sum(len(grids) for grids in tower.passes) == 3 and len(tower.passes) <= 2
    assert looks.close(WAIT_S)


def test_what_nobody_wants_any_more_is_not_looked_at_and_not_kept() -> None:
    tower = FakeTower()
    sees = eyes(tower)
    looks = Looks(sees, 100)
    told = threading.Event()
    looks.told = told.set
    tower.gate.clear()
    looks.want(wished(sees.see, FILM), 0)
    looks.want(wished(sees.see, FILM, A), 0)
    while not looks._begun:
        threading.Event().wait(0.001)
    looks.want((), 0)
    assert not looks.waits
    tower.gate.set()
    assert told.wait(WAIT_S)
    assert tower.passes == [[FILM.grid]] and not looks.ready(FILM.key)
    assert looks.take(FILM.key) is None
    looks.want(wished(sees.see, FILM), 0)  # and it is not lost either
    came(looks, FILM)
    assert len(tower.passes) == 1 and sees.counts.cached == 1
    assert looks.close(WAIT_S)


def test_no_more_is_asked_for_ahead_than_there_is_room_for_but_the_first_always() -> None:
    tower = FakeTower()
    sees = eyes(tower)
    looks = Looks(sees, 12)
    looks.want(wished(sees.see, A, B, C), 0)
    came(looks, A, B)
    assert not looks.waits and not looks.ready(C.key)
    looks.want(wished(sees.see, C), 12)  # both others are on the device
    came(looks, C)
    looks.want(wished(sees.see, FILM), 1000)
    came(looks, FILM)
    assert looks.close(WAIT_S)


def test_an_error_is_told_to_who_takes_it_and_forgotten_with_the_wish() -> None:
    def blind(media: Media) -> Floats:
        raise ValueError("the tower is blind")

    looks = Looks(None, 100)
    looks.want(wished(blind, A), 0)
    came(looks, A)
    with pytest.raises(ValueError, match="blind"):
        looks.take(A.key)
    looks.want((), 0)
    looks.want(wished(lambda media: np.ones((6, 1), np.float32), A), 0)
    came(looks, A)
    assert looks.take(A.key) is not None
    assert looks.close(WAIT_S)


def test_whatever_ends_a_look_is_told_and_the_next_is_looked_at() -> None:
    def exits(media: Media) -> Floats:
        raise SystemExit(3)

    looks = Looks(None, 100)
    looks.want(wished(exits, A), 0)
    came(looks, A)
    with pytest.raises(DeviceError, match=r"ended by SystemExit\(3\)"):
        looks.take(A.key)
    looks.want(wished(lambda media: np.ones((6, 1), np.float32), B), 0)
    came(looks, B)
    assert looks.take(B.key) is not None and looks.close(WAIT_S)


def test_without_memory_for_its_own_copy_one_fails_and_the_others_are_seen() -> None:
    class Short(np.ndarray[Any, Any]):
        n_copies = 0

        def copy(self, *_: Any) -> Any:
            Short.n_copies += 1
            if Short.n_copies == 1:
                raise MemoryError("no room for a copy")
            return np.array(self)

    class Tower(FakeTower):
        def features(self, grids: Sequence[tuple[int, int, int]], patches: Iterable[Floats]) -> Floats:
            return super().features(grids, patches).view(Short)

    looks = Looks(eyes(tower := Tower(100)), 100)
    looks.want(wished(looks._eyes.see, A, B), 0)  # type: ignore[union-attr]
    came(looks, A, B)
    assert tower.passes == [[A.grid, B.grid]]
    with pytest.raises(MemoryError, match="no room"):
        looks.take(A.key)
    assert looks.take(B.key) is not None and looks.close(WAIT_S)


def test_closing_ends_a_pass_that_is_still_being_given_patches() -> None:
    begun, closing = threading.Event(), threading.Event()

    class Tower(FakeTower):
        def features(self, grids: Sequence[tuple[int, int, int]], patches: Iterable[Floats]) -> Floats:
            for _ in patches:
                begun.set()
                assert closing.wait(WAIT_S)
            return super().features(grids, ())

    tower = Tower(10_000)
    sees = eyes(tower)
    looks = Looks(sees, 100)
    looks.want(wished(sees.see, large := picture(np.zeros((640, 640, 3), np.uint8), ImageRule())), 0)
    assert begun.wait(WAIT_S)
    sees.close()
    closing.set()
    assert looks.close(WAIT_S) and not tower.passes
    with pytest.raises(EngineClosed):
        sees.see(large)


# --- beside rounds


class Slow:
    """Sees when it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[bytes] = []

    def __call__(self, media: Media) -> Floats:
        self.asked.append(media.key)
        assert self.gate.wait(WAIT_S)
        return np.arange(media.n_tokens, dtype=np.float32)[:, None] + 10_000


def begin(bench: Bench, see: See, before: list[int], media: Media, **more: Any) -> tuple[Client, list[int]]:
    ids = [*before, *[PAD] * media.n_tokens, 7]
    frame = Frame.of(np.array(ids, np.int32), [media], (PAD, None), see)
    seen = [*before, *range(10_000, 10_000 + media.n_tokens), 7]
    return bench.add(ids, frame=frame, **more), seen


def test_rounds_of_others_go_on_and_text_is_read_while_a_picture_is_looked_at() -> None:
    slow, bench = Slow(), Bench(looks=Looks(None, 100))
    beside = bench.add([1, 2, 3], max_tokens=50)
    client, seen = begin(bench, slow, [4, 5, 6, 8], A)
    while not (beside.job.ended and slow.asked):
        bench.scheduler.step()
    assert client.job.n_read == 4 and not client.job.ended and slow.asked == [A.key]
    later = bench.add([9, 9, 9], max_tokens=5)  # nor does it hold up who comes
    while not later.job.ended:
        bench.scheduler.step()
    assert not client.job.ended
    slow.gate.set()
    run(bench.scheduler)
    tokens = client.token_ids()
    assert tokens == counting(seen)[: len(tokens)] and len(tokens) == 3
    bench.scheduler.end_all(ValueError("the end"))


def test_who_is_cancelled_while_its_picture_is_looked_at_ends_at_once_and_leaves_nothing() -> None:
    slow, looks = Slow(), Looks(None, 100)
    bench = Bench(looks=looks)
    client, _ = begin(bench, slow, [4, 5], A)
    while not slow.asked:
        bench.scheduler.step()
    bench.scheduler.cancel(client.job)
    while not client.job.ended:
        bench.scheduler.step()
    assert bench.scheduler.idle and not looks.waits and not slow.gate.is_set()
    slow.gate.set()
    bench.scheduler.end_all(ValueError("the end"))
    assert not looks.ready(A.key)
    bench.check_books()


def test_who_waits_for_a_picture_stands_in_nobodys_way_for_pages() -> None:
    slow, bench = Slow(), Bench(limit=0, looks=Looks(None, 100), n_pages=14)
    client, seen = begin(bench, slow, [4, 5], A, max_tokens=20)
    others = [bench.add([i, i, i], max_tokens=60) for i in (1, 2, 3)]
    while not all(other.job.ended for other in others):
        bench.scheduler.step()
    assert [len(other.token_ids()) for other in others] == [60, 60, 60]
    slow.gate.set()
    run(bench.scheduler, 100_000)
    assert client.token_ids() == counting(seen)[:20]
    bench.scheduler.end_all(ValueError("the end"))
