"""Typed, range-checked reading of values out of untrusted JSON objects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeVar

from flashnext.errors import CheckpointError

T = TypeVar("T")


class _Required:
    """The type of `REQUIRED`, the default that says that a field has none."""


REQUIRED: Final = _Required()


def shown(value: object, limit: int = 80) -> str:
    """`value` as printable ASCII, cut to `limit` characters, for use inside an error sentence."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    text = ascii(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shown_path(path: object) -> str:
    """Return a path as it is where it is printable and of usual length, else like `shown`."""
    text = str(path)
    return text if text.isprintable() and len(text) <= 1000 else shown(text, 200)


class Fields:
    """One JSON object and the name by which errors call it.

    Every getter returns a value of the asked type within the asked range, or raises `CheckpointError` with a
    sentence that names the field, what is allowed and what was found. A field that is absent or null takes
    `default`.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def name(self, field: str) -> str:
        """How an error sentence calls `field`."""
        return f"{self.where}{field}"

    def refuse(self, field: str, expected: str) -> NoReturn:
        """Raise the error that `field` must be `expected`."""
        if field not in self:
            raise CheckpointError(f"{self.name(field)} is missing; it must be {expected}")
        raise CheckpointError(f"{self.name(field)} must be {expected}, found {shown(self.values[field])}")

    def _default(self, field: str, expected: str, default: T | _Required) -> T:
        if isinstance(default, _Required):
            self.refuse(field, expected)
        return default

    def integer(self, field: str, low: int, high: int, default: int | _Required = REQUIRED) -> int:
        """Get a whole number from `low` to `high`; true, false and 1.0 are not whole numbers."""
        expected = f"a whole number from {low} to {high}"
        value = self.values.get(field)
        if value is None:
            return self._default(field, expected, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(field, expected)
        return value

    def number(self, field: str, low: float, high: float, default: float | _Required = REQUIRED) -> float:
        """Get a finite number from `low` to `high`."""
        expected = f"a number from {low:g} to {high:g}"
        value = self.values.get(field)
        if value is None:
            return self._default(field, expected, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            self.refuse(field, expected)
        if not math.isfinite(value):
            self.refuse(field, expected)
        return float(value)

    def flag(self, field: str, default: bool | _Required = REQUIRED) -> bool:
        """Get true or false."""
        value = self.values.get(field)
        if value is None:
            return self._default(field, "true or false", default)
        if not isinstance(value, bool):
            self.refuse(field, "true or false")
        return value

    def text(self, field: str, default: str | _Required = REQUIRED) -> str:
        """Get a string."""
        value = self.values.get(field)
        if value is None:
            return self._default(field, "a string", default)
        if not isinstance(value, str):
            self.refuse(field, "a string")
        return value

    def integers(
        self,
        field: str,
        low: int,
        high: int,
        max_length: int,
        default: tuple[int, ...] | _Required = REQUIRED,
    ) -> tuple[int, ...]:
        """Get a list of at most `max_length` whole numbers from `low` to `high`."""
        expected = f"a list of at most {max_length} whole numbers from {low} to {high}"
        value = self.values.get(field)
        if value is None:
            return self._default(field, expected, default)
        if not isinstance(value, list) or len(value) > max_length:
            self.refuse(field, expected)
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or not low <= item <= high:
                self.refuse(field, expected)
        return tuple(value)

    def texts(self, field: str, max_length: int) -> tuple[str, ...]:
        """Get a list of at most `max_length` strings."""
        value = self.values.get(field)
        if (
            not isinstance(value, list)
            or len(value) > max_length
            or not all(isinstance(v, str) for v in value)
        ):
            self.refuse(field, f"a list of at most {max_length} strings")
        return tuple(value)

    def section(self, field: str) -> Fields | None:
        """Get the object under `field`, or None where there is none."""
        value = self.values.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(field, "an object")
        return Fields(value, f"{self.where}{field}.")

    def must_be(self, field: str, supported: object, why: str) -> None:
        """Refuse by name any value of `field` other than `supported` (absent and null pass)."""
        value = self.values.get(field)
        if value is not None and (
            value != supported or isinstance(value, bool) != isinstance(supported, bool)
        ):
            raise CheckpointError(
                f"{self.name(field)} is {shown(value)}, which flashnext does not support: {why}; only "
                f"{shown(supported)} is"
            )
