"""`flashnext.batch.ray` on a local cluster: one worker for the machine, and the replies of any engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from flashnext import Engine, Sampling, TemplateOptions
from flashnext.engine.engine import BUNDLED
from flashnext.errors import InvalidArgument

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra `ray`"),
    pytest.mark.filterwarnings("default"),  # Ray's own are not ours to mend
]
SHORT = Sampling(max_tokens=6, seed=11)
QUICK = TemplateOptions(enable_thinking=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=2, resources={"flashnext": 1}, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_replies_are_those_of_any_engine_and_refusals_are_columns(cluster: Any) -> None:
    from flashnext.batch.ray import COLUMNS, answered

    texts = [f"{n} + 4 =" for n in range(20)]
    rows = [{"prompt": text, "number": n, "seed": n} for n, text in enumerate([*texts, "x" * 100_000])]
    data = cluster.data.from_items(rows, override_num_blocks=3)
    found = answered(data, sampling=SHORT, engine={"parallel": 4}, rows=7).take_all()
    assert sorted(row["number"] for row in found) == list(range(21))
    with Engine(parallel=1, prefix_cache_gib=0) as engine:
        for row in found:
            assert list(row) == ["prompt", "number", *COLUMNS.names]
            if row["number"] == 20:
                assert "the prompt is too long" in row["error"] and row["text"] is None
                continue
            sampling = Sampling(max_tokens=6, seed=row["number"])
            reply = engine.generate(row["prompt"], sampling=sampling).result()
            assert (row["text"], row["token_sha"], row["seed"]) == (reply.text, reply.token_sha, reply.seed)
            assert row["completion_tokens"] == reply.usage.completion_tokens
            assert row["error"] is None


def test_chats_are_rendered_with_the_options_and_with_turns_of_many_kinds(cluster: Any) -> None:
    from flashnext.batch.ray import answered

    chats = [
        [{"role": "user", "content": "What is 3 + 4?"}],
        [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi", "reasoning_content": "a greeting"},
            {"role": "user", "content": "Spell cat."},
        ],
    ]
    data = cluster.data.from_items([{"messages": chat} for chat in chats])
    found = answered(data, sampling=SHORT, options=QUICK).take_all()
    with Engine(parallel=1) as engine:
        replies = [engine.generate(chat, sampling=SHORT, options=QUICK).result() for chat in chats]
    assert sorted(row["token_sha"] for row in found) == sorted(reply.token_sha for reply in replies)


def test_a_row_that_is_no_request_is_its_own_error_alone() -> None:
    import pyarrow as pa
    from flashnext.batch.ray import Worker

    worker = Worker(str(BUNDLED), {"parallel": 2}, SHORT, QUICK)
    right: dict[str, Any] = {"prompt": "3 + 4 =", "seed": None}
    turn = {"role": "user", "content": "What is 3 + 4?"}
    blocks: list[tuple[dict[str, Any], list[Any], str]] = [
        (right, [{"prompt": "a", "seed": seed} for seed in (2.5, 1e30)], "seed"),
        (right, [{"prompt": "a", "seed": "7"}], "seed"),
        ({"messages": [turn]}, [{"messages": [None]}, {"messages": [turn, None]}], "the row is no request"),
        ({"messages": None, "prompt": "a"}, [{"messages": "Hello", "prompt": None}], "the row is no request"),
    ]
    try:
        for good, wrong, problem in blocks:
            first, *refused, last = worker(pa.Table.from_pylist([good, *wrong, good])).to_pylist()
            assert [problem in row["error"] and row["text"] is None for row in refused] == [True] * len(wrong)
            assert first["error"] is last["error"] is None
            assert first["token_sha"] == last["token_sha"] is not None
    finally:
        worker._engine.close()


def test_a_cluster_without_the_resource_is_told_how_to_get_it(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashnext.batch import ray as recipe

    monkeypatch.setattr(cluster, "cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(InvalidArgument, match="no machine of the cluster has the resource 'flashnext'"):
        recipe.answered(cluster.data.range(1))
