"""A memory plan, and the model arithmetic behind it, as tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flashnext.checkpoint.config import PAGE_TOKENS, ModelConfig
from flashnext.checkpoint.names import Kind, model_specs
from flashnext.checkpoint.summary import TABLE, part_of
from flashnext.engine.plan import FEATURE_SHARES, GIB, MemoryPlan, size

CONTEXTS = (32_768, 131_072, 262_112)
"""Whose caches `explain` lists."""

_STORAGE = {"bf16": 16, "6-bit": 7, "4-bit": 5}  # bits a value, with scale and bias for each 32


def plan_table(plan: MemoryPlan) -> str:
    """Write a plan as a table; its first line has the sum and the limit."""
    share = f"{100 * plan.limit_bytes / plan.ram_bytes:.0f} % of {size(plan.ram_bytes)}"
    rows = [
        ("memory", plan.total_bytes, f"of {size(plan.limit_bytes)} ({share})"),
        *_weights(plan),
        ("scratch", plan.scratch_bytes, _scratch(plan)),
        ("sequences", plan.sessions_bytes, _sequences(plan)),
        (
            "pages",
            plan.pages_bytes,
            f"{plan.n_pages:,} of {size(plan.page_bytes)}: a context of {plan.context:,} tokens",
        ),
        *_features(plan),
        ("prefix cache", plan.prefix_cache_bytes, _cache(plan)),
        ("margin", plan.margin_bytes, "interpreter, tokenizer, server"),
    ]
    return "\n".join(f"{name:<22}{size(n_bytes):>11}  {note}".rstrip() for name, n_bytes, note in rows)


def _weights(plan: MemoryPlan) -> Iterator[tuple[str, int, str]]:
    copied = plan.weights.copied_bytes
    yield "weights", plan.weights.total_bytes, f"mapped from their files, {size(copied)} of them copied"
    streamed = plan.weights.streamed_bytes
    table = f"streamed: {size(streamed)} stay in their file" if streamed else "resident"
    for name, n_bytes in plan.weights.parts.items():
        yield f"  {name}", n_bytes, table if name == TABLE else ""


def _scratch(plan: MemoryPlan) -> str:
    tower = plan.tower_scratch_bytes
    return f"of passes and workers{f', {size(tower)} of the vision tower' if tower else ''}"


def _features(plan: MemoryPlan) -> Iterator[tuple[str, int, str]]:
    if plan.features_bytes:
        largest = plan.features_bytes // FEATURE_SHARES
        yield (
            "features",
            plan.features_bytes,
            f"of pictures and videos, of which the largest has {size(largest)}",
        )


def _sequences(plan: MemoryPlan) -> str:
    more = ", more while rounds are timed" if plan.n_sessions > plan.parallel else ""
    return f"{plan.n_sessions} of {size(plan.session_bytes)}: {plan.parallel} at once{more}"


def _cache(plan: MemoryPlan) -> str:
    if not plan.prefix_cache_bytes:
        return "off: no room for a mark" if plan.prefix_cache_wanted else "off"
    if plan.prefix_cache_bytes < plan.mark_bytes:
        return f"no room for a mark, which takes {size(plan.mark_bytes)}"
    tokens = (plan.prefix_cache_bytes - plan.snapshot_bytes) // plan.page_bytes * PAGE_TOKENS
    return f"up to {tokens:,} tokens with one mark; each further one takes {size(plan.snapshot_bytes)}"


def explain(config: ModelConfig) -> str:
    """Write the arithmetic of a model: its values by part, and the state of a sequence.

    Caches count as bfloat16 and recurrent states as float32; the draft head and the vision tower count where
    the config has them, whatever is loaded.
    """
    return "\n".join([*_values(config), "", *_state(config)])


def _values(c: ModelConfig) -> Iterator[str]:
    yield "Weights by part in GiB; of 6 and 4 bits all matrices but routers and the vision tower's,"
    yield "with a scale and a bias for each 32 values"
    yield f"{'part':<20}{'values':>18}" + "".join(f"{name:>9}" for name in _STORAGE)
    parts: dict[str, list[int]] = {}  # values, then bytes in each storage
    for spec in model_specs(c):
        if spec.kind in (Kind.CONSTANT, Kind.SCALE):
            continue
        values = math.prod(spec.shape)
        row = [values, *(values * (n if spec.kind is Kind.MATRIX else 16) // 8 for n in _STORAGE.values())]
        part = part_of(spec.name)
        parts[part] = [a + b for a, b in zip(parts.get(part, [0] * len(row)), row, strict=True)]
    parts["total"] = [sum(column) for column in zip(*parts.values(), strict=True)]
    for part, (values, *sizes) in parts.items():
        yield f"{part:<20}{values:>18,}" + "".join(f"{n / GIB:>9.2f}" for n in sizes)


def _state(c: ModelConfig) -> Iterator[str]:
    kv, raw = 2 * c.n_kv_heads * c.head_dim * 2, c.index_head_dim * 2
    pooled = raw // c.index_ratio
    main = sum(c.attention_layers)
    layers = main + c.n_mtp_layers
    token = layers * (kv + raw + pooled)
    yield "State of a sequence"
    yield f"a token and layer: K and V {kv:,} B, raw index key {raw} B, pooled key {pooled} B"
    yield f"a token: {token:,} B in {layers} layers ({main * (kv + raw + pooled):,} B in the main {main})"
    conv = (c.linear_conv - 1) * (2 * c.linear_k_heads * c.linear_k_dim + c.linear_v_heads * c.linear_v_dim)
    state = c.linear_v_heads * c.linear_k_dim * c.linear_v_dim * 4
    delta = (c.n_layers - main) * (2 * conv + state)
    tail = len(c.ple_layers) * (c.ple_conv - 1) * c.ngram_size * c.hc_count * c.hidden_size * 2
    yield (
        f"fixed: {c.n_layers - main} x ({2 * conv:,} conv + {state:,} recurrent) = {delta:,} B "
        f"({delta / 2**20:.1f} MiB); n-gram tail {tail:,} B"
    )
    yield f"{'context':<12}{'caches':>12}{'with fixed state':>20}"
    for n in CONTEXTS:
        yield f"{n:<12,}{n * token / GIB:>8.3f} GiB{(n * token + delta) / GIB:>16.3f} GiB"


def differences(config: ModelConfig, plan: MemoryPlan) -> str:
    """Say in which ways what a plan allocates is not the arithmetic of `explain`."""
    parts = dict.fromkeys(part_of(spec.name) for spec in model_specs(config))
    left_out = [f"the {part}" for part in parts if part not in plan.weights.parts]
    without = f"; without {' and '.join(left_out)}, not loaded" if left_out else ""
    return "\n".join(
        (
            "What is allocated differs from that",
            f"weights: {plan.weights.total_bytes:,} B: vectors as float32{without}",
            f"pages: whole ones of {plan.page_bytes:,} B, {plan.page_bytes / PAGE_TOKENS:,.0f} B a token, "
            "rotary positions among them",
            f"sequences: {plan.session_bytes:,} B each: a recurrent block of {plan.snapshot_bytes:,} B, the "
            "unsettled inputs of two windows, text, page table and counts of tokens",
        )
    )
