"""Measure the Metal kernels on an NVIDIA GPU at the real model's sizes, with random weights.

    python bench/gpu.py --json docs/receipts/gpu.json

Needs a build with FLASHNEXT_CUDA=ON. For 4 and 6 bits: a decode step behind a prompt, windows of 1 to 32
rows, and prompt passes. Each is one command buffer, which the device runs again: as one CUDA graph, by single
launches, and with a time stamp of the GPU before each dispatch. Bytes are those of weights, caches and states
(`gpu_bytes.py`), shares are of what a copy within the GPU's memory moves. The kernels are written for Apple
GPUs; what carries over and what does not is in docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flashnext import _core as core
from gpu_bytes import Work, work_of
from gpu_model import REAL, load, write_weights

BITS = (4, 6)
WINDOWS = (1, 2, 4, 8, 16, 32)
CHUNKS = (512, 2048, 8192)
MAX_CHUNK = 2048  # rows of a prompt pass; a longer chunk is several
PROMPT = 8192  # positions in front of the decode step and the windows
CONTEXT = PROMPT + MAX_CHUNK
RUNS = 10
LARGE = 16e6  # bytes from which on a kernel's share is compared with the target

Replay = tuple[list[tuple[str, str, tuple[int, int, int], bytes, float]], list[float], list[float]]


def grouped(replay: Replay, copy: float, rows: int, length: int, settled: bool) -> list[dict[str, Any]]:
    """Add up the dispatches of each kernel and size, the slowest first."""
    found: dict[str, list[tuple[Work, float]]] = {}
    for _, kernel, _, params, us in replay[0]:
        work = work_of(kernel, params, rows, length, REAL.num_experts, settled) if kernel else Work("copy")
        found.setdefault(work.what, []).append((work, us))
    out = []
    for what, each in found.items():
        total_us, work = sum(us for _, us in each), each[0][0]
        entry: dict[str, Any] = {
            "kernel": what,
            "n": len(each),
            "us": total_us / len(each),
            "total_ms": total_us / 1e3,
        }
        if work.size_bytes:
            entry["bytes"] = work.size_bytes
            entry["share_of_copy"] = work.size_bytes * len(each) / (total_us * 1e-6) / copy
        if work.flops:
            entry["tflops"] = work.flops * len(each) / (total_us * 1e-6) / 1e12
        out.append(entry)
    return sorted(out, key=lambda e: -float(e["total_ms"]))


def summary(replay: Replay, kernels: Sequence[dict[str, Any]], copy: float) -> dict[str, Any]:
    """Times of a whole command buffer, beside the sum of its kernels."""
    graph, launched = statistics.median(replay[1]), statistics.median(replay[2])
    total = sum(float(k["total_ms"]) for k in kernels)
    size = sum(float(k.get("bytes", 0)) * int(k["n"]) for k in kernels)
    return {
        "graph_ms": graph,
        "launched_ms": launched,
        "sum_of_kernels_ms": total,
        "graph_over_sum": graph / total,
        "dispatches": len(replay[0]),
        "bytes": size,
        "share_of_copy": size / (graph * 1e-3) / copy,
        "kernels": list(kernels),
    }


class Bench:
    """The model of some bits on a device, with pages for one sequence at a time."""

    def __init__(self, device: core.Device, path: Path, regions: Any, bits: int, copy: float) -> None:
        self.device, self.copy = device, copy
        self.model = load(
            device, path, regions, bits, context=CONTEXT, max_chunk=MAX_CHUNK, rows=max(WINDOWS)
        )
        self.pool = core.PagePool(self.model, CONTEXT // 64 + 2)
        self.runner = core.Runner(self.model, REAL.vocab_size)
        self.tokens = np.random.default_rng(1).integers(0, 248_000, CONTEXT, np.int32)

    def read(self, session: core.Session, n: int) -> list[float]:
        """Read n tokens of a prompt; milliseconds that the GPU worked for each pass."""
        each = []
        for at in range(0, n, MAX_CHUNK):
            before, tokens = self.device.busy_ns, self.tokens[at : min(n, at + MAX_CHUNK)]
            self.runner.prompt(session, tokens, False, core.Sampling(temperature=0))
            each.append((self.device.busy_ns - before) / 1e6)
        return each

    def replay(self, n: int, rows: int, length: int, settled: bool) -> dict[str, Any]:
        """Measure the last command buffer."""
        replay = core.testing.cuda_replay(self.device, n)
        return summary(replay, grouped(replay, self.copy, rows, length, settled), self.copy)

    def prompts(self, quick: bool) -> Iterator[tuple[int, dict[str, Any], core.Session]]:
        """Chunks from the front of a sequence, and the session of each.

        Kernels are those of the last pass; of a chunk between the shortest and the longest they would say the
        same again.
        """
        for n in (PROMPT,) if quick else CHUNKS:
            session = core.Session(self.model, self.pool)
            passes = self.read(session, n)
            out: dict[str, Any] = {"passes_ms": passes, "tokens_per_s": n / sum(passes) * 1e3}
            if n in (min(CHUNKS), PROMPT) and not quick:
                replay = core.testing.cuda_replay(self.device, 0)
                out["kernels_of_last_pass"] = grouped(replay, self.copy, min(n, MAX_CHUNK), n, True)
            yield n, out, session

    def windows(self, session: core.Session) -> dict[str, Any]:
        """Windows of several rows behind the session's prompt; none of them is kept."""
        out = dict[str, Any]()
        for n in WINDOWS:
            self.runner.forward([(session, self.tokens[PROMPT : PROMPT + n], True)])
            out[str(n)] = self.replay(RUNS, n, PROMPT + n, False)
            session.keep(0)
        return out

    def step(self, session: core.Session) -> dict[str, Any]:
        """A decode step: a round of one row, its draw and its verdict."""
        self.runner.prompt(session, self.tokens[PROMPT : PROMPT + 1], True, core.Sampling(temperature=0))
        self.runner.round([session])
        return self.replay(RUNS, 1, PROMPT + 2, True)


def dense_ms(window: dict[str, Any]) -> float:
    """Milliseconds of a window's dense products."""
    return sum(
        float(k["total_ms"])
        for k in window["kernels"]
        if str(k["kernel"]).startswith("matmul") or k["kernel"] in ("hc_mix", "glu")
    )


def targets(found: dict[str, Any], bits: int) -> list[dict[str, Any]]:
    """What was wanted, and what came of it."""
    wanted = {4: 0.6, 6: 0.7}[bits]
    out = [
        {"what": f"{k['kernel']}, {k['bytes'] / 1e6:.0f} MB, of copy bandwidth", "wanted": f">= {wanted}",
         "found": k["share_of_copy"], "met": k["share_of_copy"] >= wanted}
        for k in found["step"]["kernels"]
        if k.get("bytes", 0) >= LARGE
    ]  # fmt: skip
    ratio = found["step"]["graph_over_sum"]
    out.append({"what": "step as a graph over the sum of its kernels", "wanted": "<= 1.15", "found": ratio,
                "met": ratio <= 1.15})  # fmt: skip
    ratio = dense_ms(found["windows"]["8"]) / dense_ms(found["windows"]["1"])
    out.append({"what": "dense products of 8 rows over those of 1", "wanted": "<= 2.5", "found": ratio,
                "met": ratio <= 2.5})  # fmt: skip
    return out


def written(value: Any, indent: str = "") -> str:
    """Write figures as JSON of six digits, what has no further level on one line."""
    if isinstance(value, float):
        return f"{value:.6g}"
    inner = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    if not any(isinstance(one, (dict, list)) for one in inner):
        rounded = json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.6g}"))
        return json.dumps(rounded, separators=(",", ":"))
    further = indent + " "
    names = [f"{json.dumps(str(name))}:" for name in value] if isinstance(value, dict) else [""] * len(value)
    lines = ",\n".join(
        f"{further}{name}{written(one, further)}" for name, one in zip(names, inner, strict=True)
    )
    return f"{{\n{lines}\n{indent}}}" if isinstance(value, dict) else f"[\n{lines}\n{indent}]"


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="write all figures to this file")
    parser.add_argument("--bits", type=int, nargs="*", choices=BITS, default=BITS)
    parser.add_argument(
        "--quick", action="store_true", help="of prompts only the one that steps and windows stand behind"
    )
    parser.add_argument("--gib", type=float, default=4, help="of random codes (default 4)")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="for the random weights")
    parser.add_argument(
        "--matrix-tflops", type=float, default=790, help="bfloat16 peak, as measured (default an H200's)"
    )
    given = parser.parse_args()
    device = core.open_device("cuda", path="device memory")
    copy = core.testing.cuda_copy_bandwidth(device, 4 << 30)
    out: dict[str, Any] = {
        "device": device.name, "copy_bytes_per_s": copy, "matrix_tflops": given.matrix_tflops, "bits": {},
    }  # fmt: skip
    print(f"{device.name}: a copy moves {copy / 1e12:.2f} TB/s")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "weights"
        began = time.monotonic()
        regions = write_weights(path, given.gib)
        print(f"random weights: {time.monotonic() - began:.1f} s", flush=True)
        for bits in given.bits:
            began = time.monotonic()
            bench = Bench(device, path, regions, bits, copy)
            print(f"{bits} bits: loaded after {time.monotonic() - began:.1f} s", flush=True)
            found = out["bits"][str(bits)] = dict[str, Any](prompts={})
            for n, prompt, session in bench.prompts(given.quick):
                found["prompts"][str(n)] = prompt
                took, rate = sum(prompt["passes_ms"]), prompt["tokens_per_s"]
                print(f"  prompt of {n}: {took:.0f} ms, {rate:.0f} tokens/s", flush=True)
                if n == PROMPT:
                    found["windows"] = bench.windows(session)
                    found["step"] = bench.step(session)
                session.close()
                given.json.write_text(written(out) + "\n")
            found["targets"] = targets(found, bits)
            given.json.write_text(written(out) + "\n")
            for n, window in found["windows"].items():
                print(f"  window of {n}: {window['graph_ms']:.2f} ms, dense {dense_ms(window):.2f} ms")
            step = found["step"]
            print(f"  step: graph {step['graph_ms']:.2f}, launched {step['launched_ms']:.2f}, kernels "
                  f"{step['sum_of_kernels_ms']:.2f} ms, {step['dispatches']} dispatches")  # fmt: skip
            for k in step["kernels"][:14]:
                print(f"    {k['kernel']:24} {k['n']:4} x {k['us']:8.1f} us = {k['total_ms']:6.2f} ms  "
                      f"{k.get('bytes', 0) / 1e6:7.1f} MB  {k.get('share_of_copy', 0):.2f}")  # fmt: skip
            for t in found["targets"]:
                met = "met   " if t["met"] else "MISSED"
                print(f"  {met} {t['what']}: {t['found']:.2f}, wanted {t['wanted']}")
            print(f"  after {time.monotonic() - began:.0f} s", flush=True)
            del bench, session, prompt
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
