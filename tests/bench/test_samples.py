"""A sample says how disturbed it was, and a meter waits for quiet and no longer than it may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from samples import Counters, Meter, Sample, read_counters, sample_between

START = Counters(10.0, 100.0, 5.0, 4.0, 1.0, 0.0, 3)


def after(wall_s: float, others_s: float, own_s: float, caller_s: float, **more: float) -> Counters:
    return Counters(
        wall_s=START.wall_s + wall_s,
        everything_s=START.everything_s + others_s + own_s,
        own_s=START.own_s + own_s,
        caller_s=START.caller_s + caller_s,
        waited_s=START.waited_s + more.get("waited_s", 0.0),
        stolen_s=START.stolen_s + more.get("stolen_s", 0.0),
        major_faults=START.major_faults + int(more.get("faults", 0)),
    )


def test_rate_is_work_over_wall_time() -> None:
    assert sample_between(START, after(2.0, 0.0, 4.0, 2.0), 8, 2, 2).value == 4.0


def test_estimate_follows_the_calling_thread_where_it_is_the_busiest() -> None:
    sample = sample_between(START, after(4.0, 3.0, 3.0, 2.0), 8, 2, 2)
    assert sample.undisturbed == pytest.approx(8 / 2.0)


def test_estimate_follows_all_threads_where_they_are_busier_than_the_caller() -> None:
    sample = sample_between(START, after(4.0, 3.0, 5.0, 2.0), 8, 2, 2)
    assert sample.undisturbed == pytest.approx(8 / 2.5)


def test_foreign_share_counts_others_and_not_ourselves() -> None:
    sample = sample_between(START, after(2.0, 1.0, 3.0, 1.5), 1, 2, 2)
    assert sample.foreign == pytest.approx(1.0 / 4.0)


def test_waiting_for_a_core_disturbs_even_when_the_foreign_share_is_small() -> None:
    sample = sample_between(START, after(2.0, 0.01, 3.0, 1.5, waited_s=1.0), 1, 2, 2)
    assert sample.foreign < 0.01
    assert sample.disturbance == pytest.approx(0.25)
    assert not sample.is_quiet(0.05)


def test_stolen_time_disturbs() -> None:
    sample = sample_between(START, after(1.0, 0.0, 1.0, 1.0, stolen_s=0.5), 1, 1, 2)
    assert sample.disturbance == pytest.approx(0.25)


def test_page_read_from_disk_makes_a_sample_unquiet() -> None:
    calm = sample_between(START, after(1.0, 0.0, 2.0, 1.0), 1, 2, 2)
    assert calm.is_quiet(0.05)
    assert not sample_between(START, after(1.0, 0.0, 2.0, 1.0, faults=1), 1, 2, 2).is_quiet(0.05)


def test_sample_survives_json() -> None:
    sample = sample_between(START, after(2.0, 1.0, 3.0, 1.5, faults=2), 1, 2, 2)
    assert Sample(**sample.as_json()) == sample


def test_counters_of_this_process_move_forward() -> None:
    first = read_counters()
    sum(range(200_000))
    second = read_counters()
    assert second.wall_s > first.wall_s
    assert second.own_s > first.own_s
    assert second.caller_s > first.caller_s
    assert second.everything_s >= first.everything_s
    assert second.waited_s >= first.waited_s


class FakeMachine:
    """A machine whose others take the given shares of a core, one a sleep."""

    def __init__(self, shares: Iterator[float]) -> None:
        self.wall_s, self.others_s, self.n_sleeps = 0.0, 0.0, 0
        self._shares = shares

    def read(self) -> Counters:
        return Counters(self.wall_s, self.others_s, 0.0, 0.0, 0.0, 0.0, 0)

    def sleep(self, seconds: float) -> None:
        self.n_sleeps += 1
        self.wall_s += seconds
        self.others_s += seconds * next(self._shares)

    def work(self) -> None:
        self.wall_s += 1.0


def test_meter_starts_as_soon_as_the_machine_is_quiet() -> None:
    machine = FakeMachine(iter([1.0, 0.8, 0.02, 1.0]))
    meter = Meter(2, patience_s=60, read=machine.read, sleep=machine.sleep)
    meter.time("rate", 5, machine.work)
    assert machine.n_sleeps == 3
    assert [s.value for s in meter.samples["rate"]] == [5.0]


def test_meter_gives_up_waiting_when_its_patience_ends() -> None:
    machine = FakeMachine(iter(lambda: 1.0, None))
    meter = Meter(2, patience_s=3, read=machine.read, sleep=machine.sleep)
    meter.time("rate", 5, machine.work)
    assert machine.n_sleeps == 6
    assert len(meter.samples["rate"]) == 1


def test_meter_without_patience_does_not_wait() -> None:
    machine = FakeMachine(iter([]))
    Meter(2, patience_s=0, read=machine.read, sleep=machine.sleep).time("rate", 5, machine.work)
    assert machine.n_sleeps == 0
