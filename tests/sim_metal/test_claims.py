"""The claims of tests/sim_metal/*_test.mm: what the simulated Metal refuses, and the Metal device over it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.sim_metal import CLAIMS, claims, needs_simulated_metal, run_claim

FILES = sorted(Path(__file__).parent.glob("*_test.mm"))


@needs_simulated_metal
def test_the_program_has_every_claim() -> None:
    assert CLAIMS.exists(), "the build has no sim_metal_claims beside the core"
    written = [name for path in FILES for name in re.findall(r"^CLAIM\((\w+)\)", path.read_text(), re.M)]
    assert len(written) > 50
    assert sorted(claims()) == sorted(written)


@pytest.mark.parametrize("claim", claims())
def test_claim(claim: str, tmp_path: Path) -> None:
    assert run_claim(claim, tmp_path) == ""
