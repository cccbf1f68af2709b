"""What a scripted server says: tokens of the bundled tokenizer."""

from __future__ import annotations

from flashnext.engine.engine import BUNDLED
from flashnext.text.parser import split_control
from flashnext.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_folder(BUNDLED)


def ids_of(text: str, size: int = 10**6) -> list[int]:
    """A reply's tokens; text between control tokens is encoded in pieces of `size` characters."""
    ids: list[int] = []
    for piece, is_control in split_control(text):
        if is_control:
            ids.append(TOKENIZER.control_ids[piece])
        else:
            for at in range(0, len(piece), size):
                ids += TOKENIZER.encode(piece[at : at + size])
    return [*ids, TOKENIZER.control_ids["<|im_end|>"]]
