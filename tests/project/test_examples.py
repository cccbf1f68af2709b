"""The Python of the README, of docs/python.md, docs/batch.md and docs/media.md runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"```python\n(.*?)```", re.S)
EXAMPLES = [
    pytest.param(code, id=f"{page} {i}")
    for page in ("README.md", "docs/python.md", "docs/batch.md", "docs/media.md")
    for i, code in enumerate(CODE.findall((ROOT / page).read_text(encoding="utf-8")))
    if "openai" not in code and "ray" not in code  # tests/server and tests/batch have those
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_prints_something_and_warns_of_nothing(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
