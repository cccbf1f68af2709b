"""Videos: which frames are seen, which way up, and what times they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flashnext.media import (
    FramesPart,
    ImagePart,
    ImageRule,
    Limits,
    Media,
    Rules,
    VideoPart,
    VideoRule,
    prepare,
)
from PIL import Image
from support.media_files import encoded, moving, video_file

pytest.importorskip("av", reason="needs the extra `video` (av)")

TURNS = {
    "as stored": (1, 0, 0, 1), "clockwise": (0, 1, -1, 0), "upside down": (-1, 0, 0, -1),
    "anticlockwise": (0, -1, 1, 0), "mirrored": (-1, 0, 0, 1), "mirrored upside down": (1, 0, 0, -1),
    "transposed": (0, 1, 1, 0), "transposed the other way": (0, -1, -1, 0),
}  # fmt: skip
"""Of display matrices a, b, c, d: a pixel at (x, y) is seen at (a x + c y, b x + d y)."""


def _seen(media: Media, rule: VideoRule | None = None) -> npt.NDArray[np.uint8]:
    """The frames (F, H, W, 3) that patches were cut from."""
    t, h, w = media.grid
    a = media.levels.reshape(t, h // 2, w // 2, 2, 2, 3, 2, 16, 16)
    return a.transpose(0, 6, 1, 3, 7, 2, 4, 8, 5).reshape(t * 2, h * 16, w * 16, 3)


def _prepared(data: bytes, **rule: Any) -> Media:
    return prepare(VideoPart(data), Rules(video=VideoRule(**rule)), Limits())


def _coded(numbers: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
    """Grey frames that tell their numbers."""
    return [np.full((64, 64, 3), 10 + 5 * n, np.uint8) for n in numbers]


def _numbers(media: Media) -> list[int]:
    return [round((float(frame.mean()) - 10) / 5) for frame in _seen(media)]


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("container", ["mp4", "mov"])
def test_a_display_matrix_turns_and_mirrors_frames(name: str, container: str) -> None:
    a, b, c, d = TURNS[name]
    height, width = 64, 96
    data = video_file(
        moving(4, height, width), container=container,
        matrix=[a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30],
    )  # fmt: skip
    plain = _seen(_prepared(video_file(moving(4, height, width), container=container)))
    y, x = np.mgrid[:height, :width]
    to_x, to_y = a * x + c * y, b * x + d * y
    to_x, to_y = to_x - to_x.min(), to_y - to_y.min()
    expected = np.empty((4, to_y.max() + 1, to_x.max() + 1, 3), np.uint8)
    expected[:, to_y, to_x] = plain
    assert np.array_equal(_seen(_prepared(data)), expected)


def test_a_video_of_one_rate_is_sampled_by_number() -> None:
    media = _prepared(video_file(_coded(range(45)), fps=15))
    # 3 seconds at 2 a second: of 45 frames 6, from the first to the last
    assert _numbers(media) == [0, 9, 18, 26, 35, 44]
    assert media.times_s == ((0 + 9 / 15) / 2, (18 / 15 + 26 / 15) / 2, (35 / 15 + 44 / 15) / 2)
    assert [text for text, _ in media.spans()] == ["<0.3 seconds>", "<1.5 seconds>", "<2.6 seconds>"]
    assert {n for _, n in media.spans()} == {media.n_tokens // 3}


def test_a_video_of_changing_rate_is_sampled_by_time() -> None:
    # A second of 20 frames, then one frame a second for ten.
    at = [50 * i for i in range(20)] + [1000 * i for i in range(1, 11)]
    media = _prepared(video_file(_coded(range(30)), at_ms=at))
    n = 20  # of 10 seconds, and what the last frame takes on average
    moments = [10 * i / (n - 1) for i in range(n)]
    assert _numbers(media) == [max(i for i, ms in enumerate(at) if ms / 1000 <= t + 1e-9) for t in moments]
    assert media.times_s == pytest.approx(
        [(a + b) / 2 for a, b in zip(moments[::2], moments[1::2], strict=True)]
    )


def test_times_begin_with_the_first_frame() -> None:
    early = _prepared(video_file(_coded(range(10)), at_ms=[100 * i for i in range(10)], container="matroska"))
    late = _prepared(
        video_file(_coded(range(10)), at_ms=[7000 + 100 * i for i in range(10)], container="matroska")
    )
    assert late.times_s == early.times_s and late.key == early.key


@pytest.mark.parametrize(
    ("n", "fps", "numbers"),
    [
        (1, 30, [0, 0]),  # a frame alone fills its slice
        (2, 30, [0, 1]),
        (3, 30, [0, 1, 2, 2]),  # an odd count repeats the last
        (6, 30, [0, 2, 3, 5]),  # a fifth of a second is looked at four times
        (5, 1, [0, 1, 2, 3, 4, 4]),
    ],
)
def test_a_short_video_fills_whole_slices(n: int, fps: int, numbers: list[int]) -> None:
    media = _prepared(video_file(_coded(range(n)), fps=fps))
    assert _numbers(media) == numbers
    last = numbers[-1] / fps
    assert media.times_s[-1] == (numbers[-2] / fps + last) / 2


def test_one_frame_is_as_large_as_two() -> None:
    one, two = (_prepared(video_file(moving(n, 128, 192))) for n in (1, 2))
    assert one.grid == two.grid == (1, 8, 12)


def test_at_most_as_many_frames_as_the_rule_says_are_seen() -> None:
    media = _prepared(video_file(_coded(range(40)), fps=4), max_frames=7, min_frames=2)
    assert _numbers(media) == [0, 6, 13, 20, 26, 32, 39, 39]


def test_a_frame_that_cannot_be_decoded_is_as_if_it_were_not_there() -> None:
    data = video_file(_coded(range(8)), "mjpeg", "matroska", fps=1, pix_fmt="yuvj420p")
    at = [i for i in range(len(data)) if data.startswith(b"\xff\xd8\xff", i)]
    assert len(at) == 8
    end = data.index(b"\xff\xd9", at[3])
    media = _prepared(data[: at[3]] + bytes(end - at[3]) + data[end:])
    # Seven are left, and where the fourth was the third is on the screen: at 0, 7/6, 14/6, ... 7 seconds.
    assert _numbers(media) == [0, 1, 2, 2, 4, 5, 7, 7]
    assert media.times_s[-1] == 7.0


def test_sides_that_are_odd_are_served() -> None:
    assert _prepared(video_file(moving(8, 17, 33), pix_fmt="yuv444p", fps=4)).grid[1:] == (2, 4)
    assert _prepared(video_file(moving(8, 17, 33), "libvpx", "webm", fps=4)).grid[1:] == (2, 4)


def test_a_video_of_pictures_shows_them_all_at_their_rate() -> None:
    frames = tuple(encoded(Image.fromarray(frame), "PNG") for frame in _coded([3, 9, 1]))
    media = prepare(FramesPart(frames, 4.0), Rules(), Limits())
    assert _numbers(media) == [3, 9, 1, 1]
    assert media.times_s == (0.125, 0.5)


def test_a_key_follows_the_frames_that_are_seen() -> None:
    data = video_file(_coded(range(40)), fps=10)
    rules = (Rules(), Rules(video=VideoRule(fps=1.0)), Rules(video=VideoRule(max_pixels=10_000)))
    assert len({prepare(VideoPart(data), rule, Limits()).key for rule in rules}) == 3
    again = video_file(_coded(range(40)), fps=10, container="mov")
    assert prepare(VideoPart(again), Rules(), Limits()).key == prepare(VideoPart(data), Rules(), Limits()).key


def test_a_picture_and_a_video_of_it_have_different_keys() -> None:
    file = encoded(Image.fromarray(_coded([5])[0]), "PNG")
    rules = Rules(image=ImageRule(min_pixels=1))
    assert (
        prepare(ImagePart(file), rules, Limits()).key
        != prepare(FramesPart((file,), 1.0), rules, Limits()).key
    )


def test_sound_beside_the_frames_changes_nothing() -> None:
    frames = _coded(range(10))
    alone, beside = video_file(frames, fps=5), video_file(frames, fps=5, sound=True)
    assert b"soun" in beside
    assert _prepared(alone).key == _prepared(beside).key
