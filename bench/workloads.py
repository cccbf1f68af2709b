"""Prompts of four workloads, all different and all of one length class, for any checkpoint's tokenizer.

The wording is that of the tasks which the bundled checkpoint was trained on, since drafts of a trained head
are worth measuring only where the model knows what it says. On random weights the words do not matter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

from flashnext.text.template import ChatTemplate, TemplateOptions
from flashnext.text.tokenizer import Tokenizer

LENGTHS = (16, 128)
"""The length class: fewest and most tokens of a prompt."""

MIXED = "mixed"

_NOUNS = [
    "fox", "cat", "dog", "horse", "cow", "sheep", "goat", "wolf", "bear", "rabbit", "mouse", "lion",
    "tiger", "zebra", "camel", "monkey", "panda", "otter", "whale", "shark", "dolphin", "frog", "snake",
    "turtle", "owl", "eagle", "crow", "swan", "parrot", "penguin", "duck", "apple", "banana", "lemon",
    "plum", "cherry", "grape", "pear", "melon", "carrot", "potato", "tomato", "onion", "bread", "cheese",
    "honey", "soup", "cake", "rose", "tulip", "oak", "pine", "chair", "table", "bed", "lamp", "sofa",
    "shelf", "mirror", "hammer", "shovel", "needle", "ladder",
]  # fmt: skip
_PLACES = [
    "forest", "house", "yard", "field", "meadow", "farm", "garden", "barn", "river", "pond", "beach",
    "mountain", "lake", "kitchen",
]  # fmt: skip
_NAMES = [
    "Anna", "Bella", "Emma", "Mona", "Nina", "Peter", "Rosa", "Sara", "Tara", "Tom",
]  # fmt: skip
_WORDS = [
    "broken", "calm", "crown", "empty", "fast", "green", "loud", "narrow", "quiet", "slow", "soft", "tall",
    "tiny", "warm", "young",
]  # fmt: skip


def _a(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _prose(draw: random.Random) -> str:
    first, second = draw.sample(_NOUNS, 2)
    return f"Tell me a long story about {_a(first)} and {_a(second)} in the {draw.choice(_PLACES)}."


def _code(draw: random.Random) -> str:
    return f"Write a Python function {draw.choice(_NOUNS)} that adds {draw.randrange(2, 100)} to a number."


def _structured(draw: random.Random) -> str:
    people = "; ".join(f"{name}, {draw.randrange(1, 100)} years" for name in draw.sample(_NAMES, 4))
    return f"Write a JSON array of people: {people}"


def _edit(draw: random.Random) -> str:
    words = " ".join(draw.choice(_NOUNS if draw.random() < 0.6 else _WORDS) for _ in range(12))
    return f"Put this text in quotes: {words}"


_ASKED: dict[str, Callable[[random.Random], str]] = {
    "prose": _prose,
    "code": _code,
    "structured": _structured,
    "edit": _edit,
}
WORKLOADS = tuple(_ASKED)


def requests(workload: str, n: int) -> list[str]:
    """The texts of n users, all different and always the same ones.

    Args:
        workload: One of WORKLOADS, or MIXED: the four in turn.
        n: How many.
    """
    if workload == MIXED:
        each = [requests(name, -(-n // len(WORKLOADS))) for name in WORKLOADS]
        return [text for turn in zip(*each, strict=True) for text in turn][:n]
    found: dict[str, None] = {}
    for i in count():
        if len(found) == n:
            return list(found)
        found.setdefault(_ASKED[workload](random.Random(f"{workload} {i}")))
    raise AssertionError


class Prompts:
    """Renders prompts for one checkpoint.

    Args:
        folder: The checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_folder(folder)
        self._template = ChatTemplate.from_folder(folder, self._tokenizer)

    def chats(self, workload: str, n: int) -> list[list[int]]:
        """The token ids of n different prompts.

        Raises:
            ValueError: One is not of the length class.
        """
        options = TemplateOptions(enable_thinking=False)
        rendered = [
            self._template.render([{"role": "user", "content": text}], None, options).token_ids
            for text in requests(workload, n)
        ]
        for ids in rendered:
            if not LENGTHS[0] <= len(ids) <= LENGTHS[1]:
                raise ValueError(
                    f"a prompt of the workload {workload} has {len(ids)} tokens, expected {LENGTHS[0]} to "
                    f"{LENGTHS[1]}"
                )
        return rendered

    def long(self, n_tokens: int) -> list[int]:
        """The token ids of one long text, exactly so many, at least one."""
        sentences = iter(requests("prose", -(-n_tokens // 8)))
        ids: list[int] = []
        while len(ids) < n_tokens:
            ids += self._tokenizer.encode(next(sentences) + "\n")
        return ids[:n_tokens]
