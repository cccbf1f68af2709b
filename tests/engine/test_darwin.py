"""What is asked of a Mac's C library, by a library of our own: no Mac has run it."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import pytest
from flashnext.engine import darwin
from flashnext.engine.guard import private_bytes


def test_the_footprint_is_the_one_of_this_process() -> None:
    def usage(process: int, version: int, out: Any) -> int:
        assert (process, version) == (os.getpid(), 0)
        # As the system writes it: 16 bytes of a UUID, then numbers, the footprint behind seven of them.
        ctypes.memset(out, 0xFF, 16 + 8 * 10)
        (ctypes.c_uint64 * 12).from_address(ctypes.addressof(out._obj))[9] = 123_456_789
        return 0

    assert ctypes.sizeof(darwin.ResourceUsage) == 96
    assert darwin.footprint_bytes(usage) == 123_456_789


def test_a_system_that_does_not_say_is_not_guessed_at() -> None:
    assert darwin.footprint_bytes(lambda *_: -1) is None


@pytest.mark.skipif(sys.platform == "darwin", reason="there it says")
def test_other_systems_have_no_such_thing() -> None:
    assert darwin.footprint_bytes() is None


def test_this_system_says_what_the_process_has() -> None:
    has = private_bytes()
    assert has is not None and has > 1_000_000
