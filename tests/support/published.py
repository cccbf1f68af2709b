"""The config.json of the published model, as it is spelled there."""

from __future__ import annotations

import copy
from typing import Any

PUBLISHED: dict[str, Any] = {
    "model_type": "qwen4_exp", "tie_word_embeddings": False, "image_token_id": 248056,
    "video_token_id": 248057, "vision_start_token_id": 248053, "vision_end_token_id": 248054,
    "text_config": {
        "model_type": "qwen4_exp_text", "hidden_size": 2560, "num_hidden_layers": 48, "vocab_size": 248320,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12, "num_attention_heads": 24,
        "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10], "mrope_interleaved": True,
        },
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "output_gate_type": "sigmoid",
        "mamba_ssm_dtype": "float32", "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128,
        "indexer_budget": 2048, "indexer_compress_ratio": 4, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "norm_topk_prob": True,
        "intermediate_size": 12288, "hc_count": 4, "hc_lowrank": 320, "ple_layer_ids": [2],
        "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 8,
        "ngram_vocab_size_base": 20000000, "make_ngram_vocab_size_divisible_by": 128, "seed": 1234,
        "split_ngram_parts": 128, "eos_token_id": 248044, "bos_token_id": 248044, "mtp_num_hidden_layers": 1,
        "mtp": {"layer_types": ["full_attention"]}, "mtp_use_dedicated_embeddings": False,
    },
    "vision_config": {
        "model_type": "qwen4_exp_vision", "depth": 27, "hidden_size": 1152, "num_heads": 16,
        "intermediate_size": 4304, "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2,
        "in_channels": 3, "out_hidden_size": 2560, "num_position_embeddings": 2304,
        "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": [],
    },
}  # fmt: skip


def published(**text: Any) -> dict[str, Any]:
    """The same with other values in its text_config."""
    raw = copy.deepcopy(PUBLISHED)
    raw["text_config"].update(text)
    return raw
