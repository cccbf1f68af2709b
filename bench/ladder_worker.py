"""One process of the ladder: reads a plan, measures one engine configuration, prints what it found as JSON.

    python bench/ladder_worker.py PLAN.json

Plans are written by ladder.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from arrivals import Arrivals, rung
from compare import favour_this_session
from samples import Meter

OURS, PEER, LONG = "flashnext", "llama.cpp", "long prompt"


@dataclass(frozen=True)
class Run:
    """Sequences that are asked for together.

    Attributes:
        key: The name of the run.
        prompts: Token ids of each.
        seeds: One for each; empty for greedy replies.
    """

    key: str
    prompts: list[list[int]]
    seeds: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What one process measures.

    Attributes:
        kind: OURS, PEER or LONG.
        path: The checkpoint's folder, or the GGUF file.
        threads: Threads of either side.
        n_tokens: Tokens of a reply.
        drafts: Most drafts of a round.
        parallel: Most sequences at once.
        runs: In this order.
        long_tokens: Of the long prompt, of the kind LONG; shorter where the context is.
        patience_s: Longest wait for a quiet machine before a run.
        favour: Make other sessions leave the cores to this process.
    """

    kind: str
    path: str
    threads: int
    n_tokens: int
    drafts: int = 0
    parallel: int = 1
    runs: tuple[Run, ...] = ()
    long_tokens: int = 0
    patience_s: float = 0.0
    favour: bool = False

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read what `write` wrote."""
        fields = json.loads(path.read_text())
        return cls(**fields | dict(runs=tuple(Run(**run) for run in fields["runs"])))


Found = dict[str, Any]


def measure(plan: Plan) -> Found:
    """Carry a plan out; the result of each run by its key."""
    if plan.favour:
        favour_this_session()
    meter = Meter(plan.threads, plan.patience_s)
    if plan.kind == PEER:
        return _measure_peer(plan, meter)
    from engine_runs import EngineRuns  # each side needs only its own packages

    runs = EngineRuns(Path(plan.path), plan.drafts, plan.parallel, plan.threads, None)
    try:
        runs.warm_up()
        if plan.kind == LONG:
            return _measure_long(plan, runs)
        found: Found = {}
        for run in plan.runs:
            replies, host = _timed(
                meter, run, plan.n_tokens, partial(runs.run, run.prompts, plan.n_tokens, run.seeds)
            )
            found[run.key] = _result(meter, run, replies) | dict(host=asdict(host) if host else None)
        return found
    finally:
        runs.close()


def long_tokens(context: int, wanted: int) -> tuple[int, int]:
    """Tokens of the long prompt, and of the reply beside it, that fit a context together.

    A step reads 4 rows of a prompt or more, so a third of the prompt is more tokens than it takes steps.
    """
    n = min(wanted, (context - 512) * 3 // 4)
    return n, max(64, n // 3)


def _measure_long(plan: Plan, runs: Any) -> Found:
    from workloads import Prompts

    n, n_beside = long_tokens(runs.engine.context, plan.long_tokens)
    prompts = Prompts(Path(plan.path))
    return {LONG: asdict(runs.long_prompt(prompts.long(n), prompts.chats("prose", 1)[0], n_beside))}


def _measure_peer(plan: Plan, meter: Meter) -> Found:
    from llamacpp_side import LlamaBatch
    from workloads import LENGTHS

    batches: dict[int, LlamaBatch] = {}
    found: Found = {}
    for run in plan.runs:
        n = len(run.prompts)
        if n not in batches:  # as many sequences as are asked for, as its users would set it up
            for batch in batches.values():
                batch.close()
            batches = {n: LlamaBatch(Path(plan.path), LENGTHS[1] + plan.n_tokens + 1, n, plan.threads)}
            batches[n].run(run.prompts, 4)
        replies = _timed(meter, run, plan.n_tokens, partial(batches[n].run, run.prompts, plan.n_tokens))
        found[run.key] = _result(meter, run, replies)
    return found


def _timed(meter: Meter, run: Run, n_tokens: int, work: Callable[[], Any]) -> Any:
    results: list[Any] = []
    meter.time(run.key, len(run.prompts) * n_tokens, lambda: results.append(work()))
    return results[0]


def _result(meter: Meter, run: Run, replies: list[Arrivals]) -> Found:
    sample = meter.samples[run.key][-1]
    return dict(
        rung=rung(replies).as_json(),
        shas=[reply.sha for reply in replies],
        disturbed=sample.foreign + sample.stolen,
        major_faults=sample.major_faults,
    )


if __name__ == "__main__":
    print(json.dumps(measure(Plan.read(Path(sys.argv[1])))))
