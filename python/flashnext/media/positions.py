"""Where the rows of a prompt with pictures and videos stand on the model's three rotary axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashnext.errors import InvalidArgument

TEXT, IMAGE, VIDEO = range(3)
"""Kinds of tokens: text, the pad of an image, the pad of a video."""

Axes = npt.NDArray[np.int32]
Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Span:
    """Rows next to each other that show an image, or one slice of a video.

    Attributes:
        start: The first of them.
        rows: Of the grid of tokens,
        columns: and its columns.
        kind: IMAGE or VIDEO.
        index: Which of the images or videos.
        first: Its features' row that the first one shows.
    """

    start: int
    rows: int
    columns: int
    kind: int
    index: int
    first: int

    @property
    def n(self) -> int:
        """How many rows."""
        return self.rows * self.columns

    @property
    def end(self) -> int:
        """The row behind them."""
        return self.start + self.n


def find_spans(
    kinds: npt.ArrayLike, images: Iterable[Grid] = (), videos: Iterable[Grid] = (), merge: int = 2
) -> tuple[Span, ...]:
    """Find which rows show what.

    Args:
        kinds: (n,), of each token of a prompt.
        images: Slices, and rows and columns of patches in each, of the images in their order.
        videos: The same of the videos. Text says when each slice is shown, so they stand apart.
        merge: Patches of a token along each side.

    Raises:
        InvalidArgument: The prompt has more or fewer pads than they take, or text among those of one grid.
    """
    found = np.asarray(kinds)
    slices = {IMAGE: _slices(images, merge), VIDEO: _slices(videos, merge)}
    spans: list[Span] = []
    pads = np.flatnonzero(found != TEXT)
    n_shown = 0
    while n_shown < len(pads):
        at = int(pads[n_shown])
        kind = int(found[at])
        a_slice = next(slices[kind], None)
        if a_slice is None:
            raise InvalidArgument(f"the pad at row {at} of the prompt has no {_NAMES[kind]} that it shows")
        rows, columns, index, first = a_slice
        span = Span(at, rows, columns, kind, index, first)
        if not (found[at : span.end] == kind).all() or span.end > len(found):
            raise InvalidArgument(
                f"{_NAMES[kind]} {index} of the prompt takes {rows} x {columns} pads next to each other, of "
                f"which row {at} is the first; there are fewer"
            )
        spans.append(span)
        n_shown += span.n
    for kind, left in slices.items():
        if (a_slice := next(left, None)) is not None:
            raise InvalidArgument(f"{_NAMES[kind]} {a_slice[2]} has no pads in the prompt, or too few")
    return tuple(spans)


def positions(n: int, spans: Sequence[Span]) -> tuple[Axes, int]:
    """Place the rows of a prompt.

    A text row stands one further than what is before it, on all axes alike. The tokens of a grid stand in its
    rows and columns from there, and what comes behind goes on at its longer side.

    Args:
        n: Rows.
        spans: Of those that show something, in order.

    Returns:
        (n, 3) int32 on the axes of time, height and width, and what a row behind the prompt stands further
        than its number, on all axes.

    Source: transformers 5.23, `get_rope_index`; docs/model.md.
    """
    out = np.empty((n, 3), np.int32)
    delta = at = 0  # of the text from row `at` on
    for span in spans:
        out[at : span.start] = np.arange(at + delta, span.start + delta)[:, None]
        here = span.start + delta
        grid = out[span.start : span.end].reshape(span.rows, span.columns, 3)
        grid[..., 0] = here
        grid[..., 1] = here + np.arange(span.rows)[:, None]
        grid[..., 2] = here + np.arange(span.columns)
        at = span.end
        delta = here + max(span.rows, span.columns) - at
    out[at:] = np.arange(at + delta, n + delta)[:, None]
    return out, delta


def rope_index(
    kinds: npt.ArrayLike, images: Iterable[Grid] = (), videos: Iterable[Grid] = (), merge: int = 2
) -> tuple[Axes, int]:
    """Place the rows of a prompt by the kinds of its tokens: `positions` of `find_spans`."""
    found = np.asarray(kinds)
    return positions(len(found), find_spans(found, images, videos, merge))


_NAMES = {IMAGE: "image", VIDEO: "video"}


def _slices(grids: Iterable[Grid], merge: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield rows and columns of tokens of each slice, whose it is and which of its tokens is the first."""
    for index, (t, h, w) in enumerate(grids):
        rows, columns = h // merge, w // merge
        for i in range(t):
            yield rows, columns, index, i * rows * columns
