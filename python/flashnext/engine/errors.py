"""What can go wrong with an engine as such."""

from __future__ import annotations

from flashnext.errors import FlashnextError, OutOfMemory
from flashnext.text.messages import InvalidField


class EngineClosed(FlashnextError, RuntimeError):
    """The engine was closed, is closing, or belongs to another process."""


class ContextExceeded(InvalidField):
    """A prompt leaves no room for a reply."""


class GrammarDeadEnd(FlashnextError, RuntimeError):
    """A reply's grammar allows no token where the reply has come to."""


class GrammarsBusy(FlashnextError, RuntimeError):
    """As many grammars wait to be compiled as may.

    Attributes:
        retry_after_s: When to try again.
    """

    retry_after_s = 5


class EngineFailed(FlashnextError, RuntimeError):
    """The engine's thread died; it serves nothing more."""


class MemoryShort(OutOfMemory):
    """The process takes nearly all the memory that it may; it takes requests again once it has room.

    Attributes:
        retry_after_s: When to try again.
    """

    retry_after_s = 5
