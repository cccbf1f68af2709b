"""The whole engine on the Metal kernels on a GPU, and what its rounds ask of the host."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from flashnext import _core as core
from support.cells import Cell, covering_cells
from support.engine import CUDA, WHY_NO_CUDA
from support.metal_engine import CASES, desk, reply_of, small_checkpoint
from support.played import Reference, Request, play, require_same
from support.states import Desk

pytestmark = pytest.mark.skipif(bool(WHY_NO_CUDA), reason=WHY_NO_CUDA)

CELLS = [cell for cell in covering_cells(times=1) if cell.model == "random" and cell.together != "16"]
GOLDEN = [*((case, "") for case in CASES[:16]), (CASES[0], "graph"), (CASES[0], "device memory")]


@pytest.mark.parametrize(("case", "path"), GOLDEN, ids=lambda x: x if isinstance(x, str) else x["id"])
def test_float32_replies_equal_those_of_transformers(case: dict[str, Any], path: str) -> None:
    assert reply_of(case, path, CUDA) == case["output_ids"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return desk(checkpoint, "", sequences=9, kind=CUDA).reference


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_replies_are_those_of_the_plain_reference(cell: Cell, reference: Reference) -> None:
    play(cell, reference)


@pytest.mark.parametrize("path", ["", "graph"])
def test_the_lone_driver_gives_what_shared_rounds_give(
    path: str, checkpoint: Path, reference: Reference
) -> None:
    request = Request(0, "seeded", 1, 24, few=False)
    on = desk(checkpoint, path, kind=CUDA)
    prompt, session = on.reference.prompts[0], on.open(0)
    on.read(session, prompt[:-1], prompt=0)
    require_same(on.reply(session, request, 2), reference.left(request), "drafted by the lone driver")
    first, second = on.open(0), on.open()
    on.begin({first: request, second: Request(3, "penalties", 2, 24, few=False)}, 2)
    on.run([first, second])
    require_same(on.left(first), reference.left(request), "in shared rounds")


def traces_of_a_reply(on: Desk, n_tokens: int = 40) -> list[dict[str, int]]:
    """What the device was given for the rounds of one reply of the lone driver."""
    session, request = on.open(), Request(2, "greedy", 1, n_tokens, few=False)
    device = on.reference.loaded.device
    on.read(session, on.reference.prompts[2][:-1])
    core.testing.cuda_trace(device)
    on.reply(session, request, 0)
    return core.testing.cuda_trace(device)


def test_a_lone_round_waits_for_no_host_and_the_next_is_there_before_it_ends(checkpoint: Path) -> None:
    traces = traces_of_a_reply(desk(checkpoint, "", kind=CUDA))
    most = max(t["dispatches"] for t in traces)
    rounds = [t for t in traces if t["dispatches"] > most / 2]
    assert len(rounds) >= 30
    assert all(t["host_waits"] == 0 and t["host_signals"] == 1 for t in rounds)
    # The first round and the last one are beside something else.
    ahead = [b["committed_ns"] < a["landed_ns"] for a, b in pairwise(rounds)]
    assert sum(ahead) >= len(ahead) - 3


def test_a_round_that_is_measured_again_is_the_next_round(checkpoint: Path) -> None:
    on = desk(checkpoint, "device memory", kind=CUDA)
    loaded, prompt = on.reference.loaded, on.reference.prompts[2]
    runner, session = core.Runner(loaded.model), on.open()
    runner.prompt(session, prompt, True, core.Sampling(temperature=0))
    runner.round([session])
    dispatches, graph_ms, launch_ms = core.testing.cuda_replay(loaded.device, 2)
    assert len(graph_ms) == len(launch_ms) == 2
    assert {name for _, name, *_ in dispatches} >= {"round_rows", "matmul_bf16", "verdict", "draw_pick"}
    assert all(us >= 0 for *_, us in dispatches) and sum(us for *_, us in dispatches) > 0
