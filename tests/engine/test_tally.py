"""What the engine counts as it goes, over a core whose every round is known."""

from __future__ import annotations

import itertools

import pytest
from flashnext.engine.scheduler import Scheduler
from support.fake_core import FakeCore
from support.jobs import END, add, ids

REPLY = "one two three four five six seven eight"


def run(scheduler: Scheduler) -> None:
    while not scheduler.idle:
        scheduler.step()


@pytest.mark.parametrize("in_flight", [1, 2])
def test_tokens_passes_and_rounds_are_those_of_the_core(in_flight: int) -> None:
    core = FakeCore(lambda prompt: [*ids(REPLY), END])
    core.in_flight = in_flight
    clock = itertools.count()
    scheduler = Scheduler(core, 2, clock_s=lambda: next(clock) * 0.001)
    clients = [add(scheduler, list(range(1, 11))), add(scheduler, [20, 21, 22])]
    run(scheduler)
    drawn = [client.token_ids() for client in clients]
    work = scheduler.counts.work
    assert (work.prompt_tokens, work.read_tokens, work.cached_tokens) == (13, sum(map(len, core.chunks)), 0)
    assert work.reply_tokens == sum(map(len, drawn)) == 2 * (len(ids(REPLY)) + 1)
    assert work.passes == len(core.passes)
    assert work.rounds == len(core.rounds)
    assert sum(work.gaps.counts) == work.reply_tokens - len(clients)
    times = [client.job.times for client in clients]
    assert work.gaps.total == pytest.approx(sum((t.last or 0.0) - (t.first or 0.0) for t in times))
    assert (work.proposed, sum(work.kept)) == (0, 0)


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_drafts_are_counted_by_how_many_a_round_keeps(accepted: int) -> None:
    core = FakeCore(lambda prompt: [*ids(REPLY), END])
    core.accepted = accepted
    scheduler = Scheduler(core)
    client = add(scheduler, [1, 2, 3], n_drafts=3)
    run(scheduler)
    drafts, work = client.events()[-1].drafts, scheduler.counts.work
    assert drafts is not None
    assert (work.proposed, work.accepted) == (drafts.proposed, drafts.accepted)
    assert work.kept[: len(drafts.kept)] == drafts.kept and not any(work.kept[len(drafts.kept) :])
    assert drafts.accepted == sum(n * times for n, times in enumerate(drafts.kept))
    assert len(drafts.kept) == accepted + 1  # the last round may keep fewer
    assert sum(drafts.kept) <= len(core.rounds)
