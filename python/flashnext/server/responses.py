"""/v1/responses: create a response, tell or forget one that is kept, count what one would read."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flashnext.engine.sampling import Sampling
from flashnext.server.body import read_body
from flashnext.server.errors import PreviousNotFound
from flashnext.server.fields import told_as
from flashnext.server.logprobs import ChatLogprobs
from flashnext.server.responses_items import items_of, listed
from flashnext.server.responses_request import ResponsesCount, ResponsesPrompt, ResponsesRequest
from flashnext.server.responses_response import ResponsesResponse
from flashnext.server.responses_store import NOT_KEPT, Kept
from flashnext.server.service import Service
from flashnext.server.stream import EVENTS
from flashnext.text.jsontext import dumps
from flashnext.text.messages import InvalidField

MAX_LISTED = 100
"""Most items that are listed at once."""


async def create(service: Service, http: Request) -> Response:
    """Answer an input, and whatever it goes on from."""

    def read(body: dict[str, Any]) -> tuple[ResponsesRequest, Sampling]:
        asked = ResponsesRequest.read(body, service.unknown)
        service.require_model(asked.model)
        return asked, asked.sampling(service.settings.defaults, service.engine.context)

    body, (asked, sampling) = await read_body(http, service.settings, read)
    before = _previous(service, asked)
    turns = asked.turns(before.messages)
    if asked.previous_response_id is not None:  # so that it can be answered again without what is kept here
        body = {**body, "input": items_of(turns), "previous_response_id": None}
    turn = asked.chat(service.settings.defaults, before.messages)
    response_id = f"resp_{service.new_id()}"

    def keep(response: dict[str, Any], said: dict[str, Any]) -> None:
        if not asked.store:
            return
        n_bytes = len(dumps(response)) + asked.n_bytes + before.n_bytes
        kept = Kept(response, listed(asked.items, response_id[5:]), [*turns, said], n_bytes)
        service.responses.put(response_id, kept)

    engine = service.engine
    with service.begin(http, body, 1) as running:
        with told_as(messages="input"):
            prompt = await engine.read_async(turn.messages, tools=turn.tools, options=turn.options)
            running.requests = await service.choices(prompt, sampling, 1)
        (request,) = running.requests
        answer = ResponsesResponse(
            id=response_id,
            model=service.name,
            created=int(service.now()),
            now=service.now,
            asked=asked,
            sampling=sampling,
            seed=request.seed,
            prompt_ids=request.prompt_ids,
            new_id=service.new_id,
            logprobs=ChatLogprobs(engine.tokenizer) if asked.tells_logprobs else None,
            keep=keep,
        )
        return await running.respond(http, answer, stream=asked.stream)


async def count(service: Service, http: Request) -> Response:
    """POST /v1/responses/input_tokens: how many tokens a response would read."""

    def read(body: dict[str, Any]) -> ResponsesCount:
        asked = ResponsesCount.read(body, service.unknown)
        if asked.model is not None:
            service.require_model(asked.model)
        return asked

    _, asked = await read_body(http, service.settings, read)
    before = _previous(service, asked)
    turn = asked.chat(service.settings.defaults, before.messages)
    with told_as(messages="input"):
        prompt = await asyncio.to_thread(
            service.engine.template.render, turn.messages, turn.tools, turn.options
        )
    return _json({"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)})


async def retrieve(service: Service, http: Request) -> Response:
    """GET /v1/responses/{response_id}: a response that is kept."""
    if http.query_params.get("stream", "false") not in ("false", "0"):
        raise InvalidField("stream", "only a response that is being created is streamed; leave it out")
    return _json(service.responses.require(http.path_params["response_id"]).response)


async def delete(service: Service, http: Request) -> Response:
    """DELETE /v1/responses/{response_id}: forget one."""
    response_id = http.path_params["response_id"]
    service.responses.delete(response_id)
    return _json({"id": response_id, "object": "response", "deleted": True})


async def input_items(service: Service, http: Request) -> Response:
    """GET /v1/responses/{response_id}/input_items: what a response's own request had as input."""
    kept = service.responses.require(http.path_params["response_id"])
    limit = http.query_params.get("limit", "20")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MAX_LISTED:
        raise InvalidField("limit", f"expected 1 to {MAX_LISTED}, found {limit!r}"[:200])
    order = http.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidField("order", f"expected asc or desc, found {order!r}"[:200])
    items = kept.items if order == "asc" else kept.items[::-1]
    after = http.query_params.get("after")
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidField("after", f"the response has no item {after!r}"[:200])
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    return _json(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(page) < len(items),
        }
    )


def _previous(service: Service, asked: ResponsesPrompt) -> Kept:
    """Find the response that a request goes on from, an empty one where there is none.

    Raises:
        PreviousNotFound: It is not kept.
    """
    if asked.previous_response_id is None:
        return Kept({}, [], [], 0)
    kept = service.responses.get(asked.previous_response_id)
    if kept is None:
        raise PreviousNotFound("previous_response_id", NOT_KEPT.format(asked.previous_response_id[:100]))
    return kept


def _json(value: dict[str, Any]) -> Response:
    return Response(EVENTS.encode(value), media_type="application/json")
