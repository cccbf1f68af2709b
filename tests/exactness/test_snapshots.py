"""Sessions that go on from a snapshot: from any mark, at any chunk size, with and without drafts, beside the
one that it was taken of, twice, and from bytes, in another process too. What a mark taps are the bytes of a
session that read just so far, and what goes on from it leaves what the plain reference leaves, bit for
bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext import _core
from flashnext.engine.core import ChunkPart
from flashnext.engine.engine import BUNDLED
from flashnext.engine.load import load_model
from flashnext.errors import InvalidArgument
from support.engine import PATHS
from support.matrix_models import RANDOM
from support.played import Left, Request, require_same
from support.setups import WIDE, Setup
from support.states import Desk, Image, Tokens, array, save

SIX_BITS = Setup("6 bits", {**WIDE, "indexer_compress_ratio": 16}, "mlx", 6, 64)
MODELS: tuple[tuple[str, str, str], ...] = (
    ("bundled", PATHS[0], "bfloat16"),
    ("attention first", PATHS[0], "float32"),
    ("attention first", PATHS[-1], "bfloat16"),
    ("6 bits", PATHS[0], "bfloat16"),
)
LENGTH = 150
# The first row, rows around the ends of pages, within a page and within a pooled block, several next to each
# other, and the last row.
MARKS = (1, 2, 63, 64, 65, 66, 102, 127, 128, 129, 149, LENGTH)
DRAFTS = (0, 3)


@dataclass
class Machine:
    """A model with its prompts: 0 is read with marks, 1 goes on where it ends, 2 and 3 leave it at 100."""

    desk: Desk
    whole: Tokens
    so_far: dict[int, Image]  # of sessions that read so far and no further

    def request(self, prompt: int = 0, n: int = 10) -> Request:
        # Penalties count the tokens that a session was resumed with.
        return Request(prompt, "seeded" if prompt else "penalties", prompt, n, few=False)

    def expected(self, prompt: int = 0) -> Left:
        return self.desk.reference.left(self.request(prompt))


@pytest.fixture(scope="module", params=MODELS, ids=", ".join)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    name, path, dtype = request.param
    folder = BUNDLED
    if name != "bundled":
        setup = RANDOM if name == "attention first" else SIX_BITS
        folder = setup.write(tmp_path_factory.mktemp("snapshots") / "checkpoint")
    loaded = load_model(folder, device="cpu", path_name=path, dtype=dtype, context=320, sequences=6)
    config, rng = loaded.checkpoint.config, np.random.default_rng(4)
    rows = rng.integers(12, config.vocab_size, (4, LENGTH + 30), np.int32)
    rows[rng.random(rows.shape) < 0.05] = config.segment_token
    rows[1:, :100] = rows[0, :100]
    rows[1, :LENGTH] = rows[0, :LENGTH]
    desk = Desk(loaded, [rows[0, :LENGTH], *rows[1:]])
    so_far = {}
    session = desk.open()
    for mark in MARKS:  # by chunks that end there
        desk.read(session, rows[0, :mark])
        snapshot = desk.core.snapshot(session)
        so_far[mark] = desk.image(snapshot)
        snapshot.close()
    session.close()
    made = Machine(desk, rows[0, :LENGTH], so_far)
    yield made
    assert desk.pool.free == desk.pool.total and desk.pool.block_bytes == 0


def tapped(machine: Machine, chunk: int = 512) -> dict[int, _core.Snapshot]:
    """Snapshots of a session that has read the whole prompt, and is gone."""
    session = machine.desk.open()
    found = machine.desk.read(session, machine.whole, chunk, MARKS)
    session.close()
    return found


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 512])
def test_a_mark_taps_the_bytes_of_a_session_that_read_just_so_far(machine: Machine, chunk: int) -> None:
    desk, session = machine.desk, machine.desk.open()
    found = desk.read(session, machine.whole, chunk, MARKS)
    assert tuple(found) == MARKS
    for mark, snapshot in found.items():
        image, expected = desk.image(snapshot), machine.so_far[mark]
        assert image.block == expected.block, f"mark {mark}, chunks of {chunk}"
        assert image.pages == expected.pages, f"mark {mark}, chunks of {chunk}"
        snapshot.close()
    session.close()
    # The prompt goes on as it would without marks.
    marked = desk.open()
    for snapshot in desk.read(marked, machine.whole[:-1], chunk, MARKS[:-1]).values():
        snapshot.close()
    require_same(desk.reply(marked, machine.request()), machine.expected(), f"chunks of {chunk}")


@pytest.mark.parametrize(("chunk", "n_drafts"), [(7, 3), (512, 0)])
def test_from_any_mark_a_session_goes_on_like_the_whole(machine: Machine, chunk: int, n_drafts: int) -> None:
    desk = machine.desk
    for mark, snapshot in tapped(machine, chunk).items():
        if mark < LENGTH:
            session = desk.resume(snapshot, machine.whole[:mark])
            assert session.length == mark
            desk.read(session, machine.whole[:-1], chunk)
            left = desk.reply(session, machine.request(), n_drafts)
            require_same(left, machine.expected(), f"from {mark}, chunks of {chunk}")
        else:  # all of it is the beginning of another prompt
            session = desk.resume(snapshot, machine.whole)
            require_same(
                desk.reply(session, machine.request(1), n_drafts), machine.expected(1), "from the end"
            )
        snapshot.close()


@pytest.mark.parametrize(("mark", "n_drafts"), [(63, 0), (64, 3), (65, 0), (99, 3)])
def test_sequences_go_on_from_one_page_together_and_each_as_alone(
    machine: Machine, mark: int, n_drafts: int
) -> None:
    desk = machine.desk
    original = desk.open()
    snapshot = desk.read(original, machine.whole[:120], 512, (mark,))[mark]
    # It has written on in the page already, and the others take other ways, one the same.
    sessions = {original: machine.request()}
    for prompt in (2, 3, 0):
        sessions[desk.resume(snapshot, machine.whole[:mark])] = machine.request(prompt)
    shared = [set(desk.core.snapshot(session).page_ids) for session in sessions]
    assert [len(ids) for ids in shared] == [2, *[-(-mark // 64)] * 3]
    assert len(set.intersection(*shared)) == (mark - 1) // 64
    snapshot.close()
    desk.begin(sessions, n_drafts)
    desk.run(sessions)
    for session, request in sessions.items():
        left = desk.left(session)
        require_same(left, desk.reference.left(request), f"from {mark}, prompt {request.prompt}")


def test_marks_of_several_prompts_in_one_pass_beside_a_reply(machine: Machine) -> None:
    desk = machine.desk
    replying, sessions = desk.open(), (desk.open(), desk.open())
    desk.begin({replying: machine.request(2)}, 3)
    marks = ((1, 64, 128), (65, 66))
    parts = [
        ChunkPart(session, machine.whole[: at[-1] + 1], False, marks=at)
        for session, at in zip(sessions, marks, strict=True)
    ]
    landed = {one.session: one for one in desk.core.step(parts, [replying])}
    desk.take([landed.pop(replying)])
    for session, at in zip(sessions, marks, strict=True):
        for mark, snapshot in zip(at, landed[session].snapshots, strict=True):
            assert snapshot is not None
            assert desk.image(snapshot) == machine.so_far[mark], f"mark {mark}"
            snapshot.close()
        session.close()
    desk.run([replying])
    require_same(desk.left(replying), machine.expected(2), "beside marks")


@pytest.mark.parametrize("n_drafts", DRAFTS)
def test_the_end_of_a_reply_is_where_its_next_turn_goes_on(machine: Machine, n_drafts: int) -> None:
    desk = machine.desk
    assert desk.core.prompt_equals_window
    session, other = desk.open(), desk.open()
    desk.begin({session: machine.request(2), other: machine.request(3, n=40)}, n_drafts)
    desk.core.start([session, other])  # the other one's rounds go on
    while session not in desk.ended:
        desk.take(desk.core.take())
    snapshot = desk.core.snapshot(session)
    desk.take(desk.core.take())
    reply = np.array([token for token, _ in desk.drawn[session]], np.int32)
    desk.run([other])
    text = np.concatenate([desk.reference.prompts[2], reply[:-1]])
    assert snapshot.n == len(text)
    require_same(desk.left(other), desk.reference.left(machine.request(3, n=40)), "beside a snapshot")
    session.close()
    # Its bytes are those of a prompt of the same tokens, and what goes on from it is what goes on from that.
    plain = desk.open()
    (of_prompt,) = desk.read(plain, text, 512, (len(text),)).values()
    assert desk.image(snapshot) == desk.image(of_prompt)
    plain.close()
    turn = np.concatenate([text, machine.whole[:40]])
    asked = Desk(desk.reference.loaded, [turn])
    resumed = asked.resume(snapshot, text)
    require_same(
        asked.reply(resumed, machine.request(), n_drafts),
        asked.reference.left(machine.request()),
        "the next turn",
    )
    snapshot.close()
    of_prompt.close()


# --- bytes


@pytest.mark.parametrize("n_drafts", DRAFTS)
def test_a_state_goes_out_as_bytes_and_comes_back_the_same(machine: Machine, n_drafts: int) -> None:
    desk = machine.desk
    before = desk.pool.free
    images = {mark: desk.image(snapshot) for mark, snapshot in tapped(machine).items()}
    for mark in (64, 102, 149):
        restored = desk.restore(images[mark])
        assert desk.image(restored) == images[mark] == machine.so_far[mark]
        assert desk.pool.of_snapshots == -(-mark // 64)
        session = desk.resume(restored, machine.whole[:mark])
        restored.close()
        require_same(desk.reply(session, machine.request(), n_drafts), machine.expected(), f"from {mark}")
    # Each page once: shorter states refer to pages of longer ones, whose further rows do not count.
    longest = desk.restore(images[149])
    held = desk.pool.of_snapshots
    for mark in (128, 65):
        pages = [(longest, i) for i in range(-(-mark // 64))]
        shorter = desk.core.restore(mark, array(images[mark].block), pages)
        assert shorter.page_ids == longest.page_ids[: len(pages)] and desk.pool.of_snapshots == held
        assert desk.image(shorter) == images[mark]
        session = desk.resume(shorter, machine.whole[:mark])
        shorter.close()
        require_same(desk.reply(session, machine.request(), n_drafts), machine.expected(), f"from {mark}")
    longest.close()
    assert desk.pool.free == before


def test_a_state_is_restored_in_another_process(machine: Machine, tmp_path: Path) -> None:
    desk, request = machine.desk, machine.request()
    snapshots = tapped(machine)
    save(tmp_path, desk.image(snapshots[102]), desk, request, 3)
    for snapshot in snapshots.values():
        snapshot.close()
    program = [sys.executable, "-m", "support.states", str(tmp_path)]
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        program, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["identity"] == desk.core.identity()
    expected = machine.expected()
    found = Left(
        **{**told["left"], "tokens": tuple(told["left"]["tokens"]), "rows": tuple(told["left"]["rows"])}
    )
    require_same(found, expected, "another process")


def test_bytes_that_do_not_fit_are_refused_and_nothing_stays(machine: Machine) -> None:
    desk, image = machine.desk, machine.so_far[102]
    block, pages = array(image.block), [array(page) for page in image.pages]
    other = desk.restore(machine.so_far[64])
    before = (desk.pool.free, desk.pool.of_snapshots, desk.pool.block_bytes)
    wrong: list[tuple[int, Any, Any]] = [
        (102, block[:-1], pages), (102, block, pages[:1]), (102, block, [*pages, pages[0]]), (0, block, []),
        (102, block, [pages[0], pages[1][:-1]]), (400, block, pages), (102, block, [pages[0], (other, 1)]),
        (102, block, [pages[0], (other, -1)]),
    ]  # fmt: skip
    for arguments in wrong:
        with pytest.raises(InvalidArgument, match="snapshot:"):
            desk.core.restore(*arguments)
        assert (desk.pool.free, desk.pool.of_snapshots, desk.pool.block_bytes) == before
    with pytest.raises(InvalidArgument, match="101 tokens for a snapshot of 64"):
        desk.resume(other, machine.whole[:101])
    with pytest.raises(InvalidArgument, match="outside the vocabulary"):
        desk.resume(other, machine.whole[:64] + 10**6)
    other.close()


# --- planted violations


def one_ulp(data: bytes, at: int, n: int, size: int) -> bytes:
    """Move n values of that size by one unit in the last place."""
    out = bytearray(data)
    for i in range(at, at + n * size, size):
        out[i] ^= 1
    return bytes(out)


def places(machine: Machine) -> tuple[dict[str, int], dict[str, int]]:
    """Where things lie in a block and in a page, of the last of each kind, by the layouts that
    cpp/model/layout.h describes."""
    c = machine.desk.reference.loaded.checkpoint.config
    t = 2 if machine.desk.reference.loaded.dtype == "bfloat16" else 4
    width = c.hc_count * c.hidden_size

    def end_of(*sizes: int) -> list[int]:
        return list(accumulate((-(-n // 64) * 64 for n in sizes), initial=0))

    channels = 2 * c.linear_k_heads * c.linear_k_dim + c.linear_v_heads * c.linear_v_dim
    delta = (c.linear_v_heads * c.linear_k_dim * c.linear_v_dim * 4, (c.linear_conv - 1) * channels * t)
    ple = ((c.ngram_size - 1) * 4, (c.ple_conv - 1) * c.ngram_size * width * t)
    n_delta = c.n_layers - sum(c.attention_layers)
    block = end_of(*delta * n_delta, *ple * len(c.ple_layers), width * t)
    kv, raw = c.n_kv_heads * 64 * c.head_dim * t, 64 * c.index_head_dim * t
    layers = sum(c.attention_layers)
    page = end_of(64 * 12, *(kv, kv, raw, raw // c.index_ratio) * (layers + 1))
    assert block[-1] == machine.desk.core.block_bytes and page[-1] == machine.desk.core.page_bytes
    first = 2 * n_delta
    in_block = {
        "a state": 0, "a convolution's tail": 1, "the n-gram tail": first,
        "an n-gram convolution's tail": first + 1, "the streams": len(block) - 2,
    }  # fmt: skip
    row = {"k": 0, "v": 1, "raw": 2}
    in_page = {f"{name} of the model": 1 + i for name, i in row.items()}
    in_page |= {f"{name} of the draft head": 1 + 4 * layers + i for name, i in row.items()}
    return {k: block[i] for k, i in in_block.items()}, {k: page[i] for k, i in in_page.items()}


def test_one_unit_in_the_last_place_of_a_restored_state_is_caught(machine: Machine) -> None:
    desk, image = machine.desk, machine.so_far[149]
    in_block, in_page = places(machine)

    def check(planted: Image, what: str) -> None:
        restored = desk.restore(planted)
        session = desk.resume(restored, machine.whole[:149])
        restored.close()
        left = desk.reply(session, machine.request(), 3)
        with pytest.raises(AssertionError, match=rf"{what}: .* differ"):
            require_same(left, machine.expected(), what)

    size = 2 if desk.reference.loaded.dtype == "bfloat16" else 4
    for name, at in in_block.items():
        # Of floats a few, since the rows behind may round one of them away.
        planted = one_ulp(image.block, at, 1 if name == "the n-gram tail" else 64, size)
        check(replace(image, block=planted), name)
    for name, at in in_page.items():
        planted = one_ulp(image.pages[0], at, 1, size)
        check(replace(image, pages=(planted, *image.pages[1:])), name)


def test_a_stale_row_of_the_draft_head_is_caught(machine: Machine) -> None:
    """The head's row before the last, left as another token behind it would have made it."""
    desk = machine.desk
    session = desk.open()
    other = np.array([*machine.whole[:101], machine.whole[101] ^ 1, *machine.whole[102:]], np.int32)
    found = desk.read(session, other, 512, (102,))
    stale = desk.image(found[102])
    found[102].close()
    session.close()
    image = machine.so_far[102]
    head = places(machine)[1]["k of the draft head"]
    pages = (image.pages[0], image.pages[1][:head] + stale.pages[1][head:])
    assert pages[1] != image.pages[1]
    restored = desk.restore(replace(image, pages=pages))
    resumed = desk.resume(restored, machine.whole[:102])
    restored.close()
    with pytest.raises(AssertionError, match="the draft head's cache differs"):
        require_same(desk.reply(resumed, machine.request(), 3), machine.expected(), "stale")


@pytest.mark.parametrize("copied", [True, False])
def test_a_page_that_is_not_copied_is_caught(machine: Machine, copied: bool) -> None:
    desk = machine.desk
    original = desk.open()
    snapshot = desk.read(original, machine.whole[:120], 512, (100,))[100]
    resumed = desk.resume(snapshot, machine.whole[:100])
    left = desk.reply(resumed, machine.request(2))
    require_same(left, machine.expected(2), "another way")
    if not copied:  # what the other way would have written into the page of the original
        other = desk.open()
        (theirs,) = desk.read(other, desk.reference.prompts[2][:128], 512, (128,)).values()
        _core.testing.write_page(snapshot, 1, desk.core.read_page(theirs, 1))
        theirs.close()
        other.close()
    snapshot.close()
    left = desk.reply(original, machine.request())
    if copied:
        require_same(left, machine.expected(), "the original")
    else:
        with pytest.raises(AssertionError, match=r"planted: .* differ"):
            require_same(left, machine.expected(), "planted")


# --- identity


def test_what_bits_depend_on_is_in_the_identity_and_nothing_else(tmp_path: Path) -> None:
    folder = RANDOM.write(tmp_path / "checkpoint")

    def identity(**options: Any) -> str:
        given: dict[str, Any] = {"context": 320, "threads": 1} | options
        loaded = load_model(folder, device="cpu", **given)
        return Desk(loaded, []).core.identity()

    plain = identity()
    assert len(plain) == 64 and set(plain) <= set("0123456789abcdef")
    assert plain == identity() == identity(threads=2, shuffle_seed=5, context=512, max_chunk=64, max_window=4)
    others = [
        identity(dtype="float32"),
        identity(prompt_order="reversed"),
        identity(draft_head=False),
        *(identity(path_name=path) for path in PATHS[1:]),
    ]
    assert len({plain, *others}) == 1 + len(others)


def test_other_angles_are_another_identity(tmp_path: Path) -> None:
    found = []
    for theta in (1e7, 1e6):
        setup = Setup("angles", {"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": theta}})
        loaded = load_model(setup.write(tmp_path / str(theta)), device="cpu", context=320, threads=1)
        found.append(Desk(loaded, []).core.identity())
    assert found[0] != found[1]
