"""From a video file to patches."""

from __future__ import annotations

from collections.abc import Callable

from flashnext.media.errors import MediaError
from flashnext.media.limits import Limits
from flashnext.media.mp4 import video_only
from flashnext.media.patches import Media
from flashnext.media.patches import video as cut
from flashnext.media.rules import VideoRule
from flashnext.media.sampling import sample

_MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"moof", b"uuid")


def read_video(
    data: bytes, rule: VideoRule, limits: Limits, wanted: Callable[[], bool] = lambda: True
) -> Media:
    """Read a video: sample its frames, decode them, turn them upright, resize them and cut them into patches.

    Frames are counted by decoding. Where a file is cut off or has frames that are not meant to be seen, what
    can be decoded is sampled anew.

    Args:
        data: The file.
        rule: The checkpoint's.
        limits: Of what is decoded.
        wanted: Whether somebody still waits for it; asked between frames.

    Raises:
        Unwanted: Nobody waits for it any more.
        MediaError: It is no video that is known here, is broken, or is larger than the limits; or the package
            that reads videos is not installed.
    """
    if len(data) > limits.video_bytes:
        raise MediaError(f"the video has {len(data)} bytes; at most {limits.video_bytes} are read")
    container = _container(data)
    try:
        from flashnext.media.video_file import VideoFile  # of an extra
    except ModuleNotFoundError as error:
        if error.name != "av":
            raise
        raise MediaError("videos need the extra `video`: pip install 'flashnext[video]'") from None
    if container == "mov":
        data = video_only(data, limits.video_frames)
    file = VideoFile(data, container, limits, wanted)
    shown = file.look()
    chosen = sample(shown, rule)
    levels, decoded = file.decode(chosen.frames, shown, rule)
    if decoded.n != shown.n:
        chosen = sample(decoded, rule)
        levels, _ = file.decode(chosen.frames, decoded, rule)
    return cut(levels, list(chosen.times_s), rule)


def _container(data: bytes) -> str:
    """Find FFmpeg's demuxer by the file's first bytes. No other is tried: some of them open further files."""
    if data[4:8] in _MP4_BOXES:
        return "mov"
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        return "avi"
    if not data:
        raise MediaError("the video has no bytes")
    raise MediaError(f"the video is none of MP4, WebM, Matroska, AVI: it begins with {data[:8].hex(' ')}")
