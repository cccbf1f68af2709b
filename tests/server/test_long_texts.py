"""Long plain texts of a body: the parser never sees them, and all else is read as it reads the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flashnext.server import body
from flashnext.server.long_texts import LONG_BYTES, cut_out, put_back
from flashnext.text.jsontext import loads
from flashnext.text.messages import InvalidField
from hypothesis import given, settings
from hypothesis import strategies as st

LONG = "data:image/png;base64," + "QUJD" * (LONG_BYTES // 2)
PLAIN = [LONG, "A" * 2 * LONG_BYTES, "7" * 3 * LONG_BYTES]
# Not plain, or not long.
OTHER = [
    "A" * 100, "a b" * LONG_BYTES, "\u00e9" * 2 * LONG_BYTES, "]" * 2 * LONG_BYTES, "A\n" * LONG_BYTES,
    "-" + LONG, "\"" + LONG, LONG + "\\", "\\\"" + LONG, ",1" * 2 * LONG_BYTES,
]  # fmt: skip

texts = st.sampled_from([*PLAIN, *OTHER]) | st.text(max_size=5)
values: st.SearchStrategy[Any] = st.recursive(
    texts | st.none() | st.booleans() | st.integers(-9, 9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_what_is_cut_out_and_put_back_is_what_was_there(value: Any, escape: bool, indent: int | None) -> None:
    data = json.dumps(value, ensure_ascii=escape, indent=indent).encode()
    short, texts = cut_out(data)
    assert put_back(loads(short), texts) == value
    assert set(texts.values()) <= set(PLAIN)


def test_a_long_plain_text_is_cut_out_wherever_it_lies() -> None:
    for shift in (0, 1, LONG_BYTES // 2, LONG_BYTES - 1, LONG_BYTES):
        value = {"a": " " * shift, "b": [LONG, {"c": LONG + "A"}], "d": 1.5}
        short, texts = cut_out(json.dumps(value).encode())
        assert len(short) < shift + 200 and len(texts) == 2
        assert put_back(loads(short), texts) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": ' + LONG + "}",
        '{"a": "x" ' + LONG + ' "y"}',
        '{"a": "x"' + "1" * 2 * LONG_BYTES + '"y"}',
        '{"a": "' + LONG,
        '{"a": "' + LONG + '",}',
        '{"' + LONG + '": 1, "' + LONG + '": 2}',
        '["a",' + "1," * LONG_BYTES + '"b"',
        '{"a": "' + LONG + '"} "' + LONG + '"',
    ],
    ids=range(8),
)
def test_what_is_no_json_is_refused_in_the_same_words(text: str) -> None:
    data = bytearray(text.encode())
    with pytest.raises(ValueError) as whole:
        loads(data, unique_keys=True)
    with pytest.raises(InvalidField) as read:
        body._parse(data, lambda value: None)
    assert read.value.problem == f"expected a JSON object, but {whole.value}"


def test_the_parser_is_given_no_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def watched(data: bytes, **more: Any) -> Any:
        given.append(len(data))
        return loads(data, **more)

    monkeypatch.setattr(body, "loads", watched)
    value = {"messages": [{"content": [{"image_url": {"url": LONG * 20}}] * 3}]}
    assert body._parse(bytearray(json.dumps(value).encode()), lambda read: read) == (value, value)
    assert max(given) < 1000
