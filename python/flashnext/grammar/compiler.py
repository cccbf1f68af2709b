"""Compiles grammars for one vocabulary, within bounds of size, depth and work, by llguidance."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from flashnext.grammar import lark, numbers, regexes
from flashnext.grammar import schema as schemas
from flashnext.grammar.spec import Grammar, GrammarError
from flashnext.grammar.tools import calls_lark

WHITE_SPACE = r"[ ]|\n[ ]{0,32}"
"""What may stand between the parts of a JSON text: one space, or a line break and some indentation."""

# Of JSON within a grammar that is written here: the place in that, of which nobody knows.
_PLACE = re.compile(r"\Aat \d+\(\d+\): failed to compile JSON schema: ")

_DIAGNOSED = 256
"""Schemas within one that are tried alone, to say where it fails."""

# Work is counted, not timed, so that what is refused is the same on every machine: a grammar is built in at
# most about a second, a mask in some milliseconds.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=50_000,
    step_max_items=50_000,
    max_items_in_row=4_096,  # of which each property that may come next has four
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that grammars are compiled for.

    Attributes:
        tokens: The bytes of each id that can be drawn.
        control_ids: Ids of the control tokens by their spelling. No grammar allows one but those of the
            format of calls.
        end_ids: Ids by which the model ends its turn.
        encode: Ids of some text.
    """

    tokens: Sequence[bytes]
    control_ids: Mapping[str, int]
    end_ids: Sequence[int]
    encode: Callable[[str], list[int]]

    @cached_property
    def n_words(self) -> int:
        """Words of a mask."""
        return -(-len(self.tokens) // 32)

    @cached_property
    def all_but_ends(self) -> bytes:
        """A mask, least bit first, that allows all but the end: else the answer would not come."""
        mask = bytearray(b"\xff" * 4 * self.n_words)
        for token in self.end_ids:
            mask[token >> 3] &= ~(1 << (token & 7)) & 0xFF
        return bytes(mask)


@dataclass(frozen=True)
class Compiled:
    """A grammar that is ready for replies; each has a matcher of its own."""

    vocabulary: Vocabulary
    matcher: LLMatcher


class _Wrapped:
    """The vocabulary as llguidance asks for it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.end_ids[0]
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(vocabulary.control_ids.values())
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("text is encoded, not bytes")  # that is how llguidance finds out
        return self._encode(text)


class Compiler:
    """Compiles for one vocabulary. Its methods may be called from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Read the vocabulary, which takes a second for 250,000 tokens.

        Raises:
            GrammarError: It has no token that ends a turn.
        """
        if not vocabulary.end_ids:
            raise GrammarError("this checkpoint names no token that ends a reply")
        self.vocabulary = vocabulary
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Wrapped(vocabulary)),
            n_vocab=len(vocabulary.tokens),
            eos_token=list(vocabulary.end_ids),
        )

    def compile(self, grammar: Grammar) -> Compiled:
        """Compile a grammar.

        Raises:
            GrammarError: It cannot be enforced, or is too large.
        """
        if grammar.kind == "json":
            source = _of_schema(self._checked(numbers.loads(grammar.source), grammar.strict))
        elif grammar.kind == "regex":
            if wrong := _wrong_regex(grammar.source):
                raise GrammarError(wrong)
            source = LLMatcher.grammar_from_regex(grammar.source)
        elif grammar.kind == "choice":
            choices = numbers.loads(grammar.source)
            if any(len(one) > regexes.MAX_POSITIONS for one in choices):
                raise GrammarError(f"a text of more than {regexes.MAX_POSITIONS} characters is not supported")
            rules = " | ".join(lark.literal(one) for one in choices)
            source = LLMatcher.grammar_from_lark(f"start: {rules}")
        elif grammar.kind == "calls":
            source = LLMatcher.grammar_from_lark(self._calls(grammar))
        elif grammar.kind == "lark":
            lark.check(
                grammar.source,
                {*self.vocabulary.control_ids.values(), *self.vocabulary.end_ids},
                lambda schema: self._checked(schema, strict=False),
            )
            source = LLMatcher.grammar_from_lark(grammar.source)
        else:
            raise GrammarError(f"unknown kind {grammar.kind!r}")
        return Compiled(self.vocabulary, self._begun(grammar, source))

    def _begun(self, grammar: Grammar, source: str) -> LLMatcher:
        """Have a grammar compiled that has been checked, and see that something matches it."""
        matcher = self._matcher(source)
        if matcher.is_error():
            raise self._failure(grammar, matcher.get_error())
        if grammar.kind == "json" and matcher.is_accepting():
            raise GrammarError("no JSON is valid under it: it leads to itself")
        if not any(matcher.compute_bitmask()) or matcher.is_error():
            raise self._failure(grammar, matcher.get_error() or "nothing matches it")
        return matcher

    def _matcher(self, source: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)

    def _calls(self, grammar: Grammar) -> str:
        asked = numbers.loads(grammar.source)
        text = None
        if "text" in asked:
            try:
                text = self._checked(asked["text"], grammar.strict)
                # By itself first, so that what is wrong with it is told as its own.
                self._begun(Grammar.json_schema(asked["text"]), _of_schema(text))
            except GrammarError as error:
                raise GrammarError(error.reason, "/text" + error.pointer) from None
        return self._lark_of(asked["tools"], several=asked["several"], first=asked["first"], text=text)

    def _lark_of(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        several: bool = False,
        first: int = 0,
        text: Any = None,
        only: str | None = None,
    ) -> str:
        return calls_lark(
            tools,
            only=only,
            several=several,
            first=first,
            tags=self.vocabulary.control_ids,
            check=lambda schema: self._checked(schema, strict=False, annotate=True),
            json_rule=lambda schema: f"%json {numbers.dumps(_with_white_space(schema))}",
            text=text,
        )

    def _checked(self, schema: Any, strict: bool, annotate: bool = False) -> Any:
        return schemas.check(schema, strict=strict, check_pattern=_wrong_regex, annotate=annotate)

    def _failure(self, grammar: Grammar, error: str) -> GrammarError:
        """Say what is wrong, and of a schema where: in the innermost schema that fails by itself."""
        if grammar.kind == "calls":
            asked = numbers.loads(grammar.source)
            return self._failed_calls(asked["tools"], asked["first"], error)
        if grammar.kind != "json":
            return GrammarError(first_line(error))
        root = schemas.check(numbers.loads(grammar.source), strict=False, check_pattern=lambda pattern: "")
        shared = {
            key: root[key] for key in ("$defs", "definitions") if isinstance(root, dict) and key in root
        }
        found = GrammarError(first_line(error))
        for node in sorted(list(schemas.nodes(root))[:_DIAGNOSED], key=lambda node: -node.depth):
            if not isinstance(node.schema, Mapping) or not node.pointer:
                continue
            matcher = self._matcher(_of_schema({**node.schema, **shared}))
            # A reference to elsewhere in the schema cannot be followed here.
            if matcher.is_error() and "does not exist" not in matcher.get_error():
                return GrammarError(first_line(matcher.get_error()), node.pointer)
        return found

    def _failed_calls(self, tools: Sequence[Mapping[str, Any]], first: int, error: str) -> GrammarError:
        """Find the parameter that fails by itself."""
        values = [
            (i, tool, key)
            for i, tool in enumerate(tools, first)
            if isinstance(tool["parameters"], Mapping)
            for key in tool["parameters"].get("properties", {})
        ]
        for i, tool, key in values[:_DIAGNOSED]:
            source = self._lark_of([tool], first=i, only=key)
            matcher = self._matcher(LLMatcher.grammar_from_lark(source))
            if matcher.is_error() and "does not exist" not in matcher.get_error():
                pointer = f"/{i}/function/parameters/properties/{schemas.escape(key)}"
                return GrammarError(first_line(matcher.get_error()), pointer)
        return GrammarError(first_line(error))


def _with_white_space(schema: Any) -> Any:
    """Bound the white space of JSON within another grammar."""
    if not isinstance(schema, Mapping):
        schema = {} if schema is True else {"not": {}}
    return {**schema, "x-guidance": {"whitespace_pattern": WHITE_SPACE}}


def _of_schema(schema: Any) -> str:
    if schema is False:
        raise GrammarError("nothing is valid under it")
    schema = {} if schema is True else schema
    try:
        return LLMatcher.grammar_from_json_schema(
            numbers.dumps(schema), overrides={"whitespace_pattern": WHITE_SPACE}
        )
    except ValueError as error:  # it is more than it reads, as a number of 400 digits is
        raise GrammarError(first_line(str(error))) from None


def _wrong_regex(pattern: str) -> str:
    """Say what is wrong with a regular expression; "" for nothing."""
    if wrong := regexes.problem(pattern):
        return wrong
    wrong = LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern), limits=_LIMITS)
    return first_line(wrong) if wrong and not wrong.startswith("WARNING") else ""


def first_line(error: str) -> str:
    """Keep of llguidance's message what says what is wrong: the line of the reason, not the excerpt."""
    error = _PLACE.sub("", error)
    if error.startswith("oneOf"):
        return "the alternatives of oneOf have to exclude each other by their types or constants; give anyOf"
    if error.startswith("NoExtension"):
        return "nothing matches it"
    if error.startswith("panic"):
        return "it is larger than can be compiled, or not supported"
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    return (reason or (lines[0] if lines else "it cannot be compiled"))[:300]
