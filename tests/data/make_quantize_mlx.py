"""Remakes quantize_mlx.json.gz: digests of what mlx.core.quantize gives for the cases of
tests/support/quantize_cases.py.

PYTHONPATH=python:tests python tests/data/make_quantize_mlx.py     (packages mlx and, on Linux, mlx-cpu)
"""

from __future__ import annotations

import gzip
import json
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
from support.quantize_cases import cases, digest


def main() -> None:
    mx.set_default_device(mx.cpu)
    digests = {}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for name, weights in cases(group):
                parts = mx.quantize(mx.array(weights).view(mx.bfloat16), group_size=group, bits=bits)
                words = np.array(parts[0])
                scales, biases = (np.array(part.view(mx.uint16)) for part in parts[1:])
                digests[f"{bits} bits, group {group}, {name}"] = digest(weights, words, scales, biases)
    out = {"made_with": {"mlx": version("mlx")}, "digests": digests}
    text = json.dumps(out, separators=(",", ":")) + "\n"
    packed = gzip.compress(text.encode(), 9, mtime=0)
    Path(__file__).with_name("quantize_mlx.json.gz").write_bytes(packed)


if __name__ == "__main__":
    main()
