"""From the pictures and videos of a request to patches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from flashnext.media.errors import MediaError, Unwanted
from flashnext.media.frames import Frames
from flashnext.media.image import Opened, open_image, resized
from flashnext.media.limits import Limits
from flashnext.media.parts import FramesPart, ImagePart, Part, VideoPart
from flashnext.media.patches import Media, picture
from flashnext.media.patches import video as cut
from flashnext.media.rules import Rules
from flashnext.media.sizes import Size, image_size, n_tokens
from flashnext.media.video import read_video


def check_counts(parts: Sequence[Part | Media], limits: Limits) -> None:
    """Look whether a request has too many pictures or videos.

    Raises:
        MediaError: It has, with the numbers and the first part too many.
    """
    kinds = [kind_of(part) for part in parts]
    for most, what in ((limits.max_images, "image"), (limits.max_videos, "video")):
        found = [i for i, kind in enumerate(kinds) if kind == what]
        if len(found) > most:
            raise MediaError(f"the request has {len(found)} {what}s; at most {most} are allowed", found[most])


def kind_of(part: Part | Media) -> Literal["image", "video"]:
    """Say whether it is a picture or a video."""
    if isinstance(part, Media):
        return part.kind
    return "image" if isinstance(part, ImagePart) else "video"


def prepare(part: Part, rules: Rules, limits: Limits, wanted: Callable[[], bool] = lambda: True) -> Media:
    """Decode and prepare one picture or video; it may take minutes (a video) and hundreds of megabytes.

    Args:
        part: As it came.
        rules: Of the checkpoint.
        limits: Of what is decoded.
        wanted: Whether somebody still waits for it; asked between the frames of a video.

    Raises:
        MediaError: It is broken, unknown or over a limit.
        Unwanted: Nobody waits for it any more.
    """
    if isinstance(part, ImagePart):
        opened, size = _sized(part, rules, limits)
        return picture(resized(opened.decode(), size), rules.image)
    if isinstance(part, VideoPart):
        return read_video(part.data, rules.video, limits, wanted)
    return _frames(part, rules, limits, wanted)


def count_tokens(part: ImagePart, rules: Rules, limits: Limits) -> int:
    """Count the tokens of a picture from its header, without decoding it.

    Raises:
        MediaError: The header cannot be read, or says something that is over a limit.
    """
    _, size = _sized(part, rules, limits)
    return n_tokens(size, rules.image)


def _sized(part: ImagePart, rules: Rules, limits: Limits) -> tuple[Opened, Size]:
    opened = open_image(part.data, limits)
    return opened, image_size(opened.size, rules.image, limits.tokens(part.detail))


def _frames(part: FramesPart, rules: Rules, limits: Limits, wanted: Callable[[], bool]) -> Media:
    n, most = len(part.frames), rules.video.max_frames
    if not 1 <= n <= most:
        raise MediaError(f"a video given as frames has 1 to {most} of them, found {n}")
    if not (math.isfinite(part.fps) and 1e-3 <= part.fps <= 1e3):
        raise MediaError(f"fps must be a number from 0.001 to 1000, found {part.fps}")
    stack = Frames(n, rules.video, limits)
    first: Size | None = None
    for i, data in enumerate(part.frames):
        if not wanted():
            raise Unwanted
        try:
            opened = open_image(data, limits)
            first = first or opened.size
            if opened.size != first:
                (h, w), (height, width) = opened.size, first
                raise MediaError(f"it is {w} x {h}, where frame 0 is {width} x {height}")
            stack.put([i], opened.decode())
        except MediaError as error:
            raise MediaError(f"frame {i}: {error.problem}") from None
    assert stack.levels is not None
    return cut(stack.levels, [i / part.fps for i in range(n)], rules.video)
