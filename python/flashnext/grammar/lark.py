"""Grammars in Lark's notation read as far as is needed to bound their work and to keep control tokens out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from flashnext.grammar import numbers
from flashnext.grammar.regexes import MAX_NESTING, MAX_POSITIONS, positions, times
from flashnext.grammar.spec import GrammarError

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|//[^\n]*|\#[^\n]*)
    |(?P<line>\n)
    |(?P<text>"(?:\\.|[^"\\])*"i?)
    |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<tokens><[^<>\s]*>)
    |(?P<keyword>%\w+)
    |(?P<name>[_?!]*[a-zA-Z][\w-]*)
    |(?P<count>\{\s*\d*\s*,?\s*\d*\s*\}|~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<other>::|.)""",
    re.VERBOSE | re.DOTALL,
)
_IDS = re.compile(r"<\[(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\]>")
_KEYWORDS = ("%ignore", "%import", "%json", "%regex", "%llguidance")

MAX_ALL_POSITIONS = 32_768
"""Most characters of all terminals of a grammar, with their counted repetitions written out."""

_Token = tuple[str, str]


@dataclass
class _Definitions:
    """Tokens of each rule and terminal, and how many characters each terminal has when written out."""

    bodies: dict[str, list[_Token]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    within: list[str] = field(default_factory=list)

    def size(self, name: str) -> int:
        """Count the characters of a terminal; nothing of what has no definition here."""
        if name not in self.sizes:
            if len(self.within) >= MAX_NESTING:
                raise GrammarError(f"terminals are made of one another more than {MAX_NESTING} levels deep")
            if name in self.within:
                raise GrammarError(
                    f"the terminal {name[:40]} leads to itself; write a rule, in small letters"
                )
            self.within.append(name)
            self.sizes[name] = self.size_of(self.bodies.get(name, []))
            self.within.pop()
        return self.sizes[name]

    def size_of(self, body: list[_Token]) -> int:
        """Count the characters of what a terminal is made of."""
        sizes, last = [0], 0
        for kind, text in body:
            if kind == "other" and text in "([":
                sizes.append(0)
            elif kind == "other" and text in ")]" and len(sizes) > 1:
                last = sizes.pop()
                sizes[-1] += last
            elif kind == "count":
                more = last * (times(text) - 1)
                last, sizes[-1] = last + more, sizes[-1] + more
                _require_few(sizes[-1], f"with the repetition {text[:40]} written out")
            elif kind in ("text", "regex", "name", "tokens"):
                last = self.own_size(kind, text)
                sizes[-1] += last
        return sum(sizes)

    def own_size(self, kind: str, text: str) -> int:
        """Count the characters of one part."""
        if kind == "regex":
            if "x" in text.rpartition("/")[2]:
                raise GrammarError("white space that means nothing, /.../x, is not supported; leave it out")
            return positions(text[1:].rpartition("/")[0])
        if kind == "name":
            return self.size(text) if _is_terminal(text) else 0
        return len(text)


def check(text: str, control_ids: Collection[int], check_schema: Callable[[Any], Any]) -> None:
    """Check a grammar.

    Args:
        text: In Lark's notation.
        control_ids: What no grammar of a request may name.
        check_schema: Refuses a schema that cannot be enforced.

    Raises:
        GrammarError: It names control tokens, or its work has no bound.
    """
    found = _read(text, control_ids, check_schema)
    whole = sum(found.size(name) for name in found.bodies if _is_terminal(name))
    whole += sum(
        found.own_size(kind, part)
        for name, body in found.bodies.items()
        if not _is_terminal(name)
        for kind, part in body
        if kind == "regex"
    )
    _require_few(whole, "with all repetitions written out", MAX_ALL_POSITIONS)


def _read(text: str, control_ids: Collection[int], check_schema: Callable[[Any], Any]) -> _Definitions:
    found = _Definitions()
    head, head_at, fresh, at, depth = "", -1, True, 0, 0  # -1: no name waits for its colon
    body = found.bodies.setdefault("", [])
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # any character is one
        kind, part, at = str(match.lastgroup), match[0], match.end()
        if kind == "space":
            continue
        if kind == "text":
            _require_few(len(part) - 2, "one of")
        elif kind == "tokens":
            _require_no_control(part, control_ids)
        elif kind == "keyword":
            at = _keyword(part, text, at, body, check_schema)
        elif kind == "name" and fresh:
            head, head_at = part.lstrip("?!"), len(body)
        elif part in (":", "::") and head_at >= 0:
            between = body[head_at + 1 :]  # settings of the rule
            del body[head_at:]  # the name is no part of the body before
            body, head_at = found.bodies.setdefault(head, []), -1
            body += between
        elif kind == "other":
            depth = max(0, depth + (part in "([{") - (part in ")]}"))
            if depth > MAX_NESTING:
                raise GrammarError(f"brackets are nested deeper than {MAX_NESTING}")
        fresh = kind == "line"
        if kind == "name":
            part = part.lstrip("?!")
        body.append((kind, part))
    return found


def _keyword(word: str, text: str, at: int, body: list[_Token], check_schema: Callable[[Any], Any]) -> int:
    """Read what stands behind a keyword; returns where that ends."""
    if word not in _KEYWORDS:
        raise GrammarError(f"{word[:40]} is not supported in a grammar")
    if word in ("%ignore", "%import"):
        return at
    try:
        value, end = numbers.decoder().raw_decode(text, _behind_space(text, at))
    except (ValueError, RecursionError):
        raise GrammarError(f"expected JSON behind {word}") from None
    if word == "%json":
        check_schema(value)
    if word == "%regex":
        body.append(("text", json.dumps(value)))
    return end


def _behind_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def literal(text: str) -> str:
    """Write some text as a literal of a grammar."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _require_no_control(tokens: str, control_ids: Collection[int]) -> None:
    found = _IDS.fullmatch(tokens)
    if found is None:
        raise GrammarError(
            f"the token {tokens[:80]} is not supported: an answer holds no control tokens; "
            "give its spelling as text, in quotes"
        )
    for one in found[1].split(","):
        first, _, last = one.partition("-")
        if any(int(first) <= token <= int(last or first) for token in control_ids):
            raise GrammarError(f"{tokens[:80]} names a control token, and an answer holds none")


def _require_few(n: int, how: str, most: int = MAX_POSITIONS) -> None:
    if n > most:
        raise GrammarError(
            f"{how} its terminals have more than {most} characters, which is not supported; "
            "repeat a rule (in small letters) instead, or without an upper bound (* or +)"
        )


def _is_terminal(name: str) -> bool:
    return name.lstrip("_?!")[:1].isupper()
