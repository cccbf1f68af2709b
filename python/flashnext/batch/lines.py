"""The lines of a batch: requests in OpenAI's batch form, or plain prompts and chats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashnext.errors import InvalidArgument
from flashnext.text.jsontext import clean_text, loads
from flashnext.text.messages import cut

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_PLAIN = {"messages": CHAT, "prompt": COMPLETIONS}
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
class Reading:
    """How lines are read.

    Attributes:
        urls: Routes that may be asked.
        model: Its name, for lines that name none.
        seed: From which the seeds of lines without one are made.
        key: What else decides answers, as text.
        max_bytes: Longest line.
    """

    urls: tuple[str, ...]
    model: str
    seed: int = 0
    key: str = ""
    max_bytes: int = 64 * 1024 * 1024

    def lines(self, path: Path) -> Iterator[Line]:
        """Read the lines of a file, one by one.

        Raises:
            OSError: It cannot be read.
        """
        seen: set[str] = set()
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(self.max_bytes + 1):
                number += 1
                digest = hashlib.sha256(f"{self.seed} {self.key} ".encode() + raw.rstrip(b"\r\n"))
                long = len(raw) > self.max_bytes and not raw.endswith(b"\n")
                while long and (rest := file.readline(1 << 20)):
                    digest.update(rest.rstrip(b"\r\n"))
                    if rest.endswith(b"\n"):
                        break
                short = digest.hexdigest()[:16]
                if long:
                    problem = Problem("line_too_long", f"the line has more than {self.max_bytes} bytes")
                    yield Line(number, short, f"line-{number}", problem=problem)
                    continue
                text = raw.removeprefix(_BOM) if number == 1 else raw
                if text.strip():
                    line = self.line(number, short, text)
                    yield self._once(line, seen)

    def line(self, number: int, digest: str, text: bytes) -> Line:
        """Read one line."""
        custom_id = f"line-{number}"
        try:
            value = loads(text, unique_keys=True)
            if not isinstance(value, dict):
                raise InvalidArgument(f"expected a JSON object, found {type(value).__name__}")
            given = value.get("custom_id")
            if given is not None:
                if not isinstance(given, str) or not given:
                    raise InvalidArgument("custom_id: expected text that is not empty")
                custom_id = clean_text(given)
            url, body = self._request(value)
        except ValueError as error:
            problem = Problem("invalid_line", cut(f"line {number}: {error}", 1000))
            return Line(number, digest, custom_id, problem=problem)
        if body.get("model") is None:
            body["model"] = self.model
        if body.get("seed") is None:
            body["seed"] = seed_of(self.seed, number)
        return Line(number, digest, custom_id, url, body)

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
    def _once(line: Line, seen: set[str]) -> Line:
        """Refuse a custom id that an earlier line has."""
        if line.custom_id in seen:
            problem = Problem(
                "duplicate_custom_id",
                cut(f"line {line.number}: an earlier line has the custom_id {line.custom_id!r}", 1000),
            )
            return Line(line.number, line.digest, line.custom_id, problem=problem)
        seen.add(line.custom_id)
        return line


def seed_of(seed: int, number: int) -> int:
    """Make the seed of a line that gives none: 53 bits, which every JSON reader keeps."""
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 11


def count_lines(path: Path) -> int:
    """Count the lines of a file that are to be answered: those that are not empty.

    Raises:
        OSError: It cannot be read.
    """
    n, begun = 0, False
    with path.open("rb") as file:
        while piece := file.readline(1 << 20):
            begun |= bool(piece.strip())
            if piece.endswith(b"\n"):
                n, begun = n + begun, False
    return n + begun
