"""Measure flashnext and llama.cpp on the same random checkpoint, in one interleaved run.

    python bench/compare.py FOLDER --bits 4 6 8 --rounds 3 --json results.json
    python bench/compare.py FOLDER --quick

FOLDER holds what make_model.py and make_gguf.py wrote: mid-mlx4, mid-mlx6, mid-mlx8, and in gguf/ the files
mid-q4_k, mid-q6_k and mid-q8_0. Every round runs each contender once in a process of its own, the two sides
of one number of bits next to each other and in turning order, so that both see the same machine and never
share memory. A sample carries what others took of the machine meanwhile; disturbed samples are left out where
there are quiet ones. llama.cpp's threads spin while they wait, which is fastest, but collapses when others
want the cores: on a shared machine use --favour, or --omp-wait passive. Extra: `peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkpoint_files import Checkpoint
from machine import describe, measure_limits
from report import MACHINE, Contender, Round, figures, rate, table
from samples import Meter, Sample
from sides import Plan, Side, measure

SIDES = ("flashnext", "llama.cpp")
GGUF_TYPES = {4: "q4_k", 6: "q6_k", 8: "q8_0"}
FORMATS = {4: "Q4_K_M", 6: "Q6_K", 8: "Q8_0"}

Metrics = dict[str, list[Sample]]


def mlx_path(folder: Path, preset: str, bits: int) -> Path:
    """The MLX checkpoint of one number of bits."""
    return folder / f"{preset}-mlx{bits}"


def gguf_path(folder: Path, preset: str, bits: int) -> Path:
    """The GGUF file that llama.cpp's users would take for it."""
    return folder / "gguf" / f"{preset}-{GGUF_TYPES[bits]}.gguf"


def turns(contenders: Sequence[Contender], n: int) -> list[str]:
    """Who runs in round n: the machine, then the bits in order, the sides of each swapped in odd rounds."""
    names: list[str] = [MACHINE]
    for bits in dict.fromkeys(c.bits for c in contenders):
        sides = [c.name for c in contenders if c.bits == bits]
        names += reversed(sides) if n % 2 else sides
    return names


def run_rounds(
    contenders: Sequence[Contender],
    n_rounds: int,
    run: Callable[[str], Metrics],
    done: Callable[[list[Round]], None],
) -> list[Round]:
    """Run every contender once a round.

    Args:
        contenders: Both sides at each number of bits.
        n_rounds: Rounds.
        run: Measures one contender, or the machine.
        done: Told of all rounds so far, after each.
    """
    rounds: list[Round] = []
    for n in range(n_rounds):
        rounds.append({name: run(name) for name in turns(contenders, n)})
        done(rounds)
    return rounds


def run_worker(options: argparse.Namespace, name: str) -> Metrics:
    """Measure one contender in a process of its own.

    Raises:
        SystemExit: It failed; the message holds the end of its output.
    """
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", name]
    environment = worker_environment(options, os.environ)
    finished = subprocess.run(
        command, capture_output=True, text=True, env=environment, start_new_session=options.favour
    )
    if finished.returncode:
        raise SystemExit(f"{name}: exit status {finished.returncode}\n{finished.stderr[-2000:]}")
    measured: Metrics = {
        metric: [Sample(**sample) for sample in samples]
        for metric, samples in json.loads(finished.stdout.splitlines()[-1]).items()
    }
    for line in progress(name, measured, options.quiet):
        print(line, flush=True)
    return measured


def worker_environment(options: argparse.Namespace, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of a measured process: how llama.cpp's threads wait is never inherited."""
    environment = {k: v for k, v in inherited.items() if k != "OMP_WAIT_POLICY"}
    environment["OPENBLAS_NUM_THREADS"] = str(options.threads)  # numpy reads it when it is imported
    if options.omp_wait != "default":
        environment["OMP_WAIT_POLICY"] = options.omp_wait
    return environment


def setup_line(options: argparse.Namespace) -> str:
    """How the sides were run, for the head of the table."""
    favoured = "favoured" if options.favour else "not favoured"
    return f"{options.threads} threads, {favoured}; llama.cpp's OpenMP wait: {options.omp_wait}"


def favour_this_session() -> None:
    """Make other sessions leave the cores to this process's own (Linux with autogroup scheduling, as root).

    Raises:
        OSError: The kernel has no such groups, or the user may not.
    """
    Path("/proc/self/autogroup").write_text("-19")


def progress(name: str, measured: Mapping[str, Sequence[Sample]], limit: float) -> Iterator[str]:
    """One line for each metric of a finished process."""
    for metric, samples in measured.items():
        most = max(s.disturbance for s in samples)
        yield f"{name:14} {metric:18} {rate(samples, limit)!s:32} disturbed by up to {most:.0%}"


def worker(options: argparse.Namespace) -> Metrics:
    """Measure one contender in this process."""
    if options.favour:
        favour_this_session()
    meter = Meter(options.threads, options.patience)
    if options.worker == MACHINE:
        measure_limits(meter, options.threads)
    else:
        plan = plan_of(options)
        measure(open_side(options, plan), plan, meter)
    return meter.samples


def open_side(options: argparse.Namespace, plan: Plan) -> Side:
    """Load the contender that this process is for; each side needs only its own packages."""
    name, _, bits = options.worker.partition(" ")
    if name == "llama.cpp":
        from llamacpp_side import LlamaSide

        return LlamaSide(gguf_path(options.folder, options.preset, int(bits)), plan.context, options.threads)
    from flashnext_side import FlashnextSide

    return FlashnextSide(mlx_path(options.folder, options.preset, int(bits)), plan.context, options.threads)


def contenders_of(options: argparse.Namespace) -> list[Contender]:
    """Both sides at each number of bits, with what a token costs them."""
    from make_gguf import bytes_per_token  # the peers extra, which a run of flashnext alone does not need

    contenders = []
    for bits in options.bits:
        ours = Checkpoint(mlx_path(options.folder, options.preset, bits))
        flops = ours.flops_per_prompt_row()
        for side in options.sides:
            if side == "flashnext":
                form, read = f"MLX {bits} bit", ours.bytes_per_token()
            else:
                read = sum(bytes_per_token(gguf_path(options.folder, options.preset, bits)).values())
                form = FORMATS[bits]
            contenders.append(Contender(f"{side} {bits}", bits, form, read, flops))
    return contenders


def plan_of(options: argparse.Namespace) -> Plan:
    """What the command line asks to be measured."""
    n_samples = 2 if options.quick else options.samples
    return Plan(tuple(options.prompts), tuple(options.contexts), options.steps, n_samples)


def as_json(
    options: argparse.Namespace, contenders: Sequence[Contender], rounds: Sequence[Round]
) -> dict[str, Any]:
    """The whole run: machine, settings, figures and every sample."""
    return dict(
        machine=describe(),
        settings={k: v for k, v in vars(options).items() if k not in ("folder", "json", "worker")},
        contenders=[vars(c) for c in contenders],
        figures=figures(rounds, contenders, options.quiet),
        rounds=[
            {
                name: {m: [s.as_json() for s in samples] for m, samples in metrics.items()}
                for name, metrics in r.items()
            }
            for r in rounds
        ],
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--preset", default="mid")
    parser.add_argument("--bits", type=int, nargs="+", choices=list(GGUF_TYPES), default=list(GGUF_TYPES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--prompts", type=int, nargs="*", default=[512], help="lengths of timed prompts")
    parser.add_argument("--contexts", type=int, nargs="*", default=[128], help="tokens before timed decoding")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=6, help="decode samples of each process")
    parser.add_argument("--steps", type=int, default=8, help="tokens of one decode sample")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--omp-wait", choices=("passive", "active", "default"), default="default", help="of llama.cpp"
    )
    parser.add_argument(
        "--quiet", type=float, default=0.1, help="disturbance that a quiet sample may carry, a share"
    )
    parser.add_argument(
        "--patience", type=float, default=20, help="seconds to wait for quiet before a sample"
    )
    parser.add_argument("--favour", action="store_true", help="make others leave the cores to the measured")
    parser.add_argument("--quick", action="store_true", help="one round, 4 bits, two samples")
    parser.add_argument("--json", type=Path, help="write the whole run here after every round")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.bits = 1, [4]
    return options


def main() -> None:
    options = parse()
    if options.worker:
        measured = worker(options)
        print(json.dumps({m: [s.as_json() for s in samples] for m, samples in measured.items()}))
        return
    contenders = contenders_of(options)

    def done(rounds: list[Round]) -> None:
        print(f"round {len(rounds)} of {options.rounds}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(as_json(options, contenders, rounds), indent=1) + "\n")

    rounds = run_rounds(contenders, options.rounds, lambda name: run_worker(options, name), done)
    print("\n" + setup_line(options))
    print("\n".join(table(rounds, contenders, options.quiet)))


if __name__ == "__main__":
    main()
