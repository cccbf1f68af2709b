"""Random checkpoints repeat, agree between layouts, and cost the bytes that the counters say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx.core", reason="needs the extra `peers` (mlx, and mlx-cpu on Linux)")

import mlx.core as mx
from checkpoint_files import Checkpoint
from flashnext.checkpoint import open_checkpoint
from gguf_layout import read_tensor
from make_model import to_mlx, write_checkpoint
from preset import PRESETS, constant, ngram_constants
from random_tensors import Spec, make, specs

NANO = PRESETS["nano"]
LAYOUTS = {"hf": None, "mlx4": 4, "mlx6": 6, "mlx8": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("nano")
    for name, bits in LAYOUTS.items():
        write_checkpoint(NANO, root / name, bits)
    return {name: root / name for name in LAYOUTS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoint_is_complete_for_the_engine(folders: dict[str, Path], layout: str) -> None:
    opened = open_checkpoint(folders[layout])
    assert opened.config.hidden_size == NANO.hidden_size


def test_tensor_depends_on_its_name_and_the_seed_alone() -> None:
    spec = next(s for s in specs(NANO) if s.name.endswith("lm_head.weight"))
    twin = Spec(spec.name + "x", spec.shape, spec.kind, spec.scale)
    assert mx.array_equal(make(NANO, 0, spec), make(NANO, 0, spec))
    assert not mx.array_equal(make(NANO, 0, spec), make(NANO, 1, spec))
    assert not mx.array_equal(make(NANO, 0, spec), make(NANO, 0, twin))


def test_blocks_do_not_show_in_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec("table", (1000,), "table", 1.0)
    whole = make(NANO, 0, spec)
    monkeypatch.setattr("random_tensors.BLOCK", 64)
    assert mx.array_equal(make(NANO, 0, spec), whole)


def test_matrices_keep_activations_near_unit_size() -> None:
    spec = Spec("m", (512, 400), "matrix", 2.0)
    assert float(mx.std(make(NANO, 0, spec).astype(mx.float32))) == pytest.approx(2.0 / 20, rel=0.02)


def test_norms_are_exact_around_zero_and_around_one() -> None:
    x = make(NANO, 0, Spec("hc_norm", (4096,), "norm", 0.1)).astype(mx.float32)
    assert mx.array_equal(x * 128, mx.round(x * 128))
    assert mx.array_equal((1 + x).astype(mx.bfloat16).astype(mx.float32), 1 + x)
    assert float(mx.max(mx.abs(x))) < 1


def test_decay_rates_and_steps_stay_in_their_ranges() -> None:
    a_log = make(NANO, 0, Spec("A_log", (4096,), "a_log", 16.0)).astype(mx.float32)
    assert float(mx.min(a_log)) >= 0
    assert float(mx.max(a_log)) <= np.log(16.0) + 0.02
    dt = mx.logaddexp(make(NANO, 0, Spec("dt", (4096,), "dt_bias")).astype(mx.float32), 0.0)
    assert float(mx.min(dt)) > 0.9e-3
    assert float(mx.max(dt)) < 1.1e-1


def test_layouts_hold_the_same_weights(folders: dict[str, Path]) -> None:
    hf, mlx = Checkpoint(folders["hf"]), Checkpoint(folders["mlx8"])
    at = "language_model.model.layers.3.mlp.switch_mlp.up_proj"
    codes, scales, biases = (read_tensor(mlx, f"{at}.{part}") for part in ("weight", "scales", "biases"))
    values = mx.dequantize(codes, scales, biases, group_size=32, bits=8)
    stored = read_tensor(hf, "model.language_model.layers.3.mlp.experts.gate_up_proj")[:, 64:, :]
    step = float(mx.max(scales).astype(mx.float32))
    assert float(mx.max(mx.abs(values - stored)).astype(mx.float32)) <= 0.51 * step + 0.01
    norm = "layers.3.self_attn.q_norm.weight"
    plain = read_tensor(hf, f"model.language_model.{norm}").astype(mx.float32)
    assert mx.array_equal(read_tensor(mlx, f"language_model.model.{norm}").astype(mx.float32), 1 + plain)


def test_router_norms_and_convolutions_stay_bfloat16(folders: dict[str, Path]) -> None:
    where = Checkpoint(folders["mlx4"]).where
    stored = [n for n in where if n.endswith(".weight") and n.removesuffix("weight") + "scales" not in where]
    routers = [n for n in stored if n.endswith("mlp.gate.weight")]
    assert len(routers) == NANO.num_hidden_layers + 1  # and the draft head's
    assert [n for n in stored if n not in routers and "norm" not in n and "conv1d" not in n] == []


def test_convolution_of_the_mlx_layout_has_its_channel_last() -> None:
    spec = Spec("model.language_model.layers.0.linear_attn.conv1d.weight", (6, 1, 4), "matrix", 1.0)
    ((name, x),) = to_mlx(spec, mx.arange(24).reshape(6, 1, 4), 4)
    assert name == "language_model.model.layers.0.linear_attn.conv1d.weight"
    assert x.shape == (6, 4, 1)
    assert x[2, :, 0].tolist() == [8, 9, 10, 11]


def test_shards_split_and_the_index_names_each_tensor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("make_model.SHARD_BYTES", 4 << 20)
    total_bytes = write_checkpoint(NANO, tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = {p.name for p in tmp_path.glob("*.safetensors")}
    assert len(files) > 2
    assert set(index["weight_map"].values()) == files
    assert set(index["weight_map"]) == {s.name for s in specs(NANO)}
    assert index["metadata"]["total_size"] == total_bytes
    assert open_checkpoint(tmp_path).config.hidden_size == NANO.hidden_size


def test_ngram_constants_are_the_published_ones_at_the_published_size() -> None:
    """Source: tests/support/reference, read off the published checkpoint."""
    real: Any = dict(hidden_size=2560, num_hidden_layers=4, vocab_size=248_320, num_experts=64)
    found = ngram_constants(type(NANO)(**real, ngram_vocab_size_base=20_000_000))
    assert found.layer_multipliers == [23703573157769, 20109073645365, 8052911324071]
    assert found.ngram_heads_vocab_sizes[:4] == [20000003, 20000023, 20000033, 20000047]
    assert found.ngram_heads_offsets[-1] == 300001275
    assert found.n_rows == 320_001_536


def test_bytes_of_a_token_count_every_stored_byte_once_where_all_is_needed(folders: dict[str, Path]) -> None:
    checkpoint = Checkpoint(folders["hf"])
    text = checkpoint.text_config
    text["num_experts_per_tok"] = text["num_experts"]
    tables = sum(checkpoint.size_bytes(n) for n in checkpoint.where if "embed_tokens" in n)
    ngram = sum(checkpoint.size_bytes(n) for n in checkpoint.where if ".shard_" in n)
    head = sum(checkpoint.size_bytes(n) for n in checkpoint.where if n.startswith("mtp."))
    everything = sum(checkpoint.size_bytes(n) for n in checkpoint.where)
    rows = 2 * NANO.hidden_size + 2 * NANO.hidden_size  # one embedding row, and the n-gram rows of one token
    assert checkpoint.bytes_per_token() == pytest.approx(everything - head - tables - ngram + rows)


def test_operations_of_a_row_do_not_depend_on_the_layout(folders: dict[str, Path]) -> None:
    counts = {Checkpoint(folder).flops_per_prompt_row() for folder in folders.values()}
    assert len(counts) == 1


def test_operations_of_a_row_are_two_for_each_value_of_its_matrices(folders: dict[str, Path]) -> None:
    expected = 0.0
    for spec in specs(NANO):
        if spec.kind == "matrix" and "conv1d" not in spec.name and spec.name.startswith("model."):
            share = NANO.num_experts_per_tok / NANO.num_experts if ".experts." in spec.name else 1
            expected += 2 * share * np.prod(spec.shape)
    assert Checkpoint(folders["hf"]).flops_per_prompt_row() == pytest.approx(expected)


def test_ngram_heads_do_not_overlap() -> None:
    sizes, offsets = constant(NANO, "ngram_heads_vocab_sizes"), constant(NANO, "ngram_heads_offsets")
    assert list(offsets) == list(np.cumsum([0, *sizes[:-1]]))
    assert offsets[-1] + sizes[-1] <= ngram_constants(NANO).n_rows
