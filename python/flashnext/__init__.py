"""flashnext serves Qwen3.8-Flash-Next models; see README.md and docs/python.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flashnext.version import VERSION as __version__

if TYPE_CHECKING:
    from flashnext.engine.engine import Engine
    from flashnext.engine.events import Event, Reply
    from flashnext.engine.many import BatchItem, Outcome
    from flashnext.engine.sampling import Sampling
    from flashnext.grammar import Grammar
    from flashnext.text.template import TemplateOptions

__all__ = [
    "BatchItem",
    "Engine",
    "Event",
    "Grammar",
    "Outcome",
    "Reply",
    "Sampling",
    "TemplateOptions",
    "__version__",
]

# On demand: the commands start without them, and so do tools that only look at checkpoints.
_HOMES = {
    "BatchItem": "flashnext.engine.many",
    "Engine": "flashnext.engine.engine",
    "Event": "flashnext.engine.events",
    "Grammar": "flashnext.grammar",
    "Outcome": "flashnext.engine.many",
    "Reply": "flashnext.engine.events",
    "Sampling": "flashnext.engine.sampling",
    "TemplateOptions": "flashnext.text.template",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flashnext' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
