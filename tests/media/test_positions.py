"""Rotary positions of prompts with media, against the reference, and against transformers, live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.errors import InvalidArgument
from flashnext.media.positions import IMAGE, TEXT, VIDEO, Grid, find_spans, positions, rope_index
from support.reference import media as reference

TINY = Path(__file__).parents[1] / "tiny"


def _prompt(seed: int) -> tuple[list[int], list[Grid], list[Grid]]:
    """Kinds and grids of a prompt; media may stand first, and be thin. Between media there is text."""
    rng = np.random.default_rng(seed)
    kinds: list[int] = []
    images: list[Grid] = []
    videos: list[Grid] = []
    for _ in range(rng.integers(0, 6)):
        kinds += [TEXT] * int(rng.integers(0 if not kinds else 1, 9))
        h, w = (2 * int(n) for n in rng.integers(1, rng.choice([3, 12]), 2))
        if rng.random() < 0.6:
            images.append((1, h, w))
            kinds += [IMAGE] * (h * w // 4)
        else:
            t = int(rng.integers(1, 4))
            videos.append((t, h, w))
            for i in range(t):
                kinds += [TEXT] * int(rng.integers(2, 7)) * (i > 0) + [VIDEO] * (h * w // 4)
    return kinds + [TEXT] * int(rng.integers(1, 9)), images, videos


@pytest.mark.parametrize("seed", range(200))
def test_positions_equal_the_reference(seed: int) -> None:
    kinds, images, videos = _prompt(seed)
    expected, delta = reference.rope_index(kinds, images, videos)
    found, ours = rope_index(kinds, images, videos)
    assert found.dtype == np.int32 and found.shape == (len(kinds), 3)
    assert np.array_equal(found, expected.T) and ours == delta
    assert ours <= 0 and (found <= np.arange(len(kinds))[:, None]).all()  # what the core asks for
    # What stands behind them moves no row.
    spans = find_spans(kinds, images, videos)
    for i, span in enumerate(spans):
        assert np.array_equal(positions(span.end, spans[: i + 1])[0], found[: span.end])


def test_text_stands_at_its_rows() -> None:
    found, delta = rope_index([TEXT] * 9)
    assert delta == 0 and (found == np.arange(9)[:, None]).all()
    assert rope_index([])[0].shape == (0, 3)


def test_spans_say_which_features_they_show() -> None:
    kinds = [TEXT, *[IMAGE] * 6, TEXT, *[VIDEO] * 2, TEXT, *[VIDEO] * 2, *[IMAGE] * 1, TEXT]
    spans = find_spans(kinds, [(1, 4, 6), (1, 2, 2)], [(2, 2, 4)])
    assert [(s.start, s.end, s.kind, s.index, s.first) for s in spans] == [
        (1, 7, IMAGE, 0, 0), (8, 10, VIDEO, 0, 0), (11, 13, VIDEO, 0, 2), (13, 14, IMAGE, 1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "images", "videos", "complaint"),
    [
        ([0, 1, 0], [], [], "the pad at row 1 of the prompt has no image that it shows"),
        ([0, 2, 0], [(1, 2, 2)], [], "the pad at row 1 of the prompt has no video that it shows"),
        ([0, 1, 1, 0], [(1, 2, 6)], [], "image 0 of the prompt takes 1 x 3 pads .* row 1 is the first"),
        ([0, 1, 1], [(1, 2, 6)], [], "image 0 of the prompt takes 1 x 3 pads"),
        ([0, 1, 2, 0], [(1, 2, 4)], [(1, 2, 2)], "image 0 of the prompt takes 1 x 2 pads"),
        ([0, 1, 0], [(1, 2, 2), (1, 2, 2)], [], "image 1 has no pads in the prompt"),
        ([0, 2, 0], [], [(2, 2, 2)], "video 0 has no pads in the prompt, or too few"),
    ],
)
def test_pads_that_do_not_fit_are_refused(
    kinds: list[int], images: list[Grid], videos: list[Grid], complaint: str
) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        find_spans(kinds, images, videos)


@pytest.mark.parametrize("seed", range(20))
def test_positions_equal_transformers(seed: int) -> None:
    pytest.importorskip("torch", reason="needs the extra `oracle` (torch)")
    pytest.importorskip("transformers", reason="needs the extra `oracle` (transformers)")
    from support.transformers_oracle import rope_index as theirs

    kinds, images, videos = _prompt(seed)
    expected, delta = theirs(kinds, images, videos)
    found, ours = rope_index(kinds, images, videos)
    assert np.array_equal(found, expected) and ours == delta


GOLDEN: list[dict[str, Any]] = [
    case
    for case in map(json.loads, (TINY / "golden.jsonl").read_text().splitlines())
    if case["grid_thw"] is not None
]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["id"])
def test_golden_prompts_have_as_many_pads_as_their_media_take(case: dict[str, Any]) -> None:
    config = json.loads((TINY / "hf" / "config.json").read_text())
    ids = np.array(case["prompt_ids"])
    kinds = (ids == config["image_token_id"]) * IMAGE + (ids == config["video_token_id"]) * VIDEO
    grids = [tuple(grid) for grid in case["grid_thw"]]
    images, videos = ([], grids) if case["video_markers"] else (grids, [])
    expected, delta = reference.rope_index(kinds.tolist(), images, videos)
    found, ours = rope_index(kinds, images, videos)
    assert np.array_equal(found, expected.T) and ours == delta < 0
