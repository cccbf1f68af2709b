"""How many files the process may have open, and so how many connections."""

from __future__ import annotations

import logging
import resource

ACCEPTED_AT_ONCE = 16
"""Connections that are taken before any of them is counted."""

REFUSED_AT_ONCE = 64
"""Connections beyond the limit that are kept open until their request is refused."""

OWN = 192
"""Files of everything else: checkpoint, log, event loop, connections just being taken or closed."""

_log = logging.getLogger("flashnext.server")


def connections_allowed(wanted: int) -> int:
    """Raise the soft limit of open files to what connections need, as far as the hard limit lets it.

    Args:
        wanted: Connections that may be open.

    Returns:
        As many, or fewer where the limit is too low; that is told in a warning.
    """
    needed = wanted + REFUSED_AT_ONCE + OWN
    limit = _raised(needed)
    if limit >= needed:
        return wanted
    allowed = max(1, min(wanted, max(limit - REFUSED_AT_ONCE - OWN, limit // 2)))
    _log.warning(
        "--max-connections %d needs %d open files and the limit is %d, so %d connections are served; "
        "raise the limit (ulimit -Hn)",
        *(wanted, needed, limit, allowed),
    )
    return allowed


def _raised(needed: int) -> int:
    """Raise the soft limit; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _reaches(soft, needed):
        return needed
    target = needed if _reaches(hard, needed) else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):  # macOS has a lower limit beside the hard one
        return soft
    return target


def _reaches(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
