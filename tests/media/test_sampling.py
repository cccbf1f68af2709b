"""Frames and sizes against the reference, over random videos and pictures."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from flashnext.media import ImageRule, MediaError, VideoRule
from flashnext.media.sampling import Shown, sample
from flashnext.media.sizes import frame_size, image_size, n_tokens
from support.reference import media as reference

SEED = 8


def _shown(n: int, fps: Fraction, tick: Fraction, late: int = 0) -> Shown:
    """Frames of one rate, whose times are rounded to ticks."""
    return Shown(n, tuple(round(i / fps / tick) + late * (i > 0) for i in range(n)), tick, fps)


@pytest.mark.parametrize("tick", [Fraction(1, 1000), Fraction(1, 90000), Fraction(1, 15360)])
@pytest.mark.parametrize("named", [True, False])
def test_frames_of_one_rate_are_those_of_the_processor(tick: Fraction, named: bool) -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(60):
        n = int(rng.integers(1, 3000))
        fps = Fraction(str(rng.choice(["15", "24", "25", "30", "60"])))
        shown = _shown(n, fps, tick)
        if not named and n > 1:
            shown = Shown(n, shown.ticks, tick, None)
            fps = Fraction(n - 1) / (shown.ticks or (0,))[-1] / tick
        expected = reference.sample_frames(n, float(fps)).tolist()
        got = sample(shown, VideoRule())
        assert list(got.frames) == expected, f"seed {SEED}"
        assert got.times_s == pytest.approx([i / float(fps) for i in expected], abs=1e-9)


def test_a_named_rate_that_the_times_belie_does_not_count() -> None:
    shown = Shown(10, tuple(range(0, 1000, 100)), Fraction(1, 1000), Fraction(1000))
    assert sample(shown, VideoRule()).times_s == (0.0, 0.3, 0.6, 0.9)


def test_without_times_the_rate_counts_and_else_24() -> None:
    for fps, per_s in ((Fraction(8), 8), (None, 24)):
        got = sample(Shown(48, None, Fraction(1, 1000), fps), VideoRule())
        assert got.times_s == tuple(i / per_s for i in got.frames)
        assert len(got.frames) == 2 * 48 / per_s


def test_frames_at_one_moment_are_taken_for_frames_of_the_named_rate() -> None:
    got = sample(Shown(4, (0, 0, 0, 0), Fraction(1, 1000), Fraction(10)), VideoRule())
    assert got.frames == (0, 1, 2, 3) and got.times_s == (0.0, 0.1, 0.2, 0.3)


@pytest.mark.parametrize("jitter", [2, 20])
def test_times_that_waver_are_sampled_by_time(jitter: int) -> None:
    rng = np.random.default_rng(SEED)
    at = np.cumsum(rng.integers(33 - jitter, 34 + jitter, 300))
    at -= at[0]
    got = sample(Shown(300, tuple(at.tolist()), Fraction(1, 1000), Fraction(30)), VideoRule())
    n = int(at[-1] / 1000 * 300 / 299 * 2)
    moments = np.linspace(0, at[-1] / 1000, n)
    assert got.times_s == pytest.approx(moments.tolist())
    assert list(got.frames) == [int(np.flatnonzero(at <= t * 1000 + 1e-6)[-1]) for t in moments]
    assert got.frames[0] == 0 and got.frames[-1] == 299


def test_sizes_of_images_are_those_of_the_reference() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(2000):
        h, w = (int(x) for x in np.exp(rng.uniform(0, np.log(9000), 2)))
        if max(h, w) > 200 * min(h, w):
            with pytest.raises(MediaError, match="at most 200 times"):
                image_size((h, w), ImageRule())
            continue
        assert image_size((h, w), ImageRule()) == reference.smart_resize_image(h, w)
        tokens = int(rng.integers(1, 20000))
        high = min(16777216, tokens * 1024)
        size = image_size((h, w), ImageRule(), tokens)
        assert size == reference.smart_resize_image(h, w, low=min(65536, high), high=high)
        assert n_tokens(size, ImageRule()) <= max(tokens, 200)


def test_sizes_of_frames_are_those_of_the_reference() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(2000):
        n = int(rng.integers(2, 769))
        h, w = (int(x) for x in np.exp(rng.uniform(0, np.log(5000), 2)))
        try:
            expected = reference.smart_resize_video(n, h, w)
        except ValueError:
            with pytest.raises(MediaError, match="at most 200 times"):
                frame_size(n, (h, w), VideoRule())
            continue
        assert frame_size(n, (h, w), VideoRule()) == expected


def test_a_videos_budget_counts_all_its_frames() -> None:
    for tokens in (100, 1000, 5000):
        size = frame_size(40, (720, 1280), VideoRule(), tokens)
        assert tokens / 4 < n_tokens(size, VideoRule(), 40) <= tokens
