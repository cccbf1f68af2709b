"""Text that knows which of its characters the chat template wrote; no others may become control tokens."""

# ruff: noqa: D102 (the methods here do to characters what those of str do)
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

from flashnext.text.messages import InvalidField

Spans = tuple[tuple[int, int], ...]

MAX_CHARS = 16 * 1024 * 1024
"""Longest text that rendering may build. A window of 1,048,576 tokens is about 5 million characters."""


class TooLong(InvalidField):
    """The template would write more for a chat than any context takes."""


def check_length(n_chars: int) -> None:
    """Refuse a text of more than MAX_CHARS before it is built.

    Raises:
        TooLong: n_chars is too large.
    """
    if n_chars > MAX_CHARS:
        raise TooLong(
            "messages",
            f"the chat template would write {n_chars} characters, the limit is {MAX_CHARS}; send less",
        )


class Written(str):
    """A string with the character ranges that come from the template itself.

    The rule is that whatever is not known to be the template's is somebody else's: plain strings count as
    foreign, and an operation that is not followed here (`upper`, `%`, ...) gives a plain string. A lost range
    makes a control token ordinary text; it never makes ordinary text a control token.

    Attributes:
        spans: Ascending, disjoint ranges [start, end) that the template wrote.
    """

    spans: Spans

    def __new__(cls, text: str, spans: Iterable[tuple[int, int]] = ()) -> Written:
        """Mark the characters of spans as the template's."""
        self = str.__new__(cls, text)
        self.spans = tuple(spans)
        return self

    @classmethod
    def all_of(cls, text: str) -> Written:
        """All of text was written by the template."""
        return cls(text, ((0, len(text)),) if text else ())

    @classmethod
    def concat(cls, pieces: Iterable[str]) -> Written:
        """Join pieces; plain strings among them are foreign.

        Raises:
            TooLong: The result would be longer than MAX_CHARS.
        """
        texts: list[str] = []
        spans: list[tuple[int, int]] = []
        offset = 0
        for piece in pieces:
            texts.append(piece)
            if isinstance(piece, Written):
                for start, end in piece.spans:
                    if spans and spans[-1][1] == offset + start:
                        spans[-1] = (spans[-1][0], offset + end)
                    else:
                        spans.append((offset + start, offset + end))
            offset += len(piece)
            check_length(offset)
        return cls("".join(texts), spans)

    def plain(self) -> str:
        """Return the characters alone."""
        return str.__str__(self)

    def _cut(self, start: int, end: int) -> Written:
        kept = ((max(s, start) - start, min(e, end) - start) for s, e in self.spans if s < end and e > start)
        return Written(str.__getitem__(self, slice(start, end)), kept)

    def _cut_each(self, parts: Iterable[str], gap: int = 0) -> list[Written]:
        """Cut parts that follow one another, `gap` characters apart (or by white space, where gap is 0)."""
        out: list[Written] = []
        at = 0
        for part in parts:
            at = self.index(part, at)
            out.append(self._cut(at, at + len(part)))
            at += len(part) + gap
        return out

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return f"Written({str.__repr__(self)}, {self.spans})"

    def __iter__(self) -> Iterator[str]:
        return (self._cut(i, i + 1) for i in range(len(self)))

    def __getitem__(self, key: SupportsIndex | slice) -> Written:
        if isinstance(key, slice):
            start, end, step = key.indices(len(self))
            if step == 1:
                return self._cut(start, max(start, end))
            return Written.concat(self._cut(i, i + 1) for i in range(start, end, step))
        i = key.__index__()
        if not -len(self) <= i < len(self):
            raise IndexError("string index out of range")
        return self._cut(i % len(self), i % len(self) + 1)

    def __add__(self, other: str) -> Written:
        return Written.concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Written:
        return Written.concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, n: SupportsIndex) -> Written:
        check_length(len(self) * n.__index__())
        return Written.concat((self,) * n.__index__())

    __rmul__ = __mul__

    def strip(self, chars: str | None = None) -> Written:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> Written:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None) -> Written:
        return self._cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str) -> Written:
        return self._cut(len(prefix), len(self)) if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> Written:
        return self._cut(0, len(self) - len(suffix)) if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._cut_each(str.split(self, sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._cut_each(str.rsplit(self, sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[Any]:
        lines = self._cut_each(str.splitlines(self, True))
        if keepends:
            return lines
        return [line._cut(0, len(bare)) for line, bare in zip(lines, str.splitlines(self), strict=True)]

    def partition(self, sep: str) -> tuple[Any, Any, Any]:
        head, found, tail = (len(part) for part in str.partition(self, sep))
        return self._cut(0, head), self._cut(head, head + found), self._cut(head + found, head + found + tail)

    def rpartition(self, sep: str) -> tuple[Any, Any, Any]:
        head, found, tail = (len(part) for part in str.rpartition(self, sep))
        return self._cut(0, head), self._cut(head, head + found), self._cut(head + found, head + found + tail)

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Written:
        n = count.__index__()
        found = str.count(self, old)
        times = found if n < 0 else min(found, n)
        check_length(len(self) + times * (len(new) - len(old)))
        if not times:
            return self
        places = [m.start() for m, _ in zip(re.finditer(re.escape(old), self), range(times), strict=False)]
        pieces: list[str] = []
        at = 0
        for place in places:
            pieces += [self._cut(at, place), new]
            at = place + len(old)
        pieces.append(self._cut(at, len(self)))
        return Written.concat(pieces)

    def join(self, parts: Iterable[str]) -> Written:
        pieces: list[str] = []
        for part in parts:
            if not isinstance(part, str):
                raise TypeError(f"join: expected text, found {type(part).__name__}")
            if pieces:
                pieces.append(self)
            pieces.append(part)
        return Written.concat(pieces)
