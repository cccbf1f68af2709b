"""What a reply has to keep to, as a request says it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashnext.errors import InvalidArgument
from flashnext.grammar import numbers

MAX_CHARS = 262_144
"""Longest schema, as JSON, or other text of a grammar."""
MAX_CHOICES = 4096


class GrammarError(InvalidArgument):
    """A grammar that cannot be enforced.

    Attributes:
        pointer: JSON pointer of the part of a schema that the text is about; "" for all of it, and where
            there is no schema.
        reason: Why not.
    """

    def __init__(self, reason: str, pointer: str = "") -> None:
        """Say why."""
        super().__init__(f"at {pointer}: {reason}" if pointer else reason)
        self.reason, self.pointer = reason, pointer


@dataclass(frozen=True)
class Grammar:
    """What a reply's answer has to match from its first to its last character.

    Made by one of the class methods. Equal ones are compiled once.

    Attributes:
        kind: "json", "regex", "choice", "lark" or "calls".
        source: A canonical text of it.
        strict: Of a schema: whether every object has to say `additionalProperties: false` and to require all
            its properties, as OpenAI's strict mode has it.
        field: Where it stood in the request, for errors.
        text_field: Of calls that a text may take the place of: where the schema of that stood.
    """

    kind: str
    source: str
    strict: bool = False
    field: str = dataclasses.field(default="grammar", compare=False)
    text_field: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse what is too long, and what is no text."""
        if len(self.source) > MAX_CHARS:
            raise GrammarError(f"it has {len(self.source)} characters, at most {MAX_CHARS} are supported")
        try:
            self.source.encode()
        except UnicodeEncodeError as error:
            raise GrammarError(
                f"character {error.start} of it is half of a surrogate pair, which no text has"
            ) from None

    @classmethod
    def json_object(cls, field: str = "grammar") -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"}, field=field)

    @classmethod
    def json_schema(
        cls, schema: Mapping[str, Any] | bool, *, strict: bool = False, field: str = "grammar"
    ) -> Grammar:
        """JSON that is valid under a schema; properties come in the order of the schema."""
        return cls("json", _text(schema), strict, field)

    @classmethod
    def regex(cls, pattern: str, field: str = "grammar") -> Grammar:
        """Text that matches a regular expression as a whole."""
        return cls("regex", pattern, field=field)

    @classmethod
    def choice(cls, choices: Sequence[str], field: str = "grammar") -> Grammar:
        """One of some texts."""
        if isinstance(choices, str) or not choices or len(choices) > MAX_CHOICES:
            raise GrammarError(f"expected a list of 1 to {MAX_CHOICES} texts")
        for one in choices:
            if not isinstance(one, str) or not one:
                raise GrammarError(f"expected texts that are not empty, found {one!r}"[:200])
        return cls("choice", _text(list(choices)), field=field)

    @classmethod
    def lark(cls, text: str, field: str = "grammar") -> Grammar:
        """Text of a context-free grammar in Lark's notation, from its rule `start`."""
        return cls("lark", text, field=field)

    @classmethod
    def calls(
        cls,
        tools: Sequence[Mapping[str, Any]],
        *,
        several: bool = True,
        text: Grammar | None = None,
        first: int = 0,
        field: str = "tool_choice",
    ) -> Grammar:
        """One call of one of these tools, or several calls, in the format of the chat template.

        Args:
            tools: In OpenAI's form.
            several: Whether there may be more than one call.
            text: What the reply may say instead of calling: a grammar of JSON.
            first: How many tools the request has before these, for errors.
            field: Where the tools stood in the request.

        Raises:
            GrammarError: It is too long, or the text is not JSON: other text may look like a call.
        """
        kept = [
            {"name": tool["function"]["name"], "parameters": tool["function"].get("parameters") or {}}
            for tool in tools
        ]
        asked: dict[str, Any] = {"tools": kept, "several": several, "first": first}
        if text is None:
            return cls("calls", _text(asked), field=field)
        if text.kind != "json":
            raise GrammarError(
                "only JSON can be asked for instead of calls, since other text may look like one"
            )
        asked["text"] = numbers.loads(text.source)
        return cls("calls", _text(asked), text.strict, field, text.field)


def _text(value: Any) -> str:
    try:
        return numbers.dumps(value)
    except RecursionError:
        raise GrammarError("it is nested too deep") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"it is not JSON: {error}") from None
