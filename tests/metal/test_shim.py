"""The host shim: faults planted in small kernels, each of which is an error with kernel, file and line."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.metal_file import MetalFile

from metal.host.generate import MetalError, flatten, generate
from metal.host.shim import Buffer, Device, KernelError, check, checker

SCHEDULES = ("forward", "reverse", "random")
needs_compiler = pytest.mark.skipif(
    not (shutil.which("c++") and shutil.which("addr2line")), reason="needs a C++ compiler and addr2line"
)
needs_clang = pytest.mark.skipif(
    checker() is None, reason="needs clang 18 or newer (.ci/apt.txt) for its address spaces"
)


def params(n: int = 64, f: float = 0.5) -> bytes:
    return np.uint32(n).tobytes() + np.float32(f).tobytes()


def run(
    device: Device, threads: int = 64, n: int = 64, grid: int = 1, more: Sequence[Buffer | bytes | None] = ()
) -> np.ndarray:
    x, out = device.put(np.arange(n, dtype=np.float32)), device.empty(4 * n)
    try:
        device.launch("k", (grid, 1, 1), (threads, 1, 1), [x, out, params(n), *more])
        return out.get(np.float32)
    finally:
        x.release()
        out.release()


@needs_compiler
def test_a_sound_kernel_gives_its_numbers_under_every_schedule(metal_file: MetalFile) -> None:
    body = """
      threadgroup float tile[64];
      tile[tid] = x[tid];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      float v = tile[63 - tid];
      v += simd_sum(float(lane)) + float(simd_max(lane)) - simd_shuffle_xor(float(lane), ushort(3));
      v += float(simd_prefix_exclusive_sum(lane)) + float(simd_prefix_inclusive_sum(1u));
      v += simd_shuffle_down(float(lane), ushort(1)) + simd_broadcast(float(lane), ushort(7)) * p.f;
      out[tid] = v + (simd_any(lane == 3) && !simd_all(lane == 3) ? 1.0 : 0.0);"""
    i = np.arange(64)
    lane = i % 32
    want = (
        63
        - i
        + 496
        + 31
        - (lane ^ 3)
        + lane * (lane - 1) // 2
        + lane
        + 1
        + np.where(lane == 31, 31, lane + 1)
    )
    library = metal_file.library(body)
    for schedule in SCHEDULES:
        assert (run(Device(library, schedule)) == want + 3.5 + 1).all(), schedule


@needs_compiler
def test_a_simdgroup_matrix_multiplies(metal_file: MetalFile) -> None:
    body = """
      simdgroup_float8x8 a, b, c = make_filled_simdgroup_matrix<float, 8, 8>(0.5);
      simdgroup_load(a, x, 8);
      simdgroup_load(b, x + 64, 8);
      simdgroup_multiply_accumulate(c, a, b, c);
      simdgroup_store(c, out, 8);"""
    got = run(metal_file.device(body), threads=32, n=128)[:64]
    x = np.arange(128, dtype=np.float32)
    assert (got.reshape(8, 8) == x[:64].reshape(8, 8) @ x[64:].reshape(8, 8) + 0.5).all()


@needs_compiler
def test_atomics_and_addresses_reach_buffers(metal_file: MetalFile) -> None:
    parameters = metal_file.parameters + (
        ", device atomic_uint* count [[buffer(3)]], device const ulong* table [[buffer(4)]]"
    )
    body = """
      atomic_fetch_add_explicit(count, 2u, memory_order_relaxed);
      out[tid] = reinterpret_cast<device const float*>(table[0])[tid];"""
    device = metal_file.device(body, parameters)
    far = device.put(np.arange(64, dtype=np.float32) * 3)
    assert far.pointer
    count, table = device.put(np.zeros(1, np.uint32)), device.put(np.array([far.pointer], np.uint64))
    assert (run(device, more=[count, table]) == np.arange(64) * 3).all()
    assert count.get(np.uint32)[0] == 128
    far.release()
    with pytest.raises(KernelError, match=r"faulty\.metal:8: .*touches memory that belongs to no buffer"):
        run(device, more=[count, table])


@dataclass(frozen=True)
class Fault:
    """A kernel that goes wrong: the first line of the body is line 6 of its file."""

    name: str
    body: str
    says: str
    threads: int = 64


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
FAULTS = (
    Fault(
        "reads behind a buffer", "out[tid] = x[tid + 1];",
        r":6: .*thread 63: touches byte 256 of a buffer of 256 bytes",
    ),
    Fault(
        "writes behind a buffer", "out[tid + 1] = x[tid];",
        r":6: .*thread 63: touches byte 256 of a buffer of 256 bytes",
    ),
    Fault(
        "reads the slack behind a buffer", "out[tid] = x[tid + 1];",
        r":6: .*thread 60: reads 4 bytes of byte 244 of a buffer of 244 bytes", 61,
    ),
    Fault(
        "writes far behind a buffer", "out[tid + 4096] = x[tid];",
        r":6: .*touches byte \d+ of a buffer of 256 bytes",
    ),
    Fault(
        "reads before a buffer", "out[tid] = x[int(tid) - 1];",
        r":6: .*thread 0: reads 4 bytes of byte -4 of a buffer of 256 bytes",
    ),
    Fault(
        "reads far before a buffer", "out[tid] = x[int(tid) - 4096];", r":6: .*touches byte -\d+ of a buffer",
    ),
    Fault(
        "reads at an address between elements",
        "device const uchar* bytes = reinterpret_cast<device const uchar*>(x) + 2;\n"
        "out[tid] = *reinterpret_cast<device const float*>(bytes);",
        r":7: .*touches 4 bytes at an address that is not a multiple of that",
    ),
    Fault(
        "some lanes stay behind", "if (lane < 7)\n  out[tid] = simd_sum(x[tid]);",
        r":7: .*reached by 7 of its 32 lanes; lane 7 has ended",
    ),
    Fault(
        "lanes meet in different operations",
        "if (lane < 7)\n  out[tid] = simd_sum(x[tid]);\nelse\n  out[tid] = simd_max(x[tid]);",
        r":7: .*reached by 32 of its 32 lanes; lane 7 is at .*:9",
    ),
    Fault(
        "lanes meet in different lines",
        "if (lane < 7)\n  out[tid] = simd_sum(x[tid]);\nelse\n  out[tid] = simd_sum(x[tid]);",
        r":7: .*lane 7 is at .*:9",
    ),
    Fault(
        "a simdgroup misses the barrier", f"out[tid] = 1;\nif (sg == 0)\n  {BARRIER}",
        r":8: .*this barrier is not reached by all threads; thread 32 has ended",
    ),
    Fault(
        "over 32 KB", "threadgroup float big[8193];\nbig[tid] = 1;\nout[tid] = big[tid];",
        r":6: .*takes 32772 bytes of threadgroup memory, at most 32768",
    ),
    Fault(
        "over 32 KB together",
        "threadgroup float a[4096];\nthreadgroup float b[4097];\na[tid] = b[tid] = 1;\nout[tid] = a[tid];",
        r":7: .*takes 32772 bytes of threadgroup memory",
    ),
    Fault(
        "writes behind threadgroup memory",
        f"threadgroup float a[64];\na[tid + 1] = 1;\n{BARRIER}\nout[tid] = a[tid];",
        r":7: .*thread 63: writes 4 bytes of threadgroup memory outside .* that of .*:6",
    ),
    Fault(
        "reads behind threadgroup memory",
        f"threadgroup float a[64];\na[tid] = 1;\n{BARRIER}\nout[tid] = a[tid + 1];",
        r":9: .*thread 63: reads 4 bytes of threadgroup memory outside .* that of .*:6",
    ),
    Fault(
        "no barrier between a write and a read",
        "threadgroup float a[64];\na[tid] = x[tid];\nout[tid] = a[63 - tid];",
        r":[78]: .*threadgroup memory of .*:6 that thread \d+ has (read|written), without a barrier",
    ),
    Fault(
        "no barrier between a read and the next write",
        f"threadgroup float a[64];\na[tid] = x[tid];\n{BARRIER}\nconst float v = a[63 - tid];\na[tid] = v;\n"
        "out[tid] = v;",
        r":(9|10): .*threadgroup memory of .*:6 that thread \d+ has (read|written), without a barrier",
    ),
    Fault(
        "lanes of a simdgroup without a barrier",
        "threadgroup float a[32];\na[lane] = x[lane];\nout[tid] = a[31 - lane];",
        r":[78]: .*without a barrier between", 32,
    ),
    Fault(
        "two threads write one place", "threadgroup float a[1];\na[0] = float(tid);\nout[tid] = 1;",
        r":7: .*writes .*has written, without a barrier",
    ),
    Fault(
        "two threads write one place of a buffer", "out[0] = float(tid);",
        r":6: .*writes byte 0 of a buffer of 256 bytes that thread \d+ has written",
    ),
    Fault(
        "a thread reads what another has written to a buffer",
        "out[tid] = 1;\nout[tid] += out[63 - tid];", r":7: .*has written, without a barrier",
    ),
)  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_planted_fault_is_an_error_with_its_place(metal_file: MetalFile, fault: Fault) -> None:
    library = metal_file.library(fault.body)
    for schedule in SCHEDULES:
        with pytest.raises(KernelError, match=r"k: .*faulty\.metal" + fault.says):
            run(Device(library, schedule), fault.threads, fault.threads)


@needs_compiler
def test_threadgroups_that_meet_at_one_place_are_an_error(metal_file: MetalFile) -> None:
    library = metal_file.library("if (tid == 0) out[0] = float(tgid.x);")
    for schedule in SCHEDULES:
        with pytest.raises(KernelError, match=r":6: .*another threadgroup has written"):
            run(Device(library, schedule), grid=3)


@needs_compiler
def test_barriers_order_threads_and_simdgroup_operations_order_lanes(metal_file: MetalFile) -> None:
    body = """
      threadgroup float a[64];
      for (int i = 0; i < 300; i++) {
        a[tid] = x[tid] + float(i);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[tid] = a[63 - tid];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        a[tid] = x[tid];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        out[tid] += a[tid ^ 1];
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }"""
    library, i = metal_file.library(body), np.arange(64)
    for schedule in SCHEDULES:
        assert (run(Device(library, schedule)) == 63 - i + 299 + (i ^ 1)).all(), schedule


@needs_compiler
def test_memory_that_nothing_wrote_is_nan(metal_file: MetalFile) -> None:
    device = metal_file.device("threadgroup float a[64]; out[tid] = a[tid];")
    assert np.isnan(run(device)).all()
    assert np.isnan(device.empty(64).get(np.float32)).all()


@needs_compiler
def test_a_write_beside_a_buffer_by_others_is_told_on_release(metal_file: MetalFile) -> None:
    import ctypes

    device = metal_file.device("out[tid] = 1;")
    buffer = device.empty(20)
    assert buffer.pointer
    ctypes.memset(buffer.pointer + 20, 0, 1)
    with pytest.raises(KernelError, match="wrote beside a buffer of 20 bytes"):
        buffer.release()


@needs_compiler
def test_a_launch_is_checked_against_the_kernel(metal_file: MetalFile) -> None:
    device = metal_file.device("out[tid] = p.f;")
    x = device.put(np.zeros(64, np.float32))
    wrong: list[tuple[int, list[Buffer | bytes | None], str]] = [
        (64, [x, x, b"1234"], r"buffer\(2\) takes a struct of 8 bytes, not 4"),
        (64, [x, x], r"buffer\(2\) is not bound"),
        (64, [x, b"12345678", params()], r"buffer\(1\) takes a buffer"),
        (256, [x, x, params()], r"256 threads a threadgroup, expected 1 to 128"),
    ]
    for threads, buffers, says in wrong:
        with pytest.raises(KernelError, match=says):
            device.launch("k", (1, 1, 1), (threads, 1, 1), buffers)


GOOD = (
    "device float& r = out[tid]; r += 1.0;",
    "threadgroup float t[8][8]; t[0][tid] = 1; threadgroup float* q = t[1]; out[0] = q[0] + t[0][1];",
    "constant float& f = p.f; out[0] = f; thread float l[4]; thread float* q = l; q[0] = 1; out[1] = q[0];",
    "float4 v = float4(1, 2, 3, 4); out[0] = v.x + v[2]; uint2 u = uint2(tid, 1); out[1] = float(u.y);",
    "threadgroup float s[4]; out[0] = ld(x, 1) + ld(s, 2);",
    "out[0] = float(bfloat(x[0]));",
)
BAD = (
    "threadgroup float* q = x;",
    "device float* q = x;",
    "threadgroup float s[2]; device float* q = s;",
    "device const float* q = &p.f;",
    "float* q = out;",
    "thread Params& r = p;",
    "p.n = 1;",
    "thread float l[2]; out[0] = ld(l, 0);",
    "bfloat b = 1.0f; out[0] = exp(b);",
    "out[0] = float(simd_sum(bfloat(1.0f)));",
    "simdgroup_float8x8 m; simdgroup_load(m, &p.f, 8);",
    "reinterpret_cast<device float*>(out)[0] = *static_cast<device float*>(nullptr) + s;",
    "if constexpr (true) out[0] = 1;",
    "auto [a, b] = p;",
)
LOADS = """
template <typename T> METAL_FUNC float ld(device const T* q, uint i) { return float(q[i]); }
template <typename T> METAL_FUNC float ld(threadgroup const T* q, uint i) { return float(q[i]); }"""


@needs_clang
@pytest.mark.parametrize("body", GOOD)
def test_clang_accepts_pointers_of_their_own_space(metal_file: MetalFile, body: str) -> None:
    assert check(metal_file.kernel(body, before=LOADS)) == ""


@needs_clang
@pytest.mark.parametrize("body", BAD)
def test_clang_refuses_what_metal_would(metal_file: MetalFile, body: str) -> None:
    assert "faulty.metal" in check(metal_file.kernel(body, before=LOADS))


@needs_clang
@pytest.mark.parametrize(
    "parameter",
    ["float* x [[buffer(0)]]", "threadgroup float* x [[buffer(0)]]", "device float* x [[threadgroup(0)]]"],
)
def test_clang_refuses_a_binding_of_another_space(metal_file: MetalFile, parameter: str) -> None:
    assert "error" in check(metal_file.kernel("", parameters=parameter))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("double d = 1;", r"faulty\.metal:6: double: Metal has no double"),
        ("float y = std::exp(1.0f);", r":6: std: Metal has no standard library"),
        ("auto f = [&](float v) { return v; };", r":6: Metal has no lambda expressions"),
        ("throw 1;", r":6: throw: Metal has no exceptions"),
    ],
)
def test_what_is_no_metal_is_refused_with_its_line(metal_file: MetalFile, text: str, says: str) -> None:
    with pytest.raises(MetalError, match=says):
        generate(metal_file.kernel(text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("constexpr int kTile = 4;", r":1: a variable outside of functions is in the constant address space"),
        ("[[kernel]] void k(device float* x) {}", r":1: kernel k does not say what its parameter"),
        ("[[kernel]] void k(device int* x [[buffer(0)]], device int* y [[buffer(0)]]) {}", r"<0> twice"),
        ("[[kernel]] void k(uint t [[thread_number]]) {}", r"\[\[thread_number\]\], which the shim does not"),
        ('template [[host_name("k")]] [[kernel]] decltype(f<int>) f<int>;', r"which is no kernel"),
    ],
)  # fmt: skip
def test_what_the_shim_cannot_bind_is_refused(metal_file: MetalFile, text: str, says: str) -> None:
    with pytest.raises(MetalError, match=says):
        generate(metal_file.text(text))


def test_a_flat_text_has_no_includes_but_apples(metal_file: MetalFile, tmp_path: Path) -> None:
    (tmp_path / "helper.h").write_text("METAL_FUNC float twice(float x) { return 2 * x; }\n")
    path = metal_file.text(
        '#include <metal_stdlib>\n#include "helper.h"\nusing namespace metal;\n'
        "[[kernel]] void k(device float* x [[buffer(0)]]) { x[0] = twice(1.5); }\n"
    )
    text = flatten(path)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "#include <metal_stdlib>", "#include <metal_simdgroup_matrix>", "#pragma METAL fp contract(off)",
    ]  # fmt: skip
    assert "float twice" in text and "[[buffer(0)]]" in text
