"""The pictures and videos of a request, as they came."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashnext.media.limits import Detail


@dataclass(frozen=True)
class ImagePart:
    """A picture: its file, and how closely to look at it."""

    data: bytes = field(repr=False)
    detail: Detail = "auto"


@dataclass(frozen=True)
class VideoPart:
    """A video: its file."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class FramesPart:
    """A video given as pictures, all of which are looked at, `fps` to a second."""

    frames: tuple[bytes, ...] = field(repr=False)
    fps: float


Part = ImagePart | VideoPart | FramesPart
