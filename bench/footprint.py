"""Measure what a process takes beside what the memory plan says.

    python bench/footprint.py                        the bundled checkpoint, under a minute
    python bench/footprint.py CHECKPOINT --json footprint.json

Each line is two processes. One loads the checkpoint as the plan has it, opens all its sessions, fills its
pages, makes the system give every page of what it allocated (MADV_POPULATE_WRITE, Linux 5.14), and tells by
how much it grew: that is the model's part of the plan. The other is an engine that answers as many requests
at once as the plan has sequences, with its weights in memory, and tells its peak: that is all of the plan, or
less, since few requests use all of the scratch.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import mmap
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flashnext import _core
from flashnext.checkpoint import Checkpoint, open_checkpoint
from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.load import load_model, open_device
from flashnext.engine.machine import ram_bytes
from flashnext.engine.plan import Machine, PlanSettings, make_plan
from flashnext.engine.sampling import Sampling
from flashnext.engine.sizes import WORKER_BYTES, vision_room, weight_sizes
from flashnext.media import Limits, read_rules
from flashnext.media.sizes import most_tokens

SETTINGS: Sequence[Mapping[str, Any]] = (
    {"context": 2048, "parallel": 1, "drafts": 0},
    {"context": 2048, "parallel": 1, "drafts": 3},
    {"context": 4096, "parallel": 16, "drafts": 0},
    {"context": 4096, "parallel": 16, "drafts": 0, "dtype": "float32"},
)
MIB = 1 << 20
STACK_BYTES = 1 << 18
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # of madvise(2)
_LIBC = ctypes.CDLL(None, use_errno=True)


def status_bytes(field: str) -> int:
    """Read VmRSS, the resident set of this process, or VmHWM, its peak."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def mappings() -> Iterator[tuple[int, int, str, str]]:
    """Yield start, end, permissions and file of each mapping."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, permissions, *_, name = [*line.split(maxsplit=5), ""][:6]
        start, end = (int(part, 16) for part in span.split("-"))
        yield start, end, permissions, name


def populate(start: int, end: int, advice: int) -> None:
    """Make pages resident."""
    if _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice):
        raise OSError(ctypes.get_errno(), f"madvise({advice}) over {end - start} bytes")


def populate_weights(checkpoint: Checkpoint, draft_head: bool, vision: bool) -> None:
    """Make resident what is mapped of the tensors that are used."""
    unused = (*(() if vision else ("visual.",)), *(() if draft_head else ("mtp.",)))
    mapped = {name: start for start, _, _, name in mappings() if name.endswith(".safetensors")}
    for name, view in checkpoint.tensors.items():
        if not (unused and name.startswith(unused)):
            start = mapped[str(checkpoint.files[view.file])] + view.offset
            end = start + max(view.nbytes, view.batch_stride * (view.shape or (0,))[0])
            populate(start // mmap.PAGESIZE * mmap.PAGESIZE, end, _POPULATE_READ)


def populate_new(before: Sequence[tuple[int, int]]) -> None:
    """Make resident what can be written and belongs to no file, beside what was there before."""
    for start, end, permissions, name in list(mappings()):
        if not permissions.startswith("rw") or name.startswith("/"):
            continue
        at = start
        for old_start, old_end in sorted(before):
            if at < old_end and old_start < end:
                if at < old_start:
                    populate(at, old_start, _POPULATE_WRITE)
                at = max(at, old_end)
        if at < end:
            populate(at, end, _POPULATE_WRITE)


def measure_model(folder: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Load, fill and make resident; returns bytes, planned and found."""
    given = {"ngram_table": "resident"} | dict(settings)  # all of it is made resident below
    draft_head, vision = given.pop("drafts", 0) > 0, given.pop("vision", False)
    checkpoint, device = open_checkpoint(folder), open_device()
    config = checkpoint.config if draft_head else replace(checkpoint.config, n_mtp_layers=0)
    weights = weight_sizes(config, checkpoint.tensors, device.limits.tensor_alignment)
    machine = Machine(ram_bytes(), device.limits.working_set_bytes, device.limits.workers)
    room = None
    if vision:
        most = most_tokens(read_rules(folder), Limits())
        room = vision_room(config, checkpoint.tensors, most, device.limits.tensor_alignment)
    plan = make_plan(config, weights, PlanSettings(vision=room, **given), machine)
    populate_new([])  # what there is already, workers' memory and stacks of threads among it
    before = [(start, end) for start, end, *_ in mappings()]
    resident = status_bytes("VmRSS")
    loaded = load_model(
        checkpoint, device=device, dtype=given.get("dtype", "bfloat16"), context=plan.context,
        draft_head=draft_head, max_chunk=given.get("max_chunk", 512),
        max_patches=0 if room is None else room.max_patches,
    )  # fmt: skip
    sessions = [_core.Session(loaded.model, loaded.pool) for _ in range(plan.n_sessions)]
    runner = _core.Runner(loaded.model)
    penalized = _core.Sampling(presence=1.0)
    for session in sessions[1:]:  # one page each, and the first one has the rest
        runner.prompt(session, np.ones(1, np.int32), last=True, sampling=penalized)
    tokens = np.arange((plan.n_pages - len(sessions) + 1) * PAGE_TOKENS, dtype=np.int32)
    tokens = tokens[: plan.context] % loaded.model.vocab_size
    for at in range(0, len(tokens), runner.max_chunk):
        part = tokens[at : at + runner.max_chunk]
        runner.prompt(sessions[0], part, last=at + len(part) == len(tokens), sampling=penalized)
    populate_weights(checkpoint, draft_head, vision)
    populate_new(before)
    return {
        "planned": plan.model_bytes - device.limits.workers * WORKER_BYTES,
        "found": status_bytes("VmRSS") - resident,
        "pages_planned": plan.pages_bytes,
        "pages_found": loaded.pool.allocated_bytes,
    }


def measure_process(folder: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Answer as many requests at once as there are sequences, and make all of the process resident."""
    importlib.import_module("flashnext.server.run")  # the plan counts what a server has loaded
    before = [(start, end) for start, end, *_ in mappings()]
    usual: dict[str, Any] = {"ngram_table": "resident", "vision": False}
    settings = usual | dict(settings)
    # Prompts are read before any reply goes on.
    with Engine(folder, **settings, gap_ms=1e6, prefix_cache_gib=0) as engine:
        populate_weights(
            engine.loaded.checkpoint, settings.get("drafts", 0) > 0, engine.loaded.tower is not None
        )
        share = engine.context // engine.parallel
        sampling = Sampling(temperature=0, max_tokens=share // 2, ignore_eos=True, presence_penalty=1.0)
        rng = np.random.default_rng(0)
        requests = [
            engine.submit(rng.integers(0, engine.tokenizer.n_tokens, share // 2).tolist(), sampling=sampling)
            for _ in range(engine.parallel)
        ]
        for request in requests:
            next(request)
        populate_new(before)
        found = {"planned": engine.plan.total_bytes, "found": status_bytes("VmRSS")}
        for request in requests:
            request.cancel()
        return found


MEASURES = {"model": measure_model, "process": measure_process}


def measured(what: str, folder: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Measure in a process of its own; `what` is a key of MEASURES."""
    command = [sys.executable, __file__, str(folder), "--one", what, json.dumps(settings)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        # Stacks of threads are hardly touched otherwise, and would count as a whole.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES)),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def table_lines(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Mapping[str, int]]]]) -> Iterator[str]:
    """Write the table of docs/memory.md, in MiB."""
    yield "| context | sequences | drafts | dtype | model: planned | found | process: planned | found |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for s, found in rows:
        cells = [f"{s['context']:,}", s["parallel"], s["drafts"], s.get("dtype", "bfloat16")]
        for what in MEASURES:
            planned, bytes_found = found[what]["planned"], found[what]["found"]
            cells.append(f"{planned / MIB:,.1f}")
            cells.append(f"{bytes_found / MIB:,.1f} ({100 * (bytes_found / planned - 1):+.2f} %)")
        yield f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path, default=BUNDLED)
    parser.add_argument("--json", type=Path, help="where to write what was found")
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "SETTINGS"), help="measure once, in this process")
    args = parser.parse_args()
    if args.one:
        what, given = args.one
        print(json.dumps(MEASURES[what](args.checkpoint, json.loads(given))))
        return
    rows = []
    for settings in SETTINGS:
        rows.append((settings, {what: measured(what, args.checkpoint, settings) for what in MEASURES}))
        print(list(table_lines(rows))[-1], file=sys.stderr)
    print("\n".join(table_lines(rows)))
    if args.json:
        args.json.write_text(json.dumps([{"settings": s, **found} for s, found in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
