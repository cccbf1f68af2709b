"""GET /openapi.json: the routes as OpenAPI 3.1 describes them, made from the tables that serve them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flashnext.server import fields, schemas
from flashnext.server.chat_request import ChatRequest
from flashnext.server.completion_request import CompletionRequest
from flashnext.server.drawing import StreamOptions
from flashnext.server.messages_request import MessagesCount, MessagesRequest
from flashnext.server.responses_request import ResponsesCount, ResponsesRequest
from flashnext.server.service import Service
from flashnext.server.tokens import Detokenize, Tokenize
from flashnext.version import VERSION

NONE: Mapping[str, Any] = {}

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"enum": ["invalid_request_error", "server_error"]},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
_ID = {"type": "integer", "minimum": 0}
_USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _ID),
}
_PROMPT = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
        {"type": "array", "minItems": 1, "items": _ID},
        {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 1, "items": _ID}},
    ]
}
_STOP = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 4096},
        {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1, "maxLength": 4096}},
    ]
}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "type": ["string", "array", "null"],
            "description": "Text, or parts of type text, image_url and video_url.",
        },
    },
}


def _reply(kind: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "object": {"const": kind},
            "choices": {"type": "array", "items": {"type": "object", "required": ["index", "finish_reason"]}},
            "usage": _USAGE,
        },
    }


_RESPONSE_ID = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}


def _object(*required: str) -> dict[str, Any]:
    return {"type": "object", "required": list(required)}


@cache
def description(names: tuple[str, ...]) -> dict[str, Any]:
    """Describe every route of a server whose model goes by these names."""
    name = {"type": "string", "enum": list(names)}
    messages = {"type": "array", "minItems": 1, "items": _MESSAGE}
    responses_fields = {k: v for k, v in schemas.RESPONSES_FIELDS.items() if k != "include"}
    chat = _body(ChatRequest, fields.CHAT, {"model": name, "messages": messages, "stop": _STOP})
    text = _body(CompletionRequest, fields.COMPLETIONS, {"model": name, "prompt": _PROMPT, "stop": _STOP})
    models = _object("id", "object", "created", "owned_by")
    paths = {
        "/v1/chat/completions": _post(
            "Answer a chat", chat, _reply("chat.completion"), 503, 504, stream=True
        ),
        "/v1/completions": _post("Continue texts", text, _reply("text_completion"), 503, 504, stream=True),
        "/v1/responses": _post(
            "Answer an input",
            _body(ResponsesRequest, fields.RESPONSES, {"model": name, **schemas.RESPONSES_FIELDS}),
            schemas.RESPONSE,
            503,
            504,
            stream=True,
        ),
        "/v1/responses/input_tokens": _post(
            "Tokens that a response would read",
            _body(ResponsesCount, fields.RESPONSES_COUNT, responses_fields),
            _object("object", "input_tokens"),
            503,
        ),
        "/v1/responses/{response_id}": {
            **_get("A response that is kept", schemas.RESPONSE, 400, 401, 404),
            **_get("Forget a response", _object("id", "object", "deleted"), 401, 404, method="delete"),
            "parameters": [_RESPONSE_ID],
        },
        "/v1/responses/{response_id}/input_items": {
            **_get("The input of a response that is kept", schemas.ITEMS_PAGE, 400, 401, 404),
            "parameters": [_RESPONSE_ID],
        },
        "/v1/messages": _post(
            "Answer a chat in Anthropic's form",
            _body(MessagesRequest, fields.MESSAGES, {"model": name, **schemas.MESSAGES_FIELDS}),
            schemas.MESSAGE_REPLY,
            503,
            504,
            stream=True,
            error="AnthropicError",
        ),
        "/v1/messages/count_tokens": _post(
            "Tokens that a message would read",
            _body(MessagesCount, fields.MESSAGES_COUNT, {"model": name, **schemas.MESSAGES_FIELDS}),
            _object("input_tokens"),
            503,
            error="AnthropicError",
        ),
        "/tokenize": _post(
            "Tokens of a text or of a chat's prompt",
            _body(Tokenize, fields.TOKENIZE),
            _object("count", "max_model_len", "tokens"),
            503,
        ),
        "/detokenize": _post("Text of tokens", _body(Detokenize, fields.DETOKENIZE), _object("prompt"), 503),
        "/tokenizer_info": _get("What the tokenizer is", _object("eos_token", "chat_template"), 401, 503),
        "/v1/models": _get("The model under each of its names", _object("object", "data"), 401),
        "/v1/models/{name}": {
            **_get("The model under one name", models, 401, 404),
            "parameters": [{"name": "name", "in": "path", "required": True, "schema": name}],
        },
        "/health": _get("Whether a request would be answered now", _object("status"), own=503),
        "/livez": _get("That the server runs", _object("status")),
        "/metrics": _text("What Prometheus reads"),
        "/openapi.json": _get("This description", _object("openapi", "paths"), 401),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "flashnext", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": {
                "Error": _ERROR,
                "AnthropicError": _ANTHROPIC_ERROR,
                "StreamOptions": StreamOptions.model_json_schema(),
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


async def openapi(service: Service, http: Request) -> Response:
    """GET /openapi.json."""
    return JSONResponse(description(service.settings.names))


def _body(model: type[BaseModel], table: fields.Table, exact: Mapping[str, Any] = NONE) -> dict[str, Any]:
    """Make a body's schema: honoured fields by the model, save as `exact` says, the rest by the table."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    properties = {
        name: {**_untitled(value), **exact.get(name, {})} for name, value in schema["properties"].items()
    }
    for name, rule in table.items():
        if rule.kind == "harmless":
            properties[name] = {"description": "Accepted without effect."}
        elif rule.kind == "refused":
            properties[name] = {"description": f"Refused: {rule.note}.", "enum": [*rule.neutral, None]}
    return {"type": "object", "properties": properties, "required": schema.get("required", [])}


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}


def _errors(*statuses: int, form: str = "Error") -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}"}}}
    return {str(status): {"description": "An error.", "content": body} for status in statuses}


def _ok(schema: dict[str, Any], *, stream: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if stream:
        content["text/event-stream"] = {}  # chunks, and [DONE]; 3.1 has no words for events
    return {"description": "The answer.", "content": content}


def _post(
    summary: str,
    body: dict[str, Any],
    answer: dict[str, Any],
    *errors: int,
    stream: bool = False,
    error: str = "Error",
) -> dict[str, Any]:
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {
                "200": _ok(answer, stream=stream),
                **_errors(400, 401, 403, 404, 413, 415, *errors, form=error),
            },
            "security": [{}, {"bearer": []}, {"key": []}],
        }
    }


def _text(summary: str) -> dict[str, Any]:
    ok = {"description": "The answer.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"get": {"summary": summary, "responses": {"200": ok, **_errors(403)}}}


def _get(
    summary: str, answer: dict[str, Any], *errors: int, own: int | None = None, method: str = "get"
) -> dict[str, Any]:
    responses = {"200": _ok(answer), **_errors(403, *errors)}
    if own is not None:
        responses[str(own)] = _ok(answer)
    return {method: {"summary": summary, "responses": responses}}
