"""Turning a bf16 checkpoint into the MLX affine layout: streamed, bounded in memory, all or nothing."""

from __future__ import annotations

import collections
import functools
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashnext.checkpoint.affine import Affine, Quantization
from flashnext.checkpoint.expected import converted
from flashnext.checkpoint.folder import find_file, need_file, read_json
from flashnext.checkpoint.layout import Checkpoint, open_checkpoint
from flashnext.checkpoint.names import Kind, TensorSpec, mlx_name, model_specs
from flashnext.checkpoint.quantize import float32_to_bf16, quantize
from flashnext.checkpoint.views import TensorView, read_floats, read_view
from flashnext.checkpoint.writer import ShardedWriter, TensorPlan, write_json
from flashnext.errors import CheckpointError, InvalidArgument

SHARD_BYTES = 5_000_000_000
COPIED_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",
    "chat_template.jinja", "chat_template.json", "generation_config.json", "preprocessor_config.json",
    "video_preprocessor_config.json", "processor_config.json", "LICENSE",
)  # fmt: skip
_CHUNK_VALUES = 1 << 22  # values read, quantized and written at once
_SPARE_BYTES = 16 << 20  # room on disk for headers, beside tensors and copied files

Progress = Callable[[int, int], None]
Pieces = list[tuple[str, bytes]]  # names of output tensors, and their next bytes


@dataclass(frozen=True)
class Step:
    """One source tensor and what becomes of it: `affine` for a matrix that is quantized, else None."""

    spec: TensorSpec
    view: TensorView
    affine: Affine | None


def convert(
    source: str | Path,
    target: str | Path,
    *,
    bits: int = 6,
    group: int = 32,
    table_group: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> None:
    """Write `target`, an MLX affine checkpoint with the weights of `source`.

    Every matrix is quantized as `mlx.core.quantize` would; router, norms (stored as 1 + w), convolutions,
    n-gram constants and the vision tower are kept. The work goes into a folder beside `target` that gets its
    name when all is written.

    Args:
        source: A bf16 checkpoint folder in either layout.
        target: A folder that does not exist or is empty; its parent exists.
        bits: 2, 3, 4, 5, 6 or 8 bits a code.
        group: 32, 64 or 128 inputs that share a scale and a bias.
        table_group: Another group for the n-gram table, whose rows are short; None: `group`.
        shard_bytes: Most tensor bytes of a shard.
        progress: Called with (done, all) source bytes after each piece.

    Raises:
        InvalidArgument: Bits or a group are not supported.
        CheckpointError: The source cannot be used or quantized so, the target is in the way, or the disk is
            too full.
    """
    checkpoint = open_checkpoint(source)
    target = _real_target(target)
    try:
        _check_target(target)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error.strerror}") from None
    _require_plain(checkpoint)
    quantization = converted(checkpoint.config, bits, group, table_group, f"{checkpoint.path}: ")
    steps = _plan_steps(checkpoint, quantization)
    plans = [plan for step in steps for plan in _output_plans(step)]
    found = {name: find_file(checkpoint.path, name) for name in COPIED_FILES}
    copied = {name: path for name, path in found.items() if path is not None}
    raw = read_json(need_file(checkpoint.path, "config.json"))
    _check_disk(
        target, sum(plan.nbytes for plan in plans) + sum(path.stat().st_size for path in copied.values())
    )
    work = target.with_name(f"{target.name}.partial-{secrets.token_hex(4)}")
    try:
        work.mkdir()
        # What can fail at once comes first: quantizing takes minutes. The last file makes it a checkpoint.
        for name, path in copied.items():
            shutil.copyfile(path, work / name)
        with ShardedWriter(work, plans, shard_bytes, {"format": "mlx"}) as writer:
            _write_tensors(checkpoint, steps, writer, progress or (lambda done, total: None))
        write_json(work / "config.json", raw | {"quantization": _section(steps, quantization.default)})
        work.rename(target)
    except OSError as error:
        raise CheckpointError(f"{target} could not be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _real_target(target: str | Path) -> Path:
    """Resolve "." and "..", so that the path has a name of its own; a link stays what it is."""
    path = Path(target)
    try:
        return path if path.is_symlink() else path.resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{target} cannot be written: {error}") from None


def _check_target(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CheckpointError(f"{target} is in the way; name a folder that does not exist yet")
    if target.is_dir() and any(target.iterdir()):
        raise CheckpointError(f"{target} is not empty; name a folder that does not exist yet")
    if os.path.ismount(target):
        raise CheckpointError(f"{target} is a mount point, which cannot be replaced; name a folder in it")
    if not target.resolve().parent.is_dir():
        raise CheckpointError(f"{target.resolve().parent} does not exist; make it first")


def _check_disk(target: Path, size: int) -> None:
    free = shutil.disk_usage(target.resolve().parent).free
    if free < size + _SPARE_BYTES:
        raise CheckpointError(
            f"{target} needs {(size + _SPARE_BYTES) / 1e9:.2f} GB, but its disk has only {free / 1e9:.2f} GB "
            "free"
        )


def _require_plain(checkpoint: Checkpoint) -> None:
    if checkpoint.affine:
        module = next(iter(checkpoint.affine))
        raise CheckpointError(
            f"{checkpoint.path} is quantized already ({module} has {checkpoint.affine[module]}); convert the "
            "bf16 checkpoint"
        )


def _plan_steps(checkpoint: Checkpoint, quantization: Quantization) -> list[Step]:
    steps = []
    for spec in model_specs(checkpoint.config):
        view = checkpoint.tensors.get(spec.name)
        if view is not None:
            affine = quantization.of(spec.name.removesuffix(".weight")) if spec.kind is Kind.MATRIX else None
            steps.append(Step(spec, view, affine))
    return steps


def _section(steps: list[Step], default: Affine) -> dict[str, Any]:
    """Make the quantization section of config.json, with an entry for each module unlike the default."""
    section: dict[str, Any] = {"group_size": default.group, "bits": default.bits, "mode": "affine"}
    for step in steps:
        if step.affine is not None and step.affine != default:
            module = mlx_name(step.spec.name).removesuffix(".weight")
            section[module] = {"group_size": step.affine.group, "bits": step.affine.bits, "mode": "affine"}
    return section


def _output_plans(step: Step) -> list[TensorPlan]:
    name, shape = mlx_name(step.spec.name), step.spec.shape
    if step.affine is not None:
        module, (*rows, width) = name.removesuffix(".weight"), shape
        words = (*rows, width * step.affine.bits // 32)
        groups = (*rows, width // step.affine.group)
        return [
            TensorPlan(f"{module}.weight", "U32", words),
            TensorPlan(f"{module}.scales", "BF16", groups),
            TensorPlan(f"{module}.biases", "BF16", groups),
        ]
    if step.spec.kind is Kind.CONV:
        shape = (*shape, 1)
    elif step.spec.kind is Kind.PATCH:
        out, channels, *rest = shape
        shape = (out, *rest, channels)
    return [TensorPlan(name, step.view.dtype, shape)]


def _write_tensors(
    checkpoint: Checkpoint, steps: list[Step], writer: ShardedWriter, progress: Progress
) -> None:
    total = sum(step.view.nbytes for step in steps)
    done = 0
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers, "convert") as pool:
        waiting: collections.deque[tuple[int, Future[Pieces]]] = collections.deque()
        try:
            for size, job in _jobs(checkpoint, steps):
                waiting.append((size, pool.submit(job)))
                if len(waiting) > 2 * workers:
                    done += _finish(waiting, writer)
                    progress(done, total)
            while waiting:
                done += _finish(waiting, writer)
                progress(done, total)
        finally:
            for _, future in waiting:
                future.cancel()


def _finish(waiting: collections.deque[tuple[int, Future[Pieces]]], writer: ShardedWriter) -> int:
    size, future = waiting.popleft()
    for name, data in future.result():
        writer.append(name, data)
    return size


def _jobs(checkpoint: Checkpoint, steps: list[Step]) -> Iterator[tuple[int, Callable[[], Pieces]]]:
    """Yield (source bytes, function that makes the output pieces), in the order of writing."""
    for step in steps:
        if step.affine is None:
            yield step.view.nbytes, functools.partial(_kept, checkpoint, step)
            continue
        for piece in _pieces(step.view):
            yield piece.nbytes, functools.partial(_quantized, checkpoint, step, piece)


def _pieces(view: TensorView) -> Iterator[TensorView]:
    """Cut a BF16 matrix, or a stack of them, into pieces of whole rows."""
    *batch, rows, width = view.shape
    step = max(1, _CHUNK_VALUES // width)
    stride = view.batch_stride or rows * width * 2
    for b in range(batch[0] if batch else 1):
        for row in range(0, rows, step):
            count = min(step, rows - row)
            yield TensorView(view.file, view.offset + b * stride + row * width * 2, "BF16", (count, width))


def _quantized(checkpoint: Checkpoint, step: Step, piece: TensorView) -> Pieces:
    assert step.affine is not None
    weights = np.frombuffer(read_view(checkpoint.files, piece), "<u2").reshape(piece.shape)
    try:
        parts: list[npt.NDArray[Any]] = list(quantize(weights, step.affine.bits, step.affine.group))
    except InvalidArgument as error:
        raise CheckpointError(f"{checkpoint.files[piece.file]}: tensor {step.spec.name}: {error}") from None
    module = mlx_name(step.spec.name).removesuffix(".weight")
    return [
        (f"{module}.{part}", x.tobytes())
        for part, x in zip(("weight", "scales", "biases"), parts, strict=True)
    ]


def _kept(checkpoint: Checkpoint, step: Step) -> Pieces:
    kind, view = step.spec.kind, step.view
    data = read_view(checkpoint.files, view)
    if kind is Kind.NORM and checkpoint.zero_centred:
        values = read_floats(checkpoint.files, view) + np.float32(1)
        data = values.tobytes() if view.dtype == "F32" else float32_to_bf16(values).tobytes()
    elif kind is Kind.PATCH and view.shape == step.spec.shape:
        kernel: npt.NDArray[Any] = np.frombuffer(data, "<u2" if view.dtype == "BF16" else "<u4")
        data = np.ascontiguousarray(np.moveaxis(kernel.reshape(view.shape), 1, -1)).tobytes()
    return [(mlx_name(step.spec.name), data)]
