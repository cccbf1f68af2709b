"""Tokens and bytes, against `tokenizers` wherever it does not read control tokens out of people's text."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from flashnext.errors import CheckpointError
from flashnext.text.tokenizer import Tokenizer
from flashnext.text.written import Written
from hypothesis import given
from hypothesis import strategies as st

CHECKPOINT = Path(__file__).parents[1] / "tiny" / "hf"
FULL = tokenizers.Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
TOKENIZER = Tokenizer.from_folder(CHECKPOINT)
CONTROL = sorted(TOKENIZER.control_ids)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
SPELLING = st.lists(st.one_of(st.sampled_from([*CONTROL, "<", "|", ">", "\n"]), TEXTS), max_size=8).map(
    "".join
)


def test_every_added_token_is_a_control_token() -> None:
    assert len(CONTROL) == 13
    assert {"<think>", "</tool_call>", "<|im_end|>"} <= set(CONTROL)
    assert TOKENIZER.special_ids == {2547, 2548, 2549, 2556, 2557, 2558, 2559}


@pytest.mark.parametrize("spelling", CONTROL)
def test_ordinary_text_that_spells_a_control_token_stays_text(spelling: str) -> None:
    for text in (spelling, f"a{spelling}b", f" {spelling}\n", spelling * 3):
        ids = TOKENIZER.encode(text)
        assert not set(ids) & set(TOKENIZER.control_ids.values())
        assert TOKENIZER.decode(ids) == text


@given(SPELLING)
def test_no_text_gives_a_control_token(text: str) -> None:
    assert not set(TOKENIZER.encode(text)) & set(TOKENIZER.control_ids.values())


@given(TEXTS)
def test_ordinary_text_encodes_as_tokenizers_does(text: str) -> None:
    assert TOKENIZER.encode(text) == FULL.encode(text, add_special_tokens=False).ids


@given(SPELLING)
def test_a_template_that_wrote_everything_encodes_as_tokenizers_does(text: str) -> None:
    assert TOKENIZER.encode_written(Written.all_of(text)) == FULL.encode(text, add_special_tokens=False).ids


@given(st.lists(st.integers(0, 2700), max_size=60))
def test_decode_equals_tokenizers_for_any_ids(ids: list[int]) -> None:
    assert TOKENIZER.decode(ids) == FULL.decode(ids, skip_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special=True) == FULL.decode(ids, skip_special_tokens=True)


@given(TEXTS)
def test_bytes_of_tokens_join_to_the_text(text: str) -> None:
    joined = b"".join(TOKENIZER.token_bytes(i) for i in TOKENIZER.encode(text))
    assert joined == unicodedata.normalize("NFC", text).encode()


def test_all_256_bytes_have_a_token() -> None:
    assert {TOKENIZER.token_bytes(i) for i in range(TOKENIZER.n_tokens)} >= {bytes([b]) for b in range(256)}


def test_nul_bytes_are_text() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a\0b\0")) == "a\0b\0"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("x \ud83d", "x \ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("é\udc80", "é\ufffd"),
    ],
)
def test_a_lone_surrogate_counts_as_replacement_character_and_a_pair_as_its_character(
    text: str, meant: str
) -> None:
    assert TOKENIZER.encode(text) == TOKENIZER.encode(meant)


def test_padded_ids_give_no_text() -> None:
    assert TOKENIZER.n_tokens == 2560
    assert TOKENIZER.token_bytes(2599) == b""
    assert TOKENIZER.decode([2599, 2560]) == ""


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not found"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a readable tokenizer"):
        Tokenizer.from_folder(tmp_path)


def test_a_vocabulary_that_gives_an_added_token_from_text_is_refused(tmp_path: Path) -> None:
    parts = json.loads((CHECKPOINT / "tokenizer.json").read_text(encoding="utf-8"))
    parts["added_tokens"].append(
        {**parts["added_tokens"][0], "id": parts["model"]["vocab"]["he"], "content": "he"}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts), encoding="utf-8")
    with pytest.raises(CheckpointError, match="ordinary text can give the added token 'he'"):
        Tokenizer.from_folder(tmp_path)


def test_added_tokens_of_tokenizer_config_count_too(tmp_path: Path) -> None:
    parts = json.loads((CHECKPOINT / "tokenizer.json").read_text(encoding="utf-8"))
    gone = parts["added_tokens"].pop()
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(
        (CHECKPOINT / "tokenizer_config.json").read_text(encoding="utf-8")
    )
    assert Tokenizer.from_folder(tmp_path).control_ids[gone["content"]] == gone["id"]
