"""The random part of ids."""

from __future__ import annotations

import secrets

CHARACTERS = 24
AT_ONCE = 128
"""Ids of one asking for randomness, which is a system call: a quarter of a millisecond in some containers."""


class RandomIds:
    """Makes ids that nobody can guess: 96 random bits in hexadecimal."""

    def __init__(self) -> None:
        """Begin without any."""
        self._ids: list[str] = []

    def __call__(self) -> str:
        """Make an id."""
        if not self._ids:
            text = secrets.token_hex(CHARACTERS * AT_ONCE // 2)
            self._ids = [text[i : i + CHARACTERS] for i in range(0, len(text), CHARACTERS)]
        return self._ids.pop()
