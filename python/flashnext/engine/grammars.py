"""The grammars of an engine: compiled beside its threads, kept, and found again by the core's number."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from weakref import WeakValueDictionary

from flashnext.grammar import Compiled, Compiler, Grammar, GrammarError, Matching, Vocabulary, no_masks
from flashnext.grammar.matching import Masks
from flashnext.text.messages import InvalidField
from flashnext.text.tokenizer import Tokenizer

MOST_KEPT = 64
"""Compiled grammars that are kept for requests to come."""
MOST_WAITING = 256
"""Grammars that may wait for their turn to be compiled."""
COMPILE_TIMEOUT_S = 60.0
"""A backstop: what takes long is refused by its size."""


class Grammars:
    """Compiles and keeps grammars. Its methods may be called from any thread."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        """Prepare for a checkpoint; its vocabulary is read when the first grammar comes.

        Args:
            tokenizer: Of the checkpoint.
            end_ids: Ids by which its model ends a turn.
        """
        self._tokenizer, self._end_ids = tokenizer, sorted(end_ids)
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Future[Compiled]] = OrderedDict()
        self._pool = ThreadPoolExecutor(1, "flashnext-grammar")
        self._compiler: Compiler | None = None
        self._n_waiting = 0

    def compile(self, grammar: Grammar) -> Compiled:
        """Compile a grammar, or find it.

        Raises:
            InvalidField: It cannot be enforced, by the name of where it stood.
        """
        try:
            return self._begun(grammar).result(COMPILE_TIMEOUT_S)
        except FutureTimeout:
            raise self._too_long(grammar) from None
        except GrammarError as error:
            raise InvalidField(grammar.field, str(error)) from None

    async def compile_async(self, grammar: Grammar) -> Compiled:
        """Do the same without holding up the event loop."""
        begun = self._begun(grammar)
        if begun.done():
            return self.compile(grammar)
        waiting = asyncio.wrap_future(begun)
        try:
            # Shielded: others may wait for the same one.
            return await asyncio.wait_for(asyncio.shield(waiting), COMPILE_TIMEOUT_S)
        except TimeoutError:
            raise self._too_long(grammar) from None
        except GrammarError as error:
            raise InvalidField(grammar.field, str(error)) from None

    def close(self) -> None:
        """Compile nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begun(self, grammar: Grammar) -> Future[Compiled]:
        with self._lock:
            found = self._kept.get(grammar)
            if found is None or found.cancelled():
                if self._n_waiting >= MOST_WAITING:
                    raise InvalidField(grammar.field, "too many grammars are being compiled; try again later")
                self._n_waiting += 1
                found = self._kept[grammar] = self._pool.submit(self._compile, grammar)
                while len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(grammar)
            return found

    def _compile(self, grammar: Grammar) -> Compiled:
        try:
            if self._compiler is None:
                tokens = [self._tokenizer.token_bytes(i) for i in range(self._tokenizer.n_tokens)]
                vocabulary = Vocabulary(
                    tokens, self._tokenizer.control_ids, self._end_ids, self._tokenizer.encode
                )
                self._compiler = Compiler(vocabulary)
            return self._compiler.compile(grammar)
        finally:
            with self._lock:
                self._n_waiting -= 1

    @staticmethod
    def _too_long(grammar: Grammar) -> InvalidField:
        return InvalidField(grammar.field, f"compiling it takes longer than {COMPILE_TIMEOUT_S:.0f} s")


class MaskSource:
    """Answers the core's questions for masks: of replies that are still there, by their numbers."""

    def __init__(self, n_tokens: int) -> None:
        """Answer for a vocabulary of so many ids."""
        self._n_words = -(-n_tokens // 32)
        self._replies: WeakValueDictionary[int, Matching] = WeakValueDictionary()

    def add(self, matching: Matching) -> int:
        """Take a reply; returns its number. It is known as long as others hold it."""
        self._replies[matching.number] = matching
        return matching.number

    def __call__(self, number: int, drawn: Sequence[int], drafts: Sequence[int]) -> Masks:
        """Say what may come next; nothing for a reply that is gone. From whichever thread runs passes."""
        matching = self._replies.get(number)
        if matching is None:
            return no_masks(self._n_words, 1 + len(drafts))
        try:
            return matching.masks(drawn, drafts)
        except Exception as error:  # it ends this reply, which tells why
            matching.failure = matching.failure or f"{type(error).__name__}: {error}"
            return no_masks(self._n_words, 1 + len(drafts))
