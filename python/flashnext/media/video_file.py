"""Reads the frames of a video file with PyAV, which is FFmpeg; needs the extra `video`."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import av
from av.container import InputContainer
from av.sidedata.sidedata import SideData
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image

from flashnext.media.errors import MediaError, Unwanted, complaint
from flashnext.media.frames import Frames
from flashnext.media.limits import Limits
from flashnext.media.patches import Levels
from flashnext.media.rules import VideoRule
from flashnext.media.sampling import Shown

CODECS = ("h264", "hevc", "av1", "vp9", "vp8", "mpeg4", "mpeg2video", "mjpeg", "prores")
"""What is decoded, by FFmpeg's names."""

PROBED_PIXELS = 8192 * 4608
"""Of a frame where a file is opened: more than are decoded later, so that a refusal can name the numbers."""

_DECODERS = (*CODECS, "libdav1d", "libvpx", "libvpx-vp9")


class VideoFile:
    """One file, which is opened anew for each look at it."""

    def __init__(self, data: bytes, container: str, limits: Limits, wanted: Callable[[], bool]) -> None:
        """Take a file's bytes, FFmpeg's name of its container, and whether somebody still waits for it."""
        self._data, self._container, self._limits, self._wanted = data, container, limits, wanted

    def look(self) -> Shown:
        """Read what the file says of its frames, without decoding them.

        Raises:
            MediaError: It says nothing usable, or something that is over a limit.
        """
        limits = self._limits
        with self._opened() as opened:
            stream = self._stream(opened)
            width, height = stream.width, stream.height
            if width * height > limits.video_frame_pixels:
                raise MediaError(
                    f"the video's frames are {width} x {height}, which is {width * height} pixels; "
                    f"at most {limits.video_frame_pixels} are decoded"
                )
            shown = self._shown(self._stamps(opened, stream), stream)
        if shown.length_s > limits.video_s:
            raise MediaError(
                f"the video takes {shown.length_s:.0f} seconds; at most {limits.video_s} are read"
            )
        if (work := shown.n * width * height) > limits.video_work:
            raise MediaError(
                f"the video has {shown.n} frames of {width} x {height}, which is {work} pixels in all; "
                f"at most {limits.video_work} are decoded"
            )
        return shown

    def decode(self, chosen: Sequence[int], shown: Shown, rule: VideoRule) -> tuple[Levels, Shown]:
        """Decode all frames and keep the chosen ones.

        Args:
            chosen: Numbers of frames, in the order of the result.
            shown: What the file says of its frames.
            rule: The checkpoint's.

        Returns:
            The chosen frames, (F, H, W, 3) uint8 of the size that the rule gives them, and when each frame of
            the file is shown that could be decoded.

        Raises:
            MediaError: None could be, or they are larger than the file says, and too much in all.
            Unwanted: Nobody waits for them any more.
        """
        places: dict[int, list[int]] = {}
        for place, number in enumerate(chosen):
            places.setdefault(number, []).append(place)
        kept = Frames(len(chosen), rule, self._limits)
        stamps: list[int | None] = []
        failed: list[av.FFmpegError] = []
        work, limits = 0, self._limits
        with self._opened() as opened:
            stream = self._stream(opened)
            stream.codec_context.thread_count = 1  # parts are decoded side by side instead
            stream.codec_context.options = {"max_pixels": str(self._limits.video_frame_pixels)}
            for frame in _decoded(opened, stream, failed, self._wanted):
                work += frame.width * frame.height
                if work > limits.video_work or len(stamps) == limits.video_frames:
                    raise MediaError(
                        f"the video's header lies: {len(stamps) + 1} of its frames have {work} pixels; "
                        f"{limits.video_work}, and {limits.video_frames} frames, are decoded at most"
                    )
                if len(stamps) in places:
                    kept.put(places[len(stamps)], _upright(frame))
                stamps.append(frame.pts)
        if kept.levels is None:
            raise _broken(failed[0]) if failed else MediaError("the video has no frame that can be decoded")
        return kept.levels, Shown(len(stamps), _ticks(stamps), shown.tick, shown.fps)

    def _opened(self) -> InputContainer:
        options = {
            "codec_whitelist": ",".join(_DECODERS),
            "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi",
            "max_pixels": str(max(self._limits.video_frame_pixels, PROBED_PIXELS)),
            "protocol_whitelist": "",
        }
        try:
            return av.open(io.BytesIO(self._data), "r", self._container, options, metadata_errors="replace")
        except (av.FFmpegError, ValueError) as error:
            raise _broken(error) from None

    def _stream(self, opened: InputContainer) -> VideoStream:
        for stream in opened.streams.video:
            if stream.disposition & Disposition.attached_pic:
                continue
            name = stream.codec_context.codec.canonical_name if stream.codec_context else "something unknown"
            if name not in CODECS:
                raise MediaError(f"the video is coded as {name}; what is decoded is {', '.join(CODECS)}")
            return stream
        raise MediaError("the file has no video stream")

    def _stamps(self, opened: InputContainer, stream: VideoStream) -> list[int | None]:
        """When the frames are shown, one for each packet and in the order of the file."""
        stamps: list[int | None] = []
        n_bytes = 0
        try:
            for packet in opened.demux(stream):
                if packet.size == 0 or packet.is_discard:
                    continue
                stamps.append(packet.pts)
                n_bytes += packet.size
                if len(stamps) > self._limits.video_frames:
                    raise MediaError(
                        f"the video has over {self._limits.video_frames} frames, the most that are read"
                    )
                if n_bytes > 2 * len(self._data) + 2**16:  # compressed packets may have some more
                    raise MediaError("the video's header lies: its frames have more bytes than the file")
        except av.FFmpegError as error:
            if not stamps:
                raise _broken(error) from None
        if not stamps:
            raise MediaError("the video has no frames")
        return stamps

    def _shown(self, stamps: list[int | None], stream: VideoStream) -> Shown:
        rate = stream.average_rate
        fps = Fraction(rate) if rate and 0 < rate <= 1000 else None
        return Shown(len(stamps), _ticks(stamps), Fraction(stream.time_base or Fraction(1, 1000)), fps)


def _ticks(stamps: list[int | None]) -> tuple[int, ...] | None:
    known = sorted(at for at in stamps if at is not None)
    return tuple(at - known[0] for at in known) if known and len(known) == len(stamps) else None


def _decoded(
    opened: InputContainer, stream: VideoStream, failed: list[av.FFmpegError], wanted: Callable[[], bool]
) -> Iterator[VideoFrame]:
    """Yield all frames that can be decoded, as long as they are wanted; what cannot goes into `failed`."""
    packets = opened.demux(stream)
    ended = False
    while not ended:
        if not wanted():
            raise Unwanted
        try:
            packet = next(packets, None)
        except av.FFmpegError as error:
            failed.append(error)
            packet = None
        ended = packet is None or packet.size == 0
        try:
            yield from stream.codec_context.decode(packet)
        except av.FFmpegError as error:
            failed.append(error)


def _upright(frame: VideoFrame) -> Image.Image:
    """Turn and mirror a frame by quarters, as its display matrix says.

    Its entries a, b, c, d take a pixel at (x, y) to (a x + c y, b x + d y), y pointing down.
    """
    image = Image.fromarray(frame.to_ndarray(format="rgb24"))
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(matrix, SideData):
        return image
    a, b, _, c, d, *_ = struct.unpack("9i", bytes(matrix))
    if abs(b) + abs(c) > abs(a) + abs(d):
        image = image.transpose(Image.Transpose.TRANSPOSE)
        a, d = c, b
    if a < 0:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if d < 0:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return image


def _broken(error: BaseException) -> MediaError:
    told = getattr(error, "strerror", None)
    return MediaError(f"the video cannot be decoded: {complaint(ValueError(told) if told else error)}")
