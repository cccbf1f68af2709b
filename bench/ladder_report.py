"""From the ladder's rounds to its figures: medians over rounds, ratios of pairs, targets, table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ladder_worker import LONG, PEER

OFF, ON = "drafts off", "drafts on"
GREEDY, SAMPLED = "greedy", "sampled"
METRICS = ("decode", "aggregate", "each", "first_s", "first_worst_s", "gap_s")

Result = Mapping[str, Any]  # of one run, see ladder_worker
Round = Mapping[str, Mapping[str, Result]]  # contender -> key of the run -> its result


def key_of(workload: str, mode: str, n: int) -> str:
    """The name of a run."""
    return f"{workload} {mode} {n}"


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Summarize; None for no values."""
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Target:
    """A figure that the ladder is to reach.

    Attributes:
        name: What it is.
        value: What was measured, the median over rounds.
        low: Least of the rounds.
        high: Greatest.
        wanted: The bound; None for a figure that is only reported.
        at_least: Whether it is a lower bound.
        unit: "x" for a ratio, "%", or "us".
    """

    name: str
    value: float
    low: float
    high: float
    wanted: float | None
    at_least: bool = True
    unit: str = "x"

    @property
    def met(self) -> bool | None:
        """Whether the median keeps the bound; None where there is none."""
        if self.wanted is None:
            return None
        return self.value >= self.wanted if self.at_least else self.value <= self.wanted


def results_of(rounds: Sequence[Round], contender: str, key: str) -> list[Result]:
    """The results of one run in all rounds that have it."""
    return [r[contender][key] for r in rounds if key in r.get(contender, {})]


def figures(rounds: Sequence[Round], known: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """A row of medians for each contender and run.

    Args:
        rounds: What was measured.
        known: By "workload mode" the fingerprints of the replies that each prompt gets alone.

    Returns:
        Rows with the names of what was run, a spread of each metric (None where it has none), drafts, the
        largest disturbance, and whether all fingerprints are those of the replies alone (None for a side
        that gives none).
    """
    rows = []
    for contender in dict.fromkeys(name for r in rounds for name in r):
        for key in dict.fromkeys(k for r in rounds for k in r.get(contender, {}) if k != LONG):
            results = results_of(rounds, contender, key)
            workload, mode, n = key.split()
            row: dict[str, Any] = dict(contender=contender, workload=workload, mode=mode, n=int(n))
            for metric in METRICS:
                spread = Spread.of([v for r in results if (v := r["rung"][metric]) is not None])
                row[metric] = asdict(spread) if spread else None
            row["together"] = min(r["rung"]["together"] for r in results)
            for name in ("proposed", "accepted"):
                counts = [r["rung"][name] for r in results if r["rung"][name] is not None]
                row[name] = sum(counts) if counts else None
            row["disturbed"] = max(r["disturbed"] for r in results)
            wrong = mismatches(results, known.get(f"{workload} {mode}", ()))
            row["exact"] = None if contender == PEER else wrong == 0
            row["n_wrong"] = wrong
            rows.append(row)
    return rows


def mismatches(results: Sequence[Result], alone: Sequence[str]) -> int:
    """How many replies have another fingerprint than the reply that their prompt gets alone."""
    wrong = 0
    for result in results:
        for i, sha in enumerate(result["shas"]):
            if sha:
                wrong += i >= len(alone) or sha != alone[i]
    return wrong


def ratio(
    rounds: Sequence[Round], over: tuple[str, str], under: tuple[str, str], metric: str = "decode"
) -> Spread | None:
    """One run's figure over another's, round by round, as both ran next to each other.

    Args:
        rounds: What was measured.
        over: Contender and key of the run above the line.
        under: Those below it.
        metric: Of METRICS.

    Returns:
        None where no round has both.
    """
    pairs = []
    for r in rounds:
        a, b = (r.get(c, {}).get(k, {}).get("rung", {}).get(metric) for c, k in (over, under))
        if a is not None and b:
            pairs.append(a / b)
    return Spread.of(pairs)


def targets(rounds: Sequence[Round], workloads: Sequence[str], is_trained: bool) -> list[Target]:
    """The figures that the ladder is to reach.

    Args:
        rounds: What was measured on one checkpoint.
        workloads: Its workloads.
        is_trained: The gain by drafts is judged, as on the bundled checkpoint; else the ratios of widths and
            the share of a round's time are, as on one whose weights do not fit the caches.
    """
    found: list[Target] = []

    def add(name: str, spread: Spread | None, wanted: float | None, at_least: bool = True) -> None:
        if spread is not None:
            found.append(Target(name, spread.median, spread.low, spread.high, wanted, at_least))

    for workload in workloads:
        one = (OFF, key_of(workload, GREEDY, 1))
        drafted = ratio(rounds, (ON, one[1]), one)
        add(f"{workload}: drafts on over drafts off, one sequence", drafted, 1.5 if is_trained else None)
        for n, least in ((4, 1.8), (16, 3.0)):
            over = (OFF, key_of(workload, GREEDY, n))
            wanted = None if is_trained else least
            add(f"{workload}: {n} together over one", ratio(rounds, over, one), wanted)
        for ours, theirs, wanted in ((1, 1, None), (8, 8, 1.5), (16, 1, 3.0), (16, 16, None)):
            over = (OFF, key_of(workload, GREEDY, ours))
            under = (PEER, key_of(workload, GREEDY, theirs))
            name = f"{workload}: {ours} together over llama.cpp's {theirs}"
            add(name, ratio(rounds, over, under), wanted)
        found += _overhead(rounds, one, workload, is_trained)
    for contender in dict.fromkeys(name for r in rounds for name in r):
        for result in results_of(rounds, contender, LONG):
            name = f"largest gap beside a prompt of {result['n_tokens']:,} over the target gap"
            if not result["is_whole"]:
                name += " (the reply beside it ended first)"
            share = result["gap_s"] / result["target_s"]
            found.append(Target(name, share, share, share, 2.0, at_least=False))
    return found


def _overhead(
    rounds: Sequence[Round], one: tuple[str, str], workload: str, is_trained: bool
) -> Iterator[Target]:
    """Time of a lone sequence's rounds outside the device, by the counter if there is one, and the host's."""
    hosts = [host for r in results_of(rounds, *one) if (host := r.get("host")) is not None]
    for field, what in (("busy_s", "outside the device"), ("host_s", "of the engine's own thread")):
        spent = [
            (h["wall_s"] - h[field] if field == "busy_s" else h[field], h)
            for h in hosts
            if h[field] is not None
        ]
        share = Spread.of([100 * s / h["wall_s"] for s, h in spent])
        each = Spread.of([1e6 * s / h["rounds"] for s, h in spent])
        if share is None or each is None:
            continue
        wanted = 5.0 if field == "busy_s" and not is_trained else None
        yield Target(
            f"{workload}: round time {what}", share.median, share.low, share.high, wanted, False, "%"
        )
        yield Target(f"{workload}: round time {what}", each.median, each.low, each.high, None, False, "us")


def table_lines(rows: Sequence[Mapping[str, Any]], quiet: float) -> Iterator[str]:
    """Lines of Markdown: a head, then one for each row of `figures`.

    `~` marks a row whose most disturbed round others took more of than `quiet`.
    """
    yield (
        "| contender | workload | mode | n | tok/s together | with prompts | each | first token, ms "
        "| worst, ms | largest gap, ms | drafts kept | exact |"
    )
    yield "|" + " --- |" * 12
    for row in rows:
        mark = "~" if row["disturbed"] > quiet else ""
        n = str(row["n"]) if row["together"] == row["n"] else f"{row['n']} ({row['together']} at once)"
        kept = f"{row['accepted']} of {row['proposed']}" if row["proposed"] else ""
        exact = {True: "yes", False: f"NO: {row['n_wrong']}", None: ""}[row["exact"]]
        cells = [
            f"{mark}{row['contender']}", row["workload"], row["mode"], n, _spread(row["decode"]),
            _spread(row["aggregate"]), _median(row["each"]), _median(row["first_s"], 1e3),
            _median(row["first_worst_s"], 1e3), _median(row["gap_s"], 1e3), kept, exact,
        ]  # fmt: skip
        yield "| " + " | ".join(cells) + " |"


def target_lines(found: Sequence[Target]) -> Iterator[str]:
    """Lines of Markdown: each target, what was measured and whether it is met."""
    yield "| figure | median (least-greatest) | wanted | met |"
    yield "| --- | --- | --- | --- |"
    for t in found:
        sign = "at least" if t.at_least else "at most"
        wanted = "" if t.wanted is None else f"{sign} {t.wanted:g} {t.unit}"
        met = {True: "yes", False: "no", None: ""}[t.met]
        yield f"| {t.name} | {t.value:.3g} ({t.low:.3g}-{t.high:.3g}) {t.unit} | {wanted} | {met} |"


def _spread(found: Mapping[str, float] | None) -> str:
    return f"{found['median']:.4g} ({found['low']:.3g}-{found['high']:.3g})" if found else "-"


def _median(found: Mapping[str, float] | None, scale: float = 1.0) -> str:
    return f"{found['median'] * scale:.3g}" if found else "-"
