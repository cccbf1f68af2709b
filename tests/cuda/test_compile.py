"""The cuda flavour of every kernel compiles, where there is a compiler for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from metal.host.generate import HERE, ROOT, generate

NVCC = shutil.which("nvcc")
FILES = sorted(ROOT.glob("metal/*.metal"))


@pytest.mark.skipif(NVCC is None, reason="needs nvcc, of NVIDIA's CUDA toolkit")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nvcc_takes_the_kernels_without_a_warning(path: Path, tmp_path: Path) -> None:
    assert NVCC is not None
    source = tmp_path / f"{path.stem}.cu"
    source.write_text(generate(path))
    # The front end alone: making machine code of all kernels takes ten minutes.
    command = [NVCC, "-std=c++20", "-arch=sm_90", "-fdevice-syntax-only", "-Werror", "all-warnings"]
    command += ["-isystem", str(HERE / "include"), "-c", str(source), "-o", str(tmp_path / "kernels.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
