"""What a checkpoint holds, in numbers that a person or a program can read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flashnext.checkpoint.affine import Affine
from flashnext.checkpoint.config import ModelConfig
from flashnext.checkpoint.names import Kind, model_specs

TABLE = "n-gram table"
"""The part whose rows are looked up, a few a token."""

_PARTS = (
    ("draft head", re.compile(r"mtp\.")),
    ("vision tower", re.compile(r"visual\.")),
    ("embedding", re.compile(r"embed_tokens\.")),
    ("output head", re.compile(r"lm_head\.")),
    (TABLE, re.compile(r"layers\.\d+\.ple\.ple_embedding\.")),
    ("n-gram projections", re.compile(r"layers\.\d+\.ple\.")),
    ("hyper-connections", re.compile(r"(layers\.\d+\.\w+_)?hyper_connection")),
    ("attention", re.compile(r"layers\.\d+\.self_attn\.")),
    ("DeltaNet", re.compile(r"layers\.\d+\.linear_attn\.")),
    ("routers", re.compile(r"layers\.\d+\.mlp\.gate\.")),
    ("routed experts", re.compile(r"layers\.\d+\.mlp\.experts\.")),
    ("shared experts", re.compile(r"layers\.\d+\.mlp\.shared_expert")),
)


@dataclass
class Part:
    """A part of a model: its values (integer constants aside), bytes as stored, and storage of matrices."""

    values: int = 0
    size_bytes: int = 0
    storage: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Summary:
    """What `flashnext inspect` shows; `parts` is in the order of the model."""

    path: str
    layout: str
    files: int
    size_bytes: int
    values: int
    n_layers: int
    n_attention_layers: int
    hidden_size: int
    vocab_size: int
    n_experts: int
    top_k: int
    context: int
    largest_context: int
    rope_type: str
    norms: str
    draft_head: bool
    vision_tower: bool
    stop_tokens: tuple[int, ...]
    segment_token: int
    parts: Mapping[str, Part]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Turn the summary into JSON types."""
        out = asdict(self)
        for part in out["parts"].values():
            part["storage"] = sorted(part["storage"])
        return out


def part_of(name: str) -> str:
    """Which part of the model a canonical tensor belongs to."""
    return next(part for part, pattern in _PARTS if pattern.match(name))


def summarize_parts(
    config: ModelConfig, sizes: Mapping[str, int], dtypes: Mapping[str, str], affine: Mapping[str, Affine]
) -> dict[str, Part]:
    """Values, bytes and storage by part.

    Args:
        config: The model's sizes.
        sizes: Bytes of each canonical tensor.
        dtypes: Dtype of each canonical tensor.
        affine: Bits and group of the quantized modules.
    """
    parts: dict[str, Part] = {}
    for spec in model_specs(config):
        if spec.name not in sizes:
            continue
        part = parts.setdefault(part_of(spec.name), Part())
        if spec.kind is not Kind.CONSTANT:
            part.values += math.prod(spec.shape)
        module = spec.name.removesuffix(".weight")
        for name in (spec.name, f"{module}.scales", f"{module}.biases"):
            part.size_bytes += sizes.get(name, 0)
        if module in affine:
            part.storage.add(str(affine[module]))
        elif spec.kind in (Kind.MATRIX, Kind.ROUTER, Kind.VISION):
            part.storage.add(dtypes[spec.name])
    return parts
