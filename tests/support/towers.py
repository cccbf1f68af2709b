"""Vision towers as tests drive them: loaded, run in company, and the reference that they answer to."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flashnext import _core as core
from flashnext.checkpoint import open_checkpoint
from flashnext.engine.load import load_model

from support.random_checkpoint import SMALL_VISION, weights_float64, write_random
from support.reference.vision import VisionTower

Float32 = npt.NDArray[np.float32]
Grid = tuple[int, int, int]

WIDE_VISION = {
    **SMALL_VISION, "depth": 2, "hidden_size": 144, "num_heads": 2, "intermediate_size": 272,
    "num_position_embeddings": 2304,
}  # fmt: skip
"""Heads and table as the published model has them."""
VISIONS = {"odd sizes": SMALL_VISION, "published heads": WIDE_VISION}

GRIDS: tuple[Grid, ...] = (
    (1, 2, 2), (1, 2, 64), (1, 400, 2), (1, 14, 22), (3, 4, 6), (1, 46, 30), (2, 10, 14),
)  # fmt: skip
"""One token, thin ones both ways, videos, and slices on either side of tiles and spans."""

FACTOR = 4.0
"""Between a tower's error and that of the reference in float32: both round in the same places, and differ in
the order of their sums (tests/support/bounds.py says why that is room enough and no more)."""


def write_tower(folder: Path, vision: str = "odd sizes", seed: int = 5, layout: str = "hf") -> Path:
    """Write a random checkpoint with the tower of that name in `VISIONS`."""
    return write_random(folder, seed=seed, layout=layout, vision=VISIONS[vision])


def open_tower(
    folder: Path, device: core.Device | None = None, max_patches: int = 2048, dtype: str = "float32"
) -> core.Tower:
    """Load a checkpoint and its tower."""
    device = device or core.open_device("cpu", 2)
    loaded = load_model(folder, device=device, dtype=dtype, context=64, draft_head=False)
    vision = loaded.checkpoint.config.vision
    assert vision is not None
    return core.load_tower(loaded.model, dict(vision), max_patches)


def reference(folder: Path, dtype: npt.DTypeLike = np.float64) -> VisionTower:
    """The reference with a checkpoint's weights."""
    vision = open_checkpoint(folder).config.vision
    assert vision is not None
    weights = {name: x for name, x in weights_float64(folder).items() if name.startswith("visual.")}
    kernel = weights["visual.patch_embed.proj.weight"]
    if kernel.shape[-1] == vision["in_channels"]:
        weights["visual.patch_embed.proj.weight"] = np.moveaxis(kernel, -1, 1)
    return VisionTower(vision, weights, dtype)


def patches_of(grid: Grid, width: int, seed: int = 0) -> Float32:
    """Random patches of a medium, (t * h * w, width), that hang on its grid and the seed alone."""
    rng = np.random.default_rng([seed, zlib.crc32(repr(grid).encode())])
    return rng.uniform(-1, 1, (grid[0] * grid[1] * grid[2], width)).astype(np.float32)


def features(tower: core.Tower, grids: Sequence[Grid], media: Sequence[Float32]) -> list[Float32]:
    """Features of each medium of one pass."""
    out = tower.features(list(grids), media)
    ends = np.cumsum([t * h * w // 4 for t, h, w in grids])
    return np.split(out, ends[:-1])


def stretches(media: Sequence[Float32], rng: np.random.Generator) -> Iterator[Float32]:
    """The patches of all media in pieces of random lengths, without regard to where one ends."""
    whole = np.concatenate(media)
    at = 0
    while at < len(whole):
        n = int(rng.integers(1, 700))
        yield whole[at : at + n]
        at += n


@cache
def expected(folder: Path, grid: Grid, seed: int = 0) -> tuple[npt.NDArray[np.float64], float]:
    """What the float64 reference makes of `patches_of`, and how far a tower may be from it."""
    exact, narrow = reference(folder), reference(folder, np.float32)
    patches = patches_of(grid, exact.w["patch_embed.proj.weight"][0].size, seed)
    out = exact.forward(patches, grid)
    return out, FACTOR * float(np.abs(narrow.forward(patches, grid) - out).max())
