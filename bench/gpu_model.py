"""A model of the real sizes with random weights for `gpu.py`: tensors share the bytes of one file in memory.

What decides time is which bytes are read, not what they say, as long as no cache has them from before. So
each tensor lies somewhere in a few GiB of random codes, far from where others of its step lie, and the file
is a tenth of what the tensors would take together.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from flashnext import _core as core
from flashnext.checkpoint import rope_tables
from flashnext.checkpoint.affine import parse_quantization
from flashnext.checkpoint.config_reader import parse_config
from flashnext.checkpoint.expected import expected_tensors
from flashnext.checkpoint.quantize import float32_to_bf16
from preset import Preset, config

REAL = Preset(hidden_size=2560, num_hidden_layers=48, vocab_size=248_320, num_experts=512)
ALIGNMENT = 256
PIECE = 64 << 20


@dataclass
class Region:
    """A part of the file from which tensors of one kind get their bytes."""

    begin: int
    size: int
    at: int = 0

    def place(self, size: int) -> int:
        """Where the next tensor lies: behind the last one, from the front again where it would not fit."""
        if size > self.size:
            raise ValueError(f"a tensor of {size:,} bytes does not fit {self.size:,}; give more GiB")
        if self.at + size > self.size:
            self.at = 0
        found = self.begin + self.at
        self.at += -(-size // ALIGNMENT) * ALIGNMENT
        return found


def write_weights(path: Path, gib: float, seed: int = 1) -> dict[str, Region]:
    """Write the random file; returns its regions.

    Codes are random bits. A weight is scale * code + bias with a spread of about 1 / sqrt(2560) around 0.
    """
    sizes = {
        "codes": int(gib * 2**30) // PIECE * PIECE,
        "scales": 2 * PIECE,
        "biases": 2 * PIECE,
        "plain": PIECE,
    }
    regions, begin = dict[str, Region](), 0
    for name, size in sizes.items():
        regions[name] = Region(begin, size)
        begin += size
    with path.open("wb") as file:
        file.truncate(begin)
    whole = np.memmap(path, np.uint8, "r+")

    def fill(name: str, first: int) -> None:
        rng = np.random.Generator(np.random.SFC64([seed, first]))
        n = PIECE // 2
        if name == "codes":
            values = rng.integers(0, 1 << 16, n, np.uint16)
        elif name == "plain":
            values = float32_to_bf16(rng.standard_normal(n, np.float32) * np.float32(0.02))
        else:
            unit = rng.uniform(0.8, 1.2, n).astype(np.float32) * np.float32(0.02 / 4.6)
            values = float32_to_bf16(unit if name == "scales" else unit * np.float32(-7.5))
        whole[first : first + PIECE] = values.view(np.uint8)

    with ThreadPoolExecutor() as pool:
        pieces = [
            pool.submit(fill, name, first)
            for name, region in regions.items()
            for first in range(region.begin, region.begin + region.size, PIECE)
        ]
        for piece in pieces:
            piece.result()
    whole.flush()
    return regions


def load(
    device: core.Device,
    path: Path,
    regions: dict[str, Region],
    bits: int,
    *,
    context: int,
    max_chunk: int,
    rows: int,
) -> core.Model:
    """Load the model: without draft head, all matrices of so many bits in groups of 32.

    Args:
        device: Where it runs.
        path: The file of `write_weights`.
        regions: Of it.
        bits: Of codes.
        context: Positions of a sequence.
        max_chunk: Rows of a prompt pass.
        rows: Most rows of a round, and of one window.
    """
    raw = config(REAL, bits)
    sizes = replace(parse_config(raw), n_mtp_layers=0)
    tensors = {}
    for name, view in expected_tensors(sizes, parse_quantization(raw)).items():
        if name.startswith(("mtp.", "visual.")):
            continue
        kind = name.rpartition(".")[2] if name.endswith((".scales", ".biases")) else "codes"
        if view.dtype == "BF16" and kind == "codes":
            kind = "plain"
        tensors[name] = (0, regions[kind].place(view.nbytes), view.dtype, list(view.shape), 0)
    inv_freq, factor = rope_tables(sizes, context)
    return core.load_model(
        device, asdict(sizes), [path], tensors, True, "bfloat16", inv_freq, factor, context,
        max_chunk=max_chunk, max_window=rows, max_round=rows, max_sequences=1,
    )  # fmt: skip
