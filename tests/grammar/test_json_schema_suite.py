"""The JSON-Schema-Test-Suite: a schema compiles, or is refused by the keyword; what compiles is enforced.

The suite's licence stands in the data file.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flashnext.grammar import Grammar, GrammarError
from support.grammars import accepts, compiler

SUITE = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "data" / "json_schema_suite.json.gz").read_bytes())
)
FILES = {groups[0]["file"]: groups for groups in SUITE["files"]}

# Words by which a refusal says what it is about, where that is not a keyword by its pointer.
REASONS = ("oneOf", "schema is false", "nothing", "multipleOf", "disjoint", "minimum", "leads to itself")


def written_otherwise(value: Any, schema: Any) -> bool:
    """Whether a valid instance is one of those that no reply writes, though others that mean the same are.

    Properties come in the schema's order, numbers are written in one way (1, not 1.0), and formats are
    enforced.
    """
    if isinstance(value, float) and value == int(value):
        return True
    if isinstance(value, list):
        return any(written_otherwise(one, {}) for one in value)
    if isinstance(value, Mapping):
        names = [name for part in orders(schema) for name in part]
        positions = [names.index(name) for name in value if name in names]
        free = [i for i, name in enumerate(value) if name not in names]
        return positions != sorted(positions) or (
            bool(free) and free != list(range(len(value)))[-len(free) :]
        )
    return isinstance(value, str) and "format" in schema


def orders(schema: Any) -> list[list[str]]:
    """The orders of properties that a schema gives, its own first."""
    if not isinstance(schema, Mapping):
        return []
    found = [list(schema.get("properties", {}))]
    if isinstance(schema.get("const"), Mapping):
        found.append(list(schema["const"]))
    for part in schema.get("allOf", []):
        found += orders(part)
    return found


def compiled(schema: Any) -> Any:
    try:
        return compiler().compile(Grammar.json_schema(schema))
    except GrammarError as error:
        return error


@pytest.mark.parametrize("name", sorted(FILES))
def test_what_compiles_is_enforced_and_what_does_not_is_refused_by_the_keyword(name: str) -> None:
    for group in FILES[name]:
        found = compiled(group["schema"])
        where = f"{name}: {group['description']}"
        if isinstance(found, GrammarError):
            named = found.pointer.rsplit("/", 1)[-1] if found.pointer else ""
            assert named or any(word in str(found) for word in REASONS), f"{where}: {found}"
            continue
        for test in group["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
            accepted = accepts(found, text)
            told = f"{where}: {test['description']}: {text}"
            if test["valid"] and not accepted:
                assert written_otherwise(test["data"], group["schema"]), told
            assert test["valid"] or not accepted, told


def test_the_suite_is_enforced_in_large_part() -> None:
    """How many of its schemas compile, and how many instances are told apart."""
    counts: Counter[str] = Counter()
    for groups in FILES.values():
        for group in groups:
            found = compiled(group["schema"])
            if isinstance(found, GrammarError):
                counts["refused"] += 1
                continue
            counts["compiled"] += 1
            for test in group["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
                counts[f"{test['valid']} {accepts(found, text)}"] += 1
    assert counts["False True"] == 0
    assert counts["compiled"] >= 160, counts
    assert counts["True True"] >= 360 and counts["False False"] >= 215, counts
    assert counts["True False"] <= 25, counts
