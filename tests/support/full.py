"""What takes minutes and runs only where FLASHNEXT_FULL is set, as `.ci/full` sets it."""

from __future__ import annotations

import os

import pytest

full = pytest.mark.skipif(
    not os.environ.get("FLASHNEXT_FULL"), reason="takes minutes; runs with FLASHNEXT_FULL=1, as in .ci/full"
)
