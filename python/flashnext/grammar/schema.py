"""Checks a JSON schema for what can be enforced, and says by JSON pointer where it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from flashnext.grammar.numbers import is_exact
from flashnext.grammar.spec import GrammarError
from flashnext.grammar.work import Node, Work, require_few_ways

MAX_DEPTH = 64
"""Deepest nesting of values in a schema."""
MAX_SCHEMAS = 8192
"""Most schemas within one."""
MAX_PROPERTIES = 1000
"""Most properties of one object: all that may come next are looked at for each mask."""
MAX_EXACT = 2**53
"""Largest integer up to which a double, by which numbers are enforced, holds each."""
MAX_PATTERNS = 512
"""Most different regular expressions within one, each of which has to be compiled."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

# Keywords that hold schemas: one, a list of them, or a mapping of names to them.
ONE = ("items", "additionalProperties", "additionalItems")
LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")

# Keywords that constrain and cannot be enforced while a reply is written; the values that ask for nothing.
_UNENFORCEABLE: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "if": (),
    "contains": (),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "uniqueItems": (False,),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
_WITH_CONTAINS = ("minContains", "maxContains", "then", "else")  # nothing without the keyword they belong to
_OF_COMPILER = ("x-guidance",)  # llguidance's own settings, which are not a request's to make

FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)

_DRAFTS = ("https://json-schema.org/draft/", "http://json-schema.org/draft")

_INDEX = re.compile(r"[0-9]{1,9}")

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def nodes(root: Any, pointer: str = "") -> Iterator[Node]:
    """Walk all schemas, each before those in it.

    Args:
        root: Where to begin.
        pointer: Its own place.

    Raises:
        GrammarError: There are too many, or a keyword does not hold what it should.
    """
    stack, n = [Node(root, pointer, 0)], 0
    while stack:
        node = stack.pop()
        n += 1
        if n > MAX_SCHEMAS:
            raise GrammarError(f"it holds more than {MAX_SCHEMAS} schemas")
        if node.depth > MAX_DEPTH:
            raise GrammarError(f"it is nested deeper than {MAX_DEPTH} levels", cut(node.pointer))
        yield node
        if isinstance(node.schema, Mapping):
            stack += reversed(list(_within(node)))


def _within(node: Node) -> Iterator[Node]:
    for key in ONE:
        value = node.schema.get(key)
        if isinstance(value, list) and key == "items":  # of older drafts
            raise GrammarError("a list of schemas; give prefixItems", f"{node.pointer}/items")
        if value is not None:
            yield Node(value, f"{node.pointer}/{key}", node.depth + 1)
    for key in LISTS:
        value = node.schema.get(key, [])
        if not isinstance(value, list):
            raise GrammarError(f"expected a list of schemas, found {_kind(value)}", f"{node.pointer}/{key}")
        for i, one in enumerate(value):
            yield Node(one, f"{node.pointer}/{key}/{i}", node.depth + 1)
    for key in _MAPS:
        value = node.schema.get(key, {})
        if not isinstance(value, Mapping):
            raise GrammarError(f"expected an object, found {_kind(value)}", f"{node.pointer}/{key}")
        for name, one in value.items():
            yield Node(one, f"{node.pointer}/{key}/{escape(name)}", node.depth + 1)


def check(root: Any, *, strict: bool, check_pattern: Callable[[str], str], annotate: bool = False) -> Any:
    """Check a schema.

    Args:
        root: The schema.
        strict: Whether its objects have to be closed and their properties required.
        check_pattern: Says what is wrong with a regular expression, "" for nothing.
        annotate: Whether a format that is not known is an annotation, and not refused.

    Returns:
        The schema without keywords whose values ask for nothing.

    Raises:
        GrammarError: It cannot be enforced; with the pointer of what cannot.
    """
    require_shallow(root)
    draft = root.get("$schema", _DRAFTS[0]) if isinstance(root, Mapping) else _DRAFTS[0]
    if not isinstance(draft, str) or not draft.startswith(_DRAFTS):
        raise GrammarError(f"{draft!r} is no draft of JSON schema that is known here"[:300], "/$schema")
    check_pattern = _bounded(check_pattern)
    known: set[int] = set()
    work = Work()
    refs: dict[str, str] = {}  # with the place of the first of each
    places: list[tuple[Any, str]] = [(root, "")]
    while places:
        for node in nodes(*places.pop()):
            if isinstance(node.schema, bool) or id(node.schema) in known:
                continue
            if not isinstance(node.schema, Mapping):
                raise GrammarError(f"expected a schema, found {_kind(node.schema)}", cut(node.pointer))
            known.add(id(node.schema))
            if len(known) > MAX_SCHEMAS:
                raise GrammarError(f"it holds more than {MAX_SCHEMAS} schemas")
            _check_keywords(node)
            _check_exact(node)
            _check_values(node, check_pattern, annotate)
            work.add(node)
            if "$ref" in node.schema:
                # What is referred to may stand where no keyword holds schemas.
                places.append((_check_ref(root, node), node.schema["$ref"].removeprefix("#")))
                refs.setdefault(node.schema["$ref"], f"{node.pointer}/$ref")
            if strict:
                _check_strict(node)
    require_few_ways(work.schemas, root, resolve)
    clean = _without_neutral(root)
    for ref, pointer in refs.items():
        try:
            resolve(clean, ref)
        except KeyError:
            raise GrammarError(
                f"{ref!r} leads into a keyword that is not supported; move it to $defs"[:300], cut(pointer)
            ) from None
    return clean


def _bounded(check_pattern: Callable[[str], str]) -> Callable[[str], str]:
    """Check each pattern once, and refuse to check too many."""
    seen: set[str] = set()

    def check(pattern: str) -> str:
        if pattern in seen:
            return ""
        seen.add(pattern)
        if len(seen) > MAX_PATTERNS:
            return f"more than {MAX_PATTERNS} regular expressions are not supported"
        return check_pattern(pattern)

    return check


def require_shallow(value: Any) -> None:
    """Refuse nesting that is too deep for those who read a schema by recursion.

    Raises:
        GrammarError: It is.
    """
    level = [value]
    for _ in range(2 * MAX_DEPTH):
        level = [one for outer in level for one in _items(outer)]
        if not level:
            return
    raise GrammarError(f"it is nested deeper than {2 * MAX_DEPTH} levels")


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _check_keywords(node: Node) -> None:
    for key, neutral in _UNENFORCEABLE.items():
        value = node.schema.get(key, ...)
        if value is not ... and not any(_same(value, one) for one in neutral):
            raise GrammarError(f"the keyword {key!r} is not supported", f"{node.pointer}/{escape(key)}")


def _check_values(node: Node, check_pattern: Callable[[str], str], annotate: bool) -> None:
    schema = node.schema
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPES:
            raise GrammarError(
                f"unknown type {kind!r}, expected one of {', '.join(TYPES)}"[:300], f"{node.pointer}/type"
            )
    for key in _COUNTS:
        value = schema.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1 != 0:
            raise GrammarError(f"expected a count, found {value!r}"[:200], f"{node.pointer}/{key}")
    for key in _NUMBERS:
        value = schema.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise GrammarError(f"expected a number, found {value!r}"[:200], f"{node.pointer}/{key}")
    if schema.get("multipleOf", 1) <= 0:
        raise GrammarError("expected a number above 0", f"{node.pointer}/multipleOf")
    if len(schema.get("properties", {})) > MAX_PROPERTIES:
        raise GrammarError(
            f"more than {MAX_PROPERTIES} properties of one object are not supported",
            f"{node.pointer}/properties",
        )
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise GrammarError("expected a list of names", f"{node.pointer}/required")
    free = schema.get("additionalProperties") is not False or schema.get("patternProperties")
    if free and schema.get("minProperties", 0) > len(set(required)) + 1:
        raise GrammarError(
            "more than are required is not supported where names are free, for those may repeat; "
            "require them, or close the object with additionalProperties: false and no patternProperties",
            f"{node.pointer}/minProperties",
        )
    values = schema.get("enum", [None])
    if not isinstance(values, list) or not values:
        raise GrammarError("expected a list of one value or more", f"{node.pointer}/enum")
    kind = schema.get("format")
    if kind is not None and not (isinstance(kind, str) and (annotate or kind in FORMATS)):
        raise GrammarError(
            f"the format {kind!r} is not supported; those that are: {', '.join(sorted(FORMATS))}"[:400],
            f"{node.pointer}/format",
        )
    patterns = {f"{node.pointer}/pattern": schema["pattern"]} if "pattern" in schema else {}
    for name in schema.get("patternProperties", {}):
        patterns[f"{node.pointer}/patternProperties/{escape(name)}"] = name
    for pointer, pattern in patterns.items():
        if not isinstance(pattern, str):
            raise GrammarError("expected a regular expression", pointer)
        if wrong := check_pattern(pattern):
            raise GrammarError(wrong, pointer)


def _check_exact(node: Node) -> None:
    """Refuse numbers that a double does not hold, for they would be enforced as others."""
    schema = node.schema
    given = [(key, schema[key]) for key in ("const", *_NUMBERS) if key in schema]
    listed = schema.get("enum", [])
    given += [(f"enum/{i}", one) for i, one in enumerate(listed if isinstance(listed, list) else [])]
    for key, value in given:
        level = [value]
        while level:
            for one in level:
                if isinstance(one, int) and abs(one) > MAX_EXACT:
                    raise GrammarError(
                        f"{str(one)[:40]} is beyond 2^53, where numbers are not kept exactly; give a string",
                        f"{node.pointer}/{key}",
                    )
                if isinstance(one, float) and not is_exact(one):
                    raise GrammarError(
                        f"{str(one)[:80]} has more digits than a double holds, which would be enforced as "
                        f"{float.__repr__(one)}; give that, or a string",
                        f"{node.pointer}/{key}",
                    )
            level = [one for outer in level for one in _items(outer)]


def _check_ref(root: Any, node: Node) -> Any:
    """Follow a reference to its first target, and see that it ends somewhere."""
    first: Any = ...
    seen: set[str] = set()
    schema, pointer = node.schema, f"{node.pointer}/$ref"
    while isinstance(schema, Mapping) and "$ref" in schema:
        ref = schema["$ref"]
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise GrammarError(f"{ref!r} is not of this schema; give a $ref like #/$defs/NAME"[:300], pointer)
        if ref in seen:
            raise GrammarError(f"{ref!r} leads to itself"[:300], pointer)
        seen.add(ref)
        try:
            schema = resolve(root, ref)
        except KeyError:
            raise GrammarError(f"{ref!r} leads nowhere"[:300], pointer) from None
        first = schema if first is ... else first
    return first


def resolve(root: Any, ref: str) -> Any:
    """Find what a local reference names.

    Raises:
        KeyError: It names nothing.
    """
    found = root
    for part in ref.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found[name]
        elif isinstance(found, list) and _INDEX.fullmatch(name) and int(name) < len(found):
            found = found[int(name)]
        else:
            raise KeyError(ref)
    return found


def _check_strict(node: Node) -> None:
    schema = node.schema
    if "properties" not in schema and schema.get("type") != "object":
        return
    if schema.get("additionalProperties") is not False:
        raise GrammarError(
            "strict needs it to be false in every object", f"{node.pointer}/additionalProperties"
        )
    missing = [name for name in schema.get("properties", {}) if name not in schema.get("required", [])]
    if missing:
        raise GrammarError(
            f"strict needs every property to be required, and {missing[0]!r} is not"[:300],
            f"{node.pointer}/required",
        )


def _without_neutral(schema: Any) -> Any:
    """Leave out the keywords that ask for nothing."""
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _UNENFORCEABLE or key in _WITH_CONTAINS or key in _OF_COMPILER:
            continue
        if key == "format" and value not in FORMATS:
            continue
        if key in ONE:
            out[key] = _without_neutral(value)
        elif key in LISTS:
            out[key] = [_without_neutral(one) for one in value]
        elif key in _MAPS:
            out[key] = {name: _without_neutral(one) for name, one in value.items()}
        elif key in _COUNTS:
            out[key] = int(value)  # 2.0 is a count too
        else:
            out[key] = value
    return out


ASKING = frozenset(
    {
        *(*ONE, *LISTS, "properties", "patternProperties", *_COUNTS, *_NUMBERS),
        *("$ref", "type", "enum", "const", "required", "pattern", "format"),
    }
)
"""Keywords that ask for something."""


def escape(name: str) -> str:
    """Write a name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def cut(pointer: str) -> str:
    """Shorten a long pointer."""
    return pointer if len(pointer) <= 200 else pointer[:200] + "..."


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "text", bool: "true or false"}.get(
        type(value), repr(value)[:80]
    )


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
