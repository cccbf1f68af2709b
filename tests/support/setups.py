"""Random models and inputs on which the engine is compared with the float64 reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flashnext.checkpoint import ModelConfig, open_checkpoint, rope_tables
from flashnext.checkpoint.quantize import bf16_to_float32, float32_to_bf16
from flashnext.engine.frame import Frame

from support.random_checkpoint import weights_float64, write_random
from support.reference.decoder import Store, exact
from support.reference.margins import Margins
from support.reference.primitives import Array
from support.reference.rope import Rope
from support.reference.text import TextModel
from support.seen import drawn, noise


def store_bfloat16(x: Array) -> Array:
    """Round to bfloat16 and back, ties to even."""
    rounded = bf16_to_float32(float32_to_bf16(np.asarray(x, np.float32)))
    return rounded.astype(x.dtype)


@dataclass(frozen=True)
class Setup:
    """A random checkpoint and a sequence for it.

    Attributes:
        overrides: Of the random checkpoint's text_config.
        layout: "hf", or "mlx" with `bits` and `group`.
        rows: Tokens of the sequence; one in twenty ends an n-gram segment.
        modules: Bits and group of single modules of the "mlx" layout.
        media: Whether some rows show images of noise, so that the rotary axes differ.
        seed: Of weights and tokens. Chosen so that no decision of the reference is a near-tie (see `bounds`).
    """

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "hf"
    bits: int = 6
    group: int = 32
    rows: int = 160
    seed: int = 1
    modules: Mapping[str, tuple[int, int] | None] = field(default_factory=dict)
    media: bool = False

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"

    def write(self, folder: Path) -> Path:
        """Write the checkpoint."""
        return write_random(
            folder, self.overrides, self.seed, self.layout, self.bits, self.group, modules=self.modules
        )

    def without_decisions(self) -> Setup:
        """The same model with every expert chosen and every block selected, so that rounding flips
        nothing."""
        experts = self.overrides.get("num_experts", 12)
        wide = {"num_experts_per_tok": experts, "indexer_budget": 1024}
        return Setup(
            f"{self.name}, no decisions", {**self.overrides, **wide}, self.layout, self.bits, self.group,
            self.rows, self.seed, self.modules, self.media,
        )  # fmt: skip


class Oracle:
    """The reference on one setup's checkpoint and tokens."""

    def __init__(self, setup: Setup, path: Path, context: int) -> None:
        self.setup, self.path = setup, path
        self.config: ModelConfig = open_checkpoint(path).config
        inv_freq, factor = rope_tables(self.config, context)
        # The engine's own frequencies and its definition of an angle; tests/checkpoint compares the former
        # with transformers.
        self.rope = Rope(inv_freq, self.config.mrope_section, factor, "float32")
        rng = np.random.default_rng(setup.seed)
        self.tokens: npt.NDArray[np.int32] = rng.integers(0, self.config.vocab_size, setup.rows, np.int32)
        self.tokens[rng.random(setup.rows) < 0.05] = self.config.segment_token
        self.frame: Frame | None = None
        if setup.media:
            images = [(2, noise(1, (1, 6, 4))), (30, noise(2, (1, 2, 18))), (70, noise(3, (1, 16, 14)))]
            self.tokens, self.frame = drawn(self.tokens, images, 5, self.config.hidden_size)
        self.weights = {k: w for k, w in weights_float64(path).items() if not k.startswith("mtp.")}
        self.margins = Margins()
        self.logits = self.run(margins=self.margins)

    def run(
        self,
        dtype: npt.DTypeLike = np.float64,
        store: Store = exact,
        weights: Mapping[str, Array] | None = None,
        rope: Rope | None = None,
        config: ModelConfig | None = None,
        margins: Margins | None = None,
    ) -> Array:
        """(T, vocab) logits of the setup's tokens, computed as asked; the defaults give the float64
        reference."""
        model = TextModel(config or self.config, weights or self.weights, dtype, rope or self.rope, store)
        positions, media = None, dict[int, Array]()
        if self.frame is not None:
            positions = self.frame.axes.T
            for first, shown, row, n in self.frame.within(0, len(self.tokens)):
                features = store(self.frame.see(shown)[row : row + n].astype(dtype))
                media |= {first + i: feature for i, feature in enumerate(features)}
        rows = model.forward(self.tokens, model.new_state(), positions, media, margins)
        return model.logits(rows.hidden)


REAL_HEADS: Mapping[str, Any] = {
    "hidden_size": 128, "num_hidden_layers": 3, "full_attention_interval": 3, "num_attention_heads": 6,
    "head_dim": 256, "indexer_head_dim": 128, "indexer_n_heads": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 1, "linear_num_value_heads": 3,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e7},
}  # fmt: skip
WIDE: Mapping[str, Any] = {
    "hidden_size": 128, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128,
    "hc_lowrank": 128, "num_hidden_layers": 2, "full_attention_interval": 2, "ple_layer_ids": [1],
    "ple_embed_dim": 512, "num_attention_heads": 4, "head_dim": 32, "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
}  # fmt: skip
# Matrices that read the same inputs by different bits and groups, and so many experts that a short chunk
# multiplies more rows than a worker keeps block floats of.
MIXED: Mapping[str, tuple[int, int] | None] = {
    "layers.0.linear_attn.in_proj_qkv": (4, 64), "layers.0.linear_attn.in_proj_z": (8, 32),
    "layers.0.linear_attn.in_proj_a": (4, 32), "layers.0.mlp.shared_expert.gate_proj": (3, 32),
    "layers.0.mlp.shared_expert.up_proj": (3, 32), "layers.1.self_attn.k_proj": (2, 64),
    "layers.1.self_attn.v_proj": None, "layers.1.mlp.gate": None,
}  # fmt: skip
MANY_EXPERTS: Mapping[str, Any] = {**WIDE, "num_experts": 48, "num_experts_per_tok": 4}
YARN: Mapping[str, Any] = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 1e4,
}  # fmt: skip

SETUPS: tuple[Setup, ...] = (
    Setup("three linear layers and one attention layer"),
    Setup("attention alone", {
        "layer_types": ["full_attention"] * 2, "num_hidden_layers": 2, "ple_layer_ids": [],
    }),
    Setup("attention first", {
        "layer_types": ["full_attention", "linear_attention", "full_attention"], "num_hidden_layers": 3,
    }),
    Setup("one linear layer in front, with the n-grams", {
        "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2, "ple_layer_ids": [1],
    }),
    Setup("eight layers, two n-gram layers", {"num_hidden_layers": 8, "ple_layer_ids": [2, 5]}),
    Setup("no n-grams", {"ple_layer_ids": []}, seed=2),
    Setup("four-grams of three heads", {"ngram_size": 4, "heads_per_ngram": 3, "ple_embed_dim": 288}),
    Setup("heads of the real model", REAL_HEADS, rows=128),
    Setup("silu gate", {"output_gate_type": "silu"}),
    Setup("two streams", {"hc_count": 2}, seed=2),
    Setup("five streams", {"hc_count": 5, "hc_lowrank": 64}),
    Setup("long, blocks of 16", {"indexer_compress_ratio": 16, "indexer_budget": 64}, rows=600),
    Setup("long, blocks of one", {"indexer_compress_ratio": 1, "indexer_budget": 48}, rows=560, seed=6),
    Setup("blocks of a page", {"indexer_compress_ratio": 64, "indexer_budget": 64}, rows=330),
    Setup("four index heads, many scores of zero", {"indexer_n_heads": 4}),
    Setup("images, three rotary axes", media=True, seed=1),
    Setup("one expert of many", {"num_experts": 40, "num_experts_per_tok": 1}),
    Setup("every expert", {"num_experts": 5, "num_experts_per_tok": 5}),
    Setup("twelve heads on one key", {"num_attention_heads": 12, "num_key_value_heads": 1}),
    Setup("a key for each head", {"num_attention_heads": 3, "num_key_value_heads": 3}),
    Setup("a value head for each key head", {"linear_num_key_heads": 3, "linear_num_value_heads": 3}),
    Setup("yarn", {"rope_parameters": YARN, "max_position_embeddings": 1024}),
    Setup("mixed bits, many experts", MANY_EXPERTS, "mlx", 6, 32, rows=72, modules=MIXED),
    *(
        Setup(f"{bits} bits in groups of {group}", WIDE, "mlx", bits, group, rows=72)
        for bits in (2, 3, 4, 5, 6, 8)
        for group in (32, 64, 128)
    ),
)  # fmt: skip
