"""Answers the lines of a batch, as many together as the machine answers at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flashnext.batch.lines import Line
from flashnext.batch.output import Output, refused, written
from flashnext.errors import FlashnextError
from flashnext.text.jsontext import dumps


@dataclass(frozen=True)
class Answer:
    """What a route says to a body.

    Attributes:
        status: Of HTTP.
        request_id: As the route tells it.
        body: What it says.
        retry_after_s: When to ask again; None where that would not help.
    """

    status: int
    request_id: str
    body: Any
    retry_after_s: float | None = None


Post = Callable[[str, bytes], Awaitable[Answer]]
"""Asks a route."""

PATIENCE_S = 60.0
"""How long a line is asked again that is refused while no other one is being answered."""

_ENDED = ("engine_failed", "shutting_down")
"""Errors after which no line would be answered."""


async def answer_lines(
    lines: Iterable[Line],
    output: Output,
    post: Post,
    *,
    ahead: int,
    told: Callable[[Line, bool], object] = lambda line, failed: None,
    waits: Callable[[str], object] = lambda why: None,
    clock_s: Callable[[], float] = time.monotonic,
) -> None:
    """Answer all lines that have no answer yet; each is in the output as soon as it is there.

    Args:
        lines: Taken one by one, as there is room.
        output: Where answers go; it has been begun.
        post: What answers.
        ahead: Most lines that are open at a time.
        told: Called for each line with whether its answer is an error, also for those that had one.
        waits: Told why, where all open lines are refused for now; once, until one is answered.
        clock_s: A clock that never goes back.

    Raises:
        InvalidArgument: The output belongs to other lines.
        FlashnextError: The engine failed; what has been answered is in the output.
        OSError: Lines cannot be read, or answers not be written.
    """
    places = asyncio.Semaphore(ahead)
    asking = _Asking(post, waits, clock_s)

    async def answer(line: Line) -> None:
        try:
            said = await asking.said(line)
            output.append(line, written(line, said.status, said.request_id, said.body))
            told(line, said.status != 200)
        finally:
            places.release()

    try:
        async with asyncio.TaskGroup() as group:
            for line in lines:
                if output.has(line):
                    told(line, output.done[line.number].failed)
                elif line.problem is not None:
                    output.append(line, refused(line))
                    told(line, True)
                else:
                    await places.acquire()
                    group.create_task(answer(line))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


class _Asking:
    """Asks for answers to lines; what is only busy is asked again.

    Where no line is answered there is nobody whose end would help, so a line is asked again for a while only,
    as it is in a batch that `Engine.batch` answers.
    """

    def __init__(self, post: Post, waits: Callable[[str], object], clock_s: Callable[[], float]) -> None:
        self._post, self._waits, self._clock_s = post, waits, clock_s
        self._n_asked = 0  # lines that are being answered, or refused in a moment
        self._answered_s = float("-inf")  # when one was answered
        self._told = False  # why all wait, since then

    async def said(self, line: Line) -> Answer:
        """Ask until there is an answer, which a refusal may be in the end.

        Raises:
            FlashnextError: There will be none.
        """
        body = dumps(line.body).encode("utf-8", "surrogatepass")
        refused_s: float | None = None
        while True:
            self._n_asked += 1
            try:
                said = await self._post(line.url, body)
            finally:
                self._n_asked -= 1
            error = said.body.get("error") if said.status == 503 else None
            if error and error.get("code") in _ENDED:
                raise FlashnextError(error["message"])
            now_s = self._clock_s()
            if not error or said.retry_after_s is None:
                self._answered_s, self._told = now_s, False
                return said
            refused_s = now_s if refused_s is None else refused_s
            if not self._n_asked:
                if not self._told:
                    self._told = True
                    self._waits(error["message"])
                if now_s - max(refused_s, self._answered_s) >= PATIENCE_S:
                    return said
            await asyncio.sleep(said.retry_after_s)
