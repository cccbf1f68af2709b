"""Drafts copied from a reply's own text, against a search that tries every place."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.contract.families.copies import CopyDrafts
from flashnext.contract.launch import DeviceRunner, Frame
from flashnext.contract.scalars import F32
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine import PATHS

LEAST, MOST = 3, 16
each_path = pytest.mark.parametrize("path", PATHS)


@cache
def runner(path: str) -> DeviceRunner:
    return DeviceRunner(core.open_device("cpu", 2, path))


def copies(path: str, texts: list[list[int]], limits: list[int]) -> list[list[int]]:
    """What the kernel drafts behind each text, from what it wrote there."""
    run, family, n = runner(path), CopyDrafts(), len(texts)
    data = {
        "text": [np.array(t, np.int32) for t in texts],
        "limit": np.array(limits, np.int32),
        "ended": [0] * n,
        "known": [0] * n,
    }
    launch = family.launch({"texts": "given", "n": n}, F32, data, range(n), Frame(run.tile))
    result = run(launch)
    counts = result["n_copied"].view(np.int32)
    written = [result[f"text {i}"].view(np.int32)[len(t) :] for i, t in enumerate(texts)]
    return [w[:k].tolist() for w, k in zip(written, counts, strict=False)]


def searched(text: list[int], limit: int) -> list[int]:
    """The same by the words of metal/params.h, one place after the other."""
    last, found, longest = len(text) - 1, None, 0
    for e in range(last):
        m = 0
        while m < MOST and m <= e and text[e - m] == text[last - m]:
            m += 1
        if m >= LEAST and m >= longest:
            found, longest = e, m
    if found is None:
        return []
    out = list(text)
    for j in range(min(limit, 15)):
        out.append(out[found + 1 + j])
    return out[len(text) :]


@each_path
@settings(max_examples=150, deadline=None)
@given(
    replies=st.lists(
        st.tuples(
            st.one_of(
                st.lists(st.integers(0, 2), min_size=1, max_size=200),
                st.lists(st.integers(0, 248319), min_size=1, max_size=40),
                st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 12)).map(
                    lambda x: x[0] * x[1]
                ),
            ),
            st.integers(0, 20),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_copies_equal_a_search_of_every_place(path: str, replies: list[tuple[list[int], int]]) -> None:
    texts, limits = [t for t, _ in replies], [n for _, n in replies]
    assert copies(path, texts, limits) == [searched(t, n) for t, n in replies]


@each_path
@pytest.mark.parametrize(
    ("what", "text", "limit", "expected"),
    [
        ("what followed the match", [1, 2, 3, 4, 5, 6, 9, 1, 2, 3], 3, [4, 5, 6]),
        ("a copy that runs into itself", [8, 1, 2, 1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),
        ("one token for ever", [5, 5, 5, 5], 15, [5] * 15),
        ("the longest match before the latest", [4, 1, 2, 3, 7, 0, 1, 2, 3, 8, 4, 1, 2, 3], 1, [7]),
        ("the latest of equal matches", [1, 2, 3, 7, 1, 2, 3, 8, 6, 1, 2, 3], 1, [8]),
        ("matches beyond the most count alike", [*range(20), 70, *range(2, 20), 71, *range(20)], 1, [71]),
        ("two tokens are too few", [1, 2, 7, 7, 1, 2], 4, []),
        ("no room", [1, 2, 3, 1, 2, 3], 0, []),
        ("a window's drafts at most", [1, 2, 3] * 9, 40, [1, 2, 3] * 5),
        ("a text of one", [1], 15, []),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_copy_is(path: str, what: str, text: list[int], limit: int, expected: list[int]) -> None:
    assert copies(path, [text], [limit]) == [expected]


@each_path
def test_a_match_is_found_wherever_it_lies(path: str) -> None:
    seed = 5
    rng = np.random.default_rng(seed)
    for length in (70, 129, 1000):
        for at in range(2, length - 3):
            text = rng.integers(100, 248000, length)
            text[at - 2 : at + 1] = text[-3:]
            expected = [*text[at + 1 :], *text[at + 1 :]][:2]
            assert copies(path, [text.tolist()], [2]) == [expected], f"seed {seed}, {length} ids, {at}"
