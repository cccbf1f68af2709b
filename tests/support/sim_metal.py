"""The simulated Metal of a core built with FLASHNEXT_SIM_METAL: how its machine is, and what it saw."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flashnext import _core as core

METAL = "metal"
FOLDER = Path(core.__file__).parent / "metal"
"""Where such a build has the texts of its kernels, and the program of claims."""
CLAIMS = FOLDER / "sim_metal_claims"

_library = ctypes.CDLL(core.__file__)
has_simulated_metal = hasattr(_library, "sim_metal_order")
needs_simulated_metal = pytest.mark.skipif(
    not has_simulated_metal, reason="needs a build with FLASHNEXT_SIM_METAL=ON (docs/metal.md)"
)


def _text(function: str) -> list[str]:
    out = ctypes.create_string_buffer(1 << 16)
    getattr(_library, function)(out, ctypes.c_size_t(len(out)))
    return out.value.decode().splitlines()


def misuses() -> list[str]:
    """What was noted since the last call."""
    return _text("sim_metal_take_misuses")


def live() -> dict[str, int]:
    """Objects that are not freed, by class."""
    return {name: int(n) for name, n in (line.split() for line in _text("sim_metal_live"))}


def count(what: str) -> int:
    """How often something happened; tests/sim_metal/simulated.h lists what is counted."""
    return int(_library.sim_metal_count(what.encode()))


def fail(n: int, code: int, words: str) -> None:
    """Let the n-th command buffer from now on fail with a code of MTLCommandBufferError."""
    _library.sim_metal_fail(n, code, words.encode())


def press(level: int) -> None:
    """Tell of memory pressure: 1 normal, 2 warning, 4 critical."""
    _library.sim_metal_press(ctypes.c_ulong(level))


def run_in(order: str, seed: int = 1) -> None:
    """Let threads of kernels run in this order, as metal-host has it, on devices opened from now on."""
    _library.sim_metal_order(order.encode(), ctypes.c_uint64(seed))


def open_metal(order: str = "random", seed: int = 1) -> core.Device:
    """Open the device with an order of threads."""
    run_in(order, seed)
    return core.open_device(METAL)


@contextmanager
def sound() -> Iterator[None]:
    """Nothing is misused inside, whatever comes out of it."""
    misuses()
    yield
    assert misuses() == []


def claims() -> list[str]:
    """Names of the claims that the build's program has; none where it has no program."""
    if not CLAIMS.exists():
        return []
    done = subprocess.run([CLAIMS, "--list"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def run_claim(name: str, folder: Path) -> str:
    """Run one in a folder of its own; what it says where it fails, else nothing."""
    environment = {**os.environ, "FLASHNEXT_METAL_CACHE": ""}
    done = subprocess.run(
        [CLAIMS, folder, name], capture_output=True, text=True, timeout=300, env=environment
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
