"""A file in memory of which a decoder takes only so many pieces.

What stands in front of a picture's pixels is read by Python, piece by piece: a file of 32 MiB that has
nothing but empty parts would keep a thread busy for half a minute.
"""

from __future__ import annotations

import io

MOST_READS = 1_000_000
"""Of one file: a second or two. Usual pictures take some thousands, a large screenshot in BMP's run-length
code some hundred thousand."""


class TooManyPieces(ValueError):
    """A decoder has taken more pieces of a file than it may."""


class BoundedFile(io.BytesIO):
    """The bytes of a file, of which a decoder takes `MOST_READS` pieces at most."""

    def __init__(self, data: bytes) -> None:
        """Have taken none."""
        super().__init__(data)
        self._n_reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Take a piece.

        Raises:
            TooManyPieces: There were too many.
        """
        self._n_reads += 1
        if self._n_reads > MOST_READS:
            raise TooManyPieces(f"it is made of too many parts, which take more than {MOST_READS} steps")
        return super().read(size)
