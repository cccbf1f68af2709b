"""Checkpoints and references that several tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import CONTEXT
from support.setups import Oracle, Setup


@pytest.fixture(scope="session")
def oracle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Setup], Oracle]:
    """The checkpoint and float64 reference of a setup, made once."""
    made: dict[str, Oracle] = {}

    def oracle_of(setup: Setup) -> Oracle:
        if str(setup) not in made:
            folder = tmp_path_factory.mktemp("setup") / "checkpoint"
            made[str(setup)] = Oracle(setup, setup.write(folder), CONTEXT)
        return made[str(setup)]

    return oracle_of
