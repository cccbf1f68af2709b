"""Sizes, patches, frames and rotary positions of images and videos.

Source: transformers 5.23, `qwen2_vl/image_processing_qwen2_vl.py`, `qwen3_vl/video_processing_qwen3_vl.py`,
`get_rope_index`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from support.reference.primitives import Array

MAX_ASPECT = 200
Grid = tuple[int, int, int]


def _rounded(h: int, w: int, factor: int) -> tuple[int, int]:
    if max(h, w) / min(h, w) > MAX_ASPECT:
        raise ValueError(f"the aspect ratio of {h} x {w} is over {MAX_ASPECT}")
    return round(h / factor) * factor, round(w / factor) * factor  # half to even is part of the rule


def smart_resize_image(
    h: int, w: int, factor: int = 32, low: int = 65536, high: int = 16777216
) -> tuple[int, int]:
    """Target (height, width) in pixels: multiples of `factor` with `low` to `high` pixels."""
    height, width = _rounded(h, w, factor)
    if height * width > high:
        beta = math.sqrt(h * w / high)
        return max(factor, math.floor(h / beta / factor) * factor), max(
            factor, math.floor(w / beta / factor) * factor
        )
    if height * width < low:
        beta = math.sqrt(low / (h * w))
        return math.ceil(h * beta / factor) * factor, math.ceil(w * beta / factor) * factor
    return height, width


def smart_resize_video(
    frames: int, h: int, w: int, factor: int = 32, low: int = 4096, high: int = 25165824, temporal: int = 2
) -> tuple[int, int]:
    """Target (height, width) of each frame; the pixel budget covers all frames."""
    if h < factor or w < factor:
        scale = max(factor / h, factor / w)
        h, w = int(h * scale), int(w * scale)
    height, width = _rounded(h, w, factor)
    total = round(frames / temporal) * temporal * height * width
    if total > high:
        beta = math.sqrt(frames * h * w / high)
        return max(factor, math.floor(h / beta / factor) * factor), max(
            factor, math.floor(w / beta / factor) * factor
        )
    if total < low:
        beta = math.sqrt(low / (frames * h * w))
        return math.ceil(h * beta / factor) * factor, math.ceil(w * beta / factor) * factor
    return height, width


def patch_order(h: int, w: int, merge: int) -> npt.NDArray[np.int64]:
    """(h * w, 2) row and column of each patch of a frame: merge blocks in raster order, raster inside each
    block."""
    return np.array(
        [
            (block_row * merge + row, block_column * merge + column)
            for block_row in range(h // merge)
            for block_column in range(w // merge)
            for row in range(merge)
            for column in range(merge)
        ],
        dtype=np.int64,
    )


def patchify(frames: Array, patch: int = 16, merge: int = 2, temporal: int = 2) -> tuple[Array, Grid]:
    """Cut normalized (F, 3, H, W) frames (an image: F = 1) into patch vectors ordered channel, time, y, x.

    A short last group repeats its last frame.

    Returns:
        (t * h * w, 3 * temporal * patch * patch) and the grid (t, h, w).
    """
    f = np.concatenate([frames] + [frames[-1:]] * (-len(frames) % temporal), 0)
    t, h, w = len(f) // temporal, f.shape[2] // patch, f.shape[3] // patch
    out = []
    for i in range(t):
        for row, column in patch_order(h, w, merge) * patch:
            box = f[i * temporal : (i + 1) * temporal, :, row : row + patch, column : column + patch]
            out.append(box.transpose(1, 0, 2, 3).reshape(-1))
    return np.array(out), (t, h, w)


def sample_frames(
    total: int, native_fps: float, fps: float = 2.0, low: int = 4, high: int = 768
) -> npt.NDArray[np.int64]:
    """Indices of the frames that are looked at."""
    n = min(max(int(total / native_fps * fps), low), high, total)
    return np.linspace(0, total - 1, n).round().astype(np.int64)


def frame_timestamps(indices: Sequence[int], native_fps: float, temporal: int = 2) -> list[float]:
    """Seconds of each temporal group: the mean of its first and last frame's times (a short group repeats its
    last)."""
    at = [*indices, *[indices[-1]] * (-len(indices) % temporal)]
    return [(at[i] + at[i + temporal - 1]) / native_fps / 2 for i in range(0, len(at), temporal)]


def rope_index(
    kinds: Sequence[int], image_grids: Iterable[Grid] = (), video_grids: Iterable[Grid] = (), merge: int = 2
) -> tuple[npt.NDArray[np.int64], int]:
    """Rotary positions of a prompt.

    Args:
        kinds: For each token 0 text, 1 image pad, 2 video pad.
        image_grids: (t, h, w) in patches of each image, in order.
        video_grids: The same of each video; used one temporal slice at a time, since timestamps separate the
            slices.
        merge: Patches of a token along each side.

    Returns:
        (3, T) positions on the t, h and w axes, and delta: a later text token at row r has position r +
        delta.
    """
    grids = {1: iter(image_grids), 2: iter([(1, h, w) for t, h, w in video_grids for _ in range(t)])}
    out: list[tuple[int, int, int]] = []
    now = 0
    while len(out) < len(kinds):
        kind = kinds[len(out)]
        if kind == 0:
            out.append((now, now, now))
            now += 1
            continue
        t, h, w = next(grids[kind])
        out += [
            (now + a, now + b, now + c)
            for a in range(t)
            for b in range(h // merge)
            for c in range(w // merge)
        ]
        now += max(h, w) // merge
    positions = np.array(out, dtype=np.int64).T
    return positions, int(positions.max()) + 1 - len(kinds)
