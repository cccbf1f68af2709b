"""Log-probabilities on the wire: which tokens are told with which text, in both of OpenAI's forms."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flashnext.engine.events import TokenLogprob
from flashnext.text.parser import CONTROL_TAGS
from flashnext.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON cannot say."""


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can say."""
    return logprob if math.isfinite(logprob) else LOWEST


@dataclass(frozen=True)
class _Placed:
    """A token and the character of the text at which its own begin."""

    token: TokenLogprob
    begin: int


class Alignment:
    """Says which drawn tokens make which text.

    A token goes out with the text that holds its first character, so tokens whose text is held back are held
    as well, and those past the end (the end token, what a stop string cut off) never come. The `bytes` of
    all tokens together are the text's, save where the model wrote bytes that are no UTF-8.
    """

    def __init__(self, tokenizer: Tokenizer, *, trim: bool = False) -> None:
        """Start a text.

        Args:
            tokenizer: Of the checkpoint.
            trim: Whether white space before the first other character is not part of the text.
        """
        self._tokenizer = tokenizer
        self._trim = trim
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_decoded = 0
        self._n_sent = 0
        self._pending: list[_Placed] = []

    def add(self, token: TokenLogprob) -> None:
        """Take a drawn token of this text."""
        begin = self._n_decoded
        if token.token_id not in self._tokenizer.special_ids:
            text = self._decoder.decode(self._tokenizer.token_bytes(token.token_id))
            if self._trim and text:
                text = text.lstrip()
                if not text:
                    return
                self._trim = False
            self._n_decoded += len(text)
        self._pending.append(_Placed(token, begin))

    def take(self, text: str) -> list[TokenLogprob]:
        """Give the tokens that begin in the next piece of the text."""
        self._n_sent += len(text)
        taken = [p.token for p in self._pending if p.begin < self._n_sent]
        self._pending = [p for p in self._pending if p.begin >= self._n_sent]
        return taken


class ChatLogprobs:
    """The log-probabilities of a chat's reply: of the answer and, apart, of the thoughts; none of calls."""

    def __init__(self, tokenizer: Tokenizer, *, in_thinking: bool, tools: bool) -> None:
        """Start a reply.

        Args:
            tokenizer: Of the checkpoint.
            in_thinking: Whether the reply begins inside a `<think>` block.
            tools: Whether the reply may hold calls.
        """
        self._tokenizer = tokenizer
        self._tools = tools
        self._content = Alignment(tokenizer, trim=in_thinking)
        self._reasoning = Alignment(tokenizer, trim=True)
        self._where: Alignment | None = self._reasoning if in_thinking else self._content

    def step(self, drawn: Iterable[TokenLogprob], text: str, reasoning: str) -> dict[str, Any] | None:
        """Take an event's tokens and texts; returns what its chunk tells, None where that is nothing."""
        for token in drawn:
            tag = self._tokenizer.control_spelling(token.token_id)
            if tag in CONTROL_TAGS and self._switch(tag):
                continue
            if self._where is not None:
                self._where.add(token)
        content = [self._entry(token) for token in self._content.take(text)]
        thoughts = [self._entry(token) for token in self._reasoning.take(reasoning)]
        return chat_logprobs(content, thoughts) if content or thoughts else None

    def _switch(self, tag: str) -> bool:
        """Follow the parser into another block; False for a tag that is text where it stands."""
        if self._where is self._reasoning:
            if tag == "</think>":
                self._where = self._content
            return tag in ("<think>", "</think>")
        if tag in ("<think>", "</think>"):
            if tag == "<think>":
                self._where = self._reasoning
            return True
        if self._tools:
            self._where = None if tag == "<tool_call>" else self._content
        return self._tools

    def _entry(self, token: TokenLogprob) -> dict[str, Any]:
        return {
            **self._value(token.token_id, token.logprob),
            "top_logprobs": [self._value(token_id, value) for token_id, value in token.top],
        }

    def _value(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {"token": data.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(data)}


def chat_logprobs(content: list[Any], reasoning: list[Any]) -> dict[str, Any]:
    """Write the object `logprobs` of a choice."""
    found: dict[str, Any] = {"content": content, "refusal": None}
    return {**found, "reasoning_content": reasoning} if reasoning else found


Scored = tuple[int, float | None, Sequence[tuple[int, float]]]
"""A token, its log-probability, and the likeliest tokens in its place with theirs, best first."""


class TextLogprobs:
    """The log-probabilities of a completion, in the form of OpenAI's old `logprobs` object."""

    def __init__(self, tokenizer: Tokenizer, n_top: int) -> None:
        """Start a text.

        Args:
            tokenizer: Of the checkpoint.
            n_top: Of how many of the likeliest tokens to tell; with 0 `top_logprobs` is null.
        """
        self._tokenizer = tokenizer
        self._n_top = n_top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def write(self, tokens: Sequence[Scored], *, skip_special: bool = True) -> dict[str, Any]:
        """Write the object for the next tokens of the text.

        Args:
            tokens: What comes next; the first token of a prompt has no log-probability.
            skip_special: Whether the text leaves special tokens out, as that of a reply does.
        """
        skipped = self._tokenizer.special_ids if skip_special else frozenset()
        offsets: list[int] = []
        for token_id, _, _ in tokens:
            offsets.append(self._offset)
            data = b"" if token_id in skipped else self._tokenizer.token_bytes(token_id)
            self._offset += len(self._decoder.decode(data))
        return {
            "tokens": [self._name(token_id) for token_id, _, _ in tokens],
            "token_logprobs": [None if value is None else finite(value) for _, value, _ in tokens],
            "top_logprobs": [self._top(*token) for token in tokens] if self._n_top else None,
            "text_offset": offsets,
        }

    def _top(
        self, token_id: int, logprob: float | None, top: Sequence[tuple[int, float]]
    ) -> dict[str, float] | None:
        """Map texts to values, best first; the drawn token is among them whatever its rank."""
        if logprob is None:
            return None
        named: dict[str, float] = {}
        ids = [one for one, _ in top]
        for one, value in top if token_id in ids else (*top, (token_id, logprob)):
            name = self._name(one)
            named[f"token_id:{one}" if name in named else name] = finite(value)
        return named

    def _name(self, token_id: int) -> str:
        """Spell a token; one that is no text by itself is spelled by its bytes, as OpenAI does."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
