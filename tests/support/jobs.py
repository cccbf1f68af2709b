"""Jobs for the scheduler over the fake core, and who receives their events."""

from __future__ import annotations

import itertools
import queue
from pathlib import Path
from typing import Any

import numpy as np
from flashnext import _core
from flashnext.engine.events import Event
from flashnext.engine.job import Job
from flashnext.engine.reply import Chat, ReplyText, closing_ids
from flashnext.engine.scheduler import Scheduler
from flashnext.text.tokenizer import Tokenizer
from flashnext.text.written import Written

TOKENIZER = Tokenizer.from_folder(Path(__file__).parents[1] / "tiny" / "hf")
END = 2549
NUMBERS = itertools.count(1)


def ids(text: str) -> list[int]:
    """Tokens of a reply in which tags are control tokens."""
    return TOKENIZER.encode_written(Written.all_of(text))


class Client:
    """One job and what it is told."""

    def __init__(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 100,
        stops: tuple[str, ...] = (),
        chat: Chat | None = None,
        n_drafts: int = 0,
        background: bool = False,
        most_thoughts: int | None = None,
        **more: Any,
    ) -> None:
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.job = Job(
            id=next(NUMBERS),
            prompt=np.array(prompt, np.int32),
            max_tokens=max_tokens,
            stop_ids=frozenset([END]),
            sampling=_core.Sampling(),
            logprobs=False,
            n_drafts=n_drafts,
            text=ReplyText(TOKENIZER, stops, chat, max_thoughts=most_thoughts),
            deliver=self.items.put,
            background=background,
            closing=tuple(closing_ids(TOKENIZER)),
            **more,
        )

    def events(self) -> list[Event]:
        """All events to the end; an error is raised."""
        out: list[Event] = []
        while not out or out[-1].finish_reason is None:
            item = self.items.get(timeout=20)
            if isinstance(item, Exception):
                raise item
            out.append(item)
        return out

    def text(self) -> str:
        return "".join(event.text for event in self.events())

    def token_ids(self) -> list[int]:
        return [i for event in self.events() for i in event.token_ids]


def add(scheduler: Scheduler, *args: Any, **more: Any) -> Client:
    """Hand a job to a scheduler that is stepped by the test itself."""
    client = Client(*args, **more)
    scheduler.add(client.job)
    return client


def run(scheduler: Scheduler, most_steps: int = 10_000) -> int:
    """Step until there is nothing to do; return how many steps it took."""
    for n in range(most_steps):
        if scheduler.idle:
            return n
        scheduler.step()
    raise AssertionError(f"not idle after {most_steps} steps")
