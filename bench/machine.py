"""What this machine can do at best: read bandwidth and float32 matrix products.

    OPENBLAS_NUM_THREADS=2 python bench/machine.py --threads 2

Needs a C compiler with OpenMP.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from samples import Meter

READ = "read memory GB/s"
READ_CACHED = "read 256 MiB GB/s"
GEMM = "gemm f32 GFLOP/s"
PREFETCH_LINES = (0, 8, 16, 32, 64)
PACKAGES = ("flashnext", "llama-cpp-python", "numpy")
FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "i8mm",
)


def measure_limits(meter: Meter, threads: int, size_bytes: int = 2 << 30, repeats: int = 3) -> None:
    """Sample read bandwidth, with the best of some prefetch distances, and float32 matrix products.

    Args:
        meter: Takes the samples.
        threads: Threads of both; numpy's products use as many as OPENBLAS_NUM_THREADS said when numpy was
            imported.
        size_bytes: Memory to read; far more than the caches.
        repeats: Samples of each.
    """
    read = _bandwidth_kernel()
    for metric, size in ((READ, size_bytes), (READ_CACHED, 256 << 20)):
        data = _lines(size)
        passes = max(1, (4 << 30) // size)
        ahead = min(PREFETCH_LINES, key=lambda a: min(read(data, threads, a) for _ in range(2)))
        run = partial(_read_passes, read, data, threads, ahead, passes)
        for _ in range(repeats):
            meter.time(metric, passes * size / 1e9, run)
    n = 2048
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    out = a @ b
    for _ in range(repeats):
        meter.time(GEMM, 8 * 2 * n**3 / 1e9, lambda: [np.matmul(a, b, out=out) for _ in range(8)])


def describe() -> dict[str, Any]:
    """The machine and the measured packages, for a report's head."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return dict(
        cpu=fields.get("model name", platform.machine()),
        cores=os.cpu_count(),
        memory_gib=round(memory_kib / 2**20, 1),
        kernel=platform.release(),
        flags=[f for f in FLAGS if f in flags],
        versions={p: _version(p) for p in PACKAGES},
        load=os.getloadavg(),
    )


def _bandwidth_kernel() -> Callable[[npt.NDArray[np.uint64], int, int], float]:
    """Compile read_bandwidth.c; returns (data, threads, prefetched lines) -> seconds."""
    source = Path(__file__).with_name("read_bandwidth.c")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "read_bandwidth.so"
        flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, str(source), "-o", str(target)], check=True)
        library = ctypes.CDLL(str(target))
    function = library.read_seconds
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
    sink = ctypes.c_uint64()

    def read(data: npt.NDArray[np.uint64], threads: int, ahead: int) -> float:
        seconds: float = function(data.ctypes.data, data.nbytes // 64, threads, ahead, ctypes.byref(sink))
        return seconds

    return read


def _read_passes(
    read: Callable[[npt.NDArray[np.uint64], int, int], float],
    data: npt.NDArray[np.uint64],
    threads: int,
    ahead: int,
    passes: int,
) -> None:
    for _ in range(passes):
        read(data, threads, ahead)


def _lines(size_bytes: int) -> npt.NDArray[np.uint64]:
    """Written memory that begins at a cache line, which numpy does not promise."""
    data = np.ones(size_bytes // 8 + 8, np.uint64)
    start = -data.ctypes.data % 64 // 8
    return data[start : start + size_bytes // 8]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    meter = Meter(args.threads, patience_s=20)
    measure_limits(meter, args.threads, repeats=args.repeats)
    for metric, samples in meter.samples.items():
        for s in samples:
            print(f"{metric:20} {s.value:8.2f}  others {s.foreign:4.0%}  waited {s.waited:4.0%}")


if __name__ == "__main__":
    main()
