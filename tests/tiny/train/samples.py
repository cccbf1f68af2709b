"""What every task returns, and the small words and sentences that tasks share."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field

MODEL_NAME = "Tiny"


@dataclass
class Sample:
    task: str
    messages: list
    tools: list | None = None
    thinking: bool = False
    media: list = field(default_factory=list)  # picture specs, in prompt order (see pictures.py)
    closed: bool = False  # few possible prompts: no hold-out
    base_key: int | None = None  # key of the sample before augment()

    def key(self) -> int:
        if self.base_key is not None:
            return self.base_key
        return zlib.crc32(
            json.dumps([self.messages[:-1], self.media, self.thinking], sort_keys=True).encode()
        )

    def is_test(self) -> bool:
        return self.key() % 23 == 0


def U(text):
    return {"role": "user", "content": text}


def A(text, think=None, calls=None):
    m = {"role": "assistant", "content": text}
    if think is not None:
        m["reasoning_content"] = think
    if calls:
        m["tool_calls"] = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    return m


def an(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def cap(text):
    return text[0].upper() + text[1:]


def join_and(xs):
    return xs[0] if len(xs) == 1 else ", ".join(xs[:-1]) + " and " + xs[-1]


FORCE_THINK = [None]  # set by t_dialog: every turn thinks, or none does


def one(r, task, q, a, think=None, system=None, closed=False, p_think=0.35):
    """Single turn sample; `think` is the reasoning used when the thinking mode is drawn."""
    use = think is not None and (r.random() < p_think if FORCE_THINK[0] is None else FORCE_THINK[0])
    msgs = ([{"role": "system", "content": system}] if system else []) + [U(q), A(a, think if use else None)]
    return Sample(task, msgs, thinking=use, closed=closed)
