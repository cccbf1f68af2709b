"""Sizes of the random benchmark checkpoints, their config.json and their n-gram constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

SPECIALS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>"),
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
]
N_SPECIAL_ROWS = 276  # from the first special token to the end of the embedding, as in the real vocabulary
MLX_GROUP = 32  # the only group size that divides the n-gram rows of 160 values
NGRAM_SIZE = 3
PLE_LAYER = 1  # 0-based; config.json counts from 1


@dataclass(frozen=True)
class Preset:
    """Sizes spelled as in config.json; what a preset leaves out is the published model's.

    The n-gram table is the exception: 51 billion values would make the file, not the run, and a token reads
    sixteen short rows of it whatever its size.
    """

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    num_experts: int
    num_experts_per_tok: int = 10
    moe_intermediate_size: int = 640
    num_attention_heads: int = 24
    num_key_value_heads: int = 2
    head_dim: int = 256
    mrope_section: tuple[int, int, int] = (11, 11, 10)
    indexer_n_heads: int = 4
    indexer_head_dim: int = 128
    indexer_budget: int = 2048
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 48
    linear_head_dim: int = 128
    hc_count: int = 4
    hc_lowrank: int = 320
    heads_per_ngram: int = 8
    ngram_vocab_size_base: int = 20_000
    split_ngram_parts: int = 128
    max_position_embeddings: int = 262_144

    @property
    def layer_types(self) -> list[str]:
        """The mixer of each layer: every fourth is attention."""
        return [
            "linear_attention" if (i + 1) % 4 else "full_attention" for i in range(self.num_hidden_layers)
        ]

    @property
    def n_ngram_heads(self) -> int:
        """Rows of the n-gram table that one token reads."""
        return (NGRAM_SIZE - 1) * self.heads_per_ngram

    def special_id(self, token: str) -> int:
        """The id of one of SPECIALS; they follow the ordinary tokens."""
        return self.vocab_size - N_SPECIAL_ROWS + SPECIALS.index(token)


PRESETS = {
    # 8 index heads make ties of block scores (all heads negative) rare; a budget of 32 makes selection bite.
    "nano": Preset(
        hidden_size=256,
        num_hidden_layers=4,
        vocab_size=1024,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=64,
        num_attention_heads=4,
        head_dim=64,
        mrope_section=(3, 3, 2),
        indexer_n_heads=8,
        indexer_head_dim=32,
        indexer_budget=32,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_head_dim=32,
        hc_lowrank=32,
        heads_per_ngram=4,
        ngram_vocab_size_base=500,
        split_ngram_parts=4,
    ),
    "mid": Preset(hidden_size=2560, num_hidden_layers=8, vocab_size=32_768, num_experts=64),
    "wide": Preset(hidden_size=2560, num_hidden_layers=4, vocab_size=32_768, num_experts=256),
}


@dataclass(frozen=True)
class NgramConstants:
    """What the hashed n-gram embedding derives from the vocabulary (ARCHITECTURE 2.3).

    Attributes:
        layer_multipliers: One odd factor for each of the NGRAM_SIZE token positions.
        ngram_heads_vocab_sizes: Consecutive primes, one for each hash head.
        ngram_heads_offsets: The table row at which each head's part begins.
        n_rows: Rows of the whole table, padded to a multiple of 128.
    """

    layer_multipliers: list[int]
    ngram_heads_vocab_sizes: list[int]
    ngram_heads_offsets: list[int]
    n_rows: int


def ngram_constants(preset: Preset, seed: int = 1234) -> NgramConstants:
    """Derive the constants of a checkpoint's only n-gram module."""
    golden = 0x9E3779B97F4A7C15
    half = max(1, (2**63 - 1) // preset.vocab_size // 2)
    multipliers = [2 * (_splitmix64((seed + golden * (i + 1)) % 2**64) % half) + 1 for i in range(NGRAM_SIZE)]
    primes = (n for n in range(preset.ngram_vocab_size_base, 2**31) if _is_prime(n))
    sizes = list(islice(primes, preset.n_ngram_heads))
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    return NgramConstants(multipliers, sizes, offsets, -(-sum(sizes) // 128) * 128)


def config(preset: Preset, bits: int | None) -> dict[str, Any]:
    """The config.json of a preset.

    Args:
        preset: The sizes.
        bits: Bits of the MLX affine layout, or None for the Hugging Face layout.
    """
    eos = preset.special_id("<|endoftext|>")
    text: dict[str, Any] = dict(
        model_type="qwen4_exp_text",
        dtype="bfloat16",
        vocab_size=preset.vocab_size,
        hidden_size=preset.hidden_size,
        num_hidden_layers=preset.num_hidden_layers,
        full_attention_interval=4,
        layer_types=preset.layer_types,
        num_attention_heads=preset.num_attention_heads,
        num_key_value_heads=preset.num_key_value_heads,
        head_dim=preset.head_dim,
        rope_parameters=dict(
            rope_type="default",
            rope_theta=1e7,
            partial_rotary_factor=0.25,
            mrope_section=list(preset.mrope_section),
            mrope_interleaved=True,
        ),
        max_position_embeddings=preset.max_position_embeddings,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        attention_bias=False,
        linear_num_key_heads=preset.linear_num_key_heads,
        linear_num_value_heads=preset.linear_num_value_heads,
        linear_key_head_dim=preset.linear_head_dim,
        linear_value_head_dim=preset.linear_head_dim,
        linear_conv_kernel_dim=4,
        output_gate_type="sigmoid",
        mamba_ssm_dtype="float32",
        indexer_n_heads=preset.indexer_n_heads,
        indexer_kv_heads=1,
        indexer_head_dim=preset.indexer_head_dim,
        indexer_budget=preset.indexer_budget,
        indexer_compress_ratio=4,
        num_experts=preset.num_experts,
        num_experts_per_tok=preset.num_experts_per_tok,
        moe_intermediate_size=preset.moe_intermediate_size,
        shared_expert_intermediate_size=preset.moe_intermediate_size,
        norm_topk_prob=True,
        hc_count=preset.hc_count,
        hc_lowrank=preset.hc_lowrank,
        ple_layer_ids=[PLE_LAYER + 1],
        ple_embed_dim=preset.hidden_size,
        ple_conv_kernel_size=4,
        ngram_size=NGRAM_SIZE,
        heads_per_ngram=preset.heads_per_ngram,
        ngram_vocab_size_base=preset.ngram_vocab_size_base,
        make_ngram_vocab_size_divisible_by=128,
        seed=1234,
        split_ngram_parts=preset.split_ngram_parts,
        bos_token_id=eos,
        eos_token_id=eos,
        tie_word_embeddings=False,
        mtp_num_hidden_layers=1,
        mtp_use_dedicated_embeddings=False,
        mtp=dict(layer_types=["full_attention"]),
    )
    whole: dict[str, Any] = dict(
        architectures=["Qwen4ExpForConditionalGeneration"],
        model_type="qwen4_exp",
        text_config=text,
        tie_word_embeddings=False,
        image_token_id=preset.special_id("<|image_pad|>"),
        video_token_id=preset.special_id("<|video_pad|>"),
        vision_start_token_id=preset.special_id("<|vision_start|>"),
        vision_end_token_id=preset.special_id("<|vision_end|>"),
    )
    if bits is not None:
        whole["quantization"] = dict(group_size=MLX_GROUP, bits=bits, mode="affine")
    return whole


def constant(preset: Preset, name: str) -> Sequence[int]:
    """The values of an int64 tensor of the n-gram module, by the last part of its name."""
    values: Sequence[int] = getattr(ngram_constants(preset), name)
    return values


def _splitmix64(v: int) -> int:
    v = (v + 0x9E3779B97F4A7C15) % 2**64
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    v = (v ^ v >> 27) * 0x94D049BB133111EB % 2**64
    return v ^ v >> 31


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))
