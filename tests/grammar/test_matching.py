"""A reply's way through its grammar: thoughts, line breaks, drafts, what was written already, dead ends."""

from __future__ import annotations

import random

import numpy as np
import pytest
from flashnext.engine.grammars import MaskSource
from flashnext.grammar import Grammar, Matching
from support.grammars import END, allows, compiler, follows, ids_of, tokenizer

PERSON = Grammar.json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}},
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
)
TEXT = '{"name": "Ada Löwe", "tags": [1, 22, 333]}'
END_ID = tokenizer().control_ids[END]


def matching(thinking: bool = False, grammar: Grammar = PERSON) -> Matching:
    return Matching(compiler().compile(grammar), thinking=thinking)


def test_the_grammar_counts_from_behind_the_thoughts() -> None:
    ids = ids_of("I think {", "</think>", "\n\n", TEXT)
    row = matching(True).masks([], [])[0]
    assert not allows(row, END_ID) and allows(row, ids_of("x")[0]) and allows(row, ids_of("</think>")[0])
    assert follows(matching(True), [*ids, END_ID])
    assert follows(matching(True), [*ids_of("</think>", TEXT), END_ID])
    assert not follows(matching(True), [*ids_of("</think>", "\n\n", "\n", TEXT), END_ID])
    assert not follows(matching(True), ids_of("</think>", "\n\n", "so"))
    assert not follows(matching(), ids)


def test_the_end_is_allowed_exactly_where_the_grammar_may_end() -> None:
    ids = ids_of(TEXT)
    rows = matching().masks([], ids)
    assert [allows(row, END_ID) for row in rows] == [False] * len(ids) + [True]
    assert np.unpackbits(rows[-1].view(np.uint8)).sum() == 2  # both end tokens, and nothing else


@pytest.mark.parametrize("seed", range(8))
def test_drafts_leave_no_trace_and_change_no_mask(seed: int) -> None:
    """Masks of a walk with random drafts, right and wrong ones, equal those of one without any."""
    rng = random.Random(seed)
    ids = ids_of("hm", "</think>", "\n\n", TEXT)
    plain, drafted = matching(True), matching(True)
    expected = [plain.masks(ids[i - 1 : i] if i else [], [])[0] for i in range(len(ids) + 1)]
    at, drawn = 0, list[int]()
    while at < len(ids):
        drafts = ids[at : at + rng.randint(0, 6)]
        if drafts and rng.random() < 0.5:
            drafts[rng.randrange(len(drafts))] = rng.randrange(tokenizer().n_tokens)
        for i, row in enumerate(drafted.masks(drawn, drafts)):
            if ids[at : at + i] == drafts[:i]:
                assert (row == expected[at + i]).all(), f"token {at + i}"
        n = rng.randint(1, 4)
        drawn, at = ids[at : at + n], at + n


def test_behind_a_draft_that_is_not_allowed_nothing_is() -> None:
    rows = matching().masks([], ids_of("{", "x", "y"))
    assert rows[0].any() and rows[1].any() and not rows[2].any() and not rows[3].any()


@pytest.mark.parametrize("n", [0, 1, 3, 5, 9])
def test_a_reply_that_goes_on_stands_where_it_stood(n: int) -> None:
    ids = ids_of("</think>", "\n\n", TEXT)
    compiled = compiler().compile(PERSON)
    resumed = Matching(compiled, thinking=True, written=ids[:n])
    whole = Matching(compiled, thinking=True)
    assert (whole.masks(ids[:n], ids[n:]) == resumed.masks([], ids[n:])).all()


def test_a_dead_end_allows_nothing_and_says_why() -> None:
    stuck = matching()
    stuck.masks(ids_of("x"), [])
    assert stuck.failure and not stuck.masks([], []).any()


def test_masks_of_a_reply_that_is_gone_allow_nothing() -> None:
    source = MaskSource(tokenizer().n_tokens)
    held = matching()
    number = source.add(held)
    assert source(number, [], []).any()
    del held
    rows = source(number, [], [1, 2])
    assert rows.shape == (3, -(-tokenizer().n_tokens // 32)) and not rows.any()


def test_a_failure_of_a_reply_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source, held = MaskSource(tokenizer().n_tokens), matching()
    number = source.add(held)

    def fail(*given: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(held, "_row", fail)
    assert not source(number, [], []).any() and "broken" in held.failure
