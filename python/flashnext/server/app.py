"""The routes: chat completions, models and health."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flashnext.engine.engine import Engine
from flashnext.engine.request import AsyncRequest
from flashnext.errors import FlashnextError
from flashnext.server.body import read_object
from flashnext.server.chat_request import ChatRequest
from flashnext.server.chat_response import ChatResponse
from flashnext.server.errors import ModelNotFound, envelope, response
from flashnext.server.stream import ClientGone, EventStream, unless_gone

_log = logging.getLogger("flashnext.server")


class Server:
    """The handlers of the routes, over one engine."""

    def __init__(
        self,
        engine: Engine,
        names: Sequence[str],
        *,
        now: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: secrets.token_hex(12),
    ) -> None:
        """Serve an engine.

        Args:
            engine: What answers; it stays the caller's to close.
            names: Names of the model; the first is the one that replies carry.
            now: The clock, in Unix seconds.
            new_id: Makes the random part of ids.
        """
        self._engine = engine
        self._names = tuple(names)
        self._now = now
        self._new_id = new_id
        self._created = int(now())

    async def chat(self, http: Request) -> Response:
        """POST /v1/chat/completions."""
        try:
            asked = ChatRequest.read(await read_object(http))
        except ClientDisconnect:
            return Response(status_code=499)
        if asked.model not in self._names:
            raise ModelNotFound(
                "model", f"{asked.model!r} is not served here; the model is {self._names[0]!r}"
            )
        request = await self._engine.generate_async(
            asked.messages, sampling=asked.sampling(), tools=asked.template_tools, options=asked.options()
        )
        answer = ChatResponse(
            id=f"chatcmpl-{self._new_id()}",
            model=self._names[0],
            created=int(self._now()),
            seed=request.seed,
            prompt_ids=request.prompt_ids if asked.return_token_ids else None,
            include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
            new_call_id=lambda: f"call_{self._new_id()}",
        )
        if asked.stream:
            return EventStream(_chunks(request, answer))
        try:
            reply = await unless_gone(http.receive, request.result())
        except ClientGone:
            return Response(status_code=499)  # nobody reads it
        finally:
            request.cancel()
        return JSONResponse(answer.completion(reply))

    async def models(self, http: Request) -> Response:
        """GET /v1/models."""
        model = {
            "id": self._names[0],
            "object": "model",
            "created": self._created,
            "owned_by": "flashnext",
            "context_window": self._engine.context,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, http: Request) -> Response:
        """GET /health."""
        if self._engine.failure is not None:
            return JSONResponse({"status": "failed", "error": str(self._engine.failure)}, 503)
        return JSONResponse({"status": "ok"})


async def _chunks(request: AsyncRequest, answer: ChatResponse) -> AsyncGenerator[dict[str, Any]]:
    """Write the objects of a stream; an error in the middle is its last."""
    try:
        yield answer.first_chunk()
        async for event in request:
            for chunk in answer.chunks(event):
                yield chunk
    except Exception as error:
        if not isinstance(error, FlashnextError):
            _log.exception("a stream failed")
        yield envelope(error)[1]
    finally:
        request.cancel()


async def _on_error(http: Request, error: Exception) -> Response:
    headers = None
    if isinstance(error, HTTPException):
        headers = error.headers
        error = HTTPException(error.status_code, f"{http.method} {http.url.path}: {error.detail}")
    return response(error, headers)


def create_app(server: Server) -> Starlette:
    """Make the ASGI application."""
    return Starlette(
        routes=[
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
            Route("/v1/models", server.models, methods=["GET"]),
            Route("/health", server.health, methods=["GET"]),
        ],
        exception_handlers={
            FlashnextError: _on_error,
            MemoryError: _on_error,
            HTTPException: _on_error,
            Exception: _on_error,
        },
    )
