"""The memory plan: what a model, its sequences and its caches will take, before anything is allocated.

A pure function of config, weights, settings and machine. Where a size is left open it is chosen so that the
plan fits the limit; where nothing fits, the refusal says what would. Source: docs/memory.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from flashnext.checkpoint.affine import SUPPORTED_BITS
from flashnext.checkpoint.config import ModelConfig
from flashnext.checkpoint.expected import converted, expected_tensors
from flashnext.checkpoint.rope import check_context
from flashnext.checkpoint.summary import TABLE
from flashnext.engine.defaults import (
    DTYPES,
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
    VisionRoom,
    WeightSizes,
    features_bytes,
    n_pages,
    page_bytes,
    rules_bytes,
    scratch_bytes,
    session_bytes,
    snapshot_bytes,
    tower_scratch_bytes,
    weight_sizes,
)
from flashnext.engine.wording import ARGUMENTS, Names
from flashnext.errors import CheckpointError, InvalidArgument, OutOfMemory

GIB = 1 << 30

LEAST_CONTEXT = 1024
"""A context that nobody asked for is lowered no further than to this; one that is lowered is a multiple."""

FEATURE_SHARES = 3
"""Times the features of the largest picture or video that are kept room for: once for those seen lately, and
twice for those that prompts wait for or are being read with."""

_CACHE_SHARE = 4  # a prefix cache that nobody sized gets this part of what weights and scratch leave
_CACHE_CONTEXTS, _CACHE_MARKS = 32, 16  # and no more than so many contexts with so many marks each
_TINY_CONTEXT = 8  # below this part of the model's window, a context that nobody asked for is warned of
_CONVERTED_GROUP = 32  # of the checkpoints that a refusal names
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
        prefix_cache_bytes: For cached prefixes, taken before sequences get theirs; 0: no cache; None: what
            the plan finds.
        load_limit_bytes: Most that all of it takes; above 0.
        spill: Whether states are written to a directory and read from it, which takes memory for a moment.
        vision: Of the vision tower, where one is loaded.
        names: How texts name what was asked for.

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
    vision: VisionRoom | None = None
    names: Names = ARGUMENTS

    def __post_init__(self) -> None:
        for argument, high in (("parallel", MAX_PARALLEL), ("round_rows", MAX_ROUND_ROWS)):
            value = getattr(self, argument)
            if (value is not None or argument == "round_rows") and not (
                _is_whole(value) and 1 <= value <= high
            ):
                raise InvalidArgument(f"{self.names.name(argument)} is {value!r}, expected 1 to {high}")
        if self.context is not None and not _is_whole(self.context):
            raise InvalidArgument(
                f"{self.names.name('context')} is {self.context!r}, expected a whole number of tokens"
            )
        if self.parallel is not None and self.parallel > self.round_rows:
            raise InvalidArgument(
                f"{self.names.name('parallel')} is {self.parallel}, and a round has {self.round_rows} rows, "
                f"one a request at least; choose fewer, or a larger {self.names.name('round_rows')}"
            )
        for argument, known in (("ngram_table", NGRAM_TABLE), ("dtype", DTYPES)):
            if getattr(self, argument) not in known:
                raise InvalidArgument(
                    f"{self.names.name(argument)} is {getattr(self, argument)!r}, expected one of "
                    f"{', '.join(known)}"
                )
        if self.load_limit_bytes is not None and self.load_limit_bytes <= 0:
            raise InvalidArgument(
                f"{self.names.name('load_limit_gib')} is {size(self.load_limit_bytes)}, expected a size "
                "above 0"
            )
        if self.prefix_cache_bytes is not None and self.prefix_cache_bytes < 0:
            raise InvalidArgument(
                f"{self.names.name('prefix_cache_gib')} is {size(self.prefix_cache_bytes)}, expected 0 or "
                "more"
            )


@dataclass(frozen=True)
class MemoryPlan:
    """What is allocated, in bytes; it fits the limit.

    Attributes:
        context: Largest prompt plus reply of a sequence, in tokens.
        parallel: Sequences that run at once.
        weights: In memory, mapped or copied, and what is streamed.
        scratch_bytes: Of passes, those of the vision tower too, and of the device's workers.
        n_sessions: Sessions that there are at most at once: those that run, or that time what rounds cost.
        session_bytes: Of one without its pages: recurrent state, unsettled inputs, text, counts of tokens.
        snapshot_bytes: Of one snapshot in a prefix cache, beside its pages.
        n_pages: Pages of 64 tokens that sequences share.
        page_bytes: Of one page.
        prefix_cache_bytes: Reserved for cached prefixes.
        margin_bytes: What the process has beside the model.
        limit_bytes: Most that all of it may take.
        ram_bytes: Memory of the machine.
        tower_scratch_bytes: Of `scratch_bytes` the vision tower's; 0 where none is loaded.
        features_bytes: For what it makes of pictures and videos: recent ones, those that prompts are about
            to be read with, and those that they are being read with.
        prefix_cache_wanted: Whether there was to be a cache; without, it is off by request.
        warnings: Sentences about the limit, and about what there is no room for.
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
    tower_scratch_bytes: int = 0
    features_bytes: int = 0
    prefix_cache_wanted: bool = False
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
    def mark_bytes(self) -> int:
        """Bytes of the least that a prefix cache can hold: one snapshot, and a page."""
        return self.snapshot_bytes + self.page_bytes

    @property
    def cached_context_bytes(self) -> int:
        """Bytes of one whole context in a prefix cache, with one snapshot."""
        return self.snapshot_bytes + self.pages_bytes

    @property
    def model_bytes(self) -> int:
        """Bytes of all that the core allocates or maps."""
        return self.weights.total_bytes + self.scratch_bytes + self.sessions_bytes + self.pages_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        return self.model_bytes + self.features_bytes + self.prefix_cache_bytes + self.margin_bytes

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
    contexts have pages. Where that does not fit, sequences give way first, down to one, then an open prefix
    cache, down to nothing, then the n-gram table is streamed, then the context gives way.

    Args:
        config: The model's sizes; without a draft head where none is loaded.
        weights: Of that model.
        settings: What was asked for.
        machine: Where it has to fit.

    Raises:
        InvalidArgument: The context is not one of the model's.
        OutOfMemory: It does not fit; the text says what would.
    """
    return _Planner(config, weights, settings, machine).plan()


class _Planner:
    """Sizes plans of one model on one machine."""

    def __init__(
        self, config: ModelConfig, weights: WeightSizes, settings: PlanSettings, machine: Machine
    ) -> None:
        self._config = config
        self._given = weights
        if settings.vision is not None:
            weights = weights.joined(settings.vision.weights)
        self._weights = weights.streamed() if settings.ngram_table == "streamed" else weights
        self._settings = settings
        self._machine = machine
        self._limit, self._most, self._warnings = _limit(settings, machine)
        self._context = config.default_context if settings.context is None else settings.context
        check_context(config, self._context, settings.names.name("context"))

    def plan(self) -> MemoryPlan:
        """Make the plan, or say what would fit."""
        made = self.fitting()
        if made is None:
            self._refuse()
        warnings = (self._table_warning(), self._context_warning(made), self._cache_warning(made))
        return replace(made, warnings=(*self._warnings, *filter(None, warnings)))

    def fitting(self) -> MemoryPlan | None:
        """Make the plan, without warnings; None where nothing fits that was left open."""
        context, sequences, cache = self._chosen()
        if self._bytes(context, sequences, cache) > self._limit:
            return None
        if self._settings.parallel is None:
            most = min(PARALLEL, self._settings.round_rows, n_pages(context))
            sequences = _largest(1, most, lambda n: self._bytes(context, n, cache) <= self._limit)
        return self._sized(context, sequences, cache)

    def _chosen(self) -> tuple[int, int, int]:
        """Choose a context, the fewest sequences and a cache in bytes, whether or not they fit."""
        settings, limit, context = self._settings, self._limit, self._context
        sequences, cache = settings.parallel or 1, settings.prefix_cache_bytes
        if settings.ngram_table == "auto" and self._bytes(context, sequences, cache or 0) > limit:
            self._weights = self._weights.streamed()
        if cache is None:
            needed = self._sized(context, sequences, 0)
            fixed = needed.weights.total_bytes + needed.scratch_bytes + needed.margin_bytes
            fixed += needed.features_bytes
            most = _CACHE_CONTEXTS * (needed.pages_bytes + _CACHE_MARKS * needed.snapshot_bytes)
            cache = min((limit - fixed) // _CACHE_SHARE, limit - needed.total_bytes, most)
            if cache < needed.mark_bytes:
                cache = 0
        if settings.context is None and self._bytes(context, sequences, cache) > limit:
            context = self._largest_context(context, sequences, cache) or context
        return context, sequences, cache

    def _with(self, machine: Machine | None = None, **changes: Any) -> MemoryPlan | None:
        """Plan the same with other settings; None where that does not fit."""
        settings = replace(self._settings, **changes)
        return _Planner(self._config, self._given, settings, machine or self._machine).fitting()

    def _sized(self, context: int, sequences: int, cache: int) -> MemoryPlan:
        c, s = self._config, self._settings
        options = ModelOptions(context, s.dtype, s.max_chunk, s.max_window)
        tower = features = 0
        if s.vision is not None:
            tower = tower_scratch_bytes(c, s.vision.max_patches)
            features = FEATURE_SHARES * features_bytes(c, min(s.vision.media_tokens, context))
        scratch = scratch_bytes(c, options) + self._machine.workers * WORKER_BYTES + tower
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
            session_bytes=session_bytes(c, options) + rules_bytes(c),
            snapshot_bytes=snapshot,
            n_pages=n_pages(context),
            page_bytes=page,
            prefix_cache_bytes=cache,
            margin_bytes=margin,
            limit_bytes=self._limit,
            ram_bytes=self._machine.ram_bytes,
            tower_scratch_bytes=tower,
            features_bytes=features,
            prefix_cache_wanted=s.prefix_cache_bytes != 0,
        )

    def _bytes(self, context: int, sequences: int, cache: int) -> int:
        return self._sized(context, sequences, cache).total_bytes

    def _largest_context(self, below: int, sequences: int, cache: int) -> int:
        """Find the largest multiple of LEAST_CONTEXT that fits, at most `below`; 0 for none."""
        return LEAST_CONTEXT * _largest(
            0,
            below // LEAST_CONTEXT,
            lambda k: k == 0 or self._bytes(k * LEAST_CONTEXT, sequences, cache) <= self._limit,
        )

    # --- warnings

    def _table_warning(self) -> str:
        n_bytes = self._weights.parts.get(TABLE, 0)
        if self._settings.ngram_table != "streamed" or not n_bytes:
            return ""
        return (
            f"{size(n_bytes)} of the n-gram table cannot be streamed: they do not lie in their file as a "
            "device reads them, and are copied into memory; convert the checkpoint again"
        )

    def _context_warning(self, made: MemoryPlan) -> str:
        """Tell of a context that nobody asked for and that is short for this model."""
        if self._settings.context is not None or made.context * _TINY_CONTEXT >= self._context:
            return ""
        text = (
            f"there is room for a context of {made.context:,} tokens only, and the model's window is "
            f"{self._context:,}"
        )
        needed = self._bytes(self._context, self._settings.parallel or 1, made.prefix_cache_bytes)
        if needed > self._most:
            return f"{text}; a checkpoint of fewer bits or a larger machine has room for more"
        return f"{text}; for all of it choose a higher limit ({self._change('load_limit_gib', _up(needed))})"

    def _cache_warning(self, made: MemoryPlan) -> str:
        """Tell of a prefix cache that lacks room for one whole context, though nobody turned it off."""
        n_bytes, whole = made.prefix_cache_bytes, made.cached_context_bytes
        if not made.prefix_cache_wanted or n_bytes >= whole:
            return ""
        least = f"one whole context of {made.context:,} tokens with one mark takes {size(whole)}"
        if not n_bytes:
            text = (
                f"the prefix cache is off for want of room, and every prompt is read from its start; {least}"
            )
        elif n_bytes < made.mark_bytes:
            text = (
                f"the prefix cache of {size(n_bytes)} has no room for a mark ({size(made.mark_bytes)}), and "
                f"every prompt is read from its start; {least}"
            )
        else:
            text = f"the prefix cache has {size(n_bytes)}, and {least}"
        ways = ", or ".join(self._ways_to_cache(made))
        return f"{text}; there would be room for one with {ways}" if ways else text

    def _ways_to_cache(self, made: MemoryPlan) -> Iterator[str]:
        """Name changes with which the prefix cache holds one whole context."""

        def holds(**changes: Any) -> MemoryPlan | None:
            other = self._with(**changes)
            enough = other is not None and other.prefix_cache_bytes >= other.cached_context_bytes
            return other if enough else None

        steps = (made.context - 1) // LEAST_CONTEXT
        alone = LEAST_CONTEXT * _largest(
            0, steps, lambda k: k == 0 or holds(context=k * LEAST_CONTEXT) is not None
        )
        if alone:
            yield f"a smaller context ({self._change('context', alone)})"
        larger = _up(made.cached_context_bytes)
        if (other := holds(prefix_cache_bytes=int(larger * GIB))) and other.context == made.context:
            yield f"a larger cache ({self._change('prefix_cache_gib', larger)})"
        else:
            pages = made.pages_bytes // made.n_pages

            def cache(context: int) -> float:
                return _up(n_pages(context) * pages + made.snapshot_bytes)

            both = LEAST_CONTEXT * _largest(
                0,
                steps,
                lambda k: (
                    k == 0
                    or holds(
                        context=k * LEAST_CONTEXT, prefix_cache_bytes=int(cache(k * LEAST_CONTEXT) * GIB)
                    )
                    is not None
                ),
            )
            if both > alone:
                yield (
                    f"a smaller context and a cache for it ({self._change('context', both)}"
                    f"{' ' if self._settings.names.flags else ', '}"
                    f"{self._change('prefix_cache_gib', cache(both))})"
                )
        if made.weights.table_bytes and holds(ngram_table="streamed"):
            yield f"the n-gram table streamed ({self._change('ngram_table', 'streamed')})"

    # --- refusals

    def _change(self, argument: str, value: float | str) -> str:
        return self._settings.names.change(argument, value)

    def _refuse(self) -> NoReturn:
        context, sequences, cache = self._chosen()
        asked, ram = self._sized(context, sequences, cache), self._machine.ram_bytes
        parts = {
            "weights": asked.weights.total_bytes,
            "scratch": asked.scratch_bytes,
            "sequences": asked.sessions_bytes,
            "pages": asked.pages_bytes,
            **({"features": asked.features_bytes} if asked.features_bytes else {}),
            "prefix cache": cache,
            "margin": asked.margin_bytes,
        }
        count = "one sequence" if sequences == 1 else f"{sequences} sequences"
        raise OutOfMemory(
            f"{size(asked.total_bytes)} of memory are needed for {count} with a context of {context:,} "
            f"tokens, and the limit is {size(self._limit)}, {100 * self._limit / ram:.0f} % of {size(ram)}: "
            f"{', '.join(f'{name} {size(n)}' for name, n in parts.items())}; "
            f"{self._advice(context, sequences, cache)}"
        )

    def _advice(self, context: int, sequences: int, cache: int) -> str:
        """Say what would fit: one change alone, else all of them; other weights where these are too large."""
        ways = list(self._ways_out(context, sequences, cache))
        least_context, streamed = min(context, LEAST_CONTEXT), False
        if self._bytes(least_context, 1, 0) > self._limit and self._weights.table_bytes:
            self._weights, streamed = self._weights.streamed(), True
        least = self._bytes(least_context, 1, 0)
        others = self._other_checkpoint() if least > self._limit else ""
        if ways:
            return f"what would fit: {', or '.join(filter(None, (*ways, others)))}"
        if least <= self._most:
            lower = self._largest_context(context, 1, 0) or least_context
            changes = [
                f"one sequence ({self._change('parallel', 1)})",
                f"a context of {lower:,} ({self._change('context', lower)})",
            ]
            if cache:
                changes.append(f"no prefix cache ({self._change('prefix_cache_gib', 0)})")
            if self._settings.vision is not None:
                changes.append(f"no vision tower ({self._settings.names.without('vision')})")
            if streamed:
                changes.append(f"the n-gram table streamed ({self._change('ngram_table', 'streamed')})")
            if least > self._limit:
                changes.append(f"a higher limit ({self._change('load_limit_gib', _up(least))})")
            return f"what would fit, all together: {', '.join(changes)}{others and f'; or else {others}'}"
        table = " and the n-gram table streamed" if self._weights.streamed_bytes else ""
        return (
            f"even one sequence with a context of {least_context:,}{table} takes {size(least)}; "
            f"what would fit: {others}{', or ' if others else ''}{self._other_machine(least)}"
        )

    def _other_checkpoint(self) -> str:
        """Name the most bits with which a converted checkpoint fits here."""
        for bits in sorted(SUPPORTED_BITS, reverse=True):
            try:
                quantization = converted(self._config, bits, _CONVERTED_GROUP)
            except CheckpointError:
                return ""
            weights = weight_sizes(self._config, expected_tensors(self._config, quantization))
            if weights.total_bytes >= self._given.total_bytes:
                continue
            least = replace(
                self._settings, context=None, parallel=1, prefix_cache_bytes=0, ngram_table="auto"
            )
            for settings in (self._settings, least):
                made = _Planner(self._config, weights, settings, self._machine).fitting()
                if made is not None:
                    return (
                        f"a checkpoint of {bits} bits with a context of {made.context:,} (`flashnext "
                        f"convert --bits {bits}` makes it of a bf16 one, `flashnext plan --bits {bits}` "
                        "plans it)"
                    )
        return ""

    def _other_machine(self, least: int) -> str:
        """Name a machine that has room for the smallest plan, and the context that it gives."""
        gib = math.ceil(least * 100 / LIMIT_PERCENT / GIB)
        machine = Machine(gib * GIB, gib * GIB, self._machine.workers)
        made = self._with(
            machine, context=None, parallel=1, prefix_cache_bytes=0, ngram_table="auto", load_limit_bytes=None
        )
        context = f" and a context of {made.context:,}" if made else ""
        return f"a machine of {gib} GiB with one sequence{context}"

    def _ways_out(self, context: int, sequences: int, cache: int) -> Iterator[str]:
        """Name single changes that make it fit, with their numbers and the context that they give."""
        settings, limit = self._settings, self._limit
        is_open = settings.context is None

        def got(made: MemoryPlan) -> str:
            return f" with a context of {made.context:,}" if is_open else ""

        # One that was left open would be lowered then.
        lowered = min(context, LEAST_CONTEXT) if is_open else context
        if sequences > 1 and self._with(parallel=1):
            n = _largest(1, sequences - 1, lambda n: self._with(parallel=n) is not None)
            if made := self._with(parallel=n):
                yield f"fewer sequences ({self._change('parallel', n)}){got(made)}"
        if lower := self._largest_context(context, sequences, cache):
            yield f"a smaller context ({self._change('context', lower)})"
        if self._weights.table_bytes and (made := self._with(ngram_table="streamed")):
            yield f"the n-gram table streamed ({self._change('ngram_table', 'streamed')}){got(made)}"
        if settings.vision is not None and (made := self._with(vision=None)):
            yield f"no vision tower ({settings.names.without('vision')}){got(made)}"
        for wanted in dict.fromkeys((context, lowered)):
            left = limit - self._bytes(wanted, sequences, 0)
            gib = math.floor(left / GIB * 100) / 100  # rounded so that what is printed does fit
            if cache and left >= 0 and (made := self._with(prefix_cache_bytes=int(gib * GIB))):
                yield f"a smaller prefix cache ({self._change('prefix_cache_gib', gib)}){got(made)}"
                break
        for wanted in dict.fromkeys((context, lowered)):
            needed = self._bytes(wanted, sequences, cache)
            higher = _up(needed)
            if needed <= self._most and (made := self._with(load_limit_bytes=int(higher * GIB))):
                yield f"a higher limit ({self._change('load_limit_gib', higher)}){got(made)}"
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


def _up(n_bytes: int) -> float:
    """Turn bytes into GiB, rounded so that what is printed is enough."""
    return math.ceil(n_bytes / GIB * 100) / 100


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Find the largest number from low to high that fits; low does, and what is smaller fits sooner."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def size(n_bytes: int) -> str:
    """Write a number of bytes for people."""
    return f"{n_bytes / GIB:.2f} GiB" if abs(n_bytes) >= GIB else f"{n_bytes / 2**20:.1f} MiB"
