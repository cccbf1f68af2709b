"""`Written` follows str in its characters, and follows each character's origin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flashnext.errors import InvalidArgument
from flashnext.text.written import MAX_CHARS, Written
from hypothesis import given
from hypothesis import strategies as st

# Written characters are upper case and foreign ones are not, so that the origin can be read off the text.
PIECES = st.lists(st.tuples(st.text("AB \n", max_size=4), st.text("ab \n", max_size=4)), max_size=5)


def build(pieces: list[tuple[str, str]]) -> Written:
    return Written.concat(part for own, foreign in pieces for part in (Written.all_of(own), foreign))


def check(text: str) -> None:
    """Upper-case letters are the template's and lower-case ones are not."""
    own = {i for start, end in text.spans for i in range(start, end)} if isinstance(text, Written) else set()
    for i, c in enumerate(text):
        if c.isalpha():
            assert (i in own) == c.isupper(), (str.__str__(text), getattr(text, "spans", ()))


OPERATIONS: list[Callable[[str, int], Any]] = [
    lambda s, n: s.strip(),
    lambda s, n: s.lstrip("A "),
    lambda s, n: s.rstrip("b\n"),
    lambda s, n: s.split(),
    lambda s, n: s.split(None, n),
    lambda s, n: s.rsplit(None, n),
    lambda s, n: s.split("A", n),
    lambda s, n: s.rsplit("b", n),
    lambda s, n: s.splitlines(),
    lambda s, n: s.splitlines(True),
    lambda s, n: s.partition("a"),
    lambda s, n: s.rpartition("B"),
    lambda s, n: s.removeprefix("A"),
    lambda s, n: s.removesuffix("b"),
    lambda s, n: s.replace("a", "bb"),
    lambda s, n: s.replace("AB", "b", n),
    lambda s, n: s.replace("", "b"),
    lambda s, n: s[n:],
    lambda s, n: s[:-n],
    lambda s, n: s[::-1],
    lambda s, n: s[1:9:2],
    lambda s, n: s * n,
    lambda s, n: s + "ab",
    lambda s, n: "ab" + s,
    lambda s, n: s.join(["a", "b", "a"]),
    lambda s, n: list(s),
]


@pytest.mark.parametrize("index", range(len(OPERATIONS)))
@given(pieces=PIECES, n=st.integers(0, 3))
def test_operations_give_the_characters_of_str_and_keep_each_ones_origin(
    index: int, pieces: list[tuple[str, str]], n: int
) -> None:
    text = build(pieces)
    result = OPERATIONS[index](text, n)
    assert result == OPERATIONS[index](text.plain(), n)
    for part in [result] if isinstance(result, str) else result:
        check(part)


@given(PIECES)
def test_untracked_operations_lose_the_origin_and_never_invent_one(pieces: list[tuple[str, str]]) -> None:
    text = build(pieces)
    for result in (
        text.upper(),
        text.title(),
        text.center(50),
        text.zfill(50),
        f"{text:>30}",
        "".join([text]),
    ):
        assert not isinstance(result, Written) or not result.spans or result is text


def test_a_result_of_absurd_length_is_refused_before_it_is_built() -> None:
    text = Written("ab" * 1000)
    with pytest.raises(InvalidArgument, match="characters, the limit is"):
        _ = text * MAX_CHARS
    with pytest.raises(InvalidArgument, match="characters, the limit is"):
        text.replace("a", "x" * MAX_CHARS)
