"""Names, shapes and seeded values of a random checkpoint: text model and draft head, no vision tower.

Every tensor depends only on its name and the seed, so presets, layouts and runs agree with each other. The
values keep activations near unit size: a matrix has a standard deviation of gain / sqrt(fan_in), and the
zero-centred norms are multiples of 1/128, so that `1 + w` is exact in bfloat16 and both layouts carry the
same numbers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np
from preset import PLE_LAYER, Preset, constant, ngram_constants

Kind = Literal["matrix", "table", "norm", "gain", "a_log", "dt_bias", "constant"]
BLOCK = 1 << 22  # float32 values drawn at a time: bounds the memory of the largest tensors


@dataclass(frozen=True)
class Spec:
    """One tensor of the Hugging Face layout.

    Attributes:
        name: Its full name.
        shape: Its shape.
        kind: How its values are drawn; "norm" is zero-centred (used as 1 + w), "gain" is used as stored.
        scale: Gain of a matrix, standard deviation of a table or norm, fastest decay rate of "a_log".
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    scale: float = 0.0


def specs(preset: Preset) -> Iterator[Spec]:
    """Every tensor of the checkpoint, in file order."""
    top = "model.language_model"
    hidden, width = preset.hidden_size, preset.hc_count * preset.hidden_size
    yield Spec(f"{top}.embed_tokens.weight", (preset.vocab_size, hidden), "table", 1.0)
    for i, kind in enumerate(preset.layer_types):
        yield from _layer(preset, f"{top}.layers.{i}", kind == "linear_attention")
        if i == PLE_LAYER:
            yield from _ple(preset, f"{top}.layers.{i}.ple")
    yield from _mixer(preset, f"{top}.hyper_connection_mixer")
    yield Spec("lm_head.weight", (preset.vocab_size, hidden), "matrix", 4.0)
    yield from _layer(preset, "mtp.layers.0", linear=False)
    yield from _mixer(preset, "mtp.hyper_connection_mixer")
    yield Spec("mtp.pre_fc_norm_embedding.weight", (hidden,), "norm", 0.1)
    yield Spec("mtp.pre_fc_norm_hidden.weight", (width,), "norm", 0.1)
    yield Spec("mtp.fc_embedding.weight", (hidden, hidden), "matrix", 1.0)
    yield Spec("mtp.fc_hidden.weight", (hidden, hidden), "matrix", 1.0)


def make(preset: Preset, seed: int, spec: Spec) -> mx.array:
    """Draw one tensor.

    Returns:
        An array of spec.shape: bfloat16, or int64 for the n-gram constants.
    """
    if spec.kind == "constant":
        return mx.array(np.array(constant(preset, spec.name.rpartition(".")[2]), np.int64))
    rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(spec.name.encode())]))
    n = math.prod(spec.shape)
    blocks = [_draw(rng, min(BLOCK, n - start), spec) for start in range(0, n, BLOCK)]
    whole = mx.concatenate(blocks).reshape(spec.shape)
    mx.eval(whole)
    return whole


def _draw(rng: np.random.Generator, n: int, spec: Spec) -> mx.array:
    """(n,) bfloat16 values of a tensor, rounded once from float32."""
    if spec.kind == "a_log":  # decay rates between 1 and `scale`
        x = np.log(rng.uniform(1, spec.scale, n)).astype(np.float32)
    elif spec.kind == "dt_bias":  # softplus(dt_bias) spread over 0.001 .. 0.1
        dt = np.exp(rng.uniform(math.log(1e-3), math.log(1e-1), n))
        x = (dt + np.log(-np.expm1(-dt))).astype(np.float32)
    else:
        x = rng.standard_normal(n, dtype=np.float32)
        if spec.kind in ("norm", "gain"):  # below 1 in size, so that 1 + w stays positive
            np.clip(np.rint(x * np.float32(spec.scale * 128)), -100, 100, out=x)
            x /= 128
            x += spec.kind == "gain"
        else:
            x *= np.float32(spec.scale / math.sqrt(spec.shape[-1]) if spec.kind == "matrix" else spec.scale)
    rounded = mx.array(x).astype(mx.bfloat16)
    mx.eval(rounded)
    return rounded


def _mixer(p: Preset, at: str) -> Iterator[Spec]:
    width = p.hc_count * p.hidden_size
    yield Spec(f"{at}.hc_norm.weight", (width,), "norm", 0.1)
    yield Spec(
        f"{at}.input_mix_weight_down.weight", (p.hc_lowrank, width), "matrix", 4.0
    )  # undoes the division by S
    yield Spec(f"{at}.input_mix_weight_up.weight", (width, p.hc_lowrank), "matrix", 2.0)


def _hyper(p: Preset, at: str) -> Iterator[Spec]:
    yield from _mixer(p, at)
    shape = (p.hc_count, p.hc_count * p.hidden_size)
    yield Spec(f"{at}.block_inject_weight.weight", shape, "matrix", 4.0)


def _layer(p: Preset, at: str, linear: bool) -> Iterator[Spec]:
    yield from _hyper(p, f"{at}.attn_hyper_connection")
    yield from _hyper(p, f"{at}.mlp_hyper_connection")
    yield from _delta_net(p, f"{at}.linear_attn") if linear else _attention(p, f"{at}.self_attn")
    yield from _moe(p, f"{at}.mlp")


def _moe(p: Preset, at: str) -> Iterator[Spec]:
    n, hidden, width = p.num_experts, p.hidden_size, p.moe_intermediate_size
    yield Spec(
        f"{at}.gate.weight", (n, hidden), "matrix", 3.0
    )  # logits of std ~1.5: clear, not one-sided choices
    yield Spec(f"{at}.experts.gate_up_proj", (n, 2 * width, hidden), "matrix", 2.0)
    yield Spec(f"{at}.experts.down_proj", (n, hidden, width), "matrix", 2.0)
    yield Spec(f"{at}.shared_expert.gate_proj.weight", (width, hidden), "matrix", 2.0)
    yield Spec(f"{at}.shared_expert.up_proj.weight", (width, hidden), "matrix", 2.0)
    yield Spec(f"{at}.shared_expert.down_proj.weight", (hidden, width), "matrix", 1.0)
    yield Spec(f"{at}.shared_expert_gate.weight", (1, hidden), "matrix", 2.0)


def _attention(p: Preset, at: str) -> Iterator[Spec]:
    hidden, queries = p.hidden_size, p.num_attention_heads * p.head_dim
    keys = p.num_key_value_heads * p.head_dim
    index_rows = (p.indexer_n_heads + 1) * p.indexer_head_dim
    yield Spec(f"{at}.q_proj.weight", (2 * queries, hidden), "matrix", 2.0)
    yield Spec(f"{at}.k_proj.weight", (keys, hidden), "matrix", 2.0)
    yield Spec(f"{at}.v_proj.weight", (keys, hidden), "matrix", 4.0)  # averaging over positions shrinks it
    yield Spec(f"{at}.o_proj.weight", (hidden, queries), "matrix", 2.0)
    yield Spec(f"{at}.q_norm.weight", (p.head_dim,), "norm", 0.1)
    yield Spec(f"{at}.k_norm.weight", (p.head_dim,), "norm", 0.1)
    yield Spec(f"{at}.indexer.index_qk_proj.weight", (index_rows, hidden), "matrix", 2.0)
    yield Spec(f"{at}.indexer.q_layernorm.weight", (p.indexer_head_dim,), "norm", 0.1)
    yield Spec(f"{at}.indexer.k_layernorm.weight", (p.indexer_head_dim,), "norm", 0.1)


def _delta_net(p: Preset, at: str) -> Iterator[Spec]:
    hidden, heads, dim = p.hidden_size, p.linear_num_value_heads, p.linear_head_dim
    value, channels = heads * dim, (2 * p.linear_num_key_heads + heads) * dim
    yield Spec(f"{at}.in_proj_qkv.weight", (channels, hidden), "matrix", 2.0)
    yield Spec(f"{at}.in_proj_z.weight", (value, hidden), "matrix", 2.0)
    yield Spec(f"{at}.in_proj_b.weight", (heads, hidden), "matrix", 2.0)
    yield Spec(f"{at}.in_proj_a.weight", (heads, hidden), "matrix", 2.0)
    yield Spec(f"{at}.out_proj.weight", (hidden, value), "matrix", 1.0)
    yield Spec(f"{at}.conv1d.weight", (channels, 1, 4), "matrix", 1.0)
    yield Spec(f"{at}.norm.weight", (dim,), "gain", 0.1)
    yield Spec(f"{at}.A_log", (heads,), "a_log", 16.0)
    yield Spec(f"{at}.dt_bias", (heads,), "dt_bias")


def _ple(p: Preset, at: str) -> Iterator[Spec]:
    hidden, width = p.hidden_size, p.hc_count * p.hidden_size
    shape = (ngram_constants(p).n_rows // p.split_ngram_parts, hidden // p.n_ngram_heads)
    for shard in range(p.split_ngram_parts):
        yield Spec(f"{at}.ple_embedding.ngram_embedding.shard_{shard}.weight", shape, "table", 1.0)
    for name in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"):
        yield Spec(f"{at}.ple_embedding.{name}", (len(constant(p, name)),), "constant")
    yield Spec(f"{at}.key_proj.weight", (width, hidden), "matrix", 1.0)
    yield Spec(f"{at}.value_proj.weight", (hidden, hidden), "matrix", 1.0)
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield Spec(f"{at}.{name}.weight", (width,), "norm", 0.1)
    yield Spec(f"{at}.conv1d.weight", (width, 1, 4), "matrix", 1.0)
