"""What the engine does with prompts that show media: their rows' names, what is shared of them, and when
features are asked for. Over the fake core, whose replies depend on what rows show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flashnext.engine.core import Floats
from flashnext.engine.frame import Frame, media_keys
from flashnext.engine.looks import Looks, Wish
from flashnext.engine.marks import Kind, Place
from flashnext.engine.radix import row_keys
from flashnext.engine.warm import WarmPass
from flashnext.errors import InvalidArgument
from flashnext.media import Media
from support.cached import Bench, counting
from support.jobs import Client, run
from support.reference.media import rope_index
from support.seen import noise

IMAGE_PAD, VIDEO_PAD = 900, 901
A, B, C = (noise(seed, (1, 4, 6)) for seed in (1, 2, 3))  # of 6 rows each
FILM = noise(4, (2, 4, 4))  # of two slices of 4 rows


class Eye:
    """Gives features that begin with a number for each row, and counts how often it is asked.

    Attributes:
        asked: By key.
        error: Raised in place of features.
    """

    def __init__(self) -> None:
        self.asked = Counter[bytes]()
        self.error: Exception | None = None

    def __call__(self, media: Media) -> Floats:
        self.asked[media.key] += 1
        if self.error:
            raise self.error
        return np.array([numbers(media)], np.float32).T

    def times(self, *media: Media) -> list[int]:
        """How often each was asked for; the counts begin anew."""
        found = [self.asked[one.key] for one in media]
        assert sum(self.asked.values()) == sum(found)
        self.asked.clear()
        return found


def numbers(media: Media) -> list[int]:
    """What its rows show."""
    first = 10_000 + 100 * int.from_bytes(media.key[:1], "little")
    return list(range(first, first + media.n_tokens))


Piece = int | Media


def tokens_of(pieces: Sequence[Piece | Sequence[int]]) -> tuple[list[int], list[Media], list[int]]:
    """Tokens, media, and what the rows are to the model; slices of a film are parted by two tokens."""
    ids, media, seen = list[int](), list[Media](), list[int]()
    for piece in pieces:
        if isinstance(piece, Media):
            t = piece.grid[0]
            n = piece.n_tokens // t
            for i in range(t):
                text = [50 + i, 60 + i] * (i > 0)
                ids += text + [VIDEO_PAD if t > 1 else IMAGE_PAD] * n
                seen += text + numbers(piece)[i * n : (i + 1) * n]
            media.append(piece)
        else:
            more = [piece] if isinstance(piece, int) else list(piece)
            ids += more
            seen += more
    return ids, media, seen


ROOM = [0]
"""Tokens that are looked at ahead, by a thread; 0: by the engine's own, as rows are about to be read."""


@pytest.fixture(autouse=True, params=[0, 1, 10, 1000])
def room(request: pytest.FixtureRequest) -> int:
    ROOM[:] = [request.param]
    return ROOM[0]


class Sight(Bench):
    """The bench with prompts that show media."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"looks": Looks(None, ROOM[0]) if ROOM[0] else None, **more})
        self.eye = Eye()

    def frame(self, *pieces: Any) -> tuple[list[int], Frame, list[int]]:
        ids, media, seen = tokens_of(pieces)
        return ids, Frame.of(np.array(ids, np.int32), media, (IMAGE_PAD, VIDEO_PAD), self.eye), seen

    def begin(self, *pieces: Any, places: Sequence[int] = (), **more: Any) -> tuple[Client, list[int]]:
        ids, frame, seen = self.frame(*pieces)
        return self.add(ids, places, frame=frame, **more), seen

    def see(self, *pieces: Any, places: Sequence[int] = (), **more: Any) -> int:
        """Answer a prompt and check its reply; returns how many tokens were cached."""
        client, seen = self.begin(*pieces, places=places, **more)
        run(self.scheduler)
        self.check_books()
        return told(client, seen)


def told(client: Client, seen: list[int]) -> int:
    """Check a reply by what the prompt shows; returns how many tokens were cached."""
    events = client.events()
    tokens = [i for event in events for i in event.token_ids]
    assert tokens == counting(seen)[: len(tokens)]
    usage = events[-1].usage
    assert usage is not None
    return usage.cached_tokens


TEXT = list(range(1, 11))

# --- names of rows


def test_rows_of_media_are_named_by_what_they_show_and_text_by_its_tokens() -> None:
    ids, frame, _ = Sight().frame(TEXT, A, TEXT, FILM, 7)
    keys = frame.keys(np.array(ids, np.int32))
    shows = np.array(ids) >= IMAGE_PAD
    assert (keys[~shows] == np.array(ids)[~shows]).all() and (keys[shows] < 0).all()
    assert len(set(keys[shows].tolist())) == shows.sum() == 14
    assert np.array_equal(keys[10:16], media_keys(A.key, 6))
    assert np.array_equal(keys[26:30], media_keys(FILM.key, 8)[:4])
    assert np.array_equal(keys[32:36], media_keys(FILM.key, 8)[4:])
    # The same in a longer sequence, and in a shorter one.
    longer = np.array([*ids, 5, IMAGE_PAD, 6], np.int32)
    assert np.array_equal(frame.keys(longer)[: len(ids)], keys)
    assert frame.keys(longer)[-2] == IMAGE_PAD  # the model said it: it shows nothing
    for n in range(len(ids)):
        assert np.array_equal(frame.keys(np.array(ids[:n], np.int32)), keys[:n])


def test_names_of_other_media_have_nothing_in_common() -> None:
    names = [media_keys(noise(seed, (1, 4, 6)).key, 6) for seed in range(300)]
    assert len({key for keys in names for key in keys.tolist()}) == 300 * 6
    assert all((keys < 0).all() for keys in names)
    assert row_keys(np.array([0, 2**31 - 1], np.int32)).min() >= 0


def test_a_frame_has_the_references_positions_and_says_what_rows_show() -> None:
    ids, frame, _ = Sight().frame(TEXT, A, 3, FILM, 7, B, 9)
    kinds = [1 if i == IMAGE_PAD else 2 if i == VIDEO_PAD else 0 for i in ids]
    axes, _ = rope_index(kinds, [A.grid, B.grid], [FILM.grid])
    assert np.array_equal(frame.axes, axes.T)
    assert list(frame.within(12, 10)) == [(0, A, 2, 4), (5, FILM, 0, 4)]
    assert list(frame.within(0, 10)) == []
    assert frame.behind(0) == {A.key, B.key, FILM.key}
    assert frame.behind(16) == {B.key, FILM.key} == frame.behind(26)
    assert frame.behind(27) == {B.key} and frame.behind(len(ids)) == set()


def test_pads_that_are_not_those_of_the_media_are_refused() -> None:
    def frame(ids: list[int], *media: Media) -> Frame:
        return Frame.of(np.array(ids, np.int32), media, (IMAGE_PAD, VIDEO_PAD), Eye())

    with pytest.raises(InvalidArgument, match="image 0 has no pads"):
        frame([1, 2], A)
    with pytest.raises(InvalidArgument, match="the pad at row 1 of the prompt has no image"):
        frame([1, IMAGE_PAD, 2])
    with pytest.raises(InvalidArgument, match="2 x 3 pads next to each other, of which row 1"):
        frame([1, *[IMAGE_PAD] * 5, 2], A)
    with pytest.raises(InvalidArgument, match="ends with media"):
        frame([1, *[IMAGE_PAD] * 6], A)
    with pytest.raises(InvalidArgument, match="image 0 has no pads"):
        Frame.of(np.array([1, *[IMAGE_PAD] * 6, 2], np.int32), [A], (None, None), Eye())


# --- what is shared


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_a_reply_is_drawn_from_what_its_prompt_shows(chunk: int) -> None:
    bench = Sight(max_chunk=chunk)
    assert bench.see(TEXT, A, TEXT, FILM, 7) == 0
    assert bench.eye.times(A, FILM) == [1, 1]  # once, whatever the chunks


def test_an_image_that_was_read_is_neither_read_nor_looked_at_again() -> None:
    bench = Sight()
    first = (TEXT, A, TEXT)
    assert bench.see(*first, places=[10, 16, 26]) == 0
    assert bench.eye.times(A) == [1]
    assert bench.see(*first, B, 7, places=[26, 32]) == 26
    assert bench.eye.times(A, B) == [0, 1]
    assert bench.see(*first, B, 7, 8, places=[26, 32]) == 32
    assert bench.eye.times(A, B) == [0, 0]


def test_an_image_that_is_changed_in_an_early_turn_resumes_what_stands_before_it() -> None:
    bench = Sight()
    places = [10, 13, 16, 26, 32, 33]  # one of them within the image
    assert bench.see(TEXT, A, TEXT, B, 7, 8, places=places) == 0
    assert bench.see(TEXT, C, TEXT, B, 7, 8, places=places) == 10
    assert bench.eye.times(A, B, C) == [1, 2, 1]
    assert bench.see(TEXT, A, TEXT, C, 7, 8, places=places) == 26
    assert bench.see(TEXT, A, TEXT, B, 7, 8, places=places) == 33
    assert bench.see(TEXT, C, TEXT, B, 7, 8, places=places) == 33


def test_text_that_spells_pads_is_no_image() -> None:
    bench = Sight()
    assert bench.see(TEXT, A, 7, places=[16]) == 0
    assert bench.ask([*TEXT, *[IMAGE_PAD] * 6, 7], [16]) == 0
    assert bench.marks().count(16) == 2


def test_a_prompt_resumed_within_an_image_looks_at_it_for_the_rest() -> None:
    bench = Sight()
    bench.see(TEXT, A, TEXT, places=[12])
    bench.eye.asked.clear()
    assert bench.see(TEXT, A, 7, places=[12]) == 12
    assert bench.eye.times(A) == [1]
    assert bench.core.chunks[-1] == [*[IMAGE_PAD] * 4, 7]


def test_a_film_that_was_read_in_part_is_looked_at_for_its_other_slice() -> None:
    bench = Sight()
    bench.see(TEXT, FILM, TEXT, places=[14])  # behind the first slice
    bench.eye.asked.clear()
    assert bench.see(TEXT, FILM, 7, places=[14]) == 14
    assert bench.eye.times(FILM) == [1]


def test_those_who_read_at_the_same_time_share_what_both_show() -> None:
    bench = Sight(limit=0, least_shared=4, max_chunk=8)
    begun = [bench.begin(TEXT, A, TEXT, image, 7) for image in (B, C, B)]
    run(bench.scheduler)
    assert [told(client, seen) for client, seen in begun] == [0, 26, 32]
    assert bench.eye.times(A, B, C) == [1, 1, 1]


def test_same_text_with_other_images_shares_what_stands_before_them() -> None:
    bench = Sight(limit=0, least_shared=4, max_chunk=8)
    begun = [bench.begin(TEXT, image, TEXT) for image in (A, B)]
    run(bench.scheduler)
    assert [told(client, seen) for client, seen in begun] == [0, 10]


def test_those_who_do_not_share_rows_share_features() -> None:
    bench = Sight(limit=0, max_chunk=4)
    begun = [bench.begin(first, A, TEXT) for first in (TEXT, TEXT[::-1], TEXT[1:])]
    run(bench.scheduler)
    assert [told(client, seen) for client, seen in begun] == [0, 0, 0]
    # Who comes to it later has what the others hold, where there is room for that.
    n = bench.eye.times(A)[0]
    assert n == 1 if ROOM[0] > A.n_tokens else n < 3
    assert not any(client.job.held for client, _ in begun)


class Recording(Looks):
    """Knows what it was ever asked for."""

    def __init__(self) -> None:
        super().__init__(None, 1000)
        self.wanted = set[bytes]()

    def want(self, wishes: Sequence[Wish], held_tokens: int) -> None:
        self.wanted |= {media.key for media, _ in wishes}
        super().want(wishes, held_tokens)


def test_what_is_about_to_be_resumed_is_not_looked_at_when_another_reply_ends() -> None:
    looks = Recording()
    bench = Sight(looks=looks)
    bench.see(TEXT, A, TEXT, places=[26])
    other, _ = bench.begin(9, C, 8, max_tokens=50)
    while not other.job.token_ids:
        bench.scheduler.step()
    looks.wanted.clear()
    client, seen = bench.begin(TEXT, A, TEXT, B, 7)
    while bench.scheduler.counts.waiting:
        bench.scheduler.step()
    assert client.job.session is None, "it is admitted, and has not gone on from the mark"
    bench.scheduler.cancel(other.job)
    run(bench.scheduler)
    assert told(client, seen) == 26
    assert looks.wanted == {B.key}


@pytest.mark.parametrize("equal", [True, False])
def test_a_preempted_reply_goes_on_behind_its_media(equal: bool) -> None:
    bench = Sight(limit=0, n_pages=12, equal=equal, max_running=3)
    begun = [bench.begin(TEXT, image, TEXT, max_tokens=30) for image in (A, B, FILM)]
    run(bench.scheduler, 100_000)
    assert [told(client, seen) for client, seen in begun] == [0, 0, 0]
    if not ROOM[0]:  # those who wait for what they show need not come into each other's way
        assert bench.scheduler.counts.preempted > 0


def test_the_end_of_a_reply_is_named_by_what_its_prompt_shows() -> None:
    bench = Sight()
    client, seen = bench.begin(TEXT, A, TEXT, max_tokens=5)
    run(bench.scheduler)
    told(client, seen)
    reply = client.job.token_ids
    assert bench.see(TEXT, A, TEXT, reply, 7) == 30
    assert bench.see(TEXT, B, TEXT, reply, 7) == 0


def test_a_history_with_media_is_read_as_its_next_prompt_will_be() -> None:
    bench = Sight(equal=False)
    bench.see(TEXT, A, TEXT, places=[26])
    ids, frame, _ = bench.frame(TEXT, A, TEXT, 77, B, 78)
    tokens = np.array(ids, np.int32)
    bench.scheduler.add_warm(WarmPass(tokens, (Place(len(ids), Kind.END),), frame))
    run(bench.scheduler)
    assert bench.eye.times(A, B) == [1, 1]
    assert bench.see(TEXT, A, TEXT, 77, B, 78, 79) == len(ids)
    assert bench.eye.times(A, B) == [0, 0]


# --- what goes wrong


def test_features_that_cannot_be_had_end_their_request_alone() -> None:
    bench = Sight(max_chunk=8)
    beside = bench.add([*TEXT, 5], max_tokens=20)
    bench.eye.error = ValueError("the tower is blind")
    client, _ = bench.begin(TEXT, A, TEXT)
    run(bench.scheduler)
    with pytest.raises(ValueError, match="the tower is blind"):
        client.events()
    assert len(beside.token_ids()) == 20
    bench.eye.error = None
    bench.see(TEXT, A, TEXT)
    bench.eye.error = ValueError("the tower is blind")
    ids, frame, _ = bench.frame(TEXT, A, TEXT, 77, B, 78)
    bench.scheduler.add_warm(WarmPass(np.array(ids, np.int32), (Place(len(ids), Kind.END),), frame))
    run(bench.scheduler)
    assert bench.scheduler.counts.cache.warm_passes == 0
    bench.check_books()


def test_features_of_other_rows_than_the_media_take_are_refused() -> None:
    bench = Sight()
    ids, frame, _ = bench.frame(TEXT, A, TEXT)
    short = Frame(frame.shown, frame.axes, lambda media: np.zeros((5, 1), np.float32))
    client = bench.add(ids, frame=short)
    run(bench.scheduler)
    with pytest.raises(InvalidArgument, match="take 6 rows of the prompt have features of 5"):
        client.events()


def test_nothing_of_features_is_held_when_all_have_been_answered() -> None:
    bench = Sight(max_chunk=4)
    client, seen = bench.begin(TEXT, A, TEXT, B, 7)
    while client.job.n_read < 24:
        bench.scheduler.step()
    assert list(client.job.held) == []  # the first has been read, the second not begun
    while client.job.unread > 3:
        bench.scheduler.step()
    assert set(client.job.held) <= {B.key}
    run(bench.scheduler)
    told(client, seen)
    assert not client.job.held
