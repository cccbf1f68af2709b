"""Which frames of a video are looked at, and what times they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from flashnext.media.rules import VideoRule

UNKNOWN_FPS = 24.0
"""Of a video that does not say when its frames are shown; transformers takes the same."""

_ROUNDING = 1e-3
"""Of a tick: what float64 may be off where it is compared with one."""


@dataclass(frozen=True)
class Shown:
    """What a file says of when its frames are shown, in their order.

    Attributes:
        n: Frames, at least 1.
        ticks: (n,) ascending, from 0 for the first frame; None where the file does not say.
        tick: Seconds of a tick.
        fps: The rate that the file names; None where it names none.
    """

    n: int
    ticks: tuple[int, ...] | None
    tick: Fraction
    fps: Fraction | None

    @property
    def length_s(self) -> float:
        """From the first frame to the last."""
        if self.ticks is None:
            return (self.n - 1) / float(self.fps or UNKNOWN_FPS)
        return float(self.ticks[-1] * self.tick)


@dataclass(frozen=True)
class Sample:
    """The frames that are looked at.

    Attributes:
        frames: Their numbers in the order in which they are shown, from 0; one can stand there again.
        times_s: What time each stands for, from the first frame of the video on.
    """

    frames: tuple[int, ...]
    times_s: tuple[float, ...]


def sample(shown: Shown, rule: VideoRule) -> Sample:
    """Choose the frames of a video.

    A video of one rate is sampled by number, evenly from the first frame to the last, as the model's
    processor does it. One whose frames come at other times is sampled evenly by time: of each moment the
    frame that is on the screen then.

    Source: transformers 5.23, `sample_frames` of Qwen3-VL's video processor.
    """
    n = shown.n
    rate = _constant_rate(shown)
    if rate is None and shown.ticks is not None and shown.ticks[-1]:
        moments = np.linspace(0, shown.ticks[-1], _count(n, shown.length_s * n / (n - 1), rule))
        frames = np.searchsorted(np.array(shown.ticks) - _ROUNDING, moments, side="right") - 1
        return Sample(tuple(frames.tolist()), tuple((moments * float(shown.tick)).tolist()))
    per_s = rate or float(shown.fps or UNKNOWN_FPS)
    frames = np.linspace(0, n - 1, _count(n, n / per_s, rule)).round().astype(np.int64)
    return Sample(tuple(frames.tolist()), tuple(i / per_s for i in frames.tolist()))


def _count(n: int, length_s: float, rule: VideoRule) -> int:
    return min(max(int(length_s * rule.fps), rule.min_frames), rule.max_frames, n)


def _constant_rate(shown: Shown) -> float | None:
    """Find the one rate at which all frames come, up to a tick; None where there is none."""
    named = None if shown.fps is None else float(shown.fps)
    if shown.ticks is None or shown.n == 1:
        return named
    own = (shown.n - 1) / shown.length_s if shown.ticks[-1] else None
    at, number = np.array(shown.ticks, np.float64), np.arange(shown.n)
    for rate in (named, own):
        if rate and np.all(np.abs(at - number / (rate * float(shown.tick))) <= 1 + _ROUNDING):
            return rate
    return None
