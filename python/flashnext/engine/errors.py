"""What can go wrong with an engine, and the core's exceptions as those of flashnext.errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flashnext import _core
from flashnext.errors import DeviceError, FlashnextError, InvalidArgument, OutOfMemory


class EngineClosed(FlashnextError, RuntimeError):
    """The engine was closed, is closing, or belongs to another process."""


class EngineFailed(FlashnextError, RuntimeError):
    """The engine's thread died; it serves nothing more."""


def from_core(error: Exception) -> Exception:
    """Find the exception of flashnext.errors that says the same; others are returned as they are."""
    for kind, ours in (
        (_core.InvalidArgument, InvalidArgument),
        (_core.OutOfMemory, OutOfMemory),
        (_core.Error, DeviceError),
    ):
        if isinstance(error, kind):
            return ours(str(error))
    return error


@contextmanager
def core_errors() -> Iterator[None]:
    """Raise the core's exceptions as those of flashnext.errors."""
    try:
        yield
    except _core.Error as error:
        raise from_core(error) from None
