"""The frames of a video that are looked at, all of one size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from flashnext.media.errors import MediaError
from flashnext.media.image import resized
from flashnext.media.limits import Limits
from flashnext.media.patches import Levels
from flashnext.media.rules import VideoRule
from flashnext.media.sizes import Size, frame_size, n_tokens


class Frames:
    """Places for the frames of a video, which are brought to the size that the first one to come gets.

    Attributes:
        levels: (F, H, W, 3) uint8; None before a frame has come.
    """

    def __init__(self, n: int, rule: VideoRule, limits: Limits) -> None:
        """Take `n` frames, for a checkpoint's rule and within limits."""
        self.levels: Levels | None = None
        self._n, self._rule, self._limits = n, rule, limits
        self._size: Size = (0, 0)

    def put(self, places: Sequence[int], image: Image.Image) -> None:
        """Put an upright frame where it belongs.

        Raises:
            MediaError: Frames of this size take too many tokens, or are too thin.
        """
        if self.levels is None:
            self._size = self._fitting((image.height, image.width))
            self.levels = np.zeros((self._n, *self._size, 3), np.uint8)
        self.levels[list(places)] = resized(image, self._size)

    def _fitting(self, own: Size) -> Size:
        most = self._limits.video_tokens
        size = frame_size(self._n, own, self._rule, most, self._limits.image_tokens)
        tokens = n_tokens(size, self._rule, self._n)
        if most is not None and tokens > most:
            raise MediaError(
                f"its {self._n} frames of {own[1]} x {own[0]} pixels take {tokens} tokens at least; "
                f"at most {most} are allowed"
            )
        return size
