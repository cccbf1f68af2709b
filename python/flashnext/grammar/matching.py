"""Where one reply stands in its grammar, and which tokens may come next."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from flashnext.grammar.compiler import Compiled, Vocabulary

Masks = npt.NDArray[np.uint32]

MOST_LINE_BREAKS = 2
"""Between a block of thoughts and the answer; the template writes as many."""

_numbers = itertools.count(1)


class _Phase(Enum):
    THINKING = "inside a block of thoughts: anything but its end and the reply's"
    LEAD = "line breaks behind it"
    BODY = "the answer"


class Matching:
    """One reply's way through its grammar. Used by one thread at a time.

    Attributes:
        number: By which the core asks for its masks.
        failure: Why nothing can come next; "" while something can.
    """

    def __init__(self, compiled: Compiled, *, thinking: bool, written: Sequence[int] = ()) -> None:
        """Begin a reply.

        Args:
            compiled: Its grammar.
            thinking: Whether it begins inside a block of thoughts; the grammar counts from behind it.
            written: Tokens that it has already.
        """
        self.number = next(_numbers)
        self.failure = ""
        self._compiled = compiled
        self._matcher = compiled.matcher.deep_copy()
        self._taken: list[int] = []  # tokens of the answer
        self._phase = _Phase.THINKING if thinking else _Phase.BODY
        self._n_breaks = 0
        self._breaks = _line_breaks(compiled.vocabulary)
        self._close = compiled.vocabulary.control_ids.get("</think>", -1)
        for token in written:
            self._step(token)

    def masks(self, drawn: Sequence[int], drafts: Sequence[int]) -> Masks:
        """Go on by what was drawn, and say what may come behind it and behind each draft.

        Args:
            drawn: Tokens since the last call.
            drafts: What stands behind them and may be dropped.

        Returns:
            (1 + drafts, words): bit i % 32 of word i / 32 allows id i. Behind a draft that is not allowed
            nothing is.
        """
        for token in drawn:
            self._step(token)
        row = self._row()
        if not self.failure and row.count(0) == len(row):
            self.failure = self._matcher.get_error() or "no token of the vocabulary can come next"
        rows = [row]
        phase, n_breaks, n_taken = self._phase, self._n_breaks, len(self._taken)
        for token in drafts:
            if not row[token >> 3] >> (token & 7) & 1 or token in self._compiled.vocabulary.end_ids:
                break
            self._step(token)
            row = self._row()
            rows.append(row)
        self._back_to(phase, n_breaks, n_taken)
        rows += [bytes(len(row))] * (1 + len(drafts) - len(rows))
        return np.frombuffer(b"".join(rows), "<u4").reshape(len(rows), -1)

    def _step(self, token: int) -> None:
        if self._phase is _Phase.THINKING:
            if token == self._close:
                self._phase = _Phase.LEAD
            return
        if self._phase is _Phase.LEAD:
            n = self._breaks.get(token, MOST_LINE_BREAKS + 1)
            if self._n_breaks + n <= MOST_LINE_BREAKS:
                self._n_breaks += n
                return
            self._phase = _Phase.BODY
        self._matcher.consume_token(token)
        self._taken.append(token)

    def _row(self) -> bytes:
        """Set the bits of what may come next; none where the matcher has failed."""
        vocabulary = self._compiled.vocabulary
        if self._phase is _Phase.THINKING:
            return vocabulary.all_but_ends
        row = self._matcher.compute_bitmask()[: 4 * vocabulary.n_words]
        if self._matcher.is_error():
            return bytes(len(row))
        if self._phase is not _Phase.LEAD:
            return row
        more = bytearray(row)
        for token, n in self._breaks.items():
            if self._n_breaks + n <= MOST_LINE_BREAKS:
                more[token >> 3] |= 1 << (token & 7)
        return bytes(more)

    def _back_to(self, phase: _Phase, n_breaks: int, n_taken: int) -> None:
        """Forget the drafts."""
        n = len(self._taken) - n_taken
        self._phase, self._n_breaks = phase, n_breaks
        del self._taken[n_taken:]
        if self.failure or n == 0:
            return
        if self._matcher.is_error() or not self._matcher.rollback(n):  # it never leaves that state
            self._matcher = self._compiled.matcher.deep_copy()
            self._matcher.consume_tokens(self._taken)


def _line_breaks(vocabulary: Vocabulary) -> dict[int, int]:
    """Find the tokens that are nothing but line breaks, and how many."""
    found: dict[int, int] = {}
    for n in range(1, MOST_LINE_BREAKS + 1):
        for token in vocabulary.encode("\n" * n):
            text = vocabulary.tokens[token]
            if text and not text.strip(b"\n") and len(text) <= MOST_LINE_BREAKS:
                found[token] = len(text)
    return found


def no_masks(n_words: int, n_rows: int) -> Masks:
    """Allow nothing."""
    return np.zeros((n_rows, n_words), np.uint32)
