"""Convert a checkpoint of make_model.py to GGUF and quantize it with llama.cpp's own quantizer.

    python bench/make_gguf.py HF_DIR OUT_DIR --types q8_0 q6_k q4_k
    python bench/make_gguf.py HF_DIR OUT_DIR --types f32 bf16 --check      compare with transformers

Quantized files are made from a BF16 file, which is deleted afterwards unless it is one of the types asked
for.
Extras: `peers`, and `oracle` for --check.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import gguf
import llamacpp
import mlx.core as mx
import numpy as np
from checkpoint_files import Checkpoint
from gguf_layout import items, read_tensor


def gguf_path(out: Path, checkpoint: Path, kind: str) -> Path:
    """The file of one type of one checkpoint."""
    return out / f"{checkpoint.name}-{kind}.gguf"


def write_gguf(root: Path, out: Path, kind: str, budget: int | None = None) -> None:
    """Write an F32 or BF16 file; norms, convolutions, routers and decay terms are F32 in both.

    Args:
        root: The Hugging Face checkpoint.
        out: The file.
        kind: "f32" or "bf16".
        budget: Replaces the number of positions that sparse attention selects.
    """
    checkpoint = Checkpoint(root)
    f32, bf16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.BF16
    writer = gguf.GGUFWriter(out, "qwen4exp")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if kind == "f32" else gguf.LlamaFileType.MOSTLY_BF16)
    write_metadata(writer, checkpoint, budget)
    write_vocabulary(writer, checkpoint, json.loads((root / "tokenizer.json").read_text()))
    listed = list(items(checkpoint))
    for item in listed:
        wide = kind == "f32" or item.keeps_float32
        size_bytes = math.prod(item.shape) * (4 if wide else 2)
        dtype: Any = np.dtype(np.float32)
        writer.add_tensor_info(item.name, item.shape, dtype, size_bytes, f32 if wide else bf16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for item in listed:
        x = mx.contiguous(item.load())
        assert x.shape == item.shape, f"{item.name}: {x.shape}, announced {item.shape}"
        wide = kind == "f32" or item.keeps_float32
        writer.write_tensor_data(np.array(x.astype(mx.float32) if wide else x.view(mx.uint16)))
    writer.close()


def write_metadata(writer: gguf.GGUFWriter, checkpoint: Checkpoint, budget: int | None) -> None:
    """Write the sizes that llama.cpp's graph is built from."""
    text = checkpoint.text_config
    rope = text["rope_parameters"]
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_key_length(text["head_dim"])
    writer.add_value_length(text["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(text["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_expert_count(text["num_experts"])
    writer.add_expert_used_count(text["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(text["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(text["shared_expert_intermediate_size"])
    writer.add_ssm_conv_kernel(text["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(text["linear_key_head_dim"])
    writer.add_ssm_group_count(text["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(text["linear_num_value_heads"])
    writer.add_ssm_inner_size(text["linear_value_head_dim"] * text["linear_num_value_heads"])

    ratio = text["indexer_compress_ratio"]
    numbers = {
        "full_attention_interval": text["full_attention_interval"],
        "hyper_connection.count": text["hc_count"],
        "hyper_connection.low_rank": text["hc_lowrank"],
        "attention.indexer.head_count": text["indexer_n_heads"],
        "attention.indexer.key_length": text["indexer_head_dim"],
        "attention.indexer.top_k": budget or text["indexer_budget"],
        "ple.ngram_size": text["ngram_size"],
        "ple.heads_per_ngram": text["heads_per_ngram"],
        "ple.conv_kernel": text["ple_conv_kernel_size"],
        "ple.eos_token_id": text["eos_token_id"],
        "ple.image_token_id": checkpoint.config["image_token_id"],
        "embedding_length_per_layer_input": text["ple_embed_dim"]
        // (text["heads_per_ngram"] * (text["ngram_size"] - 1)),
    }
    for key, value in numbers.items():
        writer.add_uint32(f"qwen4exp.{key}", value)
    kind = gguf.GGUFValueType
    lists = {
        "attention.compress_ratios": [ratio if t == "full_attention" else 0 for t in text["layer_types"]],
        "ple.layers": [i - 1 for i in text["ple_layer_ids"]],
    }
    for key, values in lists.items():
        writer.add_key_value(f"qwen4exp.{key}", values, kind.ARRAY, sub_type=kind.UINT32)
    constants = {
        "layer_multipliers": "layer_multipliers",
        "head_offsets": "ngram_heads_offsets",
        "head_vocab_sizes": "ngram_heads_vocab_sizes",
    }
    for key, name in constants.items():
        values = [int(v) for v in np.array(read_tensor(checkpoint, _tensor_ending(checkpoint, name)))]
        writer.add_key_value(f"qwen4exp.ple.{key}", values, kind.ARRAY, sub_type=kind.UINT64)


def write_vocabulary(writer: gguf.GGUFWriter, checkpoint: Checkpoint, tokenizer: dict[str, Any]) -> None:
    """Write the tokens and merges of a tokenizer.json."""
    text, kind = checkpoint.text_config, gguf.TokenType
    words = {i: token for token, i in tokenizer["model"]["vocab"].items()}
    added = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    ids = range(text["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list([words.get(i) or added.get(i) or f"[PAD{i}]" for i in ids])
    writer.add_token_types(
        [kind.NORMAL if i in words else kind.CONTROL if i in added else kind.UNUSED for i in ids]
    )
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(text["eos_token_id"])


def bytes_per_token(path: Path) -> dict[str, float]:
    """Weight bytes that one decoded token reads, by GGUF type.

    All of a matrix, the chosen experts' share of a stack of experts, one row of the embedding, and the n-gram
    rows of one token: the rule of Checkpoint.bytes_per_token.
    """
    reader = gguf.GGUFReader(path)

    def field(key: str) -> float:
        return float(reader.fields[f"qwen4exp.{key}"].contents())

    experts = field("expert_used_count") / field("expert_count")
    rows = field("ple.heads_per_ngram") * (field("ple.ngram_size") - 1)
    total: dict[str, float] = {}
    for tensor in reader.tensors:
        n = float(tensor.n_bytes)
        if "_exps." in tensor.name:
            n *= experts
        elif tensor.name == "token_embd.weight":
            n /= float(tensor.shape[1])
        elif tensor.name == "per_layer_token_embd.weight":
            n *= rows / float(tensor.shape[1])
        total[tensor.tensor_type.name] = total.get(tensor.tensor_type.name, 0.0) + n
    return total


def _tensor_ending(checkpoint: Checkpoint, suffix: str) -> str:
    return next(name for name in checkpoint.where if name.endswith(suffix))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--types", nargs="+", default=["q4_k"], choices=["f32", "bf16", *llamacpp.FTYPES])
    parser.add_argument(
        "--check", action="store_true", help="compare f32 and bf16 files with transformers in float32"
    )
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    mx.set_default_device(mx.Device(mx.cpu))
    mx.set_cache_limit(0)

    args.out.mkdir(parents=True, exist_ok=True)
    source = gguf_path(args.out, args.checkpoint, "bf16")
    is_kept = "bf16" in args.types or source.exists()
    for kind in sorted(args.types, key=["f32", "bf16", *llamacpp.FTYPES].index):
        path = gguf_path(args.out, args.checkpoint, kind)
        if kind in llamacpp.FTYPES:
            if not source.exists():
                write_gguf(args.checkpoint, source, "bf16")
            llamacpp.quantize(source, path, kind, args.threads)
        else:
            write_gguf(args.checkpoint, path, kind)
        read = bytes_per_token(path)
        parts = ", ".join(f"{k} {v / 1e6:.1f}" for k, v in sorted(read.items(), key=lambda kv: -kv[1]))
        size_gb, per_token_mb = path.stat().st_size / 1e9, sum(read.values()) / 1e6
        print(f"{path.name}: {size_gb:.3f} GB; a token reads {per_token_mb:.1f} MB ({parts})", flush=True)
        if args.check and kind not in llamacpp.FTYPES:
            from check_gguf import check  # the oracle extra, which converting does not need

            check(args.checkpoint, kind, args.out, args.threads)
    if not is_kept:
        source.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
