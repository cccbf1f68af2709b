"""The tiny checkpoint's tokenizer and chat template, read once."""

from __future__ import annotations

from pathlib import Path

import pytest
from flashnext.text.template import ChatTemplate
from flashnext.text.tokenizer import Tokenizer

TESTS = Path(__file__).parents[1]
CHECKPOINT = TESTS / "tiny" / "hf"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(CHECKPOINT)


@pytest.fixture(scope="session")
def template(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.from_folder(CHECKPOINT, tokenizer)


@pytest.fixture(scope="session")
def strict_template(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate((TESTS / "data" / "strict_template.jinja").read_text(encoding="utf-8"), tokenizer)
