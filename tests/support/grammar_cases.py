"""Grammars that replies are asked for, each with what tells whether a text matches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
from flashnext.grammar import Grammar

Case = tuple[Grammar, Callable[[str], bool]]

WORD = {"type": "string", "pattern": "^[a-z]{1,8}$"}
SHORT = {"type": "string", "maxLength": 12}


def closed(required: bool = True, **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(properties)} if required else schema


def several(items: Any, least: int = 0, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


SCHEMAS: list[Any] = [
    closed(a={"type": "integer", "minimum": 0, "maximum": 99}),
    closed(a=SHORT, b={"type": "boolean"}),
    closed(required=False, a=SHORT, b={"type": "null"}),
    closed(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 150}),
    closed(o=closed(p=closed(q={"type": "boolean"}))),
    closed(xs=several({"type": "integer", "minimum": -9, "maximum": 9}, 1)),
    several(closed(k=WORD), 1, 2),
    several(several({"type": "boolean"}, 0, 2), 1, 2),
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, "1", None, [1], {"one": 1}]},
    {"const": {"fixed": [True, None]}},
    closed(color={"enum": ["rot", "grün", "blau"]}, code={"const": 7}),
    {"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"},
    {"type": "string", "pattern": "^(ab|cd){2,3}$"},
    {"type": "string", "pattern": "^[αβγδ]{2,5}$"},
    {"type": "string", "pattern": "^\\p{Lu}\\p{Ll}{2,5}$"},
    {"type": "string", "minLength": 3, "maxLength": 6},
    {"type": "string", "maxLength": 0},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "uuid"},
    {"type": "integer", "minimum": 17, "maximum": 23},
    {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": -2},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    {"type": "number", "minimum": 0.25, "maximum": 0.75},
    {"type": "boolean"},
    {"type": "null"},
    {"anyOf": [closed(a={"type": "boolean"}), closed(b={"type": "null"})]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    {"type": ["boolean", "null"]},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False, "minItems": 2},
    closed(p={"$ref": "#/$defs/point"}, q={"$ref": "#/$defs/point"})
    | {"$defs": {"point": several({"type": "integer", "minimum": 0, "maximum": 9}, 2, 2)}},
    closed(v={"type": "boolean"}, next={"anyOf": [{"type": "null"}, {"$ref": "#"}]}),
    closed(name=WORD, children=several({"$ref": "#"}, 0, 1)),
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "null"}}, "additionalProperties": False},
    {"type": "object", "properties": {"": {"const": 1}, 'quo"te': {}, "ünï": {"const": 2}},
     "required": ["", "ünï"], "additionalProperties": False},
    closed(deep=several(several(several({"type": "null"}, 1, 1), 1, 1), 1, 1)),
    closed(a=several({"enum": ["x", "y"]}, 2, 3), b={"type": "number", "minimum": 1, "maximum": 2}),
]  # fmt: skip

REGEXES = [
    r"[a-c]{2,4}x",
    r"\d{4}-\d{2}-\d{2}",
    r"(yes|no|maybe)( please)?",
    r"[A-Z][a-z]{1,6} [A-Z][a-z]{1,6}",
    r"(?i)true|false",
    r"0x[0-9a-f]{1,8}",
    r"[^\x00-\x7F]{1,4}",
    r"(\+|-)?\d{1,3}(\.\d{1,2})?",
    r"a\\b\"c",
    r"[\w.]{1,6}@[\w]{1,6}\.(com|org)",
    r"(ha){1,5}!",
    r"[ \n]{2,4}x?" + "y",
]

CHOICES = [
    ["yes", "no"],
    ["a", "ab", "abc"],
    ["größer", "gleich", "kleiner"],
    ["one\ntwo", 'three "four"'],
]

LARKS: list[tuple[str, Callable[[str], bool]]] = [
    ('start: "(" start ")" | "x"', lambda t: t.strip("()") == "x" and t.index("x") * 2 + 1 == len(t)),
    ('start: A B*\nA: "let "\nB: /[a-z]=[0-9];/', lambda t: bool(re.fullmatch(r"let ([a-z]=[0-9];)*", t))),
    ('start: "<" %json {"type": "boolean"} ">"', lambda t: t in ("<true>", "<false>")),
    ('start: item ("," item)~0..3\nitem: "p" | "q" start "r"',
     lambda t: set(t) <= set("pqr,") and t.count("q") == t.count("r")),
]  # fmt: skip


def _valid(schema: Any) -> Callable[[str], bool]:
    validator = jsonschema.Draft202012Validator(
        _python_patterns(schema), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )

    def check(text: str) -> bool:
        try:
            return bool(validator.is_valid(json.loads(text)))
        except ValueError:
            return False

    return check


def _python_patterns(value: Any) -> Any:
    """Write patterns as Python's re reads them, which knows no classes of Unicode."""
    if isinstance(value, dict):
        return {
            key: one.replace(r"\p{Lu}", "[^\\W\\d_a-z]").replace(r"\p{Ll}", "[^\\W\\d_A-Z]")
            if key == "pattern" and isinstance(one, str)
            else _python_patterns(one)
            for key, one in value.items()
        }
    return [_python_patterns(one) for one in value] if isinstance(value, list) else value


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


CASES: list[Case] = [
    *((Grammar.json_schema(schema), _valid(schema)) for schema in SCHEMAS),
    *((Grammar.regex(pattern), _matches(pattern)) for pattern in REGEXES),
    *((Grammar.choice(choices), choices.__contains__) for choices in CHOICES),
    *((Grammar.lark(text), check) for text, check in LARKS),
]
"""More than 60."""
