"""What a server counts of its requests and replies; `exposition.py` writes it for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flashnext.engine.errors import EngineClosed
from flashnext.engine.events import Event, Timings
from flashnext.engine.request import AsyncRequest
from flashnext.engine.tally import GAPS_S, Spread
from flashnext.server.answering import Running
from flashnext.server.errors import RequestTimeout

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of times that requests take."""

TOKENS = tuple(float(2**i) for i in range(19))
"""Upper bounds of lengths, from 1 to 262,144 tokens."""

# Refusals that have no code of their own, by status.
_REASONS = {400: "invalid_field", 404: "no_such_route", 405: "wrong_method"}


class Metrics:
    """Counts of one server; used by its event loop.

    Attributes:
        requests: By route and status.
        refusals: Requests that failed, by the reason.
        replies: By how they ended: "stop", "length", "cancelled" or "failed".
        cancellations: Replies that were ended early, by who did: "client", "timeout" or "shutdown".
        tool_calls: Calls in replies.
        times: Of replies that came to their end, by what of their time it is; in seconds.
        lengths: Of the same, "prompt" and "reply"; in tokens.
    """

    def __init__(self) -> None:
        """Start at nothing."""
        self.requests = Counter[tuple[str, str]]()
        self.refusals = Counter[str]()
        self.replies = Counter[str]({"stop": 0, "length": 0, "cancelled": 0, "failed": 0})
        self.cancellations = Counter[str]({"client": 0, "timeout": 0, "shutdown": 0})
        self.tool_calls = 0
        self.times = {
            name: Spread(SECONDS) for name in ("queue", "prompt", "first_token", "decode", "reply")
        } | {name: Spread(GAPS_S) for name in ("token", "largest_gap")}
        self.lengths = {name: Spread(TOKENS) for name in ("prompt", "reply")}

    def request(self, route: str, status: int, detail: Mapping[str, Any]) -> None:
        """Count a request.

        Args:
            route: The path of its route; "other" where there is none.
            status: Of the response; 499 where nobody was there to read it.
            detail: What the log's line tells beside that; its `code` names what went wrong.
        """
        self.requests[route, str(status)] += 1
        reason = detail.get("code")
        if reason is None and status >= 400 and status != 499:
            reason = _REASONS.get(status, "other")
        if reason is not None:
            self.refusals[reason] += 1

    def ended(self, running: Running) -> None:
        """Count replies to one request, that have ended whoever brought it about."""
        for request in running.requests:
            last = request.last
            if last is None or last.finish_reason in (None, "cancelled"):
                self._cut(running)
            else:
                self._whole(request, last)

    def _cut(self, running: Running) -> None:
        cause = "client" if running.left else None
        if isinstance(running.error, RequestTimeout):
            cause = "timeout"
        elif isinstance(running.error, EngineClosed):
            cause = "shutdown"
        self.replies["cancelled" if cause else "failed"] += 1
        if cause:
            self.cancellations[cause] += 1

    def _whole(self, request: AsyncRequest, last: Event) -> None:
        self.replies[last.finish_reason or "failed"] += 1
        self.tool_calls += request.n_calls
        if last.usage is not None:
            self.lengths["prompt"].add(last.usage.prompt_tokens)
            self.lengths["reply"].add(last.usage.completion_tokens)
        timings = last.timings or Timings()
        reply_ms = None
        if timings.first_token_ms is not None:
            reply_ms = timings.first_token_ms + (timings.decode_ms or 0.0)
        for name, ms in (
            ("queue", timings.queued_ms),
            ("prompt", timings.prompt_ms),
            ("first_token", timings.first_token_ms),
            ("decode", timings.decode_ms),
            ("reply", reply_ms),
            ("token", timings.token_ms),
            ("largest_gap", timings.largest_gap_ms),
        ):
            if ms is not None:
                self.times[name].add(ms / 1e3)
