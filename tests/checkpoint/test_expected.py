"""What config.json alone tells of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from flashnext.checkpoint import TensorView, open_checkpoint, parse_config
from flashnext.checkpoint.affine import Affine, Quantization
from flashnext.checkpoint.convert import convert
from flashnext.checkpoint.expected import describe, expected_tensors
from flashnext.checkpoint.writer import write_json
from flashnext.errors import CheckpointError, InvalidArgument
from support.published import PUBLISHED
from support.random_checkpoint import random_config, write_random

TESTS = Path(__file__).parents[1]
TINY = TESTS / "tiny" / "hf"
TINY_6BIT = TESTS.parent / "python" / "flashnext" / "data" / "tiny-6bit"


def storage(tensors: dict[str, TensorView]) -> dict[str, tuple[str, int]]:
    return {name: (v.dtype, v.nbytes) for name, v in tensors.items() if v.dtype != "I64"}


@pytest.mark.parametrize(("rank", "group", "table_group"), [(32, 32, None), (64, 64, 32)])
def test_it_tells_what_a_conversion_will_write(
    tmp_path: Path, rank: int, group: int, table_group: int | None
) -> None:
    widths = {"hc_lowrank": rank, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    source = write_random(tmp_path / "source", widths)
    convert(source, tmp_path / "out", bits=3, group=group, table_group=table_group)
    written = dict(open_checkpoint(tmp_path / "out").tensors)
    said = describe(source, bits=3, group=group, table_group=table_group)
    assert storage(dict(said.tensors)) == storage(written)
    assert storage(dict(describe(tmp_path / "out").tensors)) == storage(written)


def test_a_file_says_what_its_folder_says(tmp_path: Path) -> None:
    write_json(tmp_path / "any-name.json", PUBLISHED)
    config = describe(tmp_path / "any-name.json").config
    assert config == parse_config(PUBLISHED)
    (tmp_path / "any-name.json").rename(tmp_path / "config.json")
    assert describe(tmp_path).config == config


def test_rows_that_are_no_whole_number_of_groups_stay_bfloat16() -> None:
    config = parse_config(random_config())
    tensors = expected_tensors(config, Quantization(Affine(4, 128), {}, ()))
    assert tensors["lm_head.weight"] == TensorView(0, 0, "BF16", (211, 64))
    assert tensors["layers.1.ple.key_proj.weight"] == TensorView(0, 0, "U32", (256, 16))
    assert tensors["layers.1.ple.key_proj.scales"] == TensorView(0, 0, "BF16", (256, 1))


def test_what_cannot_be_planned_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is quantized already; leave out --bits"):
        describe(TINY_6BIT, bits=4)
    with pytest.raises(CheckpointError, match=r"rows of 32 inputs, .* choose a smaller --group"):
        describe(TINY, bits=4, group=64)
    with pytest.raises(CheckpointError, match=r"shard_0.weight has rows .* choose a smaller --table-group"):
        describe(TINY, bits=4, table_group=64)
    with pytest.raises(InvalidArgument, match="bits is 7"):
        describe(TINY, bits=7)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        describe(tmp_path)
