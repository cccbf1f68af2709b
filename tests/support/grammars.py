"""The bundled checkpoint's vocabulary for grammars, and what they accept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from flashnext.engine.engine import BUNDLED
from flashnext.grammar import Compiled, Compiler, Matching, Vocabulary
from flashnext.grammar.matching import Masks
from flashnext.text.tokenizer import Tokenizer

END = "<|im_end|>"


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(BUNDLED)


@cache
def compiler() -> Compiler:
    known = tokenizer()
    tokens = [known.token_bytes(i) for i in range(known.n_tokens)]
    ends = [known.control_ids[END], known.control_ids["<|endoftext|>"]]
    return Compiler(Vocabulary(tokens, known.control_ids, ends, known.encode))


def ids_of(*parts: str) -> list[int]:
    """Token ids of texts; a part that spells a control token is one."""
    known = tokenizer()
    return [
        i
        for part in parts
        for i in ([known.control_ids[part]] if part in known.control_ids else known.encode(part))
    ]


def allows(row: Masks, token: int) -> bool:
    return bool(row[token // 32] >> (token % 32) & 1)


def accepts(compiled: Compiled, *parts: str) -> bool:
    """Whether the grammar allows all tokens of a text, and its end behind them."""
    ids = [*ids_of(*parts), tokenizer().control_ids[END]]
    return follows(Matching(compiled, thinking=False), ids)


def follows(matching: Matching, ids: Sequence[int]) -> bool:
    """Whether each token is allowed behind those before it."""
    rows = matching.masks([], ids[:-1])
    return all(allows(row, token) for row, token in zip(rows, ids, strict=True))
