"""Measure what a grammar costs a reply: decode speed with one and without, interleaved, on one engine.

    python bench/structured.py                        the bundled checkpoint, about a minute
    python bench/structured.py CHECKPOINT --tokens 128 --rounds 9 --together 4
    python bench/structured.py --workers 1            so that the CPU device leaves a core for the host

Each round decodes as many tokens without a grammar, under one that allows all text (the same tokens, so that
nothing but the masks differs), and under a JSON schema (other tokens, a mask that leaves out most). Printed
are medians of milliseconds a token and the cost of either grammar.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.load import open_device
from flashnext.engine.sampling import Sampling
from flashnext.grammar import Grammar
from machine import describe

PROMPT = "The list of all numbers and their names, from one on: one, two, three,"
GRAMMARS: dict[str, Grammar | None] = {
    "none": None,
    "all text": Grammar.regex("(.|\n)*"),
    "schema": Grammar.json_schema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 40}, "n": {"type": "integer"}},
                "required": ["name", "n"],
                "additionalProperties": False,
            },
            "minItems": 1000,
        }
    ),
}


def token_ms(engine: Engine, grammar: Grammar | None, n_tokens: int, n_together: int) -> float:
    """Milliseconds a round, of so many replies at once."""
    bias = {i: -100.0 for i in engine.loaded.checkpoint.stop_tokens}  # so that all have the same length
    how = Sampling(
        grammar=grammar, temperature=0, max_tokens=n_tokens, logit_bias=bias, draft=False, cache=False
    )
    requests = [engine.submit(PROMPT, sampling=how) for _ in range(n_together)]
    for request in requests:
        next(request)
    began_s = time.perf_counter()
    for request in requests:
        reply = request.result()
        if len(reply.token_ids) != n_tokens:
            raise SystemExit(f"a reply has {len(reply.token_ids)} tokens, expected {n_tokens}")
    return (time.perf_counter() - began_s) * 1e3 / (n_tokens - 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", type=Path, default=BUNDLED)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="of the CPU device (default one a processor)")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in GRAMMARS}
    device = open_device(threads=asked.workers)
    with Engine(asked.checkpoint, device=device, context=1024, drafts=0, parallel=asked.together) as engine:
        for grammar in GRAMMARS.values():
            token_ms(engine, grammar, asked.tokens, asked.together)
        for _ in range(asked.rounds):
            for name, grammar in GRAMMARS.items():
                found[name].append(token_ms(engine, grammar, asked.tokens, asked.together))
    medians = {name: statistics.median(times) for name, times in found.items()}
    for name, median in medians.items():
        cost = median / medians["none"] - 1
        print(f"{name:9} {median:8.3f} ms a round of {asked.together}, {100 * cost:+.1f} %")
    if asked.json:
        asked.json.write_text(json.dumps({"machine": describe(), "ms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
