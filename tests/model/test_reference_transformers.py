"""The numpy reference against transformers itself, live; recorded samples of the same are in tests/data."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `oracle` (torch)")
transformers = pytest.importorskip("transformers", reason="needs the extra `oracle` (transformers)")

from support.reference import media  # noqa: E402
from support.reference_cases import CASES, Case, reference_results, text_model, tolerance  # noqa: E402
from support.transformers_oracle import (  # noqa: E402
    build,
    expected,
    expected_draft,
    expected_in_chunks,
    float64_islands,
    rope_index,
)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_reference_equals_transformers_in_float64(case: Case) -> None:
    weights = case.weights()
    model = text_model(case, weights)
    ours, streams = reference_results(case, model, weights)
    with float64_islands():
        net = build(case, weights, model.rope.inv_freq)
        theirs = expected(case, net)
        if not case.media:
            theirs["draft logits"] = expected_draft(case, net, weights, streams)
        if not case.media and not case.axes:
            theirs["logits in chunks"] = expected_in_chunks(case.inputs(), net)
    ours["logits in chunks"] = ours["logits"]
    for name, values in theirs.items():
        assert np.abs(ours[name] - values).max() < tolerance(case), name
    assert net.model.language_model.rotary_emb.attention_scaling == pytest.approx(
        model.rope.attention_factor, rel=1e-12
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_reference_equals_transformers_as_shipped_up_to_its_float32_parts(case: Case) -> None:
    weights = case.weights()
    model = text_model(case, weights)
    ours, _ = reference_results(case, model, weights)
    theirs = expected(case, build(case, weights, None))
    # 2^-24 in each frequency, norm, softmax and recurrence step; the layers amplify it less than a
    # thousandfold.
    assert np.abs(ours["logits"] - theirs["logits"]).max() < 1000 * 2.0**-24


def _rule(path: str, name: str) -> Any:
    """A function of an installed module that cannot be imported without torchvision, taken out of its
    source."""
    source = Path(transformers.__file__).parent / "models" / path
    tree = ast.parse(source.read_text())
    node = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    node.decorator_list, node.returns = [], None
    for argument in node.args.args:
        argument.annotation = None
    scope: dict[str, Any] = {"math": math, "np": np, "torch": torch}
    exec(compile(ast.fix_missing_locations(ast.Module([node], [])), path, "exec"), scope)
    return scope[name]


IMAGE_RULES = "qwen2_vl/image_processing_qwen2_vl.py"
VIDEO_RULES = "qwen3_vl/video_processing_qwen3_vl.py"


def test_sizes_equal_those_of_the_processors() -> None:
    rng = np.random.default_rng(1)
    image, video = _rule(IMAGE_RULES, "smart_resize"), _rule(VIDEO_RULES, "smart_resize")
    for _ in range(3000):
        h, w = (int(x) for x in np.exp(rng.uniform(np.log(8), np.log(9000), 2)))
        if max(h, w) / min(h, w) < 200:
            frames = int(rng.integers(2, 800))
            assert media.smart_resize_image(h, w) == image(h, w, 32, 65536, 16777216)
            assert media.smart_resize_video(frames, h, w) == video(frames, h, w, 2, 32, 4096, 25165824)


def test_patches_equal_those_of_the_processors() -> None:
    frames = np.random.default_rng(2).standard_normal((5, 3, 64, 96))
    patches, grid = media.patchify(frames)
    theirs = _rule(VIDEO_RULES, "patchify")(None, torch.tensor(frames)[None], 16, 2, 2)
    assert np.array_equal(patches, theirs[0][0].numpy()) and grid == tuple(theirs[1:])
    theirs = _rule(IMAGE_RULES, "patchify")(None, torch.tensor(frames[:1]), 16, 2, 2)
    assert np.array_equal(media.patchify(frames[:1])[0], theirs[0][0].numpy())


def test_frames_and_their_times_equal_those_of_the_processors() -> None:
    class Sampler:
        fps, min_frames, max_frames = 2.0, 4, 768
        total_num_frames = 0

    rng = np.random.default_rng(3)
    sample, stamps = (
        _rule(VIDEO_RULES, "sample_frames"),
        _rule("qwen3_vl/processing_qwen3_vl.py", "_calculate_timestamps"),
    )
    for _ in range(300):
        about = Sampler()
        about.total_num_frames, about.fps = (
            int(rng.integers(1, 40000)),
            float(rng.choice([23.976, 25, 29.97, 60])),
        )
        frames = media.sample_frames(about.total_num_frames, about.fps)
        assert np.array_equal(frames, sample(Sampler, about))
        ours = media.frame_timestamps(frames.tolist(), about.fps)
        assert np.allclose(stamps(None, frames.copy(), about.fps), ours, atol=1e-12)


def test_rotary_positions_equal_those_of_the_library() -> None:
    kinds = [0] * 5 + [1] * 15 + [0] * 4 + [2] * 6 + [0] * 3 + [2] * 6 + [0] * 7
    theirs, their_delta = rope_index(kinds, [(1, 6, 10)], [(2, 4, 6)])
    positions, delta = media.rope_index(kinds, [(1, 6, 10)], [(2, 4, 6)])
    assert np.array_equal(positions.T, theirs) and delta == their_delta
