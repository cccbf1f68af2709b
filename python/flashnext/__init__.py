"""flashnext serves Qwen3.8-Flash-Next models; see README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashnext.version import VERSION as __version__

if TYPE_CHECKING:
    from flashnext.engine.engine import Engine
    from flashnext.engine.sampling import Sampling

__all__ = ["Engine", "Sampling", "__version__"]


def __getattr__(name: str) -> Any:
    # On demand: the commands start without them, and so do tools that only look at checkpoints.
    if name == "Engine":
        from flashnext.engine.engine import Engine

        return Engine
    if name == "Sampling":
        from flashnext.engine.sampling import Sampling

        return Sampling
    raise AttributeError(f"module 'flashnext' has no attribute {name!r}")
