from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.metal_file import MetalFile

collect_ignore = [] if os.environ.get("FLASHNEXT_FULL") else ["test_full.py"]


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture
def metal_file(tmp_path: Path, runtime: Path) -> MetalFile:
    return MetalFile(tmp_path, runtime)
