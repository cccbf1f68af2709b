"""The messages of Anthropic's route, with their blocks, as the messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashnext.server.chat_form import (
    call,
    content_of,
    joined,
    joined_text,
    objects,
    refused_type,
    text_in,
    tool_name,
    unseal,
)
from flashnext.server.fields import PARTS, Unknown, know
from flashnext.server.shown import image_block
from flashnext.text.messages import InvalidField, cut

_TEXT = {"text": "text"}
_SHOWS = {"image": image_block}
_MARKS = ("type", "cache_control")
# What each type of block may have beside the parts that are text alone.
BLOCKS: dict[str, tuple[str, ...]] = {
    "text": PARTS,
    "image": (*_MARKS, "source"),
    "thinking": (*_MARKS, "thinking", "signature"),
    "redacted_thinking": (*_MARKS, "data"),
    "tool_use": (*_MARKS, "id", "name", "input", "caller", "toolset_name"),
    "tool_result": (*_MARKS, "tool_use_id", "content", "is_error", "toolset_name"),
}
_OF_ROLE = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


def system_of(system: Any, unknown: Unknown) -> list[dict[str, Any]]:
    """Read the field `system`: text, or blocks of it.

    Raises:
        InvalidField: It is something else.
    """
    if system is None:
        return []
    if not isinstance(system, str | list):
        raise InvalidField("system", f"expected text or a list of blocks, found {cut(repr(system), 80)}")
    return [{"role": "system", "content": joined_text(system, "system", _TEXT, unknown)}]


def chat_of(given: Sequence[dict[str, Any]], unknown: Unknown) -> list[dict[str, Any]]:
    """Bring messages into the form of a chat; results of calls become messages of their own.

    Args:
        given: The field `messages`.
        unknown: What is done about unknown fields.

    Raises:
        InvalidField: What cannot be read, with its place.
    """
    messages: list[dict[str, Any]] = []
    for i, message in enumerate(given):
        field = f"messages[{i}]"
        know(message, ("role", "content"), field, unknown)
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in _OF_ROLE:
            raise InvalidField(
                f"{field}.role", f"expected one of {', '.join(_OF_ROLE)}, found {cut(repr(role), 80)}"
            )
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
            continue
        blocks = objects(content, f"{field}.content")
        for j, block in enumerate(blocks):
            kind, place = block.get("type"), f"{field}.content[{j}]"
            if not isinstance(kind, str) or kind not in _OF_ROLE[role]:
                raise refused_type(kind, f"{place}.type", _OF_ROLE[role])
            know(block, BLOCKS[kind], place, unknown)
        if role == "assistant":
            messages.append(_assistant(blocks, f"{field}.content"))
        else:
            messages += _others(role, blocks, f"{field}.content", unknown)
    if messages and messages[-1]["role"] == "assistant":
        raise InvalidField(
            f"messages[{len(given) - 1}]",
            "the last message is the assistant's, and replies do not go on from one; end with the user's",
        )
    return messages


def _assistant(blocks: Sequence[dict[str, Any]], field: str) -> dict[str, Any]:
    """Read a turn of the assistant; blocks of one kind are joined."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        place, kind = f"{field}[{i}]", block["type"]
        if kind == "text":
            texts.append(text_in(block, "text", place))
        elif kind == "thinking":
            thoughts.append(text_in(block, "thinking", place) or unseal(block.get("signature")))
        elif kind == "tool_use":
            arguments = block.get("input")
            if not isinstance(arguments, dict):
                raise InvalidField(f"{place}.input", f"expected an object, found {cut(repr(arguments), 80)}")
            calls.append(call(tool_name(block, place), arguments, text_in(block, "id", place)))
    turn: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _others(
    role: str, blocks: Sequence[dict[str, Any]], field: str, unknown: Unknown
) -> list[dict[str, Any]]:
    """Read a turn that is not the assistant's: what it says and shows, and the results between."""
    messages: list[dict[str, Any]] = []
    parts: list[str | dict[str, Any]] | None = None if blocks else []

    def say() -> None:
        nonlocal parts
        if parts is not None:
            messages.append({"role": role, "content": joined(parts)})
            parts = None

    for i, block in enumerate(blocks):
        place = f"{field}[{i}]"
        if block["type"] != "tool_result":
            parts = [] if parts is None else parts
            if block["type"] == "image":
                parts.append(image_block(block, place, unknown))
            else:
                parts.append(text_in(block, "text", place))
            continue
        say()
        result = content_of(block.get("content"), f"{place}.content", _TEXT, _SHOWS, unknown)
        failed = block.get("is_error") or False
        if not isinstance(failed, bool):
            raise InvalidField(f"{place}.is_error", f"expected true or false, found {cut(repr(failed), 80)}")
        if failed:
            begin = "Error: "
            result = begin + result if isinstance(result, str) else [{"type": "text", "text": begin}, *result]
        messages.append(
            {"role": "tool", "content": result, "tool_call_id": text_in(block, "tool_use_id", place)}
        )
    say()
    return messages
