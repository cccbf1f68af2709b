"""Messages and tools of a request in the one canonical form that the chat template is given.

The rules: `developer` is `system`; text parts are joined; between pictures and videos texts stay parts
(`content.Content`); `content: null` is empty text; reasoning is read from `reasoning_content` or `reasoning`;
tool arguments are an object, with each number in its own spelling; broken surrogates are mended
(`clean_text`). A message keeps its place, whatever its role; the refusal of an assistant without content is
its content. What a message says in another form is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flashnext.errors import InvalidArgument
from flashnext.text.arguments import TOOL_NAME
from flashnext.text.content import KINDS, Content
from flashnext.text.jsontext import clean_text, clean_value, loads

ROLES = ("system", "developer", "user", "assistant", "tool")
_TOOL_NAME = re.compile(TOOL_NAME)
_OTHER_FORMS = {
    "audio": "this model hears nothing; give its transcript as content",
    "function_call": "give tool_calls",
}
_SHOWN_TO = ("user", "tool")
"""Roles in whose messages pictures and videos can stand."""
_UNREAD = ("image_url", "video_url")


class InvalidField(InvalidArgument):
    """A field of a request is wrong.

    Attributes:
        field: Where it is, in the way of `messages[2].content`.
        problem: What is wrong with it.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def cut(text: str, most: int) -> str:
    """Cut a text that is told in an error, and say so with three dots."""
    return text if len(text) <= most else text[: most - 3] + "..."


def canonical_messages(
    messages: Sequence[Mapping[str, Any]], field: str = "messages"
) -> list[dict[str, Any]]:
    """Bring a chat into the form that the template sees.

    Returns:
        One dictionary a message: `role`, `content`, and for the assistant `reasoning_content` (text)
        and `tool_calls` (a list of `{"type", "function": {"name", "arguments": object}}`) where it has them.

    Raises:
        InvalidField: What cannot be read, with its place.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InvalidField(field, f"expected a list of messages, found {_kind(messages)}")
    if not messages:
        raise InvalidField(field, "expected at least one message, found none")
    return [_message(message, f"{field}[{i}]") for i, message in enumerate(messages)]


def _message(message: Any, field: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidField(field, f"expected an object, found {_kind(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidField(
            f"{field}.role", f"expected one of {', '.join(ROLES)}, found {cut(repr(role), 80)}"
        )
    for key, problem in _OTHER_FORMS.items():
        if message.get(key) is not None:
            raise InvalidField(f"{field}.{key}", problem)
    said = "content"
    if role == "assistant" and message.get("content") is None:
        said = "refusal"
    out = {
        "role": "system" if role == "developer" else role,
        "content": _content(message.get(said), f"{field}.{said}", role),
    }
    if role != "assistant":
        if message.get("tool_calls"):
            raise InvalidField(
                f"{field}.tool_calls", f"only an assistant message calls tools, found role {role!r}"
            )
        return out
    for key in ("reasoning_content", "reasoning"):
        reasoning = message.get(key)
        if reasoning is not None:
            if not isinstance(reasoning, str):
                raise InvalidField(f"{field}.{key}", f"expected text, found {_kind(reasoning)}")
            out["reasoning_content"] = clean_text(reasoning)
            break
    calls = message.get("tool_calls") or []
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidField(f"{field}.tool_calls", f"expected a list, found {_kind(calls)}")
    if calls:
        out["tool_calls"] = [_tool_call(call, f"{field}.tool_calls[{j}]") for j, call in enumerate(calls)]
    return out


def _content(content: Any, field: str, role: str) -> Content:
    if content is None:
        return ""
    if isinstance(content, str):
        return clean_text(content)
    if not isinstance(content, Sequence):
        raise InvalidField(field, f"expected text or a list of parts, found {_kind(content)}")
    runs: list[list[str] | dict[str, Any]] = [[]]  # texts next to each other, and what stands between
    for k, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in KINDS or kind in _UNREAD:
            runs += [_medium(part, kind, f"{field}[{k}]", role), []]
            continue
        text = part.get(kind) if isinstance(part, Mapping) and kind in ("text", "refusal") else None
        if not isinstance(text, str):
            raise InvalidField(
                f"{field}[{k}]", 'expected {"type": "text", "text": "..."}, found ' + _kind(part, kind)
            )
        run = runs[-1]
        assert isinstance(run, list)
        run.append(text)
    if len(runs) == 1:
        return clean_text("".join(runs[0]))
    parts = [
        {"type": "text", "text": clean_text("".join(run))} if isinstance(run, list) else run for run in runs
    ]
    return [part for part in parts if part["type"] != "text" or part["text"]]


def _medium(part: Mapping[str, Any], kind: str, field: str, role: str) -> dict[str, Any]:
    """Read a part that shows something."""
    if role not in _SHOWN_TO:
        raise InvalidField(
            field,
            f"a part of type {kind!r} can stand in messages of {' and '.join(_SHOWN_TO)}, not of {role}",
        )
    if not hasattr(part.get(kind), "spans"):
        raise InvalidField(
            field, f"the {kind.removesuffix('_url')} has not been prepared, which Engine does before this"
        )
    return {"type": kind, kind: part[kind]}


def _tool_call(call: Any, field: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidField(
            field, 'expected {"type": "function", "function": {"name", "arguments"}}, found ' + _kind(call)
        )
    name = _name(function, field)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = loads(arguments) if arguments.strip() else {}
        except InvalidArgument as e:
            raise InvalidField(
                f"{field}.function.arguments", f"expected a JSON object as text, but it is {e}"
            ) from None
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise InvalidField(f"{field}.function.arguments", f"expected a JSON object, found {_kind(arguments)}")
    return {"type": "function", "function": {"name": name, "arguments": clean_value(dict(arguments))}}


def canonical_tools(
    tools: Sequence[Mapping[str, Any]] | None, field: str = "tools"
) -> list[dict[str, Any]] | None:
    """Check a request's tools; their content goes into the prompt as it is, keys in their order.

    Returns:
        The tools, or None where there are none.

    Raises:
        InvalidField: A tool that is not a function with a name, or a name that stands twice.
    """
    if not tools:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise InvalidField(field, f"expected a list, found {_kind(tools)}")
    names: set[str] = set()
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            raise InvalidField(
                f"{field}[{i}]", 'expected {"type": "function", "function": {...}}, found ' + _kind(tool)
            )
        name = _name(function, f"{field}[{i}]")
        if name in names:
            raise InvalidField(f"{field}[{i}].function.name", f"{name!r} stands twice")
        names.add(name)
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidField(
                f"{field}[{i}].function.parameters", f"expected a JSON schema, found {_kind(parameters)}"
            )
    return [clean_value(dict(tool)) for tool in tools]


def _name(function: Mapping[str, Any], field: str) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise InvalidField(
            f"{field}.function.name",
            f"expected 1 to 256 characters without white space, < and >, found {name!r}"[:300],
        )
    return clean_text(name)


def _kind(value: Any, part_type: Any = None) -> str:
    if part_type is not None:
        return f"a part of type {part_type!r}"[:100]
    if isinstance(value, Mapping):
        return "an object" if value else "an empty object"
    names = {
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        type(None): "null",
        list: "a list",
    }
    return names.get(type(value), type(value).__name__)
