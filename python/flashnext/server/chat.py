"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flashnext.engine.sampling import Sampling
from flashnext.server.body import read_body
from flashnext.server.chat_request import Asked, ChatRequest
from flashnext.server.chat_response import ChatResponse
from flashnext.server.logprobs import ChatLogprobs
from flashnext.server.opening import read_chat
from flashnext.server.service import Service


async def chat(service: Service, http: Request) -> Response:
    """Answer a chat with one reply or more."""
    defaults = service.settings.defaults

    def read(body: dict[str, Any]) -> tuple[ChatRequest, Sampling, Asked]:
        asked = ChatRequest.read(body, service.unknown)
        service.require_model(asked.model)
        return asked, asked.sampling(defaults, service.engine.context), asked.chat(defaults)

    body, (asked, sampling, turn) = await read_body(http, service.settings, read)
    engine = service.engine
    async with service.begin(http, body, asked.n) as running:
        prompt = await read_chat(service, turn, running)
        running.requests = await service.choices(prompt, sampling, asked.n, parameters="function.parameters")
        answer = ChatResponse(
            id=f"chatcmpl-{service.new_id()}",
            model=service.name,
            created=int(service.now()),
            fingerprint=service.fingerprint,
            seeds=[request.seed for request in running.requests],
            prompt_ids=running.requests[0].prompt_ids,
            tell_ids=asked.return_token_ids,
            end_usage=asked.stream_usage,
            each_usage=asked.stream_options.continuous_usage_stats,
            new_call_id=lambda: f"call_{service.new_id()}",
            logprobs=ChatLogprobs(engine.tokenizer) if asked.logprobs else None,
        )
        return await running.respond(answer, stream=asked.stream)
