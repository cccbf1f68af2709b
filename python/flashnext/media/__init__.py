"""Media: what the model sees of pictures and videos."""

from flashnext.media.data_url import read_data_url
from flashnext.media.errors import MediaError, PoolClosed
from flashnext.media.limits import Detail, Limits
from flashnext.media.parts import FramesPart, ImagePart, Part, VideoPart
from flashnext.media.patches import Media
from flashnext.media.pool import Preprocessor
from flashnext.media.prepare import check_counts, count_tokens, kind_of, prepare
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
