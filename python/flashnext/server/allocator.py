"""Has the C library give the memory of large pictures and bodies back to the system."""

from __future__ import annotations

import ctypes
import os
import sys

LARGE_BYTES = 2**18
"""Blocks from this size on are mapped one by one, and unmapped when they are freed."""

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def give_large_blocks_back() -> None:
    """Map large blocks one by one, for all of this process, where it runs on glibc.

    By itself glibc takes blocks of up to 32 MiB from the heaps of its threads once one of that size has been
    freed, and those keep what they have: after large pictures, some hundred MiB for good. The environment's
    `MALLOC_MMAP_THRESHOLD_` has its way.
    """
    if sys.platform == "linux" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # which other C libraries have not
        if set_option is not None:
            set_option(_M_MMAP_THRESHOLD, LARGE_BYTES)
