"""The pool: how much runs at a time, order, cancelling."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from flashnext.media import ImagePart, Limits, MediaError, Part, PoolClosed, Preprocessor, Rules, pool
from flashnext.media.errors import Unwanted
from flashnext.media.preparing import prepare
from PIL import Image
from support.media_files import encoded

PICTURES = [ImagePart(encoded(Image.new("RGB", (32 * n, 32)), "PNG")) for n in range(1, 9)]
BROKEN = ImagePart(b"broken")
WAIT_S = 60.0


class Gate:
    """Stands before `prepare`: counts who is in, and holds them until it opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.inside = self.most = self.calls = 0
        self.threads: set[str] = set()
        self._lock = threading.Lock()
        monkeypatch.setattr(pool, "prepare", self)

    def __call__(self, part: Part, *more: Any) -> Any:
        with self._lock:
            self.inside += 1
            self.calls += 1
            self.most = max(self.most, self.inside)
            self.threads.add(threading.current_thread().name)
        self.entered.release()
        assert self.open.wait(WAIT_S)
        try:
            return prepare(part, *more)
        finally:
            with self._lock:
                self.inside -= 1


def test_parts_come_in_their_order_both_ways() -> None:
    rules, limits = Rules(), Limits()
    expected = [prepare(part, rules, limits).key for part in PICTURES]
    made = Preprocessor(rules, limits)
    assert [media.key for media in made.prepare(PICTURES)] == expected
    assert [media.key for media in asyncio.run(made.prepare_async(PICTURES))] == expected
    assert made.prepare([]) == [] and asyncio.run(made.prepare_async([])) == []
    made.close()


def test_no_more_run_at_a_time_than_there_are_threads_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    made = Preprocessor(Rules(), Limits(), workers=2)
    askers = [threading.Thread(target=made.prepare, args=(PICTURES,)) for _ in range(3)]
    for asker in askers:
        asker.start()
    for _ in range(2):
        assert gate.entered.acquire(timeout=WAIT_S)
    assert not gate.entered.acquire(timeout=0.2)
    gate.open.set()
    for asker in askers:
        asker.join(WAIT_S)
    assert gate.calls == 24 and gate.most == 2
    assert all(name.startswith("flashnext-media") for name in gate.threads)
    made.close()


def test_counts_are_looked_at_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    made = Preprocessor(Rules(), Limits(max_images=7))
    with pytest.raises(MediaError, match="media part 7: the request has 8 images"):
        made.prepare(PICTURES)
    with pytest.raises(MediaError, match="media part 7: the request has 8 images"):
        asyncio.run(made.prepare_async(PICTURES))
    assert gate.calls == 0
    made.close()


def test_the_first_part_that_is_wrong_is_told_both_ways() -> None:
    made = Preprocessor(Rules(), Limits())
    for _ in range(5):
        with pytest.raises(MediaError, match=r"^media part 1: the image is none of"):
            made.prepare([PICTURES[0], BROKEN, BROKEN, PICTURES[1]])
        with pytest.raises(MediaError, match=r"^media part 1: the image is none of"):
            asyncio.run(made.prepare_async([PICTURES[0], BROKEN, BROKEN, PICTURES[1]]))
    made.close()


def test_a_cancelled_task_drops_what_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    made = Preprocessor(Rules(), Limits(), workers=1)

    async def begin_and_cancel() -> None:
        task = asyncio.create_task(made.prepare_async([*PICTURES, BROKEN]))
        assert await asyncio.to_thread(gate.entered.acquire, True, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(begin_and_cancel())
    gate.open.set()
    assert len(made.prepare(PICTURES[:2])) == 2  # behind what was running
    assert gate.calls == 3
    made.close()


def test_a_cancelled_task_has_what_is_being_decoded_told_that_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, left = threading.Event(), threading.Event()

    def endless(part: Part, rules: Rules, limits: Limits, wanted: Callable[[], bool]) -> Any:
        begun.set()
        while wanted():
            time.sleep(0.001)
        left.set()
        raise Unwanted

    monkeypatch.setattr(pool, "prepare", endless)
    made = Preprocessor(Rules(), Limits(), workers=1)

    async def begin_and_cancel() -> None:
        task = asyncio.create_task(made.prepare_async(PICTURES[:1]))
        assert await asyncio.to_thread(begun.wait, WAIT_S) and not left.is_set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(left.wait, WAIT_S)

    asyncio.run(begin_and_cancel())
    monkeypatch.undo()
    assert len(made.prepare(PICTURES[:1])) == 1  # by the same thread
    made.close()


def test_the_event_loop_goes_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    made = Preprocessor(Rules(), Limits())

    async def both() -> int:
        task = asyncio.create_task(made.prepare_async(PICTURES[:1]))
        await asyncio.sleep(0)
        gate.open.set()  # which only this loop does
        return len(await task)

    assert asyncio.run(both()) == 1
    made.close()


def test_what_has_been_prepared_is_taken_as_it_is_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Preprocessor(Rules(), Limits(max_images=3))
    (first,) = made.prepare(PICTURES[:1])
    gate = Gate(monkeypatch)
    gate.open.set()
    again = made.prepare([PICTURES[1], first, PICTURES[2]])
    assert again[1] is first and gate.calls == 2
    with pytest.raises(MediaError, match="the request has 4 images; at most 3 are allowed"):
        made.prepare([first] * 4)
    made.close()


def test_closing_ends_those_who_wait_for_what_was_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    made = Preprocessor(Rules(), Limits(), workers=1)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            made.prepare(PICTURES[:2])
        except PoolClosed as error:
            raised.append(error)

    async def wait_async() -> None:
        with pytest.raises(PoolClosed):
            await made.prepare_async(PICTURES[:2])

    async def both() -> None:
        task = asyncio.create_task(wait_async())
        await asyncio.sleep(0)
        made.close()
        await task

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert gate.entered.acquire(timeout=WAIT_S)
    asyncio.run(both())
    gate.open.set()
    waiting.join(WAIT_S)
    assert len(raised) == 1 and gate.calls == 1
    with pytest.raises(PoolClosed):
        made.prepare(PICTURES[:1])


def test_a_process_ends_while_media_are_being_decoded() -> None:
    code = """
import threading
from flashnext.media import ImagePart, Limits, Preprocessor, Rules, pool
entered = threading.Event()
def forever(*_):
    entered.set()
    threading.Event().wait()
pool.prepare = forever
made = Preprocessor(Rules(), Limits())
threading.Thread(target=made.prepare, args=([ImagePart(b"")] * 3,), daemon=True).start()
entered.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=WAIT_S, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
