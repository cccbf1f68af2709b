"""POST /v1/messages and /v1/messages/count_tokens: chats as Anthropic's clients send them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flashnext.engine.sampling import Sampling
from flashnext.server.body import read_body
from flashnext.server.chat_request import Asked
from flashnext.server.messages_request import MessagesCount, MessagesRequest
from flashnext.server.messages_response import MessagesResponse
from flashnext.server.opening import read_chat, tokens_of
from flashnext.server.service import Service


async def create(service: Service, http: Request) -> Response:
    """Answer a chat with one message."""

    def read(body: dict[str, Any]) -> tuple[MessagesRequest, Sampling, Asked]:
        asked = MessagesRequest.read(body, service.unknown)
        service.require_model(asked.model)
        return asked, asked.sampling(service.settings.defaults, service.engine.context), asked.chat()

    body, (asked, sampling, turn) = await read_body(http, service.settings, read)
    async with service.begin(http, body, 1) as running:
        prompt = await read_chat(service, turn, running)
        running.requests = await service.choices(prompt, sampling, 1, parameters="input_schema")
        (request,) = running.requests
        answer = MessagesResponse(
            id=f"msg_{service.new_id()}",
            request_id=http.state.detail["id"],
            model=service.name,
            asked=asked,
            seed=request.seed,
            prompt_ids=request.prompt_ids,
            new_id=service.new_id,
        )
        return await running.respond(answer, stream=asked.stream)


async def count(service: Service, http: Request) -> Response:
    """Count the tokens that a chat's next message would read."""

    def read(body: dict[str, Any]) -> Asked:
        asked = MessagesCount.read(body, service.unknown)
        service.require_model(asked.model)
        return asked.chat()

    _, turn = await read_body(http, service.settings, read)
    return JSONResponse({"input_tokens": len(await tokens_of(service, turn, http.receive))})
