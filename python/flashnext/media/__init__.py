"""Media: what the model sees of pictures and videos."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashnext.media.data_url import read_data_url
    from flashnext.media.errors import MediaError, PoolClosed
    from flashnext.media.limits import Detail, Limits
    from flashnext.media.parts import FramesPart, ImagePart, Part, VideoPart
    from flashnext.media.patches import Media
    from flashnext.media.pool import Preprocessor
    from flashnext.media.preparing import check_counts, count_tokens, kind_of, prepare
    from flashnext.media.rules import ImageRule, Rules, VideoRule, read_rules

__all__ = [
    "Detail",
    "FramesPart",
    "ImagePart",
    "ImageRule",
    "Limits",
    "Media",
    "MediaError",
    "Part",
    "PoolClosed",
    "Preprocessor",
    "Rules",
    "VideoPart",
    "VideoRule",
    "check_counts",
    "count_tokens",
    "kind_of",
    "prepare",
    "read_data_url",
    "read_rules",
]

# On demand: --help needs the limits, and neither Pillow nor numpy.
_HOMES = {
    "data_url": ("read_data_url",),
    "errors": ("MediaError", "PoolClosed"),
    "limits": ("Detail", "Limits"),
    "parts": ("FramesPart", "ImagePart", "Part", "VideoPart"),
    "patches": ("Media",),
    "pool": ("Preprocessor",),
    "preparing": ("check_counts", "count_tokens", "kind_of", "prepare"),
    "rules": ("ImageRule", "Rules", "VideoRule", "read_rules"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"flashnext.media.{home}"), name)
    raise AttributeError(f"module 'flashnext.media' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
