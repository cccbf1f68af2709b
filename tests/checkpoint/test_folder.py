"""Files, index, links and stop tokens of a folder: what opens, and what is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.checkpoint import open_checkpoint
from flashnext.checkpoint.folder import find_file, open_folder
from flashnext.errors import CheckpointError
from support.mutate import (
    edit_json,
    edit_tensors,
    load_tensors,
    refused,
)
from support.random_checkpoint import weights_float64

TINY = Path(__file__).parents[1] / "tiny" / "hf"
TINY_6BIT = Path(__file__).parents[2] / "python" / "flashnext" / "data" / "tiny-6bit"
PREFIX = "model.language_model."


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "does not exist; a checkpoint is a folder with config.json")
    refused(tmp_path, "has no config.json")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "is a file; a checkpoint is a folder")
    refused(tmp_path / ("x" * 5000), "cannot be opened|does not exist")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "config.json is not valid JSON"),
        ("[]", r"config.json must hold a JSON object, found \[\]"),
        ('{"a": 1, "a": 2}', "config.json has the key 'a' twice"),
        ('{"a": NaN}', "config.json holds NaN"),
        ("[" * 100_000, "config.json is nested too deeply"),
        ("{}", "model_type is missing"),
    ],
)
def test_a_config_that_is_not_strict_json_is_refused(hf: Path, content: str, words: str) -> None:
    (hf / "config.json").write_text(content)
    refused(hf, words)


def test_a_folder_without_weights_is_refused(hf: Path) -> None:
    for path in [*hf.glob("*.safetensors"), *hf.glob("*.index.json")]:
        path.unlink()
    refused(hf, "has no .safetensors file")


def test_several_shards_without_an_index_are_refused(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    refused(sharded, r"has \d+ .safetensors files but no model.safetensors.index.json")


@pytest.mark.parametrize("name", ["model.safetensors", "weights.safetensors"])
def test_a_single_file_needs_no_index(hf: Path, name: str) -> None:
    (hf / "model.safetensors.index.json").unlink()
    (hf / "model-00001-of-00001.safetensors").rename(hf / name)
    assert [path.name for path in open_checkpoint(hf).files] == [name]


INDEX = "model.safetensors.index.json"


def test_an_index_that_names_a_missing_file_is_refused(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    refused(sharded, f"names the shard '{shard.name}', which is not there")


def test_an_index_that_places_a_tensor_in_a_shard_without_it_is_refused(sharded: Path) -> None:
    shard = min(sharded.glob("*.safetensors")).name
    edit_json(sharded / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": shard}))
    refused(sharded, f"places tensor 'lm_head.weight' in '{shard}', but that shard does not have it")


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({}, "weight_map must map tensor names to shard names, found None"),
        ({"weight_map": {}}, "weight_map must map"),
        ({"weight_map": []}, "weight_map must map"),
        ({"weight_map": {"a": 1}}, "weight_map must map"),
        ({"weight_map": {"a": "config.json"}}, "which is not a .safetensors file"),
        ({"weight_map": {"a": "../x.safetensors"}}, "'../x.safetensors' is not a plain file name"),
        ({"weight_map": {"a": "/x.safetensors"}}, "is not a plain file name"),
        ({"weight_map": {"a": "d/x.safetensors"}}, "is not a plain file name"),
        ({"weight_map": {"a": "\0.safetensors"}}, "is not a plain file name"),
        (
            {"weight_map": {"a": "\u2028.safetensors"}},
            r"names the shard '\\u2028.safetensors', which is not there",
        ),
    ],
)
def test_a_malformed_index_is_refused(hf: Path, index: Any, words: str) -> None:
    (hf / INDEX).write_text(json.dumps(index))
    refused(hf, words)


def test_the_index_wins_over_stray_files_which_are_named(hf: Path) -> None:
    shutil.copy(hf / "model-00001-of-00001.safetensors", hf / "model.safetensors")
    (hf / "consolidated.safetensors").write_bytes(b"not a safetensors file")
    checkpoint = open_checkpoint(hf)
    assert [path.name for path in checkpoint.files] == ["model-00001-of-00001.safetensors"]
    assert len(checkpoint.warnings) == 2
    assert "consolidated.safetensors is not part of the checkpoint and is ignored" in checkpoint.warnings[0]


def test_the_index_wins_over_a_second_copy_of_a_tensor_in_another_shard(
    sharded: Path, tmp_path: Path
) -> None:
    weights = weights_float64(sharded)
    last = max(sharded.glob("*.safetensors"))
    embed = PREFIX + "embed_tokens.weight"
    dtype, shape, data = load_tensors(sharded)[embed]
    (tmp_path / "last").mkdir()
    last.rename(tmp_path / "last" / last.name)
    edit_tensors(tmp_path / "last", lambda tensors: tensors.update({embed: (dtype, shape, bytes(len(data)))}))
    (tmp_path / "last" / "model.safetensors").rename(last)
    checkpoint = open_checkpoint(sharded)
    assert "holds 1 tensors that the index does not place there" in checkpoint.warnings[0]
    np.testing.assert_array_equal(
        weights_float64(sharded)["embed_tokens.weight"], weights["embed_tokens.weight"]
    )


@pytest.mark.parametrize(
    "name", ["config.json", INDEX, "model-00001-of-00001.safetensors", "generation_config.json"]
)
def test_links_out_of_the_folder_are_refused(hf: Path, tmp_path: Path, name: str) -> None:
    shutil.move(hf / name, tmp_path / name)
    (hf / name).symlink_to(tmp_path / name)
    refused(hf, f"{name} is a link that leads out of the folder, to")


def test_links_within_the_folder_and_to_the_folder_work(hf: Path, tmp_path: Path) -> None:
    (hf / "real").mkdir()
    shutil.move(hf / "config.json", hf / "real" / "config.json")
    (hf / "config.json").symlink_to("real/config.json")
    (tmp_path / "alias").symlink_to(hf)
    assert open_checkpoint(tmp_path / "alias").path == hf.resolve()


def test_broken_and_circular_links_are_refused(hf: Path) -> None:
    (hf / "generation_config.json").unlink()
    (hf / "generation_config.json").symlink_to("nothing")
    refused(hf, "generation_config.json is a link to a file that does not exist")
    (hf / "generation_config.json").unlink()
    (hf / "generation_config.json").symlink_to("generation_config.json")
    refused(hf, "generation_config.json")


def test_files_that_are_not_regular_are_refused_without_waiting(hf: Path) -> None:
    (hf / "config.json").unlink()
    os.mkfifo(hf / "config.json")
    refused(hf, "config.json is not a regular file")
    (hf / "config.json").unlink()
    (hf / "config.json").mkdir()
    refused(hf, "config.json is not a regular file")


def hub_snapshot(root: Path, source: Path) -> Path:
    """`source` laid out as a hub cache does it: links in snapshots/REVISION into blobs."""
    repository = root / "models--org--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for i, path in enumerate(sorted(source.iterdir())):
        shutil.copy(path, repository / "blobs" / f"{i:064x}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / f"{i:064x}")
    return snapshot


def test_hub_snapshots_open_although_their_files_are_links(
    originals: dict[str, Path], tmp_path: Path
) -> None:
    for layout, source in originals.items():
        snapshot = hub_snapshot(tmp_path / layout, source)
        assert open_checkpoint(snapshot).tensors.keys() == open_checkpoint(source).tensors.keys()


def test_links_of_a_hub_snapshot_may_lead_to_its_blobs_only(
    originals: dict[str, Path], tmp_path: Path
) -> None:
    snapshot = hub_snapshot(tmp_path, originals["hf"])
    shutil.move(snapshot / "config.json", snapshot / "moved")
    (snapshot.parent.parent / "refs").mkdir()
    shutil.copy(originals["hf"] / "config.json", snapshot.parent.parent / "refs" / "config.json")
    (snapshot / "config.json").symlink_to("../../refs/config.json")
    refused(snapshot, "config.json is a link that leads out of the folder")


def test_find_file_gives_the_real_path_or_none(hf: Path) -> None:
    folder = open_folder(hf)
    assert find_file(folder, "config.json") == folder / "config.json"
    assert find_file(folder, "absent.json") is None
    for name in ("", ".", "..", "a/b", "a\\b", "\0"):
        with pytest.raises(CheckpointError, match="is not a plain file name"):
            find_file(folder, name)


@pytest.mark.parametrize(
    ("value", "expected"), [([5, 7], (5, 7)), (9, (9,)), ([5, 5, 7], (5, 7)), (None, (7,))], ids=str
)
def test_stop_tokens_come_from_the_generation_config(hf: Path, value: Any, expected: tuple[int, ...]) -> None:
    edit_json(hf / "generation_config.json", lambda raw: raw.update(eos_token_id=value))
    assert open_checkpoint(hf).stop_tokens == expected


def test_stop_tokens_are_the_text_models_without_a_generation_config(hf: Path) -> None:
    (hf / "generation_config.json").unlink()
    assert open_checkpoint(hf).stop_tokens == (7,)


@pytest.mark.parametrize("value", [-1, 211, "5", True, [], [5, None], [211], {"a": 5}, 5.0])
def test_wrong_stop_tokens_are_refused(hf: Path, value: Any) -> None:
    edit_json(hf / "generation_config.json", lambda raw: raw.update(eos_token_id=value))
    refused(hf, "generation_config.json: eos_token_id must be")


def test_a_file_that_shrinks_after_opening_is_an_error_when_read(hf: Path) -> None:
    checkpoint = open_checkpoint(hf)
    os.truncate(checkpoint.files[0], 10_000)
    with pytest.raises(CheckpointError, match=r"ends at byte \d+ inside a tensor"):
        checkpoint.read("lm_head.weight")
