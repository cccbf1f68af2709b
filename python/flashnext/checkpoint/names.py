"""The tensors that a model of given sizes has: name, shape and kind, and how each layout spells them.

Canonical names are the Hugging Face names without `model.language_model.`; `lm_head.`, `mtp.` and `visual.`
keep these short prefixes. Routed experts are three tensors `mlp.experts.{gate,up,down}_proj.weight` of shape
(experts, out, in) in both layouts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from flashnext.checkpoint.config import ModelConfig


class Kind(Enum):
    """What a tensor is, which decides the dtypes it may have and whether a conversion quantizes it."""

    MATRIX = "matrix"  # (out, in) or (experts, out, in); BF16 or affine
    ROUTER = "router"  # (experts, D); BF16 or F32, never quantized
    NORM = "norm"  # used as 1 + w; the file holds w or 1 + w
    VECTOR = "vector"  # used as stored
    CONV = "conv"  # (channels, taps); HF has (channels, 1, taps), MLX (channels, taps, 1): the same bytes
    CONSTANT = "constant"  # int64, derivable from the config
    SCALE = "scale"  # optional scalar that multiplies looked-up n-gram rows
    VISION = "vision"  # used as stored; never quantized
    PATCH = "patch"  # HF (out, channels, time, y, x), MLX (out, time, y, x, channels)


@dataclass(frozen=True)
class TensorSpec:
    """One expected tensor; `shape` is that of the unquantized one."""

    name: str
    shape: tuple[int, ...]
    kind: Kind


def model_specs(c: ModelConfig) -> Iterator[TensorSpec]:
    """Yield all tensors of a model: text, then draft head and vision tower where the config has them."""
    yield from text_specs(c)
    if c.n_mtp_layers:
        yield from mtp_specs(c)
    yield from vision_specs(c)


def text_specs(c: ModelConfig) -> Iterator[TensorSpec]:
    """Yield the tensors of the text model, head included."""
    yield TensorSpec("embed_tokens.weight", (c.vocab_size, c.hidden_size), Kind.MATRIX)
    for i in range(c.n_layers):
        at = f"layers.{i}."
        if i in c.ple_layers:
            yield from _ple(c, at + "ple.", c.ple_layers.index(i))
        yield from _layer(c, at, c.attention_layers[i])
    yield from _mixer(c, "hyper_connection_mixer.")
    yield TensorSpec("lm_head.weight", (c.vocab_size, c.hidden_size), Kind.MATRIX)


def mtp_specs(c: ModelConfig) -> Iterator[TensorSpec]:
    """Yield the tensors of the draft head."""
    d = c.hidden_size
    yield TensorSpec("mtp.pre_fc_norm_embedding.weight", (d,), Kind.NORM)
    yield TensorSpec("mtp.pre_fc_norm_hidden.weight", (c.hc_count * d,), Kind.NORM)
    yield TensorSpec("mtp.fc_embedding.weight", (d, d), Kind.MATRIX)
    yield TensorSpec("mtp.fc_hidden.weight", (d, d), Kind.MATRIX)
    for i in range(c.n_mtp_layers):
        yield from _layer(c, f"mtp.layers.{i}.", True)
    yield from _mixer(c, "mtp.hyper_connection_mixer.")


def vision_specs(c: ModelConfig) -> Iterator[TensorSpec]:
    """Yield the tensors of the vision tower; none for a text model."""
    v = c.vision
    if v is None:
        return
    width, inner = v["hidden_size"], v["intermediate_size"]
    merged = width * v["spatial_merge_size"] ** 2
    patch = (width, v["in_channels"], v["temporal_patch_size"], v["patch_size"], v["patch_size"])

    def linear(at: str, out: int, inputs: int) -> Iterator[TensorSpec]:
        yield TensorSpec(f"visual.{at}.weight", (out, inputs), Kind.VISION)
        yield TensorSpec(f"visual.{at}.bias", (out,), Kind.VISION)

    def norm(at: str) -> Iterator[TensorSpec]:
        yield TensorSpec(f"visual.{at}.weight", (width,), Kind.VISION)
        yield TensorSpec(f"visual.{at}.bias", (width,), Kind.VISION)

    yield TensorSpec("visual.patch_embed.proj.weight", patch, Kind.PATCH)
    yield TensorSpec("visual.patch_embed.proj.bias", (width,), Kind.VISION)
    yield TensorSpec("visual.pos_embed.weight", (v["num_position_embeddings"], width), Kind.VISION)
    for i in range(v["depth"]):
        yield from norm(f"blocks.{i}.norm1")
        yield from norm(f"blocks.{i}.norm2")
        yield from linear(f"blocks.{i}.attn.qkv", 3 * width, width)
        yield from linear(f"blocks.{i}.attn.proj", width, width)
        yield from linear(f"blocks.{i}.mlp.linear_fc1", inner, width)
        yield from linear(f"blocks.{i}.mlp.linear_fc2", width, inner)
    yield from norm("merger.norm")
    yield from linear("merger.linear_fc1", merged, merged)
    yield from linear("merger.linear_fc2", v["out_hidden_size"], merged)


def _mixer(c: ModelConfig, at: str) -> Iterator[TensorSpec]:
    wide = c.hc_count * c.hidden_size
    yield TensorSpec(at + "hc_norm.weight", (wide,), Kind.NORM)
    yield TensorSpec(at + "input_mix_weight_down.weight", (c.hc_rank, wide), Kind.MATRIX)
    yield TensorSpec(at + "input_mix_weight_up.weight", (wide, c.hc_rank), Kind.MATRIX)


def _layer(c: ModelConfig, at: str, attention: bool) -> Iterator[TensorSpec]:
    for name in ("attn_hyper_connection.", "mlp_hyper_connection."):
        yield from _mixer(c, at + name)
        inject = (c.hc_count, c.hc_count * c.hidden_size)
        yield TensorSpec(at + name + "block_inject_weight.weight", inject, Kind.MATRIX)
    yield from _attention(c, at + "self_attn.") if attention else _delta_net(c, at + "linear_attn.")
    yield from _moe(c, at + "mlp.")


def _attention(c: ModelConfig, at: str) -> Iterator[TensorSpec]:
    d, heads, kv, hd = c.hidden_size, c.n_heads, c.n_kv_heads, c.head_dim
    yield TensorSpec(at + "q_proj.weight", (2 * heads * hd, d), Kind.MATRIX)
    yield TensorSpec(at + "k_proj.weight", (kv * hd, d), Kind.MATRIX)
    yield TensorSpec(at + "v_proj.weight", (kv * hd, d), Kind.MATRIX)
    yield TensorSpec(at + "o_proj.weight", (d, heads * hd), Kind.MATRIX)
    yield TensorSpec(at + "q_norm.weight", (hd,), Kind.NORM)
    yield TensorSpec(at + "k_norm.weight", (hd,), Kind.NORM)
    rows = (c.index_n_heads + 1) * c.index_head_dim
    yield TensorSpec(at + "indexer.index_qk_proj.weight", (rows, d), Kind.MATRIX)
    yield TensorSpec(at + "indexer.q_layernorm.weight", (c.index_head_dim,), Kind.NORM)
    yield TensorSpec(at + "indexer.k_layernorm.weight", (c.index_head_dim,), Kind.NORM)


def _delta_net(c: ModelConfig, at: str) -> Iterator[TensorSpec]:
    d, key, value = c.hidden_size, c.linear_k_heads * c.linear_k_dim, c.linear_v_heads * c.linear_v_dim
    yield TensorSpec(at + "in_proj_qkv.weight", (2 * key + value, d), Kind.MATRIX)
    yield TensorSpec(at + "in_proj_z.weight", (value, d), Kind.MATRIX)
    yield TensorSpec(at + "in_proj_b.weight", (c.linear_v_heads, d), Kind.MATRIX)
    yield TensorSpec(at + "in_proj_a.weight", (c.linear_v_heads, d), Kind.MATRIX)
    yield TensorSpec(at + "out_proj.weight", (d, value), Kind.MATRIX)
    yield TensorSpec(at + "conv1d.weight", (2 * key + value, c.linear_conv), Kind.CONV)
    yield TensorSpec(at + "norm.weight", (c.linear_v_dim,), Kind.VECTOR)
    yield TensorSpec(at + "A_log", (c.linear_v_heads,), Kind.VECTOR)
    yield TensorSpec(at + "dt_bias", (c.linear_v_heads,), Kind.VECTOR)


def _moe(c: ModelConfig, at: str) -> Iterator[TensorSpec]:
    d, n = c.hidden_size, c.n_experts
    yield TensorSpec(at + "gate.weight", (n, d), Kind.ROUTER)
    yield TensorSpec(at + "experts.gate_proj.weight", (n, c.moe_width, d), Kind.MATRIX)
    yield TensorSpec(at + "experts.up_proj.weight", (n, c.moe_width, d), Kind.MATRIX)
    yield TensorSpec(at + "experts.down_proj.weight", (n, d, c.moe_width), Kind.MATRIX)
    yield TensorSpec(at + "shared_expert.gate_proj.weight", (c.shared_width, d), Kind.MATRIX)
    yield TensorSpec(at + "shared_expert.up_proj.weight", (c.shared_width, d), Kind.MATRIX)
    yield TensorSpec(at + "shared_expert.down_proj.weight", (d, c.shared_width), Kind.MATRIX)
    yield TensorSpec(at + "shared_expert_gate.weight", (1, d), Kind.MATRIX)


def _ple(c: ModelConfig, at: str, module: int) -> Iterator[TensorSpec]:
    d, wide = c.hidden_size, c.hc_count * c.hidden_size
    heads = (c.ngram_size - 1) * c.heads_per_ngram
    shard = (c.ngram_rows[module] // c.ngram_shards, c.ple_dim // heads)
    for s in range(c.ngram_shards):
        yield TensorSpec(f"{at}ple_embedding.ngram_embedding.shard_{s}.weight", shard, Kind.MATRIX)
    yield TensorSpec(at + "ple_embedding.ngram_embedding.weight_scale", (), Kind.SCALE)
    yield TensorSpec(at + "ple_embedding.layer_multipliers", (c.ngram_size,), Kind.CONSTANT)
    yield TensorSpec(at + "ple_embedding.ngram_heads_vocab_sizes", (heads,), Kind.CONSTANT)
    yield TensorSpec(at + "ple_embedding.ngram_heads_offsets", (heads,), Kind.CONSTANT)
    yield TensorSpec(at + "key_proj.weight", (wide, c.ple_dim), Kind.MATRIX)
    yield TensorSpec(at + "value_proj.weight", (d, c.ple_dim), Kind.MATRIX)
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield TensorSpec(f"{at}{name}.weight", (wide,), Kind.NORM)
    yield TensorSpec(at + "conv1d.weight", (wide, c.ple_conv), Kind.CONV)


_HF_PREFIXES = {
    "model.language_model.": "",
    "model.visual.": "visual.",
    "mtp.": "mtp.",
    "lm_head.": "lm_head.",
}
_FLAT_PREFIXES = {"model.": "", "mtp.": "mtp.", "lm_head.": "lm_head."}  # a text model alone
_MLX_PREFIXES = {
    "language_model.model.": "", "vision_tower.": "visual.", "language_model.mtp.": "mtp.",
    "language_model.lm_head.": "lm_head.",
}  # fmt: skip
_SHARDS = re.compile(r"(\.ngram_embedding\.)shards\.(\d+\.)")


def detect_layout(names: Iterable[str]) -> str:
    """Either "mlx", where any name has a part that only the MLX layout has, or "hf"."""
    mlx = any(
        name.startswith(("language_model.", "vision_tower.")) or ".switch_mlp." in name for name in names
    )
    return "mlx" if mlx else "hf"


def canonical_name(name: str, layout: str) -> str | None:
    """Translate a file's tensor name to the canonical one, or None where the layout has no such prefix.

    The fused `mlp.experts.gate_up_proj` of the HF layout keeps its name; `.weight` is added to both expert
    tensors.
    """
    tables = (_MLX_PREFIXES if layout == "mlx" else _HF_PREFIXES, _FLAT_PREFIXES)
    for table in tables:
        for prefix, short in table.items():
            if name.startswith(prefix):
                rest = _SHARDS.sub(r"\1shard_\2", name.removeprefix(prefix))
                if layout == "mlx":
                    rest = rest.replace(".mlp.switch_mlp.", ".mlp.experts.")
                elif rest.endswith((".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")):
                    rest += ".weight"
                return short + rest
    return None


def mlx_name(name: str) -> str:
    """Translate a canonical name to that of the MLX layout."""
    name = name.replace(".mlp.experts.", ".mlp.switch_mlp.")
    for prefix, short in _MLX_PREFIXES.items():
        if short and name.startswith(short):
            return prefix + name.removeprefix(short)
    return "language_model.model." + name


def hf_name(name: str) -> str:
    """Translate a canonical name, that of a fused `gate_up_proj` included, to the Hugging Face one."""
    if name.endswith((".mlp.experts.gate_up_proj.weight", ".mlp.experts.down_proj.weight")):
        name = name.removesuffix(".weight")
    if name.startswith(("lm_head.", "mtp.")):
        return name
    if name.startswith("visual."):
        return "model." + name
    return "model.language_model." + name
