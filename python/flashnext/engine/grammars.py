"""The grammars of an engine: compiled beside its threads, kept, and found again by the core's number."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from flashnext.engine.errors import EngineClosed, GrammarsBusy
from flashnext.engine.helper import Helper
from flashnext.grammar import Compiled, Compiler, Grammar, GrammarError, Matching, Vocabulary, no_masks
from flashnext.grammar.matching import Masks
from flashnext.text.messages import InvalidField
from flashnext.text.tokenizer import Tokenizer

MOST_KEPT = 64
"""Compiled grammars that are kept for requests to come."""
MOST_KEPT_CHARS = 1 << 20
"""Characters of them in all: what a grammar takes grows with its text."""
MOST_WAITING = 256
"""Grammars that may wait for their turn to be compiled."""
COMPILE_TIMEOUT_S = 60.0
"""A backstop: what takes long is refused by its size."""


@dataclass(eq=False)
class _Compilation:
    done: Future[Compiled | str] = field(default_factory=Future)  # text: what is wrong with it
    n_asking: int = 0  # requests that wait for it


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
        self._kept: OrderedDict[Grammar, _Compilation] = OrderedDict()  # those that wait among them
        self._waiting: OrderedDict[Grammar, _Compilation] = OrderedDict()
        self._helper = Helper("flashnext-grammar")
        self._compiler: Compiler | None = None
        self._closed = False

    def compile(self, grammar: Grammar) -> Compiled:
        """Compile a grammar, or find it.

        Raises:
            InvalidField: It cannot be enforced, by the name of where it stood.
            GrammarsBusy: Too many others have their turn before it.
            EngineClosed: The engine is closed.
        """
        with self._asking(grammar) as one:
            return _checked(one.done.result(COMPILE_TIMEOUT_S), grammar)

    async def compile_async(self, grammar: Grammar) -> Compiled:
        """Do the same without holding up the event loop."""
        with self._asking(grammar) as one:
            if one.done.done():
                return _checked(one.done.result(), grammar)
            async with asyncio.timeout(COMPILE_TIMEOUT_S):
                # Shielded: others may wait for the same one.
                return _checked(await asyncio.shield(asyncio.wrap_future(one.done)), grammar)

    def close(self) -> None:
        """Compile nothing any more; who waits gets EngineClosed."""
        with self._lock:
            self._closed = True
            waiting = {*self._kept.values(), *self._waiting.values()}
            self._kept.clear()
            self._waiting.clear()
        self._helper.close()
        for one in waiting:
            _fail(one.done, EngineClosed("the engine was closed before the grammar was compiled"))

    @contextmanager
    def _asking(self, grammar: Grammar) -> Iterator[_Compilation]:
        """Have a grammar compiled, unless all who ask for it leave before its turn."""
        one = self._begin(grammar)
        try:
            yield one
        except TimeoutError:
            if self._waiting.get(grammar) is one:
                raise _busy(f"its turn has not come in {COMPILE_TIMEOUT_S:.0f} s") from None
            problem = f"compiling it takes longer than {COMPILE_TIMEOUT_S:.0f} s; give a smaller one"
            raise InvalidField(grammar.field, problem) from None
        finally:
            with self._lock:
                one.n_asking -= 1
                if not one.n_asking and self._waiting.get(grammar) is one:
                    del self._waiting[grammar]
                    self._kept.pop(grammar, None)

    def _begin(self, grammar: Grammar) -> _Compilation:
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine is closed; open another one")
            one = self._kept.get(grammar) or self._waiting.get(grammar)
            if one is None:
                if len(self._waiting) >= MOST_WAITING:
                    raise _busy(f"{MOST_WAITING} others have their turn before it")
                self._helper.call(self._compile_next)  # which waits for the lock
                one = self._waiting[grammar] = _Compilation()
            self._kept[grammar] = one
            self._kept.move_to_end(grammar)
            one.n_asking += 1
            while len(self._kept) > MOST_KEPT or sum(map(_size, self._kept)) > MOST_KEPT_CHARS:
                self._kept.popitem(last=False)
            return one

    def _compile_next(self) -> None:
        with self._lock:
            if not self._waiting:  # all who asked for it have left
                return
            grammar, one = self._waiting.popitem(last=False)
        found: Compiled | str
        try:
            found = self._compile(grammar)
        except GrammarError as error:
            found = str(error)
        except BaseException as error:  # whatever it is, nobody may be left waiting
            with self._lock:  # want of memory, say: not the grammar's for good
                self._kept.pop(grammar, None)
            _fail(one.done, error)
            return
        with suppress(InvalidStateError):  # the engine was closed meanwhile
            one.done.set_result(found)

    def _compile(self, grammar: Grammar) -> Compiled:
        if self._compiler is None:
            tokens = [self._tokenizer.token_bytes(i) for i in range(self._tokenizer.n_tokens)]
            vocabulary = Vocabulary(
                tokens, self._tokenizer.control_ids, self._end_ids, self._tokenizer.encode
            )
            self._compiler = Compiler(vocabulary)
        return self._compiler.compile(grammar)


def _size(grammar: Grammar) -> int:
    return len(grammar.source)


def _checked(found: Compiled | str, grammar: Grammar) -> Compiled:
    """Take a grammar that was compiled, and refuse one that cannot be by where this request has it."""
    if isinstance(found, str):
        raise InvalidField(grammar.field, found)
    return found


def _busy(why: str) -> GrammarsBusy:
    return GrammarsBusy(f"the grammar waits to be compiled, and {why}; try again later")


def _fail(done: Future[Compiled | str], error: BaseException) -> None:
    with suppress(InvalidStateError):  # it is done already
        done.set_exception(error)


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
