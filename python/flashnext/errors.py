"""The exceptions of flashnext: one tree, each class also the fitting builtin, so that plain `except ValueError` works."""

from __future__ import annotations


class FlashnextError(Exception):
    """The base of all errors that flashnext raises on purpose; its text is one sentence for the user."""


class InvalidArgument(FlashnextError, ValueError):
    """A caller's argument is out of its range; the text names the argument, what is allowed and what was found."""


class CheckpointError(FlashnextError, ValueError):
    """A checkpoint folder cannot be used; the text names file, tensor or field, what was expected and what was found."""


class OutOfMemory(FlashnextError, MemoryError):
    """Something does not fit the memory limit; the text gives the numbers and what would fit."""


class DeviceError(FlashnextError, RuntimeError):
    """A device cannot be used, or work that was committed to it failed."""
