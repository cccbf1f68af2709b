"""config.json: what is accepted, under which spellings, and by which sentence everything else is refused."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
from flashnext.checkpoint import ModelConfig, parse_config
from flashnext.checkpoint.affine import Affine, parse_quantization
from flashnext.checkpoint.names import Kind, hf_name, model_specs
from flashnext.checkpoint.ngram import is_prime, ngram_constants
from flashnext.checkpoint.summary import part_of
from flashnext.errors import CheckpointError
from hypothesis import given, settings
from hypothesis import strategies as st
from support.published import PUBLISHED, published
from support.random_checkpoint import random_config


def test_the_published_model_has_its_published_constants() -> None:
    config = parse_config(PUBLISHED)
    assert config.ngram_multipliers == ((23703573157769, 20109073645365, 8052911324071),)
    assert config.ngram_sizes[0][:4] == (20000003, 20000023, 20000033, 20000047)
    assert config.ngram_sizes[0][-1] == 20000171
    assert config.ngram_offsets[0][:3] == (0, 20000003, 40000026)
    assert config.ngram_offsets[0][-1] == 300001275
    assert config.ngram_rows == (320_001_536,)
    assert config.ple_layers == (1,)
    assert config.rotary_dim == 64
    assert [i for i, kind in enumerate(config.attention_layers) if kind] == list(range(3, 48, 4))
    assert (config.default_context, config.largest_context) == (262144, 1048576)


def test_the_published_models_tensors_add_up_to_its_published_size() -> None:
    specs = [spec for spec in model_specs(parse_config(PUBLISHED)) if spec.kind is not Kind.SCALE]
    values = sum(math.prod(spec.shape) for spec in specs if spec.kind is not Kind.CONSTANT)
    constants = sum(math.prod(spec.shape) for spec in specs if spec.kind is Kind.CONSTANT)
    assert (values, constants) == (179_999_981_424, 35)
    assert 2 * values + 8 * constants == 359_999_963_128
    fused = sum(spec.name.endswith(".experts.up_proj.weight") for spec in specs)
    assert len(specs) - fused == 1658
    assert sum(spec.name.startswith("visual.") for spec in specs) == 333
    assert len({hf_name(spec.name) for spec in specs}) == len(specs)


def test_parts_of_the_published_model_have_the_known_value_counts() -> None:
    counts: dict[str, int] = {}
    for spec in model_specs(parse_config(PUBLISHED)):
        if spec.kind not in (Kind.CONSTANT, Kind.SCALE):
            counts[part_of(spec.name)] = counts.get(part_of(spec.name), 0) + math.prod(spec.shape)
    assert counts == {
        "routed experts": 120_795_955_200, "n-gram table": 51_200_245_760, "DeltaNet": 2_086_510_464,
        "attention": 617_358_336, "hyper-connections": 640_624_640, "shared experts": 236_052_480,
        "routers": 62_914_560, "embedding": 635_699_200, "output head": 635_699_200,
        "n-gram projections": 32_839_680, "draft head": 2_607_150_848, "vision tower": 448_931_056,
    }  # fmt: skip


def test_a_flat_text_config_reads_like_a_nested_one() -> None:
    flat = parse_config(PUBLISHED["text_config"])
    nested = parse_config(PUBLISHED)
    same = dataclasses.replace(
        nested,
        vision=None,
        image_token=None,
        video_token=None,
        vision_start_token=None,
        vision_end_token=None,
    )
    assert flat == same


@pytest.mark.parametrize("types", ["qwen4_exp", "qwen3_8_flash_next"])
@pytest.mark.parametrize("attention", ["full_attention", "indexed_attention", "qwen_sparse_attention"])
@pytest.mark.parametrize("vision", ["qwen4_exp_vision", "qwen4_exp", "qwen3_5_vision"])
def test_all_spellings_of_types_are_one_model(types: str, attention: str, vision: str) -> None:
    raw = published(model_type=f"{types}_text", layer_types=(["linear_attention"] * 3 + [attention]) * 12)
    raw["model_type"] = types
    raw["text_config"]["mtp"]["layer_types"] = [attention]
    raw["vision_config"]["model_type"] = vision
    assert parse_config(raw) == parse_config(PUBLISHED)


def test_keys_with_defaults_may_be_missing() -> None:
    raw = published()
    text = raw["text_config"]
    del text["layer_types"]
    for key in (
        "ple_embed_dim", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base",
        "seed",
        "make_ngram_vocab_size_divisible_by", "norm_topk_prob", "attention_bias", "mamba_ssm_dtype",
        "hidden_act", "mtp",
        "indexer_kv_heads", "intermediate_size", "bos_token_id",
    ):  # fmt: skip
        del text[key]
    for key in ("mrope_section", "mrope_interleaved", "rope_type"):
        del text["rope_parameters"][key]
    assert parse_config(raw) == parse_config(PUBLISHED)
    del text["output_gate_type"]
    assert parse_config(raw).output_gate == "silu"
    text["full_attention_interval"] = 3
    assert parse_config(raw).attention_layers[:6] == (False, False, True) * 2


def test_theta_and_rotary_share_may_stand_beside_the_rope_section() -> None:
    raw = published(rope_theta=10000000, partial_rotary_factor=0.25)
    for key in ("rope_theta", "partial_rotary_factor"):
        del raw["text_config"]["rope_parameters"][key]
    assert parse_config(raw) == parse_config(PUBLISHED)


def test_the_first_of_several_eos_ids_ends_ngram_segments() -> None:
    config = parse_config(published(eos_token_id=[248044, 248046]))
    assert (config.segment_token, config.text_eos) == (248044, (248044, 248046))


def test_a_second_ngram_module_continues_the_primes_of_the_first() -> None:
    config = parse_config(random_config({"num_hidden_layers": 8, "ple_layer_ids": [6, 2, 2]}))
    assert config.ple_layers == (1, 5)
    sizes = config.ngram_sizes[0] + config.ngram_sizes[1]
    primes = [n for n in range(97, 200) if all(n % d for d in range(2, n))]
    assert sizes == tuple(primes[: len(sizes)])
    assert config.ngram_multipliers[0] != config.ngram_multipliers[1]


def test_hashed_products_stay_below_two_to_the_63() -> None:
    for vocab in (2, 1000, 248320, 2**24):
        module = ngram_constants(
            vocab_size=vocab,
            ngram_size=8,
            heads_per_ngram=1,
            size_base=2,
            row_multiple=1,
            seed=2**63 - 1,
            modules=1,
        )[0]
        assert max(module.multipliers) * (vocab - 1) < 2**63


def test_is_prime_agrees_with_trial_division() -> None:
    known = [n for n in range(2, 5000) if all(n % d for d in range(2, math.isqrt(n) + 1))]
    assert [n for n in range(5000) if is_prime(n)] == known
    for pseudoprime in (2047, 3215031751, 3825123056546413051, 341550071728321):
        assert not is_prime(pseudoprime)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "qwen3_next"}, "model_type is 'qwen3_next', but flashnext serves only"),
        ({"model_type": None}, "model_type is missing"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True, which flashnext does not support"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype is 'bfloat16'"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"mlp_only_layers": [3]}, r"mlp_only_layers is \[3\]"),
        ({"output_gate_type": "tanh"}, "output_gate_type must be sigmoid or silu, found 'tanh'"),
        ({"num_key_value_heads": 5}, "num_attention_heads is 24, which is not a multiple of num_key_value"),
        ({"linear_num_value_heads": 40}, "linear_num_value_heads is 40, which is not a multiple"),
        ({"indexer_compress_ratio": 48}, "indexer_compress_ratio is 48, which does not divide the 64 tokens"),
        ({"indexer_budget": 2050}, "indexer_budget is 2050, which is not a multiple of indexer_compress"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads is 2"),
        ({"indexer_n_heads": None}, "indexer_n_heads is missing"),
        ({"indexer_head_dim": 32}, "indexer_head_dim is 32, which is less than the 64 rotary dimensions"),
        ({"num_experts_per_tok": 513}, "num_experts_per_tok must be a whole number from 1 to 512, found 513"),
        ({"hidden_size": True}, "hidden_size must be a whole number from 1 to 65536, found True"),
        ({"hidden_size": 2560.0}, "hidden_size must be a whole number .* found 2560.0"),
        ({"hidden_size": "2560"}, "hidden_size must be a whole number .* found '2560'"),
        ({"hidden_size": -1}, "hidden_size must be a whole number .* found -1"),
        ({"hidden_size": 10**40}, "found a number of more than 30 digits"),
        ({"hidden_size": None}, "hidden_size is missing; it must be a whole number"),
        ({"num_hidden_layers": 47}, "layer_types has 48 entries, but num_hidden_layers is 47"),
        ({"layer_types": ["linear_attention"] * 48}, "no attention layer"),
        ({"layer_types": ["sliding_attention"] * 48}, "layer_types holds 'sliding_attention'"),
        ({"layer_types": "full_attention"}, "layer_types must be a list"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number from 1e-12 to 0.1, found 0"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": math.inf}, "rms_norm_eps must be a number"),
        ({"eos_token_id": 248320}, "eos_token_id must be a whole number from 0 to 248319, found 248320"),
        ({"eos_token_id": []}, "eos_token_id must be a token id or a list of at least one"),
        ({"eos_token_id": None}, "eos_token_id is missing"),
        ({"ple_layer_ids": [4]}, "names layer 4 .* which is an attention layer"),
        ({"ple_layer_ids": [0]}, "ple_layer_ids must be a list"),
        ({"ple_layer_ids": [49]}, "ple_layer_ids must be a list"),
        ({"ple_embed_dim": 2568}, "ple_embed_dim is 2568, which is not a multiple of the 16 n-gram heads"),
        ({"split_ngram_parts": 127}, "split_ngram_parts is 127, which does not divide the 320001536 rows"),
        ({"ngram_size": 1}, "ngram_size must be a whole number from 2"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers is 2; flashnext supports a draft head of one"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings is True"),
        ({"mtp": {"layer_types": ["linear_attention"]}}, "mtp.layer_types must be"),
        ({"mtp": {"rope_theta": 1e4}}, r"mtp.rope_theta must be the text model's 1e\+07"),
        ({"rope_parameters": None}, "rope_theta is missing"),
        ({"rope_parameters": []}, r"rope_parameters must be an object, found \[\]"),
        ({"hc_count": 1}, "hc_count must be a whole number from 2"),
        ({"head_dim": 250}, "gives 62 rotary dimensions|mrope_section"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)  # fmt: skip
def test_unsupported_text_configs_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        parse_config(published(**changes))
    assert str(caught.value).startswith("config.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_type": "longrope"}, "rope_type is 'longrope'"),
        ({"mrope_interleaved": False}, "mrope_interleaved is False"),
        ({"mrope_section": [11, 11]}, "mrope_section must be a list of three counts"),
        ({"mrope_section": [8, 12, 12]}, r"mrope_section is \[8, 12, 12\], which does not interleave"),
        ({"mrope_section": [16, 16, 16]}, "which does not interleave over the 32 rotary frequencies"),
        ({"partial_rotary_factor": 0.0}, "gives 0 rotary dimensions"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be a number from 0 to 1, found 1.5"),
        ({"rope_theta": 1}, "rope_theta must be a number"),
        ({"rope_type": "yarn", "factor": 0.5}, "factor must be a number from 1 to 1024, found 0.5"),
        ({"rope_type": "yarn", "factor": "4"}, "factor must be a number"),
        (
            {"rope_type": "yarn", "beta_fast": 1, "beta_slow": 2},
            "beta_fast is 1, which is less than beta_slow 2",
        ),
        ({"rope_type": "yarn", "truncate": 1}, "truncate must be true or false, found 1"),
    ],
    ids=str,
)
def test_unsupported_rope_sections_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    raw = published()
    raw["text_config"]["rope_parameters"].update(changes)
    with pytest.raises(CheckpointError, match=words):
        parse_config(raw)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "siglip"}, "vision_config.model_type must be one of"),
        ({"hidden_act": "gelu"}, "vision_config.hidden_act is 'gelu'"),
        ({"deepstack_visual_indexes": [8]}, "deepstack_visual_indexes is"),
        ({"out_hidden_size": 2048}, "out_hidden_size must be the text model's hidden_size 2560, found 2048"),
        ({"num_position_embeddings": 2305}, "must be a square number"),
        ({"hidden_size": 1150}, "must be a multiple of four times num_heads 16"),
        ({"depth": None}, "vision_config.depth is missing"),
    ],
    ids=str,
)
def test_unsupported_vision_towers_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    raw = published()
    raw["vision_config"].update(changes)
    with pytest.raises(CheckpointError, match=words):
        parse_config(raw)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**64, -(2**70)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_value_of_any_field_escapes_as_another_exception(data: st.DataObject) -> None:
    raw = copy.deepcopy(PUBLISHED)
    raw["text_config"]["ngram_vocab_size_base"] = 1000
    raw["text_config"]["split_ngram_parts"] = 1
    holders = [raw, raw["text_config"], raw["text_config"]["rope_parameters"], raw["vision_config"]]
    holders.append(raw["text_config"]["mtp"])
    for _ in range(data.draw(st.integers(1, 3))):
        holder = data.draw(st.sampled_from(holders))
        holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(JSON)
    try:
        config = parse_config(raw)
    except CheckpointError as error:
        assert "\n" not in str(error)
        assert str(error).isprintable()
    else:
        assert isinstance(config, ModelConfig)


GLOBAL = {"group_size": 32, "bits": 6, "mode": "affine"}


def test_both_quantization_spellings_are_read() -> None:
    for key in ("quantization", "quantization_config"):
        for raw in ({key: GLOBAL}, {"text_config": {key: GLOBAL}}):
            quantization = parse_quantization(raw)
            assert quantization is not None
            assert quantization.default == Affine(6, 32)
    assert parse_quantization({"quantization": GLOBAL, "quantization_config": GLOBAL}) == quantization
    assert parse_quantization({}) is None


def test_module_entries_take_the_defaults_of_mlx_for_missing_keys() -> None:
    section = GLOBAL | {
        "language_model.model.layers.0.mlp.switch_mlp.up_proj": {"bits": 8},
        "language_model.lm_head": {"group_size": 128},
        "language_model.model.embed_tokens": True,
        "language_model.mtp.fc_hidden": False,
        "vision_model.odd": False,
    }
    quantization = parse_quantization({"quantization": section})
    assert quantization is not None
    assert quantization.of("layers.0.mlp.experts.up_proj") == Affine(8, 64)
    assert quantization.of("lm_head") == Affine(4, 128)
    assert quantization.of("embed_tokens") == Affine(6, 32)
    assert quantization.of("mtp.fc_hidden") is None
    assert quantization.of("layers.1.self_attn.q_proj") == Affine(6, 32)
    assert quantization.unknown == ("vision_model.odd",)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (GLOBAL | {"bits": 0}, "quantization.bits must be one of 2, 3, 4, 5, 6, 8, found 0"),
        (GLOBAL | {"bits": 7}, "must be one of 2, 3, 4, 5, 6, 8, found 7"),
        (GLOBAL | {"bits": "6"}, "must be one of"),
        (GLOBAL | {"bits": True}, "must be one of"),
        ({"group_size": 32}, "quantization.bits is missing"),
        (GLOBAL | {"group_size": 16}, "quantization.group_size must be one of 32, 64, 128, found 16"),
        (GLOBAL | {"mode": "mxfp4"}, "quantization.mode is 'mxfp4'; flashnext supports only affine"),
        (GLOBAL | {"mode": 3}, "quantization.mode is 3"),
        (GLOBAL | {"quant_method": "fp8"}, "quant_method is 'fp8', which flashnext does not support"),
        (GLOBAL | {"language_model.lm_head": {"bits": 1}}, "language_model.lm_head.bits must be one of"),
        (GLOBAL | {"language_model.lm_head": {"mode": "nvfp4"}}, "language_model.lm_head.mode is 'nvfp4'"),
        (GLOBAL | {"language_model.lm_head": 6}, "must be true, false or an object"),
        ([], "quantization must be an object"),
    ],
    ids=str,
)
def test_unsupported_quantization_is_refused_with_what_is_supported(section: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        parse_quantization({"quantization": section})


def test_disagreeing_quantization_sections_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"quantization and .*quantization_config disagree"):
        parse_quantization({"quantization": GLOBAL, "quantization_config": GLOBAL | {"bits": 4}})
