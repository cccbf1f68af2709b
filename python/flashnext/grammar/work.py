"""Bounds what compiling a schema multiplies: alternatives that hold together, properties, long texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashnext.grammar.regexes import MAX_POSITIONS
from flashnext.grammar.spec import GrammarError

MAX_WAYS = 128
"""Most alternatives of a schema that others have to hold together with: each is compiled with each."""
MAX_JOINED = 1000
"""Most properties of schemas that have to hold together, those of one object."""
MAX_SQUARED = 2_000_000
"""Most of the sum of the squares of how many properties objects have: so much compiling them takes."""


@dataclass(frozen=True)
class Node:
    """A schema within a schema."""

    schema: Any
    pointer: str
    depth: int


class Work:
    """Adds up what the schemas within one take."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._squared = 0
        self.schemas: list[Any] = []

    def add(self, node: Node) -> None:
        """Count a schema.

        Raises:
            GrammarError: By itself or with those before it takes too much.
        """
        schema, pointer = node.schema, node.pointer
        self.schemas.append(schema)
        n = len(schema.get("properties", {}))
        for one in schema.get("allOf", []):
            n += len(one.get("properties", {})) if isinstance(one, Mapping) else 0
        if n > MAX_JOINED:
            raise GrammarError(
                f"more than {MAX_JOINED} properties of one object are not supported", f"{pointer}/allOf"
            )
        self._squared += n * n
        if self._squared > MAX_SQUARED:
            raise GrammarError(
                "its objects have too many properties; give fewer, or nest them", f"{pointer}/properties"
            )
        names = {"properties": schema.get("properties", {}), "required": schema.get("required", [])}
        for key, given in names.items():
            _require_short(max(map(len, given), default=0), f"{pointer}/{key}")
        values = {f"enum/{i}": value for i, value in enumerate(schema.get("enum", []))}
        if "const" in schema:
            values["const"] = schema["const"]
        for key, value in values.items():
            if isinstance(value, str | list | Mapping):
                size = len(value) if isinstance(value, str) else len(json.dumps(value, ensure_ascii=False))
                _require_short(size, f"{pointer}/{key}")
        if "pattern" in schema:
            for key in ("minLength", "maxLength"):
                if schema.get(key, 0) > MAX_POSITIONS:
                    raise GrammarError(
                        f"more than {MAX_POSITIONS} beside a pattern is not supported; leave one of them out",
                        f"{pointer}/{key}",
                    )


def _require_short(n: int, pointer: str) -> None:
    if n > MAX_POSITIONS:
        raise GrammarError(f"a text of more than {MAX_POSITIONS} characters is not supported", pointer)


def require_few_ways(schemas: Sequence[Any], root: Any, resolve: Callable[[Any, str], Any]) -> None:
    """Refuse schemas whose alternatives multiply.

    Args:
        schemas: All within one; they have been checked.
        root: What references start from.
        resolve: Finds what a reference names.

    Raises:
        GrammarError: They do, beyond what is compiled at once.
    """
    known: dict[int, int] = {}

    def ways(schema: Any, depth: int) -> int:
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) in known:
            return known[id(schema)]
        if depth > 150:
            return MAX_WAYS
        known[id(schema)] = 1  # where it is met again on the way, that is another level of the text
        factors = [
            sum(ways(one, depth + 1) for one in schema[key]) for key in ("anyOf", "oneOf") if key in schema
        ]
        factors += [ways(one, depth + 1) for one in schema.get("allOf", [])]
        if "$ref" in schema:
            factors.append(ways(resolve(root, schema["$ref"]), depth + 1))
        n, several = 1, 0
        for factor in factors:
            n *= max(1, factor)
            several += factor > 1
            if several > 1 and n > MAX_WAYS:
                raise GrammarError(
                    f"it has more than {MAX_WAYS} alternatives when those that have to hold together are "
                    "multiplied out; give fewer, or write them out"
                )
        known[id(schema)] = min(n, 10 * MAX_WAYS)
        return known[id(schema)]

    for one in schemas:
        ways(one, 0)
