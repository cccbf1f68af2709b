"""A limit on a reply's thoughts: at it the block is closed for the model, and a second job goes on behind it.

The second job reads prompt, thoughts and the closing as its prompt. That makes its bits a function of the
request alone, like those of any reply; presence and frequency penalties do not count the thoughts in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from flashnext.engine.events import Drafts, Event, Timings, TokenLogprob, Usage, token_sha
from flashnext.engine.job import Deliver, Job
from flashnext.text.tokenizer import Tokenizer


def closing_ids(tokenizer: Tokenizer) -> list[int]:
    """Write the end of a block of thoughts as the template writes it."""
    return [*tokenizer.encode("\n"), tokenizer.control_ids["</think>"], *tokenizer.encode("\n\n")]


class ThoughtLimit:
    """What takes the events of a job whose thoughts are limited, and stands between it and its receiver.

    Called by the engine's thread; `cancel` comes from any.
    """

    def __init__(
        self, job: Job, closing: Sequence[int], submit: Callable[[Job], None], new_id: Callable[[], int]
    ) -> None:
        """Stand in for the job's receiver.

        Args:
            job: Its `text` stops the reply where the limit is reached.
            closing: Tokens that close the block.
            submit: Hands a job to the engine.
            new_id: Numbers the second job.
        """
        self._first = job
        self._current = job
        self._closing = closing
        self._submit = submit
        self._new_id = new_id
        self._deliver: Deliver = job.deliver
        self._forced: list[int] = []
        self._cancelled = False
        self._lock = threading.Lock()
        job.deliver = self._take_first

    def begin(self) -> None:
        """Hand in the first job, or at once the second where no thought is allowed."""
        if self._first.text.out_of_thoughts:
            self._go_on()
        else:
            self._submit(self._first)

    def cancel(self, cancel: Callable[[Job], None]) -> None:
        """Cancel whichever job runs."""
        with self._lock:
            self._cancelled = True
            cancel(self._current)

    def _take_first(self, item: Event | Exception) -> None:
        over = self._first.text.out_of_thoughts
        if isinstance(item, Exception) or item.finish_reason != "stop" or not over:
            self._deliver(item)
            return
        self._deliver(
            replace(item, finish_reason=None, usage=None, token_sha=None, drafts=None, timings=None)
        )
        try:
            self._go_on()
        except Exception as error:
            self._deliver(error)

    def _go_on(self) -> None:
        """Close the block and hand in the second job."""
        first, text = self._first, self._first.text
        text.close_thoughts()
        left = first.max_tokens - len(first.token_ids)
        self._forced = list(self._closing[:left])
        for token_id in self._forced:
            pieces = text.push(token_id)
            # It was not drawn, so it was certain; these tokens spell no part of thoughts or answer.
            logprobs = (TokenLogprob(token_id, 0.0),) if first.logprobs else None
            self._deliver(Event((token_id,), pieces.text, logprobs, reasoning=pieces.reasoning))
        left -= len(self._forced)
        with self._lock:
            if left and not self._cancelled:
                read = [*first.prompt.tolist(), *first.token_ids, *self._forced]
                self._current = Job(
                    id=self._new_id(),
                    prompt=np.asarray(read, np.int32),
                    max_tokens=left,
                    stop_ids=first.stop_ids,
                    sampling=first.sampling,
                    logprobs=first.logprobs,
                    n_drafts=first.n_drafts,
                    text=text,
                    deliver=self._take_second,
                    background=first.background,
                )
                self._submit(self._current)
                return
        rest = text.finish(cut=True)
        reason = "cancelled" if self._cancelled else "length"
        self._deliver(self._whole(Event((), rest.text, finish_reason=reason, reasoning=rest.reasoning)))

    def _take_second(self, item: Event | Exception) -> None:
        last = isinstance(item, Event) and item.finish_reason is not None
        self._deliver(self._whole(item) if last and isinstance(item, Event) else item)

    def _whole(self, last: Event) -> Event:
        """Make the last event tell of both jobs."""
        first, second = self._first, self._current
        ids = [*first.token_ids, *self._forced, *(second.token_ids if second is not first else ())]
        drafts, timings = last.drafts or Drafts(), last.timings or Timings()
        if first.times.first is not None and second is not first:
            timings = first.timings_until(second.times.last, len(ids))
        return replace(
            last,
            usage=Usage(len(first.prompt), len(ids), first.text.n_reasoning, first.n_cached),
            token_sha=token_sha(ids),
            drafts=Drafts(first.n_proposed + drafts.proposed, first.n_accepted + drafts.accepted),
            timings=timings,
        )
