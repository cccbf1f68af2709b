"""The start benchmark reads reports and streams rightly, and times a real start of the engine."""

from __future__ import annotations

import pytest
import start
from start import Imported, StartError, has_text, imports_by_package, summarize

REPORT = """\
import time: self [us] | cumulative | imported package
import time:       100 |        100 |   numpy.core
import time:      1900 |       2000 | numpy
import time:       500 |       2500 | flashnext.engine
a warning between the lines
import time:       250 |        250 | flashnext
"""


def test_imports_add_up_by_package_without_counting_anything_twice() -> None:
    assert imports_by_package(REPORT) == [Imported("numpy", 2.0), Imported("flashnext", 0.75)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'data: {"choices":[{"delta":{"content":"Hi"}}]}', True),
        (b'data: {"choices":[{"delta":{"reasoning_content":"So"}}]}', True),
        (b'data: {"choices":[],"usage":{"prompt_tokens":1}}', False),
        (b"data: [DONE]", False),
        (b": keep-alive", False),
        (b"", False),
    ],
)
def test_first_text_of_a_stream_is_told_from_what_comes_before(line: bytes, expected: bool) -> None:
    assert has_text(line) is expected


def test_first_start_is_shown_apart_from_the_others() -> None:
    runs = [{"first token": 9.0}, {"first token": 1.0}, {"first token": 3.0}, {"first token": 2.0}]
    assert list(summarize("Engine", runs)) == ["| Engine | first token | 2.000 | 1.000-3.000 | 9.000 |"]


def test_one_start_alone_is_still_a_figure() -> None:
    assert list(summarize("Engine", [{"first token": 1.5}])) == [
        "| Engine | first token | 1.500 | 1.500-1.500 | 1.500 |"
    ]


def test_marks_of_a_real_start_come_in_order() -> None:
    marks = start.time_engine()
    assert list(marks) == ["interpreter", "imports", "checkpoint loaded", "first token"]
    assert list(marks.values()) == sorted(marks.values())


def test_server_that_cannot_start_is_reported_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "SERVE", "import sys; sys.exit('no such checkpoint')")
    with pytest.raises(StartError, match="no such checkpoint"):
        start.time_server()


def test_marks_of_a_real_server_come_in_order() -> None:
    marks = start.time_server()
    assert list(marks) == ["answers", "first token"]
    assert 0 < marks["answers"] <= marks["first token"]
