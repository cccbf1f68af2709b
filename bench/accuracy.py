"""Score checkpoints of the bundled model on its own tasks: exact match of whole greedy replies.

    python bench/accuracy.py tests/tiny/hf:float32 tests/tiny/hf:bfloat16 \\
        python/flashnext/data/tiny-6bit:bfloat16

Prompts are held out as in tests/tiny/train (a hash of the prompt keeps them out of training), drawn from a
seed that the report names; tasks with pictures are left out until flashnext reads them. A reply counts when
all its tokens, reasoning and end token included, are the expected ones.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from flashnext import _core
from flashnext.engine.load import load_model
from tokenizers import Tokenizer

TRAIN = Path(__file__).parent.parent / "tests" / "tiny" / "train"
HF = TRAIN.parent / "hf"
SPARE_TOKENS = 16  # a reply may run this much beyond the expected one before it counts as wrong

MISSES = 20_000  # drawn samples in a row that bring nothing new end the search

Case = tuple[list[int], list[int]]  # prompt ids, expected reply ids


def reply_span(weights: list[float]) -> tuple[int, int]:
    """Find the last run of scored tokens: the reply under test."""
    last = max(i for i, w in enumerate(weights) if w > 0.9)
    first = last
    while first > 0 and weights[first - 1] > 0.9:
        first -= 1
    return first, last + 1


def held_out(per_task: int, seed: int) -> dict[str, list[Case]]:
    """Draw `per_task` held-out cases of every text task."""
    sys.path.insert(0, str(TRAIN))
    import batches
    import tasks

    rng = random.Random(seed)
    encoder = batches.Encoder(Tokenizer.from_file(str(HF / "tokenizer.json")))
    cases: dict[str, list[Case]] = defaultdict(list)
    misses = 0
    while misses < MISSES:  # every task has its cases, or is too rare to find more
        sample = tasks.draw(rng, tasks.TASKS)
        if sample.media or not (sample.closed or sample.is_test()) or len(cases[sample.task]) == per_task:
            misses += 1
            continue
        misses = 0
        ids, weights = encoder.encode(sample)
        first, last = reply_span(weights)
        cases[sample.task].append((ids[:first], ids[first:last]))
    return {name: found for name, found in sorted(cases.items()) if found}


def score(checkpoint: str, dtype: str, cases: dict[str, list[Case]]) -> dict[str, int]:
    """Count the exact replies of each task."""
    loaded = load_model(checkpoint, dtype=dtype)
    runner = _core.Runner(loaded.model)
    greedy = _core.Sampling(temperature=0)
    right = {}
    for name, items in cases.items():
        right[name] = 0
        for prompt, expected in items:
            session = _core.Session(loaded.model, loaded.pool)
            ids = np.array(prompt, np.int32)
            starts = range(0, len(ids), runner.max_chunk)
            for at in starts:
                chunk = ids[at : at + runner.max_chunk]
                drawn = runner.prompt(session, chunk, at + len(chunk) == len(ids), greedy)
            reply = [drawn[0].token]
            while (
                reply[-1] not in loaded.checkpoint.stop_tokens and len(reply) < len(expected) + SPARE_TOKENS
            ):
                reply.append(runner.round([session])[0][0].token)
            session.close()
            right[name] += reply == expected
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", metavar="FOLDER:DTYPE")
    parser.add_argument("--per-task", type=int, default=30, help="held-out prompts of each task")
    parser.add_argument("--seed", type=int, default=4321)
    parser.add_argument("--json", type=Path, help="also write the counts here")
    args = parser.parse_args()
    cases = held_out(args.per_task, args.seed)
    columns = {}
    for argument in args.checkpoints:
        folder, _, dtype = argument.rpartition(":")
        columns[argument] = score(folder, dtype, cases)
    total = sum(map(len, cases.values()))
    print(f"seed {args.seed}, {total} prompts\n\ntask | prompts | " + " | ".join(columns))
    print("|".join([" --- "] * (len(columns) + 2)))
    for name, items in cases.items():
        print(
            f"{name} | {len(items)} | "
            + " | ".join(f"{100 * c[name] / len(items):.0f} %" for c in columns.values())
        )
    print(
        f"all | {total} | " + " | ".join(f"{100 * sum(c.values()) / total:.1f} %" for c in columns.values())
    )
    if args.json:
        args.json.write_text(json.dumps({"seed": args.seed, "counts": columns}, indent=1) + "\n")


if __name__ == "__main__":
    main()
