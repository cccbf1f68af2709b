"""The random part of ids."""

from __future__ import annotations

import secrets

CHARACTERS = 24
AT_ONCE = 128
"""Ids of one asking for randomness, which is a system call: a quarter of a millisecond in some containers."""


class RandomIds:
    """Makes ids that nobody can guess: 96 random bits in hexadecimal. May be called from any thread."""

    def __init__(self) -> None:
        """Begin without any."""
        self._ids: list[str] = []

    def __call__(self) -> str:
        """Make an id."""
        try:
            return self._ids.pop()  # at once: nobody else gets the same one, or takes the last one meanwhile
        except IndexError:
            text = secrets.token_hex(CHARACTERS * AT_ONCE // 2)
            made = [text[i : i + CHARACTERS] for i in range(0, len(text), CHARACTERS)]
            own = made.pop()
            self._ids = made
            return own
