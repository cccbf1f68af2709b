"""The items of a response's input as the messages of a chat, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashnext.server.chat_form import (
    Show,
    arguments_in,
    call,
    content_of,
    joined_text,
    objects,
    refused_type,
    text_in,
    tool_name,
    unseal,
)
from flashnext.server.fields import Unknown, know
from flashnext.server.shown import input_image
from flashnext.text.messages import InvalidField, cut

_MARKS = ("id", "type", "status")
# What each type of item may have; the first of them, `type`, may be absent of messages.
ITEMS: dict[str, tuple[str, ...]] = {
    "message": (*_MARKS, "role", "content", "phase"),
    "reasoning": (*_MARKS, "content", "summary", "encrypted_content"),
    "function_call": (*_MARKS, "name", "arguments", "call_id", "caller", "namespace", "async"),
    "function_call_output": (*_MARKS, "output", "call_id", "caller", "name", "namespace"),
}
_ROLES = ("user", "assistant", "system", "developer")
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_SHOWS = {"input_image": input_image}
_NOTHING: dict[str, Show] = {}


def input_items(given: Any) -> list[dict[str, Any]]:
    """Read the field `input`: items, or text, which is a message of the user.

    Raises:
        InvalidField: It is something else.
    """
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return objects(given, "input")


def chat_of(items: Sequence[dict[str, Any]], unknown: Unknown, n_before: int = 0) -> list[dict[str, Any]]:
    """Bring items into the form of a chat.

    Thoughts, a message and calls that follow each other in this order are one turn of the assistant.

    Args:
        items: What `input` has.
        unknown: What is done about unknown fields.
        n_before: How many of them are those of the response that this one goes on from.

    Raises:
        InvalidField: What cannot be read, with its place.
    """
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] = {}  # the assistant's, while it may go on
    thinking: list[tuple[dict[str, Any], list[str]]] = []  # turns with the pieces of their thoughts

    def begin() -> dict[str, Any]:
        messages.append({"role": "assistant", "content": None})
        return messages[-1]

    for i, item in enumerate(items):
        field = f"input[{i - n_before}]" if i >= n_before else f"previous_response_id[{i}]"
        kind = "message" if item.get("type") is None else item["type"]
        if not isinstance(kind, str) or kind not in ITEMS:
            raise refused_type(kind, f"{field}.type", ITEMS)
        know(item, ITEMS[kind], field, unknown)
        if kind == "message":
            role = item.get("role")
            if role not in _ROLES:
                raise InvalidField(
                    f"{field}.role", f"expected one of {', '.join(_ROLES)}, found {cut(repr(role), 80)}"
                )
            shows = _SHOWS if role == "user" else _NOTHING
            said = content_of(item.get("content"), f"{field}.content", _PARTS, shows, unknown)
            if role != "assistant":
                turn = {}
                messages.append({"role": role, "content": said})
                continue
            turn = begin() if not turn or turn["content"] is not None else turn
            turn["content"] = said
        elif kind == "reasoning":
            thoughts = _thoughts(item, field, unknown)
            turn = begin() if not turn or turn["content"] is not None or "tool_calls" in turn else turn
            if not thinking or thinking[-1][0] is not turn:
                thinking.append((turn, []))
            thinking[-1][1].append(thoughts)
        elif kind == "function_call":
            found = call(
                tool_name(item, field),
                arguments_in(text_in(item, "arguments", field), f"{field}.arguments"),
                _call_id(item, field),
            )
            turn = turn or begin()
            turn.setdefault("tool_calls", []).append(found)
        else:
            turn = {}
            output = content_of(item.get("output"), f"{field}.output", _PARTS, _SHOWS, unknown)
            messages.append({"role": "tool", "content": output, "tool_call_id": _call_id(item, field)})
    for one, pieces in thinking:
        one["reasoning_content"] = "".join(pieces)
    return messages


def said_items(output: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write the items of a reply as a client may send them back, without what was only told of them."""
    items: list[dict[str, Any]] = []
    for item in output:
        if item["type"] == "function_call":
            names: tuple[str, ...] = ("type", "call_id", "name", "arguments")
        else:
            names = ("type", "role") if item["type"] == "message" else ("type",)
        said = {name: item[name] for name in names}
        if "content" in item:
            said["content"] = [{"type": part["type"], "text": part["text"]} for part in item["content"]]
        items.append(said)
    return items or [{"type": "message", "role": "assistant", "content": ""}]


def listed(items: Sequence[dict[str, Any]], suffix: str) -> list[dict[str, Any]]:
    """Write items as they are told back: messages with their parts, and each with an id of its own.

    Args:
        items: As they came.
        suffix: What makes ids that this server gives its own.
    """
    out: list[dict[str, Any]] = []
    ids: set[str] = set()
    for i, item in enumerate(items):
        kind = item.get("type") or "message"
        given = item.get("id")
        own = given if isinstance(given, str) and given and given not in ids else f"item_{i}_{suffix}"
        ids.add(own)
        whole = {"status": "completed", **item, "id": own, "type": kind}
        if kind == "message" and isinstance(item.get("content"), str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            more: dict[str, Any] = {"annotations": []} if part == "output_text" else {}
            whole["content"] = [{"type": part, "text": item["content"], **more}]
        out.append(whole)
    return out


def _thoughts(item: dict[str, Any], field: str, unknown: Unknown) -> str:
    """Read what an item of thoughts says: the thoughts themselves, else sealed ones, else their summary."""
    said = joined_text(item.get("content"), f"{field}.content", {"reasoning_text": "text"}, unknown)
    summary = joined_text(item.get("summary"), f"{field}.summary", {"summary_text": "text"}, unknown)
    return said or unseal(item.get("encrypted_content")) or summary


def _call_id(item: dict[str, Any], field: str) -> str | None:
    found = item.get("call_id")
    return None if found is None else text_in(item, "call_id", field)
