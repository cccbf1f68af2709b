"""flashnext serves Qwen3.8-Flash-Next models; see README.md."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashnext.engine.engine import Engine
    from flashnext.engine.sampling import Sampling

__all__ = ["Engine", "Sampling", "__version__"]

try:
    __version__ = version("flashnext")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    # On demand: the commands start without them, and so do tools that only look at checkpoints.
    if name == "Engine":
        from flashnext.engine.engine import Engine

        return Engine
    if name == "Sampling":
        from flashnext.engine.sampling import Sampling

        return Sampling
    raise AttributeError(f"module 'flashnext' has no attribute {name!r}")
