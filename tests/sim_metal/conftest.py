from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_cache() -> None:
    """Compiled pipelines of tests are kept nowhere."""
    pytest.MonkeyPatch().setenv("FLASHNEXT_METAL_CACHE", "")
