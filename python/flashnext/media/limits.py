"""How much of pictures and videos a request may bring, and how many tokens they may take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from flashnext.errors import InvalidArgument
from flashnext.media.errors import MediaError

Detail = Literal["low", "high", "auto"]
DETAILS: tuple[Detail, ...] = ("low", "high", "auto")

LOW_TOKENS = 256
"""Of an image with detail `low`, at most: what a square of 512 pixels takes."""

IMAGE_TOKENS = 4096
"""Of an image, at most, where nothing else is asked for: what a square of 2,048 pixels takes."""

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """The settings of a server or an engine; each is looked at before anything is decoded.

    How many tokens an image takes depends on that image, its `detail` and these settings, never on what else
    a request has.

    Attributes:
        image_tokens: Most of one image, which is made smaller to fit, and of one slice of a video; None for
            the model's own rule. A thin image takes up to 200 all the same, since no side is below one
            token. The memory of the vision tower goes by it.
        video_tokens: Most of one video, whose frames are made smaller to fit; None for the model's own rule.
        max_images: Of one request.
        max_videos: Of one request.
        image_bytes: Of one image's file.
        image_pixels: Of one image, as its header says.
        video_bytes: Of one video's file.
        video_frame_pixels: Of one frame of a video.
        video_frames: Of one video's file, before it is sampled.
        video_s: Longest video, in seconds.
        video_work: Pixels of all frames of a video's file together, all of which have to be decoded.
    """

    image_tokens: int | None = IMAGE_TOKENS
    video_tokens: int | None = None
    max_images: int = 32
    max_videos: int = 4
    image_bytes: int = 32 * MIB
    image_pixels: int = 64 * MIB
    video_bytes: int = 256 * MIB
    video_frame_pixels: int = 4096 * 2304
    video_frames: int = 216_000
    video_s: int = 7200
    video_work: int = 40 * 10**9

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low = 0 if field.name in ("max_images", "max_videos") else 1
            if value is not None and value < low:
                raise InvalidArgument(f"{field.name} must be at least {low}, found {value}")

    def tokens(self, detail: Detail) -> int | None:
        """Find the most tokens that a detail allows an image; None for the model's own rule."""
        if detail not in DETAILS:
            raise MediaError(f"detail must be one of {', '.join(DETAILS)}, found {detail!r}")
        if detail != "low":
            return self.image_tokens
        return LOW_TOKENS if self.image_tokens is None else min(LOW_TOKENS, self.image_tokens)
