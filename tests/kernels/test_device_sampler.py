"""The device's sampler against the reference sampler, token for token and bit for bit, on every instruction
path."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flashnext import _core as core
from support.engine import PATHS

Float32 = npt.NDArray[np.float32]
BLOCK = 1024
MAX_TOP = 20
VOCAB = 248_320


@cache
def device(path: str) -> core.Device:
    return core.open_device("cpu", 2, path)


each_path = pytest.mark.parametrize("path", PATHS)


@dataclass(frozen=True)
class Row:
    """A row to draw: its logits, its rules, and the tokens that are known of its reply."""

    logits: Float32
    rules: dict[str, Any] = field(default_factory=dict)
    position: int = 0
    prompt: list[int] = field(default_factory=list)
    reply: list[int] = field(default_factory=list)
    uncounted: list[int] = field(default_factory=list)
    mask: npt.NDArray[np.bool_] | None = None  # the ids that a grammar allows

    def expected(self, n_valid: int) -> int:
        logits = self.logits.copy()
        if self.mask is not None:
            logits[:n_valid][~self.mask[:n_valid]] = np.nan
        if np.isnan(logits[:n_valid]).all():
            return -1
        return core.testing.draw(
            logits,
            n_valid,
            core.Sampling(**self.rules),
            self.position,
            prompt=self.prompt,
            reply=self.reply + self.uncounted,
        )


def on_device(
    path: str, rows: list[Row], n_valid: int
) -> list[tuple[int, float, list[tuple[int, float]], int]]:
    given = [
        (core.Sampling(**r.rules), r.position, r.prompt, r.reply, r.uncounted, words_of(r.mask, n_valid))
        for r in rows
    ]
    return core.testing.draw_rows(device(path), np.stack([r.logits for r in rows]), n_valid, given)


def words_of(mask: npt.NDArray[np.bool_] | None, n_valid: int) -> list[int]:
    """A mask as the core takes it; none for no mask."""
    if mask is None:
        return []
    padded = np.zeros(-(-n_valid // 32) * 32, bool)
    padded[:n_valid] = mask[:n_valid]
    words: list[int] = np.packbits(padded, bitorder="little").view(np.uint32).tolist()
    return words


def same_bits(found: float, expected: float) -> bool:
    a, b = np.float32(found), np.float32(expected)
    return bool(np.isnan(a) and np.isnan(b)) or a.tobytes() == b.tobytes()


def check(path: str, rows: list[Row], n_valid: int, note: str) -> None:
    """Draws, log-probabilities and hashes of all rows equal the reference's."""
    for i, (row, (token, chosen, top, digest)) in enumerate(
        zip(rows, on_device(path, rows, n_valid), strict=True)
    ):
        where = f"{note}, row {i} of {len(rows)}, {n_valid} ids, {row.rules}"
        assert token == row.expected(n_valid), where
        n_top = row.rules.get("logprobs", -1)
        if n_top < 0 or np.isnan(row.logits[:n_valid]).all():
            assert np.isnan(chosen) and top == [], where
        else:
            value, listed = core.testing.logprobs(row.logits, n_valid, max(token, 0), min(n_top, MAX_TOP))
            assert same_bits(chosen, value) if token >= 0 else np.isnan(chosen), where
            assert [t for t, _ in top] == [t for t, _ in listed], where
            assert all(same_bits(x, y) for (_, x), (_, y) in zip(top, listed, strict=True)), where
        assert digest == hash_of(row.logits[:n_valid]), where


def hash_of(logits: Float32) -> int:
    """The sum over ids of SplitMix64(id * 2^32 + bits of the logit), modulo 2^64."""
    x = np.arange(len(logits), dtype=np.uint64) << np.uint64(32) | logits.view(np.uint32).astype(np.uint64)
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))).sum(dtype=np.uint64))


def random_logits(rng: np.random.Generator, vocab: int) -> Float32:
    """Logits of many kinds: peaked, flat, tied, with infinities and NaN."""
    logits: Float32 = (rng.standard_normal(vocab) * rng.choice([1e-3, 0.5, 3, 12, 200])).astype(np.float32)
    kind = int(rng.integers(0, 12))
    some = rng.integers(0, vocab, max(1, vocab // int(rng.choice([2, 10, 100]))))
    if kind == 0:
        logits = np.round(logits)
    elif kind == 1:
        logits[some] = np.nan
    elif kind == 2:
        logits[some] = -np.inf
    elif kind == 3:
        logits[some[:2]] = np.inf
    elif kind == 4:
        logits[:] = rng.choice([0.0, -0.0, 7.5, -np.inf, np.inf, np.nan])
    elif kind == 5:
        logits = np.sort(logits)[:: int(rng.choice([-1, 1]))].copy()
    elif kind == 6:
        logits = rng.choice(np.array([0.0, -0.0, 1.0], np.float32), vocab)
    elif kind == 7:
        logits[:] = np.nan
        logits[some[:3]] = rng.choice(np.array([-np.inf, 1.0, -0.0, np.inf], np.float32), len(some[:3]))
    elif kind == 8:
        with np.errstate(over="ignore"):
            logits *= np.float32(1e36)  # differences may not be finite
    return logits


def random_rules(rng: np.random.Generator, n_valid: int) -> dict[str, Any]:
    """Rules of any sort, each of them in force about half of the time."""

    def sometimes(other: Any, *values: Any) -> Any:
        return values[int(rng.integers(len(values)))] if rng.random() < 0.5 else other

    ids = rng.integers(0, n_valid, int(rng.integers(1, 6)))
    return {
        "temperature": float(
            rng.choice(
                [0.0, 0.0, 1.0, 1.0, rng.uniform(0.2, 2), rng.uniform(2, 50), 1e-3, 1e-30, 1e-45, 1e30]
            )
        ),
        "top_k": int(sometimes(0, 1, 2, 20, rng.integers(1, 2 * n_valid + 2), n_valid, n_valid + 1)),
        "top_p": float(sometimes(1.0, 0.95, rng.uniform(0.01, 1), 1e-6, 1 - 2**-24, 0.5)),
        "min_p": float(sometimes(0.0, rng.uniform(0, 0.3), 1.0, 0.05, 1e-6, 1e-40)),
        "seed": int(rng.integers(0, 2**63)),
        "presence": float(sometimes(0.0, rng.uniform(-2, 2), 1e30)),
        "frequency": float(sometimes(0.0, rng.uniform(-2, 2), -1e30)),
        "repetition": float(sometimes(1.0, rng.uniform(0.5, 2), 1e30, 1e-30)),
        "bias": sometimes({}, {int(i): float(rng.uniform(-9, 9)) for i in ids}),
        "logprobs": int(sometimes(-1, 0, 1, 5, 20)),
    }


def random_row(rng: np.random.Generator, vocab: int, n_valid: int) -> Row:
    def tokens(most: int) -> list[int]:
        # Few distinct ones, so that they repeat; and some among the likeliest.
        pool = rng.integers(0, n_valid, 5)
        return [int(t) for t in rng.choice(pool, int(rng.integers(0, most)))]

    logits = random_logits(rng, vocab)
    reply, uncounted = tokens(30), tokens(16)
    if rng.random() < 0.5:
        likely = int(np.nan_to_num(logits[:n_valid], nan=-np.inf).argmax())
        (reply if rng.random() < 0.5 else uncounted).append(likely)
    mask = None
    if rng.random() < 0.4:
        mask = rng.random(vocab) < rng.choice([0.0, 2 / vocab, 0.1, 0.5, 0.99])
        at = int(rng.integers(0, vocab))
        mask[at : at + BLOCK] = rng.random() < 0.5
    return Row(
        logits,
        random_rules(rng, n_valid),
        int(rng.integers(len(uncounted), 2**31 - 1)),
        tokens(30),
        reply,
        uncounted,
        mask,
    )


SIZES = (1, 2, 7, 8, 9, 31, 300, 1000, 1023, 1024, 1025, 2500, 8191, 8192, 8193, 20_000)


@each_path
@pytest.mark.parametrize("seed", range(150))
def test_any_rows_equal_the_reference(path: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab = int(rng.choice(SIZES[:12] if seed % 10 else SIZES[12:]))
    n_valid = max(1, vocab - int(rng.choice([0, 0, 1, 5, vocab // 3])))
    n_rows = int(rng.choice([1, 2, 5, 33, 64] if seed % 10 else [3, 6]))
    rows = [random_row(rng, vocab, n_valid) for _ in range(n_rows)]
    check(path, rows, n_valid, f"seed {seed}")


@each_path
@pytest.mark.parametrize("seed", range(4))
def test_rows_of_the_real_vocabulary_equal_the_reference(path: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_valid = VOCAB - 243
    logits = (rng.standard_normal(VOCAB) * (1, 2.2, 3, 9)[seed]).astype(np.float32)
    some = rng.integers(0, n_valid, 400).tolist()
    rules: tuple[dict[str, Any], ...] = (
        {"temperature": 0, "logprobs": 20},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.95},
        {"top_k": 1000},
        {"top_p": 0.95, "logprobs": 5},
        {"top_p": 0.5},
        {"top_p": 1 - 2**-20},
        {"min_p": 0.05, "bias": {n_valid - 1: 4.0}},
        {"temperature": 1.3, "presence": 0.5, "frequency": 0.2, "repetition": 1.1, "top_p": 0.9},
    )
    rows = [
        Row(logits, {**r, "seed": int(rng.integers(0, 2**63))}, 5000, some[:200], some[100:], some[:7])
        for r in rules
    ]
    check(path, rows, n_valid, f"seed {seed}")


@each_path
def test_a_row_whose_mask_allows_nothing_draws_no_token(path: str) -> None:
    logits = np.arange(1500, dtype=np.float32)
    none, one = np.zeros(1500, bool), np.arange(1500) == 77
    rows = [
        Row(logits, {"temperature": t, "logprobs": 2, **r}, 5, mask=mask)
        for mask in (none, one)
        for t in (0.0, 1.0)
        for r in ({}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5})
    ]
    check(path, rows, 1500, "masked")
    assert [token for token, *_ in on_device(path, rows, 1500)] == [-1] * 8 + [77] * 8


@each_path
def test_greedy_and_sampled_rows_share_a_call(path: str) -> None:
    rng = np.random.default_rng(5)
    rows = [
        Row((rng.standard_normal(3000) * 3).astype(np.float32), {"temperature": float(i % 2), "seed": i}, i)
        for i in range(64)
    ]
    check(path, rows, 3000, "alternating")
    tokens = [token for token, *_ in on_device(path, rows, 3000)]
    best = [int(row.logits.argmax()) for row in rows]
    assert tokens[::2] == best[::2] and tokens[1::2] != best[1::2]


@each_path
def test_a_row_is_drawn_alike_in_any_company(path: str) -> None:
    rng = np.random.default_rng(6)
    rows = [random_row(rng, 2500, 2490) for _ in range(24)]
    together = on_device(path, rows, 2490)
    turned = on_device(path, rows[::-1], 2490)[::-1]
    alone = [on_device(path, [row], 2490)[0] for row in rows]
    # NaN is not equal to itself, so as text.
    assert str(together) == str(turned) == str(alone)


@each_path
def test_drafts_before_a_row_count_as_reply_tokens(path: str) -> None:
    logits = np.array([2.0, 1.95, 1.9, 0.0], np.float32)
    rules = {"temperature": 0, "presence": 0.15}
    rows = [Row(logits, rules, 40, uncounted=drafts) for drafts in ([], [0], [0, 1], [0, 1, 2])]
    assert [token for token, *_ in on_device(path, rows, 4)] == [0, 1, 2, 0]
    often = [
        Row(logits, {"temperature": 0, "frequency": 0.03}, 40, reply=[0], uncounted=[0] * n) for n in (0, 1)
    ]
    assert [token for token, *_ in on_device(path, often, 4)] == [0, 1]


@each_path
def test_noise_depends_on_the_position(path: str) -> None:
    logits = np.zeros(5000, np.float32)
    rows = [Row(logits, {"seed": 3}, at) for at in range(60)]
    tokens = [token for token, *_ in on_device(path, rows, 5000)]
    assert tokens == [row.expected(5000) for row in rows] and len(set(tokens)) > 50


@each_path
@pytest.mark.parametrize("rules", ({}, {"top_k": 4999}, {"top_p": 1 - 2**-24}, {"min_p": 1e-8}), ids=str)
def test_an_id_far_below_the_best_is_drawn_where_its_noise_is_the_largest_there_is(
    path: str, rules: dict[str, Any]
) -> None:
    # Seed 1 gives these ids -log(-log(1 - 2^-24)) = 16.64 at these positions; found by trying them all.
    for position, far in ((711, 4538), (836, 18412), (2578, 15711), (2695, 16030)):
        assert core.testing.gumbel(1, position, far) == pytest.approx(16.6355, abs=1e-4)
        logits = np.full(20_000, -15.0, np.float32)
        logits[0] = 0
        row = Row(logits, {"seed": 1, **rules}, position)
        (token, *_), expected = on_device(path, [row], 20_000)[0], row.expected(20_000)
        assert token == expected
        if "top_k" not in rules and "top_p" not in rules:  # these cut some
            assert token == far


@each_path
@pytest.mark.parametrize("rules", ({}, {"top_k": 2999}, {"top_p": 1 - 2**-24}), ids=str)
def test_equal_noise_goes_to_the_lower_id(path: str, rules: dict[str, Any]) -> None:
    # Seed 1 gives both ids the same noise at this position, the largest of 3,000; found by trying.
    position, low, high = 25616, 2082, 2651
    assert core.testing.gumbel(1, position, low) == core.testing.gumbel(1, position, high)
    ascending = np.arange(3000, dtype=np.float32)  # distances vanish beside the noise
    for logits in (ascending, ascending[::-1].copy(), np.zeros(3000, np.float32)):
        row = Row(logits, {"seed": 1, "temperature": 1e30, **rules}, position)
        assert on_device(path, [row], 3000)[0][0] == row.expected(3000) == low


@each_path
def test_a_row_without_numbers_draws_no_token(path: str) -> None:
    nan = np.full(1500, np.nan, np.float32)
    nan[1400:] = 1  # beyond the valid ids
    rows = [Row(nan, {"temperature": t, **r}) for t in (0.0, 1.0) for r in ({}, {"top_k": 5}, {"top_p": 0.5})]
    assert [token for token, *_ in on_device(path, rows, 1400)] == [-1] * 6


def test_hashes_tell_one_bit_and_its_place() -> None:
    logits = np.arange(2000, dtype=np.float32)
    changed = logits.copy()
    changed.view(np.uint32)[77] ^= 1
    swapped = logits.copy()
    swapped[[5, 1999]] = swapped[[1999, 5]]
    rows = [Row(x) for x in (logits, changed, swapped)]
    digests = [digest for *_, digest in on_device(PATHS[0], rows, 2000)]
    assert len(set(digests)) == 3
    # What lies beyond the valid ids is no part of it.
    assert len({digest for *_, digest in on_device(PATHS[0], rows[:2], 77)}) == 1


def test_more_ids_than_the_sampler_has_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 258048"):
        on_device(PATHS[0], [Row(np.zeros(258_049, np.float32))], 258_049)
