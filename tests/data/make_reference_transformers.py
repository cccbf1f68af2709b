"""Remakes reference_transformers.json: samples of what transformers computes in float64 (extra `oracle`).

    PYTHONPATH=tests python tests/data/make_reference_transformers.py

For each case of `support.reference_cases` and each of its results: coordinates (row, column) and values. The
draft head's values take the streams of our own reference, since the library has no draft head; the layer in
it is the library's.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
from support.reference.primitives import Array
from support.reference_cases import CASES, SEED, reference_results, text_model
from support.transformers_oracle import build, expected, expected_draft, float64_islands

SAMPLES = 48


def samples(name: str, values: Array) -> dict[str, list[int] | list[float]]:
    rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    row, column = (rng.integers(0, n, SAMPLES) for n in values.shape)
    return {"rows": row.tolist(), "columns": column.tolist(), "values": values[row, column].tolist()}


def main() -> None:
    out = {}
    for name, case in CASES.items():
        weights = case.weights()
        model = text_model(case, weights)
        _, streams = reference_results(case, model, weights)
        with float64_islands():
            net = build(case, weights, model.rope.inv_freq)
            results = expected(case, net)
            if not case.media:
                results["draft logits"] = expected_draft(case, net, weights, streams)
        out[name] = {key: samples(f"{name} {key}", values) for key, values in results.items()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    path = Path(__file__).with_name("reference_transformers.json")
    path.write_text(json.dumps({"versions": versions, "cases": out}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
