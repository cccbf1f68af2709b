"""What snapshots hold and give back: whoever closes them and when, and whatever fails on the way."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flashnext import _core
from flashnext.engine.core import ChunkPart
from flashnext.engine.load import load_model
from flashnext.errors import DeviceError, InvalidArgument, OutOfMemory, OutOfPages
from support.played import Request, require_same
from support.setups import Setup
from support.states import Desk, array

testing = _core.testing
LENGTH = 200
REQUEST = Request(0, "seeded", 3, 8, few=False)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    folder = Setup("small").write(tmp_path_factory.mktemp("memory") / "small")
    loaded = load_model(folder, device="cpu", context=256, sequences=3)
    prompt = np.random.default_rng(1).integers(12, 200, LENGTH, np.int32)
    desk = Desk(loaded, [prompt])
    desk.reference.left(REQUEST)
    return desk


@pytest.fixture(autouse=True)
def nothing_stays(desk: Desk) -> Iterator[None]:
    yield
    testing.clear_faults(desk.reference.loaded.device)
    pool = desk.pool
    assert pool.free == pool.total and pool.of_snapshots == 0 and pool.block_bytes == 0


def prompt_of(desk: Desk) -> Any:
    return desk.reference.prompts[0]


def test_pages_and_blocks_of_snapshots_are_counted(desk: Desk) -> None:
    core, pool, session = desk.core, desk.pool, desk.open()
    found = desk.read(session, prompt_of(desk), 512, (10, 70, 150))
    assert pool.total - pool.free == 4 and core.snapshot_pages() == 0  # the session has them too
    assert core.snapshot_bytes() == 3 * core.block_bytes == 3 * len(core.read_block(found[10]))
    assert [len(found[mark].page_ids) for mark in (10, 70, 150)] == [1, 2, 3]
    assert found[150].page_ids[:2] == found[70].page_ids
    session.close()
    assert pool.total - pool.free == core.snapshot_pages() == 3
    resumed = desk.resume(found[70], prompt_of(desk)[:70])
    assert (pool.total - pool.free, core.snapshot_pages()) == (4, 2)
    found[150].close()
    found[150].close()
    assert (pool.total - pool.free, core.snapshot_pages()) == (3, 1)
    assert found[150].page_ids == () and found[150].n == 150
    found[10].close()
    found[70].close()
    assert (pool.total - pool.free, core.snapshot_pages(), core.snapshot_bytes()) == (2, 0, 0)
    resumed.close()
    for used in (
        lambda: core.read_block(found[70]),
        lambda: core.read_page(found[70], 0),
        lambda: desk.resume(found[70], prompt_of(desk)[:70]),
        lambda: core.restore(70, np.zeros(core.block_bytes, np.uint8), [(found[70], 0), (found[70], 1)]),
    ):
        with pytest.raises(InvalidArgument, match="snapshot: used after close"):
            used()


def test_a_snapshot_that_nobody_holds_gives_back(desk: Desk) -> None:
    session = desk.open()
    found = desk.read(session, prompt_of(desk)[:20], 512, (10,))
    session.close()
    assert desk.core.snapshot_pages() == 1
    del found
    assert desk.core.snapshot_pages() == 0


def test_marks_that_are_none_are_refused_and_the_rest_of_the_pass_goes_on(desk: Desk) -> None:
    prompt = prompt_of(desk)
    for marks in ((0,), (21,), (5, 5), (6, 5), (-1, 3)):
        session, other = desk.open(), desk.open()
        parts = [ChunkPart(session, prompt[:20], False, marks=marks), ChunkPart(other, prompt[:20], False)]
        landed = {one.session: one for one in desk.core.step(parts, [])}
        assert isinstance(landed[session].error, InvalidArgument)
        assert list(landed[session].snapshots) == [] and landed[other].error is None
        session.close()
        require_same(desk.reply(other, REQUEST), desk.reference.left(REQUEST), "the other one")


def test_no_memory_for_a_mark_costs_that_snapshot_alone(desk: Desk) -> None:
    prompt, device = prompt_of(desk), desk.reference.loaded.device
    session = desk.open()
    desk.read(session, prompt[:70])  # the slab of pages is there
    testing.fail_allocation(device, 2)
    (landed,) = desk.core.step([ChunkPart(session, prompt[70:190], False, marks=(1, 2, 3))], [])
    first, second, third = landed.snapshots
    assert landed.error is None and second is None and first is not None and third is not None
    assert testing.n_faults(device) == 0 and desk.core.snapshot_bytes() == 2 * desk.core.block_bytes
    for snapshot in (first, third):
        resumed = desk.resume(snapshot, prompt[: snapshot.n])
        snapshot.close()
        require_same(desk.reply(resumed, REQUEST), desk.reference.left(REQUEST), f"from {snapshot.n}")
    require_same(desk.reply(session, REQUEST), desk.reference.left(REQUEST), "the original")


def test_whatever_allocation_fails_nothing_of_it_stays(desk: Desk) -> None:
    prompt, device, pool = prompt_of(desk), desk.reference.loaded.device, desk.pool
    session = desk.open()
    (snapshot,) = desk.read(session, prompt, 512, (100,)).values()
    image = desk.image(snapshot)
    before = (pool.free, pool.of_snapshots, pool.block_bytes)
    failed = 0
    for what in (
        lambda: desk.resume(snapshot, prompt[:100]),
        lambda: desk.restore(image),
        lambda: desk.core.snapshot(session),
    ):
        for n in range(1, 20):
            testing.fail_allocation(device, n)
            try:
                what().close()
            except OutOfMemory:
                failed += 1
                assert (pool.free, pool.of_snapshots, pool.block_bytes) == before
            else:
                testing.clear_faults(device)
                break
    assert failed == 6 + 1 + 1  # the buffers of a session, a block, a block
    assert (pool.free, pool.of_snapshots, pool.block_bytes) == before
    snapshot.close()
    session.close()


def test_without_a_page_nothing_is_resumed_and_nothing_restored(desk: Desk) -> None:
    prompt, pool, sessions = prompt_of(desk), desk.pool, []
    (snapshot,) = desk.read(session := desk.open(), prompt[:100], 512, (100,)).values()
    image = desk.image(snapshot)
    sessions.append(session)
    while pool.free:
        sessions.append(desk.open())
        desk.read(sessions[-1], prompt[: 64 * min(3, pool.free)])
    before = (pool.free, pool.of_snapshots, pool.block_bytes)
    for what in (lambda: desk.resume(snapshot, prompt[:100]), lambda: desk.restore(image)):
        with pytest.raises(OutOfPages):
            what()
        assert (pool.free, pool.of_snapshots, pool.block_bytes) == before
    sessions.pop().close()
    desk.resume(snapshot, prompt[:100]).close()
    pages: list[Any] = [array(image.pages[0]), (snapshot, 1)]
    desk.core.restore(100, array(image.block), pages).close()
    snapshot.close()
    for session in sessions:
        session.close()


@pytest.mark.parametrize(
    "kernel", ["delta_rule_bf16", "delta_conv_bf16", "ple_conv_bf16", "ngram_ids", "embed_bf16"]
)
def test_marks_of_a_pass_that_fails_are_gone(desk: Desk, kernel: str) -> None:
    prompt, session = prompt_of(desk), desk.open()
    (kept,) = desk.read(session, prompt[:70], 512, (66,)).values()
    testing.fail_dispatch(desk.reference.loaded.device, kernel, 1, "planted")
    (landed,) = desk.core.step([ChunkPart(session, prompt[70:150], False, marks=(1, 80))], [])
    assert isinstance(landed.error, DeviceError) and list(landed.snapshots) == []
    del landed
    assert desk.core.snapshot_bytes() == desk.core.block_bytes
    with pytest.raises(InvalidArgument, match="failed"):
        desk.core.snapshot(session)
    session.close()
    resumed = desk.resume(kept, prompt[:66])  # what was taken before is as good as ever
    kept.close()
    require_same(desk.reply(resumed, REQUEST), desk.reference.left(REQUEST), "behind a failure")


def test_a_snapshot_wants_a_session_at_rest(desk: Desk) -> None:
    session = desk.open()
    with pytest.raises(InvalidArgument, match="read something"):
        desk.core.snapshot(session)
    runner = desk.reference.runner
    desk.read(session, prompt_of(desk)[:10])
    runner.forward([(session, prompt_of(desk)[10:14], True)])
    with pytest.raises(InvalidArgument, match="unsettled"):
        desk.core.snapshot(session)  # nothing says how many of the window's rows are kept
    session.keep(4)
    with pytest.raises(InvalidArgument, match="draft head"):
        desk.core.snapshot(session)  # which does not absorb windows of known tokens
    (landed,) = desk.core.step([ChunkPart(session, prompt_of(desk)[14:20], False, marks=(2,))], [])
    assert isinstance(landed.error, InvalidArgument) and "draft head" in str(landed.error)
    session.close()
    with pytest.raises(InvalidArgument, match="after close"):
        desk.core.snapshot(session)


def test_a_failure_to_settle_leaves_the_rounds_of_others_running(desk: Desk) -> None:
    session, other = desk.open(), desk.open()
    desk.begin({session: REQUEST})
    desk.run([session])
    asked = Request(0, "seeded", 9, 40, few=False)
    desk.begin({other: asked})
    desk.core.start([other])
    desk.take(desk.core.take())
    desk.take(desk.core.stop())
    testing.fail_dispatch(desk.reference.loaded.device, "delta_rule_bf16", 1, "planted")
    with pytest.raises(DeviceError, match="planted"):
        desk.core.snapshot(session)
    session.close()
    desk.run([other])
    require_same(desk.left(other), desk.reference.left(asked), "beside a failure")


def test_other_threads_may_close_and_read_while_passes_are_in_flight(desk: Desk) -> None:
    """Passes tap marks and sessions resume, while another thread reads what was tapped and closes it."""
    prompt, expected = prompt_of(desk), desk.reference.left(REQUEST)
    images: dict[int, Any] = {}
    closing: list[Any] = []
    n_read = 0
    end = threading.Event()
    failures: list[BaseException] = []

    def others() -> None:
        nonlocal n_read
        rng = random.Random(5)
        while not end.is_set() or closing:
            assert 0 <= desk.core.snapshot_pages() <= desk.pool.total and desk.core.snapshot_bytes() >= 0
            if not closing:
                end.wait(0.0005)
                continue
            one = closing.pop(rng.randrange(len(closing)))
            try:
                if isinstance(one, _core.Snapshot):
                    found = desk.image(one)
                    assert images.setdefault(one.n, found) == found, f"mark {one.n}"
                    n_read += 1
            except BaseException as error:
                failures.append(error)
            one.close()

    thread = threading.Thread(target=others)
    thread.start()
    rng = random.Random(6)
    try:
        for _ in range(25):
            session = desk.open()
            marks = sorted(rng.sample(range(1, 190), 4))
            found = desk.read(session, prompt[:190], rng.choice((64, 512)), marks)
            resumed = desk.resume(found[marks[1]], prompt[: marks[1]])
            closing.extend(found.values())  # read and closed while the sessions go on
            require_same(desk.reply(resumed, REQUEST, 3), expected, f"from {marks[1]}")
            desk.begin({session: REQUEST}, 3)
            desk.core.start([session])
            closing.append(session)  # closed while its rounds are in flight
            desk.core.take()
            desk.core.stop()
            desk.drawn.pop(session, None)
    finally:
        end.set()
        thread.join()
    assert not failures, failures
    assert n_read == 100


def test_a_session_that_is_closed_in_its_pass_leaves_its_marks(desk: Desk) -> None:
    prompt = prompt_of(desk)
    for seed in range(20):
        session = desk.open()
        closer = threading.Timer(random.Random(seed).random() * 0.01, session.close)
        closer.start()
        landed = desk.core.step([ChunkPart(session, prompt[:190], False, marks=(100,))], [])
        closer.join()
        for one in landed:
            for snapshot in one.snapshots:
                assert snapshot is not None
                resumed = desk.resume(snapshot, prompt[:100])
                snapshot.close()
                require_same(desk.reply(resumed, REQUEST), desk.reference.left(REQUEST), f"seed {seed}")
