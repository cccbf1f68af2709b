"""Text to token ids and back, by byte-level BPE; only the chat template can write control tokens."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from flashnext.errors import CheckpointError
from flashnext.text.jsontext import clean_text
from flashnext.text.written import Written

# One text at a time leaves nothing to run in parallel, and the library would warn in forked children.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


_SHORT_CHARS = 32
"""Longest text whose token ids are kept."""
_MAX_SHORT = 4096
"""How many of these are kept, about a megabyte."""
_QUICK_CHARS = 1024
"""Longest text for which no other thread is let in: it is encoded sooner than this one would be back."""


def _byte_alphabet() -> dict[str, int]:
    """Map the character that byte-level BPE writes for a byte to that byte.

    Source: openai/gpt-2 encoder.py, bytes_to_unicode; the same table stands in tokenizers' ByteLevel.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()


class Edge(NamedTuple):
    """The end of a control token in a text: characters, and tokens, up to there."""

    n_chars: int
    n_tokens: int


class Tokenizer:
    """The vocabulary of one checkpoint. Immutable after construction, and safe to use from several threads.

    `tokenizers` matches added tokens (`<|im_end|>`, `<think>`, ...) in any text it is given. Here the added
    tokens are left out of the tokenizer that reads text, so `encode` cannot give one; `encode_written` finds
    them itself, and only in the characters that the template wrote.

    Attributes:
        control_ids: Id of each control token (every added token, "special" or not) by its spelling.
        special_ids: Ids of those that decoded text leaves out (`<|im_end|>`, but not `<think>`).
        n_tokens: One past the highest id that has a token. A model's vocabulary may be padded beyond it.
    """

    control_ids: dict[str, int]
    special_ids: frozenset[int]
    n_tokens: int

    def __init__(
        self, full: tokenizers.Tokenizer, more_added: dict[int, tokenizers.AddedToken] | None = None
    ) -> None:
        if not isinstance(full.decoder, tokenizers.decoders.ByteLevel):
            raise CheckpointError(
                "tokenizer.json: expected a ByteLevel decoder (byte-level BPE), found another"
            )
        added = {**(more_added or {}), **full.get_added_tokens_decoder()}
        self._plain = tokenizers.Tokenizer(full.model)
        if full.normalizer is not None:
            self._plain.normalizer = full.normalizer
        if full.pre_tokenizer is not None:
            self._plain.pre_tokenizer = full.pre_tokenizer
        # What the template writes between control tokens comes again and again.
        self._encode_short = lru_cache(_MAX_SHORT)(self._encode)
        self.control_ids = {token.content: i for i, token in added.items()}
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._control_of = {i: spelling for spelling, i in self.control_ids.items()}
        for i, token in added.items():
            if token.lstrip or token.rstrip or token.single_word or not token.content:
                raise CheckpointError(
                    f"tokenizer.json: the added token {token.content!r} is empty or uses lstrip, rstrip or "
                    "single_word, which is not supported"
                )
            if i in self.encode(token.content):
                raise CheckpointError(
                    f"tokenizer.json: ordinary text can give the added token {token.content!r} (id {i})"
                )
        vocabulary = full.get_vocab(with_added_tokens=False)
        self.n_tokens = 1 + max(max(vocabulary.values(), default=-1), max(added, default=-1))
        longest_first = sorted(self.control_ids, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read tokenizer.json, and further added tokens from tokenizer_config.json.

        Raises:
            CheckpointError: A file is missing or not what it should be.
        """
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{path}: not found; a checkpoint folder holds its tokenizer in this file")
        try:
            # Not from_file(): it takes no name that is not UTF-8.
            full = tokenizers.Tokenizer.from_buffer(path.read_bytes())
        except Exception as e:  # the library raises plain Exception
            raise CheckpointError(f"{path}: not a readable tokenizer: {e}") from None
        more = read_tokenizer_config(folder).get("added_tokens_decoder", {})
        try:
            added = {int(i): tokenizers.AddedToken(**token) for i, token in more.items()}
        except (TypeError, ValueError, AttributeError) as e:
            raise CheckpointError(
                f"tokenizer_config.json: added_tokens_decoder cannot be read: {e}"
            ) from None
        return cls(full, added)

    def encode(self, text: str) -> list[int]:
        """Token ids of ordinary text, which never are control tokens, whatever the text spells.

        Lone surrogates count as U+FFFD (`clean_text`); NUL is a character like any other.
        """
        return list((self._encode_short if len(text) <= _SHORT_CHARS else self._encode)(text))

    def _encode(self, text: str) -> list[int]:
        text = clean_text(text)
        if len(text) <= _QUICK_CHARS:
            return self._plain.encode(text, add_special_tokens=False).ids
        # Unlike encode(), encode_batch() lets other threads run meanwhile.
        return self._plain.encode_batch([text], add_special_tokens=False)[0].ids

    def encode_written(self, text: Written) -> list[int]:
        """Token ids of a rendered template, control tokens where its own characters spell one."""
        return self.encode_with_edges(text)[0]

    def encode_with_edges(
        self, text: Written, named: Mapping[str, Sequence[int]] | None = None
    ) -> tuple[list[int], list[Edge]]:
        """Do the same, and say where control tokens end.

        What stands between two of them is tokenized by itself, so texts that agree up to such an end have the
        same ids up to there, whatever follows.

        Args:
            text: A rendered template.
            named: Ids of texts that are names of something else, where they stand between two of them.
        """
        named = named or {}
        ids: list[int] = []
        edges: list[Edge] = []
        plain = text.plain()
        at = 0
        for start, end in text.spans:
            for match in self._control_pattern.finditer(plain, start, end):
                if match.start() > at:
                    piece = plain[at : match.start()]
                    ids += named[piece] if piece in named else self.encode(piece)
                ids.append(self.control_ids[match.group()])
                at = match.end()
                edges.append(Edge(at, len(ids)))
        return (ids + self.encode(plain[at:]) if at < len(plain) else ids), edges

    def control_spelling(self, token_id: int) -> str | None:
        """Return the spelling of a control token, None for any other id."""
        return self._control_of.get(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for, perhaps part of a character; empty for a padded id."""
        found = self._bytes.get(token_id)
        if found is None:
            text = self._control_of.get(token_id) or self._plain.id_to_token(token_id) or ""
            try:
                found = bytes(_BYTE_OF[c] for c in text)
            except KeyError:
                found = text.encode()
            self._bytes[token_id] = found
        return found

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of ids. Bytes that are not UTF-8 become U+FFFD; padded ids give nothing."""
        skip = self.special_ids if skip_special else frozenset()
        return b"".join(self.token_bytes(i) for i in ids if i not in skip).decode("utf-8", "replace")


def read_tokenizer_config(folder: str | Path) -> dict[str, Any]:
    """tokenizer_config.json as a dictionary, empty where the file is missing.

    Raises:
        CheckpointError: The file is not a JSON object.
    """
    path = Path(folder) / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except OSError as e:
        raise CheckpointError(f"{path}: cannot be read: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{path}: not JSON: {e}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(config).__name__}")
    return config
