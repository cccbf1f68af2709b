"""The vision tower on the Metal kernels, on the metal-host device with every access checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flashnext import _core as core
from support.metal_engine import has_metal_host
from support.towers import Float32, Grid, expected, features, open_tower, patches_of, write_tower

pytestmark = has_metal_host

GRIDS: tuple[Grid, ...] = ((1, 2, 2), (2, 4, 6), (1, 14, 10))  # below, at and beyond a tile and a span


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tower(tmp_path_factory.mktemp("tower") / "hf")


def _features(folder: Path, order: str, grids: tuple[Grid, ...], room: int) -> list[Float32]:
    device = core.open_device("metal-host", 0, order, shuffle_seed=3)
    tower = open_tower(folder, device, room)
    return features(tower, grids, [patches_of(grid, 96) for grid in grids])


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Float32]:
    """Features of each of GRIDS in a pass of its own."""
    return [_features(folder, "forward, unchecked", (grid,), 256)[0] for grid in GRIDS]


@pytest.mark.parametrize("order", ["random", "reverse"])
def test_with_every_access_checked_features_in_company_are_those_alone_and_the_references(
    folder: Path, alone: list[Float32], order: str
) -> None:
    backwards = _features(folder, order, GRIDS[::-1], 192)[::-1]
    for grid, found, lone in zip(GRIDS, backwards, alone, strict=True):
        assert found.tobytes() == lone.tobytes(), grid
        exact, bound = expected(folder, grid)
        assert np.abs(found - exact).max() <= bound, grid
