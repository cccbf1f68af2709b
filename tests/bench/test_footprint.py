"""A process takes the memory that the plan says once all of it is used."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import footprint
import pytest
from flashnext.engine.engine import BUNDLED
from support.random_checkpoint import write_random

SHARE = 0.02  # of the footprint, that a plan may be wrong by
OWN_BYTES = 3 << 19  # of names and programs, and what the system rounds up; the plan's margin has room for it
POPULATES = sys.platform == "linux" and tuple(map(int, platform.release().split(".")[:2])) >= (5, 14)
LARGE: dict[str, Any] = {
    "vocab_size": 60_000, "hidden_size": 512, "num_hidden_layers": 2, "full_attention_interval": 2,
    "ple_layer_ids": [1],
}  # fmt: skip


@pytest.mark.skipif(not POPULATES, reason="needs MADV_POPULATE_WRITE of Linux 5.14")
@pytest.mark.parametrize(
    ("checkpoint", "settings"),
    [
        ("bundled", {"drafts": 1}),
        ("bundled", {"context": 5000, "parallel": 3, "dtype": "float32"}),
        ("bundled", {"context": 1000, "max_chunk": 2000}),
        ("bundled", {"context": 2048, "vision": True}),
        ("hf", {"context": 300, "parallel": 1, "drafts": 1}),
        ("mlx", {"context": 2048, "parallel": 32}),
    ],
    ids=["window", "float32", "chunk", "vision", "hf", "mlx"],
)
def test_what_a_model_takes_is_what_was_planned(
    tmp_path: Path, checkpoint: str, settings: dict[str, Any]
) -> None:
    folder = BUNDLED if checkpoint == "bundled" else write_random(tmp_path, LARGE, layout=checkpoint)
    found = footprint.measured("model", folder, settings)
    assert found["pages_found"] == found["pages_planned"]
    assert found["found"] == pytest.approx(found["planned"], abs=SHARE * found["planned"] + OWN_BYTES)


@pytest.mark.skipif(not POPULATES, reason="needs MADV_POPULATE_WRITE of Linux 5.14")
def test_what_a_process_takes_is_what_was_planned() -> None:
    found = footprint.measured("process", BUNDLED, {"context": 2048, "parallel": 4, "drafts": 2})
    # The interpreter and the libraries differ from machine to machine, and are most of it here.
    assert found["found"] == pytest.approx(found["planned"], rel=0.2)


def test_the_table_has_a_line_for_each_settings() -> None:
    both = {what: {"planned": 200 << 20, "found": 199 << 20} for what in footprint.MEASURES}
    lines = list(footprint.table_lines([({"context": 2048, "parallel": 4, "drafts": 0}, both)]))
    cells = "200.0 | 199.0 (-0.50 %)"
    assert lines[2:] == [f"| 2,048 | 4 | 0 | bfloat16 | {cells} | {cells} |"]
