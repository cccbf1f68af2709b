"""Images against transformers' own processor, live."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from flashnext.media import ImagePart, ImageRule, Limits, Rules, prepare
from PIL import Image, ImageOps
from support.media_files import HALF, Picture, corpus

pytest.importorskip("torch", reason="needs the extra `oracle` (torch)")
pytest.importorskip("transformers", reason="needs the extra `oracle` (transformers)")

from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
)

SEED = 20261201


def _theirs(picture: Picture, processor: Any) -> Any:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(picture.data)))
    assert image is not None
    if image.mode.startswith("I;16"):  # whose levels over 255 they cut off: we keep the high bits
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return processor(images=[image], return_tensors="np")


@pytest.mark.parametrize(
    ("n", "low", "high"), [(200, 65_536, 16_777_216), (40, 4_096, 25_600)], ids=["published", "tiny"]
)
def test_images_of_all_sizes_and_modes_equal_the_processors_bit_for_bit(n: int, low: int, high: int) -> None:
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": low, "longest_edge": high}, **HALF)
    rules = Rules(image=ImageRule(min_pixels=low, max_pixels=high))
    differ = []
    for picture in corpus(n, SEED):
        theirs = _theirs(picture, processor)
        ours = prepare(ImagePart(picture.data), rules, Limits())
        same = np.array_equal(ours.patches(), theirs["pixel_values"])
        if not same or list(ours.grid) != theirs["image_grid_thw"][0].tolist():
            differ.append(picture.name)
    assert differ == [], f"seed {SEED}"
