"""Random checkpoints of both layouts, made once, and copies that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.random_checkpoint import write_random


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {layout: write_random(root / layout, seed=1, layout=layout) for layout in ("hf", "mlx")}


@pytest.fixture
def hf(originals: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(originals["hf"], tmp_path / "hf")


@pytest.fixture
def mlx(originals: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(originals["mlx"], tmp_path / "mlx")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_random(tmp_path / "sharded", shard_bytes=100_000)
