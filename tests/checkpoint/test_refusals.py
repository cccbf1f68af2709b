"""Tensors, quantization and norms that do not fit the config: refused by a sentence that names them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.checkpoint import open_checkpoint
from flashnext.checkpoint.quantize import quantize
from support.mutate import (
    Tensors,
    edit_json,
    edit_tensors,
    edit_text_config,
    load_tensors,
    refused,
    save_tensors,
)
from support.random_checkpoint import SMALL_VISION, write_random

TINY = Path(__file__).parents[1] / "tiny" / "hf"
TINY_6BIT = Path(__file__).parents[2] / "python" / "flashnext" / "data" / "tiny-6bit"
PREFIX = "model.language_model."


def test_every_tensor_is_needed(originals: dict[str, Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    for layout, folder in originals.items():
        tensors = load_tensors(folder)
        names = [n for n in tensors if "ple_embedding.layer" not in n and "ngram_heads" not in n]
        for name in rng.choice(names, 12, replace=False):
            copy = shutil.copytree(folder, tmp_path / f"{layout}-{name}")
            save_tensors(copy, {n: t for n, t in tensors.items() if n != name})
            refused(copy, "misses tensor|needs weight, scales and biases, but misses")
            shutil.rmtree(copy)


def test_missing_tensors_are_counted(hf: Path) -> None:
    edit_tensors(hf, lambda tensors: [tensors.pop(n) for n in list(tensors) if ".layers.2." in n])
    refused(hf, r"misses tensor layers\.2\.attn_hyper_connection\.hc_norm\.weight \(and \d+ more\)")


def test_an_unknown_tensor_is_refused_by_name(hf: Path) -> None:
    edit_tensors(
        hf, lambda tensors: tensors.update({PREFIX + "layers.0.extra.weight": ("BF16", (1,), b"\0\0")})
    )
    refused(
        hf,
        "model.language_model.layers.0.extra.weight' is not a tensor of the model that config.json describes",
    )


def test_a_tensor_with_a_foreign_prefix_is_refused_by_name(hf: Path) -> None:
    edit_tensors(hf, lambda tensors: tensors.update({"transformer.wte.weight": ("BF16", (1,), b"\0\0")}))
    refused(hf, "'transformer.wte.weight' is not a tensor of this model")


def test_layers_beyond_the_config_are_refused(hf: Path) -> None:
    edit_text_config(
        hf, num_hidden_layers=3, layer_types=["linear_attention", "linear_attention", "full_attention"]
    )
    refused(hf, "layers.2.self_attn")
    shutil.copy(TINY / "config.json", hf / "config.json")
    refused(hf, "must have shape")


def test_two_spellings_of_one_tensor_are_refused(hf: Path) -> None:
    edit_tensors(hf, lambda t: t.update({"model.embed_tokens.weight": t[PREFIX + "embed_tokens.weight"]}))
    refused(hf, "is a second spelling of")


def retype(name: str, dtype: str, size: int) -> Callable[[Tensors], object]:
    def edit(tensors: Tensors) -> None:
        _, shape, _ = tensors[name]
        tensors[name] = (dtype, shape, bytes(int(np.prod(shape)) * size))

    return edit


@pytest.mark.parametrize(
    ("name", "dtype", "size", "words"),
    [
        ("embed_tokens.weight", "F32", 4, "embed_tokens.weight' must be BF16, found F32"),
        ("embed_tokens.weight", "F16", 2, "embed_tokens.weight' is F16, which flashnext does not support"),
        ("embed_tokens.weight", "U32", 4, "embed_tokens.weight' must be BF16, found U32"),
        ("layers.0.mlp.experts.gate_up_proj", "F32", 4, "gate_up_proj' must be BF16, found F32"),
        ("layers.0.linear_attn.A_log", "F64", 8, "A_log' must be BF16 or F32, found F64"),
        ("layers.0.mlp.gate.weight", "U8", 1, "mlp.gate.weight' must be BF16 or F32, found U8"),
        (
            "layers.1.ple.ple_embedding.layer_multipliers",
            "I32",
            4,
            "layer_multipliers' must be I64, found I32",
        ),
        (
            "layers.0.mlp.experts.down_proj",
            "F8_E4M3",
            1,
            "down_proj' belongs to a quantization .* found F8_E4M3",
        ),
    ],
)
def test_wrong_dtypes_are_refused(hf: Path, name: str, dtype: str, size: int, words: str) -> None:
    edit_tensors(hf, retype(PREFIX + name, dtype, size))
    refused(hf, words)


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.linear_attn.in_proj_qkv.weight",
        "layers.3.self_attn.q_norm.weight",
        "layers.0.mlp.experts.down_proj",
        "layers.0.linear_attn.conv1d.weight",
    ],
)
def test_wrong_shapes_are_refused(hf: Path, name: str) -> None:
    def reshape(tensors: Tensors) -> None:
        dtype, shape, data = tensors[PREFIX + name]
        tensors[PREFIX + name] = (dtype, (shape[0] * 2, *shape[1:]), data * 2)

    edit_tensors(hf, reshape)
    sentence = refused(hf, r"must have shape \[.*, found \[")
    assert name in sentence


@pytest.mark.parametrize("suffix", ["shard_0.weight_scale", "shard_0.weight_scale_inv", "weight_scale_inv"])
def test_fp8_scales_of_the_table_are_refused_by_name(hf: Path, suffix: str) -> None:
    base = PREFIX + "layers.1.ple.ple_embedding.ngram_embedding."

    def to_fp8(tensors: Tensors) -> None:
        _, shape, _ = tensors[base + "shard_0.weight"]
        tensors[base + "shard_0.weight"] = ("F8_E4M3", shape, bytes(int(np.prod(shape))))
        tensors[base + suffix] = ("F32", (shape[0], 1), bytes(4 * shape[0]))

    edit_tensors(hf, to_fp8)
    sentence = refused(hf, "ngram_embedding.*belongs to a quantization that flashnext does not support")
    assert "MLX affine" in sentence


def test_fp8_scales_without_fp8_weights_are_refused_by_name(hf: Path) -> None:
    name = PREFIX + "layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight_scale"
    edit_tensors(hf, lambda tensors: tensors.update({name: ("BF16", (1,), b"\0\0")}))
    refused(hf, "shard_0.weight_scale' belongs to a quantization that flashnext does not support")


@pytest.mark.parametrize("part", ["weight", "scales", "biases"])
def test_a_quantized_module_needs_its_three_tensors(mlx: Path, part: str) -> None:
    edit_tensors(mlx, lambda tensors: tensors.pop(f"language_model.lm_head.{part}"))
    refused(mlx, f"module lm_head needs weight, scales and biases, but misses {part}")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("language_model.model.layers.0.mlp.gate", "mlp.gate.weight' must be BF16 or F32, found U32"),
        (
            "vision_tower.blocks.1.attn.qkv",
            r"1.attn.qkv.weight' is quantized, and the vision tower must be BF16 or F32; convert again",
        ),
    ],
)
def test_a_quantized_router_or_tower_is_refused(tmp_path: Path, name: str, complaint: str) -> None:
    mlx = write_random(tmp_path / "mlx", layout="mlx", vision={**SMALL_VISION, "hidden_size": 64})

    def quantize_module(tensors: Tensors) -> None:
        _, shape, data = tensors[name + ".weight"]
        parts: list[np.ndarray[Any, Any]] = list(quantize(np.frombuffer(data, "<u2").reshape(shape), 8, 32))
        for part, dtype, x in zip(
            ("weight", "scales", "biases"), ("U32", "BF16", "BF16"), parts, strict=True
        ):
            tensors[f"{name}.{part}"] = (dtype, x.shape, x.tobytes())

    edit_tensors(mlx, quantize_module)
    refused(mlx, complaint)


@pytest.mark.parametrize("other", [(4, 32), None])
def test_table_shards_that_differ_in_storage_are_refused(
    tmp_path: Path, other: tuple[int, int] | None
) -> None:
    shard = "layers.1.ple.ple_embedding.ngram_embedding.shard_1"
    folder = write_random(tmp_path / "x", layout="mlx", modules={shard: other})
    refused(
        folder, r"shard_1 is stored as .*, but .*shard_0 as 6 bits, group 32; the shards of a table must be"
    )


def requantize(section: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    return lambda raw: raw.update(quantization=section)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"bits": 4, "group_size": 32},
            "has 6 bits, group 32 by its shapes, but config.json says 4 bits, group 32",
        ),
        (
            {"bits": 6, "group_size": 64},
            "has 6 bits, group 32 by its shapes, but config.json says 6 bits, group 64",
        ),
        (
            {"bits": 6, "group_size": 32, "language_model.lm_head": {"bits": 8, "group_size": 32}},
            "lm_head.weight' has 6",
        ),
        (
            {"bits": 6, "group_size": 32, "language_model.lm_head": False},
            "config.json says that module lm_head is not",
        ),
        ({"bits": 6, "group_size": 32, "language_model.lm_head": {}}, "config.json says 4 bits, group 64"),
        (None, "is quantized, but config.json has no quantization section"),
    ],
    ids=str,
)
def test_shapes_that_contradict_the_config_are_refused(mlx: Path, section: Any, words: str) -> None:
    edit_json(mlx / "config.json", requantize(section))
    refused(mlx, words)


def test_an_entry_for_a_module_that_is_not_quantized_is_refused(hf: Path) -> None:
    section = {"bits": 6, "group_size": 32, "lm_head": {"bits": 6, "group_size": 32}}
    edit_json(hf / "config.json", requantize(section))
    refused(hf, "quantizes module lm_head .*, but the module has no scales")


def test_entries_for_unknown_modules_are_told_in_a_warning(mlx: Path) -> None:
    edit_json(
        mlx / "config.json", lambda raw: raw["quantization"].update({"language_model.model.nothing": True})
    )
    (warning,) = open_checkpoint(mlx).warnings
    assert "1 quantization entries of config.json name no matrix, 'nothing' first" in warning


@pytest.mark.parametrize(
    ("words", "scales"),
    [((64 * 7 // 32,), (2,)), ((12,), (4,)), ((12,), (3,)), ((11,), (2,)), ((0,), (2,)), ((12,), (0,))]
)  # fmt: skip
def test_shapes_that_fit_no_bits_or_group_are_refused(
    mlx: Path, words: tuple[int], scales: tuple[int]
) -> None:
    name = "language_model.model.layers.0.linear_attn.in_proj_z"

    def reshape(tensors: Tensors) -> None:
        rows = tensors[name + ".weight"][1][0]
        tensors[name + ".weight"] = ("U32", (rows, *words), bytes(4 * rows * words[0]))
        for part in (".scales", ".biases"):
            tensors[name + part] = ("BF16", (rows, *scales), bytes(2 * rows * scales[0]))

    edit_tensors(mlx, reshape)
    refused(
        mlx,
        "in_proj_z.weight': rows of 64 inputs in .* are none of bits 2, 3, 4, 5, 6, 8 in groups of 32, 64, "
        "128",
    )


def test_scales_of_other_rows_than_the_words_are_refused(mlx: Path) -> None:
    def reshape(tensors: Tensors) -> None:
        dtype, shape, data = tensors["language_model.lm_head.scales"]
        tensors["language_model.lm_head.scales"] = (dtype, (shape[0] * shape[1],), data)

    edit_tensors(mlx, reshape)
    refused(mlx, "lm_head.weight': expected words, scales and biases of")


def shift_norms(folder: Path, shift: Callable[[int], float]) -> None:
    def edit(tensors: Tensors) -> None:
        for name, (dtype, shape, _) in list(tensors.items()):
            if name.endswith("attn_hyper_connection.hc_norm.weight") and "mtp" not in name:
                value = np.full(shape, shift(int(name.split(".")[3])), np.float32)
                tensors[name] = (dtype, shape, (value.view(np.uint32) >> 16).astype(np.uint16).tobytes())

    edit_tensors(folder, edit)


@pytest.mark.parametrize(
    ("mean", "zero_centred"), [(0.0, True), (-0.25, True), (0.25, True), (1.0, False), (1.5, False)]
)
def test_the_norm_convention_is_told_by_the_means(mlx: Path, mean: float, zero_centred: bool) -> None:
    shift_norms(mlx, lambda layer: mean)
    assert open_checkpoint(mlx).zero_centred is zero_centred


@pytest.mark.parametrize(("mean", "zero_centred"), [(0.0, True), (0.5, True), (2.0, True), (1.0, False)])
def test_unclear_norms_of_the_hf_layout_are_w_by_definition(
    hf: Path, mean: float, zero_centred: bool
) -> None:
    shift_norms(hf, lambda layer: mean)
    assert open_checkpoint(hf).zero_centred is zero_centred


@pytest.mark.parametrize(
    "means", [[0.5] * 4, [2.0] * 4, [-1.0] * 4, [0.0, 0.0, 1.0, 1.0], [0.625] * 4, [np.nan] * 4]
)
def test_norms_that_fit_neither_convention_are_refused(mlx: Path, means: list[float]) -> None:
    shift_norms(mlx, lambda layer: means[layer])
    refused(mlx, "the norms fit neither convention")


def test_a_missing_draft_head_is_told_and_a_broken_one_refused(hf: Path) -> None:
    edit_tensors(hf, lambda tensors: tensors.pop("mtp.fc_hidden.weight"))
    refused(hf, "misses tensor mtp.fc_hidden.weight")
    edit_tensors(hf, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("mtp.")])
    checkpoint = open_checkpoint(hf)
    assert checkpoint.config.n_mtp_layers == 0
    assert "has no draft head" in checkpoint.warnings[0]


def test_a_draft_head_that_the_config_does_not_name_is_refused(hf: Path) -> None:
    edit_text_config(hf, mtp_num_hidden_layers=0)
    refused(hf, "'mtp.*is not a tensor of the model that config.json describes")


def test_a_missing_tower_is_told_and_a_broken_one_refused(tmp_path: Path) -> None:
    tiny = shutil.copytree(TINY, tmp_path / "tiny")
    edit_tensors(tiny, lambda tensors: tensors.pop("model.visual.merger.norm.bias"))
    refused(tiny, "misses tensor visual.merger.norm.bias")
    edit_tensors(tiny, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".visual." in name])
    checkpoint = open_checkpoint(tiny)
    assert checkpoint.config.vision is None
    assert "has no vision tower" in checkpoint.warnings[0]
