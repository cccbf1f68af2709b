"""Patches equal, bit for bit, those that transformers' processors were recorded to make."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.media import ImagePart, Limits, Media, Rules, prepare, read_rules
from support.media_files import NOISE, noise

ROOT = Path(__file__).parents[1]
RECORDED: dict[str, Any] = json.loads((ROOT / "data" / "media_transformers.json").read_text())
TINY = read_rules(ROOT / "tiny" / "hf")


def _entry(media: Media) -> dict[str, Any]:
    values = media.patches()
    assert values.dtype == np.float32
    return {"grid": list(media.grid), "sha256": hashlib.sha256(values.tobytes()).hexdigest()}


@pytest.mark.parametrize("name", RECORDED["tiny"])
def test_a_picture_of_the_golden_cases_has_the_recorded_patches(name: str) -> None:
    part = ImagePart((ROOT / "tiny" / "media" / name).read_bytes())
    assert _entry(prepare(part, TINY, Limits())) == RECORDED["tiny"][name]


@pytest.mark.parametrize("name", NOISE)
def test_a_picture_that_is_resized_has_the_recorded_patches(name: str) -> None:
    assert _entry(prepare(ImagePart(noise(name)), Rules(), Limits())) == RECORDED["noise"][name]
