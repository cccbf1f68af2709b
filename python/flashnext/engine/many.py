"""Many prompts answered together by one engine: some read ahead, replies in the order of the prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashnext.engine.errors import EngineClosed, EngineFailed, MemoryShort
from flashnext.engine.events import Reply
from flashnext.engine.request import Request
from flashnext.engine.sampling import Sampling
from flashnext.errors import FlashnextError
from flashnext.text.template import TemplateOptions

AHEAD = 2
"""Prompts that are read ahead, as a multiple of those that are answered at once: the next ones wait, read."""


@dataclass(frozen=True)
class BatchItem:
    """A prompt of a batch with settings of its own; what is None is as the batch says.

    Attributes:
        prompt: As `Engine.generate` takes it.
        sampling: How to draw.
        tools: For a chat, tools in OpenAI's form.
        options: For a chat, options of the template.
    """

    prompt: Any
    sampling: Sampling | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    options: TemplateOptions | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of an item of a batch.

    Attributes:
        index: Its number, from 0.
        item: As it was given.
        error: Why there is no reply; None where there is one.
    """

    index: int
    item: Any
    error: FlashnextError | None
    _reply: Reply | None

    @property
    def reply(self) -> Reply:
        """The reply.

        Raises:
            FlashnextError: There is none; `error` is raised.
        """
        if self._reply is None:
            assert self.error is not None
            raise self.error
        return self._reply


def is_chat(prompt: object) -> bool:
    """Whether a prompt is a list of messages."""
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


@dataclass(frozen=True)
class _Open:
    index: int
    item: Any
    request: Request | FlashnextError

    def outcome(self) -> Outcome:
        """Wait for it.

        Raises:
            EngineClosed: The engine was closed.
            EngineFailed: The engine's thread died.
        """
        if isinstance(self.request, FlashnextError):
            return Outcome(self.index, self.item, self.request, None)
        try:
            return Outcome(self.index, self.item, None, self.request.result())
        except (EngineClosed, EngineFailed):
            raise
        except FlashnextError as error:
            return Outcome(self.index, self.item, error, None)


def answered(items: Iterable[Any], submit: Callable[[Any], Request], ahead: int) -> Iterator[Outcome]:
    """Answer items, some at a time.

    Args:
        items: Taken one by one, as there is room.
        submit: Begins the reply to one.
        ahead: Most that are open at a time.

    Yields:
        The outcome of each, in their order. Where the iterator is closed, what is open is cancelled.

    Raises:
        EngineClosed: The engine is closed.
        EngineFailed: The engine's thread died.
    """
    opened: deque[_Open] = deque()

    def first() -> Outcome:
        outcome = opened[0].outcome()  # among those that are open for as long as it is waited for
        opened.popleft()
        return outcome

    try:
        for index, item in enumerate(items):
            while len(opened) >= ahead:
                yield first()
            while True:
                try:
                    opened.append(_Open(index, item, submit(item)))
                except MemoryShort as error:  # those that are open give some back
                    if opened:
                        yield first()
                        continue
                    opened.append(_Open(index, item, error))
                except (EngineClosed, EngineFailed):
                    raise
                except FlashnextError as error:
                    opened.append(_Open(index, item, error))
                break
        while opened:
            yield first()
    finally:
        for one in opened:
            if isinstance(one.request, Request):
                one.request.cancel()
