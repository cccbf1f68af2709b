"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flashnext.engine.request import AsyncRequest
from flashnext.server.body import read_object
from flashnext.server.chat_request import ChatRequest
from flashnext.server.chat_response import ChatResponse
from flashnext.server.logprobs import ChatLogprobs
from flashnext.server.service import Service


async def chat(service: Service, http: Request) -> Response:
    """Answer a chat with one reply or more."""
    try:
        body = await read_object(http, service.settings.max_body_bytes)
    except ClientDisconnect:
        return Response(status_code=499)
    asked = ChatRequest.read(body, service.unknown)
    service.require_model(asked.model)
    engine = service.engine
    defaults = service.settings.defaults
    sampling, options = asked.sampling(defaults, engine.context), asked.options(defaults)
    tools = asked.template_tools

    async def first(seed: int | None) -> AsyncRequest:
        return await engine.generate_async(
            asked.messages,
            sampling=replace(sampling, seed=seed),
            tools=tools,
            options=options,
        )

    running = service.begin(http, body, asked.n)
    try:
        running.requests = await service.choices(first, asked.n, sampling.seed)
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
        return await running.respond(
            http, answer, stream=asked.stream, keepalive_s=service.settings.keepalive_s
        )
    except BaseException:
        running.end()
        raise
