"""What a request gives back: events while it runs, and all of it together as a reply."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from flashnext.text.parser import ToolCall


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one drawn token under the model's unmodified distribution.

    Attributes:
        top: The likeliest (id, log-probability), best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of one request.

    Attributes:
        completion_tokens: All tokens of the reply, thoughts and the end token included.
        reasoning_tokens: Those of them that lie inside a `<think>` block.
        cached_tokens: Those of the prompt that were not read: they came from the prefix cache, or another
            request was reading them. They depend on what else ran, so they do not count where usages are
            compared.
    """

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Drafts:
    """What drafts did for a reply: how many were verified, and how many of these kept.

    Attributes:
        kept: Rounds that verified any, by how many they kept: from 0 to the most that one of them did.
    """

    proposed: int = 0
    accepted: int = 0
    kept: tuple[int, ...] = ()


@dataclass(frozen=True)
class Timings:
    """Where the time of a request went, in milliseconds; None for what it did not come to.

    Attributes:
        queued_ms: From its arrival until it was admitted.
        prompt_ms: From then until its first token.
        first_token_ms: From its arrival until its first token.
        decode_ms: From the first token to the last one.
        token_ms: The same, for each token after the first. Time that it was preempted counts.
        largest_gap_ms: The longest that it stood still between two tokens.
    """

    queued_ms: float | None = None
    prompt_ms: float | None = None
    first_token_ms: float | None = None
    decode_ms: float | None = None
    token_ms: float | None = None
    largest_gap_ms: float | None = None


@dataclass(frozen=True)
class CacheCounts:
    """What the prefix cache holds, and what it has done since the engine was made.

    Attributes:
        limit_bytes: Most that it may hold now; the memory guard lowers it.
        blocks_bytes: Of recurrent blocks, those that are still being written to disk included.
        pages_bytes: Of pages, each counted once, whoever else has it.
        marks: Snapshots in memory.
        hits: Prompts that went on from a mark.
        misses: Those that found none.
        hit_tokens: Tokens that were not read for that.
        saved_s: What reading them had taken, in seconds.
        evicted: Marks that gave way.
        warm_passes: Histories that were read in the background.
        warming: Those that are to be read, or to be rendered for it.
        stored: Marks in the spill directory.
        stored_bytes: What its files take.
        spilled: Marks that were written to it.
        restored: Marks that were read from it.
        spill_failures: Writes and reads that failed, files that were damaged.
    """

    limit_bytes: int = 0
    blocks_bytes: int = 0
    pages_bytes: int = 0
    marks: int = 0
    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    saved_s: float = 0.0
    evicted: int = 0
    warm_passes: int = 0
    warming: int = 0
    stored: int = 0
    stored_bytes: int = 0
    spilled: int = 0
    restored: int = 0
    spill_failures: int = 0


@dataclass(frozen=True)
class SpreadCounts:
    """How many values lie below each of some bounds.

    Attributes:
        bounds: Upper bounds, ascending.
        counts: Values by bound, each counted once, and at last those above all bounds.
        total: The sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0


@dataclass(frozen=True)
class Work:
    """What an engine has done since it was made.

    Attributes:
        prompt_tokens: Of prompts that have been read to their end.
        cached_tokens: Those of them that were not read for it (`Usage.cached_tokens`).
        read_tokens: That passed through the model in prompt chunks, of histories and of replies that go on
            after a preemption too.
        reply_tokens: Of replies.
        passes: Prompt chunks, each of one prompt or of several, or of a history.
        rounds: Of all sequences together.
        proposed: Drafts that were verified.
        kept: Windows with drafts, by how many of them were kept, from 0.
        gaps: Between a token of a reply and the one before it, in seconds; tokens that come out of one round
            have none.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    read_tokens: int = 0
    reply_tokens: int = 0
    passes: int = 0
    rounds: int = 0
    proposed: int = 0
    kept: tuple[int, ...] = ()
    gaps: SpreadCounts = SpreadCounts((), (0,))

    @property
    def accepted(self) -> int:
        """Drafts that were kept."""
        return sum(n * times for n, times in enumerate(self.kept))


@dataclass(frozen=True)
class VisionCounts:
    """What the vision tower has done since the engine was made.

    Attributes:
        media: Pictures and videos that went through it. One that is shown over a whole chat does so once.
        tokens: Of them.
        passes: Media of several requests may share one.
        seconds: That the passes took, rounds of replies that came between their steps included.
        cached: Features that were asked for and came from the cache of recent ones.
    """

    media: int = 0
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0
    cached: int = 0


@dataclass(frozen=True)
class MemoryUse:
    """What the memory guard sees (docs/memory.md).

    Attributes:
        used_bytes: What the process takes, or is accounted for where that is more.
        limit_bytes: Most that it may.
        shrink_bytes: Beyond this the prefix cache gives way.
        refuse_bytes: Beyond this requests are refused.
    """

    used_bytes: int
    limit_bytes: int
    shrink_bytes: int
    refuse_bytes: int

    @property
    def state(self) -> str:
        """What follows: "ok", "shrink" or "refuse"."""
        if self.used_bytes > self.refuse_bytes:
            return "refuse"
        return "shrink" if self.used_bytes > self.shrink_bytes else "ok"


@dataclass(frozen=True)
class Counts:
    """What an engine is doing, and has done since it was made.

    Attributes:
        waiting: Requests that have not been admitted, preempted ones included.
        running: Admitted ones.
        free_pages: Pages that nobody has.
        preempted: How often a sequence gave its pages back to go on later.
        forked: How often a sequence went on from another's prompt.
        cache: The prefix cache.
        work: What has been done.
        vision: What the vision tower has seen; nothing where there is none.
    """

    waiting: int
    running: int
    free_pages: int
    preempted: int
    forked: int
    cache: CacheCounts = field(default_factory=CacheCounts)
    work: Work = field(default_factory=Work)
    vision: VisionCounts = field(default_factory=VisionCounts)


@dataclass(frozen=True, slots=True)
class Event:
    """A step of a reply.

    Attributes:
        token_ids: The tokens that this step adds: drawn, or written to end thoughts at their budget.
        text: What the step adds to the reply's text. Text that may still turn out to be half a character or
            part of a stop string comes with a later event, so this is often empty. For a chat it is the
            answer alone.
        reasoning: For a chat, what the step adds to the thoughts.
        tool_calls: For a chat with tools, the calls that the step completes.
        logprobs: One for each of token_ids, where the request asks for them.
        prompt_logprobs: On the event of the first token drawn, one for each token of the prompt but its
            first, where the request asks for them.
        text_logprobs: For a chat, those of the tokens that begin in `text`. A token that makes no text is
            in neither of the two.
        reasoning_logprobs: For a chat, those of the tokens that begin in `reasoning`.
        finish_reason: On the last event: "stop" (a stop token or string), "length" (max_tokens or the
            context) or "cancelled".
        usage: On the last event.
        token_sha: On the last event, the fingerprint of all token ids of the reply (`token_sha`).
        drafts: On the last event.
        timings: On the last event.
        stop: On the last event, the stop string that ended the reply, if one did.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    text_logprobs: tuple[TokenLogprob, ...] = ()
    reasoning_logprobs: tuple[TokenLogprob, ...] = ()
    token_sha: str | None = None
    drafts: Drafts | None = field(default=None, compare=False)
    timings: Timings | None = field(default=None, compare=False)
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    stop: str | None = None


@dataclass(frozen=True)
class Reply:
    """All events of a request together, and the seed that the reply was drawn with; see `Event`.

    Replies are compared by what they say: drafts and timings do not count.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: str
    usage: Usage
    token_sha: str
    seed: int
    text_logprobs: tuple[TokenLogprob, ...] = ()
    reasoning_logprobs: tuple[TokenLogprob, ...] = ()
    drafts: Drafts = field(default_factory=Drafts, compare=False)
    timings: Timings = field(default_factory=Timings, compare=False)
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    stop: str | None = None

    @classmethod
    def of(cls, events: Sequence[Event], seed: int) -> Reply:
        """Put all events of a request together, the last one included."""
        whole = joined(events)
        assert whole.finish_reason is not None and whole.usage is not None and whole.token_sha is not None
        return cls(
            text=whole.text,
            reasoning=whole.reasoning,
            tool_calls=whole.tool_calls,
            token_ids=whole.token_ids,
            logprobs=whole.logprobs,
            text_logprobs=whole.text_logprobs,
            reasoning_logprobs=whole.reasoning_logprobs,
            finish_reason=whole.finish_reason,
            usage=whole.usage,
            token_sha=whole.token_sha,
            seed=seed,
            drafts=whole.drafts or Drafts(),
            timings=whole.timings or Timings(),
            prompt_logprobs=whole.prompt_logprobs,
            stop=whole.stop,
        )


def joined(events: Sequence[Event]) -> Event:
    """Put consecutive events of one reply into one that says the same."""
    if len(events) == 1:
        return events[0]
    logprobs = [event.logprobs for event in events if event.logprobs is not None]
    return replace(
        events[-1],
        token_ids=tuple(chain.from_iterable(event.token_ids for event in events)),
        text="".join(event.text for event in events),
        logprobs=tuple(chain.from_iterable(logprobs)) if logprobs else None,
        reasoning="".join(event.reasoning for event in events),
        tool_calls=tuple(chain.from_iterable(event.tool_calls for event in events)),
        text_logprobs=tuple(chain.from_iterable(event.text_logprobs for event in events)),
        reasoning_logprobs=tuple(chain.from_iterable(event.reasoning_logprobs for event in events)),
        prompt_logprobs=next((p for event in events if (p := event.prompt_logprobs) is not None), None),
    )


def token_sha(token_ids: Sequence[int]) -> str:
    """Fingerprint a reply: 16 hex digits of SHA-256 over its token ids as little-endian uint32."""
    return hashlib.sha256(np.asarray(token_ids, dtype="<u4").tobytes()).hexdigest()[:16]
