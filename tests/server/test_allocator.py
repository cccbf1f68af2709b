"""Memory of large blocks goes back to the system."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHILD = """
import sys
from flashnext.server.allocator import give_large_blocks_back

def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024

if sys.argv[1] == "give":
    give_large_blocks_back()
raise_threshold = bytearray(b"x") * (24 << 20)
del raise_threshold
before = resident()
blocks, behind = [], []
for _ in range(64):
    blocks.append(b"x" * (2 << 20))
    behind.append(b"y" * 4000)  # a small one that stays, above it in the heap
full = resident()
del blocks
print(full - before, resident() - before)
"""


def _grown(how: str) -> int:
    """Bytes that stay resident when 128 MiB have been freed."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, how], capture_output=True, text=True, env=environ, timeout=60
    )
    assert done.returncode == 0, done.stderr
    full, left = map(int, done.stdout.split())
    assert full > 100 * 2**20
    return left


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or "glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")),
    reason="glibc's own way",
)
def test_what_large_blocks_took_is_given_back() -> None:
    assert _grown("give") < 16 * 2**20
