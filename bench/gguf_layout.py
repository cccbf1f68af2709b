"""What llama.cpp's graph expects of a checkpoint: GGUF names, reorderings, and what stays float32.

Source: llama.cpp's converter, conversion/qwen4exp.py and qwen.py. The draft head is left out, because the
llama.cpp inside llama-cpp-python 0.3.36 has no graph for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from checkpoint_files import NGRAM_SHARD, Checkpoint

# Hugging Face name below a layer -> GGUF name below blk.N
LAYER_NAMES = {
    "attn_hyper_connection.hc_norm.weight": "hc_attn_norm.weight",
    "attn_hyper_connection.input_mix_weight_down.weight": "hc_attn_down.weight",
    "attn_hyper_connection.input_mix_weight_up.weight": "hc_attn_up.weight",
    "attn_hyper_connection.block_inject_weight.weight": "hc_attn_inject.weight",
    "mlp_hyper_connection.hc_norm.weight": "hc_ffn_norm.weight",
    "mlp_hyper_connection.input_mix_weight_down.weight": "hc_ffn_down.weight",
    "mlp_hyper_connection.input_mix_weight_up.weight": "hc_ffn_up.weight",
    "mlp_hyper_connection.block_inject_weight.weight": "hc_ffn_inject.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.indexer.q_layernorm.weight": "indexer.q_norm.weight",
    "self_attn.indexer.k_layernorm.weight": "indexer.k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "ple.key_proj.weight": "ple_key.weight",
    "ple.value_proj.weight": "ple_value.weight",
    "ple.norm_key.weight": "ple_norm_key.weight",
    "ple.norm_query.weight": "ple_norm_query.weight",
    "ple.norm_conv.weight": "ple_norm_conv.weight",
    "ple.conv1d.weight": "ple_conv1d.weight",
}
TOP_NAMES = {
    "model.language_model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "model.language_model.hyper_connection_mixer.hc_norm.weight": "output_hc_norm.weight",
    "model.language_model.hyper_connection_mixer.input_mix_weight_down.weight": "output_hc_down.weight",
    "model.language_model.hyper_connection_mixer.input_mix_weight_up.weight": "output_hc_up.weight",
}
KEEP_F32 = re.compile(r"norm\.weight|ple_norm_|conv1d|ffn_gate_inp|ssm_a$|ssm_dt")


@dataclass(frozen=True)
class Item:
    """One tensor of the GGUF file.

    Attributes:
        name: Its GGUF name.
        shape: Its shape, outermost axis first.
        load: Reads and rearranges its values.
    """

    name: str
    shape: tuple[int, ...]
    load: Callable[[], mx.array]

    @property
    def keeps_float32(self) -> bool:
        """Whether the tensor is float32 in files of every type."""
        return bool(KEEP_F32.search(self.name))


def read_tensor(checkpoint: Checkpoint, name: str) -> mx.array:
    """A stored tensor; its bytes are read when it is evaluated."""
    arrays = mx.load(str(checkpoint.root / checkpoint.where[name]))
    assert isinstance(arrays, dict)
    return arrays[name]


def items(checkpoint: Checkpoint) -> Iterator[Item]:
    """Every tensor of the text model, in checkpoint order."""
    for name in checkpoint.where:
        if name in TOP_NAMES:
            yield Item(TOP_NAMES[name], checkpoint.shape(name), _loader(checkpoint, name, name))
            continue
        match = re.fullmatch(r"model\.language_model\.layers\.(\d+)\.(.+)", name)
        if match is None:
            continue  # the draft head
        if ".ple_embedding." in name:
            if name.endswith(f"{NGRAM_SHARD}0.weight"):
                yield _ngram_table(checkpoint, name.removesuffix("0.weight"))
            continue  # the other shards, and the constants that become metadata
        yield from _layer_items(checkpoint, name, match[1], match[2])


def _layer_items(checkpoint: Checkpoint, name: str, layer: str, part: str) -> Iterator[Item]:
    text, shape = checkpoint.text_config, checkpoint.shape(name)
    if part == "mlp.experts.gate_up_proj":
        n, both, width = shape
        for i, kind in enumerate(("gate", "up")):
            rows = slice(i * both // 2, (i + 1) * both // 2)
            load = _loader(checkpoint, name, part, (slice(None), rows))
            yield Item(f"blk.{layer}.ffn_{kind}_exps.weight", (n, both // 2, width), load)
    elif part == "self_attn.indexer.index_qk_proj.weight":
        queries = text["indexer_n_heads"] * text["indexer_head_dim"]
        for kind, rows in (("q", slice(0, queries)), ("k", slice(queries, shape[0]))):
            at = f"blk.{layer}.indexer.{kind}_proj.weight"
            yield Item(at, (rows.stop - rows.start, shape[1]), _loader(checkpoint, name, part, (rows,)))
    else:
        squeezed = tuple(s for s in shape if s != 1)
        yield Item(f"blk.{layer}.{LAYER_NAMES[part]}", squeezed, _loader(checkpoint, name, part))


def _loader(
    checkpoint: Checkpoint, name: str, part: str, rows: tuple[slice, ...] = ()
) -> Callable[[], mx.array]:
    def load() -> mx.array:
        x = read_tensor(checkpoint, name)
        return arrange(x[rows] if rows else x, part, checkpoint.text_config)

    return load


def _ngram_table(checkpoint: Checkpoint, stem: str) -> Item:
    n_rows, width = checkpoint.shape(f"{stem}0.weight")
    parts = checkpoint.text_config["split_ngram_parts"]
    return Item(
        "per_layer_token_embd.weight",
        (n_rows * parts, width),
        lambda: mx.concatenate([read_tensor(checkpoint, f"{stem}{s}.weight") for s in range(parts)]),
    )


def arrange(x: mx.array, part: str, text: dict[str, Any]) -> mx.array:
    """What the graph expects in place of the stored tensor.

    Args:
        x: The stored values.
        part: The tensor's name below its layer.
        text: The text model's config.
    """
    width = text["linear_value_head_dim"]
    first_value = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"]
    if part.endswith("conv1d.weight"):
        x = x.squeeze(1)
    if part.endswith("A_log"):
        x = -mx.exp(x.astype(mx.float32))
    if "norm" in part and part != "linear_attn.norm.weight":
        x = x.astype(mx.float32) + 1
    if part in ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"):
        return mx.concatenate([x[:first_value], tile_value_heads(x[first_value:], 0, text, width)])
    if part == "linear_attn.in_proj_z.weight":
        return tile_value_heads(x, 0, text, width)
    if part in (
        "linear_attn.in_proj_a.weight",
        "linear_attn.in_proj_b.weight",
        "linear_attn.A_log",
        "linear_attn.dt_bias",
    ):
        return tile_value_heads(x, 0, text, 1)
    if part == "linear_attn.out_proj.weight":
        return tile_value_heads(x, 1, text, width)
    return x.squeeze(0) if part == "mlp.shared_expert_gate.weight" else x


def tile_value_heads(x: mx.array, axis: int, text: dict[str, Any], width: int) -> mx.array:
    """Reorder value heads from "grouped by key head" to the tiled order that ggml broadcasts over.

    Args:
        x: Values with `value heads * width` entries on `axis`.
        axis: 0 or 1.
        text: The text model's config.
        width: Entries of one value head.
    """
    keys, values = text["linear_num_key_heads"], text["linear_num_value_heads"]
    split = x.reshape(*x.shape[:axis], keys, values // keys, width, *x.shape[axis + 1 :])
    return split.swapaxes(axis, axis + 1).reshape(x.shape)
