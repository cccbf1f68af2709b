"""The routes that tell of the server: models, health, liveness."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flashnext.engine.engine import Engine
from flashnext.engine.sampling import MAX_TOP_LOGPROBS
from flashnext.server.service import Service


async def models(service: Service, http: Request) -> Response:
    """GET /v1/models: the model under each of its names."""
    return JSONResponse(
        {"object": "list", "data": [_model(service, name) for name in service.settings.names]}
    )


async def model(service: Service, http: Request) -> Response:
    """GET /v1/models/{name}."""
    name = http.path_params["name"]
    service.require_model(name)
    return JSONResponse(_model(service, name))


def _model(service: Service, name: str) -> dict[str, Any]:
    engine = service.loaded
    out: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "flashnext",
        "root": service.name,
        "aliases": [other for other in service.settings.names if other != name],
        "loaded": engine is not None,
    }
    if engine is None:
        return out
    loaded = engine.loaded
    bits = sorted({affine.bits for affine in loaded.checkpoint.affine.values()})
    cap = service.settings.defaults.max_tokens
    return {
        **out,
        "context_window": engine.context,
        "max_model_len": engine.context,
        "max_output_tokens": min(cap or engine.context - 1, engine.context - 1),
        "modalities": {"input": _readable(engine), "output": ["text"]},
        "capabilities": {
            "completion": True,
            "tools": True,
            "json_schema": True,
            "thinking": True,
            "logprobs": True,
            "max_top_logprobs": MAX_TOP_LOGPROBS,
        },
        "quantization": {"bits": bits, "activations": loaded.dtype},
        "prefix_cache": asdict(engine.counts.cache),
        "draft_head": loaded.checkpoint.config.n_mtp_layers > 0,
        "device": loaded.device.name,
    }


def _readable(engine: Engine) -> list[str]:
    """Name what the prompts of an engine may be made of; the chat page offers pictures by it."""
    return ["text"] if engine.eyes is None else ["text", "image", "video"]


async def health(service: Service, http: Request) -> Response:
    """GET /health: whether a request would be answered now."""
    engine = service.loaded
    if engine is None:
        return JSONResponse({"status": "loading", "stage": service.stage, "percent": service.percent}, 503)
    if engine.failure is not None:
        return JSONResponse({"status": "failed", "error": str(engine.failure)}, 503)
    if service.stalled_s > service.settings.stall_s:
        problem = f"the engine has been in one step for {service.stalled_s:.0f} s"
        return JSONResponse({"status": "stalled", "error": problem}, 503)
    return JSONResponse({"status": "ok"})


async def livez(service: Service, http: Request) -> Response:
    """GET /livez: that the server itself runs, whatever the engine does."""
    return JSONResponse({"status": "ok"})
