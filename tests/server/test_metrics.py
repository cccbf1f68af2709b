"""/metrics: every row of docs/metrics.md is told, as another parser reads it, and is what happened."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from flashnext.engine.events import SpreadCounts
from flashnext.engine.tally import Spread
from flashnext.server.exposition import ENGINE, SERVER, _by_position, registry_of
from flashnext.server.service import Service
from flashnext.server.settings import Settings
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.serving import ServerThread, until

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text(encoding="utf-8")
SUM: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
PLAIN: dict[str, Any] = {"model": "tiny", "messages": SUM, "temperature": 0}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def server() -> Iterator[ServerThread]:
    server = ServerThread(parallel=2, drafts=2, prices=False, prefix_cache_gib=0.05, api_keys=("key",))
    yield server
    server.close()


def url_of(server: ServerThread, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def ask(server: ServerThread, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    headers = {"authorization": "Bearer key"}
    return httpx.post(url_of(server, path), json={**PLAIN, **body}, headers=headers, timeout=60)


def scrape(server: ServerThread) -> Samples:
    text = httpx.get(url_of(server, "/metrics"), timeout=60).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def alias(samples: Samples, name: str, **labels: str) -> float:
    return value(samples, f"vllm:{name}", model_name="tiny", engine="0", **labels)


# --- what is documented


def documented(heading: str) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """The rows of a table: name, type, labels, aliases."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \|([^|]*)\|([^|]*)\|", section, re.MULTILINE)
    return [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)), tuple(re.findall(r"`([\w:]+)`", aliases)))
        for name, kind, labels, aliases in rows
    ]


@pytest.mark.parametrize(
    ("heading", "rows"), [("From the start", SERVER), ("Once the model is loaded", ENGINE)]
)
def test_the_documented_metrics_are_those_of_the_table(heading: str, rows: Any) -> None:
    def written(row: Any) -> Any:
        end = "_total" if row.kind == "counter" else ""
        return row.name + end, row.kind, row.labels, tuple(name + end for name in row.aliases)

    assert documented(heading) == [written(row) for row in rows]


def test_every_documented_metric_is_served_and_no_other(server: ServerThread) -> None:
    expected: dict[str, str] = {}
    for heading in ("From the start", "Once the model is loaded"):
        for name, kind, _, aliases in documented(heading):
            expected |= {one.removesuffix("_total"): kind for one in (name, *aliases)}
    # As Prometheus 3 asks, which would like OpenMetrics better.
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    response = httpx.get(url_of(server, "/metrics"), headers={"accept": accept}, timeout=60)
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert {one.name: one.type for one in text_string_to_metric_families(response.text)} == expected


def test_the_dashboard_asks_for_what_is_served() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    names = {name for query in queries for name in re.findall(r"(?:flashnext_|vllm:)\w+", query)}
    rows: tuple[Any, ...] = (*SERVER, *ENGINE)
    served = set()
    for row in rows:
        ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}[row.kind]
        served |= {row.name + end for end in ends}
    assert names and names <= served
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


# --- what is counted


def test_counts_are_what_requests_did(server: ServerThread) -> None:
    before = scrape(server)
    assert value(before, "flashnext_reply_tokens_total") == 0
    replies = [ask(server).json(), ask(server, max_tokens=3).json(), ask(server, n=2, seed=5).json()]
    headers = {"x-api-key": "key"}
    assert (
        httpx.get(url_of(server, "/v1/responses/resp_1/input_items"), headers=headers, timeout=60).status_code
        == 404
    )
    refused = ask(server, temperature=-1)
    assert refused.status_code == 400
    assert httpx.get(url_of(server, "/v1/models"), timeout=60).status_code == 401
    assert httpx.get(url_of(server, "/nowhere"), headers={"x-api-key": "key"}, timeout=60).status_code == 404
    after = scrape(server)
    choices = [choice for reply in replies for choice in reply["choices"]]
    assert value(after, "flashnext_requests_total", route="/v1/chat/completions", status="200") == 3
    assert value(after, "flashnext_requests_total", route="/v1/chat/completions", status="400") == 1
    assert value(after, "flashnext_requests_total", route="/v1/models", status="401") == 1
    items = "/v1/responses/{response_id}/input_items"
    assert value(after, "flashnext_requests_total", route=items, status="404") == 1
    assert value(after, "flashnext_requests_total", route="other", status="404") == 1
    assert value(after, "flashnext_refusals_total", reason="invalid_field") == 1
    assert value(after, "flashnext_refusals_total", reason="invalid_api_key") == 1
    assert value(after, "flashnext_refusals_total", reason="no_such_route") == 1
    for finish in ("stop", "length"):
        n = sum(choice["finish_reason"] == finish for choice in choices)
        assert value(after, "flashnext_replies_total", finish=finish) == n
        assert alias(after, "request_success_total", finished_reason=finish) == n
    n_prompt, n_reply = 18 * len(choices), sum(reply["usage"]["completion_tokens"] for reply in replies)
    for name, number in (("prompt", n_prompt), ("reply", n_reply)):
        assert value(after, f"flashnext_{name}_tokens_total") == number
        assert value(after, f"flashnext_{name}_length_tokens_sum") == number
        assert value(after, f"flashnext_{name}_length_tokens_count") == len(choices)
    assert alias(after, "generation_tokens_total") == n_reply
    timings = [choice["flashnext"]["timings"] for choice in choices]
    for name, parts in (
        ("time_to_first_token", ("first_token_ms",)),
        ("queue_time", ("queued_ms",)),
        ("prompt_time", ("prompt_ms",)),
        ("decode_time", ("decode_ms",)),
        ("reply_time", ("first_token_ms", "decode_ms")),
        ("time_per_output_token", ("token_ms",)),
        ("largest_gap", ("largest_gap_ms",)),
    ):
        assert value(after, f"flashnext_{name}_seconds_count") == len(choices)
        told_s = sum(timing[part] for timing in timings for part in parts) / 1e3
        # Those of replies are rounded to a microsecond.
        assert value(after, f"flashnext_{name}_seconds_sum") == pytest.approx(told_s, abs=len(choices) * 2e-6)
    # Each token but the first of a reply comes after a gap.
    assert value(after, "flashnext_token_gap_seconds_count") == n_reply - len(choices)
    assert alias(after, "inter_token_latency_seconds_count") == n_reply - len(choices)
    drafts = [choice["flashnext"]["drafts"] for choice in choices]
    assert value(after, "flashnext_drafts_proposed_total") >= sum(d["proposed"] for d in drafts) > 0
    steps = [reply["metrics"]["speculative_decoding"] for reply in replies]
    kept = [n for step in steps for n, times in enumerate(step["acceptance_histogram"]) for _ in range(times)]
    assert len(kept) == sum(step["num_spec_steps"] for step in steps)
    assert sum(kept) == sum(d["accepted"] for d in drafts)
    assert value(after, "flashnext_draft_windows_total") == len(kept)
    assert value(after, "flashnext_drafts_accepted_total") == sum(kept)
    for position in range(max(kept)):
        at = sum(n > position for n in kept)
        assert value(after, "flashnext_drafts_accepted_at_total", position=str(position)) == at
        assert alias(after, "spec_decode_num_accepted_tokens_per_pos_total", position=str(position)) == at
    # A round gives each of the two that run at once three tokens at most: two drafts, and one that is drawn.
    assert value(after, "flashnext_rounds_total") * 2 * 3 >= n_reply - len(choices)
    assert value(after, "flashnext_prompt_passes_total") >= len(replies)  # and those of histories
    assert value(after, "flashnext_replies_running") == value(after, "flashnext_replies_waiting") == 0
    pool = server.engine.loaded.pool
    assert value(after, "flashnext_pages") == pool.total
    assert value(after, "flashnext_pages_free") == pool.free


def test_what_was_not_read_again_is_counted_with_the_time_that_reading_took(server: ServerThread) -> None:
    system = {"role": "system", "content": "You count. " * 60}
    bodies: list[dict[str, Any]] = [
        {"messages": [system, {"role": "user", "content": text}], "max_tokens": 2} for text in "ab"
    ]
    for body in bodies * 2:
        assert ask(server, **body).status_code == 200
    cached = [
        ask(server, **body).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for body in bodies
    ]
    assert all(cached)
    after = scrape(server)
    counts = server.engine.counts
    assert value(after, "flashnext_cached_tokens_total") >= sum(cached)
    assert alias(after, "prefix_cache_hits_total") == value(after, "flashnext_cached_tokens_total")
    assert value(after, "flashnext_cache_hits_total") == counts.cache.hits > 0
    assert value(after, "flashnext_cache_hit_tokens_total") == counts.cache.hit_tokens
    assert value(after, "flashnext_cache_saved_seconds_total") == counts.cache.saved_s > 0
    n_prompt = value(after, "flashnext_prompt_tokens_total")
    assert value(after, "flashnext_read_tokens_total") >= n_prompt - value(
        after, "flashnext_cached_tokens_total"
    )


def test_a_client_that_leaves_and_a_reply_that_takes_too_long_are_told_apart() -> None:
    server = ServerThread(timeout_s=0.5)
    try:
        server.core.endless = True
        server.core.before = lambda what: time.sleep(0.005)  # else a fast machine comes to the context's end
        assert ask(server).status_code == 504
        with httpx.Client(timeout=60) as client:
            request = client.build_request(
                "POST",
                url_of(server, "/v1/completions"),
                json={"model": "tiny", "prompt": "a", "stream": True},
            )
            server.service.settings = Settings(names=("tiny",))
            client.send(request, stream=True).close()
        until(lambda: server.service.queue.n_open == 0, "the reply was not ended")
        after = scrape(server)
        assert value(after, "flashnext_cancellations_total", cause="timeout") == 1
        assert value(after, "flashnext_cancellations_total", cause="client") == 1
        assert value(after, "flashnext_replies_total", finish="cancelled") == 2
        assert value(after, "flashnext_refusals_total", reason="timeout") == 1
        assert value(after, "flashnext_reply_time_seconds_count") == 0
    finally:
        server.close()


# --- access, and what a scrape does to others


def test_a_scrape_needs_no_key_and_a_foreign_host_may_not(server: ServerThread) -> None:
    assert httpx.get(url_of(server, "/metrics"), timeout=60).status_code == 200
    assert (
        httpx.get(url_of(server, "/metrics"), headers={"host": "evil.example"}, timeout=60).status_code == 403
    )
    assert "3 + 4" not in httpx.get(url_of(server, "/metrics"), timeout=60).text


def test_a_scrape_is_answered_while_a_step_of_the_engine_hangs(server: ServerThread) -> None:
    hangs, go_on = threading.Event(), threading.Event()

    def hang(what: str) -> None:
        hangs.set()
        assert go_on.wait(60)

    server.core.before = hang
    asking = threading.Thread(target=lambda: ask(server))
    asking.start()
    try:
        assert hangs.wait(60)
        samples = scrape(server)
        assert value(samples, "flashnext_replies_running") == alias(samples, "num_requests_running") == 1
        assert value(samples, "flashnext_replies_open") == 1
        assert value(samples, "flashnext_ready") == 1
    finally:
        server.core.before = lambda what: None
        go_on.set()
        asking.join(60)


def test_scrapes_beside_a_reply_do_not_change_it(server: ServerThread) -> None:
    alone = ask(server, cache=False).json()
    done = threading.Event()

    def watch() -> None:
        with httpx.Client(timeout=60) as client:
            while not done.is_set():
                client.get(url_of(server, "/metrics"))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        beside = ask(server, cache=False).json()
    finally:
        done.set()
        watching.join(60)
    assert beside["choices"][0]["flashnext"]["token_sha"] == alone["choices"][0]["flashnext"]["token_sha"]


def test_a_server_that_is_loading_tells_what_does_not_need_the_model() -> None:
    service = Service(Settings(names=("a",)))
    text = generate_latest(registry_of(service)).decode()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert set(families) == {name for row in SERVER for name in (row.name, *row.aliases)}
    assert families["flashnext_ready"].samples[0].value == 0


def test_two_servers_of_a_process_share_nothing() -> None:
    one, other = Service(Settings(names=("a",))), Service(Settings(names=("b",)))
    one.metrics.request("/v1/models", 200, {})
    assert (one.metrics.requests.total(), other.metrics.requests.total()) == (1, 0)


# --- the parts


def test_values_are_counted_below_the_bound_that_they_equal() -> None:
    spread = Spread((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 2.5):
        spread.add(number)
    assert spread.counts == SpreadCounts((1.0, 2.0), (2, 2, 1), 7.5)


def test_drafts_by_place_are_those_of_windows_that_kept_more() -> None:
    assert _by_position((4, 3, 0, 2)) == {("0",): 5.0, ("1",): 2.0, ("2",): 2.0}
    assert _by_position(()) == _by_position((7,)) == {}
