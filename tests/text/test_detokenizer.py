"""Incremental text: no half characters, nothing lost, nothing late."""

from __future__ import annotations

from pathlib import Path

from flashnext.text.detokenizer import Detokenizer
from flashnext.text.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st

TOKENIZER = Tokenizer.from_folder(Path(__file__).parents[1] / "tiny" / "hf")
_BYTE_TOKENS = {
    TOKENIZER.token_bytes(i): i for i in range(TOKENIZER.n_tokens) if len(TOKENIZER.token_bytes(i)) == 1
}
IDS = st.lists(st.one_of(st.integers(0, 2600), st.sampled_from(sorted(_BYTE_TOKENS.values()))), max_size=60)


@given(IDS, st.booleans())
def test_pieces_join_to_exactly_the_whole_decode(ids: list[int], skip_special: bool) -> None:
    detokenizer = Detokenizer(TOKENIZER, skip_special=skip_special)
    pieces = [detokenizer.push(i) for i in ids] + [detokenizer.flush()]
    assert "".join(pieces) == TOKENIZER.decode(ids, skip_special=skip_special)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_valid_text_byte_by_byte_never_shows_half_a_character(text: str) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    shown = ""
    sent = b""
    for byte in text.encode():
        sent += bytes([byte])
        shown += detokenizer.push(_BYTE_TOKENS[bytes([byte])])
        assert shown == sent.decode("utf-8", "ignore")  # every finished character at once, and no other
        assert detokenizer.held_bytes == len(sent) - len(shown.encode())
    assert detokenizer.flush() == ""


def test_a_reply_that_ends_inside_a_character_ends_in_one_replacement_character() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.push(_BYTE_TOKENS[bytes([b])]) for b in "a🚀".encode()[:-1]]
    assert pieces == ["a", "", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
