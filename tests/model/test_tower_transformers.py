"""The core's vision tower against transformers' own, on the weights of the tiny checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `oracle` (torch)")
pytest.importorskip("transformers", reason="needs the extra `oracle` (transformers)")

from flashnext.checkpoint import open_checkpoint  # noqa: E402
from support.random_checkpoint import weights_float64  # noqa: E402
from support.reference.media import patchify  # noqa: E402
from support.towers import Grid, features, open_tower  # noqa: E402
from transformers.models.qwen4_exp import modeling_qwen4_exp as hf  # noqa: E402
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpVisionConfig  # noqa: E402

TINY = Path(__file__).parents[1] / "tiny" / "hf"
GRIDS: tuple[Grid, ...] = ((1, 2, 2), (1, 4, 30), (1, 22, 18), (3, 6, 8), (1, 40, 34))

TOLERANCE = 64 * 2.0**-24
"""Of features as large as the largest one: each of some forty steps in a row is rounded to float32 on both
sides, by the library its frequencies and interpolation weights too, and the layers amplify that little."""


def tower_of_the_library() -> Any:
    vision = open_checkpoint(TINY).config.vision
    assert vision is not None
    config = Qwen4ExpVisionConfig(**vision)
    config._attn_implementation = "eager"
    net = hf.Qwen4ExpVisionModel(config).float().eval()
    weights = {
        k.removeprefix("visual."): v for k, v in weights_float64(TINY).items() if k.startswith("visual.")
    }
    state = {
        name: torch.tensor(weights[name]).float().reshape(x.shape) for name, x in net.state_dict().items()
    }
    net.load_state_dict(state)
    return net


def pictures() -> list[tuple[Grid, Any]]:
    """Smooth frames with noise, normalized as the processors do."""
    out = []
    rng = np.random.default_rng(4)
    for t, h, w in GRIDS:
        y, x = np.mgrid[0 : h * 16, 0 : w * 16] / 16
        size = (2 * t, 3, h * 16, w * 16)
        wave = np.stack([np.sin(x * a + y * b) for a, b in rng.uniform(-1, 1, (3 * 2 * t, 2))]).reshape(size)
        frames = 0.8 * wave + 0.2 * rng.uniform(-1, 1, size)
        patches, grid = patchify(frames.astype(np.float32))
        assert grid == (t, h, w)
        out.append((grid, patches))
    return out


def test_features_equal_those_of_the_library_up_to_rounding() -> None:
    net, media = tower_of_the_library(), pictures()
    ours = features(open_tower(TINY), GRIDS, [patches for _, patches in media])
    for (grid, patches), found in zip(media, ours, strict=True):
        with torch.no_grad():
            theirs = net(torch.tensor(patches), grid_thw=torch.tensor([grid])).pooler_output.numpy()
        assert found.shape == theirs.shape
        assert np.abs(found - theirs).max() < TOLERANCE * np.abs(theirs).max(), grid
