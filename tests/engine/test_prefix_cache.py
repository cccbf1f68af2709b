"""The prefix cache's policy: what is found, counted, dropped and evicted, against a naive dictionary."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flashnext.engine import radix
from flashnext.engine.marks import Kind, Place, places
from flashnext.engine.prefix_cache import CacheOptions, KeptMark, PrefixCache
from flashnext.engine.radix import Keys, RadixTree, row_keys, shared_rows
from flashnext.text.turns import Turns
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

PAGE = 4
BLOCK_BYTES, PAGE_BYTES = 100, 7
IDS = itertools.count(1)


@dataclass(eq=False)
class FakeSnapshot:
    n: int
    page_ids: tuple[int, ...]
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


@dataclass
class Sequence_:
    """What a session would do: rows, and a page for each PAGE of them."""

    rows: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)

    def read(self, rows: Sequence[int]) -> None:
        self.rows += rows
        while len(self.pages) * PAGE < len(self.rows):
            self.pages.append(next(IDS))

    def snapshot(self, n: int) -> FakeSnapshot:
        return FakeSnapshot(n, tuple(self.pages[: -(-n // PAGE)]))

    @classmethod
    def resumed(cls, rows: Sequence[int], snapshot: Any) -> Sequence_:
        """Share all pages but the one with the last row, which is copied."""
        n_shared = (snapshot.n - 1) // PAGE
        out = cls(list(rows[: n_shared * PAGE]), list(snapshot.page_ids[:n_shared]))
        out.read(rows[n_shared * PAGE :])
        return out


def keys(rows: Sequence[int]) -> Keys:
    return row_keys(np.array(rows, np.int32))


def cache(limit: int = 10**9, **more: Any) -> PrefixCache:
    return PrefixCache(limit, BLOCK_BYTES, PAGE_BYTES, CacheOptions(page=PAGE, **{"spacing": 0, **more}))


def add(
    kept: PrefixCache, rows: Sequence[int], kind: Kind = Kind.END, cost_s: float | None = None, now: float = 0
) -> KeptMark | None:
    """Keep a snapshot of a session of its own."""
    sequence = Sequence_()
    sequence.read(rows)
    snapshot = sequence.snapshot(len(rows))
    return kept.insert(keys(rows), kind, snapshot, len(rows) if cost_s is None else cost_s, now)


def found(kept: PrefixCache, rows: Sequence[int]) -> int:
    mark = kept.find(keys(rows))
    return mark.n if mark else 0


def order_of_going(kept: PrefixCache, spare: Sequence[KeptMark] = ()) -> list[KeptMark]:
    """Let all marks give way, one by one."""
    order: list[KeptMark] = []
    before = set(kept.marks)
    while kept.give_way(0.0, spare):
        order += before - set(kept.marks)
        before = set(kept.marks)
    return order


# --- what is found


def test_the_deepest_mark_below_the_last_row_is_found() -> None:
    kept = cache()
    rows = list(range(1, 30))
    for n in (3, 4, 9, 20):
        add(kept, rows[:n])
    assert [found(kept, rows[:n]) for n in (1, 3, 4, 5, 9, 10, 20, 21, 29)] == [0, 0, 3, 4, 4, 9, 9, 20, 20]
    assert found(kept, [*rows[:8], 99, 98]) == 4
    assert found(kept, [*rows[:9], 99, 98]) == 9
    assert found(kept, [99, *rows]) == 0


def test_media_rows_are_keys_like_others() -> None:
    kept = cache()
    picture, other = np.array([-(2**62), -(2**62) + 1]), np.array([-(2**62), -(2**62) + 2])
    text = keys([1, 2, 3])
    rows = np.concatenate([text, picture, text])
    sequence = Sequence_()
    sequence.read(rows.tolist())
    kept.insert(rows, Kind.END, sequence.snapshot(len(rows)), 1.0, 0.0)
    assert kept.find(np.concatenate([rows, text])) is not None
    assert kept.find(np.concatenate([text, other, text, text])) is None


# --- what is counted


def test_a_page_of_several_snapshots_counts_once() -> None:
    kept = cache()
    sequence = Sequence_()
    sequence.read(range(16))
    for n in (6, 8, 15):
        kept.insert(keys(range(n)), Kind.END, sequence.snapshot(n), n, 0)
    assert kept.blocks_bytes == 3 * BLOCK_BYTES
    assert kept.pages_bytes == 4 * PAGE_BYTES
    first = kept.find(keys(range(7)))
    assert first is not None and first.value.snapshot is not None
    other = Sequence_.resumed(range(6), first.value.snapshot)
    other.read([50, 51, 52, 53])
    kept.insert(keys(other.rows), Kind.END, other.snapshot(10), 10, 0)
    assert kept.pages_bytes == (4 + 2) * PAGE_BYTES  # the page with row 5 is a copy


def test_a_mark_that_is_there_is_not_kept_twice() -> None:
    kept = cache()
    first = add(kept, [1, 2, 3, 4, 5])
    sequence = Sequence_()
    sequence.read([1, 2, 3, 4, 5])
    again = sequence.snapshot(5)
    assert kept.insert(keys(sequence.rows), Kind.SYSTEM, again, 5.0, 1.0) is first
    assert again.closed == 1
    assert first is not None and first.value.kind == Kind.SYSTEM
    assert kept.size_bytes == BLOCK_BYTES + 2 * PAGE_BYTES


# --- what goes first


def test_least_time_for_most_bytes_goes_first() -> None:
    kept = cache()
    cheap = add(kept, [1] * 40, cost_s=1.0)
    dear = add(kept, [2] * 40, cost_s=5.0)
    small = add(kept, [3] * 8, cost_s=1.0)
    # 1 s in 170 bytes, 1 s in 114 bytes, 5 s in 170 bytes
    assert order_of_going(kept) == [cheap, small, dear]


def test_age_halves_what_a_mark_is_worth() -> None:
    kept = cache(half_life_s=10.0)
    old = add(kept, [1] * 40, cost_s=3.0, now=0)
    new = add(kept, [2] * 40, cost_s=1.0, now=20)
    assert old is not None and new is not None
    assert kept.usefulness(old, 20) == pytest.approx(3 / 4 / 170)
    kept.give_way(20.0)
    assert list(kept.marks) == [new]


def test_a_mark_is_worth_what_it_saves_over_the_next_shallower_one() -> None:
    kept = cache()
    sequence = Sequence_()
    sequence.read(range(40))
    marks = [
        kept.insert(keys(range(n)), Kind.END, sequence.snapshot(n), cost, 0)
        for n, cost in ((10, 4.0), (20, 5.0), (40, 9.0))
    ]
    rates = [kept.usefulness(mark, 0) for mark in marks if mark]
    # Of the first two another has all pages.
    assert rates == pytest.approx([4 / 100, 1 / 100, 4 / (100 + 5 * 7)])
    kept.give_way(0.0)
    assert [mark.n for mark in kept.marks] == [10, 40]
    assert kept.usefulness(list(kept.marks)[1], 0) == pytest.approx(5 / (100 + 7 * 7))


def test_pinned_marks_go_last_and_those_to_be_spared_before_nothing_else() -> None:
    kept = cache()
    system = add(kept, [1] * 8, Kind.SYSTEM, cost_s=0.1)
    spared = add(kept, [2] * 8, cost_s=0.1)
    other = add(kept, [3] * 8, cost_s=50.0)
    assert system is not None and spared is not None
    assert not system.value.pinned
    for behind, pinned in (([7, 7], False), ([7, 7, 8], False), ([], False), ([7, 8], True)):
        kept.use(system, keys(behind), 0.0)  # others begin with it once one goes on otherwise
        assert system.value.pinned is pinned
    assert order_of_going(kept, [spared]) == [other, system, spared]


def test_pins_take_no_more_than_their_part() -> None:
    kept = cache(6 * (BLOCK_BYTES + 2 * PAGE_BYTES))
    marks = [add(kept, [i] * 8, Kind.SYSTEM, cost_s=i) for i in range(1, 7)]
    for mark in marks:
        assert mark is not None
        kept.use(mark, keys([1]), 0.0)
        kept.use(mark, keys([2]), 0.0)
    assert [mark.value.pinned for mark in marks if mark] == [False, False, False, True, True, True]


def test_the_conversation_that_made_a_system_prompt_does_not_pin_it() -> None:
    kept = cache()
    sequence = Sequence_()
    sequence.read([1] * 8)
    mark = kept.insert(keys([1] * 8), Kind.SYSTEM, sequence.snapshot(8), 1.0, 0.0, keys([5, 6]))
    assert mark is not None
    for _ in range(3):
        kept.use(mark, keys([5, 6, 7]), 0.0)
        assert not mark.value.pinned
    kept.use(mark, keys([5, 7]), 0.0)
    assert mark.value.pinned


def test_many_marks_go_without_each_being_rated_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = cache()
    for i in range(1000):
        add(kept, [i] * 4, cost_s=i + 1)
    n_rated = [0]
    rate = kept.usefulness

    def counted(mark: KeptMark, now_s: float) -> float:
        n_rated[0] += 1
        return rate(mark, now_s)

    monkeypatch.setattr(kept, "usefulness", counted)
    kept.limit_bytes = kept.size_bytes // 10
    kept.make_room(0, 0.0)
    assert kept.size_bytes <= kept.limit_bytes
    assert sorted(kept.keys_of(mark)[0] for mark in kept.marks) == list(range(900, 1000))
    assert n_rated[0] < 100 * 1000


def test_what_is_on_its_way_does_not_keep_a_smaller_cache_from_shrinking() -> None:
    kept = cache()
    for i in range(1, 5):
        add(kept, [i] * 8)
    kept.promised_bytes = 3 * (BLOCK_BYTES + 2 * PAGE_BYTES)
    kept.limit_bytes = kept.size_bytes
    assert not kept.make_room(kept.limit_bytes, 0.0) and len(kept.marks) == 4, "evicted in vain"
    kept.make_room(0, 0.0)
    assert kept.size_bytes + kept.promised_bytes <= kept.limit_bytes and len(kept.marks) == 1
    kept.limit_bytes = kept.promised_bytes - 1
    kept.make_room(0, 0.0)
    assert kept.size_bytes == 0


def test_nothing_is_kept_beyond_the_limit() -> None:
    kept = cache(2 * BLOCK_BYTES + 4 * PAGE_BYTES)
    for i in range(5):
        assert add(kept, [i] * 8, now=i) is not None
        assert kept.size_bytes <= kept.limit_bytes
    assert found(kept, [4] * 9) == 8
    assert add(kept, [9] * 400) is None  # never
    assert cache(0).wanted(keys(range(100)), [Place(50, Kind.END)]) == ()


def test_nothing_is_evicted_in_vain() -> None:
    kept = cache(3 * BLOCK_BYTES)
    add(kept, [1] * 8)
    assert not kept.make_room(3 * BLOCK_BYTES + 1, 0.0)
    assert len(kept.marks) == 1


# --- which places are wanted


def wanted(kept: PrefixCache, n: int, *at: Place) -> list[int]:
    return [place.n for place in kept.wanted(keys(range(n)), at)]


def test_close_marks_are_left_out_save_the_newest_two_and_the_system_prompt() -> None:
    kept = cache(spacing=10)
    at = [Place(n, Kind.MESSAGE) for n in (5, 12, 30, 36, 41, 43)]
    assert wanted(kept, 50, *at) == [5, 30, 41, 43]
    assert wanted(kept, 50, *at[:2], Place(14, Kind.SYSTEM), *at[2:]) == [5, 14, 30, 41, 43]


def test_places_that_are_kept_are_not_wanted_again() -> None:
    kept = cache(spacing=10)
    add(kept, list(range(30)))
    assert wanted(kept, 50, *(Place(n, Kind.MESSAGE) for n in (22, 30, 41, 43))) == [41, 43]


def test_of_few_marks_the_best_reasons_count() -> None:
    kept = cache(2 * BLOCK_BYTES + 21 * PAGE_BYTES)
    at = (Place(20, Kind.SYSTEM), Place(50, Kind.SPACED), Place(70, Kind.TURN), Place(80, Kind.END))
    assert [place.n for place in kept.wanted(keys(range(100)), at)] == [20, 80]


def test_older_marks_of_a_chat_are_spaced_as_it_goes_on() -> None:
    kept = cache(spacing=10)
    sequence = Sequence_()
    sequence.read(range(60))
    for n in (3, 20, 24, 28, 33, 50):
        kept.insert(keys(range(n)), Kind.END, sequence.snapshot(n), n, 0)
    assert sorted(mark.n for mark in kept.marks) == [3, 20, 33, 50]


def test_marks_thin_out_with_age() -> None:
    kept = cache(spacing=10, thin_s=100.0)
    sequence = Sequence_()
    sequence.read(range(100))
    for n in (5, 20, 35, 50, 65, 80, 95):
        kept.insert(keys(range(n)), Kind.END, sequence.snapshot(n), n, 0)
    assert len(kept.marks) == 7
    kept.thin(100.0)  # 20 tokens apart
    assert sorted(mark.n for mark in kept.marks) == [5, 35, 65, 80, 95]
    kept.thin(10_000.0)
    assert sorted(mark.n for mark in kept.marks) == [5, 80, 95]


@pytest.mark.parametrize("idle_s", [1e6, 1e9, 1e300])
def test_an_engine_may_idle_for_as_long_as_it_likes(idle_s: float) -> None:
    kept = cache()
    sequence = Sequence_()
    sequence.read(range(100))
    for n in (5, 35, 65, 95):
        kept.insert(keys(range(n)), Kind.END, sequence.snapshot(n), n, 0)
    kept.thin(idle_s)
    assert kept.to_store(1 << 40, idle_s, 0) is not None
    kept.use(next(iter(kept.marks)), keys([1, 2]), idle_s)
    assert kept.make_room(BLOCK_BYTES, idle_s)


# --- where prompts part


def test_a_prompt_gets_a_mark_where_it_leaves_one_that_was_read() -> None:
    kept = cache(spacing=1000, least_parted=6)
    sequence = Sequence_()
    sequence.read(range(40))
    kept.insert(keys(range(39)), Kind.END, sequence.snapshot(39), 39, 0)
    other = keys([*range(20), 77, 78, 79, 80])
    assert kept.parting(other, 0) == Place(20, Kind.PARTED)
    assert kept.parting(other, 14) == Place(20, Kind.PARTED) and kept.parting(other, 15) is None
    assert kept.parting(keys(range(40)), 0) == Place(39, Kind.PARTED)
    assert kept.parting(keys(range(30)), 0) == Place(29, Kind.PARTED)  # the last one is always read
    assert kept.parting(keys([*range(3), 77, 78, 79, 80]), 0) is None  # less than a page
    places = (Place(8, Kind.TURN), Place(20, Kind.PARTED), Place(23, Kind.END))
    assert kept.wanted(other, places) == places  # however close they lie


def test_chats_under_one_system_prompt_are_not_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = cache(least_parted=2 * PAGE)
    for first in range(100, 300):
        add(kept, [*range(40), first, *range(9)])
    n_compared = 0

    def counted(a: Keys, b: Keys) -> int:
        nonlocal n_compared
        n_compared += 1
        return shared_rows(a, b)

    monkeypatch.setattr(radix, "shared_rows", counted)
    prompt = keys([*range(40), 77, 78, 79, 80])
    assert kept.parting(prompt, 40) is None
    assert n_compared <= 2
    assert kept.parting(prompt, 0) == Place(40, Kind.PARTED)


def test_a_long_parting_is_written_when_it_would_go_and_not_at_once() -> None:
    kept = cache()
    long, short, system = (
        add(kept, range(first, first + n), kind)
        for first, n, kind in ((0, 40, Kind.PARTED), (100, 8, Kind.PARTED), (200, 80, Kind.SYSTEM))
    )
    assert long is not None and short is not None and system is not None
    most = kept.bytes_of(8)
    assert kept.to_store(0, 0.0, kept.bytes_of(40)) is system
    system.value.stored = True
    assert kept.to_store(0, 0.0, most - 1) is None
    assert kept.to_store(0, 0.0, most) is short
    short.value.stored = True
    assert kept.to_store(0, 0.0, most) is None
    assert kept.to_store(0, 0.0, kept.bytes_of(40)) is long
    assert kept.to_store(kept.limit_bytes, 0.0, most) is long


# --- where places lie


def test_places_of_tokens_are_a_few_thousand_apart_and_leave_the_last_one() -> None:
    assert [(p.n, p.kind) for p in places(9000)] == [
        (4096, Kind.SPACED),
        (8192, Kind.SPACED),
        (8999, Kind.END),
    ]
    assert places(20) == ()


def test_places_of_a_chat_are_its_turns() -> None:
    turns = Turns(system=40, newest=300, messages=(120, 300), next_turn=340)
    assert [(p.n, p.kind.name) for p in places(345, turns)] == [
        (40, "SYSTEM"),
        (120, "MESSAGE"),
        (300, "TURN"),
        (340, "END"),
    ]


# --- against a dictionary


@dataclass(eq=False)
class Naive:
    """A mark of the oracle."""

    rows: tuple[int, ...]
    kind: Kind
    cost_s: float
    used_s: float
    pages: tuple[int, ...]
    pinned: bool = False


class Oracle:
    """A dictionary of all prefixes, searched in full each time."""

    def __init__(self, limit: int, half_life_s: float) -> None:
        self.limit, self.half_life_s = limit, half_life_s
        self.marks: dict[tuple[int, ...], Naive] = {}

    def find(self, rows: Sequence[int]) -> int:
        return max(
            (len(r) for r in self.marks if len(r) < len(rows) and tuple(rows[: len(r)]) == r), default=0
        )

    def size(self, without: Naive | None = None) -> int:
        held = [mark for mark in self.marks.values() if mark is not without]
        pages = {page for mark in held for page in mark.pages}
        return len(held) * BLOCK_BYTES + len(pages) * PAGE_BYTES

    def evict(self, now_s: float, keep: Naive | None) -> Naive | None:
        def rate(mark: Naive) -> tuple[bool, float, int]:
            shallower = self.find(mark.rows)
            saved = mark.cost_s - (self.marks[mark.rows[:shallower]].cost_s if shallower else 0.0)
            worth = max(saved, 1e-9) * 0.5 ** ((now_s - mark.used_s) / self.half_life_s)
            return mark.pinned, worth / (self.size() - self.size(mark)), len(mark.rows)

        able = [mark for mark in self.marks.values() if mark is not keep]
        if not able:
            return None
        least = min(able, key=rate)
        del self.marks[least.rows]
        return least


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "insert", "find", "use", "give way", "limit"]),
        st.integers(0, 2**31),
    ),
    min_size=1,
    max_size=60,
)


@seed(7)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(OPERATIONS)
def test_the_cache_is_a_dictionary_of_all_prefixes(operations: list[tuple[str, int]]) -> None:
    kept = cache(12 * BLOCK_BYTES, spacing=0, half_life_s=50.0)
    oracle = Oracle(kept.limit_bytes, 50.0)
    snapshots: dict[tuple[int, ...], FakeSnapshot] = {}
    for now_s, (what, number) in enumerate(operations):
        rng = random.Random(number)
        rows = [rng.choice([1, 1, 1, 2]) for _ in range(rng.randrange(2, 26))]
        if what == "insert":
            insert(kept, oracle, snapshots, rows, rng, float(now_s))
        elif what == "use" and (mark := kept.find(keys(rows))):
            kept.use(mark, keys(rows[mark.n :]), float(now_s))
            oracle.marks[tuple(rows[: mark.n])].used_s = float(now_s)
        elif what == "give way":
            gone = oracle.evict(float(now_s), None)
            assert kept.give_way(float(now_s)) == (gone is not None)
        elif what == "limit":
            kept.limit_bytes = oracle.limit = rng.randrange(0, 20) * BLOCK_BYTES
            kept.make_room(0, float(now_s))
            while oracle.size() > oracle.limit:
                oracle.evict(float(now_s), None)
        assert found(kept, rows) == oracle.find(rows)
        assert {tuple(kept.keys_of(mark).tolist()) for mark in kept.marks} == set(oracle.marks)
        assert kept.size_bytes == oracle.size() <= max(oracle.limit, 0)
        for name, snapshot in snapshots.items():
            assert snapshot.closed == (name not in oracle.marks), "a snapshot was lost, or closed too soon"
    kept.clear()
    assert kept.size_bytes == 0 and all(snapshot.closed for snapshot in snapshots.values())
    assert kept.find(keys([1] * 30)) is None


def insert(
    kept: PrefixCache,
    oracle: Oracle,
    snapshots: dict[tuple[int, ...], FakeSnapshot],
    rows: list[int],
    rng: random.Random,
    now_s: float,
) -> None:
    """Read a prompt from the deepest mark, or from its beginning, and keep its end."""
    hit = kept.find(keys(rows))
    sequence = Sequence_()
    if hit is not None and rng.random() < 0.8:
        sequence = Sequence_.resumed(rows[: hit.n], hit.value.snapshot)
    sequence.read(rows[len(sequence.rows) :])
    snapshot, name, cost_s = sequence.snapshot(len(rows)), tuple(rows), len(rows) + rng.random()
    there = oracle.marks.get(name)
    kept.insert(keys(rows), Kind.END, snapshot, cost_s, now_s)
    if there is not None:
        assert snapshot.closed
        there.used_s = now_s
        return
    snapshots[name] = snapshot
    mark = oracle.marks[name] = Naive(name, Kind.END, cost_s, now_s, snapshot.page_ids)
    while oracle.size() > oracle.limit and oracle.evict(now_s, mark):
        pass
    if oracle.size() > oracle.limit:
        del oracle.marks[name]


@seed(8)
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**31)), min_size=1, max_size=50))
def test_the_tree_knows_what_lies_on_which_path(operations: list[tuple[bool, int]]) -> None:
    tree: RadixTree[str] = RadixTree("root", PAGE)
    naive: dict[tuple[int, ...], Any] = {}
    for adds, number in operations:
        rng = random.Random(number)
        rows = tuple(rng.choice([1, 1, 1, 2]) for _ in range(rng.randrange(1, 22)))
        if adds and rows not in naive:
            naive[rows] = tree.insert(keys(rows), "x")
        elif not adds and naive:
            tree.remove(naive.pop(rng.choice(sorted(naive))))
        for name, mark in naive.items():
            above = [r for r in naive if len(r) < len(name) and name[: len(r)] == r]
            assert mark.parent is (naive[max(above, key=len)] if above else tree.root)
            assert tuple(tree.keys_of(mark).tolist()) == name
            assert [m.n for m in tree.path(keys(name))] == sorted([*map(len, above), len(name)])
            assert mark in mark.parent.children
        alike = max((shared_rows(keys(rows), keys(name)) for name in naive), default=0)
        shared = alike if alike >= PAGE else 0
        assert tree.shared(keys(rows)) == shared
        least = rng.randrange(25)
        short = tree.shared(keys(rows), least)
        assert short == shared or short <= shared < least
