"""What grammars accept and refuse: schemas, regexes, choices, Lark, calls; and the bounds of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from flashnext.grammar import Grammar, GrammarError
from flashnext.grammar.schema import MAX_DEPTH
from flashnext.grammar.spec import MAX_CHARS
from support.grammars import accepts, compiler

CLOSED: dict[str, Any] = {"additionalProperties": False}
TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "children": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["name", "children"],
    **CLOSED,
}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def refused(make: Callable[[], Grammar]) -> GrammarError:
    with pytest.raises(GrammarError) as found:
        compiler().compile(make())
    return found.value


# --- JSON


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (TREE, '{"name":"a","children":[{"name":"b","children":[]}]}', '{"name":"A","children":[]}'),
        ({"type": "string", "pattern": "ab"}, '"xxabyy"', '"ba"'),
        ({"type": "string", "pattern": r"\p{L}"}, '"é"', '"1"'),
        ({"type": "string", "minLength": 2, "maxLength": 3}, '"äö"', '"äöüß"'),
        ({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}, "11", "12"),
        ({"type": "number", "multipleOf": 0.5}, "2.5", "2.3"),
        ({"enum": ["a", 1, None, {"b": [True]}]}, '{"b":[true]}', '{"b":[false]}'),
        ({"prefixItems": [{"type": "null"}], "items": {"type": "boolean"}}, "[null,true]", "[1]"),
        ({"type": "array", "items": {"const": 0}, "minItems": 1, "maxItems": 2}, "[0,0]", "[0,0,0]"),
        ({"type": "string", "format": "date"}, '"2024-02-29"', '"2024-13-01"'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", "1.5"),
        ({"type": ["string", "null"]}, '"é\\n"', "true"),
        ({"const": 2**53 - 1}, "9007199254740991", "9007199254740990"),
        ({"type": "object", "minProperties": 1}, '{"a":1}', "{}"),
        ({"type": "object", "required": ["a"], "minProperties": 2}, '{"a":1,"b":2}', '{"a":1,"a":2}'),
        ({"type": "array", "uniqueItems": False}, "[1,1]", "{}"),
    ],
)  # fmt: skip
def test_what_a_schema_says_is_enforced(schema: Any, good: str, bad: str) -> None:
    compiled = compiler().compile(Grammar.json_schema(schema))
    assert accepts(compiled, good) and not accepts(compiled, bad)


def test_json_object_is_any_object_and_nothing_else() -> None:
    compiled = compiler().compile(Grammar.json_object())
    assert accepts(compiled, '{"a": [1, {"b": null}],\n  "c": "x"\n}')
    for text in ("[]", "1", '"{}"', "{} ", " {}", "{}{}", "{'a': 1}"):
        assert not accepts(compiled, text), text


@pytest.mark.parametrize(
    "text", ['{  "a":1}', '{\n\n"a":1}', '{"a":\t1}', '{"a":1  }', "{" + "\n" + " " * 33 + "}"]
)
def test_white_space_is_bounded(text: str) -> None:
    assert not accepts(compiler().compile(Grammar.json_object()), text)
    assert accepts(compiler().compile(Grammar.json_object()), json.dumps({"a": 1}, indent=4))


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "strng"}, "/type"),
        ({"properties": {"a/b": {"$ref": "#/$defs/none"}}}, "/properties/a~1b/$ref"),
        ({"$ref": "#"}, "/$ref"),
        ({"$ref": "https://example.com/x"}, "/$ref"),
        ({"$ref": "#/unevaluatedProperties", "unevaluatedProperties": {}}, "/$ref"),
        ({"items": {"$ref": "#/x-guidance"}, "x-guidance": {"type": "null"}}, "/items/$ref"),
        ({"items": {"$ref": "#/$defs/a/then"}, "$defs": {"a": {"then": {}}}}, "/items/$ref"),
        ({"properties": {"x": {"not": {"type": "null"}}}}, "/properties/x/not"),
        ({"items": {"type": "string", "pattern": r"^(?=.*\d).+$"}}, "/items/pattern"),
        ({"items": {"type": "string", "pattern": "("}}, "/items/pattern"),
        ({"properties": {"q": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}}, "/properties/q"),
        ({"properties": {"x": {"type": "string", "format": "color"}}}, "/properties/x/format"),
        ({"enum": []}, "/enum"),
        ({"const": 2**53 + 1}, "/const"),
        ({"items": {"enum": [1, {"a": [-(2**53) - 1]}]}}, "/items/enum/1"),
        ({"type": "integer", "minimum": 2**53 + 1}, "/minimum"),
        ({"type": "integer", "exclusiveMaximum": 2**60}, "/exclusiveMaximum"),
        ({"type": "object", "minProperties": 2}, "/minProperties"),
        ({"patternProperties": {"^a": {}}, **CLOSED, "minProperties": 2}, "/minProperties"),
        ({"uniqueItems": True}, "/uniqueItems"),
        ({"minLength": -1}, "/minLength"),
        ({"maximum": "3"}, "/maximum"),
        ({"properties": []}, "/properties"),
        ({"anyOf": {}}, "/anyOf"),
        ({"items": [{}]}, "/items"),
        ({"required": "a"}, "/required"),
        ({"properties": {"a": 5}}, "/properties/a"),
        ({"$schema": "http://localhost/mine"}, "/$schema"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_enforced_is_refused_with_its_json_pointer(schema: Any, pointer: str) -> None:
    error = refused(lambda: Grammar.json_schema(schema))
    assert error.pointer == pointer and str(error).startswith(f"at {pointer}: ")


def test_strict_needs_closed_objects_and_all_properties() -> None:
    inner = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    open_inside = {"type": "object", "properties": {"o": inner}, "required": ["o"], **CLOSED}
    assert refused(lambda: Grammar.json_schema(open_inside, strict=True)).pointer == (
        "/properties/o/additionalProperties"
    )
    optional = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], **CLOSED}
    assert refused(lambda: Grammar.json_schema(optional, strict=True)).pointer == "/required"
    compiler().compile(Grammar.json_schema(optional))
    compiler().compile(Grammar.json_schema(TREE, strict=True))


@pytest.mark.parametrize(
    "schema", [False, {"anyOf": [{"$ref": "#"}]}, {"allOf": [{"const": 1}, {"const": 2}]}]
)
def test_a_schema_that_nothing_is_valid_under_is_refused(schema: Any) -> None:
    refused(lambda: Grammar.json_schema(schema))


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 500, 10_000, 200_000])
def test_a_schema_that_is_nested_too_deep_is_refused(levels: int) -> None:
    assert "nested" in str(refused(lambda: Grammar.json_schema(nested(levels))))
    compiler().compile(Grammar.json_schema(nested(MAX_DEPTH)))


def test_what_is_too_long_or_too_much_is_refused() -> None:
    refused(lambda: Grammar.json_schema({"description": "x" * MAX_CHARS}))
    refused(lambda: Grammar.json_schema({"anyOf": [{"const": i} for i in range(9000)]}))
    refused(lambda: Grammar.regex("a" * 20_000))
    refused(lambda: Grammar.choice(["a"] * 5000))
    assert "not JSON" in str(refused(lambda: Grammar.json_schema({"const": float("inf")})))


# --- text


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("ab+", "abbb", "xabbb"),
        (r"^\d{3}-\d{2}$", "123-45", "123-456"),
        ("(?i)yes|no", "YES", "maybe"),
        (r"[^\x00-\x7F]{2}", "äß", "ab"),
        ("a.c", "a😀c", "ac"),
    ],
)
def test_a_regex_is_matched_as_a_whole(pattern: str, good: str, bad: str) -> None:
    compiled = compiler().compile(Grammar.regex(pattern))
    assert accepts(compiled, good) and not accepts(compiled, bad)


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?<!a)b", "(", "a{3,2}", r"(a)\1", "(" * 300 + ")" * 300])
def test_a_regex_that_cannot_be_matched_is_refused(pattern: str) -> None:
    refused(lambda: Grammar.regex(pattern))


def test_a_choice_is_one_of_its_texts() -> None:
    compiled = compiler().compile(Grammar.choice(["yes", "yes, please", 'say "no"\n', "a\x7f"]))
    assert all(accepts(compiled, text) for text in ("yes", "yes, please", 'say "no"\n', "a\x7f"))
    assert not any(accepts(compiled, text) for text in ("ye", "no", "yes,"))
    for wrong in ([], [""], [1], "yes"):
        with pytest.raises(GrammarError):
            Grammar.choice(wrong)  # type: ignore[arg-type]


def test_a_lark_grammar_is_context_free() -> None:
    compiled = compiler().compile(Grammar.lark('start: "(" start ")" | "x"'))
    assert accepts(compiled, "(((x)))") and not accepts(compiled, "((x)")
    for wrong in (
        "start: nope",
        "root ::= 1",
        "",
        'start: start "a"',
        "start: " + "(" * 200 + '"a"' + ")" * 200,
    ):
        refused(lambda wrong=wrong: Grammar.lark(wrong))  # type: ignore[misc]


@pytest.mark.parametrize("text", ['{"a":"<|im_end|>"}', '{"a":"<tool_call>"}', '{"a":"</think>"}'])
def test_text_that_spells_a_control_token_is_text(text: str) -> None:
    compiled = compiler().compile(Grammar.json_object())
    assert accepts(compiled, text)
    begin, end = text.index("<"), text.index(">") + 1
    assert not accepts(compiled, text[:begin], text[begin:end], text[end:])


# --- calls

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 2},
        "unit": {"enum": ["c", "f"]},
        "flags": {"type": "array", "items": {"$ref": "#/$defs/flag"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "code": {"type": "string", "pattern": "ab", "maxLength": 5},
    },
    "required": ["city", "days", "unit"],
    "$defs": {"flag": {"type": "boolean"}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "stop"}},
]


def call(name: str, **values: str) -> tuple[str, str, str]:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return "<tool_call>", f"\n<function={name}>\n{body}</function>\n", "</tool_call>"


GOOD = {"city": "New\nYork </para", "days": "3", "unit": "c"}


def test_a_call_has_the_format_of_the_template_and_values_by_the_schema() -> None:
    compiled = compiler().compile(Grammar.calls(TOOLS))
    assert accepts(compiled, *call("weather", **GOOD))
    assert accepts(compiled, *call("weather", **GOOD, flags="[true, false]", note="null", code="xaby"))
    assert accepts(compiled, *call("stop"))
    for wrong in (
        {**GOOD, "days": "1"}, {**GOOD, "unit": "k"}, {"city": "x", "days": "3"}, {**GOOD, "other": "x"},
        {**GOOD, "flags": "[1]"}, {**GOOD, "code": "xay"}, {**GOOD, "code": "xaybab"},
    ):  # fmt: skip
        assert not accepts(compiled, *call("weather", **wrong)), wrong
    assert not accepts(compiled, "no") and not accepts(compiled, *call("other"))


def test_several_calls_only_where_they_may_be() -> None:
    two = (*call("stop"), "\n", *call("weather", **GOOD))
    assert accepts(compiler().compile(Grammar.calls(TOOLS)), *two)
    assert not accepts(compiler().compile(Grammar.calls(TOOLS, several=False)), *two)


def test_a_tool_whose_schema_cannot_be_enforced_is_refused_with_its_pointer() -> None:
    for parameters, pointer in (
        ({"properties": {"x": {"type": "strng"}}}, "/0/function/parameters/properties/x/type"),
        ({"properties": {"a>b": {}}}, "/0/function/parameters/properties/a>b"),
        ({"properties": {}, "required": ["y"]}, "/0/function/parameters/required"),
        (
            {"properties": {"x": {"$ref": "#/propertyNames"}}, "propertyNames": {}},
            "/0/function/parameters/properties/x/$ref",
        ),
    ):
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        assert refused(lambda tools=tools: Grammar.calls(tools)).pointer == pointer  # type: ignore[misc]
