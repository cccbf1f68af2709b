"""A kernel that fails on the GPU: the wait says so, and so does all that comes behind it.

Such a failure takes the GPU from the process, so it happens in one of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.engine import WHY_NO_CUDA

PROGRAM = """
import sys
import numpy as np
from flashnext import _core as core
device = core.open_device("cuda", path=sys.argv[1])
slots = [np.array([1, 1, 0, 0], np.int32).view(np.uint8), np.array([1 << 30], np.int32).view(np.uint8)]
slots += [np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)]
params = np.array([1024, 0], np.uint32).tobytes()
for _ in range(2):  # row 2^30 lies far outside of everything
    try:
        core.testing.run_kernel(device, "copy_rows_f32", (1, 1, 1), slots, params)
    except RuntimeError as e:
        print(e)
"""


@pytest.mark.skipif(bool(WHY_NO_CUDA), reason=WHY_NO_CUDA)
@pytest.mark.parametrize(
    ("path", "named"), [("", "cuda: a kernel failed: "), ("one by one", "copy_rows_f32: ")]
)
def test_a_bad_access_is_thrown_by_every_wait_from_then_on(path: str, named: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, timeout=120)
    first, second = done.stdout.splitlines()
    assert first.startswith(named) and "an illegal memory access" in first, done.stderr
    assert "an illegal memory access" in second
