"""Limits, details and rules: what they allow, and how they are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.errors import CheckpointError, InvalidArgument
from flashnext.media import (
    FramesPart,
    ImagePart,
    ImageRule,
    Limits,
    MediaError,
    Rules,
    VideoPart,
    VideoRule,
    check_counts,
    count_tokens,
    read_rules,
)
from PIL import Image
from support.media_files import encoded, pixels

ROOT = Path(__file__).parents[2]
PICTURE = encoded(Image.fromarray(pixels(np.random.default_rng(0), 1024, 1024)), "PNG")


def _tokens(detail: Any = "auto", **limits: Any) -> int:
    return count_tokens(ImagePart(PICTURE, detail), Rules(), Limits(**limits))


def test_detail_low_makes_an_image_small_and_the_others_leave_it_to_the_setting() -> None:
    assert _tokens() == _tokens("high") == 1024
    assert _tokens("low") == 256
    for detail in ("auto", "high"):
        assert _tokens(detail, image_tokens=400) == 400
    assert _tokens("low", image_tokens=400) == 256
    assert _tokens("low", image_tokens=100) == 100
    with pytest.raises(MediaError, match="low, high, auto, found 'fine'"):
        _tokens("fine")


def test_the_setting_only_makes_images_smaller() -> None:
    assert _tokens(image_tokens=10**6) == 1024


def test_too_many_parts_are_refused_with_the_numbers() -> None:
    image, video, frames = ImagePart(b""), VideoPart(b""), FramesPart((), 1.0)
    limits = Limits(max_images=2, max_videos=1)
    check_counts([image, video, image], limits)
    with pytest.raises(MediaError, match=r"media part 3: the request has 3 images; at most 2 are allowed"):
        check_counts([image, video, image, image], limits)
    with pytest.raises(MediaError, match=r"media part 1: the request has 2 videos; at most 1 are allowed"):
        check_counts([video, frames, image], limits)
    with pytest.raises(MediaError, match="1 images; at most 0"):
        check_counts([image], Limits(max_images=0))


@pytest.mark.parametrize("field", ["image_tokens", "image_pixels", "video_s", "video_work"])
def test_a_limit_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{field} must be at least 1, found 0"):
        Limits(**{field: 0})


def test_the_rules_of_the_tiny_checkpoint_are_read() -> None:
    for folder in ("tests/tiny/hf", "python/flashnext/data/tiny-6bit"):
        rules = read_rules(ROOT / folder)
        assert rules.image == ImageRule(min_pixels=4096, max_pixels=25600)
        assert rules.video == VideoRule(max_pixels=204800, min_frames=2, max_frames=16)


def _written(folder: Path, name: str, value: Any) -> Path:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def test_without_files_the_published_rules_hold(tmp_path: Path) -> None:
    rules = read_rules(tmp_path)
    assert rules == Rules()
    assert (rules.image.min_pixels, rules.image.max_pixels) == (65_536, 16_777_216)
    assert (rules.video.min_pixels, rules.video.max_pixels, rules.video.frame_tokens) == (
        4_096,
        25_165_824,
        None,
    )


def test_a_nested_file_counts_first_and_old_names_are_known(tmp_path: Path) -> None:
    _written(tmp_path, "preprocessor_config.json", {"min_pixels": 2048, "max_pixels": 9999})
    assert read_rules(tmp_path).image == ImageRule(min_pixels=2048, max_pixels=9999)
    video = {"fps": 1, "cap_pixels_per_frame": True, "max_video_tokens": 12, "image_mean": [0, 0, 0]}
    _written(
        tmp_path, "processor_config.json", {"image_processor": {"patch_size": 14}, "video_processor": video}
    )
    assert read_rules(tmp_path).image == ImageRule(patch=14)
    assert read_rules(tmp_path).video == VideoRule(fps=1.0, frame_tokens=12, mean=(0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "preprocessor_config.json cannot be read"),
        ("[]", "must be a JSON object"),
        ("[" * 100_000, "cannot be read"),
        ({"patch_size": 0}, "patch_size must be a whole number from 1 to 256, found 0"),
        ({"patch_size": 16.0}, "patch_size must be a whole number"),
        ({"patch_size": True}, "patch_size must be a whole number"),
        ({"rescale_factor": "1"}, "rescale_factor must be a number"),
        ({"rescale_factor": float("nan")}, "rescale_factor must be a number"),
        ({"image_mean": [0.5]}, "image_mean must be a list of 3 numbers"),
        ({"image_std": [1, 0, 1]}, "image_std must be a number from 1e-06"),
        ({"resample": 2}, "resample must be 3, which is bicubic, found 2"),
        ({"do_resize": False}, "do_resize must be true"),
        ({"size": {"shortest_edge": 10, "longest_edge": 5}}, "at most size.longest_edge"),
    ],
)
def test_a_rule_that_is_not_followed_here_is_refused_by_name(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_rules(_written(tmp_path, "preprocessor_config.json", value))


def test_a_videos_rule_is_refused_by_name_too(tmp_path: Path) -> None:
    for value, words in (
        ({"fps": 0}, "video preprocessing: fps"),
        ({"min_frames": 900}, "at most max_frames 768"),
    ):
        with pytest.raises(CheckpointError, match=words):
            read_rules(_written(tmp_path, "video_preprocessor_config.json", value))
    with pytest.raises(CheckpointError, match="longer than"):
        read_rules(_written(tmp_path, "video_preprocessor_config.json", " " * (2**20 + 1)))
