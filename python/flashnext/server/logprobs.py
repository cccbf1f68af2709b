"""Log-probabilities on the wire: which tokens are told with which text, in both of OpenAI's forms."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import Any

from flashnext.engine.events import Event, Reply, TokenLogprob
from flashnext.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON cannot say."""


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can say."""
    return logprob if math.isfinite(logprob) else LOWEST


class ChatLogprobs:
    """Writes the log-probabilities of a chat's replies: of the answer and, apart, of the thoughts.

    Tokens that make no text have none: those of calls, of dropped white space, the end token. The `bytes` of
    all tokens together are the text's, save at its ends, in white space between its parts, and where the
    model wrote bytes that are no UTF-8.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take the tokenizer of the checkpoint."""
        self._tokenizer = tokenizer

    def write(self, told: Event | Reply) -> dict[str, Any]:
        """Write the object `logprobs` of a step of a reply, or of all of it."""
        out: dict[str, Any] = {"content": [self.entry(one) for one in told.text_logprobs], "refusal": None}
        if told.reasoning_logprobs:
            out["reasoning_content"] = [self.entry(one) for one in told.reasoning_logprobs]
        return out

    def entry(self, token: TokenLogprob) -> dict[str, Any]:
        """Write the log-probability of one token."""
        return {
            **self._value(token.token_id, token.logprob),
            "top_logprobs": [self._value(token_id, value) for token_id, value in token.top],
        }

    def _value(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {"token": data.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(data)}


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
