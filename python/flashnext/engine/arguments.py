"""The reading of what an engine is given: sizes, folders, and whether a prompt is soon read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from flashnext.engine.defaults import LEAST_GIB, MOST_GIB, SPILL_GIB
from flashnext.engine.plan import GIB
from flashnext.engine.wording import Names
from flashnext.errors import InvalidArgument

SHORT_CHARS = 2048
"""Longest prompt that the event loop itself reads, in characters or token ids."""

SHORT_TURNS = 16
"""Most messages of it; a quarter where it is also found where they may be cut."""


def is_number(value: object) -> bool:
    """Whether an argument is a number, which True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def size_bytes(name: str, gib: float | None, *, zero: bool = False) -> int | None:
    """Read a size in GiB; None stays None.

    Args:
        name: Of the argument, as refusals call it.
        gib: Its value.
        zero: Whether it may be 0, which then means something.

    Raises:
        InvalidArgument: It is no number, or out of its range.
    """
    if gib is None:
        return None
    if not (is_number(gib) and (LEAST_GIB <= gib <= MOST_GIB or (zero and gib == 0))):
        least = f"{LEAST_GIB} to {MOST_GIB:,}" + (", or 0" if zero else "")
        raise InvalidArgument(f"{name} is {gib!r}, expected GiB from {least}")
    return int(gib * GIB)


def spill_limit_bytes(names: Names, folder: object, gib: float | None) -> int:
    """Read the limit of a spill directory, and see that there is one where it has a limit.

    Args:
        names: How refusals call the arguments.
        folder: The directory; None for none.
        gib: Its limit; None for the usual one.

    Raises:
        InvalidArgument: One of them is of another type or out of its range.
    """
    if folder is not None and (not isinstance(folder, str | os.PathLike) or not Path(folder).parts):
        raise InvalidArgument(
            f"{names.name('spill_dir')} is {folder!r}, expected the name of a folder; "
            "where the current folder is meant, give its whole path"
        )
    limit = size_bytes(names.name("spill_limit_gib"), gib)
    if limit is not None and folder is None:
        raise InvalidArgument(
            f"{names.name('spill_limit_gib')} is {gib:g}, but there is no spill directory for it to limit; "
            f"give {names.name('spill_dir')} too"
        )
    return int(SPILL_GIB * GIB) if limit is None else limit


def is_short(prompt: object, most_turns: int) -> bool:
    """Whether a prompt is soon read, as far as that is seen at a glance.

    Args:
        prompt: Text, token ids or messages.
        most_turns: Most messages that are.
    """
    if isinstance(prompt, str):
        return len(prompt) <= SHORT_CHARS
    if not isinstance(prompt, list) or len(prompt) > SHORT_CHARS:
        return False
    if not prompt or not isinstance(prompt[0], Mapping):
        return True
    if len(prompt) > most_turns:
        return False
    # Reasoning, calls and parts of text may be long in many places.
    values = [value for turn in prompt if isinstance(turn, Mapping) for value in turn.values()]
    return all(isinstance(value, str) for value in values) and sum(map(len, values)) <= SHORT_CHARS
