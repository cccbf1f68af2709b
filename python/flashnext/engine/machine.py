"""How much memory and how many processors this machine, or this container, has."""

from __future__ import annotations

import os
from pathlib import Path

# Of the second and of the first version of Linux's control groups.
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def ram_bytes(group_limits: tuple[Path, ...] = _GROUP_LIMITS) -> int:
    """Find the memory of the machine, or the container's limit where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in group_limits:
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit():  # else "max"
            total = min(total, int(text))
    return total


def processors() -> int:
    """Count the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
