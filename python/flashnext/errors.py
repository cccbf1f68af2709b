"""The exceptions of flashnext: one tree, in which each class is also the fitting builtin."""

from __future__ import annotations


class FlashnextError(Exception):
    """The base of all errors that flashnext raises on purpose; its text is one sentence for the user."""


class InvalidArgument(FlashnextError, ValueError):
    """An argument is out of its range; the text names it, what is allowed and what was found."""


class CheckpointError(FlashnextError, ValueError):
    """A checkpoint cannot be used; the text names file, tensor or field, what was expected and found."""


class OutOfMemory(FlashnextError, MemoryError):
    """Something does not fit the memory limit; the text gives the numbers and what would fit."""


class OutOfPages(OutOfMemory):
    """The pages of the attention caches are all in use; some may come free."""


class DeviceError(FlashnextError, RuntimeError):
    """A device cannot be used, or work that was committed to it failed."""
