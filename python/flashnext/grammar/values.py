"""What a value of a call may be by its schema: text, which stands as it is, or JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashnext.grammar import schema as schemas
from flashnext.grammar.regexes import parts
from flashnext.grammar.spec import GrammarError

_CONSTRAINTS = frozenset({"enum", "const", "pattern", "minLength", "maxLength"})
_OF_JSON = frozenset({"properties", "items", "prefixItems"})


@dataclass
class Alternatives:
    """A schema taken apart.

    Attributes:
        texts: Schemas of texts.
        others: Schemas of everything else.
        exclusive: Whether some of them exclude each other.
        n_seen: How many schemas were looked at for it.
    """

    texts: list[Mapping[str, Any]] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)
    exclusive: bool = False
    n_seen: int = 0

    @property
    def with_brackets(self) -> bool:
        """Whether some of the others begin with a bracket, so that what does is read as JSON."""
        return any(not _is_plain(other) for other in self.others)


def alternatives(schema: Any, root: Mapping[str, Any], most: int) -> Alternatives:
    """Take a schema apart, as far as text may be among its alternatives.

    Args:
        schema: Of the value; it has been checked.
        root: What references start from.
        most: Most schemas to look at.

    Raises:
        GrammarError: There are more, or what text has to be is said in a way that cannot be written.
    """
    found = Alternatives()
    _Splitter(root, most, found).split(schema, frozenset(), 0)
    return found


def is_constrained(text: Mapping[str, Any]) -> bool:
    """Whether not every text will do."""
    return bool(set(text) & _CONSTRAINTS)


def _is_plain(schema: Mapping[str, Any]) -> bool:
    """Whether nothing is valid that has parts."""
    kinds = schema.get("type", [])
    if kinds and not {"array", "object"} & set(kinds if isinstance(kinds, list) else [kinds]):
        return True
    given = [schema["const"]] if "const" in schema else schema.get("enum")
    return given is not None and not any(isinstance(one, Mapping | list) for one in given)


class _Splitter:
    """Puts the alternatives of a schema where they belong."""

    def __init__(self, root: Mapping[str, Any], most: int, found: Alternatives) -> None:
        self._root, self._most, self._found = root, most, found

    def split(self, schema: Any, seen: frozenset[str], depth: int) -> None:
        """Take a schema apart.

        Args:
            schema: With what stands around it.
            seen: References on the way here; to come to one again adds no alternative.
            depth: Steps on the way here.
        """
        found = self._found
        found.n_seen += 1
        if found.n_seen > self._most:
            raise GrammarError("it has too many alternatives")
        if depth > schemas.MAX_DEPTH:
            raise GrammarError("its references and alternatives are nested too deep")
        if not isinstance(schema, Mapping):
            if schema is True:
                found.texts.append({"type": "string"})
            return
        schema = {key: value for key, value in schema.items() if key in schemas.ASKING}
        if not _may_be_text(schema):
            found.others.append(schema)
        elif "$ref" in schema:
            ref = schema["$ref"]
            if ref not in seen:
                target = schemas.resolve(self._root, ref)
                self.split(_both(target, _without(schema, "$ref")), seen | {ref}, depth + 1)
        elif key := next((key for key in ("anyOf", "oneOf") if key in schema), None):
            found.exclusive |= key == "oneOf"
            for one in schema[key]:
                self.split(_both(one, _without(schema, key)), seen, depth + 1)
        elif "allOf" in schema:
            merged: Any = _without(schema, "allOf")
            for one in schema["allOf"]:
                merged = _both(self._followed(one), merged)
            self.split(merged, seen, depth + 1)
        else:
            self._put(schema)

    def _followed(self, schema: Any) -> Any:
        """Follow references; that they end somewhere has been checked."""
        while isinstance(schema, Mapping) and "$ref" in schema:
            schema = _both(schemas.resolve(self._root, schema["$ref"]), _without(schema, "$ref"))
        return schema

    def _put(self, schema: Mapping[str, Any]) -> None:
        kinds, found = schema.get("type"), self._found
        other_kinds = [kind for kind in kinds if kind != "string"] if isinstance(kinds, list) else []
        text, other = {**schema, "type": "string"}, {**schema, "type": other_kinds}
        if kinds is None:
            del other["type"]
        if "enum" in schema:
            text["enum"] = [one for one in schema["enum"] if isinstance(one, str)]
            other["enum"] = [one for one in schema["enum"] if not isinstance(one, str)]
        found.texts.append(text)
        if (
            "const" not in schema
            and (other_kinds or (kinds is None and "enum" in schema))
            and other.get("enum", [0])
        ):
            found.others.append(other)


def _may_be_text(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", "string")
    if "string" not in (kinds if isinstance(kinds, list) else [kinds]):
        return False
    if "type" not in schema and set(schema) & _OF_JSON:
        return False
    if "const" in schema:
        return isinstance(schema["const"], str)
    return "enum" not in schema or any(isinstance(one, str) for one in schema["enum"])


def _without(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != key}


def _both(one: Any, rest: Any) -> Any:
    """Join two schemas of the same value.

    Raises:
        GrammarError: It may be text, and they ask for the same in two ways.
    """
    if one is True or rest is False:
        return rest
    if one is False:
        return False
    one = {key: value for key, value in one.items() if key in schemas.ASKING}
    differ = sorted(key for key in one if key in rest and one[key] != rest[key])
    if not differ:
        return {**one, **rest}
    for part in (one, rest):
        if not _may_be_text(part):
            kinds = (
                {"type": part["type"]} if "type" in part else {"enum": part.get("enum", [part.get("const")])}
            )
            return {"allOf": [one, rest], **kinds}
    raise GrammarError(
        f"{differ[0]!r} is said twice of a value that may be text, which is not supported"[:200]
    )


def searched(pattern: str) -> str:
    """Write a pattern, which is searched for in a text, as one that matches all of it, within slashes.

    Raises:
        GrammarError: It is anchored elsewhere than at its two ends.
    """
    found = list(parts(pattern))
    head = tail = "(?s:.*)"
    if not _has_alternatives(found):
        if found and found[0] == ("anchor", "^"):
            found, head = found[1:], ""
        if found and found[-1] == ("anchor", "$"):
            found, tail = found[:-1], ""
    if any(kind == "anchor" for kind, _ in found):
        raise GrammarError(
            "a pattern with anchors elsewhere than at its ends is not supported for the text of a call",
            "/pattern",
        )
    bare = "".join(text for _, text in found)
    escaped = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", bare, flags=re.DOTALL)
    return f"{head}({escaped}){tail}"


def _has_alternatives(found: Sequence[tuple[str, str]]) -> bool:
    """Whether an expression, by its parts, has alternatives outside of its groups."""
    depth = 0
    for kind, _ in found:
        depth += (kind == "open") - (kind == "close")
        if kind == "or" and depth == 0:
            return True
    return False
