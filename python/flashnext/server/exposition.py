"""GET /metrics: what the server and its engine count, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from flashnext.engine.engine import Engine
from flashnext.engine.events import Counts, MemoryUse, SpreadCounts
from flashnext.server.service import Service
from flashnext.version import VERSION

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

GUARD_STATES = ("ok", "shrink", "refuse")

Value = float | SpreadCounts
Values = Value | Mapping[tuple[str, ...], Value]
Source = TypeVar("Source")


@dataclass(frozen=True)
class Metric(Generic[Source]):
    """A row of docs/metrics.md.

    Attributes:
        name: Without the `_total` that a counter's samples end with.
        kind: "counter", "gauge" or "histogram".
        help: One sentence.
        read: Finds its value, or one for each tuple of label values.
        labels: Their names.
        aliases: Names of vLLM's for the same thing.
    """

    name: str
    kind: str
    help: str
    read: Callable[[Source], Values]
    labels: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What one scrape reads of an engine, all of it at one moment."""

    engine: Engine
    counts: Counts
    memory: MemoryUse

    @classmethod
    def of(cls, engine: Engine) -> Facts:
        """Read them; no step of the engine is waited for."""
        return cls(engine, engine.counts, engine.memory)


def _single(values: Mapping[str, float]) -> dict[tuple[str, ...], Value]:
    return {(label,): value for label, value in values.items()}


def _time(name: str) -> Callable[[Service], Values]:
    return lambda service: service.metrics.times[name].counts


def _length(name: str) -> Callable[[Service], Values]:
    return lambda service: service.metrics.lengths[name].counts


SERVER: tuple[Metric[Service], ...] = (
    Metric(
        "flashnext_ready", "gauge", "Whether a request would be answered now.", lambda s: float(s.healthy)
    ),
    Metric("flashnext_connections", "gauge", "Open connections.", lambda s: s.n_connections()),
    Metric(
        "flashnext_replies_open", "gauge", "Replies that hold a place of the queue.", lambda s: s.queue.n_open
    ),
    Metric(
        "flashnext_requests",
        "counter",
        "Requests over HTTP that have been answered, by route and status.",
        lambda s: {labels: float(n) for labels, n in s.metrics.requests.items()},
        ("route", "status"),
    ),
    Metric(
        "flashnext_refusals",
        "counter",
        "Requests that failed, by the code of their error.",
        lambda s: _single(s.metrics.refusals),
        ("reason",),
    ),
    Metric(
        "flashnext_replies",
        "counter",
        "Replies that have ended, by how.",
        lambda s: _single(s.metrics.replies),
        ("finish",),
    ),
    Metric(
        "vllm:request_success",
        "counter",
        "Replies that came to their end.",
        lambda s: _single({reason: s.metrics.replies[reason] for reason in ("stop", "length")}),
        ("finished_reason",),
    ),
    Metric(
        "flashnext_cancellations",
        "counter",
        "Replies that were ended early, by who did.",
        lambda s: _single(s.metrics.cancellations),
        ("cause",),
    ),
    Metric("flashnext_tool_calls", "counter", "Calls of tools in replies.", lambda s: s.metrics.tool_calls),
    Metric(
        "flashnext_time_to_first_token_seconds",
        "histogram",
        "From a request's arrival in the engine until its first token, thoughts included.",
        _time("first_token"),
        aliases=("vllm:time_to_first_token_seconds",),
    ),
    Metric(
        "flashnext_queue_time_seconds",
        "histogram",
        "From a request's arrival until it was admitted.",
        _time("queue"),
        aliases=("vllm:request_queue_time_seconds",),
    ),
    Metric(
        "flashnext_prompt_time_seconds",
        "histogram",
        "From a request's admission until its first token.",
        _time("prompt"),
        aliases=("vllm:request_prefill_time_seconds",),
    ),
    Metric(
        "flashnext_decode_time_seconds",
        "histogram",
        "From a reply's first token to its last one.",
        _time("decode"),
        aliases=("vllm:request_decode_time_seconds",),
    ),
    Metric(
        "flashnext_reply_time_seconds",
        "histogram",
        "From a request's arrival until the last token of its reply.",
        _time("reply"),
        aliases=("vllm:e2e_request_latency_seconds",),
    ),
    Metric(
        "flashnext_time_per_output_token_seconds",
        "histogram",
        "A reply's decode time for each token after the first.",
        _time("token"),
        aliases=("vllm:request_time_per_output_token_seconds",),
    ),
    Metric(
        "flashnext_largest_gap_seconds",
        "histogram",
        "The longest that a reply stood still between two tokens, while others' prompts were read for one.",
        _time("largest_gap"),
    ),
    Metric(
        "flashnext_prompt_length_tokens",
        "histogram",
        "Tokens of the prompt of a reply that came to its end.",
        _length("prompt"),
        aliases=("vllm:request_prompt_tokens",),
    ),
    Metric(
        "flashnext_reply_length_tokens",
        "histogram",
        "Tokens of a reply that came to its end.",
        _length("reply"),
        aliases=("vllm:request_generation_tokens",),
    ),
)
"""What is told from the start."""

ENGINE: tuple[Metric[Facts], ...] = (
    Metric(
        "flashnext_info",
        "gauge",
        "Always 1; what is served, in labels.",
        lambda f: {(VERSION, f.engine.loaded.device.name, f.engine.loaded.dtype, str(f.engine.context)): 1.0},
        ("version", "device", "dtype", "context"),
    ),
    Metric(
        "flashnext_replies_running",
        "gauge",
        "Replies that are admitted.",
        lambda f: f.counts.running,
        aliases=("vllm:num_requests_running",),
    ),
    Metric(
        "flashnext_replies_waiting",
        "gauge",
        "Replies that wait to be admitted, preempted ones included.",
        lambda f: f.counts.waiting,
        aliases=("vllm:num_requests_waiting",),
    ),
    Metric(
        "flashnext_prompt_tokens",
        "counter",
        "Tokens of prompts that have been read to their end.",
        lambda f: f.counts.work.prompt_tokens,
        aliases=("vllm:prompt_tokens", "vllm:prefix_cache_queries"),
    ),
    Metric(
        "flashnext_cached_tokens",
        "counter",
        "Those of them that were not read for it: they had been, or another request was reading them.",
        lambda f: f.counts.work.cached_tokens,
        aliases=("vllm:prefix_cache_hits",),
    ),
    Metric(
        "flashnext_read_tokens",
        "counter",
        "Tokens that passed through the model in prompt chunks, histories and repeated reading included.",
        lambda f: f.counts.work.read_tokens,
    ),
    Metric(
        "flashnext_reply_tokens",
        "counter",
        "Tokens of replies.",
        lambda f: f.counts.work.reply_tokens,
        aliases=("vllm:generation_tokens",),
    ),
    Metric(
        "flashnext_token_gap_seconds",
        "histogram",
        "Between a token of a reply and the one before it; tokens of one round have next to none.",
        lambda f: f.counts.work.gaps,
        aliases=("vllm:inter_token_latency_seconds",),
    ),
    Metric(
        "flashnext_prompt_passes",
        "counter",
        "Prompt chunks, those of histories too.",
        lambda f: f.counts.work.passes,
    ),
    Metric("flashnext_rounds", "counter", "Rounds of all replies together.", lambda f: f.counts.work.rounds),
    Metric(
        "flashnext_preemptions",
        "counter",
        "How often a reply gave its pages back to go on later.",
        lambda f: f.counts.preempted,
        aliases=("vllm:num_preemptions",),
    ),
    Metric(
        "flashnext_forks",
        "counter",
        "How often a reply went on from a prompt that another request was reading.",
        lambda f: f.counts.forked,
    ),
    Metric(
        "flashnext_step_seconds",
        "gauge",
        "For how long the engine has been in the step that it is in; 0 while there is nothing to do.",
        lambda f: f.engine.step_s,
    ),
    Metric(
        "flashnext_draft_windows",
        "counter",
        "Windows of a reply in rounds that had drafts.",
        lambda f: sum(f.counts.work.kept),
        aliases=("vllm:spec_decode_num_drafts",),
    ),
    Metric(
        "flashnext_drafts_proposed",
        "counter",
        "Drafts that were verified.",
        lambda f: f.counts.work.proposed,
        aliases=("vllm:spec_decode_num_draft_tokens",),
    ),
    Metric(
        "flashnext_drafts_accepted",
        "counter",
        "Drafts that were kept.",
        lambda f: f.counts.work.accepted,
        aliases=("vllm:spec_decode_num_accepted_tokens",),
    ),
    Metric(
        "flashnext_drafts_accepted_at",
        "counter",
        "Drafts that were kept, by their place in the window, from 0; places where none ever was are absent.",
        lambda f: _by_position(f.counts.work.kept),
        ("position",),
        aliases=("vllm:spec_decode_num_accepted_tokens_per_pos",),
    ),
    Metric("flashnext_pages", "gauge", "Pages of the pool.", lambda f: f.engine.loaded.pool.total),
    Metric("flashnext_pages_free", "gauge", "Pages that nobody has.", lambda f: f.counts.free_pages),
    Metric(
        "flashnext_pages_used_ratio",
        "gauge",
        "The part of all pages that replies have, from 0 to 1; what only the prefix cache has can give way.",
        lambda f: _used_ratio(f),
        aliases=("vllm:kv_cache_usage_perc",),
    ),
    Metric(
        "flashnext_cache_bytes",
        "gauge",
        "What the prefix cache holds: recurrent blocks, and pages whoever else has them.",
        lambda f: _single({"blocks": f.counts.cache.blocks_bytes, "pages": f.counts.cache.pages_bytes}),
        ("part",),
    ),
    Metric(
        "flashnext_cache_limit_bytes",
        "gauge",
        "Most that it may hold now.",
        lambda f: f.counts.cache.limit_bytes,
    ),
    Metric("flashnext_cache_marks", "gauge", "Marks in memory.", lambda f: f.counts.cache.marks),
    Metric(
        "flashnext_cache_hits", "counter", "Prompts that went on from a mark.", lambda f: f.counts.cache.hits
    ),
    Metric("flashnext_cache_misses", "counter", "Prompts that found none.", lambda f: f.counts.cache.misses),
    Metric(
        "flashnext_cache_hit_tokens",
        "counter",
        "Tokens before those marks.",
        lambda f: f.counts.cache.hit_tokens,
    ),
    Metric(
        "flashnext_cache_saved_seconds",
        "counter",
        "What reading those tokens had taken when they were read.",
        lambda f: f.counts.cache.saved_s,
    ),
    Metric("flashnext_cache_evictions", "counter", "Marks that gave way.", lambda f: f.counts.cache.evicted),
    Metric(
        "flashnext_cache_warm_passes",
        "counter",
        "Histories of chats that were read in the background.",
        lambda f: f.counts.cache.warm_passes,
    ),
    Metric("flashnext_cache_warming", "gauge", "Those that are to be.", lambda f: f.counts.cache.warming),
    Metric("flashnext_spill_marks", "gauge", "Marks in the spill folder.", lambda f: f.counts.cache.stored),
    Metric("flashnext_spill_bytes", "gauge", "What its files take.", lambda f: f.counts.cache.stored_bytes),
    Metric(
        "flashnext_spill_writes",
        "counter",
        "Marks that were written to it.",
        lambda f: f.counts.cache.spilled,
    ),
    Metric(
        "flashnext_spill_reads", "counter", "Marks that were read from it.", lambda f: f.counts.cache.restored
    ),
    Metric(
        "flashnext_spill_failures",
        "counter",
        "Writes and reads that failed, and files that were damaged.",
        lambda f: f.counts.cache.spill_failures,
    ),
    Metric(
        "flashnext_vision_media",
        "counter",
        "Pictures and videos that went through the vision tower; one that a chat shows does so once.",
        lambda f: f.counts.vision.media,
    ),
    Metric(
        "flashnext_vision_tokens",
        "counter",
        "Tokens of them.",
        lambda f: f.counts.vision.tokens,
    ),
    Metric(
        "flashnext_vision_passes",
        "counter",
        "Passes through the tower; pictures of several requests may share one.",
        lambda f: f.counts.vision.passes,
    ),
    Metric(
        "flashnext_vision_seconds",
        "counter",
        "What the passes took, rounds that came between their steps included.",
        lambda f: f.counts.vision.seconds,
    ),
    Metric(
        "flashnext_vision_cached",
        "counter",
        "Pictures and videos whose features were still there, and that did not go through it again.",
        lambda f: f.counts.vision.cached,
    ),
    Metric(
        "flashnext_memory_used_bytes",
        "gauge",
        "What the process takes, or is accounted for where that is more.",
        lambda f: f.memory.used_bytes,
    ),
    Metric("flashnext_memory_limit_bytes", "gauge", "Most that it may.", lambda f: f.memory.limit_bytes),
    Metric(
        "flashnext_memory_guard",
        "gauge",
        "1 for the state of the memory guard, 0 for the others.",
        lambda f: _single({state: float(f.memory.state == state) for state in GUARD_STATES}),
        ("state",),
    ),
)
"""What is told once the model is loaded."""


def _used_ratio(facts: Facts) -> float:
    pool = facts.engine.loaded.pool
    # Read one after the other, so the difference may be off by what has changed hands meanwhile.
    return max(0.0, 1 - (facts.counts.free_pages + pool.of_snapshots) / pool.total)


def _by_position(kept: Sequence[int]) -> dict[tuple[str, ...], Value]:
    """Count kept drafts by place: a window that kept n of them kept those in the places before n."""
    at_least = list(accumulate(reversed(kept[1:])))[::-1]
    return {(str(place),): float(n) for place, n in enumerate(at_least) if n}


class _Collector(Collector):
    """Reads everything anew for each scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Family]:
        service = self._service
        for row in SERVER:
            yield from _families(row, row.read(service), service.name)
        if service.loaded is not None:
            facts = Facts.of(service.loaded)
            for metric in ENGINE:
                yield from _families(metric, metric.read(facts), service.name)


def registry_of(service: Service) -> CollectorRegistry:
    """Make the registry of one server; nothing of it is global."""
    registry = CollectorRegistry()
    registry.register(_Collector(service))
    return registry


async def metrics(service: Service, http: Request) -> Response:
    """GET /metrics."""
    # One form, which every collector reads: in OpenMetrics the library respells the colons of vLLM's names.
    data = generate_latest(registry_of(service))
    return Response(data, headers={"content-type": CONTENT_TYPE})


def _families(row: Metric[Source], values: Values, model: str) -> Iterator[Family]:
    """Write a metric under each of its names; vLLM's carry the labels by which its dashboards choose."""
    for name in (row.name, *row.aliases):
        vllm = {"model_name": model, "engine": "0"} if name.startswith("vllm:") else {}
        yield _family(name, row, values, vllm)


def _family(name: str, row: Metric[Source], values: Values, more: Mapping[str, str]) -> Family:
    labels = (*more, *row.labels)
    by_label = values if isinstance(values, Mapping) else {(): values}
    if row.kind == "histogram":
        spread = HistogramMetricFamily(name, row.help, labels=labels)
        for given, value in by_label.items():
            assert isinstance(value, SpreadCounts)
            bounds = [*(f"{bound:g}" if bound < 1e6 else str(bound) for bound in value.bounds), "+Inf"]
            buckets = list(zip(bounds, map(float, accumulate(value.counts)), strict=True))
            spread.add_metric((*more.values(), *given), buckets, value.total)
        return spread
    plain = (CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily)(
        name, row.help, labels=labels
    )
    for given, value in by_label.items():
        assert not isinstance(value, SpreadCounts)
        plain.add_metric((*more.values(), *given), value)
    return plain
