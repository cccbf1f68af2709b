"""Opening checkpoint folders of both layouts: every name, every value, every accepted spelling."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.checkpoint import Affine, Checkpoint, open_checkpoint
from flashnext.checkpoint.names import Kind, TensorSpec, canonical_name, hf_name, mlx_name, model_specs
from flashnext.checkpoint.quantize import bf16_to_float32, dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mutate import (
    Tensors,
    edit_json,
    edit_tensors,
    refused,
)
from support.random_checkpoint import random_tensor, weights_float64, write_random

TINY = Path(__file__).parents[1] / "tiny" / "hf"
TINY_6BIT = Path(__file__).parents[2] / "python" / "flashnext" / "data" / "tiny-6bit"
PREFIX = "model.language_model."


def stored(checkpoint: Checkpoint, spec: TensorSpec) -> np.ndarray[Any, Any]:
    """The bit patterns of a tensor as it was before any quantization; exact only where there was none."""
    data = checkpoint.read(spec.name)
    module = spec.name.removesuffix(".weight")
    if module in checkpoint.affine:
        affine = checkpoint.affine[module]
        words = np.frombuffer(data, "<u4").reshape(checkpoint.tensors[spec.name].shape)
        parts = [f"{module}.scales", f"{module}.biases"]
        scales, biases = (
            np.frombuffer(checkpoint.read(p), "<u2").reshape(checkpoint.tensors[p].shape) for p in parts
        )
        return dequantize(words, scales, biases, affine.bits, affine.group)
    kind = "<i8" if spec.kind is Kind.CONSTANT else "<u2"
    return np.frombuffer(data, kind).reshape(spec.shape)


SIZES = st.fixed_dictionaries(
    {
        "num_hidden_layers": st.sampled_from([2, 4, 6]),
        "full_attention_interval": st.sampled_from([1, 2, 4]),
        "hidden_size": st.sampled_from([32, 64, 128]),
        "num_experts": st.sampled_from([3, 5]),
        "moe_intermediate_size": st.sampled_from([32, 64]),
        "shared_expert_intermediate_size": st.sampled_from([32, 96]),
        "linear_conv_kernel_dim": st.sampled_from([2, 4]),
        "hc_count": st.sampled_from([2, 4]),
        "heads_per_ngram": st.sampled_from([1, 2]),
        "ngram_size": st.sampled_from([2, 3]),
        "mtp_num_hidden_layers": st.sampled_from([0, 1]),
        "split_ngram_parts": st.sampled_from([1, 2, 4]),
        "num_attention_heads": st.sampled_from([2, 4]),
    }
)


def complete(sizes: dict[str, Any]) -> dict[str, Any]:
    layers, interval = sizes["num_hidden_layers"], sizes["full_attention_interval"]
    layers = max(layers, interval)
    linear = [i + 1 for i in range(layers) if (i + 1) % interval]
    heads = (sizes["ngram_size"] - 1) * sizes["heads_per_ngram"]
    return sizes | {"num_hidden_layers": layers, "ple_layer_ids": linear[:2], "ple_embed_dim": 32 * heads}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sizes=SIZES, seed=st.integers(0, 999), shard_bytes=st.sampled_from([1, 20_000, 1 << 30]))
def test_hf_folders_of_random_sizes_give_every_written_value(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, Any], seed: int, shard_bytes: int
) -> None:
    folder = write_random(tmp_path_factory.mktemp("r"), complete(sizes), seed, "hf", shard_bytes=shard_bytes)
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.layout, checkpoint.zero_centred, checkpoint.affine) == ("hf", True, {})
    specs = [spec for spec in model_specs(checkpoint.config) if spec.kind is not Kind.SCALE]
    assert {spec.name for spec in specs} == checkpoint.tensors.keys()
    for spec in specs:
        assert checkpoint.tensors[spec.name].shape == spec.shape
        np.testing.assert_array_equal(
            stored(checkpoint, spec),
            random_tensor(spec, checkpoint.config, seed),
            err_msg=f"{spec.name} {seed=}",
        )


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=SIZES,
    seed=st.integers(0, 999),
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    group=st.sampled_from([32, 64, 128]),
    gamma=st.booleans(),
)
def test_mlx_folders_of_random_sizes_give_every_written_value(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: dict[str, Any],
    seed: int,
    bits: int,
    group: int,
    gamma: bool,
) -> None:
    modules = {"lm_head": None, "layers.0.mlp.experts.up_proj": (8, 32)}
    folder = write_random(
        tmp_path_factory.mktemp("r"), complete(sizes), seed, "mlx", bits, group, modules=modules, gamma=gamma
    )
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.layout, checkpoint.zero_centred) == ("mlx", not gamma)
    assert "lm_head" not in checkpoint.affine
    for spec in model_specs(checkpoint.config):
        if spec.kind is Kind.SCALE:
            continue
        expected = random_tensor(spec, checkpoint.config, seed)
        if spec.kind is Kind.MATRIX and spec.name != "lm_head.weight":
            affine = checkpoint.affine[spec.name.removesuffix(".weight")]
            assert spec.shape[-1] % group or "up_proj" in spec.name or affine == Affine(bits, group)
            expected = dequantize(*quantize(expected, affine.bits, affine.group), affine.bits, affine.group)
        found = stored(checkpoint, spec)
        if spec.kind is Kind.NORM and gamma:
            found, expected = bf16_to_float32(found), bf16_to_float32(expected) + np.float32(1)
        np.testing.assert_array_equal(found, expected, err_msg=f"{spec.name} {seed=}")


def test_both_layouts_of_one_seed_are_one_model(originals: dict[str, Path]) -> None:
    hf, mlx = (weights_float64(originals[layout]) for layout in ("hf", "mlx"))
    assert hf.keys() == mlx.keys()
    for name, x in hf.items():
        # Six bits cut a group's span, at most twice its largest value, into 63 steps. Moving the edge to a
        # whole number of steps from zero changes a step by at most 1/63 and so the far end by one step;
        # bfloat16 rounds scales by 2^-9.
        bound = np.abs(x).max() * (2 / 63 * (1 + 1 / 63) + 2 * 2**-9)
        assert np.abs(x - mlx[name]).max() <= bound, name


def test_gate_and_up_are_views_of_the_fused_tensor(hf: Path) -> None:
    checkpoint = open_checkpoint(hf)
    gate, up, down = (
        checkpoint.tensors[f"layers.0.mlp.experts.{part}_proj.weight"] for part in ("gate", "up", "down")
    )
    n, width, d = gate.shape
    assert up.offset - gate.offset == width * d * 2
    assert gate.batch_stride == up.batch_stride == 2 * width * d * 2
    assert down.batch_stride == 0
    assert gate.nbytes == n * width * d * 2


def test_names_of_both_layouts_lead_back_to_the_canonical_ones() -> None:
    config = open_checkpoint(TINY).config
    for spec in model_specs(config):
        assert canonical_name(mlx_name(spec.name), "mlx") == spec.name
        assert canonical_name(hf_name(spec.name), "hf") == spec.name
    assert canonical_name("model.layers.0.linear_attn.A_log", "hf") == "layers.0.linear_attn.A_log"
    assert canonical_name("transformer.h.0.attn.weight", "hf") is None


def test_the_trained_checkpoint_opens_in_both_forms_with_all_parts() -> None:
    bf16, mlx = open_checkpoint(TINY), open_checkpoint(TINY_6BIT)
    assert (bf16.layout, mlx.layout) == ("hf", "mlx")
    assert bf16.zero_centred
    assert not mlx.zero_centred
    assert bf16.config == mlx.config
    assert bf16.config.n_mtp_layers == 1
    assert bf16.config.vision is not None
    assert bf16.stop_tokens == mlx.stop_tokens == (2549, 2547)
    assert bf16.warnings == mlx.warnings == ()
    assert set(mlx.affine.values()) == {Affine(6, 32)}
    assert len(bf16.files) == 2
    assert all(path.stat().st_size < 16_000_000 for path in bf16.files)


def test_opening_the_bundled_checkpoint_takes_milliseconds() -> None:
    best = min(_open_seconds() for _ in range(5))
    assert best < 0.5, (
        f"{best:.3f} s"
    )  # about 0.02 s; the bound only catches reading all of the weights many times over


def _open_seconds() -> float:
    began = time.perf_counter()
    open_checkpoint(TINY_6BIT)
    return time.perf_counter() - began


def test_the_flat_spelling_of_a_text_model_opens(hf: Path) -> None:
    def flatten(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.replace(PREFIX, "model.")] = tensors.pop(name)

    edit_tensors(hf, flatten)
    edit_json(hf / "config.json", lambda raw: raw.update(raw.pop("text_config")))
    assert len(open_checkpoint(hf).tensors) > 100


def test_other_spellings_of_table_shards_open(mlx: Path) -> None:
    def respell(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[re.sub(r"\.shard_(\d+)\.", r".shards.\1.", name)] = tensors.pop(name)

    before = open_checkpoint(mlx).tensors.keys()
    edit_tensors(mlx, respell)
    assert open_checkpoint(mlx).tensors.keys() == before


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scalar_row_scale_of_the_table_is_taken(mlx: Path, shape: tuple[int, ...]) -> None:
    name = "layers.1.ple.ple_embedding.ngram_embedding.weight_scale"
    before = weights_float64(mlx)
    value = np.float32(0.5).tobytes()
    edit_tensors(mlx, lambda tensors: tensors.update({mlx_name(name): ("F32", shape, value)}))
    assert open_checkpoint(mlx).tensors[name].dtype == "F32"
    table = "layers.1.ple.ple_embedding.ngram_embedding.weight"
    np.testing.assert_array_equal(weights_float64(mlx)[table], before[table] * 0.5)
    bad = np.float32(np.nan).tobytes()
    edit_tensors(mlx, lambda tensors: tensors.update({mlx_name(name): ("F32", shape, bad)}))
    refused(mlx, "weight_scale is nan, expected a finite number")


def test_ngram_constants_may_be_absent_but_must_be_right(hf: Path) -> None:
    name = PREFIX + "layers.1.ple.ple_embedding.layer_multipliers"
    wrong = np.array([1, 3, 5], "<i8").tobytes()
    edit_tensors(hf, lambda tensors: tensors.update({name: ("I64", (3,), wrong)}))
    refused(hf, r"layer_multipliers holds \[1, 3, 5\], but config.json gives")
    edit_tensors(hf, lambda tensors: tensors.pop(name))
    assert open_checkpoint(hf).config.ngram_multipliers


@pytest.mark.parametrize("name", ["linear_attn.A_log", "mlp.gate.weight", "linear_attn.conv1d.weight"])
def test_small_tensors_may_be_float32(hf: Path, name: str) -> None:
    name = "layers.0." + name

    def widen(tensors: Tensors) -> None:
        _, shape, data = tensors[PREFIX + name]
        tensors[PREFIX + name] = ("F32", shape, bf16_to_float32(np.frombuffer(data, "<u2")).tobytes())

    before = weights_float64(hf)[name]
    edit_tensors(hf, widen)
    assert open_checkpoint(hf).tensors[name].dtype == "F32"
    np.testing.assert_array_equal(weights_float64(hf)[name], before)


@pytest.mark.parametrize("axes", [(1, 4), (4, 1)])
def test_both_axis_orders_of_convolutions_are_one_view(hf: Path, axes: tuple[int, int]) -> None:
    name = PREFIX + "layers.0.linear_attn.conv1d.weight"
    before = open_checkpoint(hf).read("layers.0.linear_attn.conv1d.weight")

    def turn(tensors: Tensors) -> None:
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, (shape[0], *axes), data)

    edit_tensors(hf, turn)
    checkpoint = open_checkpoint(hf)
    assert checkpoint.tensors["layers.0.linear_attn.conv1d.weight"].shape[1:] == (4,)
    assert checkpoint.read("layers.0.linear_attn.conv1d.weight") == before
