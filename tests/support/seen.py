"""Prompts that show pictures and videos: of noise, and the golden ones as the reference tower sees them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flashnext.engine.core import Floats, Tokens
from flashnext.engine.frame import Frame
from flashnext.media import FramesPart, ImagePart, Limits, Media, Part, Preprocessor, read_rules
from flashnext.media.positions import IMAGE, VIDEO, Span, positions

from support.random_checkpoint import weights_float64
from support.reference.vision import VisionTower

TINY = Path(__file__).parents[1] / "tiny"
GOLDEN: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in map(json.loads, (TINY / "golden.jsonl").read_text().splitlines())
    if case["grid_thw"] is not None
}


def noise(seed: int, grid: tuple[int, int, int]) -> Media:
    """Media without levels: who looks at it sees numbers that its key gives. The grid is of patches."""
    t, h, w = grid
    kind = "image" if t == 1 else "video"
    key = np.random.default_rng(seed).bytes(32)
    nothing = np.empty((0, 3, 1, 16, 16), np.uint8)
    table = np.zeros((3, 256), np.float32)
    times = tuple(float(i) for i in range(t)) if kind == "video" else ()
    return Media(kind, nothing, grid, t * h * w // 4, times, key, table, 2)  # type: ignore[arg-type]


def see_noise(media: Media, hidden: int) -> Floats:
    """(n_tokens, hidden) float32, of its key alone."""
    rng = np.random.default_rng(list(media.key))
    return rng.standard_normal((media.n_tokens, hidden)).astype(np.float32)


def drawn(tokens: Tokens, starts: Iterable[tuple[int, Media]], pad: int, hidden: int) -> tuple[Tokens, Frame]:
    """A prompt in which images, and the first slices of videos, begin at these rows; slices lie 3 rows apart.

    Args:
        tokens: (n,) int32, of the text.
        starts: Ascending.
        pad: The token of the rows that show something.
        hidden: Of the model.
    """
    tokens, shown = tokens.copy(), list[tuple[Span, Media]]()
    for index, (start, media) in enumerate(starts):
        t, h, w = media.grid
        for i in range(t):
            kind = IMAGE if media.kind == "image" else VIDEO
            span = Span(start, h // 2, w // 2, kind, index, i * h * w // 4)
            tokens[span.start : span.end] = pad
            shown.append((span, media))
            start = span.end + 3
    assert shown[-1][0].end < len(tokens)
    axes, _ = positions(len(tokens), [span for span, _ in shown])
    return tokens, Frame(tuple(shown), axes, lambda media: see_noise(media, hidden))


def _part(part: dict[str, Any]) -> Part:
    if part["type"] == "image":
        return ImagePart((TINY / part["image"]).read_bytes())
    return FramesPart(tuple((TINY / name).read_bytes() for name in part["video"]), part["fps"])


def golden_parts(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a golden case, its files read."""
    return [
        message
        if isinstance(message["content"], str)
        else message
        | {
            "content": [
                part if part["type"] == "text" else {"type": part["type"], part["type"]: _part(part)}
                for part in message["content"]
            ]
        }
        for message in case["messages"]
    ]


def prepared(case: dict[str, Any]) -> list[Media]:
    """The media of a golden case."""
    messages = golden_parts(case)
    contents = [message["content"] for message in messages if not isinstance(message["content"], str)]
    parts = [part[part["type"]] for content in contents for part in content if part["type"] != "text"]
    pool = Preprocessor(read_rules(TINY / "hf"), Limits())
    try:
        return pool.prepare(parts)
    finally:
        pool.close()


def golden_messages(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a golden case, its media prepared."""
    made = iter(prepared(case))
    messages = golden_parts(case)
    for message in messages:
        if not isinstance(message["content"], str):
            message["content"] = [
                part if part["type"] == "text" else {"type": part["type"], part["type"]: next(made)}
                for part in message["content"]
            ]
    return messages


@cache
def tower() -> VisionTower:
    """The reference tower of the trained checkpoint."""
    sizes = json.loads((TINY / "hf" / "config.json").read_text())["vision_config"]
    weights = {k: w for k, w in weights_float64(TINY / "hf").items() if k.startswith("visual.")}
    return VisionTower(sizes, weights)


_SEEN: dict[bytes, Floats] = {}


def see(media: Media) -> Floats:
    """What the reference tower of the trained checkpoint makes of media, in float64, rounded once."""
    if media.key not in _SEEN:
        _SEEN[media.key] = tower().forward(media.patches().astype(np.float64), media.grid).astype(np.float32)
    return _SEEN[media.key]


def pads() -> tuple[int, int]:
    """The trained checkpoint's pads of images and of videos."""
    config = json.loads((TINY / "hf" / "config.json").read_text())
    return config["image_token_id"], config["video_token_id"]


def golden(case: dict[str, Any]) -> tuple[Tokens, Frame]:
    """A golden case's prompt and what it shows."""
    tokens = np.array(case["prompt_ids"], np.int32)
    return tokens, Frame.of(tokens, prepared(case), pads(), see)
