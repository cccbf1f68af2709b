"""JSON as it comes: digits kept, doubles refused, depth bounded, broken characters mended."""

from __future__ import annotations

import json

import pytest
from flashnext.errors import InvalidArgument
from flashnext.text.jsontext import MAX_DEPTH, Number, clean_text, clean_value, dumps, loads
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
FORMATS = st.fixed_dictionaries(
    {"indent": st.sampled_from([None, 0, 2, "\t"]), "sort_keys": st.booleans(), "ensure_ascii": st.booleans()}
)


@given(VALUES, FORMATS)
def test_dumps_writes_what_the_standard_library_writes(value: object, form: dict[str, object]) -> None:
    assert dumps(value, **form) == json.dumps(value, **form)  # type: ignore[arg-type]


@given(VALUES, FORMATS)
def test_dumps_beside_a_number_writes_what_the_standard_library_writes(
    value: object, form: dict[str, object]
) -> None:
    ours = dumps([value, {"n": Number("1e309")}], **form)  # type: ignore[arg-type]
    theirs = json.dumps([value, {"n": "<n>"}], **form)  # type: ignore[arg-type]
    assert ours == theirs.replace('"<n>"', "1e309")


@pytest.mark.parametrize(
    "text", ["1234567890123456789", "1e309", "-1E+400", "1.10", "-0", "-0.0", "1e3", "0.1", "9" * 5000, "1E5"]
)
def test_a_number_is_written_back_in_its_own_digits(text: str) -> None:
    assert dumps(loads(f'{{"a": [{text}]}}')) == f'{{"a": [{text}]}}'


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice"),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("[1,]", "not JSON: .* at line 1, column"),
        (b'"\xff"', "byte 1 is not UTF-8"),
        (b'"\xed\xa0\xbd"', "byte 1 is not UTF-8"),
        ("[" * 20000 + "]" * 20000, "nested deeper"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested deeper"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested deeper"),
    ],
)
def test_what_is_not_plain_json_is_refused(data: str | bytes, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        loads(data, unique_keys=True)


def test_the_deepest_allowed_nesting_is_read() -> None:
    loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)


@given(st.text(st.characters()))
def test_cleaned_text_can_be_encoded_and_is_otherwise_unchanged(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    assert clean_text(cleaned) == cleaned
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert cleaned == text


def test_cleaning_reaches_keys_and_values() -> None:
    assert clean_value({"\ud83d": ["\ude00", 1]}) == {"\ufffd": ["\ufffd", 1]}
