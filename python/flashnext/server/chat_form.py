"""What Responses and Messages say of texts, calls and tools, brought into the form of a chat.

What is wrong is told with its place in the request as it came, so it is looked for here, before the chat.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from flashnext.errors import InvalidArgument
from flashnext.server.fields import PARTS, Unknown, know
from flashnext.text.arguments import TOOL_NAME
from flashnext.text.jsontext import clean_value, loads
from flashnext.text.messages import InvalidField, cut

PICTURES = ("image", "input_image", "image_url", "video_url")
"""Types of parts that show something, by the names that they have on one route or another."""
_UNREAD = ("document", "file", "input_file", "input_audio", "input_video", "video", "search_result")
_TOOL_NAME = re.compile(TOOL_NAME)
_SEAL = "flashnext-1."

Show = Callable[[dict[str, Any], str, Unknown], dict[str, Any]]
"""Reads a part that shows something, with its place, as a part of a chat."""


def objects(value: Any, field: str) -> list[dict[str, Any]]:
    """Check that something is a list of objects.

    Raises:
        InvalidField: It is not.
    """
    if not isinstance(value, list):
        raise InvalidField(field, f"expected a list of objects, found {_shown(value)}")
    for i, one in enumerate(value):
        if not isinstance(one, dict):
            raise InvalidField(f"{field}[{i}]", f"expected an object, found {_shown(one)}")
    return value


def text_in(value: Mapping[str, Any], name: str, field: str) -> str:
    """Read the text that an object has under a name.

    Raises:
        InvalidField: It has none, or something else.
    """
    text = value.get(name)
    if not isinstance(text, str):
        raise InvalidField(f"{field}.{name}", f"expected text, found {_shown(text)}")
    return text


def joined_text(content: Any, field: str, kinds: Mapping[str, str], unknown: Unknown) -> str:
    """Join what is said, as text or as parts of it, in the way that a chat's parts are joined.

    Args:
        content: What is said; null is nothing.
        field: Its place.
        kinds: The types of parts, with the name under which each has its text.
        unknown: What is done about unknown fields of parts.

    Raises:
        InvalidField: It is something else, media among it.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for i, part in enumerate(objects(content, field)):
        kind, place = part.get("type"), f"{field}[{i}]"
        if not isinstance(kind, str) or kind not in kinds:
            raise refused_type(kind, f"{place}.type", kinds)
        know(part, PARTS, place, unknown)
        texts.append(text_in(part, kinds[kind], place))
    return "".join(texts)


def content_of(
    content: Any, field: str, kinds: Mapping[str, str], shows: Mapping[str, Show], unknown: Unknown
) -> str | list[dict[str, Any]]:
    """Read what is said and shown; text where nothing is shown.

    Args:
        content: What is said and shown; null is nothing.
        field: Its place.
        kinds: The types of parts that are text, with the name under which each has its text.
        shows: The types of parts that show something, with what reads each.
        unknown: What is done about unknown fields of parts.

    Raises:
        InvalidField: It is something else.
    """
    if not shows or not isinstance(content, list):
        return joined_text(content, field, kinds, unknown)
    parts: list[str | dict[str, Any]] = []
    for i, part in enumerate(objects(content, field)):
        kind, place = part.get("type"), f"{field}[{i}]"
        if isinstance(kind, str) and kind in shows:
            parts.append(shows[kind](part, place, unknown))
        elif isinstance(kind, str) and kind in kinds:
            know(part, PARTS, place, unknown)
            parts.append(text_in(part, kinds[kind], place))
        else:
            raise refused_type(kind, f"{place}.type", (*kinds, *shows))
    return joined(parts)


def joined(parts: Sequence[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Write texts, and parts that show something between them, as the content of a message."""
    if all(isinstance(part, str) for part in parts):
        return "".join(cast(Sequence[str], parts))
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def refused_type(kind: Any, field: str, known: Mapping[str, Any] | Sequence[str]) -> InvalidField:
    """Say that something of such a type is not read."""
    if kind in PICTURES and not any(name in PICTURES for name in known):
        return InvalidField(
            field, f"{kind!r} cannot stand here; pictures stand in messages of the user and results of calls"
        )
    if kind in _UNREAD:
        return InvalidField(field, f"{kind!r} is not read here; give one of {', '.join(known)}")
    return InvalidField(field, f"expected one of {', '.join(known)}, found {_shown(kind)}")


def tool_name(value: Mapping[str, Any], field: str) -> str:
    """Read the name of a tool or of a call.

    Raises:
        InvalidField: It is none that a tool may have.
    """
    name = value.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise InvalidField(
            f"{field}.name",
            f"expected 1 to 256 characters without white space, < and >, found {name!r}"[:300],
        )
    return name


def call(name: str, arguments: Mapping[str, Any] | str, call_id: str | None) -> dict[str, Any]:
    """Write a call in the form of a chat; its arguments may be JSON as text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def arguments_in(text: str, field: str) -> Mapping[str, Any]:
    """Read the arguments of a call.

    Raises:
        InvalidField: They are no JSON object.
    """
    try:
        found = clean_value(loads(text)) if text.strip() else {}
    except InvalidArgument as error:
        raise InvalidField(field, f"expected a JSON object as text, but it is {error}") from None
    if not isinstance(found, Mapping):
        raise InvalidField(field, f"expected a JSON object as text, found {_shown(found)}")
    return found


def function_tools(tools: Any, kind: str, schema: str, known: Sequence[str], unknown: Unknown) -> list[Any]:
    """Read tools that the client runs; the prompt is told their names, descriptions and schemas.

    Args:
        tools: What the request has.
        kind: The type that each has, if any.
        schema: The name under which each has the schema of its parameters.
        known: The fields that a tool may have.
        unknown: What is done about others.

    Raises:
        InvalidField: Something else, tools that a server runs among it.
    """
    told = {"name": "name", "description": "description", schema: "parameters"}
    out: list[Any] = []
    names: set[str] = set()
    for i, tool in enumerate(objects(tools, "tools")):
        field = f"tools[{i}]"
        if (found := tool.get("type")) not in (kind, None):
            raise InvalidField(
                f"{field}.type", f"this server runs no tools; expected {kind!r}, found {_shown(found)}"
            )
        know(tool, known, field, unknown)
        name = tool_name(tool, field)
        if name in names:
            raise InvalidField(f"{field}.name", f"{name!r} stands twice")
        names.add(name)
        if tool.get("description") is not None:
            text_in(tool, "description", field)
        if not isinstance(tool.get(schema), dict | None):
            raise InvalidField(f"{field}.{schema}", f"expected a JSON schema, found {_shown(tool[schema])}")
        function = {told[key]: value for key, value in tool.items() if key in told and value is not None}
        out.append({"type": "function", "function": function})
    return out


def in_call_order(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the results of calls into the calls' order, by which the model tells whose they are.

    The calls are those of all turns of the assistant that follow each other. Results of which one says of no
    such call that it is its own stay as they are.
    """
    out: list[dict[str, Any]] = []
    order: dict[Any, int] = {}
    at = 0
    while at < len(messages):
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        if end > at:
            results = messages[at:end]
            if all(one.get("tool_call_id") in order for one in results):
                results.sort(key=lambda one: order[one["tool_call_id"]])
            out += results
            at = end
            continue
        message = messages[at]
        if message["role"] != "assistant" or (at and messages[at - 1]["role"] != "assistant"):
            order = {}
        for one in message.get("tool_calls", ()):
            if one["id"] is not None:
                order.setdefault(one["id"], len(order))
        out.append(message)
        at += 1
    return out


def seal(thoughts: str) -> str:
    """Write thoughts as one word, for clients that send them back without showing them. It is no secret."""
    return _SEAL + base64.urlsafe_b64encode(thoughts.encode()).decode()


def unseal(word: Any) -> str:
    """Read sealed thoughts; nothing where it is another server's word."""
    if not isinstance(word, str) or not word.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(word.removeprefix(_SEAL), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def _shown(value: Any) -> str:
    return cut(repr(value), 80)
