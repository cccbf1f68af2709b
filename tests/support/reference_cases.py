"""Seeded random models and inputs on which the reference is compared with transformers, live or with recorded
values."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flashnext.checkpoint import ModelConfig, parse_config
from flashnext.checkpoint.names import Kind, mtp_specs, text_specs, vision_specs
from flashnext.checkpoint.quantize import bf16_to_float32

from support.random_checkpoint import SMALL_VISION as VISION
from support.random_checkpoint import random_config, random_tensor
from support.reference.decoder import LayerState
from support.reference.media import rope_index
from support.reference.mtp import DraftHead
from support.reference.primitives import Array
from support.reference.text import TextModel
from support.reference.vision import VisionTower

SEED = 20261129
ROWS = 70
EOS_ROWS = (9, 10, 31, 52)  # n-gram segments end inside the input
CUTS = (21, 47, 48, 49, 50)  # where the chunked forward is cut; single rows among them
IMAGE, VIDEO = 200, 201  # placeholder ids of the media case
IMAGE_GRID, VIDEO_GRID = (1, 4, 6), (2, 4, 4)
PATCH_VALUES = 3 * 2 * 4 * 4


@dataclass(frozen=True)
class Case:
    """One model and what is asked of it.

    Attributes:
        text: Overrides of the random checkpoint's text_config.
        axes: Whether the three rotary axes differ.
        media: Whether the input holds an image and a video, seen by the tower.
    """

    name: str
    text: Mapping[str, Any] = field(default_factory=dict)
    axes: bool = False
    media: bool = False

    @property
    def raw_config(self) -> dict[str, Any]:
        """A config.json, with the vision tower's sizes."""
        tokens = {
            "image_token_id": IMAGE,
            "video_token_id": VIDEO,
            "vision_start_token_id": 202,
            "vision_end_token_id": 203,
        }
        return random_config(self.text, VISION) | tokens

    @property
    def config(self) -> ModelConfig:
        return parse_config(self.raw_config)

    def weights(self) -> dict[str, Array]:
        """Every float tensor by canonical name, float64."""
        config = self.config
        out: dict[str, Array] = {}
        for spec in [*text_specs(config), *mtp_specs(config)]:
            if spec.kind not in (Kind.CONSTANT, Kind.SCALE):
                values = bf16_to_float32(random_tensor(spec, config, SEED)).astype(np.float64)
                out[spec.name] = values.reshape(spec.shape)
        for spec in vision_specs(config):
            rng = np.random.default_rng([SEED, zlib.crc32(spec.name.encode())])
            scale = 1.5 / math.sqrt(math.prod(spec.shape[1:])) if len(spec.shape) > 1 else 0.3
            out[spec.name] = rng.standard_normal(spec.shape) * scale
        return out

    def inputs(self) -> Inputs:
        rng = np.random.default_rng([SEED, zlib.crc32(self.name.encode())])
        if self.media:
            return _media_inputs(rng)
        tokens = rng.integers(0, self.config.vocab_size, ROWS)
        tokens[list(EOS_ROWS)] = self.config.segment_token
        row = np.arange(ROWS)
        axes = [row, row // 2 + 3, (row * 3) % 11 + row // 3] if self.axes else [row, row, row]
        return Inputs(tokens, np.stack(axes))


@dataclass(frozen=True)
class Inputs:
    """Tokens (T,), rotary positions (3, T), token kinds (T,) and the patches of an image and a video."""

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64] | None = None
    image: Array | None = None
    video: Array | None = None


def _media_inputs(rng: np.random.Generator) -> Inputs:
    tokens: list[int] = []
    kinds: list[int] = []
    parts = (
        ([3, 4, 9, 7, 11, 202], 0), ([IMAGE] * 6, 1), ([203, 5, 6, 202], 0), ([VIDEO] * 4, 2),
        ([203, 8, 202], 0), ([VIDEO] * 4, 2), ([203, 12, 7, 14, 15], 0),
    )  # fmt: skip
    for ids, kind in parts:
        tokens, kinds = tokens + ids, kinds + [kind] * len(ids)
    positions, _ = rope_index(kinds, [IMAGE_GRID], [VIDEO_GRID])
    image, video = (rng.standard_normal((math.prod(grid), PATCH_VALUES)) for grid in (IMAGE_GRID, VIDEO_GRID))
    return Inputs(np.array(tokens), positions, np.array(kinds), image, video)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
CASES = {
    case.name: case
    for case in (
        Case("two n-gram layers", {"num_hidden_layers": 8, "ple_layer_ids": [2, 5]}),
        Case("axes", {"ple_layer_ids": [1]}, axes=True),
        Case("attention first, silu gate, two streams", {
            "layer_types": ["full_attention", "linear_attention", "full_attention"], "num_hidden_layers": 3,
            "output_gate_type": "silu", "hc_count": 2, "indexer_compress_ratio": 8,
        }),
        Case("yarn", {"rope_parameters": YARN, "max_position_embeddings": 128, "ple_layer_ids": []}),
        Case("image and video", media=True),
    )
}  # fmt: skip


def text_model(case: Case, weights: Mapping[str, Array], dtype: npt.DTypeLike = np.float64) -> TextModel:
    """The reference of a case."""
    return TextModel(
        case.config, {k: w for k, w in weights.items() if not k.startswith(("mtp.", "visual."))}, dtype
    )


# Both sides compute in float64 and differ in the order of sums only; 70 rows through at most 8 layers were
# seen to move a logit by 7e-14. A fault moves it by more than 1e-4.
FLOAT64_ERROR = 1e-11
# The library's tower interpolates its position table with float32 weights even so: 2^-24 each, which the
# tower and the layers after it amplify less than a hundredfold.
INTERPOLATION_ERROR = 100 * 2.0**-24


def tolerance(case: Case) -> float:
    """Most that a value of transformers may differ from the reference's."""
    return INTERPOLATION_ERROR if case.media else FLOAT64_ERROR


def reference_results(
    case: Case, model: TextModel, weights: Mapping[str, Array]
) -> tuple[dict[str, Array], Array]:
    """What the reference makes of a case.

    Returns:
        Rows of `logits`, of the draft head's `draft logits` and, of a media case, of the tower's `features`;
        and the main model's streams.
    """
    given = case.inputs()
    media: dict[int, Array] = {}
    out: dict[str, Array] = {}
    if given.kinds is not None:
        assert given.image is not None and given.video is not None
        tower = VisionTower(
            VISION, {k: w for k, w in weights.items() if k.startswith("visual.")}, model.dtype
        )
        features = np.concatenate(
            [tower.forward(given.image, IMAGE_GRID), tower.forward(given.video, VIDEO_GRID)]
        )
        media = dict(zip(np.flatnonzero(given.kinds).tolist(), features, strict=True))
        out["features"] = features
    rows = model.forward(given.tokens, model.new_state(), given.positions, media)
    out["logits"] = model.logits(rows.hidden)
    head = DraftHead(model, {k: w for k, w in weights.items() if k.startswith("mtp.")})
    draft, _ = head.forward(rows.streams[:-1], given.tokens[1:], LayerState(), given.positions[:, :-1])
    out["draft logits"] = draft
    return out, rows.streams
