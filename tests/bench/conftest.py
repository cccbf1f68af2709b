"""The benchmark scripts import one another as plain modules, as they do when one of them is run."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
