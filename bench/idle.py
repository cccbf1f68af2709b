"""Measure the first token after the engine, or one of its users, has been idle for a while.

    python bench/idle.py                        the bundled checkpoint, about two minutes
    python bench/idle.py CHECKPOINT --json idle.json
    python bench/idle.py --quick

Lone: nothing else runs, so threads sleep and caches cool while the engine waits. Shared: other replies run
all the while, and one more request comes after the pause. Each is compared with no pause.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from engine_runs import EngineRuns
from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.request import Request
from flashnext.engine.sampling import Sampling
from ladder_report import Spread
from machine import describe
from samples import Meter
from workloads import Prompts

LONE, SHARED = "lone", "shared"


class Others:
    """Replies that go on until they are told to end; each is followed by another.

    Args:
        engine: The engine.
        prompts: One for each that runs at a time.
        sampling: Of their replies.
    """

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling) -> None:
        self._engine, self._sampling = engine, sampling
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._go_on, args=(p,), daemon=True) for p in prompts]

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _go_on(self, prompt: Sequence[int]) -> None:
        while not self._ended.is_set():
            request = self._engine.submit(prompt, sampling=self._sampling)
            for _ in request:
                if self._ended.is_set():
                    request.cancel()


def first_token_s(submit: Callable[[], Request]) -> float:
    """Seconds from a request to its first token; its reply is read to the end."""
    asked_s = time.perf_counter()
    request = submit()
    next(request)
    first_s = time.perf_counter() - asked_s
    request.result()
    return first_s


def measure(
    runs: EngineRuns, prompts: Sequence[Sequence[int]], pauses_s: Sequence[float], repeats: int, n_others: int
) -> dict[str, dict[str, list[float]]]:
    """Pause and ask, again and again.

    Args:
        runs: The engine.
        prompts: All different: others take the first ones, every request one of the rest in turn.
        pauses_s: How long nothing is asked for before a request; the first is 0, what others compare with.
        repeats: Requests of each pause; pauses take turns.
        n_others: Replies that run beside in the shared part.

    Returns:
        Seconds to the first token, by LONE or SHARED and by the pause.
    """
    asked = (prompts[n_others + i % (len(prompts) - n_others)] for i in count())
    sampling = runs.sampling(4, None)

    @contextmanager
    def nobody() -> Iterator[None]:
        yield

    others = Others(runs.engine, prompts[:n_others], runs.sampling(256, None))
    found: dict[str, dict[str, list[float]]] = {}
    for part, beside in ((LONE, nobody()), (SHARED, others)):
        times = found[part] = {f"{pause:g}": [] for pause in pauses_s}
        with beside:
            first_token_s(partial(runs.engine.submit, next(asked), sampling=sampling))
            for _ in range(repeats):
                for pause_s in pauses_s:
                    time.sleep(pause_s)
                    submit = partial(runs.engine.submit, next(asked), sampling=sampling)
                    times[f"{pause_s:g}"].append(first_token_s(submit))
    return found


def table_lines(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    """Lines of Markdown: the first token after each pause, and over that after none."""
    yield "| | idle, s | first token, ms: median (least-greatest) | over none |"
    yield "| --- | --- | --- | --- |"
    for part, times in found.items():
        none = Spread.of(next(iter(times.values())))
        for pause, values in times.items():
            if (spread := Spread.of(values)) is not None and none is not None:
                low, high = spread.low * 1e3, spread.high * 1e3
                yield (
                    f"| {part} | {pause} | {spread.median * 1e3:.3g} ({low:.3g}-{high:.3g}) "
                    f"| {spread.median / none.median:.2f} |"
                )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path, nargs="?", default=BUNDLED)
    parser.add_argument("--pauses", type=float, nargs="+", default=[2, 5, 10], help="seconds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--others", type=int, default=3, help="replies that run beside in the shared part")
    parser.add_argument("--drafts", type=int, default=0, help="most drafts of a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one repeat of 2 s")
    parser.add_argument("--json", type=Path, help="write the whole run here")
    options = parser.parse_args(arguments)
    if options.quick:
        options.pauses, options.repeats = options.pauses[:1], 1
    return options


def main() -> None:
    options = parse()
    prompts = Prompts(options.checkpoint).chats("prose", options.others + 16)
    runs = EngineRuns(options.checkpoint, options.drafts, options.others + 1, options.threads, None)
    meter = Meter(options.threads, patience_s=0)
    found: dict[str, dict[str, list[float]]] = {}
    try:
        runs.warm_up()
        pauses_s = [0.0, *options.pauses]
        meter.time(
            "idle", 1, lambda: found.update(measure(runs, prompts, pauses_s, options.repeats, options.others))
        )
    finally:
        runs.close()
    print("\n".join(table_lines(found)))
    sample = meter.samples["idle"][0]
    print(f"\nothers took {sample.foreign + sample.stolen:.0%} of the machine meanwhile")
    if options.json:
        settings = {k: v for k, v in vars(options).items() if k != "json"}
        settings["checkpoint"] = options.checkpoint.name
        whole: dict[str, Any] = dict(
            machine=describe(),
            settings=settings,
            first_token_s=found,
            sample=asdict(sample),
        )
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
