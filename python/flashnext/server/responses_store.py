"""Responses that are kept in memory, for others to go on from and to be told again."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass

from flashnext.server.errors import ResponseNotFound

_log = logging.getLogger("flashnext.server")


@dataclass(frozen=True)
class Kept:
    """A response with the chat that it ends, all of it JSON in UTF-8, so that what it takes is its length.

    Attributes:
        response: As it was told.
        items: What its own request had as input, a list of items.
        chat: The whole chat behind it, its own output last: one list of items after another. It is without
            instructions, which are each request's own.
    """

    response: bytes
    items: bytes
    chat: tuple[bytes, ...]

    @property
    def n_bytes(self) -> int:
        """What all of it takes. Lists that several responses share count in each."""
        return len(self.response) + len(self.items) + sum(map(len, self.chat))


class ResponseStore:
    """Keeps responses by their id; the one that was used longest ago goes first. Used by any thread.

    Attributes:
        n_bytes: What those that are kept take.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        """Start with none, and keep so many and so much at most."""
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._lock = threading.Lock()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, response_id: str, kept: Kept) -> None:
        """Keep a response; of one that is larger than all may be together the log has a warning instead."""
        if self._most == 0:
            return
        if kept.n_bytes > self._most_bytes:
            _log.warning(
                "%s takes %d bytes with its chat and is not kept; --max-responses-size leaves %d to all",
                *(response_id, kept.n_bytes, self._most_bytes),
            )
            return
        with self._lock:
            self._kept[response_id] = kept
            self.n_bytes += kept.n_bytes
            while len(self._kept) > self._most or self.n_bytes > self._most_bytes:
                _, gone = self._kept.popitem(last=False)
                self.n_bytes -= gone.n_bytes

    def get(self, response_id: str) -> Kept | None:
        """Find a response, which counts as used then."""
        with self._lock:
            if response_id in self._kept:
                self._kept.move_to_end(response_id)
            return self._kept.get(response_id)

    def require(self, response_id: str) -> Kept:
        """Find a response that a request asks for.

        Raises:
            ResponseNotFound: It is not kept.
        """
        kept = self.get(response_id)
        if kept is None:
            raise _not_found(response_id)
        return kept

    def delete(self, response_id: str) -> None:
        """Forget a response.

        Raises:
            ResponseNotFound: It is not kept.
        """
        with self._lock:
            kept = self._kept.pop(response_id, None)
            self.n_bytes -= kept.n_bytes if kept else 0
        if kept is None:
            raise _not_found(response_id)


def _not_found(response_id: str) -> ResponseNotFound:
    return ResponseNotFound("response_id", NOT_KEPT.format(response_id[:100]))


NOT_KEPT = (
    "{!r} is not kept here: it may be too old, was sent with store: false, or belongs to a server that has "
    "ended; send the whole input"
)
"""Why a response is not found."""
