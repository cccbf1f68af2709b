"""Numbers of a schema that no double holds are refused, and all others are enforced as they are written."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from flashnext.grammar import Grammar, GrammarError, numbers
from flashnext.text import jsontext
from support.grammars import accepts, compiler

LONG = "0.1000000000000000055511151231257827"  # the double that is written 0.1, with more of its digits
NINES = "9" * 500


@pytest.mark.parametrize(
    "number",
    [
        LONG,
        "1e-400",
        "1e309",
        "-1e999999999",
        "0.30000000000000001",
        NINES,
        f"1e{NINES * 10}",
        f"1e-{NINES * 10}",
    ],
)
@pytest.mark.parametrize(
    "place", ["multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const", "enum"]
)
@pytest.mark.parametrize("way", ["a schema", "a tool", "text beside tools", "Lark"])
def test_a_number_that_no_double_holds_is_refused_by_its_place(number: str, place: str, way: str) -> None:
    written = f'{{"properties": {{"a": {{"{place}": {f"[1, {number}]" if place == "enum" else number}}}}}}}'
    schema = jsontext.loads(written)
    pointer = f"/properties/a/{place}" + ("/1" if place == "enum" else "")
    tool = {"function": {"name": "f", "parameters": schema if way == "a tool" else {}}}
    with pytest.raises(GrammarError) as refused:
        if way == "a schema":
            compiler().compile(Grammar.json_schema(schema))
        elif way == "Lark":
            compiler().compile(Grammar.lark(f"start: %json {written}"))
        else:
            text = Grammar.json_schema(schema) if way == "text beside tools" else None
            compiler().compile(Grammar.calls([tool], text=text))
    assert refused.value.pointer.endswith(pointer)
    assert "has more digits than a double holds" in refused.value.reason
    assert number[:60] in refused.value.reason


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ('{"multipleOf": 0.10, "type": "number"}', ["0.3"], ["0.35"]),
        ('{"const": 1.50}', ["1.5"], ["1.51"]),
        ('{"maximum": 0e99999, "minimum": -1, "type": "number"}', ["0", "-0.5"], ["0.1"]),
        ('{"minimum": 1.0E1, "maximum": 10.50, "type": "number"}', ["10", "10.5"], ["9.99", "10.51"]),
        ('{"enum": [0.30000000000000004]}', ["0.30000000000000004"], ["0.3"]),
    ],
)
def test_a_number_that_is_only_written_in_another_way_is_enforced(
    schema: str, good: list[str], bad: list[str]
) -> None:
    compiled = compiler().compile(Grammar.json_schema(jsontext.loads(schema)))
    assert all(accepts(compiled, one) for one in good) and not any(accepts(compiled, one) for one in bad)


def test_a_long_number_where_nothing_is_asked_is_an_annotation() -> None:
    schema = jsontext.loads(f'{{"type": "integer", "default": {LONG}, "minLength": 2.00}}')
    compiled = compiler().compile(Grammar.json_schema(schema))
    assert accepts(compiled, "7")


def test_a_count_that_is_no_number_of_things_is_refused() -> None:
    for number in ("1e309", "1.5", "0.10"):
        with pytest.raises(GrammarError, match="/minLength: expected a count"):
            compiler().compile(Grammar.json_schema(jsontext.loads(f'{{"minLength": {number}}}')))


def test_json_is_written_back_digit_by_digit() -> None:
    text = f'{{"a":[{LONG},1.50,-0.0,1e5,[],{{}},"x",null,true],"b":12}}'
    for value in (numbers.loads(text), jsontext.loads(text)):
        assert numbers.dumps(value) == text
    plain: Any = {"a": [0.1, 1, "é"]}
    assert numbers.dumps(plain) == json.dumps(plain, ensure_ascii=False)


def test_a_number_is_exact_where_its_double_is_written_as_the_same_decimal() -> None:
    seed = 7
    rng = random.Random(seed)
    for _ in range(2000):
        digits = str(rng.randrange(10 ** rng.randint(1, 22)))
        text = f"{digits[0]}.{digits[1:] or 0}e{rng.randint(-320, 320)}"
        value = numbers.Spelled(text)
        told = float.__repr__(value)
        expected = told != "inf" and Decimal(text) == Decimal(told)
        assert numbers.is_exact(value) == expected, (seed, text)
