"""Conversion to the MLX layout: the right bytes, all of them or nothing."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.checkpoint import convert as convert_module
from flashnext.checkpoint import open_checkpoint
from flashnext.checkpoint.convert import convert
from flashnext.checkpoint.quantize import bf16_to_float32
from flashnext.errors import CheckpointError, InvalidArgument
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mutate import Tensors, edit_tensors, load_tensors
from support.random_checkpoint import write_random

TINY = Path(__file__).parents[1] / "tiny" / "hf"
TINY_6BIT = Path(__file__).parents[2] / "python" / "flashnext" / "data" / "tiny-6bit"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("source") / "hf", seed=5)


def test_the_bundled_checkpoint_is_the_conversion_of_the_bf16_one_bit_for_bit(tmp_path: Path) -> None:
    convert(TINY, tmp_path / "out", bits=6, group=32)
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert made == sorted(path.name for path in TINY_6BIT.iterdir() if path.name != "MODEL_CARD.md")
    for name in made:
        assert filecmp.cmp(tmp_path / "out" / name, TINY_6BIT / name, shallow=False), name
    assert sum((TINY_6BIT / name).stat().st_size for name in made) < 16_000_000


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    group=st.sampled_from([32, 64]),
    seed=st.integers(0, 999),
    hidden=st.sampled_from([64, 128]),
    shard_bytes=st.sampled_from([20_000, 1 << 30]),
)
def test_converted_tensors_equal_those_of_an_mlx_folder_of_the_same_weights(
    tmp_path_factory: pytest.TempPathFactory, bits: int, group: int, seed: int, hidden: int, shard_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("c")
    wide = {"hidden_size": hidden, "moe_intermediate_size": 64, "hc_lowrank": 64, "num_attention_heads": 4}
    wide |= {"shared_expert_intermediate_size": 64, "ple_embed_dim": 256}
    write_random(root / "hf", wide, seed, "hf")
    write_random(root / "mlx", wide, seed, "mlx", bits, group)
    convert(root / "hf", root / "out", bits=bits, group=group, shard_bytes=shard_bytes)
    expected, found = load_tensors(root / "mlx"), load_tensors(root / "out")
    assert expected.keys() == found.keys()
    for name in expected:
        assert expected[name] == found[name], f"{name} {seed=}"
    assert open_checkpoint(root / "out").affine == open_checkpoint(root / "mlx").affine


def test_where_pieces_are_cut_does_not_change_a_byte(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "whole")
    monkeypatch.setattr(convert_module, "_CHUNK_VALUES", 1000)
    convert(source, tmp_path / "pieces")
    assert load_tensors(tmp_path / "whole") == load_tensors(tmp_path / "pieces")


def test_the_tower_is_kept_with_its_patch_kernel_channels_last(tmp_path: Path) -> None:
    convert(TINY, tmp_path / "out")
    before, after = load_tensors(TINY), load_tensors(tmp_path / "out")
    for name in (name for name in before if name.startswith("model.visual.")):
        dtype, shape, data = after[name.replace("model.visual.", "vision_tower.")]
        if not name.endswith("patch_embed.proj.weight"):
            assert (dtype, shape, data) == before[name]
            continue
        kernel = np.frombuffer(before[name][2], "<u2").reshape(before[name][1])
        assert shape == (128, 2, 16, 16, 3)
        np.testing.assert_array_equal(
            np.frombuffer(data, "<u2").reshape(shape), kernel.transpose(0, 2, 3, 4, 1)
        )


def test_norms_are_stored_as_one_plus_w_and_float32_stays_float32(source: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(source, tmp_path / "hf")
    prefix = "model.language_model.layers.0."
    norm, decay = "attn_hyper_connection.hc_norm.weight", "linear_attn.A_log"

    def widen(tensors: Tensors) -> None:
        for name in (norm, decay):
            _, shape, data = tensors[prefix + name]
            tensors[prefix + name] = ("F32", shape, bf16_to_float32(np.frombuffer(data, "<u2")).tobytes())

    edit_tensors(folder, widen)
    convert(folder, tmp_path / "out")
    before, after = load_tensors(folder), load_tensors(tmp_path / "out")
    mlx = "language_model.model.layers.0."
    assert after[mlx + decay] == before[prefix + decay]
    expected = np.frombuffer(before[prefix + norm][2], "<f4") + np.float32(1)
    assert after[mlx + norm] == ("F32", before[prefix + norm][1], expected.tobytes())
    assert not open_checkpoint(tmp_path / "out").zero_centred


def test_a_bf16_checkpoint_in_the_mlx_layout_converts_too(tmp_path: Path) -> None:
    modules: dict[str, tuple[int, int] | None] = {}
    for name in load_tensors(write_random(tmp_path / "names", seed=5, layout="mlx")):
        if name.endswith(".scales"):
            module = name.removesuffix(".scales").removeprefix("language_model.").removeprefix("model.")
            modules[module.replace("switch_mlp", "experts")] = None
    for gamma in (True, False):
        folder = write_random(tmp_path / f"{gamma}", seed=5, layout="mlx", modules=modules, gamma=gamma)
        assert open_checkpoint(folder).affine == {}
        convert(folder, tmp_path / f"out {gamma}")
    write_random(tmp_path / "hf", seed=5)
    convert(tmp_path / "hf", tmp_path / "out")
    expected = load_tensors(tmp_path / "out")
    assert load_tensors(tmp_path / "out True") == load_tensors(tmp_path / "out False") == expected


def test_the_table_may_have_its_own_group(tmp_path: Path) -> None:
    wide = {"moe_intermediate_size": 64, "hc_lowrank": 64, "shared_expert_intermediate_size": 64}
    folder = write_random(tmp_path / "hf", wide)
    with pytest.raises(
        CheckpointError, match=r"shard_0.weight has rows of 32 inputs, .* choose a smaller --table-group"
    ):
        convert(folder, tmp_path / "out", group=64)
    convert(folder, tmp_path / "out", bits=4, group=64, table_group=32)
    affine = open_checkpoint(tmp_path / "out").affine
    assert {str(a) for name, a in affine.items() if ".ngram_embedding." in name} == {"4 bits, group 32"}
    assert {str(a) for name, a in affine.items() if ".ngram_embedding." not in name} == {"4 bits, group 64"}


def test_progress_grows_to_the_whole(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert(source, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] == sum(view.nbytes for view in open_checkpoint(source).tensors.values())


def test_tokenizer_template_and_processor_files_are_copied(tmp_path: Path) -> None:
    convert(TINY, tmp_path / "out", bits=2)
    for name in (
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
        "preprocessor_config.json", "video_preprocessor_config.json",
    ):  # fmt: skip
        assert filecmp.cmp(TINY / name, tmp_path / "out" / name, shallow=False), name
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    assert raw.pop("quantization") == {"group_size": 32, "bits": 2, "mode": "affine"}
    assert raw == json.loads((TINY / "config.json").read_text())


def test_mlx_loads_and_reads_a_converted_shard(source: Path, tmp_path: Path) -> None:
    mx: Any = pytest.importorskip("mlx.core", reason="needs the extra `oracle` (mlx, and mlx-cpu on Linux)")
    convert(source, tmp_path / "out", bits=8)
    (shard,) = (tmp_path / "out").glob("*.safetensors")
    tensors = mx.load(str(shard))
    name = "language_model.model.layers.0.mlp.switch_mlp.down_proj"
    parts = [tensors[f"{name}.{part}"].astype(mx.float32) for part in ("scales", "biases")]
    found = np.array(mx.dequantize(tensors[f"{name}.weight"], *parts, group_size=32, bits=8))
    _, shape, data = load_tensors(source)["model.language_model.layers.0.mlp.experts.down_proj"]
    exact = bf16_to_float32(np.frombuffer(data, "<u2")).reshape(shape)
    # 255 steps over a span of at most twice the largest value, and bfloat16 scales, off by 2^-9 of themselves
    assert np.abs(found - exact).max() <= np.abs(exact).max() * (2 / 255 + 2 * 2**-9)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_target_with_anything_in_it_is_refused_and_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name, words in (
        ("full", "full is not empty"),
        ("file", "file is in the way"),
        ("link", "link is in the way"),
    ):
        with pytest.raises(CheckpointError, match=words):
            convert(source, tmp_path / name)
    with pytest.raises(CheckpointError, match="absent does not exist; make it first"):
        convert(source, tmp_path / "absent" / "out")
    with pytest.raises(CheckpointError, match="is not empty"):
        convert(source, source)
    with pytest.raises(CheckpointError, match=r"(cannot|could not) be written"):
        convert(source, tmp_path / ("n" * 250))
    with pytest.raises(CheckpointError, match=r"(cannot|could not) be written"):
        convert(source, tmp_path / ("n" * 300))
    assert leftovers(tmp_path) == ["file", "full", "link"]
    assert (tmp_path / "full" / "notes.txt").read_text() == "mine"


def test_the_folder_one_stands_in_is_filled(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    convert(source.resolve(), ".")
    assert (tmp_path / "here" / "config.json").is_file()


def test_an_empty_target_is_filled(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    convert(source, tmp_path / "out")
    open_checkpoint(tmp_path / "out")
    assert leftovers(tmp_path) == ["out"]


def test_a_quantized_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is quantized already .*; convert the bf16 checkpoint"):
        convert(TINY_6BIT, tmp_path / "out", bits=4)
    assert leftovers(tmp_path) == []


def test_widths_that_the_group_does_not_divide_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has rows of 64 inputs, which groups of 128 do not divide"):
        convert(source, tmp_path / "out", group=128)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("bits", "group"), [(7, 32), (0, 32), (6, 16), (6, 0)])
def test_unsupported_bits_and_groups_are_refused(source: Path, tmp_path: Path, bits: int, group: int) -> None:
    with pytest.raises(InvalidArgument, match="are supported"):
        convert(source, tmp_path / "out", bits=bits, group=group)


def test_a_nan_in_a_matrix_is_refused_by_name_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(source, tmp_path / "hf")

    def damage(tensors: Tensors) -> None:
        dtype, shape, data = tensors["mtp.fc_hidden.weight"]
        tensors["mtp.fc_hidden.weight"] = (dtype, shape, data[:-2] + b"\xc0\x7f")

    edit_tensors(folder, damage)
    with pytest.raises(CheckpointError, match=r"tensor mtp.fc_hidden.weight: a weight is NaN or infinite"):
        convert(folder, tmp_path / "out")
    assert leftovers(tmp_path) == ["hf"]


def test_an_interrupt_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out", progress=interrupt)
    assert leftovers(tmp_path) == []


def test_a_disk_without_room_is_told_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1_000_000))
    with pytest.raises(CheckpointError, match=r"out needs 0.02 GB, but its disk has only 0.00 GB free"):
        convert(source, tmp_path / "out")
    assert leftovers(tmp_path) == []


def test_what_is_wrong_with_files_is_told_before_anything_is_quantized(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quantized(done: int, total: int) -> None:
        raise AssertionError("quantized")

    folder = shutil.copytree(source, tmp_path / "hf")
    shutil.copy(TINY_6BIT / "tokenizer.json", folder)
    (tmp_path / "volume").mkdir()
    real = shutil.copyfile

    def unreadable(path: Path, to: Path) -> Any:
        if path.name == "tokenizer.json":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: Path(path).name == "volume")
        with pytest.raises(CheckpointError, match=r"volume is a mount point, .*; name a folder in it"):
            convert(folder, tmp_path / "volume", progress=quantized)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", unreadable)
        with pytest.raises(CheckpointError, match="out could not be written: Permission denied"):
            convert(folder, tmp_path / "out", progress=quantized)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "generation_config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"generation_config.json is not a regular file"):
        convert(folder, tmp_path / "out", progress=quantized)
    assert leftovers(tmp_path) == ["hf", "volume"]


@pytest.mark.parametrize("after", [0, 5])
def test_a_disk_that_fills_up_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    real, calls = os.pwrite, [0]

    def full(*args: Any) -> int:
        calls[0] += 1
        if calls[0] > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CheckpointError, match="out could not be written: No space left on device"):
        convert(source, tmp_path / "out")
    assert leftovers(tmp_path) == []


def test_what_is_in_the_working_folder_never_opens_before_the_end(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = []

    def look(done: int, total: int) -> None:
        (work,) = tmp_path.iterdir()
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(work)
        refusals.append(str(caught.value))

    convert(source, tmp_path / "out", progress=look)
    assert refusals
