"""The golden cases of the tiny checkpoint: what their media take of the prompt, and their videos' patches."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.seen import GOLDEN, prepared
from tokenizers import Tokenizer

TINY = Path(__file__).parents[1] / "tiny"
RECORDED = json.loads((TINY.parent / "data" / "media_transformers.json").read_text())["videos"]


def test_there_are_golden_cases_with_media() -> None:
    assert len(GOLDEN) == 20 and len(RECORDED) == 4


@pytest.mark.parametrize("case", GOLDEN.values(), ids=GOLDEN)
def test_a_golden_prompt_has_the_grids_pads_and_times_of_its_media(case: dict[str, Any]) -> None:
    made = prepared(case)
    assert [list(media.grid) for media in made] == case["grid_thw"]
    tokenizer = Tokenizer.from_file(str(TINY / "hf" / "tokenizer.json"))
    prompt = tokenizer.decode(case["prompt_ids"], skip_special_tokens=False)
    at = 0
    for media in made:
        pad = "<|image_pad|>" if media.kind == "image" else "<|video_pad|>"
        text = "".join(f"{text}<|vision_start|>{pad * n}<|vision_end|>" for text, n in media.spans())
        if case["video_markers"] == "nested":
            text = f"<|vision_start|>{text}<|vision_end|>"
        assert text in prompt[at:]
        at = prompt.index(text, at) + len(text)
    assert prompt.count("_pad|>") == sum(media.n_tokens for media in made)
    # Media text is tokenized with what stands around it.
    assert tokenizer.encode(prompt, add_special_tokens=False).ids == case["prompt_ids"]


@pytest.mark.parametrize("name", RECORDED)
def test_a_golden_video_has_the_patches_that_transformers_makes(name: str) -> None:
    (media,) = prepared(GOLDEN[name])
    digest = hashlib.sha256(media.patches().tobytes()).hexdigest()
    assert {"grid": list(media.grid), "sha256": digest} == RECORDED[name]
