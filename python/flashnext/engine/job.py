"""One request on its way through the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from flashnext import _core
from flashnext.engine.core import Drawn, ReplyOptions, Session, Tokens
from flashnext.engine.errors import GrammarDeadEnd
from flashnext.engine.events import Drafts, Event, Timings, TokenLogprob, Usage, token_sha
from flashnext.engine.frame import Frame
from flashnext.engine.marks import Place
from flashnext.engine.prefix_cache import KeptMark
from flashnext.engine.prefixes import Prefix
from flashnext.engine.radix import Keys, row_keys
from flashnext.engine.reply import Pieces, ReplyText, Said
from flashnext.engine.sights import Held
from flashnext.errors import DeviceError
from flashnext.grammar import Compiled, Matching

Deliver = Callable[[Event | Exception], None]


@dataclass
class _Times:
    """When things happened to a job first, in seconds of the scheduler's clock."""

    arrived: float = 0.0
    admitted: float | None = None
    first: float | None = None
    last: float | None = None
    largest_gap: float | None = None
    n_tokens: int = 0

    def token(self, now_s: float) -> None:
        """Take note of a token."""
        if self.first is None or self.last is None:
            self.first = now_s
        else:
            self.largest_gap = max(self.largest_gap or 0.0, now_s - self.last)
        self.last = now_s
        self.n_tokens += 1


@dataclass(eq=False)
class Job:
    """One request: what it asks, what it has got, and where it stands.

    Used by the engine's thread, save for `send`, `ended` and `cancelled`.

    Attributes:
        prompt: (n,) int32, what the model reads.
        max_tokens: Most tokens of the reply; prompt and reply fit the context.
        stop_ids: Ids that end the reply.
        scores: Whether the log-probabilities of the prompt's own tokens have still to be told.
        foreign_stops: Those of them by which the model does not end its turn: the reply is cut there.
        closing: What ends its block of thoughts, once it has had as many as it may.
        n_drafts: Most drafts of a round.
        deliver: Takes the events, and at the end the last event or an exception. Called by the engine's
            thread, or by the one that closes the engine; must not block.
        background: Whether it yields to those that are not.
        cancelled: Set by any thread; the job ends soon.
        arrival: Its place among all jobs.
        overtaken: Less senior jobs that were admitted before it.
        session: While it is admitted and does not wait for a fork.
        feed: What it reads before it draws: the prompt, and when it goes on after a preemption the reply too.
        keys: Of its rows.
        n_read: Tokens of `feed` that have been read.
        prefix: Whose session it waits to be forked from.
        seen: What a look at the running jobs found to be forked from.
        looked: When that was.
        cache: Whether it shares what it reads: with those who read at the same time, and by the prefix cache.
        places: Where the marks of its prompt lie.
        frame: What its prompt shows beside text; None where that is nothing.
        held: What of that is on the device for it.
        goes_on: Whether another prompt may begin with this one and its reply, whose end is kept then.
        grammar: What its answer has to match.
        thinks: Whether it begins inside a block of thoughts, behind which the grammar counts.
        matching: Where it stands in the grammar, since its session was given the reply.
        said: What its reply says so far, where `ended_with` wants to know; else None.
        ended_with: Called by the engine's thread with what the reply says when it came to its end; must not
            block.
        hit: The mark that a look into the prefix cache found.
        hit_looked: When that was.
        fetched: When the spill directory was last asked for a deeper one.
        loading: Whether it waits for that one.
        patient: Whether it would wait again.
        read_s: What reading of its feed has taken so far, by whomever.
        n_drawn: Tokens of the reply that this session has read or drawn; fewer than have been sent where it
            was preempted.
        n_written: Tokens of the reply up to the end of thoughts that were closed for the model. They are read
            like a prompt, always: the last of them were not drawn.
        short: Whether its last round or chunk came short of pages.
        resumed: Whether it has run before, and reads again what it had read.
        protected: Whether it was preempted and has got nothing new since.
        n_proposed: Its drafts that were verified.
        kept: Its rounds with drafts, by how many of them they kept.
    """

    id: int
    prompt: Tokens
    max_tokens: int
    stop_ids: frozenset[int]
    sampling: _core.Sampling
    logprobs: bool
    n_drafts: int
    text: ReplyText
    deliver: Deliver
    scores: bool = False
    background: bool = False
    foreign_stops: frozenset[int] = frozenset()
    closing: tuple[int, ...] = ()
    cache: bool = True
    places: tuple[Place, ...] = ()
    frame: Frame | None = None
    held: Held = field(default_factory=dict)
    goes_on: bool = True
    grammar: Compiled | None = None
    thinks: bool = False
    matching: Matching | None = None
    said: Said | None = None
    ended_with: Callable[[Said], None] = lambda said: None
    cancelled: bool = False
    arrival: int = 0
    overtaken: int = 0
    session: Session | None = None
    n_read: int = 0
    prefix: Prefix[Job] | None = None
    seen: Prefix[Job] | None = None
    looked: tuple[int, int] = (-1, -1)
    hit: KeptMark | None = None
    hit_looked: int = -1
    fetched: int = -1
    loading: bool = False
    patient: bool = True
    read_s: float = 0.0
    n_drawn: int = 0
    n_written: int = 0
    short: bool = False
    resumed: bool = False
    protected: bool = False
    times: _Times = field(default_factory=_Times)
    token_ids: list[int] = field(default_factory=list)
    scored: list[TokenLogprob] = field(default_factory=list)
    n_cached: int = 0
    n_proposed: int = 0
    kept: list[int] = field(default_factory=list)
    feed: Tokens = field(init=False)
    keys: Keys = field(init=False)
    _ended: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._feed_on(self.prompt)

    @property
    def rank(self) -> tuple[bool, int]:
        """Seniority: the least is the most senior."""
        return self.background, self.arrival

    @property
    def unread(self) -> int:
        """Tokens that are to be read before it draws."""
        return len(self.feed) - self.n_read

    @property
    def next_positions(self) -> int:
        """Positions that it may come to by its next round, or by reading all that it reads."""
        if self.unread:
            return len(self.feed)
        return len(self.prompt) + min(self.n_drawn + self.n_drafts, self.max_tokens)

    @property
    def ended(self) -> bool:
        """Whether the last event or an error has been sent."""
        return self._ended

    @property
    def axes(self) -> Tokens | None:
        """Where the rows of its prompt stand on the rotary axes; None: at their positions."""
        return None if self.frame is None else self.frame.axes

    def keys_of(self, tokens: Tokens) -> Keys:
        """Name the rows of the prompt with what of a reply follows it, or of its beginning."""
        return row_keys(tokens) if self.frame is None else self.frame.keys(tokens)

    def options(self) -> ReplyOptions:
        """Say to the core how the reply is drawn."""
        if self.grammar is not None:
            written = self.token_ids[: self.n_drawn]
            self.matching = Matching(self.grammar, thinking=self.thinks, written=written)
        return ReplyOptions(
            sampling=self.sampling,
            stop_ids=tuple(sorted(self.stop_ids)),
            n_prompt=len(self.prompt),
            end=len(self.prompt) + self.max_tokens,
            n_drafts=self.n_drafts,
            known=tuple(self.token_ids),
            grammar=self.matching,
        )

    def scored_of(self, n: int) -> Tokens:
        """Of the next n tokens that are read, those behind them whose log-probabilities are wanted."""
        return self.prompt[self.n_read + 1 : self.n_read + 1 + n] if self.scores else self.prompt[:0]

    def rewind(self, prompt_equals_window: bool) -> None:
        """Go back to the beginning, to read everything again and go on where the reply is.

        Where the arithmetic of prompts and rounds is the same, the reply is read like a prompt, and its last
        token is drawn again; else all of the reply that was drawn after its thoughts were closed.
        """
        self.resumed = self.protected = True
        n = max(0, len(self.token_ids) - 1) if prompt_equals_window else 0
        self._read_again(max(self.n_written, n))

    def close_thoughts(self) -> list[Event]:
        """Write the end of the block of thoughts for the model; all up to there is to be read next.

        Returns:
            The events of what is written. The last one ends the reply where it has had all its tokens.
        """
        self.resumed |= bool(self.token_ids)
        self.text.close_thoughts()
        left = self.max_tokens - len(self.token_ids)
        # They are not drawn, so they are certain.
        events = [self._added(token, TokenLogprob(token, 0.0)) for token in self.closing[:left]]
        self.n_written = len(self.token_ids)
        self._read_again(self.n_written)
        return events

    def _read_again(self, n: int) -> None:
        """Begin anew with a prompt that n tokens of the reply belong to."""
        self.session, self.n_read, self.short, self.prefix = None, 0, False, None
        self.scored.clear()
        self.n_drawn = n
        self._feed_on(np.concatenate([self.prompt, np.array(self.token_ids[:n], np.int32)]))

    def _feed_on(self, feed: Tokens) -> None:
        self.feed, self.keys = feed, self.keys_of(feed)
        self.held.clear()
        self.hit, self.hit_looked, self.fetched, self.loading, self.read_s = None, -1, -1, False, 0.0

    def send(self, item: Event | Exception) -> None:
        """Deliver an event or an error; whatever comes after the last is dropped."""
        with self._lock:
            if self._ended:
                return
            self._ended = isinstance(item, Exception) or item.finish_reason is not None
        try:
            self.deliver(item)
        except Exception:  # the receiver is gone (an event loop that was closed); nobody reads the reply
            self.cancelled = True

    def drafted(self, proposed: int, accepted: int) -> None:
        """Take note of what became of the drafts of a round; it had one at least."""
        self.n_proposed += proposed
        self.kept += [0] * (accepted + 1 - len(self.kept))
        self.kept[accepted] += 1

    def take(self, drawn: Drawn, now_s: float) -> Event | None:
        """Add a token that was drawn to the reply.

        Returns:
            Its event; None where the token had been sent before the job was preempted.

        Raises:
            DeviceError: The logits are not numbers, or the token is not the one that was sent.
            GrammarDeadEnd: The grammar allows no token here.
            Exception: What is wrong with the reply's text.
        """
        token, at = drawn.token, self.n_drawn
        if token < 0:
            if why := self._dead_end():
                raise GrammarDeadEnd(
                    f"the grammar leads nowhere behind {at} tokens of the reply: {why}; simplify it"
                )
            raise DeviceError(
                "the model's logits are not numbers; the checkpoint's weights are damaged, fetch them again"
            )
        self.n_drawn += 1
        if at < len(self.token_ids):
            if token != self.token_ids[at]:
                raise DeviceError(
                    f"token {at} of the reply was {self.token_ids[at]}, and {token} when it was drawn again "
                    "after the reply had made room for others; the device does not compute the same twice"
                )
            return None
        self.protected = False
        self.times.token(now_s)
        logprob = TokenLogprob(token, drawn.logprob, tuple(drawn.top)) if self.logprobs else None
        event = self._added(token, logprob, ends=token in self.stop_ids)
        if not self.scores:
            return event
        self.scores = False
        return replace(event, prompt_logprobs=tuple(self.scored))

    def _dead_end(self) -> str:
        """Say why the grammar allows nothing behind the reply; "" where it does."""
        if self.grammar is None:
            return ""
        if self.matching is not None and self.matching.failure:
            return self.matching.failure
        again = Matching(self.grammar, thinking=self.thinks, written=self.token_ids)
        again.masks((), ())
        return again.failure

    def _added(self, token: int, logprob: TokenLogprob | None, *, ends: bool = False) -> Event:
        """Add a token to the reply; returns its event.

        Args:
            token: Its id.
            logprob: Of it; told where the request asks for such.
            ends: Whether it ends the reply.
        """
        self.token_ids.append(token)
        logprob = logprob if self.logprobs else None
        if ends:
            return self._last("stop", (token,), logprob, self.text.finish(cut=token in self.foreign_stops))
        pieces = self.text.push(token, logprob)
        if self.text.stopped:
            return self._last("stop", (token,), logprob, pieces)
        if len(self.token_ids) >= self.max_tokens:
            return self._last("length", (token,), logprob, pieces + self.text.finish(cut=True))
        if self.said is not None:
            self.said.add(pieces)
        return _event((token,), logprob, pieces)

    def cut(self) -> Event:
        """End the reply where it is, since it was cancelled."""
        return self._last("cancelled", (), None, self.text.finish(cut=True))

    def _last(
        self, reason: str, token_ids: tuple[int, ...], logprob: TokenLogprob | None, pieces: Pieces
    ) -> Event:
        if self.said is not None:
            self.said.add(pieces)
        return replace(
            _event(token_ids, logprob, pieces),
            finish_reason=reason,
            usage=Usage(len(self.prompt), len(self.token_ids), self.text.n_reasoning, self.n_cached),
            token_sha=token_sha(self.token_ids),
            drafts=Drafts(self.n_proposed, sum(n * i for i, n in enumerate(self.kept)), tuple(self.kept)),
            timings=self._timings(),
            stop=self.text.stop,
        )

    def _timings(self) -> Timings:
        times = self.times
        decode_ms, n = _ms(times.first, times.last), times.n_tokens
        return Timings(
            queued_ms=_ms(times.arrived, times.admitted),
            prompt_ms=_ms(times.admitted, times.first),
            first_token_ms=_ms(times.arrived, times.first),
            decode_ms=decode_ms,
            token_ms=decode_ms / (n - 1) if decode_ms is not None and n > 1 else None,
            largest_gap_ms=None if times.largest_gap is None else times.largest_gap * 1e3,
        )


def _event(token_ids: tuple[int, ...], logprob: TokenLogprob | None, pieces: Pieces) -> Event:
    return Event(
        token_ids,
        pieces.text,
        None if logprob is None else (logprob,),
        reasoning=pieces.reasoning,
        tool_calls=pieces.tool_calls,
        text_logprobs=pieces.text_logprobs,
        reasoning_logprobs=pieces.reasoning_logprobs,
    )


def _ms(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else (end - begin) * 1e3
