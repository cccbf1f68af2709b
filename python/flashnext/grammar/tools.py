"""The format of the chat template's tool calls as a grammar: names, parameters, values by their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flashnext.grammar import schema as schemas
from flashnext.grammar.spec import GrammarError

CLOSING = "\n</parameter>\n"
_KEY = re.compile(r"[^>\n]+")


def calls_lark(
    tools: Sequence[Mapping[str, Any]],
    *,
    several: bool,
    tags: Mapping[str, int],
    check: Callable[[Any], Any],
) -> str:
    """Write the grammar of a reply that calls tools and says nothing else.

    Args:
        tools: Their "name" and "parameters".
        several: Whether it may make more than one call.
        tags: Ids of control tokens.
        check: Refuses a schema that cannot be enforced; returns it without what asks for nothing.

    Raises:
        GrammarError: A tool cannot be called in this format, or its schema cannot be enforced.
    """
    if "<tool_call>" not in tags or "</tool_call>" not in tags:
        raise GrammarError("this checkpoint has no format of tool calls")
    opening, closing = f"<[{tags['<tool_call>']}]>", f"<[{tags['</tool_call>']}]>"
    rules = _Rules()
    for i, tool in enumerate(tools):
        pointer = f"/{i}/function/parameters"
        try:
            parameters = check(tool["parameters"])
            rules.add_tool(f"tool{i}", tool["name"], parameters)
        except GrammarError as error:
            raise GrammarError(error.reason, pointer + error.pointer) from None
    names = " | ".join(f"tool{i}" for i in range(len(tools)))
    more = '("\\n" call)*' if several else ""
    head = [f"start: call {more}", f'call: {opening} "\\n" ({names}) "\\n" {closing}']
    return "\n".join([*head, *rules.lines])


class _Rules:
    """The rules of tools, as they are written."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add_tool(self, rule: str, name: str, parameters: Any) -> None:
        """Write a tool's rule: its function with its parameters in the order of the schema."""
        root = parameters if isinstance(parameters, Mapping) else {}
        properties = root.get("properties", {})
        required = set(root.get("required", []))
        parts = [_text(f"<function={name}>\n")]
        for j, (key, schema) in enumerate(properties.items()):
            if not _KEY.fullmatch(key) or key != key.strip():
                raise GrammarError(
                    "a name that the format cannot write", f"/properties/{schemas.escape(key)}"
                )
            try:
                value = self._value(f"{rule}_{j}", schema, root)
            except GrammarError as error:
                raise GrammarError(
                    error.reason, f"/properties/{schemas.escape(key)}" + error.pointer
                ) from None
            part = f"{_text(f'<parameter={key}>' + chr(10))} {value}"
            parts.append(part if key in required else f"({part})?")
        unknown = sorted(required - set(properties))
        if unknown:
            raise GrammarError(f"{unknown[0]!r} is required and no property"[:200], "/required")
        self.lines.append(f"{rule}: {' '.join(parts)} {_text('</function>')}")

    def _value(self, rule: str, schema: Any, root: Mapping[str, Any]) -> str:
        """Write what a value may be and its end; text stands as it is, everything else as JSON."""
        branches = _branches(schema, root)
        if any(_is_text(branch) and not _constrained(branch) for branch in branches):
            self.lines.append(f"{rule}[suffix={_text(CLOSING)}]: /(.|\\n)*/")
            return rule
        options: list[str] = []
        for k, branch in enumerate(branches):
            if _is_text(branch):
                options.append(self._constrained_text(f"{rule}_{k}", branch))
                continue
            options.append(f"{rule}_{k} {_text(CLOSING)}")
            self.lines.append(f"{rule}_{k}: %json {json.dumps(_alone(branch, root))}")
        self.lines.append(f"{rule}: {' | '.join(options)}")
        return rule

    def _constrained_text(self, rule: str, schema: Mapping[str, Any]) -> str:
        given = [schema["const"]] if "const" in schema else schema.get("enum")
        if given is not None:
            texts = [one for one in given if isinstance(one, str)]
            if len(texts) < len(given) or any("</parameter>" in one for one in texts):
                raise GrammarError("expected texts without </parameter>", "/enum")
            return f"({' | '.join(map(_text, texts))}) {_text(CLOSING)}"
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        # Ends at the first closing: whatever the terms allow, text goes no further.
        length = f"{{{least},{'' if most is None else int(most)}}}"
        terms = [f"/(?s:.){length}/"]
        if "pattern" in schema:
            pattern = schema["pattern"].replace("/", "\\/")
            terms.insert(0, f"/(?s:.*)({_unanchored(pattern)})(?s:.*)/")
        self.lines.append(f"{rule.upper()}: {' & '.join(terms)}")
        self.lines.append(f"{rule}[suffix={_text(CLOSING)}]: {rule.upper()}")
        return rule


def _unanchored(pattern: str) -> str:
    """Refuse what cannot stand within a larger expression."""
    if re.search(r"(?<!\\)(?:\\\\)*[\^$]", re.sub(r"\[\^", "[", pattern)):
        raise GrammarError("an anchored pattern is not supported for the text of a call", "/pattern")
    return pattern


def _branches(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """Take a schema apart into its alternatives."""
    for _ in range(schemas.MAX_DEPTH):
        if not (isinstance(schema, Mapping) and "$ref" in schema):
            break
        schema = {**schemas.resolve(root, schema["$ref"]), **{k: v for k, v in schema.items() if k != "$ref"}}
    if not isinstance(schema, Mapping):
        return [{"type": "string"}] if schema is True else [schema]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            rest = {k: v for k, v in schema.items() if k != key}
            return [found for one in schema[key] for found in _branches({**rest, **one}, root)]
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [{**schema, "type": kind} for kind in kinds]
    if "enum" in schema and kinds is None:
        texts = [one for one in schema["enum"] if isinstance(one, str)]
        others = [one for one in schema["enum"] if not isinstance(one, str)]
        return [{"type": "string", "enum": texts}] * bool(texts) + [{"enum": others}] * bool(others)
    if kinds is None and "const" in schema:
        return [{**schema, "type": "string"}] if isinstance(schema["const"], str) else [schema]
    if kinds is None and not set(schema) & {"properties", "items", "allOf", "prefixItems"}:
        return [{**schema, "type": "string"}]
    return [schema]


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _constrained(schema: Mapping[str, Any]) -> bool:
    return bool(set(schema) & {"enum", "const", "pattern", "minLength", "maxLength"})


def _alone(schema: Any, root: Mapping[str, Any]) -> Any:
    """Make a schema stand by itself: references to its root lead into a copy of that."""
    moved = _moved(schema)
    if "$ref" not in json.dumps(moved) or not isinstance(moved, Mapping):
        return moved
    return {**moved, "$defs": {"root": _moved(root)}}


def _moved(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: "#/$defs/root" + one[1:] if key == "$ref" and isinstance(one, str) else _moved(one)
            for key, one in value.items()
        }
    return [_moved(one) for one in value] if isinstance(value, list) else value


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
