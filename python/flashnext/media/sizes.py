"""What size pictures and frames are brought to, and how many tokens they then take."""

from __future__ import annotations

import math

from flashnext.media.errors import MediaError
from flashnext.media.limits import Limits
from flashnext.media.rules import CHANNELS, ImageRule, Rules, VideoRule

MAX_ASPECT = 200
"""Longest side over shortest, at most; part of the rule that the model was trained with."""

Size = tuple[int, int]
"""Height and width in pixels."""


def image_size(size: Size, rule: ImageRule, tokens: int | None = None) -> Size:
    """Find what an image is resized to: the size next to its own with the sides that tokens need.

    Args:
        size: Of the upright image.
        rule: The checkpoint's.
        tokens: Most tokens; None for what the rule allows. A side is never below one token, so a thin image
            takes up to `MAX_ASPECT` tokens whatever is asked for.

    Raises:
        MediaError: One side is more than `MAX_ASPECT` times as long as the other.

    Source: transformers 5.23, `smart_resize` of Qwen2-VL's image processor.
    """
    high = rule.max_pixels
    if tokens is not None:
        high = min(high, tokens * rule.factor**2)
    _check_aspect(size, size)
    return _fitted(size, 1, 1, rule.factor, min(rule.min_pixels, high), high)


def frame_size(
    n_frames: int,
    size: Size,
    rule: VideoRule,
    tokens: int | None = None,
    slice_tokens: int | None = None,
) -> Size:
    """Find what the frames of a video are resized to.

    Args:
        n_frames: That are looked at; a video of one frame counts as `rule.temporal` equal ones.
        size: Of an upright frame.
        rule: The checkpoint's.
        tokens: Most tokens of the whole video; None for what the rule allows.
        slice_tokens: Most tokens of a slice; None for as many as the whole has.

    Raises:
        MediaError: One side is more than `MAX_ASPECT` times as long as the other.

    Source: transformers 5.23, `smart_resize` and `resize` of Qwen3-VL's video processor.
    """
    n = max(n_frames, rule.temporal)
    high = rule.max_pixels
    if rule.frame_tokens is not None:
        most = min(rule.frame_tokens * rule.factor**2, high // n)
        high = max(most, int(rule.min_pixels * 1.05)) * n
    if tokens is not None:
        high = min(high, tokens * rule.factor**2 * rule.temporal)
    if slice_tokens is not None:
        high = min(high, slice_tokens * rule.factor**2 * n)
    h, w = size
    if h < rule.factor or w < rule.factor:
        scale = max(rule.factor / h, rule.factor / w)
        h, w = int(h * scale), int(w * scale)
    _check_aspect((h, w), size)
    counted = round(n / rule.temporal) * rule.temporal
    return _fitted((h, w), n, counted, rule.factor, min(rule.min_pixels, high), high)


def n_tokens(size: Size, rule: ImageRule, n_frames: int = 1) -> int:
    """Count the tokens of resized frames (an image: one)."""
    return -(-n_frames // rule.temporal) * (size[0] // rule.factor) * (size[1] // rule.factor)


def most_tokens(rules: Rules, limits: Limits) -> tuple[int, int]:
    """Count the tokens that a slice may have, which a picture is too, and a picture or a whole video.

    A video that is long and thin may have more in all; no slice has.
    """
    image, video = rules.image, rules.video
    pixels = image.max_pixels
    frame = video.max_pixels // video.temporal
    if limits.image_tokens is not None:
        pixels = min(pixels, limits.image_tokens * image.factor**2)
        frame = min(frame, limits.image_tokens * video.factor**2)
    if limits.video_tokens is not None:
        frame = min(frame, limits.video_tokens * video.factor**2)
    a_slice = max(_most(pixels, image), _most(frame, video))
    whole = video.max_pixels // (video.temporal * video.factor**2)
    whole = whole if limits.video_tokens is None else min(whole, limits.video_tokens)
    return a_slice, max(a_slice, whole if limits.max_videos else 0)


def most_bytes(rules: Rules, limits: Limits) -> tuple[int, int]:
    """Bound what a prepared picture takes of memory, and a video."""
    a_slice, whole = most_tokens(rules, limits)
    image, video = rules.image, rules.video
    # A short last slice is filled up. And of the longest and thinnest video one side of a slice is a token,
    # the other as long as it may be.
    whole = math.ceil(whole * 2 * video.temporal / (video.temporal + 1))
    n_slices = -(-video.max_frames // video.temporal)
    side = math.sqrt(MAX_ASPECT * video.max_pixels / ((n_slices - 1) * video.temporal + 1))
    of_thin = math.ceil(side / video.factor + 1)
    whole = max(whole, n_slices * (of_thin if video.frame_tokens is None else max(of_thin, a_slice)))
    if limits.video_tokens is not None:  # larger ones are refused
        whole = min(whole, limits.video_tokens)
    return (
        a_slice * image.factor**2 * CHANNELS,
        whole * video.factor**2 * CHANNELS * video.temporal,
    )


def _most(pixels: int, rule: ImageRule) -> int:
    # What is brought up to the least may come out above it, by a token a side.
    low = min(rule.min_pixels * 1.05, pixels) / rule.factor**2
    raised = low + math.sqrt(low * MAX_ASPECT) + math.sqrt(low / MAX_ASPECT) + 1
    return max(pixels // rule.factor**2, MAX_ASPECT, math.ceil(raised))


def _check_aspect(size: Size, own: Size) -> None:
    if max(size) / min(size) > MAX_ASPECT:
        raise MediaError(
            f"its longer side may be at most {MAX_ASPECT} times its shorter one, "
            f"but it has {own[1]} x {own[0]} pixels"
        )


def _fitted(size: Size, n: int, counted: int, factor: int, low: int, high: int) -> Size:
    # `n` frames count as `counted` where the rounded sizes are compared, which is the rule's own way.
    h, w = size
    height, width = round(h / factor) * factor, round(w / factor) * factor  # half to even
    if counted * height * width > high:
        beta = math.sqrt(n * h * w / high)
        return max(factor, math.floor(h / beta / factor) * factor), max(
            factor, math.floor(w / beta / factor) * factor
        )
    if counted * height * width < low:
        beta = math.sqrt(low / (n * h * w))
        return math.ceil(h * beta / factor) * factor, math.ceil(w * beta / factor) * factor
    return height, width
