"""What is wrong with a picture or a video, in one sentence."""

from __future__ import annotations

from flashnext.errors import FlashnextError, InvalidArgument

_MOST = 200


class MediaError(InvalidArgument):
    """A picture or video of a request cannot be used.

    Attributes:
        problem: What is wrong, without the part.
        part: Which of the request's pictures and videos it is, from 0; None where that is not known yet.
    """

    def __init__(self, problem: str, part: int | None = None) -> None:
        super().__init__(problem if part is None else f"media part {part}: {problem}")
        self.problem = problem
        self.part = part

    def at(self, part: int) -> MediaError:
        """Say which part of the request it is."""
        return MediaError(self.problem, part)


class Unwanted(MediaError):
    """Whoever asked for a picture or a video is gone, so the rest of it is not decoded."""

    def __init__(self) -> None:
        super().__init__("nobody waits for it any more")


class PoolClosed(FlashnextError):
    """Nothing is prepared any more."""

    def __init__(self) -> None:
        super().__init__("media are prepared no more: their threads were closed")


def complaint(error: BaseException) -> str:
    """Say on one line what a decoder complains of; it may hold bytes of the file."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    if text.startswith(("unpack requires", "unpack_from requires")):
        text = "it ends too soon"
    elif text == "not identified by this driver":
        text = "its header names no width, no height or no kind of pixels that is known"
    text = text or type(error).__name__
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."
