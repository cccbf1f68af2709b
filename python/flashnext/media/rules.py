"""How a checkpoint wants pictures and videos prepared: preprocessor_config.json and its sisters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flashnext.errors import CheckpointError

CHANNELS = 3
BICUBIC = 3
MAX_FILE_BYTES = 2**20
T = TypeVar("T", int, float)


@dataclass(frozen=True)
class ImageRule:
    """How an image becomes patches.

    Attributes:
        patch: Side of a patch in pixels.
        merge: Patches of a token along each side.
        temporal: Frames of a patch; an image counts as that many equal ones.
        min_pixels: Least pixels after resizing.
        max_pixels: Most pixels after resizing.
        scale: What levels from 0 to 255 are multiplied by.
        mean: Subtracted from the product, one a channel.
        std: Divided by after that, one a channel.

    Source: the published processor's values (ARCHITECTURE 6), where a checkpoint says nothing else.
    """

    patch: int = 16
    merge: int = 2
    temporal: int = 2
    min_pixels: int = 65_536
    max_pixels: int = 16_777_216
    scale: float = 1 / 255
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @property
    def factor(self) -> int:
        """Side of a token in pixels; resized sides are multiples of it."""
        return self.patch * self.merge


@dataclass(frozen=True)
class VideoRule(ImageRule):
    """How a video becomes patches. `min_pixels` and `max_pixels` count the pixels of all sampled frames.

    Attributes:
        fps: Frames a second that are looked at.
        min_frames: Looked at at least, where there are as many.
        max_frames: Looked at at most.
        frame_tokens: Most tokens' worth of pixels of one frame; None for no such limit.
    """

    min_pixels: int = 4_096
    max_pixels: int = 25_165_824
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    frame_tokens: int | None = None


@dataclass(frozen=True)
class Rules:
    """Both rules of a checkpoint."""

    image: ImageRule = ImageRule()
    video: VideoRule = VideoRule()


def read_rules(folder: Path) -> Rules:
    """Read the rules of a checkpoint folder.

    `processor_config.json` counts before `preprocessor_config.json` and `video_preprocessor_config.json`;
    what none of them says is as in the published model.

    Raises:
        CheckpointError: A file cannot be read, or asks for something that is not done here.
    """
    both = _object(folder / "processor_config.json")
    image = both.get("image_processor") or _object(folder / "preprocessor_config.json")
    video = both.get("video_processor") or _object(folder / "video_preprocessor_config.json")
    return Rules(
        ImageRule(**_Reader(image, "image preprocessing", ImageRule()).common()),
        _video(_Reader(video, "video preprocessing", VideoRule())),
    )


def _object(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CheckpointError(f"{path.name} is longer than {MAX_FILE_BYTES} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path.name} must be a JSON object")
    return found


def _video(read: _Reader) -> VideoRule:
    rule = VideoRule(
        **read.common(),
        fps=read.number("fps", 2.0, 1e-3, 1e3),
        min_frames=read.number("min_frames", 4, 1, 10**6),
        max_frames=read.number("max_frames", 768, 1, 10**6),
        frame_tokens=read.number("max_video_tokens", 768, 1, 10**6)
        if read.values.get("cap_pixels_per_frame")
        else None,
    )
    if rule.min_frames > rule.max_frames:
        raise read.refused("min_frames", rule.min_frames, f"at most max_frames {rule.max_frames}")
    return rule


class _Reader:
    """One processor's JSON object, and the rule whose values stand in for what it leaves out."""

    def __init__(self, values: Any, where: str, base: ImageRule) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{where} must be a JSON object")
        self.values, self._where, self._base = values, where, base

    def common(self) -> dict[str, Any]:
        """Read what images and videos share, as the fields of a rule."""
        base = self._base
        for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
            if self.values.get(name) not in (None, True):
                raise self.refused(name, self.values[name], "true: it is always done")
        if self.values.get("resample") not in (None, BICUBIC):
            raise self.refused("resample", self.values["resample"], f"{BICUBIC}, which is bicubic")
        size = self.values.get("size")
        size = size if isinstance(size, Mapping) else {}
        low = size.get("shortest_edge", self.values.get("min_pixels"))
        high = size.get("longest_edge", self.values.get("max_pixels"))
        found: dict[str, Any] = {
            "patch": self.number("patch_size", base.patch, 1, 256),
            "merge": self.number("merge_size", base.merge, 1, 16),
            "temporal": self.number("temporal_patch_size", base.temporal, 1, 16),
            "min_pixels": self._checked("size.shortest_edge", low, base.min_pixels, 1, 2**40),
            "max_pixels": self._checked("size.longest_edge", high, base.max_pixels, 1, 2**40),
            "scale": self.number("rescale_factor", base.scale, 1e-6, 1e6),
            "mean": self._triple("image_mean", base.mean, -1e6),
            "std": self._triple("image_std", base.std, 1e-6),
        }
        if found["min_pixels"] > found["max_pixels"]:
            raise self.refused("size.shortest_edge", found["min_pixels"], "at most size.longest_edge")
        return found

    def number(self, name: str, base: T, low: float, high: float) -> T:
        """Read a number of the type of `base`, which stands in for it where it is missing."""
        return self._checked(name, self.values.get(name), base, low, high)

    def _checked(self, name: str, value: Any, base: T, low: float, high: float) -> T:
        if value is None:
            return base
        whole = isinstance(base, int)
        right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not right or not math.isfinite(value) or not low <= value <= high:
            kind = "a whole number" if whole else "a number"
            raise self.refused(name, value, f"{kind} from {low:g} to {high:g}")
        return type(base)(value)

    def _triple(self, name: str, base: tuple[float, float, float], low: float) -> tuple[float, float, float]:
        values = self.values.get(name)
        if values is None:
            return base
        if not isinstance(values, list) or len(values) != CHANNELS:
            raise self.refused(name, values, f"a list of {CHANNELS} numbers")
        a, b, c = (self._checked(name, value, 0.0, low, 1e6) for value in values)
        return a, b, c

    def refused(self, name: str, value: Any, expected: str) -> CheckpointError:
        """Make the error that a field has to be something else."""
        return CheckpointError(f"{self._where}: {name} must be {expected}, found {ascii(value)[:80]}")
