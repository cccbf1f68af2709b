"""The GGUF twin of a random checkpoint computes the same model and is counted by the same rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="needs the extra `peers` (llama-cpp-python)")
pytest.importorskip("gguf", reason="needs the extra `peers` (gguf)")
pytest.importorskip("mlx.core", reason="needs the extra `peers` (mlx, and mlx-cpu on Linux)")

import llamacpp
import mlx.core as mx
from checkpoint_files import Checkpoint
from flashnext import _core
from flashnext.engine.load import load_model
from gguf_layout import tile_value_heads
from llamacpp_side import LlamaSide
from make_gguf import bytes_per_token, write_gguf
from make_model import write_checkpoint
from preset import PRESETS

NANO = PRESETS["nano"]


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("nano")
    write_checkpoint(NANO, root / "hf")
    write_gguf(root / "hf", root / "nano-f32.gguf", "f32", budget=512)
    return root / "hf", root / "nano-f32.gguf"


def test_llama_cpp_and_flashnext_agree_on_every_row(nano: tuple[Path, Path]) -> None:
    """Over less tokens than flashnext's index budget selects, where both attend to everything."""
    folder, path = nano
    tokens = np.random.default_rng(3).integers(0, NANO.special_id("<|endoftext|>"), NANO.indexer_budget)
    model = llamacpp.Model(path)
    session = llamacpp.Session(model, 64, exact=True)
    theirs = session.decode([(int(t), i, 0) for i, t in enumerate(tokens)], want="all")
    session.close()
    model.close()
    loaded = load_model(folder, device="cpu", dtype="float32", context=64)
    own = _core.Session(loaded.model, loaded.pool)
    ours = _core.Runner(loaded.model).forward([(own, tokens.astype(np.int32), False)])[0]
    own.close()
    assert np.abs(ours - theirs).max() < 1e-3 * theirs.std()


def test_side_decodes_the_tokens_of_its_logits(nano: tuple[Path, Path]) -> None:
    tokens = np.random.default_rng(4).integers(0, 500, 16).astype(np.int32)
    side = LlamaSide(nano[1], 64, 2)
    side.prompt(tokens)
    first = side._pending
    side.decode(3)
    side.reset()
    side.prompt(np.append(tokens, np.int32(first)))
    side.decode(2)
    replayed = side._pending
    side.reset()
    side.prompt(tokens)
    side.decode(3)
    assert side._pending == replayed


def test_bytes_of_a_token_are_those_of_the_other_layout(nano: tuple[Path, Path]) -> None:
    """The F32 file has four bytes where the checkpoint has two, and nothing else."""
    folder, path = nano
    assert sum(bytes_per_token(path).values()) == pytest.approx(
        2 * Checkpoint(folder).bytes_per_token(), rel=1e-3
    )


def test_value_heads_go_from_grouped_to_tiled() -> None:
    text = {"linear_num_key_heads": 2, "linear_num_value_heads": 6}
    heads = mx.arange(6).reshape(6, 1) * 10 + mx.arange(2)
    rows = tile_value_heads(heads.reshape(12, 1), 0, text, 2)
    assert rows.reshape(6, 2)[:, 0].tolist() == [0, 30, 10, 40, 20, 50]
    columns = tile_value_heads(heads.reshape(1, 12), 1, text, 2)
    assert columns.reshape(6, 2)[:, 0].tolist() == [0, 30, 10, 40, 20, 50]
