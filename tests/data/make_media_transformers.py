"""Record what transformers' processors make of pictures: python tests/data/make_media_transformers.py

Needs the extra `processors`. Writes media_transformers.json: grid and SHA-256 of the float32 patches of each
picture of tests/tiny/media and of each golden video's frames, under the rules of the tiny checkpoint, and of
pictures of noise (`noise`, tests/support/media_files.py) under the published ones.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from support.media_files import HALF, NOISE, noise  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (  # noqa: E402
    Qwen2VLImageProcessorPil,
)
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor  # noqa: E402

TINY = HERE.parent / "tiny"


def _entry(values: Any, grid: Any) -> dict[str, Any]:
    digest = hashlib.sha256(np.ascontiguousarray(values, np.float32).tobytes()).hexdigest()
    return {"grid": [int(n) for n in grid], "sha256": digest}


def main() -> None:
    config = json.loads((TINY / "hf" / "preprocessor_config.json").read_text())
    tiny = Qwen2VLImageProcessorPil(size=config["size"], **HALF)
    real = Qwen2VLImageProcessorPil(size={"shortest_edge": 65536, "longest_edge": 16777216}, **HALF)
    out: dict[str, Any] = {"tiny": {}, "noise": {}, "videos": {}}
    for path in sorted((TINY / "media").glob("*.png")):
        got = tiny(images=[Image.open(path)], return_tensors="np")
        out["tiny"][path.name] = _entry(got["pixel_values"], got["image_grid_thw"][0])
    for name in NOISE:
        got = real(images=[Image.open(io.BytesIO(noise(name)))], return_tensors="np")
        out["noise"][name] = _entry(got["pixel_values"], got["image_grid_thw"][0])
    config = json.loads((TINY / "hf" / "video_preprocessor_config.json").read_text())
    video = Qwen3VLVideoProcessor(size=config["size"], cap_pixels_per_frame=False, **HALF)
    for line in (TINY / "golden.jsonl").read_text().splitlines():
        case = json.loads(line)
        if case["video_markers"] != "flat":
            continue
        part = next(p for m in case["messages"] for p in m["content"] if isinstance(p, dict) and "video" in p)
        frames = np.stack([np.asarray(Image.open(TINY / name).convert("RGB")) for name in part["video"]])
        got = video(videos=[frames.transpose(0, 3, 1, 2)], do_sample_frames=False, return_tensors="np")
        out["videos"][case["id"]] = _entry(got["pixel_values_videos"], got["video_grid_thw"][0])
    (HERE / "media_transformers.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
