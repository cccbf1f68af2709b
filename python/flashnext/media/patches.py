"""Prepared media: the patches that the vision tower reads, and what names them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from flashnext.media.rules import CHANNELS, ImageRule, VideoRule

Levels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Media:
    """A picture or a video as the model takes it in.

    Attributes:
        kind: Which of the two; decides the pad token.
        levels: (n_patches, 3, slots, patch, patch) uint8: channel, time, y, x. A video has as many slots
            as `temporal`; a picture one, which stands for all. The patches of a token stand together.
        grid: Temporal slices, and rows and columns of patches in each.
        n_tokens: Rows that it takes in a prompt, all slices together.
        times_s: Of a video, the time that each slice stands for; empty for a picture.
        key: 32 bytes, a hash of all that the tower's features depend on: `levels`, `grid` and `table`. Equal
            keys mean equal features.
        table: (3, 256) float32, what each level is worth in each channel.
        temporal: Frames of a patch.
    """

    kind: Literal["image", "video"]
    levels: Levels = field(repr=False)
    grid: tuple[int, int, int]
    n_tokens: int
    times_s: tuple[float, ...]
    key: bytes = field(repr=False)
    table: Floats = field(repr=False)
    temporal: int

    def patches(self, start: int = 0, stop: int | None = None) -> Floats:
        """Make the vectors of patches `start` to `stop`: for a picture eight times the bytes of its levels.

        Returns:
            (n, 3 * temporal * patch * patch) float32, ordered channel, time, y, x.
        """
        levels = self.levels[start:stop]
        n, channels, _, side, _ = levels.shape
        out = np.empty((n, channels, self.temporal, side, side), np.float32)
        for c in range(channels):
            out[:, c] = self.table[c][levels[:, c]]
        return out.reshape(n, -1)

    def spans(self) -> tuple[tuple[str, int], ...]:
        """Say what stands for it in a prompt, piece by piece.

        Each piece is a text, then the token `vision_start`, then that many pads, then `vision_end`. They
        replace the template's pad token together with the `vision_start` and `vision_end` around it. The text
        belongs to what stands before it, and is tokenized with it.

        Source: transformers 5.23, `Qwen3VLProcessor`, but for its outer pair of markers.
        """
        if self.kind == "image":
            return (("", self.n_tokens),)
        a_slice = self.n_tokens // self.grid[0]
        return tuple((f"<{time:.1f} seconds>", a_slice) for time in self.times_s)


def picture(pixels: Levels, rule: ImageRule) -> Media:
    """Cut a resized picture (H, W, 3) into patches."""
    # In float64 and then float32, as the processor goes: its vectors are to be met bit for bit.
    scaled = (np.arange(256) * rule.scale).astype(np.float32)
    mean, std = (np.array(values, np.float32)[:, None] for values in (rule.mean, rule.std))
    return _media("image", pixels[None], 1, (), (scaled - mean) / std, rule)


def video(frames: Levels, times_s: list[float], rule: VideoRule) -> Media:
    """Cut resized frames (F, H, W, 3), each with its time in seconds, into patches.

    Frames go together in the order of time, `rule.temporal` to a slice; a short last slice repeats its last
    frame. A slice's time is the mean of those of its first and last frame.
    """
    short = -len(frames) % rule.temporal
    if short:
        frames = np.concatenate([frames, np.repeat(frames[-1:], short, 0)])
        times_s = times_s + times_s[-1:] * short
    slices = range(0, len(times_s), rule.temporal)
    times = tuple((times_s[i] + times_s[i + rule.temporal - 1]) / 2 for i in slices)
    # The video processor folds scale and mean into one step.
    wide = 1.0 / rule.scale
    mean, std = (
        (np.array(values, np.float32) * np.float32(wide))[:, None] for values in (rule.mean, rule.std)
    )
    table = (np.arange(256, dtype=np.float32) - mean) / std
    return _media("video", frames, rule.temporal, times, table, rule)


def _media(
    kind: Literal["image", "video"],
    frames: Levels,
    slots: int,
    times_s: tuple[float, ...],
    table: Floats,
    rule: ImageRule,
) -> Media:
    n, height, width, _ = frames.shape
    p, m = rule.patch, rule.merge
    t, h, w = n // slots, height // p, width // p
    cut = frames.reshape(t, slots, h // m, m, p, w // m, m, p, CHANNELS)
    # slice, block row, block column, row and column in the block, channel, time, y, x
    levels = np.ascontiguousarray(cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7))
    levels = levels.reshape(t * h * w, CHANNELS, slots, p, p)
    digest = hashlib.sha256(f"{kind} {t} {h} {w} {slots} {rule.temporal} {p} {m} ".encode())
    digest.update(table.tobytes())
    digest.update(levels.data)
    levels.flags.writeable = False
    return Media(kind, levels, (t, h, w), t * h * w // m**2, times_s, digest.digest(), table, rule.temporal)
