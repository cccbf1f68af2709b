"""The format of the chat template's tool calls as a grammar: names, parameters, values by their schemas."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flashnext.grammar import lark
from flashnext.grammar import schema as schemas
from flashnext.grammar.spec import GrammarError
from flashnext.grammar.values import Alternatives, alternatives, is_constrained, searched

CLOSING = "\n</parameter>\n"
MAX_LARK_CHARS = 2_097_152
"""Longest grammar of calls that is written; what schemas refer to stands in it once for each use."""
MAX_ALTERNATIVES = 1024
"""Most alternatives that the values of all parameters together are taken apart into."""
MAX_LEAST = 2000
"""Most that a text of a call may have to be long: each length is gone through when that is compiled."""
_KEY = re.compile(r"[^>\n]+")


def calls_lark(
    tools: Sequence[Mapping[str, Any]],
    *,
    several: bool,
    tags: Mapping[str, int],
    check: Callable[[Any], Any],
    json_rule: Callable[[Any], str],
    first: int = 0,
    text: Any = None,
    only: str | None = None,
) -> str:
    """Write the grammar of a reply that calls tools and says nothing else, or the text that it may say.

    Args:
        tools: Their "name" and "parameters".
        several: Whether it may make more than one call.
        tags: Ids of control tokens.
        check: Refuses a schema that cannot be enforced; returns it without what asks for nothing.
        json_rule: Writes what JSON under a schema is.
        first: How many tools there are before these, for errors.
        text: The schema of JSON that it may say instead of calling; None for none.
        only: The one parameter that is written, to see whether that is what is wrong; None for all.

    Raises:
        GrammarError: A tool cannot be called in this format, or its schema cannot be enforced.
    """
    if "<tool_call>" not in tags or "</tool_call>" not in tags:
        raise GrammarError("this checkpoint has no format of tool calls")
    opening, closing = f"<[{tags['<tool_call>']}]>", f"<[{tags['</tool_call>']}]>"
    rules = _Rules(json_rule)
    for i, tool in enumerate(tools):
        pointer = f"/{first + i}/function/parameters"
        try:
            rules.add_tool(f"tool{i}", tool["name"], check(tool["parameters"]), only)
        except GrammarError as error:
            raise GrammarError(error.reason, pointer + error.pointer) from None
    names = " | ".join(f"tool{i}" for i in range(len(tools)))
    more = '("\\n" call)*' if several else ""
    said = ""
    if text is not None:
        rules.add(f"said: {json_rule(text)}")
        said = " | said"
    head = [f"start: call {more}{said}", f'call: {opening} "\\n" ({names}) "\\n" {closing}']
    return "\n".join([*head, *rules.lines])


class _Rules:
    """The rules of tools, as they are written."""

    def __init__(self, json_rule: Callable[[Any], str]) -> None:
        self.lines: list[str] = []
        self._n_chars = 0
        self._n_left = MAX_ALTERNATIVES
        self._json_rule = json_rule

    def add(self, line: str) -> None:
        """Write a rule."""
        self._n_chars += len(line)
        if self._n_chars > MAX_LARK_CHARS:
            raise GrammarError("its references make it too large; give smaller schemas")
        self.lines.append(line)

    def add_tool(self, rule: str, name: str, parameters: Any, only: str | None) -> None:
        """Write a tool's rule: its function with its parameters, or one of them, in their order."""
        root = parameters if isinstance(parameters, Mapping) else {}
        given = _object(root)
        properties = given.get("properties", {})
        required = set(given.get("required", []))
        parts = [_text(f"<function={name}>\n")]
        for j, (key, schema) in enumerate(properties.items()):
            if only not in (None, key):
                continue
            try:
                if not _KEY.fullmatch(key) or key != key.strip():
                    raise GrammarError("a name that the format cannot write")
                value = self._value(f"{rule}_{j}", schema, root)
            except GrammarError as error:
                pointer = f"/properties/{schemas.escape(key)}" + error.pointer
                raise GrammarError(error.reason, pointer) from None
            part = f"{_text(f'<parameter={key}>' + chr(10))} {value}"
            parts.append(part if key in required else f"({part})?")
        unknown = sorted(required - set(properties))
        if unknown:
            raise GrammarError(f"{unknown[0]!r} is required and no property"[:200], "/required")
        self.add(f"{rule}: {' '.join(parts)} {_text('</function>')}")

    def _value(self, rule: str, schema: Any, root: Mapping[str, Any]) -> str:
        """Write what a value may be and its end; text stands as it is, everything else as JSON."""
        found = alternatives(schema, root, self._n_left)
        self._n_left -= found.n_seen
        free = any(not is_constrained(text) for text in found.texts)
        if free and not found.with_brackets:
            self.add(f"{rule}[suffix={_text(CLOSING)}]: /(.|\\n)*/")
            return rule
        options = [
            self._constrained_text(f"{rule}_{k}", text, found.with_brackets)
            for k, text in enumerate([{}] if free else found.texts)
        ]
        for k, other in enumerate(_others(found, schema), len(options)):
            options.append(f"{rule}_{k} {_text(CLOSING)}")
            self.add(f"{rule}_{k}: {self._json_rule(alone(other, root))}")
        self.add(f"{rule}: {' | '.join(options)}")
        return rule

    def _constrained_text(self, rule: str, schema: Mapping[str, Any], with_brackets: bool) -> str:
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        given = [schema["const"]] if "const" in schema else schema.get("enum")
        if given is not None:
            return self._one_of(given, schema, least, None if most is None else int(most))
        length = f"{{{least},{'' if most is None else int(most)}}}"
        if least > MAX_LEAST:
            raise GrammarError(
                f"more than {MAX_LEAST} is not supported for the text of a call; ask for less", "/minLength"
            )
        # No closing stands in the text, also where the other terms ask for more than is there.
        terms = [f"/(?s:.){length}/", r"~/(?s:.*)<\/parameter>(?s:.*)/"]
        if "pattern" in schema:
            terms.insert(0, f"/{searched(schema['pattern'])}/")
        if with_brackets:
            terms.append(r"/([^\[{](?s:.)*)?/")
        self.add(f"{rule.upper()}: {' & '.join(terms)}")
        self.add(f"{rule}[suffix={_text(CLOSING)}]: {rule.upper()}")
        return rule

    @staticmethod
    def _one_of(given: Sequence[Any], schema: Mapping[str, Any], least: int, most: int | None) -> str:
        key = "/const" if "const" in schema else "/enum"
        if "pattern" in schema:
            raise GrammarError("a pattern beside it is not supported for the text of a call", key)
        texts = [
            one
            for one in given
            if isinstance(one, str) and least <= len(one) and (most is None or len(one) <= most)
        ]
        if any("</parameter>" in one for one in texts):
            raise GrammarError("expected texts without </parameter>", key)
        if not texts:
            raise GrammarError("nothing is valid under it", key)
        return f"({' | '.join(map(_text, texts))}) {_text(CLOSING)}"


def _object(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the object that the parameters of a function are.

    Raises:
        GrammarError: They are something else, or are asked for what the format cannot keep to.
    """
    given: Any = root
    while isinstance(given, Mapping) and "$ref" in given:  # that it ends somewhere has been checked
        rest = {key: value for key, value in given.items() if key != "$ref"}
        target = schemas.resolve(root, given["$ref"])
        given = {**target, **rest} if isinstance(target, Mapping) else rest
    kinds = given.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise GrammarError("the parameters of a function are an object", "/type")
    for key in ("anyOf", "oneOf", "allOf", "enum", "const"):
        if key in given:
            raise GrammarError("not supported for the parameters of a function; give properties", f"/{key}")
    if given.get("minProperties", 0) > len(set(given.get("required", []))):
        raise GrammarError("not supported for the parameters of a function; give required", "/minProperties")
    if given.get("maxProperties", len(given.get("properties", {}))) < len(given.get("properties", {})):
        raise GrammarError("less than there are properties", "/maxProperties")
    return given  # type: ignore[no-any-return]


def _others(found: Alternatives, schema: Any) -> list[Any]:
    """Name the schemas of a value that is no text."""
    if not found.texts:
        return [schema]
    if found.exclusive and len(found.others) > 1:
        return [{"oneOf": found.others}]
    return found.others


def alone(schema: Any, root: Any) -> Any:
    """Make a schema stand by itself: what it refers to, near and far, and no more of its root goes with it.

    Args:
        schema: That has been checked.
        root: What its references start from.
    """
    names: dict[str, str] = {}  # of definitions, by the references to them

    def moved(one: Any) -> Any:
        if not isinstance(one, Mapping):
            return one
        out: dict[str, Any] = {}
        for key, value in one.items():
            if key == "$ref":
                out[key] = f"#/$defs/{names.setdefault(value, str(len(names)))}"
            elif key in schemas.ONE:
                out[key] = moved(value)
            elif key in schemas.LISTS:
                out[key] = [moved(inner) for inner in value]
            elif key in ("properties", "patternProperties"):
                out[key] = {name: moved(inner) for name, inner in value.items()}
            elif key in schemas.ASKING:
                out[key] = value
        return out

    whole = moved(schema)
    targets: dict[str, Any] = {}
    while len(targets) < len(names):  # each may refer to more
        ref = list(names)[len(targets)]
        targets[names[ref]] = moved(schemas.resolve(root, ref))
    return {**whole, "$defs": targets} if targets else whole


def _text(text: str) -> str:
    return lark.literal(text)
