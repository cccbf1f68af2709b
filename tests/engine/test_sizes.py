"""What the plan says that the core allocates is what the core allocates, to the byte."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flashnext import _core
from flashnext.checkpoint.expected import describe
from flashnext.contract.structs import MAX_TOP, SAMPLER_BLOCK, STRUCTS
from flashnext.engine import sizes
from flashnext.engine.load import load_model
from flashnext.engine.sizes import ModelOptions, tower_scratch_bytes, tower_weight_sizes, weight_sizes
from support.random_checkpoint import write_random
from support.towers import VISIONS, write_tower

HF = Path(__file__).parents[1] / "tiny" / "hf"
BUNDLED = Path(__file__).parents[2] / "python" / "flashnext" / "data" / "tiny-6bit"


def random_sizes(rng: random.Random) -> dict[str, Any]:
    """text_config keys of a small model whose sizes all differ."""
    k_heads, kv_heads = rng.choice([1, 2, 3]), rng.choice([1, 2])
    n_layers, interval = rng.choice([(2, 1), (2, 2), (3, 3), (4, 2), (5, 4)])
    linear = [i + 1 for i in range(n_layers) if (i + 1) % interval]
    return {
        "vocab_size": rng.randrange(211, 3000), "hidden_size": rng.choice([64, 96, 128]),
        "num_hidden_layers": n_layers, "full_attention_interval": interval,
        "num_attention_heads": kv_heads * rng.choice([2, 4]), "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([32, 64]), "linear_num_key_heads": k_heads,
        "linear_num_value_heads": k_heads * rng.choice([2, 4]),
        "linear_key_head_dim": rng.choice([16, 24, 32]), "linear_value_head_dim": rng.choice([16, 32]),
        "linear_conv_kernel_dim": rng.choice([2, 3, 4]),
        "indexer_n_heads": rng.choice([2, 8]), "indexer_head_dim": rng.choice([32, 40]),
        "indexer_budget": rng.choice([32, 64]), "indexer_compress_ratio": rng.choice([2, 4, 8]),
        "num_experts": rng.choice([5, 12]), "num_experts_per_tok": rng.choice([2, 3]),
        "moe_intermediate_size": rng.choice([32, 96]),
        "shared_expert_intermediate_size": rng.choice([32, 64]),
        "hc_count": rng.choice([2, 4]), "hc_lowrank": rng.choice([32, 64]),
        "ple_layer_ids": rng.sample(linear, min(len(linear), rng.choice([0, 1, 2]))),
        "ple_embed_dim": rng.choice([128, 256]), "ple_conv_kernel_size": rng.choice([2, 4]),
        "ngram_size": rng.choice([2, 3]), "heads_per_ngram": rng.choice([1, 2]),
        "mtp_num_hidden_layers": rng.choice([0, 1]),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(16))
def test_sizes_are_the_cores_own(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    while True:  # attention's outputs and DeltaNet's have to be a whole number of groups
        text = random_sizes(rng)
        values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
        if not values % 32 and not text["num_attention_heads"] * text["head_dim"] % 32:
            break
    layout = rng.choice(["hf", "mlx"])
    write_random(tmp_path, text, seed, layout, bits=rng.choice([4, 6, 8]))
    options = ModelOptions(
        context=rng.randrange(65, 4000),
        dtype=rng.choice(["bfloat16", "float32"]),
        max_chunk=rng.choice([1, 40, 512]),
        max_window=rng.choice([1, 5, 16, 33]),
    )
    draft_head, streamed = rng.choice([True, False]), rng.choice([True, False])
    loaded = load_model(
        tmp_path, dtype=options.dtype, context=options.context, max_chunk=options.max_chunk,
        max_window=options.max_window, draft_head=draft_head, streamed_table=streamed,
    )  # fmt: skip
    config = loaded.checkpoint.config if draft_head else replace(loaded.checkpoint.config, n_mtp_layers=0)
    model, t = loaded.model, options.value_bytes

    weights = weight_sizes(config, loaded.checkpoint.tensors, loaded.device.limits.tensor_alignment)
    assert weights.total_bytes == model.weight_bytes
    if streamed:
        weights = weights.streamed()
    assert weights.streamed_bytes == model.streamed_bytes
    assert weights.total_bytes == model.weight_bytes - model.streamed_bytes
    assert weights.copied_bytes == model.copied_bytes
    assert sizes.scratch_bytes(config, options) == model.scratch_bytes
    assert sizes.page_bytes(config, t) == loaded.pool.page_bytes
    assert sizes.n_pages(options.context) == loaded.pool.total
    assert sizes.snapshot_bytes(config, t) == model.snapshot_bytes
    assert sizes.session_bytes(config, options) == _core.Session(model, loaded.pool).size_bytes


@pytest.mark.parametrize("layout", ["hf", "mlx"])
@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("max_patches", [4, 1000, 5000])
def test_a_towers_sizes_are_the_cores_own(tmp_path: Path, vision: str, layout: str, max_patches: int) -> None:
    loaded = load_model(write_tower(tmp_path, vision, layout=layout), context=64, draft_head=False)
    config, tensors = loaded.checkpoint.config, loaded.checkpoint.tensors
    assert config.vision is not None
    before = loaded.model.weight_bytes
    tower = _core.load_tower(loaded.model, dict(config.vision), max_patches)
    weights = tower_weight_sizes(config, tensors, loaded.device.limits.tensor_alignment)
    assert weights.total_bytes == tower.weight_bytes == loaded.model.weight_bytes - before
    assert weights.copied_bytes == tower.copied_bytes
    assert tower_scratch_bytes(config, max_patches, tower.tile_patches) == tower.scratch_bytes


def test_a_text_model_has_no_tower_to_size(tmp_path: Path) -> None:
    checkpoint = load_model(write_random(tmp_path), context=64).checkpoint
    assert tower_weight_sizes(checkpoint.config, checkpoint.tensors).total_bytes == 0
    assert tower_scratch_bytes(checkpoint.config, 4096, 64) == 0


@pytest.mark.parametrize("folder", [HF, BUNDLED], ids=["hf", "6 bit"])
def test_config_json_alone_gives_the_sizes_that_the_headers_give(folder: Path) -> None:
    loaded = load_model(folder)
    described = describe(folder)
    assert described.config == loaded.checkpoint.config
    headers = loaded.checkpoint.tensors
    assert {name: (v.dtype, v.nbytes) for name, v in described.tensors.items()} == {
        name: (v.dtype, v.nbytes) for name, v in headers.items() if v.dtype != "I64"
    }
    assert weight_sizes(described.config, described.tensors).total_bytes == loaded.model.weight_bytes


def test_a_misaligned_tensor_counts_as_copied() -> None:
    checkpoint = load_model(HF).checkpoint
    aligned = weight_sizes(checkpoint.config, checkpoint.tensors, 1)
    name = "layers.0.mlp.gate.weight"
    moved = replace(checkpoint.tensors[name], offset=checkpoint.tensors[name].offset // 4 * 4 + 2)
    shifted = weight_sizes(checkpoint.config, {**checkpoint.tensors, name: moved}, 4)
    assert shifted.total_bytes == aligned.total_bytes
    assert shifted.copied_bytes - aligned.copied_bytes == moved.nbytes


def test_structs_have_the_sizes_of_the_header() -> None:
    assert {name: STRUCTS[name].itemsize for name in sizes.STRUCT_BYTES} == sizes.STRUCT_BYTES
    assert (sizes._MAX_TOP, sizes._SAMPLER_BLOCK) == (MAX_TOP, SAMPLER_BLOCK)
