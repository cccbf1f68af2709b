"""No picture and no slice of a video has more tokens than the vision tower is given room for."""

from __future__ import annotations

import random

import pytest
from flashnext.media import ImageRule, Limits, Rules, VideoRule
from flashnext.media.sizes import frame_size, image_size, most_bytes, most_tokens, n_tokens


def test_the_published_models_room_is_that_of_the_rule_and_of_the_default() -> None:
    assert most_tokens(Rules(), Limits(image_tokens=None)) == (16_384, 16_384)
    assert most_tokens(Rules(), Limits()) == (4096, 12_288)
    assert most_tokens(Rules(), Limits(video_tokens=500)) == (4096, 4096)
    assert most_tokens(Rules(), Limits(image_tokens=10)) == (200, 12_288)


@pytest.mark.parametrize("seed", range(30))
def test_no_size_comes_out_larger(seed: int) -> None:
    rng = random.Random(seed)
    low = rng.choice([1024, 4096, 65_536, 300_000])
    high = low * rng.choice([1, 2, 40])
    image = ImageRule(min_pixels=low, max_pixels=high)
    video = VideoRule(min_pixels=low, max_pixels=high * 2, frame_tokens=rng.choice([None, 6, 768]))
    limits = Limits(
        image_tokens=rng.choice([None, 1, 60, 65, 300, 5000]), video_tokens=rng.choice([None, 1, 70, 2000])
    )
    a_slice, _ = most_tokens(Rules(image, video), limits)
    largest = 0
    for _ in range(2000):
        short = rng.choice([rng.randint(1, 70), rng.randint(1, 3000)])
        size = (short, min(rng.randint(short, 200 * short), 20_000))
        size = size if rng.random() < 0.5 else size[::-1]
        found = n_tokens(image_size(size, image, limits.image_tokens), image)
        n = rng.choice([1, 2, 3, 8, 100])
        frame = frame_size(n, size, video, limits.video_tokens, limits.image_tokens)
        of_slice = n_tokens(frame, video)
        assert max(found, of_slice) <= a_slice, (seed, size, n, limits)
        largest = max(largest, found, of_slice)
    assert largest > 0


@pytest.mark.parametrize("seed", range(20))
def test_nothing_takes_more_memory_than_is_asked_for(seed: int) -> None:
    rng = random.Random(seed)
    low = rng.choice([1024, 4096, 65_536])
    image = ImageRule(min_pixels=low, max_pixels=low * rng.choice([2, 40]))
    video = VideoRule(
        min_pixels=low, max_pixels=low * rng.choice([2, 40, 6000]), max_frames=rng.choice([4, 60, 768]),
        frame_tokens=rng.choice([None, None, 6, 768]),
    )  # fmt: skip
    limits = Limits(
        image_tokens=rng.choice([None, 60, 5000]), video_tokens=rng.choice([None, None, 70, 2000])
    )
    most_image, most_video = most_bytes(Rules(image, video), limits)
    closest = 0.0
    for _ in range(1500):
        short = rng.choice([rng.randint(1, 40), rng.randint(1, 3000)])
        size = (short, min(rng.choice([rng.randint(short, 200 * short), 200 * short]), 20_000))
        found = 3 * n_tokens(image_size(size, image, limits.image_tokens), image) * image.factor**2
        assert found <= most_image, (seed, size)
        n = rng.choice([1, 3, video.max_frames, video.max_frames])
        frame = frame_size(n, size, video, limits.video_tokens, limits.image_tokens)
        tokens = n_tokens(frame, video, n)
        if limits.video_tokens is None or tokens <= limits.video_tokens:  # others are refused
            taken = 3 * tokens * video.factor**2 * video.temporal
            assert taken <= most_video, (seed, size, n, tokens)
            closest = max(closest, taken / most_video)
    assert closest > 0, f"seed {seed}: no video was taken"


def test_a_long_and_thin_video_of_the_published_rule_is_within_what_is_asked_for() -> None:
    tokens = n_tokens(frame_size(768, (32, 6400), VideoRule()), VideoRule(), 768)
    _, most = most_bytes(Rules(), Limits())
    assert tokens == 30_720 and 30_720 * 32**2 * 2 * 3 <= most < 1.1 * 30_720 * 32**2 * 2 * 3
