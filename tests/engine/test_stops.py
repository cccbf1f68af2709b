"""Stop strings: found wherever they are, at any split, and nothing held that cannot become one."""

from __future__ import annotations

from flashnext.engine.stops import StopMatcher
from hypothesis import given
from hypothesis import strategies as st

STOPS = st.lists(st.text("ab<é", min_size=1, max_size=4), max_size=3)
PIECES = st.lists(st.text("ab<é", max_size=5), max_size=8)


def end_of(text: str, stops: list[str]) -> int | None:
    """Where the reply ends, by trying every beginning of the text for a stop string at its end."""
    for n in range(len(text) + 1):
        found = [stop for stop in stops if text[:n].endswith(stop)]
        if found:
            return n - max(map(len, found))
    return None


@given(PIECES, STOPS)
def test_the_text_before_the_first_complete_stop_string_and_no_more(
    pieces: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for i, piece in enumerate(pieces):
        shown += matcher.feed(piece)
        text = "".join(pieces[: i + 1])
        end = end_of(text, stops)
        if end is not None:
            assert (shown, matcher.matched is not None) == (text[:end], True)
            assert matcher.feed("more") == matcher.flush() == ""
            return
        held = text.removeprefix(shown)
        starts = [n for n in range(len(text) + 1) if any(s.startswith(text[len(text) - n :]) for s in stops)]
        assert len(held) == max(starts, default=0)  # exactly the longest end that begins a stop string
    assert shown + matcher.flush() == "".join(pieces)
    assert matcher.matched is None


def test_a_long_stop_string_holds_back_its_matching_beginning_only() -> None:
    matcher = StopMatcher(["x" * 500])
    assert matcher.feed("short reply") == "short reply"
    assert matcher.feed(" with x") == " with "
    assert matcher.feed("y") == "xy"
