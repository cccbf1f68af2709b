"""Check, build and run .metal files on this machine: what the tests of kernels and of the shim itself use.

device = Device(build([Path("metal/rows.metal")], folder))
x, out = device.put(array), device.empty(array.nbytes)
device.launch("copy_rows_f32", grid=(4, 1, 1), threads=(256, 1, 1), buffers=[..., x, out, params])
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metal.host.generate import HERE, ROOT, generate

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]

RUNTIME = ("runtime", "workers", "fiber", "memory", "c_api")
CHECKERS = ("clang++-19", "clang++-20", "clang++-18", "clang++")
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused", "-Wno-unused-parameter", "-Wno-unknown-pragmas")
_KERNEL_FLAGS = (
    "-std=c++17",
    "-O2",
    "-g1",
    "-gdwarf-4",
    "-ffp-contract=off",
    "-fPIC",
    "-fsanitize=thread",
    *_WARNINGS,
)
_RUNTIME_FLAGS = ("-std=c++20", "-O2", "-fPIC", *_WARNINGS)
_SCHEDULES = ("forward", "reverse", "random")


class KernelError(Exception):
    """What the runtime found; names kernel, file and line."""


def checker() -> str | None:
    """Find a clang that can check address spaces; None where there is none."""
    return next((c for c in CHECKERS if shutil.which(c)), None)


def check(path: Path, defines: Sequence[str] = ()) -> str:
    """Let clang read a file as Metal's C++14 with its address spaces; returns its errors, or nothing.

    Raises:
        MetalError: The text is refused before.
        FileNotFoundError: There is no clang.
    """
    clang = checker()
    if clang is None:
        raise FileNotFoundError(f"no clang: one of {', '.join(CHECKERS)} is needed")
    command = [
        clang,
        "-std=c++14",
        "-x",
        "c++",
        "-fsyntax-only",
        "-DMSL_CHECK",
        *_WARNINGS,
        "-ferror-limit=5",
    ]
    done = subprocess.run(
        [*command, "-isystem", str(HERE / "include"), "-"],
        input=generate(path, defines),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.stderr if done.returncode else ""


def build(kernels: Sequence[Path], folder: Path, runtime: Path | None = None, cxx: str | None = None) -> Path:
    """Compile kernels and the runtime into a library in `folder`; returns its path.

    Args:
        kernels: .metal files.
        folder: Made where it is missing.
        runtime: A folder that keeps the compiled runtime for further builds.
        cxx: The compiler.

    Raises:
        MetalError: The text is refused.
        KernelError: The compiler refuses it.
    """
    compiler = cxx or os.environ.get("CXX", "c++")
    runtime = runtime or folder
    for path in (folder, runtime):
        path.mkdir(parents=True, exist_ok=True)
    jobs, objects = [], []
    for path in kernels:
        source = folder / f"{path.stem}.cpp"
        source.write_text(generate(path))
        objects.append(folder / f"{path.stem}.o")
        jobs.append(
            [*_KERNEL_FLAGS, "-isystem", str(HERE / "include"), "-c", str(source), "-o", str(objects[-1])]
        )
    for name in RUNTIME:
        objects.append(runtime / f"{name}.o")
        if not objects[-1].exists():
            jobs.append(
                [*_RUNTIME_FLAGS, f"-I{ROOT}", "-c", str(HERE / f"{name}.cpp"), "-o", str(objects[-1])]
            )
    for job in jobs:
        _compile([compiler, *job])
    library = folder / "libkernels.so"
    _compile([compiler, "-shared", "-o", str(library), *map(str, objects), "-lpthread", "-ldl"])
    return library


def _compile(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise KernelError(done.stderr)


class Buffer:
    """Memory of a device: NaN until it is written, with guards around it."""

    def __init__(self, device: Device, size_bytes: int) -> None:
        self.device, self.size_bytes = device, size_bytes
        self.pointer: int | None = device.library.msl_allocate(size_bytes, device.guard == "start")
        if not self.pointer:
            raise MemoryError(size_bytes)

    def put(self, array: Array) -> Buffer:
        """Copy an array of the buffer's size into it."""
        data = np.ascontiguousarray(array)
        assert self.pointer and data.nbytes == self.size_bytes
        ctypes.memmove(self.pointer, data.ctypes.data, data.nbytes)
        return self

    def get(self, dtype: npt.DTypeLike, shape: int | Sequence[int] = -1) -> Array:
        """Copy the buffer's content out."""
        assert self.pointer
        raw = ctypes.string_at(self.pointer, self.size_bytes)
        return np.frombuffer(raw, dtype).reshape(shape).copy()

    def release(self) -> None:
        """Give the memory back.

        Raises:
            KernelError: Something wrote beside it.
        """
        pointer, self.pointer = self.pointer, None
        if pointer and self.device.library.msl_release(pointer):
            raise KernelError(self.device.error())


class Device:
    """The kernels of a library.

    Args:
        library: What `build` made.
        schedule: "forward", "reverse" or "random".
        seed: Of the random schedule.
        guard: Whether a buffer's "end" or "start" lies at a page that nothing may touch.
    """

    def __init__(self, library: Path, schedule: str = "forward", seed: int = 1, guard: str = "end") -> None:
        self.schedule, self.seed, self.guard = _SCHEDULES.index(schedule), seed, guard
        self.library = ctypes.CDLL(str(library))
        self.library.msl_allocate.restype = ctypes.c_void_p
        self.library.msl_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
        self.library.msl_release.argtypes = [ctypes.c_void_p]
        self.library.msl_error.restype = self.library.msl_kernel.restype = ctypes.c_char_p

    def error(self) -> str:
        """Tell the runtime's last error."""
        return str(self.library.msl_error().decode())

    def kernels(self) -> list[str]:
        """List the names of all kernels."""
        names = list[str]()
        while (name := self.library.msl_kernel(len(names))) is not None:
            names.append(name.decode())
        return names

    def empty(self, size_bytes: int) -> Buffer:
        """Make a buffer that nothing has written."""
        return Buffer(self, size_bytes)

    def put(self, array: Array) -> Buffer:
        """Make a buffer that holds an array."""
        return Buffer(self, array.nbytes).put(array)

    def launch(
        self,
        name: str,
        grid: Triple,
        threads: Triple,
        buffers: Sequence[Buffer | bytes | None],
        threadgroup_bytes: Sequence[int] = (),
    ) -> None:
        """Run a kernel over `grid` threadgroups; bytes are bound by value, None is an empty slot.

        Raises:
            KernelError: What went wrong, with kernel, file and line.
        """
        n = len(buffers)
        pointers, sizes = (ctypes.c_void_p * n)(), (ctypes.c_size_t * n)()
        kept = []
        for i, given in enumerate(buffers):
            if isinstance(given, bytes):
                kept.append(ctypes.create_string_buffer(given, len(given)))
                pointers[i], sizes[i] = ctypes.addressof(kept[-1]), len(given)
            elif given is not None:
                pointers[i] = given.pointer
        rooms = (ctypes.c_uint32 * max(1, len(threadgroup_bytes)))(*threadgroup_bytes)
        failed = self.library.msl_run(
            name.encode(), n, pointers, sizes, (ctypes.c_uint32 * 3)(*grid), (ctypes.c_uint32 * 3)(*threads),
            len(threadgroup_bytes), rooms, self.schedule, ctypes.c_uint64(self.seed),
        )  # fmt: skip
        if failed:
            raise KernelError(self.error())
