"""JSON whose numbers keep the digits that they came with, so that what no double holds is noticed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_INT_DIGITS = 400
"""Longest integer that is read as one; what is longer is beyond every double."""
_MAX_EXPONENT_DIGITS = 8
"""What has more in its exponent is no double but 0, or has more digits than fit a request."""


class Spelled(float):
    """A number that Python would write differently: the double that is nearest to it, and its own text."""

    _text: str

    def __new__(cls, text: str) -> Spelled:
        """Read a JSON number."""
        self = float.__new__(cls, text)
        self._text = text
        return self

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def loads(text: str) -> Any:
    """Read JSON.

    Raises:
        ValueError: It is none.
    """
    return decoder().decode(text)


def decoder() -> json.JSONDecoder:
    """Make what reads JSON so."""
    return json.JSONDecoder(parse_float=_float, parse_int=_int)


def dumps(value: Any) -> str:
    """Write JSON; a number that has a text of its own is written by that.

    Raises:
        TypeError, ValueError: It is no JSON.
        RecursionError: It is nested too deep.
    """
    if not _any_spelled(value):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return "".join(_pieces(value))


def is_exact(value: float) -> bool:
    """Whether a number is the one that its double is written as, so that whoever reads either means it."""
    text = str(value)
    if type(value) is float or not _NUMBER.fullmatch(text):
        return math.isfinite(value)
    digits, _, exponent = text.lower().partition("e")
    if not digits.strip("-0."):
        return True  # 0, whatever its exponent
    if not math.isfinite(value) or len(exponent.lstrip("+-0")) > _MAX_EXPONENT_DIGITS:
        return False
    return Decimal(text) == Decimal(float.__repr__(value))


def _float(text: str) -> float:
    value = float(text)
    return value if repr(value) == text else Spelled(text)


def _int(text: str) -> float:
    return int(text) if len(text) <= _MAX_INT_DIGITS else Spelled(text)


def _any_spelled(value: Any) -> bool:
    return _is_spelled(value) or any(map(_any_spelled, _items(value)))


def _is_spelled(value: Any) -> bool:
    """Whether a number has a text of its own, as those have that the body of a request was read to."""
    return isinstance(value, float) and type(value) is not float and bool(_NUMBER.fullmatch(str(value)))


def _items(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _pieces(value: Any) -> Iterator[str]:
    if _is_spelled(value):
        yield str(value)
    elif isinstance(value, Mapping):
        for i, (key, one) in enumerate(value.items()):
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no text")
            yield ("," if i else "{") + json.dumps(key, ensure_ascii=False) + ":"
            yield from _pieces(one)
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple):
        for i, one in enumerate(value):
            yield "," if i else "["
            yield from _pieces(one)
        yield "]" if value else "[]"
    else:
        yield json.dumps(value, ensure_ascii=False, allow_nan=False)
