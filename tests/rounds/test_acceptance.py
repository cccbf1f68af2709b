"""How often drafts are kept: of a sequence, leaning on all, and when a source is tried again."""

from __future__ import annotations

import pytest
from flashnext._core.testing import Acceptance, DraftSource
from flashnext.errors import InvalidArgument

HEAD, COPY = DraftSource.HEAD, DraftSource.COPY


def after(*rounds: tuple[int, int], source: DraftSource = HEAD) -> Acceptance:
    """A sequence after rounds of (proposed, accepted)."""
    own = Acceptance()
    for proposed, accepted in rounds:
        own.observe(source, proposed, accepted)
    return own


def everyone(kept: int, of: int) -> Acceptance:
    """All sequences, whose drafts were kept so often at depths 0 to 3."""
    all_ = Acceptance.of_all()
    for i in range(of):
        all_.observe(HEAD, 4, 4 if i < kept else 0)
    return all_


def test_a_new_sequence_starts_from_the_rates_of_all() -> None:
    good, bad = everyone(400, 400), everyone(0, 400)
    assert Acceptance().rates(HEAD, good)[0] > 0.95
    assert Acceptance().rates(HEAD, bad)[0] < 0.05


def test_a_sequence_departs_from_all_within_a_dozen_drafts() -> None:
    assert after(*[(1, 0)] * 12).rates(HEAD, everyone(400, 400))[0] < 0.3
    assert after(*[(1, 1)] * 12).rates(HEAD, everyone(0, 400))[0] > 0.7


def test_a_depth_counts_where_the_drafts_before_it_were_kept() -> None:
    own, before = after(*[(4, 2)] * 40), Acceptance()
    rates, prior = own.rates(HEAD), before.rates(HEAD)
    assert rates[0] > 0.95 and rates[1] > 0.95 and rates[2] < 0.2
    # Nothing was learned of depth 3 itself: it is expected to be no worse than a new sequence's.
    assert rates[3] == prior[3]


def test_a_depth_that_was_not_tried_is_expected_to_be_as_good_as_the_one_above() -> None:
    own, all_ = after(*[(2, 2)] * 40), everyone(400, 400)
    assert min(own.rates(HEAD)) > 0.95
    assert 0.9 < own.rates(HEAD, all_)[10] < 1
    assert max(after(*[(2, 0)] * 40).rates(HEAD, everyone(0, 400))[:1]) < 0.05


def test_while_a_source_waits_its_past_counts_for_less() -> None:
    waited, at_once = after(*[(1, 0)] * 60, *[(0, 0)] * 31), after(*[(1, 0)] * 60)
    for own in (waited, at_once):
        for _ in range(5):
            own.observe(HEAD, 1, 1)
    assert waited.rates(HEAD)[0] > at_once.rates(HEAD)[0] + 0.1


def test_sources_are_counted_apart() -> None:
    own = after(*[(4, 0)] * 40)
    assert own.rates(HEAD)[0] < 0.15
    assert own.rates(COPY) == Acceptance().rates(COPY)


def test_rates_are_probabilities_and_old_rounds_fade() -> None:
    own = after(*[(15, 15)] * 500, *[(15, 0)] * 40)
    assert own.rates(HEAD)[0] < 0.25
    assert all(0 < r < 1 for r in own.rates(HEAD))


def test_a_source_without_drafts_is_due_after_sixteen_rounds() -> None:
    own = after(*[(1, 0)] * 5)
    for _ in range(15):
        own.observe(HEAD, 0, 0)
        assert not own.due(HEAD)
    own.observe(HEAD, 0, 0)
    assert own.due(HEAD)
    own.observe(HEAD, 1, 0)
    assert not own.due(HEAD)


def test_a_probe_in_vain_doubles_the_wait_once_and_a_kept_one_restores_it() -> None:
    own, waits = Acceptance(), []
    for accepted in (0, 0, 0, 1, 0, 0):
        waits.append(0)
        while not own.due(HEAD):
            own.observe(HEAD, 0, 0)
            waits[-1] += 1
        own.observe(HEAD, 1, accepted)
        if accepted:  # until its rate is up
            while own.due(HEAD):
                own.observe(HEAD, 1, 1)
    assert waits == [16, 32, 32, 32, 16, 32]


def test_a_source_is_due_less_often_while_the_other_has_drafts() -> None:
    own = Acceptance()
    due = []
    for _ in range(64):
        due.append(own.due(COPY))
        own.observe(HEAD, 2, 1)
    assert not any(due) and own.due(COPY) and not own.due(HEAD)


def test_a_kept_probe_is_followed_by_another_until_the_rate_is_up() -> None:
    own, rounds = after(*[(1, 0)] * 60, (1, 1)), 0
    while own.due(HEAD):
        own.observe(HEAD, 1, 1)
        rounds += 1
        assert rounds < 20
    assert rounds > 3 and own.rates(HEAD)[0] > 0.5


@pytest.mark.parametrize(("proposed", "accepted"), [(-1, 0), (16, 0), (3, 4), (3, -1)])
def test_counts_that_cannot_be_are_refused(proposed: int, accepted: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{accepted} of {proposed} drafts kept"):
        Acceptance().observe(HEAD, proposed, accepted)
