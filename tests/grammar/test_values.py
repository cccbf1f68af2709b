"""Values of calls by their schemas, text in the place of calls, and schemas that are made to do harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from flashnext.grammar import Grammar, GrammarError
from flashnext.grammar import schema as schemas
from flashnext.grammar.schema import MAX_PATTERNS, MAX_PROPERTIES
from flashnext.grammar.tools import CLOSING, alone
from flashnext.text.arguments import arguments_json
from support.grammars import accepts, compiler


def tool(parameters: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def valued(schema: Any, defs: Any = None) -> dict[str, Any]:
    """Parameters with one, x, of this schema."""
    more = {} if defs is None else {"$defs": defs}
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], **more}


def call(*values: str, name: str = "f") -> tuple[str, str, str]:
    said = "".join(f"<parameter=x>\n{value}\n</parameter>\n" for value in values)
    return "<tool_call>", f"\n<function={name}>\n{said}</function>\n", "</tool_call>"


def refused(make: Callable[[], Grammar]) -> GrammarError:
    with pytest.raises(GrammarError) as found:
        compiler().compile(make())
    return found.value


COLOR = {"enum": ["red", "green"], "title": "Color"}
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

# A schema, what it refers to, values that are accepted, and values that are not.
VALUES: list[tuple[Any, Any, list[str], list[str]]] = [
    ({"type": ["string", "null"], "enum": ["a", None]}, None, ["a", "null"], ["b", '"a"']),
    ({"enum": ["a", 7, None]}, None, ["a", "7", "null"], ["b", "8"]),
    ({"type": "string", "const": "a"}, None, ["a"], ["b", '"a"']),
    ({"type": ["null", "string"], "const": "a"}, None, ["a"], ["null"]),
    ({"allOf": [{"$ref": "#/$defs/color"}], "default": "red"}, {"color": COLOR}, ["red"], ["blue", '"red"']),
    ({"$ref": "#/$defs/color"}, {"color": COLOR}, ["green"], ["blue"]),
    ({"anyOf": [{"$ref": "#/$defs/color"}, {"type": "integer"}]}, {"color": COLOR}, ["red", "12"], ["x"]),
    ({"anyOf": [{"type": "string", "maxLength": 2}, OBJECT]}, None, ["ab", '{"a": 1}'], ["abc", "{}", "["]),
    ({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "null"}, OBJECT]}, None, ["null"], ["[]"]),
    ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
     None, ["any\ntext [1]", "", "[1, 2]", "7"], ["[x]", "{}"]),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, ["[x", "{}", "null"], []),
    ({"allOf": [OBJECT, {"type": "object", "required": ["b"], "properties": {"b": {"type": "null"}}}]},
     None, ['{"a": 1, "b": null}'], ['{"a": 1}']),
    ({**OBJECT, "anyOf": [{"properties": {"b": {"const": 1}}, "required": ["b"]}]},
     None, ['{"a": 1, "b": 1}'], ['{"b": 1}']),
    ({"type": "string", "pattern": r"\d\/\d"}, None, ["x1/2y"], ["12"]),
    ({"type": "string", "pattern": "a/b"}, None, ["a/b"], ["ab"]),
    ({"type": "string", "pattern": r"^\d{2}$"}, None, ["12"], ["123", "x12", "1"]),
    ({"type": "string", "pattern": "^ab"}, None, ["abc"], ["xab"]),
    ({"type": "string", "pattern": "ab$"}, None, ["xab"], ["abc"]),
    ({"type": "string", "pattern": r"a\$"}, None, ["xa$y"], ["xa"]),
    ({"type": "string", "pattern": "^(a|b)$"}, None, ["a", "b"], ["ab"]),
    ({"type": "string", "pattern": "[$€^]1"}, None, ["x$1"], ["x1"]),
    ({"type": "string", "pattern": r"[]$]1[\]^]"}, None, ["x$1^"], ["x1^"]),
    ({"type": "string", "pattern": "a|b"}, None, ["17 b", "a"], ["17", f"17{CLOSING}<parameter=y>\nab"]),
    ({"type": "string", "minLength": 9}, None, ["123456789"],
     ["1234", f"1{CLOSING}</function>\n", "1</parameter>1"]),
    ({"type": "integer", "format": "int32"}, None, ["7"], ["x"]),
    ({"type": "array", "items": {"type": "string", "format": "uri-reference"}}, None, ['["a b"]'], ["[1]"]),
    ({"enum": ["a\x7f"]}, None, ["a\x7f"], ["a"]),
    ({"enum": ["a", "bcd"], "maxLength": 2}, None, ["a"], ["bcd"]),
    ({"anyOf": [{"$ref": "#/properties/x"}, {"type": "string", "maxLength": 1}]}, None, ["a"], ["ab"]),
    ({"$ref": "#/$defs/any"}, {"any": True}, ["text", "1"], []),
    ({"type": "array", "items": {"type": "integer"}}, None, ["[1, 2]", "[1,\n  2]"], ["[1,  2]", "[1]\t"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "defs", "good", "bad"), VALUES, ids=[json.dumps(v[0])[:60] for v in VALUES]
)
def test_a_value_keeps_to_its_schema_and_is_read_back_as_what_it_is(
    schema: Any, defs: Any, good: list[str], bad: list[str]
) -> None:
    parameters = valued(schema, defs)
    compiled = compiler().compile(Grammar.calls([tool(parameters)]))
    for value in good:
        assert accepts(compiled, *call(value)), value
        if "#/properties/x" not in json.dumps(schema):  # jsonschema follows that without an end
            jsonschema.validate(json.loads(arguments_json({"x": value}, parameters)), parameters)
    for value in bad:
        assert not accepts(compiled, *call(value)), value


def test_parameters_behind_a_reference_are_those_of_the_function() -> None:
    parameters = {"$ref": "#/$defs/node", "$defs": {"node": valued({"type": "integer"})}}
    compiled = compiler().compile(Grammar.calls([tool(parameters)]))
    assert accepts(compiled, *call("7")) and not accepts(compiled, *call())
    assert arguments_json({"x": "7"}, parameters) == '{"x": 7}'


def doubled(levels: int) -> dict[str, Any]:
    """2^levels ways from one schema to text."""
    defs: dict[str, Any] = {
        f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 1}"}]}
        for i in range(levels)
    }
    return valued({"$ref": "#/$defs/a0"}, {**defs, f"a{levels}": {"type": "string"}})


def copied(n: int) -> dict[str, Any]:
    """A schema of which each of n values holds a copy of what is long."""
    values = {f"p{i}": {"$ref": "#/$defs/a"} for i in range(n)}
    return {"properties": values, "$defs": {"a": {"enum": [i for i in range(20_000)]}}}


def chained(n: int, n_defs: int) -> dict[str, Any]:
    """Parameters that refer to definitions, each to its own and to the one that that refers to."""
    defs: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {"next": {"$ref": f"#/$defs/e{i}"}}, "title": "x" * 500}
        for i in range(n_defs)
    }
    defs |= {f"e{i}": {"enum": [i, i + 1000], "description": "x" * 1000} for i in range(n_defs)}
    values = {f"p{i}": {"$ref": f"#/$defs/d{i % n_defs}"} for i in range(n)}
    return {"properties": values, "required": ["p0", f"p{n - 1}"], "$defs": defs}


REFUSED: list[tuple[str, Any, str]] = [
    ("alternatives without end", doubled(200), "/properties/x"),
    ("too many alternatives", doubled(40), "/properties/x"),
    ("too many copies", copied(500), "/properties/p16"),
    ("text that has to be very long", valued({"minLength": 2001}), "/properties/x/minLength"),
    ("said twice", valued({"type": "string", "minLength": 1, "allOf": [{"minLength": 2}]}), "/properties/x"),
    ("no text is left", valued({"type": "string", "enum": [1]}), "/properties/x"),
    ("no const is left", valued({"type": "string", "const": "ab", "maxLength": 1}), "/properties/x/const"),
    ("a pattern beside", valued({"enum": ["a"], "pattern": "a"}), "/properties/x/enum"),
    ("anchored inside", valued({"type": "string", "pattern": "a^b"}), "/properties/x/pattern"),
    ("anchored alternatives", valued({"type": "string", "pattern": "^a|b$"}), "/properties/x/pattern"),
    ("oneOf that overlap", valued({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
     "/properties/x"),
    ("oneOf that overlap, in an object that is not empty",
     {**valued({"type": "number", "oneOf": [{"minimum": 1}, {"minimum": 2}]}), "minProperties": 1},
     "/properties/x"),
    ("no object", {"type": "array"}, "/type"),
    ("one of several objects", {**valued({}), "anyOf": [{"required": ["x"]}]}, "/anyOf"),
    ("more than are required", {"properties": {"x": {}}, "minProperties": 1}, "/minProperties"),
    ("fewer than there are", {"properties": {"x": {}}, "maxProperties": 0}, "/maxProperties"),
    ("a reference out of the schemas", valued({"$ref": "#/examples/0"}) | {"examples": [{"anyOf": 5}]},
     "/examples/0/anyOf"),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "pointer"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED])
def test_parameters_that_cannot_be_kept_to_are_refused_with_their_pointer(
    parameters: Any, pointer: str
) -> None:
    assert refused(lambda: Grammar.calls([tool({}, "g"), tool(parameters)])).pointer == (
        f"/1/function/parameters{pointer}"
    )


def test_each_parameter_holds_what_it_refers_to_and_no_more() -> None:
    compiled = compiler().compile(Grammar.calls([tool(chained(200, 100))]))

    def said(first: str, last: str) -> str:
        values = {"p0": first, "p199": last}
        told = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"\n<function=f>\n{told}</function>\n"

    for first, last, good in (
        ('{"next": 0}', '{"next": 1099}', True),
        ('{"next": 1}', '{"next": 99}', False),
        ('{"next": 0}', '{"next": 0}', False),
    ):
        assert accepts(compiled, "<tool_call>", said(first, last), "</tool_call>") == good


def test_a_schema_that_stands_by_itself_is_valid_for_what_it_was_and_keeps_no_other_part() -> None:
    root = {
        "$defs": {
            "a/b": {"type": "array", "items": {"$ref": "#/$defs/c%7E"}, "title": "t"},
            "c~": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/x"}]},
            "unused": {"type": "string"},
        },
        "properties": {"x": {"const": {"$ref": "no reference"}}, "$ref": {"type": "integer"}},
    }
    for schema, good, bad in (
        ({"$ref": "#/$defs/a~1b"}, [[], [None, {"$ref": "no reference"}]], [[1], [{"$ref": "x"}], {}]),
        ({"$ref": "#"}, [{}, {"x": {"$ref": "no reference"}, "$ref": 5}], [{"x": 1}, {"$ref": "a"}]),
        ({"type": "integer"}, [1], ["a"]),
        (True, [1, "a"], []),
    ):
        found = alone(schema, root)
        assert "unused" not in json.dumps(found) and "title" not in json.dumps(found)
        for value in good:
            jsonschema.validate(value, found)
        for value in bad:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(value, found)


def test_a_parameter_that_fails_is_named_also_where_others_refer_to_it() -> None:
    wrong = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    parameters = {"properties": {"x": {"type": "integer"}, "y": wrong, "z": {"$ref": "#/properties/y"}}}
    error = refused(lambda: Grammar.calls([tool(parameters)]))
    assert error.pointer == "/0/function/parameters/properties/y"
    assert error.reason.startswith("the alternatives of oneOf")


def test_a_tool_is_named_by_its_place_among_all() -> None:
    wrong = tool(valued({"not": {}}))
    assert (
        refused(lambda: Grammar.calls([wrong], first=3)).pointer == "/3/function/parameters/properties/x/not"
    )


# --- calls or text

ANSWER = {
    "type": "object",
    "properties": {"n": {"enum": [3]}},
    "required": ["n"],
    "additionalProperties": False,
}


def test_a_reply_calls_or_says_json_and_never_both() -> None:
    text = Grammar.json_schema(ANSWER, strict=True)
    compiled = compiler().compile(Grammar.calls([tool(valued({"type": "integer"}))], text=text))
    assert accepts(compiled, '{"n": 3}')
    assert accepts(compiled, *call("7")) and accepts(compiled, *call("7"), "\n", *call("8"))
    for wrong in (("no",), ('{"n": 4}',), ('{"n":  3}',), ('{"n": 3}', *call("7")), (*call("7"), '{"n": 3}')):
        assert not accepts(compiled, *wrong), wrong


@pytest.mark.parametrize(
    ("schema", "strict", "pointer"),
    [
        ({"properties": {"a": {"not": {}}}}, False, "/text/properties/a/not"),
        ({"type": "object", "properties": {"a": {}}}, True, "/text/additionalProperties"),
        ({"anyOf": [{"$ref": "#"}]}, False, "/text"),
        (
            {"properties": {"q": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}},
            False,
            "/text/properties/q",
        ),
        (False, False, "/text"),
    ],
)
def test_a_text_that_cannot_be_enforced_is_refused_with_its_pointer(
    schema: Any, strict: bool, pointer: str
) -> None:
    text = Grammar.json_schema(schema, strict=strict)
    assert refused(lambda: Grammar.calls([tool({})], text=text)).pointer == pointer


def test_text_that_is_no_json_is_not_taken_in_the_place_of_calls() -> None:
    assert "only JSON" in str(refused(lambda: Grammar.calls([tool({})], text=Grammar.regex("a"))))


def test_a_text_beside_calls_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    real = schemas.check

    def counted(schema: Any, **how: Any) -> Any:
        checked.append(schema)
        return real(schema, **how)

    monkeypatch.setattr(schemas, "check", counted)
    text = Grammar.json_schema(ANSWER, strict=True)
    compiler().compile(Grammar.calls([tool(valued({"type": "integer"}))], text=text))
    assert checked.count(ANSWER) == 1


# --- what is made to do harm

HARMFUL: list[tuple[str, Callable[[], Grammar], str]] = [
    ("a format of another type", lambda: Grammar.json_schema({"format": []}), "/format"),
    ("a format that is an object", lambda: Grammar.json_schema({"items": {"format": {}}}), "/items/format"),
    ("an index in other digits",
     lambda: Grammar.json_schema({"anyOf": [{}], "items": {"$ref": "#/anyOf/²"}}), "/items/$ref"),
    ("a long index",
     lambda: Grammar.json_schema({"anyOf": [{}], "items": {"$ref": "#/anyOf/" + "0" * 5000}}), "/items/$ref"),
    ("a reference to a reference that leads nowhere",
     lambda: Grammar.json_schema({"$ref": "#/examples/0", "examples": [{"items": {"$ref": "#/no"}}]}),
     "/examples/0/items/$ref"),
    ("a number of 400 digits", lambda: Grammar.json_schema({"enum": [10**400]}), "/enum/0"),
    ("half a pair in a schema", lambda: Grammar.json_schema(json.loads('{"const":"\\ud800"}')), ""),
    ("half a pair in a choice", lambda: Grammar.choice(["\ud800"]), ""),
    ("half a pair in a regex", lambda: Grammar.regex("\ud800"), ""),
    ("half a pair in a grammar", lambda: Grammar.lark('start: "\ud800"'), ""),
    ("more patterns than are compiled",
     lambda: Grammar.json_schema({"anyOf": [{"pattern": f"a{i}"} for i in range(MAX_PATTERNS + 1)]}),
     f"/anyOf/{MAX_PATTERNS}/pattern"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "pointer"), [row[1:] for row in HARMFUL], ids=[row[0] for row in HARMFUL])
def test_what_no_schema_has_is_refused_and_nothing_else_fails(
    make: Callable[[], Grammar], pointer: str
) -> None:
    assert refused(make).pointer == pointer


def test_one_pattern_may_stand_in_as_many_places_as_an_object_has_properties() -> None:
    many = {f"p{i}": {"type": "string", "pattern": "^a$"} for i in range(MAX_PROPERTIES)}
    compiled = compiler().compile(Grammar.json_schema({"type": "object", "properties": many}))
    assert accepts(compiled, '{"p0": "a", "p999": "a"}') and not accepts(compiled, '{"p0": "b"}')
    more = {"items": {"properties": {**many, "q": {}}}}
    assert refused(lambda: Grammar.json_schema(more)).pointer == "/items/properties"


@pytest.mark.parametrize("settings", [5, {"lenient": True, "item_separator": ";"}])
def test_settings_of_the_compiler_are_annotations_wherever_they_stand(settings: Any) -> None:
    items = {"type": "integer", "x-guidance": settings}
    compiled = compiler().compile(
        Grammar.json_schema({"type": "array", "items": items, "x-guidance": settings})
    )
    assert accepts(compiled, "[1, 2]") and not accepts(compiled, "[1;2]")
