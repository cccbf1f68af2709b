"""What /openapi.json says of responses and messages: their items and blocks, as JSON schemas."""

from __future__ import annotations

from typing import Any, get_args

from flashnext.server.chat_request import Effort
from flashnext.server.responses_request import INCLUDED

_TEXT = {"type": "string"}
_NAME = {"type": "string", "pattern": r"^[A-Za-z0-9_.-]{1,64}$"}


def _one(kind: str, *required: str, **properties: Any) -> dict[str, Any]:
    """Describe an item, a block or a part of one type."""
    properties = {"type": {"const": kind}, **properties}
    return {"type": "object", "required": ["type", *required], "properties": properties}


_ADDRESS = {"type": "string", "description": "A data: URL in base64, or an https: URL with --media-urls."}
_INPUT_IMAGE = _one(
    *("input_image", "image_url"),
    image_url=_ADDRESS,
    detail={"enum": ["low", "high", "auto", "original", None]},
)
_SOURCES = [
    _one("base64", "data", media_type=_TEXT, data=_TEXT),
    _one("url", "url", url=_ADDRESS),
]
_IMAGE = _one("image", "source", source={"anyOf": _SOURCES})


def _parts(kind: str, *others: dict[str, Any]) -> dict[str, Any]:
    """Describe a text, or a list of parts of one type, and of others."""
    text = _one(kind, "text", text=_TEXT)
    return {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [text, *others]} if others else text}]}


def _said(kind: str, *roles: str, others: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"role": {"enum": list(roles)}, "content": _parts(kind, *others)}


_THOUGHTS = {"type": "array", "items": _one("reasoning_text", "text", text=_TEXT)}
_ITEM = {
    "anyOf": [
        _one("message", "role", "content", **_said("input_text", "user", others=(_INPUT_IMAGE,))),
        _one("message", "role", "content", **_said("input_text", "system", "developer", "assistant")),
        _one("reasoning", content=_THOUGHTS),
        _one("function_call", "call_id", "name", "arguments", call_id=_TEXT, name=_NAME, arguments=_TEXT),
        _one(
            "function_call_output",
            "call_id",
            "output",
            call_id=_TEXT,
            output=_parts("input_text", _INPUT_IMAGE),
        ),
    ]
}
_INPUT = {"anyOf": [_TEXT, {"type": "array", "items": _ITEM}]}
_BLOCKS = {
    "user": [
        _one("text", "text", text=_TEXT),
        _IMAGE,
        _one("tool_result", "tool_use_id", tool_use_id=_TEXT, content=_parts("text", _IMAGE)),
    ],
    "assistant": [
        _one("text", "text", text=_TEXT),
        _one("thinking", "thinking", "signature", thinking=_TEXT, signature=_TEXT),
        _one("redacted_thinking", "data", data=_TEXT),
        _one("tool_use", "id", "name", "input", id=_TEXT, name=_NAME, input={"type": "object"}),
    ],
    "system": [_one("text", "text", text=_TEXT)],
}
_TURN = {
    "anyOf": [
        {
            "type": "object",
            "required": ["role", "content"],
            "properties": {
                "role": {"const": role},
                "content": {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": blocks}}]},
            },
        }
        for role, blocks in _BLOCKS.items()
    ]
}
RESPONSE = {
    "type": "object",
    "required": ["id", "object", "created_at", "status", "model", "output", "usage"],
    "properties": {
        "object": {"const": "response"},
        "status": {"enum": ["completed", "incomplete"]},
        "output": {"type": "array", "items": {"type": "object", "required": ["id", "type", "status"]}},
    },
}
ITEMS_PAGE = {
    "type": "object",
    "required": ["object", "data", "first_id", "last_id", "has_more"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array"}},
}
MESSAGE_REPLY = {
    "type": "object",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    "properties": {
        "type": {"const": "message"},
        "content": {"type": "array", "items": {"type": "object", "required": ["type"]}},
        "stop_reason": {
            "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
        },
    },
}
_OBJECT = {"type": "object"}


def _tool(kind: str, schema: str) -> dict[str, Any]:
    """Describe the tools of a request, each of one type."""
    properties = {"type": {"const": kind}, "name": _NAME, "description": _TEXT, schema: _OBJECT}
    tool = {"type": "object", "required": ["name"], "properties": properties}
    return {"type": "array", "uniqueItems": True, "maxItems": 1, "items": tool}


def _with(name: str, **values: Any) -> dict[str, Any]:
    """Describe an object by the field that counts in it."""
    return {"type": "object", "properties": {name: values}}


RESPONSES_FIELDS: dict[str, dict[str, Any]] = {
    "input": _INPUT,
    "tools": _tool("function", "parameters"),
    "tool_choice": {"enum": ["auto", "none"]},
    "reasoning": _with("effort", enum=list(get_args(Effort))),
    "text": _with("format", const={"type": "text"}),
    "include": {"type": "array", "items": {"enum": list(INCLUDED)}},
}
"""What the fields of a response are whose type alone says too little."""
MESSAGES_FIELDS: dict[str, dict[str, Any]] = {
    "messages": {"type": "array", "minItems": 1, "items": _TURN},
    "system": _parts("text"),
    "tools": _tool("custom", "input_schema"),
    "tool_choice": {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": ["auto", "none"]}},
    },
    "thinking": {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"enum": ["adaptive", "disabled"]},
            "display": {"enum": ["summarized", "omitted"]},
        },
    },
    "output_config": _with("effort", enum=["low", "medium", "high", "xhigh", "max"]),
}
"""The same of a message."""
