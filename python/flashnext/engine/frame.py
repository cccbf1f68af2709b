"""What a prompt shows beside its text: which rows, where they stand, what names them, and what they are."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from flashnext.engine.core import Tokens
from flashnext.engine.radix import Keys, row_keys
from flashnext.errors import InvalidArgument
from flashnext.media import Media
from flashnext.media.patches import Floats
from flashnext.media.positions import IMAGE, VIDEO, Axes, Grid, Span, find_spans, positions

See = Callable[[Media], Floats]
"""Gives (n_tokens, hidden) float32: what the vision tower makes of a picture or a video, and of nothing else,
so that equal keys of media mean equal features."""

_ABOVE_IDS = np.int64(-(2**63))  # a key with this bit is no token id


@dataclass(frozen=True, eq=False)
class MediaPrompt:
    """A prompt that shows pictures and videos, as token ids.

    Attributes:
        token_ids: With as many pads next to each other as an image, or a slice of a video, takes
            (`Media.spans`), and text behind the last of them.
        media: In the order in which the prompt shows them.
        see: Gives their features; called by a thread beside the engine's, and only for media of which rows
            are read that no earlier prompt has left in the prefix cache. `Engine.eyes` has one. Rows are
            named by their media alone: another `see`, whose features differ, needs an engine of its own, or
            `cache=False`.
    """

    token_ids: Sequence[int]
    media: Sequence[Media]
    see: See = field(repr=False)


@dataclass(frozen=True, eq=False)
class Frame:
    """The standard frame of a prompt: a longer prompt has the same as far as it begins with this one.

    Attributes:
        shown: Spans of rows in order, with what they show.
        axes: (n, 3) int32, where the rows stand on the rotary axes. Rows behind them go on from there.
        see: Gives the features.
    """

    shown: tuple[tuple[Span, Media], ...]
    axes: Axes = field(repr=False)
    see: See = field(repr=False)
    _names: tuple[Keys, ...] = field(init=False, repr=False)  # of the rows of each span

    def __post_init__(self) -> None:
        named: dict[bytes, Keys] = {}
        for _, media in self.shown:
            if media.key not in named:
                named[media.key] = media_keys(media.key, media.n_tokens)
        names = tuple(named[media.key][span.first : span.first + span.n] for span, media in self.shown)
        object.__setattr__(self, "_names", names)

    @staticmethod
    def of(tokens: Tokens, media: Sequence[Media], pads: tuple[int | None, int | None], see: See) -> Frame:
        """Find the pads of a prompt, and place its rows.

        Args:
            tokens: (n,) int32.
            media: In the order in which the prompt shows them.
            pads: The token that stands for a row of an image, and that for one of a video.
            see: Gives the features.

        Raises:
            InvalidArgument: The pads are not those of the media, or the prompt ends with one.
        """
        kinds = np.zeros(len(tokens), np.int8)
        for kind, pad in ((IMAGE, pads[0]), (VIDEO, pads[1])):
            if pad is not None:
                kinds[tokens == pad] = kind
        each: dict[int, list[Media]] = {IMAGE: [], VIDEO: []}
        for one in media:
            each[IMAGE if one.kind == "image" else VIDEO].append(one)
        images, videos = ([_grid(one) for one in each[kind]] for kind in (IMAGE, VIDEO))
        spans = find_spans(kinds, images, videos, merge=1)
        if spans and spans[-1].end == len(tokens):
            raise InvalidArgument(
                "the prompt ends with media; at least one token of text has to stand behind"
            )
        axes, _ = positions(len(tokens), spans)
        return Frame(tuple((span, each[span.kind][span.index]) for span in spans), axes, see)

    def keys(self, tokens: Tokens) -> Keys:
        """Name the rows of a sequence that begins with the prompt, or is the beginning of it.

        A row that shows media is named by what it shows in place of the pad: no token id is below 0.

        Args:
            tokens: (n,) int32.
        """
        keys = row_keys(tokens)
        for (span, _), names in zip(self.shown, self._names, strict=True):
            if span.start < len(keys):
                keys[span.start : span.end] = names[: len(keys) - span.start]
        return keys

    def within(self, start: int, n: int) -> Iterator[tuple[int, Media, int, int]]:
        """Yield what n rows from `start` on show: (first of these rows, media, first of its, how many)."""
        for span, media in self.shown:
            first, end = max(span.start, start), min(span.end, start + n)
            if first < end:
                yield first - start, media, span.first + first - span.start, end - first

    def behind(self, start: int) -> set[bytes]:
        """Name the media of which rows lie behind the first `start`, by their keys."""
        return {media.key for span, media in self.shown if span.end > start}


def media_keys(key: bytes, n: int) -> Keys:
    """Name the first n rows of a picture or a video, (n,) int64, all below 0; `key` is that of the media."""
    named = hashlib.shake_256(key).digest(8 * n)  # each row's 8 bytes, whatever follows
    return np.frombuffer(named, "<i8").astype(np.int64) | _ABOVE_IDS


def _grid(media: Media) -> Grid:
    """Give slices, and rows and columns of tokens in each."""
    t, h, w = media.grid
    merge = math.isqrt(t * h * w // media.n_tokens)
    return t, h // merge, w // merge
