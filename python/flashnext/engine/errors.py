"""What can go wrong with an engine as such."""

from __future__ import annotations

from flashnext.errors import FlashnextError
from flashnext.text.messages import InvalidField


class EngineClosed(FlashnextError, RuntimeError):
    """The engine was closed, is closing, or belongs to another process."""


class ContextExceeded(InvalidField):
    """A prompt leaves no room for a reply."""


class EngineFailed(FlashnextError, RuntimeError):
    """The engine's thread died; it serves nothing more."""
