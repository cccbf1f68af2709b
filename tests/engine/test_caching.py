"""What the scheduler does with the prefix cache, over the fake core: resumes, keeps, warms, gives way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flashnext.engine.caching import TEND_S
from flashnext.engine.guard import Guard
from flashnext.engine.marks import LEAST, LEAST_NEW, Kind, Place
from flashnext.engine.reply import Chat, Said
from flashnext.engine.warm import WarmPass
from flashnext.errors import DeviceError, OutOfMemory
from support.cached import LIMIT, Bench, Clock, cached, counting, prompt
from support.fake_core import BLOCK_BYTES, PAGE, FakeCore
from support.jobs import END, Client, run

# --- going on from marks


def test_a_prompt_goes_on_from_the_deepest_mark_of_an_earlier_one() -> None:
    bench = Bench()
    assert bench.ask(prompt(40), [10, 24, 40]) == 0
    assert bench.marks() == [10, 24, 40, 42]  # the reply's end: its last token was not fed
    bench.core.chunks.clear()
    assert bench.ask([*prompt(30), 900, 901], [10, 24, 32]) == 24
    assert bench.core.chunks == [[*range(25, 31), 900, 901]]
    assert bench.core.resumes == [24]


def test_the_last_token_of_a_prompt_is_always_read() -> None:
    bench = Bench()
    bench.ask(prompt(24), [24])
    assert bench.ask(prompt(24), [24]) == 0
    assert bench.ask(prompt(25), [25]) == 24


def test_marks_may_fall_anywhere_in_chunks_and_pages() -> None:
    for n in range(1, 40):
        bench = Bench(max_chunk=7)
        bench.ask(prompt(40), [n])
        assert bench.ask([*prompt(40)[:n], 901, 902]) == n


def test_the_next_turn_goes_on_from_the_end_of_the_reply() -> None:
    bench = Bench()
    bench.ask(prompt(20), max_tokens=6)
    reply = counting(prompt(20))[:6]
    assert bench.ask([*prompt(20), *reply, 7, 8]) == 25  # all but the last token of the reply


def test_a_reply_that_a_stop_string_ends_is_kept_with_what_was_drawn_beyond() -> None:
    bench = Bench()
    script = [311, 356, 401, 446, 500, 501, 502, END]
    bench.core.script = lambda prompt: script[1:]
    probe = bench.add(prompt(20), max_tokens=1)
    run(bench.scheduler)
    word = "".join(event.text for event in probe.events())
    bench.core.script = lambda prompt: script
    bench.core.accepted = 3
    client = bench.add(prompt(20, 5), stops=(word,), max_tokens=50, n_drafts=3)
    run(bench.scheduler)
    events = client.events()
    assert events[-1].finish_reason == "stop" and [i for e in events for i in e.token_ids] == script[:2]
    bench.check_books()
    # That round drew three tokens more, and the one in flight behind it the others.
    bench.core.script = counting
    assert bench.ask([*prompt(20, 5), *script[:7], 7], max_tokens=1) == 27


@pytest.mark.parametrize(
    ("n_prompt", "n_reply", "kept"),
    [(60, LEAST_NEW + 1, True), (60, LEAST_NEW, False), (10, LEAST - 10, False), (10, LEAST - 9, True)],
)
def test_the_end_of_a_reply_is_kept_where_it_saves_enough(n_prompt: int, n_reply: int, kept: bool) -> None:
    bench = Bench(least=LEAST, least_new=LEAST_NEW)
    bench.ask(prompt(n_prompt), [n_prompt], max_tokens=n_reply)
    assert bench.marks() == [n_prompt, n_prompt + n_reply - 1][: 1 + kept]


def test_the_end_of_a_reply_that_no_prompt_will_begin_with_is_not_kept() -> None:
    bench = Bench()
    bench.ask(prompt(20), [12], max_tokens=6, goes_on=False)
    assert bench.marks() == [12]


def test_what_rounds_made_is_not_kept_where_prompts_are_computed_in_another_way() -> None:
    bench = Bench(equal=False)
    bench.ask(prompt(20), [12])
    assert bench.marks() == [12]


def test_a_request_without_the_cache_reads_all_and_keeps_nothing() -> None:
    bench = Bench(least_shared=4)
    bench.ask(prompt(20), [12], cache=False)
    assert bench.marks() == []
    bench.ask(prompt(20), [12])
    assert bench.ask(prompt(20), [12], cache=False) == 0
    # Nor does it share what is being read.
    clients = [bench.add(prompt(40, 9), cache=on, max_tokens=1) for on in (True, False, True)]
    run(bench.scheduler)
    assert [cached(client) for client in clients] == [0, 0, 39]


def test_a_prompt_whose_own_scores_are_asked_for_reads_all_of_it() -> None:
    bench = Bench()
    bench.ask(prompt(20), [12])
    assert bench.ask(prompt(20), [12], scores=True) == 0


def test_cached_tokens_are_those_that_were_not_read() -> None:
    bench = Bench(max_chunk=16)
    seen = 0
    for turn in range(1, 8):
        n = 20 * turn
        bench.core.chunks.clear()
        found = bench.ask(prompt(n), [n - 3])
        assert found == seen
        assert sum(map(len, bench.core.chunks)) == n - found
        seen = n - 3
    counts = bench.scheduler.counts.cache
    assert (counts.hits, counts.misses) == (6, 1)
    assert counts.hit_tokens == sum(20 * turn - 3 for turn in range(1, 7))


def test_a_request_waits_for_a_reader_only_where_that_has_more_than_the_cache() -> None:
    bench = Bench(least_shared=4)
    bench.ask(prompt(40), [30])
    clients = [bench.add([*prompt(n), 800 + n], max_tokens=1) for n in (40, 40, 20)]
    run(bench.scheduler)
    # The first goes on from 30, the second from what the first has read, the third shares less than is read.
    assert [cached(client) for client in clients] == [30, 40, 0]
    assert bench.core.n_forks == 1
    more = [bench.add([*prompt(36), *range(300, 340), 800 + i], max_tokens=1) for i in range(2)]
    run(bench.scheduler)
    assert [cached(client) for client in more] == [30, 76]


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_who_waited_for_a_reader_goes_on_from_its_marks_when_that_one_stops(how: str) -> None:
    bench = Bench(least_shared=4, max_chunk=8)
    reader = bench.add(prompt(80), [24, 60])
    waits = bench.add([*prompt(70), 900], [24, 60], max_tokens=2)
    while reader.job.n_read < 40:
        bench.scheduler.step()
    assert waits.job.prefix is not None
    if how == "cancelled":
        bench.scheduler.cancel(reader.job)
    else:
        error = DeviceError("broken")
        bench.core.fault = lambda session: error if session is reader.job.session else None
    run(bench.scheduler)
    assert cached(waits) == 24
    bench.check_books()


def test_who_finds_no_page_for_the_copy_reads_by_itself() -> None:
    bench = Bench(n_pages=12, max_running=1)
    bench.ask(prompt(60), [60])
    bench.core.before = lambda what, detail: (
        (_ for _ in ()).throw(OutOfMemory("x")) if what == "resume" else None
    )
    assert bench.ask([*prompt(60), 5], max_tokens=1) == 0


# --- limits and giving way


def test_the_cache_gives_way_before_a_request_waits_or_is_preempted() -> None:
    bench = Bench(n_pages=20, max_running=2)
    for first in range(5):
        bench.ask(prompt(24, 50 + first), [24], max_tokens=1)
    assert len(bench.marks()) >= 3
    clients = [bench.add(prompt(60, first), max_tokens=8) for first in (1, 2)]
    run(bench.scheduler)
    assert [cached(client) for client in clients] == [0, 0]
    assert bench.scheduler.counts.preempted == 0
    bench.check_books()


def test_a_request_that_cannot_be_admitted_anyway_costs_nobody_a_mark() -> None:
    bench = Bench(n_pages=20, max_running=2)
    bench.ask(prompt(16, 70), [16], max_tokens=1)
    first = bench.add(prompt(100), max_tokens=30)
    while first.job.unread:
        bench.scheduler.step()
    marks = bench.marks()
    second = bench.add(prompt(100, 2), max_tokens=1)
    for _ in range(5):
        bench.scheduler.step()
    assert bench.marks() == marks
    run(bench.scheduler)
    assert cached(first) == cached(second) == 0


def test_a_request_does_not_lose_its_own_mark_for_pages_that_are_not_enough() -> None:
    bench = Bench(n_pages=100, max_running=2)
    bench.ask(prompt(60 * PAGE), [60 * PAGE], max_tokens=1, stops=())
    first = bench.add(prompt(28 * PAGE, 2), max_tokens=60, cache=False)
    while first.job.unread:
        bench.scheduler.step()
    second = bench.add(prompt(80 * PAGE), max_tokens=1)
    run(bench.scheduler)
    assert first.events()[-1].finish_reason == second.events()[-1].finish_reason == "length"
    assert bench.core.resumes == [60 * PAGE]


def test_a_request_that_fits_only_without_its_own_mark_is_admitted() -> None:
    bench = Bench(n_pages=62, max_running=2)
    bench.core.block_bytes = 10 * bench.core.page_bytes
    bench.caching.cache._block_bytes = bench.core.block_bytes
    bench.core.snapshot_bytes = lambda: len(bench.core.open_snapshots) * bench.core.block_bytes  # type: ignore[method-assign]
    bench.ask(prompt(30 * PAGE), [30 * PAGE], max_tokens=1)
    second = bench.add(prompt(60 * PAGE), max_tokens=1)
    run(bench.scheduler)
    assert second.events()[-1].finish_reason == "length"


def test_blocks_take_pages_from_what_is_free() -> None:
    bench = Bench()
    bench.ask(prompt(40), [10, 20, 30, 40])
    blocks = len(bench.marks()) * BLOCK_BYTES
    assert bench.caching.free_pages() == bench.core.free_pages() - blocks // bench.core.page_bytes


def test_a_tiny_cache_keeps_what_it_can() -> None:
    for limit in range(0, 600, 20):
        bench = Bench(limit)
        for turn in range(1, 6):
            bench.ask(prompt(16 * turn), [8, 16 * turn - 1])
        assert bench.caching.cache.size_bytes <= limit


def test_a_snapshot_that_there_was_no_memory_for_is_left_out() -> None:
    bench = Bench()
    bench.core.most_blocks = 1
    assert bench.ask(prompt(40), [10, 30]) == 0
    assert bench.marks() == [10]
    bench.core.most_blocks = 0
    assert bench.ask(prompt(40, 2), [10, 30]) == 0


def test_a_failing_pass_leaves_no_snapshot_behind() -> None:
    bench = Bench(max_chunk=8)
    bench.ask(prompt(20), [12])

    def fail(what: str, detail: Any) -> None:
        if what in ("prompt", "round"):
            raise DeviceError("broken")

    for when in (0, 3, 6):
        client = bench.add(prompt(40, 7), [5, 12, 30], max_tokens=9)
        for _ in range(when):
            bench.scheduler.step()
        bench.core.before = fail
        run(bench.scheduler)
        bench.core.before = lambda what, detail: None
        with pytest.raises(DeviceError):
            client.events()
        bench.check_books()
    assert bench.ask(prompt(30)) == 12


def test_ending_everything_gives_all_pages_back() -> None:
    bench = Bench()
    bench.ask(prompt(40), [10, 30])
    bench.scheduler.add_warm(history(prompt(60, 3)))
    bench.scheduler.step()
    bench.scheduler.end_all(RuntimeError("over"))
    assert not bench.core.open_snapshots and not bench.core.open_sessions
    assert bench.core.free_pages() == bench.core.n_pages
    assert bench.scheduler.idle


# --- the memory guard


def test_the_guard_makes_the_cache_smaller_and_lets_it_grow_again() -> None:
    used = [0]
    clock = Clock()
    guard = Guard(1000, 500, lambda: 0, lambda: used[0], lambda: 0, clock)
    assert (guard.shrink_bytes, guard.refuse_bytes) == (850, 950)
    bench = Bench(300, guard=guard)
    bench.ask(prompt(8), [8], max_tokens=1)
    assert bench.marks() == [8]

    def after(n_used: int) -> int:
        used[0] = n_used
        for moved in (clock, bench.clock):
            moved.now_s += 2 * TEND_S
        bench.scheduler.step()
        return bench.caching.cache.limit_bytes

    assert after(849) == bench.caching.cache.size_bytes + 1
    assert not guard.full
    assert after(851) == BLOCK_BYTES + bench.core.page_bytes - 1
    assert bench.marks() == []
    assert after(951) == 0 and guard.full
    assert after(300) == 300 and not guard.full


def test_what_was_planned_is_held_against_nobody() -> None:
    guard = Guard(1000, 990, lambda: 985, lambda: None, lambda: 0, Clock())
    assert (guard.shrink_bytes, guard.refuse_bytes) == (990, 990)
    assert not guard.full and guard.room_bytes == 5


def test_a_cache_as_large_as_planned_stays_where_pages_are_never_given_back() -> None:
    clock = Clock()
    fixed, pages, cache = 850, 100 * 4 * PAGE, 10 * (BLOCK_BYTES + 2 * 4 * PAGE)
    core = FakeCore(counting, n_pages=(pages + cache) // (4 * PAGE), max_chunk=64)
    planned = fixed + pages + cache
    guard = Guard(
        planned + 5,
        planned,
        lambda: 0,
        lambda: fixed + core.n_allocated * core.page_bytes + core.snapshot_bytes(),
        lambda: (core.n_allocated - core.n_taken) * core.page_bytes,
        clock,
    )
    bench = Bench(cache, guard=guard, core=core)
    core.trim = lambda n_pages: None  # type: ignore[method-assign]  # as where no slab is free as a whole
    bench.ask(prompt(125 * PAGE), [], max_tokens=1)  # nearly all pages are needed once
    for first in range(200, 230):
        bench.ask(prompt(9, first), [9], max_tokens=1)
        for moved in (clock, bench.clock):
            moved.now_s += 2 * TEND_S
        bench.scheduler.step()
    assert bench.caching.cache.limit_bytes == cache
    assert bench.caching.cache.n_evicted > 0 and len(bench.marks()) >= 9, "it was not full"


def test_pages_and_the_blocks_in_their_place_take_no_more_than_the_pool() -> None:
    bench = Bench(40 * 4 * PAGE, n_pages=60)
    bench.ask(prompt(50 * PAGE), [10 * PAGE], max_tokens=1)  # documents: nearly all pages take memory
    assert bench.core.n_allocated == 50
    for first in range(200, 230):  # and then short chats, of which there are mostly blocks
        bench.ask(prompt(9, first), [9], max_tokens=1)
    blocks = bench.core.snapshot_bytes() // bench.core.page_bytes
    assert blocks > 10
    assert bench.core.n_allocated + blocks <= bench.core.n_pages


# --- where prompts part


def test_a_text_that_others_begin_with_is_found_from_the_third_prompt_on() -> None:
    bench = Bench(least_parted=12, max_chunk=9)
    text = prompt(40)
    assert bench.ask([*text, 501, 502, 503], [42]) == 0
    assert bench.ask([*text, 511, 512, 513], [42]) == 0
    assert bench.ask([*text, 521, 522, 523], [42]) == 40
    assert bench.ask([*text[:20], 531, 532, 533], [22]) == 0
    assert bench.ask([*text[:20], 541, 542, 543], [22]) == 20
    assert bench.ask([*text[:28], 551, 552, 553], [30]) == 20  # 8 more would save too little


def test_a_request_without_the_cache_leaves_no_mark_where_it_parts() -> None:
    bench = Bench(least_parted=12)
    bench.ask([*prompt(40), 501, 502], [41])
    bench.ask([*prompt(40), 511, 512], [41], cache=False)
    assert bench.ask([*prompt(40), 521, 522], [41]) == 0


# --- warm passes


def history(tokens: Sequence[int]) -> WarmPass:
    return WarmPass(np.array(tokens, np.int32), (Place(len(tokens), Kind.END),))


def test_a_history_is_read_from_the_deepest_mark_both_share() -> None:
    bench = Bench(equal=False)
    bench.ask(prompt(40), [30])
    bench.core.chunks.clear()
    bench.scheduler.add_warm(history([*prompt(30), *range(500, 520)]))
    run(bench.scheduler)
    bench.check_books()
    assert [token for chunk in bench.core.chunks for token in chunk] == list(range(500, 520))
    assert bench.marks() == [30, 50]
    assert bench.ask([*prompt(30), *range(500, 520), 1]) == 50
    assert bench.scheduler.counts.cache.warm_passes == 1


def test_a_history_that_would_keep_nothing_is_left_out() -> None:
    bench = Bench()
    bench.ask(prompt(40), [40])
    bench.core.chunks.clear()
    bench.scheduler.add_warm(history(prompt(40)))
    bench.scheduler.add_warm(history(prompt(40 + LEAST_NEW - 1)))
    run(bench.scheduler)
    assert bench.core.chunks == []
    off = Bench(0)
    off.scheduler.add_warm(history(prompt(40)))
    run(off.scheduler)
    assert off.core.chunks == []


def test_a_history_yields_to_a_request_at_once_and_gives_it_what_was_read() -> None:
    bench = Bench(equal=False, max_chunk=8)
    bench.scheduler.add_warm(history(prompt(100)))
    while len(bench.core.chunks) < 4:
        bench.scheduler.step()
    client = bench.add([*prompt(50), 900], max_tokens=4)
    bench.scheduler.step()
    assert bench.core.open_sessions == []  # the pass has made room
    run(bench.scheduler)
    assert cached(client) == 32
    assert 100 in bench.marks()  # and went on later, from where it stood
    assert sum(map(len, bench.core.chunks)) == 100 + 51 - 32
    bench.check_books()


def test_a_history_is_read_beside_replies_but_not_beside_prompts() -> None:
    bench = Bench(equal=False, max_chunk=8)
    reply = bench.add(prompt(8), max_tokens=60)
    while reply.job.unread:
        bench.scheduler.step()
    bench.scheduler.add_warm(history(prompt(60, 9)))
    run(bench.scheduler)
    assert cached(reply) == 0
    assert 60 in bench.marks()
    assert bench.core.rounds.count(1) >= 59


def test_a_history_that_yields_early_copies_nothing_and_reads_nothing_twice() -> None:
    bench = Bench(max_chunk=8, max_running=2, spacing=40)
    bench.scheduler.add_warm(history(prompt(60)))
    for first in range(200, 206):  # somebody comes after each chunk
        bench.scheduler.step()
        bench.add([first, 5, 6, 7], max_tokens=1, cache=False)
        while bench.scheduler._waiting or bench.scheduler._running:
            bench.scheduler.step()
    run(bench.scheduler)
    read = [token for chunk in bench.core.chunks if len(chunk) != 4 or chunk[0] < 200 for token in chunk]
    assert read == prompt(60)
    assert bench.marks() == [40, 60], "a mark where it was put off"
    bench.check_books()


def test_a_history_is_held_only_while_there_is_room_for_its_sequence() -> None:
    bench = Bench(max_chunk=8, max_running=2, spacing=40)
    bench.scheduler.add_warm(history(prompt(60)))
    bench.scheduler.step()
    assert len(bench.core.open_sessions) == 1
    clients = [bench.add(prompt(30, first), max_tokens=5) for first in (200, 201)]
    most = 0
    while not all(client.job.ended for client in clients):
        bench.scheduler.step()
        most = max(most, len(bench.core.open_sessions))
    assert most == 2
    run(bench.scheduler)
    assert 60 in bench.marks()
    bench.check_books()


def test_a_history_that_is_held_gives_its_pages_to_a_request_and_is_read_later() -> None:
    bench = Bench(n_pages=14, max_chunk=8, max_running=4, spacing=200)
    bench.scheduler.add_warm(history(prompt(60)))
    for _ in range(5):
        bench.scheduler.step()
    client = bench.add(prompt(70, 200), max_tokens=1, cache=False)
    run(bench.scheduler)
    assert client.events()[-1].finish_reason == "length"
    assert bench.marks() == [60]
    bench.check_books()


def test_a_history_gives_its_pages_up_before_anybody_waits() -> None:
    bench = Bench(n_pages=14, max_chunk=8, max_running=2)
    bench.scheduler.add_warm(history(prompt(90)))
    for _ in range(4):
        bench.scheduler.step()
    clients = [bench.add(prompt(40, first), max_tokens=4) for first in (5, 6)]
    run(bench.scheduler)
    assert [cached(client) for client in clients] == [0, 0]
    bench.check_books()


def test_a_failing_history_fails_nobody_else() -> None:
    bench = Bench(max_chunk=8)
    bench.core.fault = lambda session: DeviceError("broken")
    bench.scheduler.add_warm(history(prompt(90)))
    run(bench.scheduler)
    bench.core.fault = lambda session: None
    bench.core.before = lambda what, detail: (
        (_ for _ in ()).throw(DeviceError("x")) if what == "prompt" else None
    )
    bench.scheduler.add_warm(history(prompt(90)))
    run(bench.scheduler)
    bench.core.before = lambda what, detail: None
    bench.check_books()
    assert bench.ask(prompt(40)) == 0


def test_what_a_reply_says_is_told_at_its_end() -> None:
    told: list[Said] = []
    bench = Bench()
    from support.jobs import ids

    bench.core.script = lambda prompt: [*ids("hm\n</think>\n\nHello"), END]
    said = Said()
    client = bench.add(
        prompt(20), max_tokens=50, chat=Chat(in_thinking=True), said=said, ended_with=told.append
    )
    run(bench.scheduler)
    client.events()
    assert [one.message() for one in told] == [
        {"role": "assistant", "content": "Hello", "reasoning_content": "hm"}
    ]
    cut = bench.add(prompt(21), said=Said(), ended_with=told.append)
    bench.scheduler.cancel(cut.job)
    run(bench.scheduler)
    assert len(told) == 1


# --- anything at all


@pytest.mark.parametrize("seed", range(120))
def test_whatever_comes_every_reply_is_right_and_nothing_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(
        rng.choice([0, 60, 150, 400, 2000, LIMIT]),
        n_pages=rng.choice([12, 16, 24, 60]),
        max_running=rng.choice([1, 2, 4]),
        max_chunk=rng.choice([3, 8, 64]),
        equal=rng.random() < 0.7,
        spacing=rng.choice([0, 0, 10]),
        least_shared=rng.choice([0, 4]),
    )
    bench.core.accepted = rng.choice([0, 2])
    bench.core.most_blocks = rng.choice([2, 10**6])
    families = [[rng.randrange(1, 90) for _ in range(60)] for _ in range(3)]
    clients: list[Client] = []

    def arrive() -> None:
        shared = rng.choice(families)[: rng.randrange(1, 61)]
        rows = shared + [rng.randrange(1, 90) for _ in range(rng.randrange(1, 12))]
        at = sorted(rng.sample(range(1, len(rows) + 1), min(len(rows), rng.randrange(5))))
        clients.append(
            bench.add(
                rows,
                at,
                max_tokens=rng.randrange(1, 20),
                n_drafts=rng.choice([0, 3]),
                cache=rng.random() < 0.9,
                background=rng.random() < 0.2,
            )
        )

    def fail(what: str, detail: Any) -> None:
        if what in ("prompt", "round", "resume", "snapshot") and rng.random() < 0.02:
            raise DeviceError("planted") if what in ("prompt", "round") else OutOfMemory("planted")

    if rng.random() < 0.3:
        bench.core.before = fail
    for _ in range(20_000):
        bench.clock.now_s += rng.choice([0.0, 0.01, 30.0])
        if len(clients) < 12 and rng.random() < 0.1:
            arrive()
        elif rng.random() < 0.02 and clients:
            bench.scheduler.cancel(rng.choice(clients).job)
        elif rng.random() < 0.02:
            bench.scheduler.add_warm(history(rng.choice(families)[: rng.randrange(1, 61)]))
        elif bench.scheduler.idle and len(clients) == 12:
            break
        bench.scheduler.step()
        cache = bench.caching.cache
        assert cache.size_bytes <= cache.limit_bytes
        assert bench.caching.free_pages() >= 0 or not cache.marks
    else:
        raise AssertionError("it goes on for ever")
    bench.core.before = lambda what, detail: None
    bench.check_books()
    for client in clients:
        try:
            cached(client)
        except (DeviceError, OutOfMemory) as error:
            assert "planted" in str(error)
    bench.scheduler.end_all(RuntimeError("over"))
    assert bench.core.free_pages() == bench.core.n_pages
