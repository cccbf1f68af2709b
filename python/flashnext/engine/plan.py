"""The memory plan: what a model, its sequences and its caches will take, before anything is allocated.

A pure function of config, weights, settings and machine. Where a size is left open it is chosen so that the
plan fits the limit; where nothing fits, the refusal says what would. Source: docs/memory.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from flashnext.checkpoint.config import ModelConfig
from flashnext.checkpoint.rope import check_context
from flashnext.checkpoint.summary import TABLE
from flashnext.engine.defaults import (
    LIMIT_PERCENT,
    MAX_PARALLEL,
    MAX_ROUND_ROWS,
    MAX_WINDOW,
    NGRAM_TABLE,
    PARALLEL,
    ROUND_ROWS,
    SPILL_PIECE_BYTES,
)
from flashnext.engine.sizes import (
    WORKER_BYTES,
    ModelOptions,
    WeightSizes,
    n_pages,
    page_bytes,
    penalty_bytes,
    scratch_bytes,
    session_bytes,
    snapshot_bytes,
)
from flashnext.errors import InvalidArgument, OutOfMemory

GIB = 1 << 30

LEAST_CONTEXT = 1024
"""A context that nobody asked for is lowered no further than to this; one that is lowered is a multiple."""

_CACHE_SHARE = 4  # a prefix cache that nobody sized gets this part of what weights and scratch leave
_CACHE_CONTEXTS, _CACHE_MARKS = 32, 16  # and no more than so many contexts with so many marks each
_PROCESS_BYTES = 69 << 20  # interpreter, libraries and server; measured in docs/memory.md
_TOKEN_BYTES = 704  # of the tokenizer, an id of the vocabulary


@dataclass(frozen=True)
class Machine:
    """What a plan is made for.

    Attributes:
        ram_bytes: Memory of the machine, or of the container.
        working_set_bytes: What the device can work with at once.
        workers: Of the CPU device.
    """

    ram_bytes: int
    working_set_bytes: int
    workers: int = 1


@dataclass(frozen=True)
class PlanSettings:
    """What was asked for; None leaves a size to the plan.

    Attributes:
        context: Largest prompt plus reply of a sequence, in tokens.
        parallel: Sequences that run at once, 1 to 64. They share the pages of one whole context.
        dtype: "bfloat16" or "float32", of activations and caches.
        max_chunk: Rows of a prompt pass.
        max_window: Rows of a window.
        round_rows: Rows of a round, 1 to 64; at least one a sequence.
        ngram_table: "resident", the n-gram table counts as in memory, or "streamed", its rows are read from
            its file as they are needed; "auto": streamed only where it would not fit otherwise.
        prefix_cache_bytes: For cached prefixes, taken before sequences get theirs; 0: no cache.
        load_limit_bytes: Most that all of it takes; above 0.
        spill: Whether states are written to a directory and read from it, which takes memory for a moment.

    Raises:
        InvalidArgument: A number is out of its range.
    """

    context: int | None = None
    parallel: int | None = None
    dtype: str = "bfloat16"
    max_chunk: int = 512
    max_window: int = MAX_WINDOW
    round_rows: int = ROUND_ROWS
    ngram_table: str = "auto"
    prefix_cache_bytes: int | None = 0
    load_limit_bytes: int | None = None
    spill: bool = False

    def __post_init__(self) -> None:
        if self.parallel is not None and not 1 <= self.parallel <= MAX_PARALLEL:
            raise InvalidArgument(f"parallel is {self.parallel}, expected 1 to {MAX_PARALLEL}")
        if not 1 <= self.round_rows <= MAX_ROUND_ROWS:
            raise InvalidArgument(f"round_rows is {self.round_rows}, expected 1 to {MAX_ROUND_ROWS}")
        if self.parallel is not None and self.parallel > self.round_rows:
            raise InvalidArgument(
                f"parallel is {self.parallel}, and a round has {self.round_rows} rows, one a request at "
                "least; choose fewer, or more round_rows"
            )
        if self.ngram_table not in NGRAM_TABLE:
            raise InvalidArgument(
                f"ngram_table is {self.ngram_table!r}, expected one of {', '.join(NGRAM_TABLE)}"
            )
        if self.load_limit_bytes is not None and self.load_limit_bytes <= 0:
            raise InvalidArgument(
                f"the load limit is {size(self.load_limit_bytes)}, expected a size above 0 (--load-limit)"
            )
        if self.prefix_cache_bytes is not None and self.prefix_cache_bytes < 0:
            raise InvalidArgument(
                f"the prefix cache is {size(self.prefix_cache_bytes)}, expected 0 or more (--prefix-cache)"
            )


@dataclass(frozen=True)
class MemoryPlan:
    """What is allocated, in bytes; it fits the limit.

    Attributes:
        context: Largest prompt plus reply of a sequence, in tokens.
        parallel: Sequences that run at once.
        weights: In memory, mapped or copied, and what is streamed.
        scratch_bytes: Of passes, and of the device's workers.
        n_sessions: Sessions that there are at most at once: those that run, or that time what rounds cost.
        session_bytes: Of one without its pages: recurrent state, unsettled inputs, text, counts of tokens.
        snapshot_bytes: Of one snapshot in a prefix cache, beside its pages.
        n_pages: Pages of 64 tokens that sequences share.
        page_bytes: Of one page.
        prefix_cache_bytes: Reserved for cached prefixes.
        margin_bytes: What the process has beside the model.
        limit_bytes: Most that all of it may take.
        ram_bytes: Memory of the machine.
        warnings: Sentences about the limit.
    """

    context: int
    parallel: int
    weights: WeightSizes
    scratch_bytes: int
    n_sessions: int
    session_bytes: int
    snapshot_bytes: int
    n_pages: int
    page_bytes: int
    prefix_cache_bytes: int
    margin_bytes: int
    limit_bytes: int
    ram_bytes: int
    warnings: tuple[str, ...] = ()

    @property
    def ngram_table(self) -> str:
        """Where the n-gram table is: "resident" or "streamed"."""
        return "streamed" if self.weights.streamed_bytes else "resident"

    @property
    def sessions_bytes(self) -> int:
        """Bytes of all sessions, without pages."""
        return self.n_sessions * self.session_bytes

    @property
    def pages_bytes(self) -> int:
        """Bytes of all pages of the sequences."""
        return self.n_pages * self.page_bytes

    @property
    def model_bytes(self) -> int:
        """Bytes of all that the core allocates or maps."""
        return self.weights.total_bytes + self.scratch_bytes + self.sessions_bytes + self.pages_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        return self.model_bytes + self.prefix_cache_bytes + self.margin_bytes

    def to_json(self) -> dict[str, Any]:
        """Turn the plan into JSON types, sums included."""
        sums = ("ngram_table", "sessions_bytes", "pages_bytes", "model_bytes", "total_bytes")
        out = asdict(self) | {name: getattr(self, name) for name in sums}
        out["weights"]["total_bytes"] = self.weights.total_bytes
        return out


def make_plan(
    config: ModelConfig, weights: WeightSizes, settings: PlanSettings, machine: Machine
) -> MemoryPlan:
    """Choose what was left open, and see that all of it fits.

    An open context is the model's window; an open number of sequences 16, or as many as rounds have rows and
    contexts have pages. Where that does not fit, sequences give way first, down to one, then the n-gram table
    is streamed, then the context gives way.

    Args:
        config: The model's sizes; without a draft head where none is loaded.
        weights: Of that model.
        settings: What was asked for.
        machine: Where it has to fit.

    Raises:
        InvalidArgument: The context is not one of the model's.
        OutOfMemory: It does not fit; the text says what would.
    """
    context = config.default_context if settings.context is None else settings.context
    check_context(config, context)
    return _Planner(config, weights, settings, machine).plan(context)


class _Planner:
    """Sizes plans of one model on one machine."""

    def __init__(
        self, config: ModelConfig, weights: WeightSizes, settings: PlanSettings, machine: Machine
    ) -> None:
        self._config = config
        self._weights = weights.streamed() if settings.ngram_table == "streamed" else weights
        self._settings = settings
        self._machine = machine
        self._limit, self._most, self._warnings = _limit(settings, machine)

    def plan(self, context: int) -> MemoryPlan:
        """Make the plan of this context, or of a lower one where it was left open."""
        settings, limit = self._settings, self._limit
        sequences = settings.parallel or 1
        cache = settings.prefix_cache_bytes
        if settings.ngram_table == "auto" and self._bytes(context, sequences, cache or 0) > limit:
            self._weights = self._weights.streamed()
        if cache is None:
            needed = self._sized(context, sequences, 0)
            fixed = needed.weights.total_bytes + needed.scratch_bytes + needed.margin_bytes
            most = _CACHE_CONTEXTS * (needed.pages_bytes + _CACHE_MARKS * needed.snapshot_bytes)
            cache = max(0, min((limit - fixed) // _CACHE_SHARE, limit - needed.total_bytes, most))
        if settings.context is None and self._bytes(context, sequences, cache) > limit:
            context = self._largest_context(context, sequences, cache) or context
        if self._bytes(context, sequences, cache) > limit:
            self._refuse(context, sequences, cache)
        if settings.parallel is None:
            most = min(PARALLEL, settings.round_rows, n_pages(context))
            sequences = _largest(1, most, lambda n: self._bytes(context, n, cache) <= limit)
        return self._sized(context, sequences, cache)

    def _table_warning(self) -> Iterator[str]:
        n_bytes = self._weights.parts.get(TABLE, 0)
        if self._settings.ngram_table == "streamed" and n_bytes:
            yield (
                f"{size(n_bytes)} of the n-gram table cannot be streamed: they do not lie in their file as a "
                "device reads them, and are copied into memory; convert the checkpoint again"
            )

    def _sized(self, context: int, sequences: int, cache: int) -> MemoryPlan:
        c, s = self._config, self._settings
        options = ModelOptions(context, s.dtype, s.max_chunk, s.max_window)
        scratch = scratch_bytes(c, options) + self._machine.workers * WORKER_BYTES
        snapshot, page = snapshot_bytes(c, options.value_bytes), page_bytes(c, options.value_bytes)
        margin = _PROCESS_BYTES + _TOKEN_BYTES * c.vocab_size
        if s.spill:  # a block that is written, and two that are read, with as many pages as go together
            margin += 3 * snapshot + min(SPILL_PIECE_BYTES, n_pages(context) * page) + page
        return MemoryPlan(
            context=context,
            parallel=sequences,
            weights=self._weights,
            scratch_bytes=scratch,
            # While nothing runs, rounds of known tokens are timed: windows of as many sessions as fill one.
            n_sessions=max(sequences, -(-s.round_rows // min(s.max_window, MAX_WINDOW))),
            session_bytes=session_bytes(c, options) + penalty_bytes(c),
            snapshot_bytes=snapshot,
            n_pages=n_pages(context),
            page_bytes=page,
            prefix_cache_bytes=cache,
            margin_bytes=margin,
            limit_bytes=self._limit,
            ram_bytes=self._machine.ram_bytes,
            warnings=(*self._warnings, *self._table_warning()),
        )

    def _bytes(self, context: int, sequences: int, cache: int) -> int:
        return self._sized(context, sequences, cache).total_bytes

    def _largest_context(self, below: int, sequences: int, cache: int) -> int:
        """Find the largest multiple of LEAST_CONTEXT that fits, at most `below`; 0 for none."""
        n = _largest(
            0,
            below // LEAST_CONTEXT,
            lambda k: k == 0 or self._bytes(k * LEAST_CONTEXT, sequences, cache) <= self._limit,
        )
        return n * LEAST_CONTEXT

    def _refuse(self, context: int, sequences: int, cache: int) -> NoReturn:
        asked, ram = self._sized(context, sequences, cache), self._machine.ram_bytes
        parts = {
            "weights": asked.weights.total_bytes,
            "scratch": asked.scratch_bytes,
            "sequences": asked.sessions_bytes,
            "pages": asked.pages_bytes,
            "prefix cache": cache,
            "margin": asked.margin_bytes,
        }
        raise OutOfMemory(
            f"{size(asked.total_bytes)} of memory are needed and the limit is {size(self._limit)}, "
            f"{100 * self._limit / ram:.0f} % of {size(ram)}: "
            f"{', '.join(f'{name} {size(n)}' for name, n in parts.items())}; "
            f"{self._advice(context, sequences, cache)}"
        )

    def _advice(self, context: int, sequences: int, cache: int) -> str:
        """Say what would fit: one change alone, else all of them, else nothing here."""
        ways = list(self._ways_out(context, sequences, cache))
        if ways:
            return f"what would fit: {', '.join(ways)}"
        least_context, streamed = min(context, LEAST_CONTEXT), ""
        if self._bytes(least_context, 1, 0) > self._limit and self._weights.table_bytes:
            self._weights = self._weights.streamed()
            streamed = ", the n-gram table streamed"
        least = self._bytes(least_context, 1, 0)
        if least <= self._most:
            streamed += " (--ngram-table streamed)" if streamed else ""
            lower = self._largest_context(context, 1, 0) or least_context
            without = " without a prefix cache" if cache else ""
            higher = f", a higher limit (--load-limit {_up(least)})" if least > self._limit else ""
            return (
                f"what would fit: one sequence (--parallel 1) and a context of {lower} (--context){without}"
                f"{streamed}{higher}"
            )
        return (
            f"even the smallest plan, one sequence and a context of {least_context}{streamed}, takes "
            f"{size(least)}; try a checkpoint of fewer bits, or a machine of "
            f"{math.ceil(least * 100 / LIMIT_PERCENT / GIB)} GiB"
        )

    def _ways_out(self, context: int, sequences: int, cache: int) -> Iterator[str]:
        """Name single changes that make it fit, with their numbers."""
        limit = self._limit
        # One that was left open would be lowered then.
        lowered = context if self._settings.context else min(context, LEAST_CONTEXT)
        if sequences > 1 and self._bytes(lowered, 1, cache) <= limit:
            n = _largest(1, sequences, lambda n: self._bytes(lowered, n, cache) <= limit)
            yield f"fewer sequences (--parallel {n})"
        if lower := self._largest_context(context, sequences, cache):
            yield f"a smaller context (--context {lower})"
        resident = self._weights
        if resident.table_bytes:
            self._weights = resident.streamed()
            if self._bytes(lowered, sequences, cache) <= limit:
                yield "the n-gram table streamed (--ngram-table streamed)"
            self._weights = resident
        left = limit - self._bytes(lowered, sequences, 0)
        if cache and left >= 0:  # rounded so that what is printed does fit
            yield f"a smaller prefix cache (--prefix-cache {math.floor(left / GIB * 100) / 100:g})"
        for wanted in (context, lowered):
            if (needed := self._bytes(wanted, sequences, cache)) <= self._most:
                yield f"a higher limit (--load-limit {_up(needed)})"
                break


def _limit(settings: PlanSettings, machine: Machine) -> tuple[int, int, tuple[str, ...]]:
    """Find the limit, the highest one that may be asked for, and what to say about it."""
    most = min(machine.ram_bytes, machine.working_set_bytes)
    usual = min(machine.ram_bytes * LIMIT_PERCENT // 100, most)
    asked = settings.load_limit_bytes
    if asked is None:
        return usual, most, ()
    warnings = []
    if asked > most:
        warnings.append(
            f"the load limit of {size(asked)} is more than the {size(most)} that the device can work with, "
            "which count instead"
        )
    limit = min(asked, most)
    if limit * 100 > machine.ram_bytes * LIMIT_PERCENT:
        warnings.append(
            f"the load limit of {size(limit)} is {100 * limit / machine.ram_bytes:.0f} % of the memory; past "
            f"{LIMIT_PERCENT} % the system may slow down, or end this process"
        )
    return limit, most, tuple(warnings)


def _up(n_bytes: int) -> str:
    """Write GiB, rounded so that what is printed is enough."""
    return f"{math.ceil(n_bytes / GIB * 100) / 100:g}"


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Find the largest number from low to high that fits; low does, and what is smaller fits sooner."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def size(n_bytes: int) -> str:
    """Write a number of bytes for people."""
    return f"{n_bytes / GIB:.2f} GiB" if abs(n_bytes) >= GIB else f"{n_bytes / 2**20:.1f} MiB"
