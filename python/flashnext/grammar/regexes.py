"""Regular expressions read just as far as is needed to bound their work and to say what is not supported."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flashnext.grammar.spec import GrammarError

MAX_CHARS = 16_384
MAX_NESTING = 100
"""Deepest brackets of a regex or a grammar."""
MAX_POSITIONS = 8_192
"""Most characters of a regex when its counted repetitions are written out, and of a text that is given: what
each mask may walk over."""

_LOOK = re.compile(r"\(\?<?[=!]")
_OPEN = re.compile(r"\(\?(?:P?<[^>]*>|[a-zA-Z-]*:?)|\(")
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|b\{[^}]*\}|.)", re.DOTALL)
_CLASS_NAME = re.compile(r":\^?\w+:\]")
_COUNT = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")


def parts(pattern: str) -> Iterator[tuple[str, str]]:
    """Split a regex into what it is made of.

    Yields:
        A kind and the text: "char" (a character, an escape, a class), "anchor" (^ or $), "open", "look",
        "close", "or", "count" ({m,n}) or "some" (*, + and ?, and what makes a repetition lazy).
    """
    at = 0
    while at < len(pattern):
        begin, char, kind = at, pattern[at], "char"
        at += 1
        if char == "\\":
            at = found.end() if (found := _ESCAPE.match(pattern, begin)) else at
        elif char == "[":
            at = _class_end(pattern, begin)
        elif char == "(":
            kind = "look" if (found := _LOOK.match(pattern, begin)) else "open"
            found = found or _OPEN.match(pattern, begin)
            at = found.end() if found else at
        elif char == "{" and (found := _COUNT.match(pattern, begin)):
            kind, at = "count", found.end()
        else:
            kind = {")": "close", "|": "or", "^": "anchor", "$": "anchor"}.get(char, "char")
            kind = "some" if char in "*+?" else kind
        yield kind, pattern[begin:at]


def _class_end(pattern: str, at: int) -> int:
    """Find the end of a class of characters; a bracket that closes is one of them where it comes first."""
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "\\":
            at += 1
        elif char == "[":
            name = _CLASS_NAME.match(pattern, at) if depth else None
            if name:
                at = name.end()
                continue
            depth += 1
            at += pattern.startswith("^", at)
            at += pattern.startswith("]", at)
        elif char == "]":
            depth -= 1
            if depth == 0:
                return at
    return len(pattern)


def problem(pattern: str) -> str:
    """Say what keeps a regex from being compiled within bounds; "" for nothing."""
    if len(pattern) > MAX_CHARS:
        return f"a regular expression of {len(pattern)} characters, at most {MAX_CHARS} are supported"
    try:
        positions(pattern)
    except GrammarError as error:
        return error.reason
    return ""


def positions(pattern: str) -> int:
    """Count the characters of a regex when its counted repetitions are written out.

    Raises:
        GrammarError: They are too many, brackets are nested too deep, or it looks around.
    """
    sizes, last = [0], 0  # of each open group what it has so far; of what a count would repeat
    for kind, text in parts(pattern):
        if kind == "look":
            raise GrammarError("look-around is not supported in a regular expression")
        if kind == "open":
            if "x" in text.partition("<")[0]:
                raise GrammarError("white space that means nothing, (?x), is not supported; leave it out")
            sizes.append(0)
            if len(sizes) > MAX_NESTING + 1:
                raise GrammarError(f"brackets are nested deeper than {MAX_NESTING}")
            last = 0
        elif kind == "close" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif kind == "count":
            more = last * (times(text) - 1)
            last, sizes[-1] = last + more, sizes[-1] + more
            if sizes[-1] > MAX_POSITIONS:
                raise GrammarError(
                    f"with the repetition {text[:40]} written out it has more than {MAX_POSITIONS} "
                    "characters, which is not supported; repeat less, or without an upper bound (* or +)"
                )
        elif kind == "char":
            last = 1
            sizes[-1] += 1
    return sum(sizes)


def times(count: str) -> int:
    """Read how often a repetition repeats, at most; where that has no bound, at least."""
    digits = re.findall(r"[0-9]+", count)
    return max([1, *(int(one) if len(one) < 10 else 10**9 for one in digits)])
