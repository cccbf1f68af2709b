"""Folders that other engines crashed on or served: each is refused, and the good one still opens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flashnext.checkpoint import open_checkpoint
from flashnext.errors import CheckpointError
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mutate import (
    edit_header,
    edit_json,
    edit_tensors,
    join,
    load_tensors,
    refused,
    save_tensors,
    split,
)

INDEX = "model.safetensors.index.json"
Damage = Callable[[Path], object]


def shard(folder: Path) -> Path:
    return min(folder.glob("*.safetensors"))


def cut_to(count: Callable[[int], int]) -> Damage:
    return lambda folder: os.truncate(shard(folder), count(shard(folder).stat().st_size))


def claim(length: int) -> Damage:
    def damage(folder: Path) -> None:
        content = shard(folder).read_bytes()
        shard(folder).write_bytes(length.to_bytes(8, "little") + content[8:])

    return damage


def after_header(count: int) -> Damage:
    def damage(folder: Path) -> None:
        content = shard(folder).read_bytes()
        os.truncate(shard(folder), 8 + int.from_bytes(content[:8], "little") + count)

    return damage


def append(data: bytes) -> Damage:
    return lambda folder: shard(folder).write_bytes(shard(folder).read_bytes() + data)


def move(tensor: int, begin: int, end: int) -> Damage:
    """Shift begin and end of the tensor at a place in the file."""

    def edit(header: dict[str, Any]) -> None:
        names = sorted(
            (n for n in header if n != "__metadata__"), key=lambda n: int(header[n]["data_offsets"][0])
        )
        offsets = header[names[tensor]]["data_offsets"]
        offsets[:] = [offsets[0] + begin, offsets[1] + end]

    return lambda folder: edit_header(shard(folder), edit)


def open_hole(folder: Path) -> None:
    """Shift the second half of the tensors and the data behind them by 64 bytes."""
    header, data = split(shard(folder).read_bytes())
    header.pop("__metadata__", None)
    middle = sorted(entry["data_offsets"][0] for entry in header.values())[len(header) // 2]
    for entry in header.values():
        if entry["data_offsets"][0] >= middle:
            entry["data_offsets"] = [at + 64 for at in entry["data_offsets"]]
    shard(folder).write_bytes(join(json.dumps(header).encode(), data[:middle] + bytes(64) + data[middle:]))


def quantization(**changes: Any) -> Damage:
    return lambda folder: edit_json(
        folder / "config.json", lambda raw: raw.setdefault("quantization", {}).update(changes)
    )


def drop(part: str) -> Damage:
    return lambda folder: edit_tensors(
        folder, lambda tensors: [tensors.pop(n) for n in list(tensors) if part in n]
    )


def drop_from_shard_only(folder: Path) -> None:
    """The index goes on naming a tensor that its shard has lost."""
    index = (folder / INDEX).read_text()
    tensors = load_tensors(folder)
    name = shard(folder).name
    tensors.pop(next(n for n in tensors if n.endswith("dt_bias")))
    save_tensors(folder, tensors)
    (folder / "model.safetensors").rename(folder / name)
    (folder / INDEX).write_text(index)


def stale_index(folder: Path) -> None:
    """An index of an earlier revision, with another count of shards."""
    edit_json(
        folder / INDEX,
        lambda index: index.update(
            weight_map={n: "model-00001-of-00009.safetensors" for n in index["weight_map"]}
        ),
    )


def table_scale(folder: Path) -> None:
    def edit(tensors: dict[str, Any]) -> None:
        name = next(n for n in tensors if n.endswith("shard_0.weight"))
        tensors[name + "_scale"] = ("F32", (1,), bytes(4))

    edit_tensors(folder, edit)


ROWS: list[tuple[str, Damage, str]] = [
    ("116 shard cut right after the header", after_header(0), "shorter than its header says"),
    ("116 shard cut inside the data", after_header(1000), "shorter than its header says"),
    ("116 last byte missing", cut_to(lambda size: size - 1), "shorter than its header says"),
    ("116 shard cut inside the header", cut_to(lambda size: 100), "but the file has only 100 bytes"),
    ("116 empty shard", cut_to(lambda size: 0), "ends inside its header after 0 of 8 bytes"),
    ("118 index maps a tensor that its shard lacks", drop_from_shard_only, "places tensor '.*dt_bias' in"),
    (
        "120 stale index",
        stale_index,
        "names the shard 'model-00001-of-00009.safetensors', which is not there",
    ),
    ("121 norm missing", drop("layers.0.attn_hyper_connection.hc_norm"), "misses tensor .*hc_norm.weight"),
    ("121 layer missing", drop(".layers.3."), r"misses tensor layers\.3\..*and \d+ more"),
    ("121 head missing", drop("lm_head."), "misses tensor lm_head.weight"),
    ("121 embedding missing", drop("embed_tokens."), "misses tensor embed_tokens.weight"),
    ("121 table shard missing", drop("ngram_embedding.shard_1."), "misses tensor .*shard_1.weight"),
    ("123 header length 2^64 - 8", claim(2**64 - 8), "at most 100000000 are allowed"),
    ("123 header length 0", claim(0), "the header must be a JSON object"),
    ("123 header length 200 MB", claim(200_000_000), "at most 100000000 are allowed"),
    ("123 header longer than the file", claim(90_000_000), "but the file has only"),
    ("123 header one byte short", claim(300), "is not valid JSON|must be"),
    ("125 trailing bytes", append(b"\0" * 8), "8 bytes are left over after the last tensor"),
    ("125 one trailing byte", append(b"\n"), "1 bytes are left over"),
    ("125 hole", open_hole, "leaves a hole before it"),
    ("125 overlap", move(5, -2, -2), "tensor '.*' overlaps the tensor before it"),
    ("125 begin > end", move(5, 10**9, 0), "tensor '.*' begins at data byte .*, after its end"),
    ("125 end beyond the file", move(-1, 10**9, 10**9), "tensor '.*' leaves a hole before it"),
    ("125 tensor one byte long", move(5, 0, 1), "tensor '.*' has .* bytes, but .* needs"),
    ("126 bits 0", quantization(bits=0, group_size=32), "must be one of 2, 3, 4, 5, 6, 8, found 0"),
    ("126 bits 7", quantization(bits=7, group_size=32), "must be one of 2, 3, 4, 5, 6, 8, found 7"),
    ("126 mode mxfp4", quantization(bits=6, group_size=32, mode="mxfp4"), "'mxfp4'; .* supports only affine"),
    ("126 mode unknown", quantization(bits=6, group_size=32, mode="zip"), "'zip'; .* supports only affine"),
    ("126 group 48", quantization(bits=6, group_size=48), "must be one of 32, 64, 128, found 48"),
    ("128 FP8 scale in the table", table_scale, "shard_0.weight_scale' belongs to a quantization"),
]


@pytest.mark.parametrize("layout", ["hf", "mlx"])
@pytest.mark.parametrize(("damage", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_damaged_folder_is_refused_and_the_good_one_still_opens(
    request: pytest.FixtureRequest, originals: dict[str, Path], layout: str, damage: Damage, words: str
) -> None:
    folder: Path = request.getfixturevalue(layout)
    damage(folder)
    sentence = refused(folder, words)
    assert str(folder) in sentence
    assert len(open_checkpoint(originals[layout]).tensors) > 100


@pytest.mark.parametrize("layout", ["hf", "mlx"])
def test_a_group_that_does_not_divide_the_rows_is_refused(mlx: Path, hf: Path, layout: str) -> None:
    folder = {"hf": hf, "mlx": mlx}[layout]
    edit_json(folder / "config.json", lambda raw: raw.update(quantization={"bits": 6, "group_size": 128}))
    if layout == "mlx":
        refused(folder, "config.json says 6 bits, group 128")
    else:  # nothing in the folder is quantized, so the section says nothing about it
        assert open_checkpoint(folder).affine == {}


@pytest.mark.parametrize("layout", ["hf", "mlx"])
def test_a_stray_file_beside_the_shards_changes_nothing_but_a_warning(
    request: pytest.FixtureRequest, layout: str
) -> None:
    folder: Path = request.getfixturevalue(layout)
    before = open_checkpoint(folder)
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 100)
    after = open_checkpoint(folder)
    assert after.tensors == before.tensors
    assert after.files == before.files
    assert ["model-00001-of-00002.safetensors is not part of" in warning for warning in after.warnings] == [
        True
    ]


@settings(max_examples=300, deadline=None)
@given(
    layout=st.sampled_from(["hf", "mlx"]),
    name=st.sampled_from(
        ["config.json", "generation_config.json", INDEX, "model-00001-of-00001.safetensors"]
    ),
    edits=st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_flipped_bytes_of_any_file_open_or_are_refused(
    originals: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    layout: str,
    name: str,
    edits: list[tuple[int, int]],
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"flipped-{layout}"
    folder.mkdir(exist_ok=True)
    for path in originals[layout].iterdir():
        (folder / path.name).unlink(missing_ok=True)
        (folder / path.name).hardlink_to(path)
    content = bytearray((folder / name).read_bytes())
    for at, byte in edits:
        content[at % len(content)] = byte
    (folder / name).unlink()
    (folder / name).write_bytes(content)
    try:
        open_checkpoint(folder)
    except CheckpointError as error:
        sentence = str(error)
    else:
        sentence = "opened"
    assert sentence.isprintable(), sentence
