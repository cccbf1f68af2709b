"""The fields by which a request asks for structured output, and the grammar that they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flashnext.errors import InvalidArgument
from flashnext.grammar import Grammar, GrammarError
from flashnext.server.fields import Unknown, know
from flashnext.text.jsontext import loads
from flashnext.text.messages import InvalidField, canonical_tools, cut

FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
KINDS = ("json", "json_object", "regex", "choice", "grammar")
"""The keys of `structured_outputs`, of which one is given."""

_FORMATS = '"text", "json_object" or "json_schema"'


def read_grammar(fields: Mapping[str, Any]) -> Grammar | None:
    """Read what a reply is to match.

    Args:
        fields: Values of the request by name, of FIELDS; None where it has none.

    Returns:
        None where all text will do.

    Raises:
        InvalidField: A field that is wrong, or two that ask for something.
    """
    found: list[Grammar] = []
    for name in FIELDS:
        value = fields.get(name)
        if value is None:
            continue
        if name == "response_format":
            grammar = read_format(value, name)
        elif name == "structured_outputs":
            grammar = _structured(value)
        else:
            grammar = _of_kind(name.removeprefix("guided_"), value, name)
        if grammar is not None:
            found.append(grammar)
    if len(found) > 1:
        raise InvalidField(found[1].field, f"{found[0].field} says what the reply is; give one of the two")
    return found[0] if found else None


def read_format(value: Any, field: str) -> Grammar | None:
    """Read a `response_format`, or the `format` of the responses route, whose schema stands in it itself."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json_object(field)
    if kind != "json_schema":
        raise InvalidField(field, f"expected an object whose type is {_FORMATS}, found {value!r}"[:200])
    outer = value.get("json_schema") is None
    nested, inside = (value, field) if outer else (value["json_schema"], f"{field}.json_schema")
    schema = nested.get("schema") if isinstance(nested, Mapping) else None
    if schema is None:
        raise InvalidField(f"{inside}.schema", "missing")
    strict = nested.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidField(f"{inside}.strict", f"should be true or false, found {cut(repr(strict), 80)}")
    return _schema(schema, f"{inside}.schema", strict=bool(strict))


def know_format(value: Any, field: str, unknown: Unknown) -> None:
    """Look for unknown fields of what `read_format` reads.

    Raises:
        InvalidField: There is one, where those are refused.
    """
    kind = value.get("type") if isinstance(value, Mapping) else None
    inside = ("name", "description", "schema", "strict")
    if kind in ("text", "json_object"):
        know(value, ("type",), field, unknown)
    elif kind != "json_schema":
        return  # which is refused for what it is
    elif value.get("json_schema") is not None:
        know(value, ("type", "json_schema"), field, unknown)
        know(value["json_schema"], inside, f"{field}.json_schema", unknown)
    else:
        know(value, ("type", *inside), field, unknown)


def know_choice(choice: Any, unknown: Unknown) -> None:
    """Look for unknown fields of what `read_tool_choice` reads.

    Raises:
        InvalidField: There is one, where those are refused.
    """
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        know(choice, ("type", "function" if "function" in choice else "name"), "tool_choice", unknown)
        know(choice.get("function"), ("name",), "tool_choice.function", unknown)


def _structured(value: Any) -> Grammar | None:
    if not isinstance(value, Mapping):
        raise InvalidField("structured_outputs", f"should be an object, found {cut(repr(value), 80)}")
    given = {key: one for key, one in value.items() if one is not None and one is not False}
    for key in given:
        if key not in KINDS:
            raise InvalidField(f"structured_outputs.{key}", f"unknown; give one of {', '.join(KINDS)}")
    if len(given) != 1:
        raise InvalidField("structured_outputs", f"give one of {', '.join(KINDS)}")
    [(key, one)] = given.items()
    return _of_kind(key, one, f"structured_outputs.{key}")


def _of_kind(kind: str, value: Any, field: str) -> Grammar:
    if kind == "json_object":
        if value is not True:
            raise InvalidField(field, f"should be true, found {cut(repr(value), 80)}")
        return Grammar.json_object(field)
    if kind == "json":
        if isinstance(value, str):
            try:
                value = loads(value)
            except InvalidArgument as error:
                raise InvalidField(field, f"the text is not a JSON schema: {error}") from None
        return _schema(value, field)
    if kind == "choice":
        if not isinstance(value, list):
            raise InvalidField(field, f"should be a list of texts, found {cut(repr(value), 80)}")
    elif not isinstance(value, str) or not value:
        raise InvalidField(field, f"should be text, found {cut(repr(value), 80)}")
    try:
        if kind == "choice":
            return Grammar.choice(value, field)
        return Grammar.regex(value, field) if kind == "regex" else Grammar.lark(value, field)
    except GrammarError as error:
        raise InvalidField(field, str(error)) from None


def _schema(schema: Any, field: str, *, strict: bool = False) -> Grammar:
    if not isinstance(schema, Mapping | bool):
        raise InvalidField(field, f"should be a JSON schema, found {cut(repr(schema), 80)}")
    try:
        return Grammar.json_schema(schema, strict=strict, field=field)
    except GrammarError as error:
        raise InvalidField(field, str(error)) from None


def read_tool_choice(choice: Any, tools: Sequence[Any] | None, *, several: bool) -> Grammar | None:
    """Read which tools a reply has to call.

    Args:
        choice: "auto", "none", "required", or a function by its name.
        tools: The tools of the request, in OpenAI's form.
        several: Whether a reply may make more than one call.

    Returns:
        None where it need not call any.

    Raises:
        InvalidField: Another choice, or a tool that is not there.
    """
    if choice in ("auto", "none"):
        return None
    known = canonical_tools(tools) or []
    if choice == "required":
        if not known:
            raise InvalidField("tool_choice", "a call is required, and there are no tools; give some")
        return _calls(known, several)
    name = _named(choice)
    for i, tool in enumerate(known):
        if tool["function"]["name"] == name:
            return _calls([tool], False, first=i)
    raise InvalidField("tool_choice", f"{name!r} is not one of the tools"[:200])


def either(
    calls: Grammar | None, form: Grammar | None, tools: Sequence[Any] | None, *, several: bool
) -> Grammar | None:
    """Join the calls that a reply has to make, the form of its text, and the tools that it may call.

    Args:
        calls: Those that it has to make, which leave no room for text.
        form: What its text has to match.
        tools: Those that it may call, in OpenAI's form: it is calls or text of that form then.
        several: Whether it may make more than one call.

    Raises:
        InvalidField: Its text might look like a call.
    """
    if calls is not None or form is None or not tools:
        return calls or form
    if form.kind != "json":
        raise InvalidField(
            form.field,
            "text that is not JSON may look like a call; ask for JSON, or leave the tools out, "
            'or give tool_choice "none"',
        )
    return _calls(canonical_tools(tools) or [], several, text=form)


def _named(choice: Any) -> str:
    """Find the name of a function, which the routes write in two ways."""
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str):
            return name
    raise InvalidField(
        "tool_choice",
        f'expected "auto", "none", "required" or a function by its name, found {cut(repr(choice), 100)}',
    )


def _calls(
    tools: Sequence[Mapping[str, Any]], several: bool, *, text: Grammar | None = None, first: int = 0
) -> Grammar:
    try:
        return Grammar.calls(tools, several=several, text=text, first=first, field="tools")
    except GrammarError as error:
        raise InvalidField("tools", str(error)) from None


_TOOL = re.compile(r"at /(\d+)/function/parameters(?=[/:])")
_SAID = re.compile(r"at /text(?=[/:])")


@contextmanager
def schemas_told_as(grammar: Grammar | None, parameters: str) -> Iterator[None]:
    """Tell of a schema that cannot be enforced by the place where the request has it.

    Args:
        grammar: That is compiled in the block.
        parameters: Where a tool's schema stands in it, by the way of `function.parameters`.

    Raises:
        InvalidField: There was one in the block.
    """
    try:
        yield
    except InvalidField as error:
        if grammar is None or grammar.kind != "calls" or error.field != grammar.field:
            raise
        if found := _TOOL.match(error.problem):
            place = f"{error.field}[{found[1]}].{parameters}"
        elif found := _SAID.match(error.problem):
            place = grammar.text_field
        else:
            raise
        rest = error.problem[found.end() :]
        raise InvalidField(place, f"at {rest}" if rest.startswith("/") else rest[2:]) from None
