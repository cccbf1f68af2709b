"""From samples to figures: medians, ratios of pairs, shares of the machine's limits, and the table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from machine import GEMM, READ
from samples import Sample

MACHINE = "machine"
Metrics = Mapping[str, Sequence[Sample]]  # metric -> samples of one process
Round = Mapping[str, Metrics]  # contender -> its metrics


@dataclass(frozen=True)
class Rate:
    """A metric over many samples.

    Attributes:
        median: Median of the samples kept.
        low: Least of them.
        high: Greatest of them.
        n: How many were kept.
        n_all: How many were taken.
        is_estimate: No sample was quiet, so these are estimates from CPU time.
    """

    median: float
    low: float
    high: float
    n: int
    n_all: int
    is_estimate: bool

    def __str__(self) -> str:
        mark = "~" if self.is_estimate else ""
        return f"{mark}{self.median:.3g} ({self.low:.3g}-{self.high:.3g}, {self.n} of {self.n_all})"


@dataclass(frozen=True)
class Ratio:
    """One contender's rate over another's.

    Attributes:
        of_medians: Median over median, all rounds together.
        pairs: The ratio of each round, whose two sides ran next to each other.
    """

    of_medians: float
    pairs: tuple[float, ...]

    def __str__(self) -> str:
        if not self.pairs:
            return f"{self.of_medians:.2f} |"
        middle = statistics.median(self.pairs)
        spread = f"({min(self.pairs):.2f}-{max(self.pairs):.2f}, {len(self.pairs)})"
        return f"{self.of_medians:.2f} | {middle:.2f} {spread}"


def rate(samples: Sequence[Sample], limit: float) -> Rate | None:
    """Summarize the quiet samples, or where there is none, the estimates of all.

    Args:
        samples: Samples of one metric.
        limit: Largest disturbance of a quiet sample, a share.

    Returns:
        None for no samples.
    """
    if not samples:
        return None
    quiet = [s.value for s in samples if s.is_quiet(limit)]
    values = quiet or [s.undisturbed for s in samples]
    return Rate(statistics.median(values), min(values), max(values), len(values), len(samples), not quiet)


def pooled(rounds: Sequence[Round], contender: str, metric: str) -> list[Sample]:
    """All samples of one contender's metric, in the order of the rounds."""
    return [s for r in rounds for s in r.get(contender, {}).get(metric, ())]


def ratio(rounds: Sequence[Round], ours: str, theirs: str, metric: str, limit: float) -> Ratio | None:
    """Compare two contenders on one metric.

    A round counts as a pair where both have samples of it; like is compared with like, so a pair takes
    wall-time rates where both sides had a quiet sample and estimates otherwise.

    Returns:
        None where either side has no samples.
    """
    whole = _over(pooled(rounds, ours, metric), pooled(rounds, theirs, metric), limit)
    if whole is None:
        return None
    pairs = (_over(pooled([r], ours, metric), pooled([r], theirs, metric), limit) for r in rounds)
    return Ratio(whole, tuple(p for p in pairs if p is not None))


def _over(ours: Sequence[Sample], theirs: Sequence[Sample], limit: float) -> float | None:
    a, b = rate(ours, limit), rate(theirs, limit)
    if a is None or b is None:
        return None
    if a.is_estimate != b.is_estimate:
        return statistics.median(s.undisturbed for s in ours) / statistics.median(
            s.undisturbed for s in theirs
        )
    return a.median / b.median


@dataclass(frozen=True)
class Contender:
    """One side at one number of bits.

    Attributes:
        name: "flashnext 4", for instance.
        bits: Bits of the checkpoint.
        format: What its file holds.
        bytes_per_token: Weight bytes that a decoded token reads.
        flops_per_prompt_row: Operations of a prompt row's matrix products.
    """

    name: str
    bits: int
    format: str
    bytes_per_token: float
    flops_per_prompt_row: float


def limit_share(
    contender: Contender, metric: str, figure: Rate, machine: Mapping[str, Rate | None]
) -> float | None:
    """The share of its limit that a rate comes to: reads for decoding, matrix products for prompts."""
    is_decode = metric.startswith("decode")
    bound = machine.get(READ if is_decode else GEMM)
    if bound is None:
        return None
    per_token = contender.bytes_per_token if is_decode else contender.flops_per_prompt_row
    return figure.median * per_token / (bound.median * 1e9)


def figures(rounds: Sequence[Round], contenders: Sequence[Contender], limit: float) -> dict[str, Any]:
    """Everything the table shows, for a machine to read."""
    machine = machine_rates(rounds, limit)
    result: dict[str, Any] = {MACHINE: {m: asdict(r) for m, r in machine.items() if r is not None}}
    for c in contenders:
        rows: dict[str, Any] = {}
        for metric in metrics_of(rounds, c.name):
            figure = rate(pooled(rounds, c.name, metric), limit)
            if figure is not None:
                rows[metric] = asdict(figure) | dict(limit_share=limit_share(c, metric, figure, machine))
        result[c.name] = rows
    result["ratios"] = {
        f"{a.name} / {b.name}": {
            metric: asdict(compared)
            for metric in metrics_of(rounds, a.name)
            if (compared := ratio(rounds, a.name, b.name, metric, limit)) is not None
        }
        for a, b in pairs_of(contenders)
    }
    return result


def machine_rates(rounds: Sequence[Round], limit: float) -> dict[str, Rate | None]:
    """The machine's limits over all rounds."""
    return {m: rate(pooled(rounds, MACHINE, m), limit) for m in metrics_of(rounds, MACHINE)}


def metrics_of(rounds: Sequence[Round], contender: str) -> list[str]:
    """The metrics that any round has of a contender, in order of appearance."""
    return list(dict.fromkeys(m for r in rounds for m in r.get(contender, {})))


def pairs_of(contenders: Sequence[Contender]) -> list[tuple[Contender, Contender]]:
    """The first contender of each number of bits against each other one of the same bits."""
    pairs = []
    for i, b in enumerate(contenders):
        a = next(c for c in contenders if c.bits == b.bits)
        if contenders[i] is not a:
            pairs.append((a, b))
    return pairs


def table(rounds: Sequence[Round], contenders: Sequence[Contender], limit: float) -> Iterator[str]:
    """Lines of Markdown: the machine's limits, the rates, the ratios."""
    machine = machine_rates(rounds, limit)
    for metric, bound in machine.items():
        yield f"{metric}: {bound}"
    yield ""
    yield "Median (least-greatest, quiet samples of all); `~`: none was quiet, estimated from CPU time."
    yield ""
    yield "| contender | format | MB/token | metric | tok/s | of the limit |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for c in contenders:
        for metric in metrics_of(rounds, c.name):
            figure = rate(pooled(rounds, c.name, metric), limit)
            if figure is not None:
                share = limit_share(c, metric, figure, machine)
                shown = "" if share is None else f"{share:.0%}"
                mb = f"{c.bytes_per_token / 1e6:.0f}"
                yield f"| {c.name} | {c.format} | {mb} | {metric} | {figure} | {shown} |"
    if pairs := pairs_of(contenders):
        yield ""
        yield "| ratio | metric | of medians | of pairs: median (least-greatest, rounds) |"
        yield "| --- | --- | --- | --- |"
        for a, b in pairs:
            for metric in metrics_of(rounds, a.name):
                compared = ratio(rounds, a.name, b.name, metric, limit)
                if compared is not None:
                    yield f"| {a.name} / {b.name} | {metric} | {compared} |"
