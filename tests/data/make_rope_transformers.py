"""Remakes rope_transformers.json.gz, the rotary frequencies that transformers computes (extra `oracle`).

    python tests/data/make_rope_transformers.py

Each case is a text_config, as transformers' own class reads it, with the frequencies' bit patterns and the
attention factor.
"""

from __future__ import annotations

import copy
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextRotaryEmbedding

REAL = {"head_dim": 256, "max_position_embeddings": 262144}
TINY = {"head_dim": 64, "max_position_embeddings": 8192}


def rope(theta: float, partial: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": partial} | more


def yarn(theta: float, partial: float, **more: Any) -> dict[str, Any]:
    return rope(theta, partial) | {"rope_type": "yarn", "factor": 4.0} | more


def cases() -> dict[str, dict[str, Any]]:
    real, tiny = (1e7, 0.25), (100000, 0.5)
    named: dict[str, dict[str, Any]] = {
        "real": REAL | {"rope_parameters": rope(*real)},
        "tiny": TINY | {"rope_parameters": rope(*tiny)},
        "real yarn": REAL | {"rope_parameters": yarn(*real, original_max_position_embeddings=262144)},
        "real yarn, window set": REAL
        | {"max_position_embeddings": 1010000}
        | {"rope_parameters": yarn(*real, original_max_position_embeddings=262144)},
        "tiny yarn": TINY | {"rope_parameters": yarn(*tiny)},
        "factor 2": REAL | {"rope_parameters": yarn(*real, factor=2)},
        "factor 1": REAL | {"rope_parameters": yarn(*real, factor=1.0)},
        "factor 40": REAL | {"rope_parameters": yarn(*real, factor=40.0)},
        "betas": REAL | {"rope_parameters": yarn(*real, beta_fast=16, beta_slow=2.5)},
        "zero betas": REAL | {"rope_parameters": yarn(*real, beta_fast=0, beta_slow=0)},
        "equal betas": REAL | {"rope_parameters": yarn(*real, beta_fast=8, beta_slow=8, truncate=False)},
        "attention factor": REAL | {"rope_parameters": yarn(*real, attention_factor=1.25)},
        "mscale": REAL | {"rope_parameters": yarn(*real, mscale=0.707, mscale_all_dim=1.0)},
        "mscale alone": REAL | {"rope_parameters": yarn(*real, mscale=0.707)},
        "not truncated": REAL | {"rope_parameters": yarn(*real, truncate=False)},
        "old spelling": REAL | {"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_theta": 1e7}
        | {"partial_rotary_factor": 0.25},
        "outer original": REAL
        | {"original_max_position_embeddings": 65536, "rope_parameters": yarn(*real)},
        "no factor": REAL
        | {"rope_parameters": yarn(*real, factor=None, original_max_position_embeddings=65536)},
        "short window": TINY | {"max_position_embeddings": 40, "rope_parameters": yarn(1e4, 0.5)},
    }  # fmt: skip
    thetas = (1e4, 123456.0, 5e5, 1e6, 5e6, 1e8)
    for theta, head_dim, kind in itertools.product(thetas, (32, 96, 128, 256), (rope, yarn)):
        named[f"sweep {kind.__name__} {theta:g} {head_dim}"] = {
            "head_dim": head_dim, "max_position_embeddings": 32768, "rope_parameters": kind(theta, 0.5),
        }  # fmt: skip
    return named


def main() -> None:
    out = {}
    for name, text in cases().items():
        config = Qwen4ExpTextConfig(**copy.deepcopy(text))
        module = Qwen4ExpTextRotaryEmbedding(config)
        bits = module.inv_freq.view(torch.int32).tolist()
        out[name] = {"text_config": text, "bits": bits, "attention_factor": float(module.attention_scaling)}
    made_with = {"transformers": transformers.__version__, "torch": torch.__version__.partition("+")[0]}
    compact = json.JSONEncoder(separators=(",", ":")).encode
    lines = ",\n".join(f"{compact(name)}:{compact(case)}" for name, case in out.items())
    content = f'{{"made_with": {json.dumps(made_with)},\n"cases": {{\n{lines}\n}}}}\n'
    packed = gzip.compress(content.encode(), 9, mtime=0)
    Path(__file__).with_name("rope_transformers.json.gz").write_bytes(packed)


if __name__ == "__main__":
    main()
