"""Climb the ladder: 1 to 32 sequences together, drafts on and off, greedy and sampled, beside llama.cpp.

    python bench/ladder.py --quick                            the bundled checkpoint, some minutes
    python bench/ladder.py FOLDER --json ladder.json --svg docs/ladder
    python bench/ladder.py FOLDER --checkpoints mid --quick

FOLDER holds mid-mlx4 and gguf/mid-q4_k.gguf, as make_model.py and make_gguf.py wrote them (README.md). Each
round runs every engine configuration in a process of its own, llama.cpp's batches between them, in turning
order. The reply of every sequence is compared with the reply that its prompt got alone, without drafts, in a
process before the rounds: where one differs, the run ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compare import gguf_path, mlx_path, worker_environment
from flashnext.engine.engine import BUNDLED
from ladder_report import (
    GREEDY,
    OFF,
    ON,
    SAMPLED,
    Round,
    figures,
    key_of,
    results_of,
    table_lines,
    target_lines,
    targets,
)
from ladder_worker import LONG, OURS, PEER, Plan, Run
from machine import describe
from plot import Panel, svg
from workloads import LENGTHS, MIXED, WORKLOADS, Prompts

BUNDLED_NAME = "bundled"
PEER_RUNGS = (1, 8, 16)
BITS = 4


@dataclass(frozen=True)
class Ladder:
    """What is measured on one checkpoint.

    Attributes:
        name: "bundled" or a preset.
        path: Its folder.
        gguf: The peer's file; None where it has none.
        workloads: Of the prompts. On random weights the words mean nothing, so they are mixed.
        prompts: By workload, as many as the largest rung.
    """

    name: str
    path: Path
    gguf: Path | None
    workloads: tuple[str, ...]
    prompts: Mapping[str, list[list[int]]]

    @property
    def contenders(self) -> list[str]:
        """Who runs in each round."""
        return [OFF, *([PEER] if self.gguf else []), ON]


def ladder_of(options: argparse.Namespace, name: str) -> Ladder:
    """Find a checkpoint and render its prompts.

    Raises:
        SystemExit: A file is missing.
    """
    bundled = name == BUNDLED_NAME
    if not bundled and options.folder is None:
        raise SystemExit(f"{name}: give the folder that holds {name}-mlx{BITS}, see bench/README.md")
    path = BUNDLED if bundled else mlx_path(options.folder, name, BITS)
    gguf = None if bundled or not options.peer else gguf_path(options.folder, name, BITS)
    for file in (path / "config.json", gguf):
        if file is not None and not file.is_file():
            raise SystemExit(f"{file}: not found; make it as bench/README.md says (or --no-peer for a GGUF)")
    workloads = tuple(options.workloads or (WORKLOADS if bundled else [MIXED]))
    prompts = Prompts(path)
    return Ladder(name, path, gguf, workloads, {w: prompts.chats(w, max(options.rungs)) for w in workloads})


def plan_alone(options: argparse.Namespace, ladder: Ladder) -> Plan:
    """Every prompt by itself: what all other replies must equal."""
    runs = [
        Run(key_of(workload, mode, i), [prompt], [i] if mode == SAMPLED else [])
        for workload in ladder.workloads
        for mode in options.modes
        for i, prompt in enumerate(ladder.prompts[workload])
    ]
    return Plan(
        OURS, str(ladder.path), options.threads, options.tokens, runs=tuple(runs), favour=options.favour
    )


def plan_of(options: argparse.Namespace, ladder: Ladder, contender: str) -> Plan:
    """What one contender does in a round."""
    rungs, modes = options.rungs, options.modes
    if contender == PEER:
        rungs, modes = [n for n in PEER_RUNGS if n in rungs], [GREEDY]
    runs = [
        Run(key_of(workload, mode, n), ladder.prompts[workload][:n], [*range(n)] if mode == SAMPLED else [])
        for workload in ladder.workloads
        for mode in modes
        for n in rungs
    ]
    return Plan(
        kind=PEER if contender == PEER else OURS,
        path=str(ladder.gguf if contender == PEER else ladder.path),
        threads=options.threads,
        n_tokens=options.tokens,
        drafts=options.drafts if contender == ON else 0,
        parallel=max(rungs),
        runs=tuple(runs),
        patience_s=options.patience,
        favour=options.favour,
    )


def plan_long(options: argparse.Namespace, ladder: Ladder) -> Plan:
    """A long prompt beside a sequence that decodes."""
    return Plan(
        LONG, str(ladder.path), options.threads, options.tokens, parallel=2,
        long_tokens=options.long, favour=options.favour,
    )  # fmt: skip


def turns(contenders: Sequence[str], n: int) -> list[str]:
    """The order of round n: forwards and backwards in turn."""
    return list(reversed(contenders)) if n % 2 else list(contenders)


def run_plan(options: argparse.Namespace, plan: Plan, name: str) -> Mapping[str, Any]:
    """Carry a plan out in a process of its own.

    Raises:
        SystemExit: It failed; the message holds the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.write(path)
        worker = Path(__file__).with_name("ladder_worker.py")
        finished = subprocess.run(
            [sys.executable, str(worker), str(path)],
            capture_output=True,
            text=True,
            env=worker_environment(options, os.environ),
            start_new_session=options.favour,
        )
    if finished.returncode:
        raise SystemExit(f"{name}: exit status {finished.returncode}\n{finished.stderr[-2000:]}")
    found: Mapping[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    print(f"  {name}: {len(found)} runs", flush=True)
    return found


def known_of(ladder: Ladder, modes: Sequence[str], alone: Mapping[str, Any]) -> dict[str, list[str]]:
    """The fingerprints of the replies alone, by "workload mode", in the order of the prompts."""
    return {
        f"{workload} {mode}": [
            alone[key_of(workload, mode, i)]["shas"][0] for i in range(len(ladder.prompts[workload]))
        ]
        for workload in ladder.workloads
        for mode in modes
    }


def climb(options: argparse.Namespace, ladder: Ladder) -> dict[str, Any]:
    """Measure one checkpoint, print its tables, and return all of it for a machine to read."""
    lengths = [len(ids) for prompts in ladder.prompts.values() for ids in prompts]
    print(f"{ladder.name}: prompts of {min(lengths)} to {max(lengths)} tokens, replies of {options.tokens}")
    known = known_of(ladder, options.modes, run_plan(options, plan_alone(options, ladder), "alone"))
    rounds: list[Round] = []
    for n in range(options.rounds):
        print(f"round {n + 1} of {options.rounds}", flush=True)
        rounds.append(
            {c: run_plan(options, plan_of(options, ladder, c), c) for c in turns(ladder.contenders, n)}
        )
    if options.long:
        rounds.append({OFF: run_plan(options, plan_long(options, ladder), LONG)})
    rows = figures(rounds, known)
    reached = targets(rounds, ladder.workloads, ladder.name == BUNDLED_NAME)
    print("\n" + "\n".join([*table_lines(rows, options.quiet), "", *target_lines(reached), ""]), flush=True)
    return dict(
        prompt_tokens=[min(lengths), max(lengths)],
        figures=rows,
        targets=[asdict(t) | dict(met=t.met) for t in reached],
        long=[dict(r) for r in results_of(rounds, OFF, LONG)],
        rounds=rounds,
        n_wrong=sum(row["n_wrong"] for row in rows),
    )


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Two charts for docs: tokens per second of all sequences, and the first token that comes last."""

    def lines(metric: str, scale: float) -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row[metric] is not None and row["mode"] == GREEDY:
                name = f"{row['contender']}, {row['workload']}"
                found.setdefault(name, []).append((row["n"], row[metric]["median"] * scale))
        return found

    return [
        Panel("tokens per second, all together", "sequences", lines("decode", 1)),
        Panel("last of the first tokens, ms", "sequences", lines("first_worst_s", 1e3)),
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where the random checkpoints are")
    parser.add_argument(
        "--checkpoints", nargs="+", help=f"{BUNDLED_NAME}, or a preset in FOLDER; default all that are there"
    )
    parser.add_argument("--rungs", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="sequences")
    parser.add_argument("--modes", nargs="+", choices=(GREEDY, SAMPLED), default=[GREEDY, SAMPLED])
    parser.add_argument("--workloads", nargs="+", choices=(*WORKLOADS, MIXED))
    parser.add_argument("--tokens", type=int, default=256, help="of each reply, at least 4")
    parser.add_argument("--drafts", type=int, default=4, help="most drafts of a round, where they are on")
    parser.add_argument("--long", type=int, default=16_384, help="tokens of the long prompt, 0 for none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True, help="run llama.cpp")
    parser.add_argument(
        "--omp-wait", choices=("passive", "active", "default"), default="default", help="of llama.cpp"
    )
    parser.add_argument("--quiet", type=float, default=0.1, help="share of others that leaves a row unmarked")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for quiet before a run")
    parser.add_argument("--favour", action="store_true", help="make others leave the cores to the measured")
    parser.add_argument(
        "--quick", action="store_true", help="one round, 1, 4 and 8 greedy sequences of 32 mixed tokens"
    )
    parser.add_argument("--json", type=Path, help="write the whole run here")
    parser.add_argument("--svg", type=Path, help="write plots to this name, -CHECKPOINT.svg added")
    options = parser.parse_args(arguments)
    if options.tokens < 4 or min(options.rungs) < 1:
        parser.error("--tokens: expected 4 or more; --rungs: expected 1 or more")
    if options.quick:
        options.rounds, options.modes, options.workloads = 1, [GREEDY], [MIXED]
        options.rungs = [n for n in options.rungs if n in (1, 4, 8)] or [1]
        options.tokens, options.long = min(options.tokens, 32), min(options.long, 1024)
        options.patience = 0.0
    options.rungs = sorted(set(options.rungs))
    options.checkpoints = options.checkpoints or [BUNDLED_NAME, *(["mid"] if options.folder else [])]
    return options


def main() -> None:
    options = parse()
    found: dict[str, Any] = {}
    ladders = [ladder_of(options, name) for name in options.checkpoints]
    for ladder in ladders:
        found[ladder.name] = climb(options, ladder)
        if options.svg:
            target = options.svg.with_name(f"{options.svg.name}-{ladder.name}.svg")
            target.write_text(svg(panels(found[ladder.name]["figures"])))
        if options.json:
            settings = {k: v for k, v in vars(options).items() if k not in ("folder", "json", "svg")}
            settings["length_class"] = LENGTHS
            whole = dict(machine=describe(), settings=settings, checkpoints=found)
            options.json.write_text(json.dumps(whole, indent=1) + "\n")
    if wrong := sum(f["n_wrong"] for f in found.values()):
        raise SystemExit(f"{wrong} replies differ from those that their prompts get alone")


if __name__ == "__main__":
    main()
