"""What the scheduler does with sequences that share pages, prefixes and time, over the fake core."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from flashnext.engine.events import Drafts
from flashnext.engine.scheduler import Scheduler
from flashnext.errors import DeviceError, OutOfMemory, OutOfPages
from support.fake_core import PAGE, FakeCore, FakeSession
from support.jobs import Client, add, run


def counting(prompt: list[int]) -> list[int]:
    """Reply with numbers that depend on the prompt, without an end."""
    return [100 + (sum(prompt) + 7 * i) % 900 for i in range(200)]


def make(
    n_pages: int = 100, max_chunk: int = 8, max_running: int = 8, least_shared: int = 0, **more: Any
) -> tuple[FakeCore, Scheduler]:
    core = FakeCore(counting, n_pages=n_pages, max_chunk=max_chunk)
    core.least_shared = least_shared
    return core, Scheduler(core, max_running, **more)


def prompt(n: int, first: int = 1) -> list[int]:
    return [first, *range(2, n + 1)]


def until(scheduler: Scheduler, what: Callable[[], object]) -> None:
    for _ in range(1000):
        if what():
            return
        scheduler.step()
    raise AssertionError("it never came to it")


def check(client: Client, n: int) -> None:
    """The reply is what the prompt alone gives, each token sent once."""
    assert client.token_ids() == counting(client.job.prompt.tolist())[:n]


def balanced(core: FakeCore) -> bool:
    return core.open_sessions == [] and core.free_pages() == core.n_pages


# --- prompts in one chunk


def test_prompts_are_read_in_one_pass() -> None:
    core, scheduler = make()
    clients = [add(scheduler, prompt(3, first), max_tokens=2) for first in (11, 12)]
    run(scheduler)
    for client in clients:
        check(client, 2)
    assert core.passes == [[prompt(3, 11), prompt(3, 12)]]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    core, scheduler = make()
    long = add(scheduler, prompt(200), max_tokens=1)
    short = add(scheduler, prompt(4, 50), max_tokens=1)
    until(scheduler, lambda: not short.items.empty())
    assert len(core.passes) == 1
    run(scheduler)
    check(long, 1)


def test_rounds_go_on_by_themselves_while_no_prompt_is_read() -> None:
    core, scheduler = make()
    starts: list[int] = []
    begin = core.start
    core.start = lambda sessions: (starts.append(len(sessions)), begin(sessions))[1]  # type: ignore[method-assign, func-returns-value]
    first = add(scheduler, prompt(4), max_tokens=30)
    until(scheduler, lambda: len(core.rounds) > 5)
    second = add(scheduler, prompt(4, 9), max_tokens=5)
    run(scheduler)
    check(first, 30)
    check(second, 5)
    assert starts == [1, 2, 1]  # once for each change


# --- preemption


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("accepted", [0, 2])
def test_the_youngest_is_preempted_and_goes_on_with_the_same_tokens(equal: bool, accepted: int) -> None:
    core, scheduler = make(n_pages=12)
    core.prompt_equals_window, core.accepted = equal, accepted
    clients = [add(scheduler, prompt(8, first), max_tokens=30, n_drafts=2) for first in (11, 12, 13)]
    run(scheduler)
    for client in clients:
        check(client, 30)
    assert core.n_shorts and core.resumed
    assert balanced(core)
    assert not clients[0].job.resumed  # the oldest ran to its end
    assert clients[2].job.resumed
    assert scheduler.counts.preempted >= 1


@pytest.mark.parametrize("equal", [True, False])
def test_a_resumed_reply_is_read_like_a_prompt_only_where_that_gives_the_same(equal: bool) -> None:
    core, scheduler = make(n_pages=12)
    core.prompt_equals_window = equal
    clients = [add(scheduler, prompt(8, first), max_tokens=30) for first in (11, 12, 13)]
    run(scheduler)
    assert max(map(len, core.resumed)) > 8
    of_replies = {i for tokens in core.chunks for i in tokens if i >= 100}
    assert bool(of_replies) == equal
    assert of_replies <= {i for client in clients for i in client.job.token_ids}


def test_a_token_that_is_not_drawn_again_fails_its_reply_alone() -> None:
    core, scheduler = make(n_pages=12)
    clients = [add(scheduler, prompt(8, first), max_tokens=30) for first in (11, 12, 13)]
    until(scheduler, lambda: clients[2].job.resumed)
    core.slips[clients[2].job.n_drawn] = 1
    run(scheduler)
    check(clients[0], 30)
    check(clients[1], 30)
    with pytest.raises(DeviceError, match=r"token \d+ of the reply was \d+, and \d+ when it was drawn again"):
        clients[2].events()
    assert balanced(core)


def test_one_that_was_preempted_keeps_its_place_in_the_queue() -> None:
    _, scheduler = make(n_pages=12)
    clients = [add(scheduler, prompt(8, first), max_tokens=30) for first in (11, 12, 13)]
    until(scheduler, lambda: clients[2].job.n_drawn > 2)
    late = add(scheduler, prompt(70, 14), max_tokens=2)
    until(scheduler, lambda: clients[2].job.resumed)
    assert scheduler._waiting == [clients[2].job, late.job]
    run(scheduler)
    check(clients[2], 30)
    check(late, 2)


def test_a_reply_that_pages_run_out_for_ends_with_the_numbers() -> None:
    core, scheduler = make(n_pages=4)
    alone = add(scheduler, prompt(8), max_tokens=60)
    too_long = add(scheduler, prompt(60, 5))
    run(scheduler)
    with pytest.raises(OutOfPages, match="more than the 0 free of 4 pages"):
        alone.events()
    with pytest.raises(OutOfMemory, match="more than the 4 free of 4 pages"):
        too_long.events()
    assert balanced(core)


def test_pages_that_come_free_after_rounds_in_flight_are_given_to_who_waits() -> None:
    core, scheduler = make(n_pages=12)
    core.in_flight = 2
    stays, leaves = (add(scheduler, prompt(8, first), max_tokens=60) for first in (11, 12))
    until(scheduler, lambda: leaves.job.n_drawn > 1)
    waits = add(scheduler, prompt(50, 13), max_tokens=2)
    for _ in range(3):
        scheduler.step()
    assert waits.job.times.admitted is None
    scheduler.cancel(leaves.job)
    until(scheduler, lambda: waits.job.ended)
    assert stays.job.n_drawn < 20
    run(scheduler)
    check(stays, 60)
    check(waits, 2)


@pytest.mark.parametrize("when", ["reading", "drawing"])
def test_one_that_comes_short_for_a_moment_misses_nothing(when: str) -> None:
    core, scheduler = make()
    clients = [add(scheduler, prompt(30, first), max_tokens=most) for first, most in ((11, 60), (12, 20))]
    short = clients[1].job
    until(scheduler, lambda: short.n_read if when == "reading" else short.n_drawn > 2)

    def once(session: FakeSession) -> Exception | None:
        if session is not short.session:
            return None
        core.fault = lambda session: None
        return OutOfPages("for a moment")

    core.fault = once
    until(scheduler, lambda: short.ended)
    assert len(clients[0].job.token_ids) < 40  # they went on together
    run(scheduler)
    check(clients[0], 60)
    check(clients[1], 20)


# --- priorities


def test_a_background_request_waits_until_no_normal_one_does() -> None:
    core, scheduler = make(max_running=1)
    background = add(scheduler, prompt(3, 11), max_tokens=3, background=True)
    normal = [add(scheduler, prompt(3, first), max_tokens=3) for first in (12, 13)]
    run(scheduler)
    assert [tokens[0] for tokens in core.chunks] == [12, 13, 11]
    for client in (background, *normal):
        check(client, 3)


def test_a_running_background_request_makes_room_and_goes_on_after() -> None:
    _, scheduler = make(max_running=1)
    background = add(scheduler, prompt(3, 11), max_tokens=20, background=True)
    until(scheduler, lambda: background.job.n_drawn > 4)
    normal = add(scheduler, prompt(3, 12), max_tokens=20)
    until(scheduler, lambda: normal.job.ended)
    assert not background.job.ended
    run(scheduler)
    check(background, 20)
    check(normal, 20)


def test_a_background_request_that_came_back_gets_one_token_before_it_makes_room_again() -> None:
    _, scheduler = make(max_running=1)
    background = add(scheduler, prompt(3, 11), max_tokens=60, background=True)
    until(scheduler, lambda: background.job.n_drawn > 4)
    for i in range(4):
        drawn = len(background.job.token_ids)
        normal = add(scheduler, prompt(3, 20 + i), max_tokens=2)
        until(scheduler, partial(getattr, normal.job, "ended"))
        until(scheduler, lambda: background.job.session)
        if i > 0:
            assert drawn < len(background.job.token_ids) <= drawn + 4
    run(scheduler)
    check(background, 60)


def test_no_more_background_requests_make_room_than_have_to() -> None:
    core, scheduler = make(n_pages=15)
    core.in_flight = 2
    background = [add(scheduler, prompt(8, first), max_tokens=40, background=True) for first in (11, 12, 13)]
    until(scheduler, lambda: core.free_pages() < 4)
    normal = add(scheduler, prompt(20, 14), max_tokens=2)
    until(scheduler, lambda: normal.job.session)
    assert scheduler.counts.preempted == 1
    run(scheduler)
    for client in background:
        check(client, 40)
    check(normal, 2)


def test_background_requests_are_preempted_first() -> None:
    _, scheduler = make(n_pages=9)
    background = add(scheduler, prompt(8, 11), max_tokens=30, background=True)
    until(scheduler, lambda: background.job.n_drawn > 1)
    normal = [add(scheduler, prompt(8, first), max_tokens=30) for first in (12, 13)]
    until(scheduler, lambda: background.job.resumed)
    assert not any(client.job.resumed for client in normal)
    run(scheduler)
    for client in (background, *normal):
        check(client, 30)


# --- prefixes


def test_a_prefix_that_is_being_read_is_not_read_twice() -> None:
    core, scheduler = make(least_shared=PAGE)
    first = add(scheduler, prompt(60), max_tokens=3)
    until(scheduler, lambda: first.job.n_read)
    second = add(scheduler, [*prompt(43), *range(500, 520)], max_tokens=3)
    run(scheduler)
    check(first, 3)
    events = second.events()
    assert events[-1].usage is not None and events[-1].usage.cached_tokens == 43
    assert sum(map(len, core.chunks)) == 60 + 20
    assert core.n_forks == 1
    assert balanced(core)


def test_the_same_prompt_many_times_is_read_once_but_for_its_last_token() -> None:
    core, scheduler = make(least_shared=PAGE)
    clients = [add(scheduler, prompt(50), max_tokens=4) for _ in range(6)]
    run(scheduler)
    for client in clients:
        check(client, 4)
    assert core.n_forks == 5
    assert sum(map(len, core.chunks)) == 49 + 6
    assert core.passes[-1] == [[50]] * 6  # all draw their first token in one pass


def test_many_prompts_with_one_prefix_need_the_pages_of_one() -> None:
    core, scheduler = make(n_pages=36, least_shared=PAGE)
    clients = [add(scheduler, [*prompt(160), 300 + i], max_tokens=2) for i in range(6)]
    run(scheduler)
    for client in clients:
        check(client, 2)
    assert core.n_forks == 5
    assert not core.resumed


def test_who_waits_for_a_prefix_leaves_its_pages_to_others() -> None:
    core, scheduler = make(n_pages=30, least_shared=PAGE)
    clients = []
    for i in range(3):
        clients.append(add(scheduler, [*prompt(160), 300 + i], max_tokens=2))
        for _ in range(4):
            scheduler.step()
    assert scheduler.counts.running == 3
    run(scheduler)
    for client in clients:
        check(client, 2)
    assert core.n_forks == 2


def test_a_shorter_prefix_than_pays_is_read_again() -> None:
    core, scheduler = make(least_shared=PAGE)
    for last in (300, 301):
        add(scheduler, [*prompt(PAGE - 1), *[last] * 20], max_tokens=1)
    run(scheduler)
    assert core.n_forks == 0


def test_prefixes_of_forks_are_forked_in_turn() -> None:
    core, scheduler = make(least_shared=PAGE)
    middle = [*prompt(40), *range(700, 720)]
    clients = [add(scheduler, p, max_tokens=3) for p in (prompt(60), [*middle, 1], [*middle, 2])]
    run(scheduler)
    for client in clients:
        check(client, 3)
    assert core.n_forks == 2
    assert sum(map(len, core.chunks)) == 60 + 21 + 1


def test_a_prompt_that_is_the_beginning_of_another_is_read_once() -> None:
    core, scheduler = make(least_shared=PAGE)
    clients = [add(scheduler, prompt(n), max_tokens=3) for n in (60, 30)]
    run(scheduler)
    for client in clients:
        check(client, 3)
    assert core.n_forks == 1
    assert sum(map(len, core.chunks)) == 60 + 1


@pytest.mark.parametrize("how", ["cancelled", "failed", "device"])
def test_those_who_wait_for_a_reader_that_ends_find_another_or_read_themselves(how: str) -> None:
    core, scheduler = make(least_shared=PAGE)
    clients = [add(scheduler, prompt(60), max_tokens=3) for _ in range(3)]
    until(scheduler, lambda: clients[0].job.n_read)
    if how == "cancelled":
        scheduler.cancel(clients[0].job)
    elif how == "failed":
        core.fault = lambda s: OutOfMemory("no memory") if s is clients[0].job.session else None
    else:
        fail_once(core, "prompt", DeviceError("gone"))
    run(scheduler)
    if how == "cancelled":
        assert clients[0].events()[-1].finish_reason == "cancelled"
    else:
        with pytest.raises(Exception, match=r"gone|no memory"):
            clients[0].events()
    check(clients[1], 3)
    check(clients[2], 3)
    assert core.n_forks == 1
    assert balanced(core)


def test_those_who_wait_for_a_reader_that_is_preempted_go_on() -> None:
    core, scheduler = make(n_pages=20, least_shared=PAGE, max_running=3)
    first = add(scheduler, prompt(8, 99), max_tokens=140)
    until(scheduler, lambda: first.job.n_drawn > 2)
    background = [add(scheduler, prompt(60), max_tokens=9, background=True) for _ in range(2)]
    until(scheduler, lambda: background[0].job.n_read > 8)
    normal = add(scheduler, prompt(90, 98), max_tokens=9)
    until(scheduler, lambda: background[0].job.resumed)
    run(scheduler)
    check(first, 140)
    check(normal, 9)
    for client in background:
        check(client, 9)
    assert balanced(core)


@pytest.mark.parametrize("error", [OutOfPages("no page"), MemoryError("no memory")])
def test_a_fork_that_fails_hurts_nobody_else(error: Exception) -> None:
    core, scheduler = make(least_shared=PAGE)
    clients = [add(scheduler, prompt(60), max_tokens=3) for _ in range(2)]
    fail_once(core, "fork", error)
    run(scheduler)
    check(clients[0], 3)
    if isinstance(error, OutOfPages):  # it reads by itself
        check(clients[1], 3)
    else:
        with pytest.raises(MemoryError):
            clients[1].events()
    assert balanced(core)


def test_one_that_waited_for_a_fork_that_failed_forks_the_same_reader() -> None:
    core, scheduler = make(max_chunk=64, least_shared=PAGE)
    clients = [add(scheduler, prompt(30), max_tokens=3) for _ in range(3)]
    fail_once(core, "fork", MemoryError("no memory"))
    run(scheduler)
    check(clients[0], 3)
    with pytest.raises(MemoryError):
        clients[1].events()
    check(clients[2], 3)
    assert core.n_forks == 1


# --- failures


def fail_once(core: FakeCore, where: str, error: Exception) -> None:
    def before(what: str, detail: Any) -> None:
        if what == where:
            core.before = lambda what, detail: None
            raise error

    core.before = before


def test_a_device_failure_ends_those_in_flight_and_the_others_go_on() -> None:
    core, scheduler = make(max_running=2)
    clients = [add(scheduler, prompt(4, first), max_tokens=20) for first in range(20, 25)]
    until(scheduler, lambda: clients[0].job.n_drawn > 3)
    fail_once(core, "round", DeviceError("the device is gone"))
    run(scheduler)
    for client in clients[:2]:
        with pytest.raises(DeviceError, match="the device is gone"):
            client.events()
    for client in clients[2:]:
        check(client, 20)
    assert balanced(core)


def test_a_sequence_that_fails_in_a_round_ends_alone() -> None:
    core, scheduler = make()
    clients = [add(scheduler, prompt(4, first), max_tokens=20) for first in range(20, 25)]
    until(scheduler, lambda: clients[0].job.n_drawn > 3)
    bad = clients[2].job.session
    core.fault = lambda s: MemoryError("no memory") if s is bad else None
    run(scheduler)
    for client in clients:
        if client is clients[2]:
            with pytest.raises(MemoryError):
                client.events()
        else:
            check(client, 20)
    assert balanced(core)


def test_a_reply_that_the_device_ends_too_early_is_an_error() -> None:
    core, scheduler = make()
    client = add(scheduler, prompt(4), max_tokens=20)
    draw = FakeSession.draw

    def end_early(session: FakeSession) -> int:
        token = draw(session)
        session.ended |= len(session.reply) == 5
        return token

    core.open = lambda axes=None: setattr_draw(FakeCore.open(core, axes), end_early)  # type: ignore[method-assign]
    run(scheduler)
    with pytest.raises(DeviceError, match="ended a reply after 5 tokens"):
        client.events()


def setattr_draw(session: FakeSession, draw: Callable[[FakeSession], int]) -> FakeSession:
    session.draw = lambda: draw(session)  # type: ignore[method-assign]
    return session


# --- what a reply says of itself


def test_a_reply_tells_its_drafts_and_where_its_time_went() -> None:
    now = [0.0]

    def clock_s() -> float:
        return now[0]

    core, scheduler = make(max_running=1, clock_s=clock_s)
    core.accepted = 1

    def before(what: str, detail: Any) -> None:
        now[0] += {"prompt": 0.010, "round": 0.002}.get(what, 0.0)

    core.before = before
    first = add(scheduler, prompt(16), max_tokens=9, n_drafts=2)
    second = add(scheduler, prompt(8, 5), max_tokens=3)
    run(scheduler)
    events = first.events()
    assert {(e.drafts, e.timings) for e in events[:-1]} == {(None, None)}
    last = events[-1]
    assert last.drafts is not None and last.timings is not None
    assert last.drafts.accepted == 4
    assert last.drafts.proposed >= 4
    assert last.timings.queued_ms == 0
    assert last.timings.prompt_ms == last.timings.first_token_ms == pytest.approx(20)
    assert last.timings.decode_ms == pytest.approx(8)
    assert last.timings.token_ms == pytest.approx(1)
    assert last.timings.largest_gap_ms == pytest.approx(2)
    waited = second.events()[-1]
    assert waited.drafts == Drafts(0, 0)
    assert waited.timings is not None and waited.timings.queued_ms == pytest.approx(28)


def test_a_request_that_never_ran_has_no_times() -> None:
    core, scheduler = make()
    client = add(scheduler, prompt(8))
    scheduler.cancel(client.job)
    run(scheduler)
    timings = client.events()[-1].timings
    assert timings is not None
    assert {timings.queued_ms, timings.prompt_ms, timings.first_token_ms, timings.token_ms} == {None}
    assert core.chunks == []


def test_a_request_that_is_cancelled_before_the_scheduler_has_it_never_runs() -> None:
    core, scheduler = make()
    client = Client(prompt(8))
    scheduler.cancel(client.job)
    scheduler.step()
    scheduler.add(client.job)
    run(scheduler)
    assert client.events()[-1].finish_reason == "cancelled"
    assert core.chunks == []
