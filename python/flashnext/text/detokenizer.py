"""Token ids to text as they arrive: never half a character, and all pieces together are the whole decode."""

from __future__ import annotations

import codecs

from flashnext.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one growing list of token ids. Not for use by several threads at once.

    Bytes of an unfinished character are held until it is complete or cannot become one (then U+FFFD, by the
    rule of `Tokenizer.decode`), or until `flush`.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take one token; returns the characters it completes, often none."""
        if token_id in self._skip:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """End the text here: what is held of an unfinished character becomes U+FFFD."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    @property
    def held_bytes(self) -> int:
        """How many bytes of an unfinished character are held."""
        return len(self._decoder.getstate()[0])
