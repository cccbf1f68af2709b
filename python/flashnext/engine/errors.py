"""What can go wrong with an engine as such."""

from __future__ import annotations

from flashnext.errors import FlashnextError


class EngineClosed(FlashnextError, RuntimeError):
    """The engine was closed, is closing, or belongs to another process."""


class EngineFailed(FlashnextError, RuntimeError):
    """The engine's thread died; it serves nothing more."""
