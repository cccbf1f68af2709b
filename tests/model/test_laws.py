"""The row, prefix and class laws and settlement, bit for bit: hashes of float32 logits and of settled state.

Some sequences show media, whose rows stand elsewhere on each rotary axis, so that all behind them do too.

Every test runs the same sequence in another way and compares with the plainest one: alone, on a fresh
session, one prompt row a pass. `test_..._catches` plant a difference of one unit in the last place, on which
the comparison must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.checkpoint import open_checkpoint
from flashnext.engine.frame import Frame
from support.engine import MAX_WINDOW, PATHS, Engine, Float32, Shown, Tokens, first_difference, row_hashes
from support.random_checkpoint import write_random
from support.seen import drawn, noise
from support.setups import MANY_EXPERTS, MIXED, REAL_HEADS, WIDE, Setup

ROWS = 150
SETUPS = (
    Setup("small", rows=ROWS),
    Setup("heads of the real model", REAL_HEADS, rows=ROWS),
    Setup("mixed bits, many experts", MANY_EXPERTS, "mlx", 6, 32, rows=ROWS, modules=MIXED),
    Setup("6 bits in groups of 64", {**WIDE, "indexer_compress_ratio": 16}, "mlx", 6, 64, rows=ROWS),
)


@dataclass
class Plain:
    """The plainest run: hashes of each row's logits, and of the settled state after each row."""

    engine: Engine
    tokens: Tokens
    frame: Frame | None
    logits: Float32
    rows: list[str]
    states: list[int]

    def session(self) -> core.Session:
        return self.engine.session(self.frame)

    def shown(self, at: int, n: int) -> list[Shown]:
        """What n rows show."""
        return self.engine.shown(self.frame, at, n)

    def prompt(self, session: core.Session, at: int, n: int) -> Float32:
        """Read n rows by a prompt chunk."""
        return self.engine.prompt(session, self.tokens[at : at + n], self.shown(at, n))

    def check(self, found: Float32, at: int, what: str) -> None:
        """Require that `found` are rows `at`, `at` + 1, ... bit for bit."""
        row = first_difference(self.rows[at : at + len(found)], row_hashes(found))
        assert row is None, f"{what}: row {at} + {row} of the sequence differs"


WITH_MEDIA = ("heads of the real model", "6 bits in groups of 64")
EACH = [(s, p, t) for s in SETUPS for p in PATHS for t in ("float32", "bfloat16")]


@pytest.fixture(scope="module", params=EACH, ids=lambda x: f"{x[0]}, {x[1]}, {x[2]}")
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    setup, path, dtype = request.param
    folder = setup.write(tmp_path_factory.mktemp("laws") / "checkpoint")
    engine = Engine(folder, path, dtype)
    config = open_checkpoint(folder).config
    rng = np.random.default_rng(setup.seed)
    tokens = rng.integers(0, config.vocab_size, setup.rows, np.int32)
    tokens[rng.random(setup.rows) < 0.05] = config.segment_token
    frame = None
    if setup.name in WITH_MEDIA:  # over ends of pages and of pooled blocks, thin, next to each other
        media = [(1, noise(1, (1, 4, 4))), (5, noise(2, (1, 2, 14))), (40, noise(3, (1, 14, 12)))]
        tokens, frame = drawn(tokens, media, config.segment_token + 1, config.hidden_size)
    session = engine.session(frame)
    logits, states = [], []
    for at in range(len(tokens)):
        logits.append(engine.prompt(session, tokens[at : at + 1], engine.shown(frame, at, 1)))
        states.append(engine.runner.state_hash(session))
    session.close()
    joined = np.concatenate(logits)
    yield Plain(engine, tokens, frame, joined, row_hashes(joined), states)


def some_cuts(rng: np.random.Generator, n: int) -> list[int]:
    return sorted(rng.choice(np.arange(1, n), size=int(rng.integers(1, 8)), replace=False).tolist())


@pytest.mark.parametrize("seed", range(4))
def test_prefix_law_any_cut_of_a_prompt_gives_the_same_bits(plain: Plain, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cuts = some_cuts(rng, len(plain.tokens)) if seed else []
    session = plain.session()
    at = 0
    for part in np.split(plain.tokens, cuts):
        plain.check(plain.prompt(session, at, len(part)), at, f"seed {seed}, cuts {cuts}")
        at += len(part)
        assert plain.engine.runner.state_hash(session) == plain.states[at - 1], f"seed {seed}, cuts {cuts}"
    session.close()


@pytest.mark.parametrize("width", (1, 2, 5, 16, 33, MAX_WINDOW))
def test_class_law_window_rows_equal_prompt_rows_on_the_cpu(plain: Plain, width: int) -> None:
    assert plain.engine.loaded.device.limits.prompt_equals_window
    session = plain.session()
    for at in range(0, len(plain.tokens), width):
        part = plain.tokens[at : at + width]
        found = plain.engine.window(session, part, media=plain.shown(at, len(part)))
        plain.check(found, at, f"windows of {width}")
        # The next window settles this one; asking for the hash settles at once. Both must leave the same
        # state.
        if at // width % 2 == 0:
            assert plain.engine.runner.state_hash(session) == plain.states[at + len(part) - 1], (
                f"width {width}"
            )
    assert plain.engine.runner.state_hash(session) == plain.states[-1]
    session.close()


@pytest.mark.parametrize("seed", range(4))
def test_row_law_neighbours_index_and_pages_change_nothing(plain: Plain, seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine, tokens = plain.engine, plain.tokens
    strangers = [rng.integers(0, 100, len(tokens), np.int32) for _ in range(2)]
    sessions = [plain.session(), engine.session(), engine.session()]
    at = [0, 0, 0]
    while at[0] < len(tokens):
        # Pages are handed out in another order each time; our rows stand first, in the middle or last.
        order = rng.permutation(3)
        parts: list[tuple[int, Tokens, bool]] = []
        ours = -1
        for who in order:
            source = tokens if who == 0 else strangers[who - 1]
            n = min(int(rng.integers(1, 20)), len(source) - at[who])
            if n == 0 or (who != 0 and rng.random() < 0.3):
                continue
            ours = len(parts) if who == 0 else ours
            parts.append((who, source[at[who] : at[who] + n], bool(rng.random() < 0.5)))
        found = engine.forward(
            [(sessions[who], rows, window) for who, rows, window in parts],
            [plain.shown(at[0], len(rows)) if who == 0 else [] for who, rows, _ in parts],
        )
        for who, rows, window in parts:
            if window:
                sessions[who].keep(len(rows))
            at[who] += len(rows)
        plain.check(found[ours], at[0] - len(found[ours]), f"seed {seed}")
    assert engine.runner.state_hash(sessions[0]) == plain.states[-1], f"seed {seed}"
    for session in sessions:
        session.close()


def test_row_law_worker_count_and_order_of_independent_work_change_nothing(plain: Plain) -> None:
    loaded = plain.engine.loaded
    for threads, shuffle in ((1, 0), (2, 0), (3, 1), (2, 99)):
        path = loaded.device.name.split("(")[1].split(",")[0]
        other = Engine(loaded.checkpoint.path, path, loaded.dtype, threads=threads, shuffle_seed=shuffle)
        plain.check(
            other.alone(plain.tokens, 64, plain.frame), 0, f"{threads} workers, shuffle seed {shuffle}"
        )


@pytest.mark.parametrize("seed", range(6))
def test_settlement_rejected_rows_leave_no_trace(plain: Plain, seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine, tokens = plain.engine, plain.tokens
    session = plain.session()
    prompt = int(rng.integers(1, 40))
    plain.prompt(session, 0, prompt)
    at = prompt
    while at < len(tokens):
        n_right = min(int(rng.integers(0, 9)), len(tokens) - at)
        n_wrong = int(rng.integers(0 if n_right else 1, 9))
        rows = np.concatenate([tokens[at : at + n_right], rng.integers(0, 100, n_wrong, np.int32)])
        found = engine.window(session, rows, n_right, plain.shown(at, n_right))
        plain.check(found[:n_right], at, f"seed {seed}")
        at += n_right
        if rng.random() < 0.3 and at:
            assert engine.runner.state_hash(session) == plain.states[at - 1], f"seed {seed}, at {at}"
        if rng.random() < 0.1 and at < len(tokens):  # a prompt chunk in between, as after preemption
            plain.check(plain.prompt(session, at, 1), at, f"seed {seed}")
            at += 1
    assert engine.runner.state_hash(session) == plain.states[-1], f"seed {seed}"
    session.close()


def test_a_sequence_left_out_of_passes_keeps_its_unsettled_rows(plain: Plain) -> None:
    engine, tokens = plain.engine, plain.tokens
    ours, other = plain.session(), engine.session()
    plain.check(engine.window(ours, tokens[:9], 5, plain.shown(0, 5))[:5], 0, "first window")
    for _ in range(3):
        engine.window(other, tokens[40:50])
    plain.check(plain.prompt(ours, 5, 25), 5, "after passes of another sequence")
    assert engine.runner.state_hash(ours) == plain.states[29]
    ours.close()
    other.close()


def test_the_comparison_catches_one_unit_in_the_last_place_of_a_logit(plain: Plain) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        row, column = int(rng.integers(ROWS)), int(rng.integers(plain.logits.shape[1]))
        planted = plain.logits.copy()
        planted[row, column] = np.nextafter(planted[row, column], np.float32(np.inf))
        assert first_difference(plain.rows, row_hashes(planted)) == row
        with pytest.raises(AssertionError, match=f"row 0 \\+ {row} of the sequence differs"):
            plain.check(planted, 0, "planted")
    assert first_difference(plain.rows, row_hashes(plain.logits[:-1])) == ROWS - 1


UlpOf = Callable[[str], tuple[list[str], int]]


@pytest.fixture(scope="module")
def with_one_ulp(tmp_path_factory: pytest.TempPathFactory) -> UlpOf:
    """Row hashes and state hash of the small model, one weight moved by one unit in the last place."""
    tokens = np.random.default_rng(3).integers(0, 100, 40, np.int32)

    def run(tensor: str) -> tuple[list[str], int]:
        folder = write_random(tmp_path_factory.mktemp("ulp") / "checkpoint")
        if tensor:
            checkpoint = open_checkpoint(folder)
            view = checkpoint.tensors[tensor]
            file = Path(checkpoint.files[view.file])
            data = bytearray(file.read_bytes())
            data[view.offset] ^= 1
            file.write_bytes(data)
        engine = Engine(folder)
        session = engine.session()
        logits = engine.prompt(session, tokens)
        return row_hashes(logits), engine.runner.state_hash(session)

    return run


MOVED = (
    "layers.0.linear_attn.in_proj_qkv.weight",
    "layers.2.linear_attn.A_log",
    "layers.3.self_attn.v_proj.weight",
    "layers.3.self_attn.k_norm.weight",
    "layers.3.self_attn.indexer.k_layernorm.weight",
    "layers.1.ple.value_proj.weight",
)


@pytest.mark.parametrize("tensor", MOVED)
def test_the_state_hash_catches_one_unit_in_the_last_place_of_a_weight(
    with_one_ulp: UlpOf, tensor: str
) -> None:
    rows, state = with_one_ulp("")
    moved_rows, moved_state = with_one_ulp(tensor)
    assert moved_state != state
    if "indexer" not in tensor:  # a block's score moves no logit unless it changes the selection
        assert first_difference(rows, moved_rows) is not None


def test_two_loads_of_one_checkpoint_give_one_hash(with_one_ulp: UlpOf) -> None:
    assert with_one_ulp("") == with_one_ulp("")
