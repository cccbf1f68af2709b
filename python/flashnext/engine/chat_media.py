"""From the pictures and videos that a chat brings to those that its prompt shows."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from flashnext.engine.arguments import is_number
from flashnext.engine.core import Floats, Tokens
from flashnext.engine.errors import EngineClosed
from flashnext.engine.frame import Frame, See
from flashnext.errors import InvalidArgument
from flashnext.media import (
    FramesPart,
    ImagePart,
    Limits,
    Media,
    MediaError,
    Part,
    PoolClosed,
    Preprocessor,
    VideoPart,
    check_counts,
    kind_of,
    read_data_url,
    read_rules,
)
from flashnext.media.limits import DETAILS
from flashnext.media.sizes import most_bytes
from flashnext.text.messages import InvalidField, canonical_messages, cut

Message = Mapping[str, Any]

_TYPES: Mapping[str, Literal["image", "video"]] = {
    "image": "image",
    "image_url": "image",
    "video": "video",
    "video_url": "video",
}
_TAKEN = {
    "image": "an ImagePart, the bytes of a file, a pathlib.Path or prepared Media",
    "video": "a VideoPart, a FramesPart, the bytes of a file, a pathlib.Path or prepared Media",
}


class Eyes(Protocol):
    """What looks at media."""

    def see(self, media: Media) -> Floats:
        """Give features, (n_tokens, hidden) float32."""


@dataclass(frozen=True)
class Brought:
    """A part of a message that shows something, as it came.

    Attributes:
        message: Its message's number.
        part: Its own number in that.
        place: As errors say both.
        kind: A picture or a video.
        type: What it calls itself.
        value: What it brings.
        detail: How closely to look at a picture; None where it does not say.
    """

    message: int
    part: int
    place: str
    kind: Literal["image", "video"]
    type: str
    value: Any
    detail: Any


@dataclass(frozen=True)
class _StandIn:
    """Stands for media while the rest of a chat is checked."""

    kind: Literal["image", "video"]
    key: bytes = b""
    n_tokens: int = 0

    def spans(self) -> tuple[tuple[str, int], ...]:
        return ()


class ChatMedia:
    """Prepares what chats bring. Its methods may be called from any thread.

    Attributes:
        eyes: What looks at it; None where there is nothing, and chats that show something are refused.
    """

    def __init__(
        self, folder: Path, limits: Limits, pads: tuple[int | None, int | None], no_eyes: str
    ) -> None:
        """Begin without eyes.

        Args:
            folder: Of the checkpoint, whose rules are read when they are first needed.
            limits: For every chat.
            pads: The token that stands for a row of an image, and that for one of a video.
            no_eyes: Why there are none, where there are none, and what to do.
        """
        self.eyes: Eyes | None = None
        self._folder, self._limits, self._pads, self._no_eyes = folder, limits, pads, no_eyes
        self._lock = threading.Lock()
        self._preprocessor: Preprocessor | None = None
        self._closed = False

    def prepared(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Put prepared media in place of what a chat brings, and wait for that; one of text stays as it is.

        Raises:
            InvalidField: What cannot be read, with its place.
            EngineClosed: It was closed meanwhile.
        """
        brought = found(messages)
        if not brought:
            return messages
        parts = self._read(messages, brought)
        with _placed(brought):
            return _with(messages, brought, self._pool().prepare(parts))

    async def prepared_async(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Do the same without holding up the event loop; what has not begun is dropped with the task."""
        brought = found(messages)
        if not brought:
            return messages
        parts = await asyncio.to_thread(self._read, messages, brought)
        with _placed(brought):
            return _with(messages, brought, await self._pool().prepare_async(parts))

    def most_bytes(self, messages: Sequence[Message]) -> int:
        """Bound what a chat's media take once they are prepared; those that it may not have do not count."""
        brought = found(messages)
        if not brought or self.eyes is None:
            return 0
        n_images = sum(one.kind == "image" for one in brought)
        n_videos = len(brought) - n_images
        image, video = most_bytes(self._pool().rules, self._limits)
        return min(n_images, self._limits.max_images) * image + min(n_videos, self._limits.max_videos) * video

    def frame(self, tokens: Tokens, media: Sequence[Any], see: See | None = None) -> Frame | None:
        """Place the rows of a prompt; None where it shows nothing.

        Args:
            tokens: (n,) int32.
            media: What it shows, in order.
            see: Gives the features of a prompt that is no chat.

        Raises:
            InvalidField: Its pads are not those of the media.
        """
        if not media:
            return None
        field = "messages" if see is None else "prompt"
        if see is None:
            if self.eyes is None:
                raise InvalidField(field, self._no_eyes)
            see = self.eyes.see
        try:
            return Frame.of(tokens, media, self._pads, see)
        except InvalidArgument as error:
            raise InvalidField(field, str(error)) from None

    def close(self) -> None:
        """Prepare no more."""
        with self._lock:
            self._closed = True
            if self._preprocessor is not None:
                self._preprocessor.close()

    def _read(self, messages: Sequence[Message], brought: Sequence[Brought]) -> list[Part | Media]:
        """Check all that can be checked before anything is decoded, then read files and URLs."""
        if self.eyes is None:
            raise InvalidField(brought[0].place, self._no_eyes)
        canonical_messages(_with(messages, brought, [_StandIn(one.kind) for one in brought]))
        counted: list[Part | Media] = [
            ImagePart(b"") if one.kind == "image" else VideoPart(b"") for one in brought
        ]
        with _placed(brought):
            check_counts(counted, self._limits)
        return [_part(one, self._limits) for one in brought]

    def _pool(self) -> Preprocessor:
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine is closed")
            if self._preprocessor is None:
                self._preprocessor = Preprocessor(read_rules(self._folder), self._limits)
            return self._preprocessor


def found(messages: Sequence[Message]) -> list[Brought]:
    """Find what a chat brings; of what is no chat, as far as it looks like one."""
    out = []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str | bytes | bytearray) or not isinstance(content, Sequence):
            continue
        for k, part in enumerate(content):
            name = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(name, str) and name in _TYPES:
                place = f"messages[{i}].content[{k}]"
                out.append(Brought(i, k, place, _TYPES[name], name, part.get(name), part.get("detail")))
    return out


def _with(messages: Sequence[Message], brought: Sequence[Brought], media: Sequence[object]) -> list[Message]:
    """Put media in place of what a chat brings."""
    out = list(messages)
    for one, made in zip(brought, media, strict=True):
        message = out[one.message]
        if message is messages[one.message]:
            message = out[one.message] = {**message, "content": list(message["content"])}
        message["content"][one.part] = {"type": one.kind, one.kind: made}
    return out


@contextmanager
def _placed(brought: Sequence[Brought]) -> Iterator[None]:
    """Tell what is wrong with a part under its place.

    Raises:
        InvalidField: There was such a part in the block.
        EngineClosed: The threads were closed.
    """
    try:
        yield
    except MediaError as error:
        raise InvalidField(brought[error.part or 0].place, error.problem) from None
    except PoolClosed:
        raise EngineClosed("the engine was closed") from None


def _part(brought: Brought, limits: Limits) -> Part | Media:
    """Read what a part brings.

    Raises:
        InvalidField: It is none that can be, or over a limit of bytes.
    """
    kind, place, detail = brought.kind, f"{brought.place}.{brought.type}", brought.detail
    value: object = brought.value
    most = limits.image_bytes if kind == "image" else limits.video_bytes
    detail_place = f"{brought.place}.detail"
    try:
        if brought.type != kind:
            if not isinstance(value, Mapping) or not isinstance(value.get("url"), str):
                raise InvalidField(place, 'expected {"url": "data:..."}')
            if value.get("detail") is not None:
                detail, detail_place = value["detail"], f"{place}.detail"
            place += ".url"
            value = _from_url(value["url"], most)
        elif isinstance(value, os.PathLike):
            value = _from_file(value, most)
    except MediaError as error:
        raise InvalidField(place, error.problem) from None
    if detail is not None and detail not in DETAILS:
        raise InvalidField(
            detail_place, f"expected one of {', '.join(DETAILS)}, found {cut(repr(detail), 80)}"
        )
    if detail not in (None, "auto") and (kind == "video" or isinstance(value, Media)):
        what = "a video" if kind == "video" else "a prepared picture"
        raise InvalidField(detail_place, f"{what} has no detail; leave it out")
    if isinstance(value, bytes | bytearray | memoryview):
        value = ImagePart(bytes(value)) if kind == "image" else VideoPart(bytes(value))
    if not isinstance(value, Part | Media) or kind_of(value) != kind or not _is_whole(value):
        way = f'; text names no file here: give pathlib.Path, or a data: URL as "{kind}_url"'
        raise InvalidField(
            place,
            f"expected {_TAKEN[kind]}, found {type(value).__name__}{way if isinstance(value, str) else ''}",
        )
    return replace(value, detail=detail) if isinstance(value, ImagePart) and detail is not None else value


def _is_whole(part: Part | Media) -> bool:
    """Whether a part that a program made has fields of their types."""
    if isinstance(part, Media):
        return True
    if isinstance(part, FramesPart):
        frames = isinstance(part.frames, tuple) and all(isinstance(frame, bytes) for frame in part.frames)
        return frames and is_number(part.fps)
    return isinstance(part.data, bytes)


def _from_url(url: str, most: int) -> bytes:
    if url[:5].lower() == "data:":
        return read_data_url(url, most)
    raise MediaError(
        f"expected a data: URL with the file in base64, found {cut(repr(url[:80]), 60)}; no others are opened"
    )


def _open_now(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe may never have a writer


def _from_file(path: os.PathLike[Any], most: int) -> bytes:
    """Read a file that is not too long.

    Raises:
        MediaError: It is, or cannot be read.
    """
    shown = cut(repr(os.fspath(path)), 200)
    try:
        with open(path, "rb", opener=_open_now) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise MediaError(f"{shown} is no regular file")
            n = status.st_size
            data = file.read(most + 1) if n <= most else b""
    except OSError as error:
        raise MediaError(f"{shown} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a name with NUL
        raise MediaError(f"{shown} cannot be read: {error}") from None
    if max(n, len(data)) > most:
        raise MediaError(f"{shown} has {max(n, len(data))} bytes; at most {most} are read")
    return data
