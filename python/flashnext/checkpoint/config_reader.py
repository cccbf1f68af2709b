"""config.json of a checkpoint, read into one frozen, fully validated `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashnext.checkpoint.config import PAGE_TOKENS, ModelConfig, YarnConfig
from flashnext.checkpoint.fields import Fields, shown
from flashnext.checkpoint.ngram import NgramConstants, ngram_constants
from flashnext.errors import CheckpointError

_MODEL_TYPES = ("qwen4_exp", "qwen3_8_flash_next")
_TEXT_TYPES = ("qwen4_exp_text", "qwen3_8_flash_next_text")
_VISION_TYPES = (
    "qwen4_exp_vision", "qwen4_exp", "qwen3_5_vision", "qwen3_8_flash_next_vision", "qwen3_8_flash_next",
)  # fmt: skip
_ATTENTION_TYPES = ("full_attention", "indexed_attention", "qwen_sparse_attention")


def parse_config(raw: Mapping[str, Any], where: str = "config.json: ") -> ModelConfig:
    """Read a parsed config.json, with the text model nested under `text_config` or flat.

    Args:
        raw: The JSON object.
        where: How error sentences call the file; ends in a separator.

    Raises:
        CheckpointError: A field is missing, has the wrong type or is out of range, two fields contradict each
            other, or the file describes something that flashnext does not support.
    """
    top = Fields(raw, where)
    nested = top.section("text_config")
    text = nested if nested is not None else top
    _check_model_type(top, text, nested is not None)
    for fields in (top, text):
        fields.must_be("tie_word_embeddings", False, "the head has weights of its own")
    _check_fixed_options(text)

    hidden = text.integer("hidden_size", 1, 2**16)
    vocab = text.integer("vocab_size", 2, 2**24)
    layers = text.integer("num_hidden_layers", 1, 1024)
    attention = _attention_layers(text, layers)
    head_dim = text.integer("head_dim", 2, 2**12)
    heads = text.integer("num_attention_heads", 1, 2**12)
    kv_heads = text.integer("num_key_value_heads", 1, 2**12)
    if heads % kv_heads:
        raise CheckpointError(
            f"{text.name('num_attention_heads')} is {heads}, which is not a multiple of num_key_value_heads "
            f"{kv_heads}"
        )
    k_heads = text.integer("linear_num_key_heads", 1, 2**12)
    v_heads = text.integer("linear_num_value_heads", 1, 2**12)
    if v_heads % k_heads:
        raise CheckpointError(
            f"{text.name('linear_num_value_heads')} is {v_heads}, which is not a multiple of "
            f"linear_num_key_heads {k_heads}"
        )
    experts = text.integer("num_experts", 1, 2**16)
    top_k = text.integer("num_experts_per_tok", 1, experts)
    max_position = text.integer("max_position_embeddings", 1, 2**31 - 1)
    rope_type, theta, rotary_dim, sections, yarn = _rope(text, head_dim, max_position)
    index_heads, index_dim, index_budget, index_ratio = _index(text, rotary_dim)
    eos = _eos(text, vocab)
    ple_layers = _ple_layers(text, layers, attention)
    ple_dim, ngram_size, ngram_heads, shards, constants = _ngram(text, vocab, hidden, len(ple_layers))
    media = [
        _media_token(top, f"{name}_token_id", vocab)
        for name in ("image", "video", "vision_start", "vision_end")
    ]
    return ModelConfig(
        vocab_size=vocab, hidden_size=hidden, n_layers=layers, attention_layers=attention, n_heads=heads,
        n_kv_heads=kv_heads, head_dim=head_dim, rotary_dim=rotary_dim, mrope_section=sections,
        rope_theta=theta, rope_type=rope_type, yarn=yarn, max_position=max_position,
        index_n_heads=index_heads, index_head_dim=index_dim, index_budget=index_budget,
        index_ratio=index_ratio, linear_k_heads=k_heads, linear_v_heads=v_heads,
        linear_k_dim=text.integer("linear_key_head_dim", 1, 2**12),
        linear_v_dim=text.integer("linear_value_head_dim", 1, 2**12),
        linear_conv=text.integer("linear_conv_kernel_dim", 1, 64), output_gate=_output_gate(text),
        n_experts=experts, top_k=top_k, moe_width=text.integer("moe_intermediate_size", 1, 2**16),
        shared_width=text.integer("shared_expert_intermediate_size", 1, 2**16),
        hc_count=text.integer("hc_count", 2, 64), hc_rank=text.integer("hc_lowrank", 1, 2**16),
        ple_layers=ple_layers, ple_dim=ple_dim, ple_conv=text.integer("ple_conv_kernel_size", 1, 64, 4),
        ngram_size=ngram_size, heads_per_ngram=ngram_heads, ngram_shards=shards,
        ngram_multipliers=tuple(c.multipliers for c in constants),
        ngram_sizes=tuple(c.sizes for c in constants), ngram_offsets=tuple(c.offsets for c in constants),
        ngram_rows=tuple(c.rows for c in constants), segment_token=eos[0], text_eos=eos,
        rms_eps=text.number("rms_norm_eps", 1e-12, 1e-1), n_mtp_layers=_mtp(text, theta),
        image_token=media[0], video_token=media[1], vision_start_token=media[2], vision_end_token=media[3],
        vision=_vision(top, hidden),
    )  # fmt: skip


def _check_model_type(top: Fields, text: Fields, nested: bool) -> None:
    allowed = _MODEL_TYPES if nested else _TEXT_TYPES
    checks = [(top, allowed)] + ([(text, _TEXT_TYPES)] if nested else [])
    for fields, types in checks:
        found = fields.text("model_type")
        if found not in types:
            raise CheckpointError(
                f"{fields.name('model_type')} is {shown(found)}, but flashnext serves only the "
                f"Qwen3.8-Flash-Next family ({', '.join(types)})"
            )


def _check_fixed_options(text: Fields) -> None:
    text.must_be("hidden_act", "silu", "experts and convolutions use SiLU")
    text.must_be("attention_bias", False, "the projections have no bias")
    text.must_be("attn_output_gate", True, "attention has an output gate")
    text.must_be("norm_topk_prob", True, "expert weights are renormalized")
    text.must_be("mamba_ssm_dtype", "float32", "recurrent states are float32")
    text.must_be("mtp_use_dedicated_embeddings", False, "the draft head shares the embedding")
    text.must_be("mlp_only_layers", [], "every layer has experts")
    text.must_be("decoder_sparse_step", 1, "every layer has experts")


def _attention_layers(text: Fields, layers: int) -> tuple[bool, ...]:
    if "layer_types" not in text:
        interval = text.integer("full_attention_interval", 1, 1024, 4)
        kinds = tuple((i + 1) % interval == 0 for i in range(layers))
    else:
        names = text.texts("layer_types", 1024)
        if len(names) != layers:
            raise CheckpointError(
                f"{text.name('layer_types')} has {len(names)} entries, but num_hidden_layers is {layers}"
            )
        for name in names:
            if name != "linear_attention" and name not in _ATTENTION_TYPES:
                raise CheckpointError(
                    f"{text.name('layer_types')} holds {shown(name)}, but flashnext supports only "
                    f"linear_attention and {', '.join(_ATTENTION_TYPES)}"
                )
        kinds = tuple(name in _ATTENTION_TYPES for name in names)
    if not any(kinds):
        raise CheckpointError(
            f"{text.name('layer_types')} has no attention layer; flashnext needs at least one"
        )
    return kinds


def _rope(
    text: Fields, head_dim: int, max_position: int
) -> tuple[str, float, int, tuple[int, int, int], YarnConfig | None]:
    # transformers reads the older key `rope_scaling` in preference to `rope_parameters`, and lets rope_theta
    # and partial_rotary_factor beside the section stand in for missing ones inside it.
    rope = (
        text.section("rope_scaling")
        or text.section("rope_parameters")
        or Fields({}, f"{text.where}rope_parameters.")
    )
    theta = (rope if "rope_theta" in rope else text).number("rope_theta", 1.0 + 1e-6, 1e12)
    partial = (rope if "partial_rotary_factor" in rope else text).number(
        "partial_rotary_factor", 0.0, 1.0, 1.0
    )
    rotary_dim = int(head_dim * partial)
    if rotary_dim < 2 or rotary_dim % 2:
        raise CheckpointError(
            f"{rope.name('partial_rotary_factor')} is {partial:g} of head_dim {head_dim}, which gives "
            f"{rotary_dim} rotary dimensions; an even number from 2 is needed"
        )
    rope.must_be("mrope_interleaved", True, "the rotary axes are interleaved")
    sections = rope.integers("mrope_section", 0, 2**12, 3, (11, 11, 10))
    time, height, width = (
        sections if len(sections) == 3 else rope.refuse("mrope_section", "a list of three counts")
    )
    half = rotary_dim // 2
    if time + height + width != half or max(3 * height - 2, 3 * width - 1) >= half:
        raise CheckpointError(
            f"{rope.name('mrope_section')} is {list(sections)}, which does not interleave over the {half} "
            f"rotary frequencies of head_dim {head_dim}"
        )
    kind_field = "rope_type" if "rope_type" in rope else "type"
    kind = rope.text(kind_field, "default")
    if kind == "default":
        return kind, theta, rotary_dim, (time, height, width), None
    if kind != "yarn":
        raise CheckpointError(
            f"{rope.name(kind_field)} is {shown(kind)}, which flashnext does not support; only default and "
            "yarn are"
        )
    return kind, theta, rotary_dim, (time, height, width), _yarn(text, rope, max_position)


def _yarn(text: Fields, rope: Fields, max_position: int) -> YarnConfig:
    holder = text if "original_max_position_embeddings" in text else rope
    original = holder.integer("original_max_position_embeddings", 1, 2**31 - 1, max_position)
    factor = rope.number("factor", 1.0, 1024.0, max(1.0, max_position / original))
    # Zero means unset here, as in transformers.
    beta_fast = rope.number("beta_fast", 0.0, 1e6, 0.0) or 32.0
    beta_slow = rope.number("beta_slow", 0.0, 1e6, 0.0) or 1.0
    if beta_fast < beta_slow:
        raise CheckpointError(
            f"{rope.name('beta_fast')} is {beta_fast:g}, which is less than beta_slow {beta_slow:g}"
        )

    def optional(field: str, low: float) -> float | None:
        return rope.number(field, low, 1e6) if field in rope else None

    return YarnConfig(
        factor=factor, original_max_position=original, beta_fast=beta_fast, beta_slow=beta_slow,
        attention_factor=optional("attention_factor", 1e-6), mscale=optional("mscale", 0.0),
        mscale_all_dim=optional("mscale_all_dim", 0.0), truncate=rope.flag("truncate", True),
    )  # fmt: skip


def _index(text: Fields, rotary_dim: int) -> tuple[int, int, int, int]:
    heads = text.integer("indexer_n_heads", 1, 1024)
    text.must_be("indexer_kv_heads", 1, "the indexer has one key")
    dim = text.integer("indexer_head_dim", 2, 2**12)
    if dim < rotary_dim:
        raise CheckpointError(
            f"{text.name('indexer_head_dim')} is {dim}, which is less than the {rotary_dim} rotary "
            "dimensions of a head"
        )
    ratio = text.integer("indexer_compress_ratio", 1, 2**16)
    if PAGE_TOKENS % ratio:
        raise CheckpointError(
            f"{text.name('indexer_compress_ratio')} is {ratio}, which does not divide the {PAGE_TOKENS} "
            "tokens of a cache page"
        )
    budget = text.integer("indexer_budget", 1, 2**24)
    if budget % ratio:
        raise CheckpointError(
            f"{text.name('indexer_budget')} is {budget}, which is not a multiple of indexer_compress_ratio "
            f"{ratio}"
        )
    return heads, dim, budget, ratio


def _output_gate(text: Fields) -> str:
    gate = text.text("output_gate_type", "silu")  # unset, the gate takes hidden_act, which is silu here
    if gate not in ("sigmoid", "silu"):
        text.refuse("output_gate_type", "sigmoid or silu")
    return gate


def _eos(text: Fields, vocab: int) -> tuple[int, ...]:
    if isinstance(text.values.get("eos_token_id"), list):
        ids = text.integers("eos_token_id", 0, vocab - 1, 64)
        return ids if ids else text.refuse("eos_token_id", "a token id or a list of at least one")
    return (text.integer("eos_token_id", 0, vocab - 1),)


def _ple_layers(text: Fields, layers: int, attention: tuple[bool, ...]) -> tuple[int, ...]:
    one_based = text.integers("ple_layer_ids", 1, layers, 1024, ())
    ple_layers = tuple(sorted({i - 1 for i in one_based}))
    for layer in ple_layers:
        if attention[layer]:
            raise CheckpointError(
                f"{text.name('ple_layer_ids')} names layer {layer + 1} (counted from 1), which is an "
                "attention layer; an n-gram embedding is supported on linear_attention layers only"
            )
    return ple_layers


def _ngram(
    text: Fields, vocab: int, hidden: int, modules: int
) -> tuple[int, int, int, int, tuple[NgramConstants, ...]]:
    dim = text.integer("ple_embed_dim", 1, 2**16, hidden)
    size = text.integer("ngram_size", 2, 8, 3)
    heads = text.integer("heads_per_ngram", 1, 256, 8)
    shards = text.integer("split_ngram_parts", 1, 2**16, 512)
    constants = ngram_constants(
        vocab_size=vocab, ngram_size=size, heads_per_ngram=heads,
        size_base=text.integer("ngram_vocab_size_base", 1, 2**31 - 1, 20_000_000),
        row_multiple=text.integer("make_ngram_vocab_size_divisible_by", 1, 2**24, 128),
        seed=text.integer("seed", 0, 2**63 - 1, 1234), modules=modules,
    )  # fmt: skip
    if modules and dim % ((size - 1) * heads):
        raise CheckpointError(
            f"{text.name('ple_embed_dim')} is {dim}, which is not a multiple of the {(size - 1) * heads} "
            "n-gram heads"
        )
    for module in constants:
        if module.rows % shards:
            raise CheckpointError(
                f"{text.name('split_ngram_parts')} is {shards}, which does not divide the {module.rows} rows "
                "of the n-gram table"
            )
    return dim, size, heads, shards, constants


def _mtp(text: Fields, theta: float) -> int:
    count = text.integer("mtp_num_hidden_layers", 0, 1024, 0)
    if count > 1:
        raise CheckpointError(
            f"{text.name('mtp_num_hidden_layers')} is {count}; flashnext supports a draft head of one layer"
        )
    mtp = text.section("mtp")
    if not count or mtp is None:
        return count
    if "layer_types" in mtp:
        names = mtp.texts("layer_types", 16)
        if len(names) != count or any(name not in _ATTENTION_TYPES for name in names):
            mtp.refuse("layer_types", f"a list of {count} attention layer type")
    mtp.must_be("num_hidden_layers", count, f"mtp_num_hidden_layers is {count}")
    mtp.must_be("mtp_use_hidden_state_from_layer", None, "the draft head reads the last layer's streams")
    if "rope_theta" in mtp and mtp.number("rope_theta", 1.0, 1e12) != theta:
        mtp.refuse("rope_theta", f"the text model's {theta:g}")
    return count


def _media_token(top: Fields, field: str, vocab: int) -> int | None:
    return top.integer(field, 0, vocab - 1) if field in top else None


def _vision(top: Fields, hidden: int) -> dict[str, int] | None:
    vision = top.section("vision_config")
    if vision is None:
        return None
    kind = vision.text("model_type", _VISION_TYPES[0])
    if kind not in _VISION_TYPES:
        vision.refuse("model_type", f"one of {', '.join(_VISION_TYPES)}")
    vision.must_be("hidden_act", "gelu_pytorch_tanh", "the tower uses the tanh form of GELU")
    vision.must_be("deepstack_visual_indexes", [], "features of inner tower layers are not used")
    limits = {
        "depth": 1024, "hidden_size": 2**16, "intermediate_size": 2**18, "num_heads": 1024, "in_channels": 64,
        "patch_size": 1024, "temporal_patch_size": 64, "spatial_merge_size": 64, "out_hidden_size": 2**16,
        "num_position_embeddings": 2**24,
    }  # fmt: skip
    sizes = {field: vision.integer(field, 1, high) for field, high in limits.items()}
    if sizes["hidden_size"] % (4 * sizes["num_heads"]):
        vision.refuse("hidden_size", f"a multiple of four times num_heads {sizes['num_heads']}")
    if sizes["out_hidden_size"] != hidden:
        vision.refuse("out_hidden_size", f"the text model's hidden_size {hidden}")
    side = round(sizes["num_position_embeddings"] ** 0.5)
    if side * side != sizes["num_position_embeddings"]:
        vision.refuse("num_position_embeddings", "a square number")
    return sizes
