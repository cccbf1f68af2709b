"""The routes that count: tokenize, detokenize, tokenizer_info."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flashnext.engine.engine import Engine
from flashnext.server.body import read_body
from flashnext.server.chat_request import Asked, ChatPrompt
from flashnext.server.drawing import checked
from flashnext.server.fields import DETOKENIZE, TOKENIZE, Table, honoured_fields, know_messages
from flashnext.server.opening import tokens_of
from flashnext.server.service import Service
from flashnext.server.shown import know_shown
from flashnext.server.structured import know_choice
from flashnext.text.messages import InvalidField
from flashnext.text.tokenizer import Tokenizer


class Tokenize(ChatPrompt):
    """What POST /tokenize accepts."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = Field(None, fail_fast=True)
    return_token_strs: bool = False


class Detokenize(BaseModel):
    """What POST /detokenize accepts."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    tokens: list[int] = Field(fail_fast=True)


_Body = TypeVar("_Body", Tokenize, Detokenize)


async def tokenize(service: Service, http: Request) -> Response:
    """POST /tokenize: the tokens of a text, or exactly those of a chat's prompt, tools included."""
    asked = await _read(service, http, TOKENIZE, Tokenize)
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidField("prompt", "give either prompt or messages")
    engine = service.engine
    if asked.messages is not None:
        options = asked.options(service.settings.defaults)
        ids = await tokens_of(service, Asked(asked.messages, asked.template_tools, options), http.receive)
    else:
        ids = await asyncio.to_thread(engine.tokenizer.encode, asked.prompt or "")
    return await asyncio.to_thread(_told, engine, ids, asked.return_token_strs)


def _told(engine: Engine, ids: list[int], spelled: bool) -> JSONResponse:
    out: dict[str, Any] = {"count": len(ids), "max_model_len": engine.context, "tokens": ids}
    if spelled:
        out["token_strs"] = [engine.tokenizer.decode([token_id]) for token_id in ids]
    return JSONResponse(out)


async def detokenize(service: Service, http: Request) -> Response:
    """POST /detokenize: the text of token ids."""
    asked = await _read(service, http, DETOKENIZE, Detokenize)
    return await asyncio.to_thread(_detokenized, service.engine.tokenizer, asked.tokens)


def _detokenized(tokenizer: Tokenizer, ids: list[int]) -> JSONResponse:
    for i, token_id in enumerate(ids):
        if not 0 <= token_id < tokenizer.n_tokens:
            raise InvalidField(
                f"tokens[{i}]",
                f"expected a token id from 0 to {tokenizer.n_tokens - 1}, found {token_id}"[:200],
            )
    return JSONResponse({"prompt": tokenizer.decode(ids)})


async def tokenizer_info(service: Service, http: Request) -> Response:
    """GET /tokenizer_info: what a client needs to count with the server's tokenizer."""
    engine = service.engine
    stop_ids = engine.loaded.checkpoint.stop_tokens
    spelled = [engine.tokenizer.control_spelling(token_id) for token_id in stop_ids]
    return JSONResponse(
        {
            "tokenizer_class": "byte-level BPE",
            "n_tokens": engine.tokenizer.n_tokens,
            "model_max_length": engine.context,
            "bos_token": None,
            "eos_token": spelled[0] if spelled else None,
            "pad_token": None,
            "add_bos_token": False,
            "eos_token_ids": list(stop_ids),
            "control_tokens": engine.tokenizer.control_ids,
            "chat_template": engine.template.source,
        }
    )


async def _read(service: Service, http: Request, table: Table, kind: type[_Body]) -> _Body:
    """Read and check a body."""

    def read(body: dict[str, Any]) -> _Body:
        asked = checked(kind, honoured_fields(body, table, service.unknown))
        if isinstance(asked, Tokenize):
            know_messages(asked.messages or (), service.unknown)
            know_shown(asked.messages or (), service.unknown)
            know_choice(asked.tool_choice, service.unknown)
        if asked.model is not None:
            service.require_model(asked.model)
        return asked

    _, asked = await read_body(http, service.settings, read)
    return asked
