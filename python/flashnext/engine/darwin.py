"""What a Mac's C library tells of the process: its footprint in memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any


class ResourceUsage(ctypes.Structure):
    """`rusage_info_v0` of sys/resource.h."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("user_time", ctypes.c_uint64),
        ("system_time", ctypes.c_uint64),
        ("idle_wakeups", ctypes.c_uint64),
        ("interrupt_wakeups", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("wired_size", ctypes.c_uint64),
        ("resident_size", ctypes.c_uint64),
        ("phys_footprint", ctypes.c_uint64),
        ("start_abstime", ctypes.c_uint64),
        ("exit_abstime", ctypes.c_uint64),
    )


_VERSION = 0  # RUSAGE_INFO_V0


def footprint_bytes(usage_of: Callable[[int, int, Any], int] | None = None) -> int | None:
    """Read what Activity Monitor calls the memory of this process.

    Compressed memory counts, mapped files do not.

    Args:
        usage_of: `proc_pid_rusage`; the system's own unless given.

    Returns:
        Bytes; None where the system does not say.
    """
    try:
        usage_of = usage_of or ctypes.CDLL(None).proc_pid_rusage
    except (OSError, AttributeError):  # no Mac
        return None
    usage = ResourceUsage()
    if usage_of(os.getpid(), _VERSION, ctypes.byref(usage)) != 0:
        return None
    return int(usage.phys_footprint)
