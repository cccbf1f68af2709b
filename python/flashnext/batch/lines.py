"""The lines of a batch: requests in OpenAI's batch form, or plain prompts and chats."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from flashnext.errors import InvalidArgument
from flashnext.text.jsontext import clean_text, loads
from flashnext.text.messages import cut

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_BYTES = 64 * 1024 * 1024
"""Longest line."""
_PLAIN = {"messages": CHAT, "prompt": COMPLETIONS}
_OURS = re.compile(r"line-[1-9]\d*(-[1-9]\d*)?", re.ASCII)
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Problem:
    """Why a line is no request.

    Attributes:
        code: One word for programs.
        message: One sentence for people.
    """

    code: str
    message: str


@dataclass(frozen=True)
class Line:
    """A line that has to be answered.

    Attributes:
        number: From 1, as editors count; empty lines count and are not answered.
        digest: Of what it says and of what else decides its answer.
        custom_id: By which its answer is known.
        url: The route that answers it.
        body: What that is sent.
        problem: Why it is no request; None where it is one.
    """

    number: int
    digest: str
    custom_id: str
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    problem: Problem | None = None

    @property
    def id(self) -> str:
        """By which a line of output says which line it answers."""
        return f"batch_req_{self.number}_{self.digest}"


@dataclass(frozen=True)
class Raw:
    """A line before it is read as JSON.

    Attributes:
        number: From 1, as editors count.
        digest: Of what it says and of what else decides its answer.
        named: What it is called where it gives itself no custom_id.
        text: What it says; None where that is too long.
    """

    number: int
    digest: str
    named: str
    text: bytes | None


@dataclass(frozen=True)
class Survey:
    """What has to be known of all lines before the first is answered.

    Attributes:
        n_lines: Those that are to be answered: that are not empty.
        taken: The custom_ids that lines give themselves and that have the form of ours.
    """

    n_lines: int
    taken: Set[str]


@dataclass(frozen=True)
class Reading:
    """How lines are read.

    Attributes:
        urls: Routes that may be asked.
        model: Its name, for lines that name none.
        seed: From which the seeds of lines without one are made.
        key: What else decides answers, as text.
        taken: Names that are not given to lines without a custom_id, of the `Survey`.
        max_bytes: Longest line.
    """

    urls: tuple[str, ...]
    model: str
    seed: int = 0
    key: str = ""
    taken: Set[str] = frozenset()
    max_bytes: int = MAX_BYTES

    def lines(self, file: BinaryIO) -> Iterator[Line]:
        """Read the lines of a file from its beginning, one by one.

        Raises:
            OSError: It cannot be read.
        """
        seen: dict[str, tuple[int, bool]] = {}
        for raw in self.raws(file):
            if raw.text is None:
                problem = Problem("line_too_long", f"the line has more than {self.max_bytes} bytes")
                yield Line(raw.number, raw.digest, raw.named, problem=problem)
            else:
                yield self._once(self._line(raw, raw.text), seen)

    def raws(self, file: BinaryIO) -> Iterator[Raw]:
        """Read lines without looking into them; empty ones are passed over.

        Raises:
            OSError: They cannot be read.
        """
        for number, text, rest in _split(file, self.max_bytes):
            digest = hashlib.sha256(f"{self.seed} {self.key} ".encode())
            digest.update(text.rstrip(b"\r\n"))
            for piece in rest:
                digest.update(piece.rstrip(b"\r\n"))
            named, n = f"line-{number}", 1
            while named in self.taken:
                n += 1
                named = f"line-{number}-{n}"
            if n > 1:  # an answer by another name is another one
                digest.update(f"\n{named}".encode())
            text_or_none = None if rest.begun else text.removeprefix(_BOM) if number == 1 else text
            if text_or_none is None or text_or_none.strip():
                yield Raw(number, digest.hexdigest()[:16], named, text_or_none)

    def _line(self, raw: Raw, text: bytes) -> Line:
        number, custom_id = raw.number, raw.named
        try:
            value = loads(text, unique_keys=True)
            if not isinstance(value, dict):
                raise InvalidArgument(f"expected a JSON object, found {type(value).__name__}")
            custom_id = _given_id(value) or custom_id
            url, body = self._request(value)
        except ValueError as error:
            problem = Problem("invalid_line", cut(f"line {number}: {error}", 1000))
            return Line(number, raw.digest, custom_id, problem=problem)
        if body.get("model") is None:
            body["model"] = self.model
        if body.get("seed") is None:
            body["seed"] = seed_of(self.seed, number)
        return Line(number, raw.digest, custom_id, url, body)

    def _request(self, value: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Find route and body of a line.

        Raises:
            InvalidArgument: It has none.
        """
        if "url" in value or "body" in value:
            url, body = value.get("url"), value.get("body")
            if value.get("method", "POST") != "POST":
                raise InvalidArgument(f'method: expected "POST", found {cut(repr(value["method"]), 100)}')
            if url not in self.urls:
                raise InvalidArgument(f"url: expected {' or '.join(self.urls)}, found {cut(repr(url), 100)}")
            if not isinstance(body, dict):
                raise InvalidArgument(f"body: expected an object, found {type(body).__name__}")
            body = dict(body)
        else:
            url = next((route for name, route in _PLAIN.items() if name in value), None)
            if url is None:
                raise InvalidArgument(
                    "expected custom_id, method, url and body, or a body with messages or a prompt"
                )
            body = {name: part for name, part in value.items() if name not in ("custom_id", "method")}
        if body.get("stream"):
            raise InvalidArgument("stream: a batch has whole replies; leave it out")
        return url, body

    @staticmethod
    def _once(line: Line, seen: dict[str, tuple[int, bool]]) -> Line:
        """Refuse a custom id that an earlier line has, whatever became of that."""
        first, is_request = seen.setdefault(line.custom_id, (line.number, line.problem is None))
        if first == line.number:
            return line
        has = "has" if is_request else "is no request and has"
        problem = Problem(
            "duplicate_custom_id",
            cut(f"line {line.number}: line {first} {has} the custom_id {line.custom_id!r}", 1000),
        )
        return Line(line.number, line.digest, line.custom_id, problem=problem)


def seed_of(seed: int, number: int) -> int:
    """Make the seed of a line that gives none: 53 bits, which every JSON reader keeps."""
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 11


def survey(file: BinaryIO, max_bytes: int = MAX_BYTES) -> Survey:
    """Look through a file, from its beginning.

    Raises:
        OSError: It cannot be read.
    """
    n, taken = 0, set[str]()
    for number, text, rest in _split(file, max_bytes):
        long = rest.begun
        for _ in rest:
            pass
        text = text.removeprefix(_BOM) if number == 1 else text
        if not long and not text.strip():
            continue
        n += 1
        # Only such a line can have one of our form: its letters have no other escapes in JSON.
        if not long and (b"line-" in text or b"\\u" in text):
            try:
                value = loads(text, unique_keys=True)
                given = _given_id(value) if isinstance(value, dict) else None
            except ValueError:  # a line that is no JSON has none, and is answered by an error in its turn
                continue
            if given is not None and _OURS.fullmatch(given):
                taken.add(given)
    return Survey(n, taken)


class _Rest:
    """What follows of a line that is too long, in pieces."""

    def __init__(self, file: BinaryIO, begun: bool) -> None:
        self._file = file
        self.begun = begun

    def __iter__(self) -> Iterator[bytes]:
        while self.begun and (piece := self._file.readline(1 << 20)):
            yield piece
            if piece.endswith(b"\n"):
                break


def _split(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes, _Rest]]:
    """Read number and text of each line; of one that is longer, what follows has to be taken as well."""
    file.seek(0)
    number = 0
    while text := file.readline(max_bytes + 1):
        number += 1
        yield number, text, _Rest(file, len(text) > max_bytes and not text.endswith(b"\n"))


def _given_id(value: Mapping[str, Any]) -> str | None:
    """Read the custom_id that a line gives itself.

    Raises:
        InvalidArgument: It is none.
    """
    given = value.get("custom_id")
    if given is None:
        return None
    if not isinstance(given, str) or not given:
        raise InvalidArgument("custom_id: expected text that is not empty")
    return clean_text(given)
