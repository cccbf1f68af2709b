"""JSON and text as clients send them: numbers keep their digits, and one rule for broken characters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from flashnext.errors import InvalidArgument

MAX_DEPTH = 128
"""Deepest nesting of arrays and objects that is read. Real tool schemas stay below 30."""

_MAX_INT_DIGITS = 4000  # int() of the standard library stops at 4,300


class Number(float):
    """A JSON number whose own spelling matters, since Python would write it differently (1e309, 1.10, -0).

    It compares and computes as the float nearest to it, which may be infinite; `text` is what is written
    back.
    """

    text: str

    def __new__(cls, text: str) -> Number:
        """Read a JSON number."""
        self = float.__new__(cls, text)
        self.text = text
        return self

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def _parse_int(text: str) -> int | Number:
    if len(text) > _MAX_INT_DIGITS:
        return Number(text)
    value = int(text)
    return value if str(value) == text else Number(text)


def _parse_float(text: str) -> float:
    value = float(text)
    return value if repr(value) == text else Number(text)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidArgument(f"{name} is not JSON")


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InvalidArgument(f"the key {twice!r} stands twice in one object")
    return out


def loads(data: str | bytes | bytearray, *, unique_keys: bool = False) -> Any:
    """Read one JSON value; numbers that Python would write differently come back as Number.

    Args:
        data: Text, or bytes in UTF-8.
        unique_keys: Refuse an object that has a key twice; otherwise the last one counts.

    Raises:
        InvalidArgument: Not JSON (NaN and Infinity are not), not UTF-8, or nested deeper than MAX_DEPTH.
    """
    try:
        text = data.decode() if isinstance(data, bytes | bytearray) else data
        if text.startswith("\ufeff"):
            raise InvalidArgument("it begins with a byte order mark, which JSON has not; leave it out")
        value = json.loads(
            text,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_pairs if unique_keys else None,
        )
    except UnicodeDecodeError as e:
        raise InvalidArgument(f"byte {e.start} is not UTF-8") from None
    except json.JSONDecodeError as e:
        raise InvalidArgument(f"not JSON: {e.msg} at line {e.lineno}, column {e.colno}") from None
    except RecursionError:
        raise InvalidArgument(f"nested deeper than {MAX_DEPTH} levels") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidArgument(f"nested deeper than {MAX_DEPTH} levels")
        level = [child for node in level for child in _children(node)]


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def dumps(
    value: Any,
    *,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as the standard library does, save that a Number is written in its own spelling."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if not _holds_number(value):
        return encoder.encode(value)
    step = " " * indent if isinstance(indent, int) else indent
    return "".join(
        _write(value, encoder.encode, step, encoder.item_separator, encoder.key_separator, sort_keys, "\n")
    )


def _holds_number(value: Any) -> bool:
    return isinstance(value, Number) or any(_holds_number(child) for child in _children(value))


def _write(
    value: Any,
    leaf: Callable[[Any], str],
    step: str | None,
    comma: str,
    colon: str,
    sort_keys: bool,
    newline: str,
) -> Iterable[str]:
    if isinstance(value, Number):
        yield value.text
    elif isinstance(value, dict | list | tuple) and value:
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        inner = newline + step if step is not None else ""
        yield opening + inner
        items = (
            sorted(value.items())
            if sort_keys and isinstance(value, dict)
            else value.items()
            if isinstance(value, dict)
            else ((None, item) for item in value)
        )
        for i, (key, item) in enumerate(items):
            if i:
                yield comma + inner
            if key is not None:
                yield leaf(key) + colon
            yield from _write(item, leaf, step, comma, colon, sort_keys, inner)
        yield (newline if step is not None else "") + closing
    else:
        yield leaf(value)


def clean_text(text: str) -> str:
    """Make text encodable: a surrogate pair becomes its character, a lone surrogate becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_value(value: Any) -> Any:
    """Apply clean_text to every string and key of a JSON value."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): clean_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_value(item) for item in value]
    return value
