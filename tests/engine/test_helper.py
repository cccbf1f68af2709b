"""The thread that does what must not hold up the engine's."""

from __future__ import annotations

import queue
import threading

from flashnext.engine.helper import Helper


def test_a_helper_tells_when_it_has_nothing_to_do() -> None:
    told: queue.Queue[int] = queue.Queue()
    helper = Helper("test", dry=lambda: told.put(helper.n_waiting))
    begun, goes = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        goes.wait(10)

    helper.call(slow)
    assert begun.wait(10)
    helper.call(lambda: 1 // 0)
    helper.call(lambda: None)
    assert told.empty()
    goes.set()
    assert told.get(timeout=10) == 0
    helper.call(lambda: None)
    assert told.get(timeout=10) == 0
    assert helper.close(10) and told.empty()
