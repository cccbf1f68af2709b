"""/v1/responses: create a response, tell or forget one that is kept, count what one would read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flashnext.engine.sampling import Sampling
from flashnext.server.body import read_body, worked_out
from flashnext.server.chat_request import Asked
from flashnext.server.errors import PreviousNotFound
from flashnext.server.fields import told_as
from flashnext.server.logprobs import ChatLogprobs
from flashnext.server.opening import read_chat, tokens_of
from flashnext.server.responses_items import listed, said_items
from flashnext.server.responses_request import ResponsesCount, ResponsesPrompt, ResponsesRequest
from flashnext.server.responses_response import ResponsesResponse
from flashnext.server.responses_store import NOT_KEPT, Kept
from flashnext.server.service import Service
from flashnext.text.jsontext import dumps, loads
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
    before = _before(service, asked)
    turn, items = await _chat(service, asked, before)
    if asked.previous_response_id is not None:  # so that it can be answered again without what is kept here
        body = {**body, "input": items, "previous_response_id": None}
    response_id = f"resp_{service.new_id()}"

    def keep(response: bytes, output: list[dict[str, Any]]) -> None:
        if asked.store:
            chat = (*before, asked.encoded, _json(said_items(output)))
            service.responses.put(response_id, Kept(response, asked.encoded, chat))

    engine = service.engine
    async with service.begin(http, body, 1) as running:
        with told_as(messages="input"):
            prompt = await read_chat(service, turn, running)
            running.requests = await service.choices(prompt, sampling, 1, parameters="parameters")
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
        return await running.respond(answer, stream=asked.stream)


async def count(service: Service, http: Request) -> Response:
    """POST /v1/responses/input_tokens: how many tokens a response would read."""

    def read(body: dict[str, Any]) -> ResponsesCount:
        asked = ResponsesCount.read(body, service.unknown)
        if asked.model is not None:
            service.require_model(asked.model)
        return asked

    _, asked = await read_body(http, service.settings, read)
    turn, _ = await _chat(service, asked, _before(service, asked))
    with told_as(messages="input"):
        ids = await tokens_of(service, turn, http.receive)
    return _told({"object": "response.input_tokens", "input_tokens": len(ids)})


async def retrieve(service: Service, http: Request) -> Response:
    """GET /v1/responses/{response_id}: a response that is kept."""
    if http.query_params.get("stream", "false") not in ("false", "0"):
        raise InvalidField("stream", "only a response that is being created is streamed; leave it out")
    kept = service.responses.require(http.path_params["response_id"])
    return Response(kept.response, media_type="application/json")


async def delete(service: Service, http: Request) -> Response:
    """DELETE /v1/responses/{response_id}: forget one."""
    response_id = http.path_params["response_id"]
    service.responses.delete(response_id)
    return _told({"id": response_id, "object": "response", "deleted": True})


async def input_items(service: Service, http: Request) -> Response:
    """GET /v1/responses/{response_id}/input_items: what a response's own request had as input."""
    response_id = http.path_params["response_id"]
    kept = service.responses.require(response_id)
    limit = http.query_params.get("limit", "20")
    most = int(limit) if limit.isascii() and limit.isdigit() and len(limit) <= 9 else 0
    if not 1 <= most <= MAX_LISTED:
        raise InvalidField("limit", f"expected 1 to {MAX_LISTED}, found {limit!r}"[:200])
    order = http.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidField("order", f"expected asc or desc, found {order!r}"[:200])
    after = http.query_params.get("after")

    def page() -> bytes:
        items = listed(loads(kept.items), response_id[5:])
        items = items if order == "asc" else items[::-1]
        if after is not None:
            ids = [item["id"] for item in items]
            if after not in ids:
                raise InvalidField("after", f"the response has no item {after!r}"[:200])
            items = items[ids.index(after) + 1 :]
        data = items[:most]
        return _json(
            {
                "object": "list",
                "data": data,
                "first_id": data[0]["id"] if data else None,
                "last_id": data[-1]["id"] if data else None,
                "has_more": len(data) < len(items),
            }
        )

    return Response(await worked_out(page, len(kept.items)), media_type="application/json")


def _before(service: Service, asked: ResponsesPrompt) -> tuple[bytes, ...]:
    """Find the chat that a request goes on from, an empty one where it begins one.

    Raises:
        PreviousNotFound: It is not kept.
    """
    if asked.previous_response_id is None:
        return ()
    kept = service.responses.get(asked.previous_response_id)
    if kept is None:
        raise PreviousNotFound("previous_response_id", NOT_KEPT.format(asked.previous_response_id[:100]))
    return kept.chat


async def _chat(
    service: Service, asked: ResponsesPrompt, before: Sequence[bytes]
) -> tuple[Asked, list[dict[str, Any]]]:
    """Read what a request asks; returns also all of its items, those that it goes on from first."""

    def read() -> tuple[Asked, list[dict[str, Any]]]:
        earlier = [item for items in before for item in loads(items)]
        return asked.chat(service.settings.defaults, earlier), [*earlier, *asked.items]

    return await worked_out(read, sum(map(len, before)) + len(asked.encoded))


def _json(value: Any) -> bytes:
    return dumps(value, separators=(",", ":")).encode()


def _told(value: dict[str, Any]) -> Response:
    return Response(_json(value), media_type="application/json")
