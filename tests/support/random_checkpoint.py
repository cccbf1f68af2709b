"""Complete, valid, seeded random checkpoints in both layouts, and their weights in float64 for use as an
oracle.

Values keep activations near unit size: a matrix has the standard deviation gain / sqrt(inputs), and the
zero-centred norms are multiples of 1/128 so that 1 + w is exact in bfloat16. Every tensor depends on its
canonical name and the seed alone, so both layouts of one seed carry the same numbers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flashnext.checkpoint import ModelConfig, open_checkpoint, parse_config
from flashnext.checkpoint.names import (
    Kind,
    TensorSpec,
    hf_name,
    mlx_name,
    mtp_specs,
    text_specs,
    vision_specs,
)
from flashnext.checkpoint.quantize import bf16_to_float32, dequantize, float32_to_bf16, quantize
from flashnext.checkpoint.views import read_view
from flashnext.checkpoint.writer import ShardedWriter, TensorPlan, write_json

Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

# text_config keys, small enough for a float64 oracle; every matrix input width is a multiple of 32, so that
# it quantizes. Eight index heads make exact ties of block scores rare, and the budget of 32 makes selection
# bite.
SMALL: Mapping[str, Any] = {
    "vocab_size": 211, "hidden_size": 64, "num_hidden_layers": 4, "full_attention_interval": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
    "output_gate_type": "sigmoid", "indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 32,
    "indexer_budget": 32, "indexer_compress_ratio": 4, "num_experts": 12, "num_experts_per_tok": 3,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "norm_topk_prob": True,
    "hc_count": 4, "hc_lowrank": 32, "ple_layer_ids": [2], "ple_embed_dim": 128, "ple_conv_kernel_size": 4,
    "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 97,
    "make_ngram_vocab_size_divisible_by": 8, "seed": 1234, "split_ngram_parts": 2, "eos_token_id": 7,
    "bos_token_id": 7, "tie_word_embeddings": False, "mtp_num_hidden_layers": 1,
}  # fmt: skip

# vision_config's sizes: as odd as the kernels take them.
SMALL_VISION: Mapping[str, int] = {
    "depth": 3, "hidden_size": 48, "intermediate_size": 80, "num_heads": 4, "in_channels": 3, "patch_size": 4,
    "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": 64, "num_position_embeddings": 36,
}  # fmt: skip

# Standard deviation times sqrt(inputs), by the last part of a module's name; 1 where none is given.
_GAINS = {
    "input_mix_weight_down": 4.0, "input_mix_weight_up": 2.0, "block_inject_weight": 4.0, "gate": 3.0,
    "gate_proj": 2.0, "up_proj": 2.0, "q_proj": 2.0, "k_proj": 2.0, "v_proj": 4.0, "o_proj": 2.0,
    "index_qk_proj": 2.0, "in_proj_qkv": 2.0, "in_proj_z": 2.0, "in_proj_b": 2.0, "in_proj_a": 2.0,
    "shared_expert_gate": 2.0, "lm_head": 4.0,
}  # fmt: skip


def random_config(
    overrides: Mapping[str, Any] | None = None, vision: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """A raw config.json: `SMALL` with `overrides` (keys of text_config); rotary sections fit the sizes.

    vision: Sizes of a tower, or None for a text model.
    """
    given = dict(overrides or {})
    text = dict(SMALL) | given
    if "layer_types" not in given:
        interval = text["full_attention_interval"]
        text["layer_types"] = [
            "linear_attention" if (i + 1) % interval else "full_attention"
            for i in range(text["num_hidden_layers"])
        ]
    rope = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_interleaved": True,
    }
    rope |= given.get("rope_parameters") or {}
    if "mrope_section" not in rope:
        half = int(text["head_dim"] * rope["partial_rotary_factor"]) // 2
        rope["mrope_section"] = [len(range(0, half, 3)), len(range(1, half, 3)), len(range(2, half, 3))]
    text |= {"model_type": "qwen4_exp_text", "dtype": "bfloat16", "rope_parameters": rope}
    raw = {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp",
        "tie_word_embeddings": False, "text_config": text,
    }  # fmt: skip
    if vision is not None:
        fixed = {"model_type": "qwen4_exp_vision", "hidden_act": "gelu_pytorch_tanh"}
        raw["vision_config"] = {**fixed, **vision}
    return raw


def random_tensor(spec: TensorSpec, config: ModelConfig, seed: int) -> Array:
    """The values of one tensor: bfloat16 bit patterns (uint16), or int64 constants; norms as w."""
    name = spec.name
    if spec.kind is Kind.CONSTANT:
        at = config.ple_layers.index(int(name.split(".")[1]))
        tables = {
            "layer_multipliers": config.ngram_multipliers, "ngram_heads_vocab_sizes": config.ngram_sizes,
            "ngram_heads_offsets": config.ngram_offsets,
        }  # fmt: skip
        return np.array(tables[name.rpartition(".")[2]][at], np.int64)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if name.endswith("A_log"):  # decay rates from 1 to 16
        values = np.log(rng.uniform(1, 16, spec.shape))
    elif name.endswith("dt_bias"):  # softplus(dt_bias) from 0.001 to 0.1
        steps = np.exp(rng.uniform(math.log(1e-3), math.log(1e-1), spec.shape))
        values = steps + np.log(-np.expm1(-steps))
    elif spec.kind is Kind.NORM or name.endswith("linear_attn.norm.weight"):
        values = np.clip(np.rint(rng.standard_normal(spec.shape) * 12.8), -100, 100) / 128
        values += spec.kind is not Kind.NORM
    elif name.startswith("visual.") and len(spec.shape) == 1:  # norms around one, and biases
        values = 0.3 * rng.standard_normal(spec.shape) + name.endswith(("norm1.weight", "norm2.weight"))
        values += name == "visual.merger.norm.weight"
    elif name.startswith("visual."):
        values = rng.standard_normal(spec.shape)
        if "pos_embed" not in name:
            values *= 1.5 / math.sqrt(math.prod(spec.shape[1:]))
    else:
        values = rng.standard_normal(spec.shape, np.float32)
        module = name.removesuffix(".weight").rpartition(".")[2]
        if name.endswith(".experts.down_proj.weight"):
            values *= 2 / math.sqrt(spec.shape[-1])
        elif module != "embed_tokens" and ".ngram_embedding." not in name:
            values *= _GAINS.get(module, 1.0) / math.sqrt(spec.shape[-1])
    return float32_to_bf16(values.astype(np.float32))


def write_random(
    path: Path,
    config_overrides: Mapping[str, Any] | None = None,
    seed: int = 0,
    layout: str = "hf",
    bits: int = 6,
    group: int = 32,
    *,
    modules: Mapping[str, tuple[int, int] | None] | None = None,
    gamma: bool = True,
    shard_bytes: int = 1 << 30,
    vision: Mapping[str, int] | None = None,
) -> Path:
    """Write a checkpoint folder (text model and draft head, and a tower where asked for; no tokenizer).

    Args:
        path: The folder; made if missing.
        config_overrides: Keys of text_config over those of `SMALL`.
        seed: Of the weights.
        layout: "hf" (bf16) or "mlx" (affine).
        bits: Of the MLX layout's codes.
        group: Inputs of a scale in the MLX layout; a module whose rows it does not divide gets 64 or 32 and
            an entry.
        modules: MLX overrides by canonical module name: (bits, group), or None: kept in bf16.
        gamma: Whether the MLX layout stores norms as 1 + w; else as w.
        shard_bytes: Most tensor bytes of a shard.
        vision: Sizes of a vision tower, as `SMALL_VISION`; its kernel has channels last in the MLX layout.

    Returns:
        `path`.
    """
    raw = random_config(config_overrides, vision)
    config = parse_config(raw)
    specs = [*text_specs(config), *(mtp_specs(config) if config.n_mtp_layers else ()), *vision_specs(config)]
    values = {s.name: random_tensor(s, config, seed) for s in specs if s.kind is not Kind.SCALE}
    kinds = {s.name: s.kind for s in specs}
    if layout == "mlx":
        choices = _narrow_groups(specs, bits, group) | dict(modules or {})
        tensors = _mlx_tensors(values, kinds, bits, group, choices, gamma)
        entries = {mlx_name(name): _entry(choice) for name, choice in choices.items()}
        raw["quantization"] = {"bits": bits, "group_size": group, "mode": "affine", **entries}
    else:
        tensors = _hf_tensors(values, kinds)
    path.mkdir(parents=True, exist_ok=True)
    dtypes = {"uint16": "BF16", "uint32": "U32", "int64": "I64"}
    plans = [TensorPlan(name, dtypes[array.dtype.name], array.shape) for name, array in tensors.items()]
    with ShardedWriter(path, plans, shard_bytes, {"format": "pt" if layout == "hf" else "mlx"}) as writer:
        for name, array in tensors.items():
            writer.append(name, np.ascontiguousarray(array).tobytes())
    write_json(path / "config.json", raw)
    write_json(path / "generation_config.json", {"eos_token_id": [5, 7]})
    return path


def _narrow_groups(specs: Sequence[TensorSpec], bits: int, group: int) -> dict[str, tuple[int, int] | None]:
    """For each matrix that `group` does not divide the widest smaller group that does."""
    out: dict[str, tuple[int, int] | None] = {}
    for spec in specs:
        if spec.kind is Kind.MATRIX and spec.shape[-1] % group:
            fitting = [g for g in (64, 32) if g < group and spec.shape[-1] % g == 0]
            out[spec.name.removesuffix(".weight")] = (bits, fitting[0])
    return out


def _entry(choice: tuple[int, int] | None) -> dict[str, int] | bool:
    return {"bits": choice[0], "group_size": choice[1]} if choice else False


def _hf_tensors(values: Mapping[str, Array], kinds: Mapping[str, Kind]) -> dict[str, Array]:
    out = {}
    for name, x in values.items():
        if name.endswith(".experts.gate_proj.weight"):
            up = values[name.replace("gate_proj", "up_proj")]
            out[hf_name(name.replace("gate_proj", "gate_up_proj"))] = np.concatenate([x, up], 1)
        elif not name.endswith(".experts.up_proj.weight"):
            out[hf_name(name)] = x[:, None, :] if kinds[name] is Kind.CONV else x
    return out


def _mlx_tensors(
    values: Mapping[str, Array],
    kinds: Mapping[str, Kind],
    bits: int,
    group: int,
    modules: Mapping[str, tuple[int, int] | None],
    gamma: bool,
) -> dict[str, Array]:
    out = {}
    for name, x in values.items():
        module, kind = name.removesuffix(".weight"), kinds[name]
        choice = modules.get(module, (bits, group))
        if kind is Kind.MATRIX and choice is not None:
            parts: list[Array] = list(quantize(x, *choice))
            for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
                out[mlx_name(f"{module}.{part}")] = array
        elif kind is Kind.PATCH:
            out[mlx_name(name)] = np.moveaxis(x, 1, -1)
        elif kind is Kind.NORM and gamma:
            out[mlx_name(name)] = float32_to_bf16(bf16_to_float32(x) + np.float32(1))
        else:
            out[mlx_name(name)] = x[:, :, None] if kind is Kind.CONV else x
    return out


def weights_float64(path: Path) -> dict[str, Float64]:
    """The weights of a checkpoint as the float64 reference takes them, dequantized.

    Returns:
        Arrays under the Hugging Face names without `model.language_model.`; the draft head's and the tower's
        keep `mtp.` and `visual.`. Norms are zero-centred, experts fused to `mlp.experts.gate_up_proj` and
        `.down_proj`, the shards of an n-gram table joined to `ngram_embedding.weight`, convolutions
        (channels, taps). Constants are left out.
    """
    checkpoint = open_checkpoint(path)
    norms = {
        s.name for s in [*text_specs(checkpoint.config), *mtp_specs(checkpoint.config)] if s.kind is Kind.NORM
    }

    def load(name: str) -> Float64:
        view = checkpoint.tensors[name]
        data = read_view(checkpoint.files, view)
        module = name.removesuffix(".weight")
        if module in checkpoint.affine:
            affine = checkpoint.affine[module]
            words = np.frombuffer(data, "<u4").reshape(view.shape)
            parts = [checkpoint.tensors[f"{module}.{part}"] for part in ("scales", "biases")]
            scales, biases = (
                np.frombuffer(read_view(checkpoint.files, p), "<u2").reshape(p.shape) for p in parts
            )
            return dequantize(words, scales, biases, affine.bits, affine.group)
        if view.dtype == "F32":
            out = np.frombuffer(data, "<f4").astype(np.float64)
        else:
            out = bf16_to_float32(np.frombuffer(data, "<u2")).astype(np.float64)
        out = out.reshape(view.shape)
        return out - 1 if name in norms and not checkpoint.zero_centred else out

    names = [
        n
        for n, v in checkpoint.tensors.items()
        if v.dtype != "I64" and not n.endswith((".scales", ".biases"))
    ]
    loaded = {name: load(name) for name in names}
    out: dict[str, Float64] = {}
    for name, x in loaded.items():
        head, _, part = name.rpartition(".experts.")
        if part == "gate_proj.weight":
            out[f"{head}.experts.gate_up_proj"] = np.concatenate(
                [x, loaded[f"{head}.experts.up_proj.weight"]], 1
            )
        elif part == "down_proj.weight":
            out[f"{head}.experts.down_proj"] = x
        elif ".ngram_embedding." in name:
            base = name[: name.index(".ngram_embedding.") + len(".ngram_embedding.")]
            if name == base + "shard_0.weight":
                shards = [loaded[f"{base}shard_{s}.weight"] for s in range(checkpoint.config.ngram_shards)]
                out[base + "weight"] = np.concatenate(shards) * loaded.get(
                    base + "weight_scale", np.float64(1)
                )
        elif part != "up_proj.weight":
            out[name] = x
    return out
