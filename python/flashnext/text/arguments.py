"""Arguments of a tool call: text, until the tool's JSON schema says otherwise; digits are never touched."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flashnext.errors import InvalidArgument
from flashnext.text.jsontext import dumps, loads

TOOL_NAME = r"[^\s<>]{1,256}"
"""What a tool may be called, in requests and in calls: a call that is given can be sent back."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_TYPES = ("null", "boolean", "integer", "number", "array", "object", "string")
_WORDS = {
    "boolean": {"true": "true", "True": "true", "false": "false", "False": "false"},
    "null": {"null": "null", "None": "null"},
}
_MAX_SCHEMAS = 256


def parameters_of(tools: Sequence[Mapping[str, Any]] | None, name: str) -> Mapping[str, Any]:
    """Find the JSON schema of a tool's parameters; empty for an unknown tool or one without a schema."""
    for tool in tools or ():
        function = tool.get("function", {})
        if function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, Mapping) else {}
    return {}


def arguments_json(values: Mapping[str, str], parameters: Mapping[str, Any]) -> str:
    """Write the arguments of a call as a JSON object.

    Args:
        values: The text of each parameter, as the model wrote it.
        parameters: The JSON schema of the tool's parameters.
    """
    given: Any = parameters
    for _ in range(_MAX_SCHEMAS):
        if not isinstance(given, Mapping) or not isinstance(given.get("$ref"), str):
            break
        given = _resolve(given["$ref"], parameters)
    properties = given.get("properties") if isinstance(given, Mapping) else None
    known = properties if isinstance(properties, Mapping) else {}
    pairs = (f"{dumps(key)}: {_typed(text, known.get(key), parameters)}" for key, text in values.items())
    return "{" + ", ".join(pairs) + "}"


def _typed(text: str, schema: Any, root: Mapping[str, Any]) -> str:
    """One value as JSON: the first of the schema's types that the text can be, and text otherwise.

    Types are tried from the narrowest; where `string` is among them it comes last, since every text is one.
    """
    types = _types_of(schema, root, set())
    bare = text.strip()
    for kind in _TYPES:
        if kind in types and (found := _as_type(kind, bare)) is not None:
            return found
    return dumps(text)


def _as_type(kind: str, text: str) -> str | None:
    if kind in _WORDS:
        return _WORDS[kind].get(text)
    if kind in ("integer", "number"):
        if not _NUMBER.fullmatch(text) or (kind == "integer" and not _is_whole(text)):
            return None
        return text
    if kind in ("array", "object") and text[:1] == ("[" if kind == "array" else "{"):
        try:
            loads(text)
        except InvalidArgument:
            return None
        return text
    return None


def _is_whole(number: str) -> bool:
    """Whether a JSON number has no fraction: 12, 1e3 and 12.0, but not 1.5 or 1e-2."""
    mantissa, _, exponent = number.lower().partition("e")
    fraction = mantissa.partition(".")[2].rstrip("0")
    return not fraction and not exponent.startswith("-")


def _types_of(schema: Any, root: Mapping[str, Any], seen: set[int]) -> set[str]:
    """Collect the JSON types a schema names by `type`, unions, `enum`, `const` and local references.

    Args:
        schema: The schema, or whatever stands in its place.
        root: What references start from.
        seen: Of the schemas on the way here, which are not looked at twice: they may refer to each other.
    """
    if not isinstance(schema, Mapping) or id(schema) in seen or len(seen) >= _MAX_SCHEMAS:
        return set()
    seen.add(id(schema))
    found: set[str] = set()
    named = schema.get("type")
    found.update(
        [named]
        if isinstance(named, str)
        else [t for t in named if isinstance(t, str)]
        if isinstance(named, list)
        else []
    )
    if schema.get("nullable") is True:
        found.add("null")
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found |= _types_of(_resolve(reference, root), root, seen)
    for union in ("anyOf", "oneOf", "allOf"):
        for option in schema[union] if isinstance(schema.get(union), list) else ():
            found |= _types_of(option, root, seen)
    if not found:
        values = (
            schema["enum"]
            if isinstance(schema.get("enum"), list)
            else [schema["const"]]
            if "const" in schema
            else []
        )
        found = {_type_of_value(value) for value in values}
    return found


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#"):
        return None
    node: Any = root
    for step in reference[1:].split("/")[1:]:
        if not isinstance(node, Mapping):
            return None
        node = node.get(step.replace("~1", "/").replace("~0", "~"))
    return node


def _type_of_value(value: Any) -> str:
    kinds: tuple[tuple[Any, str], ...] = (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
        (Mapping, "object"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")
