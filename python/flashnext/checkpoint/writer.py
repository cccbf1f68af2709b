"""Writing safetensors files and sharded checkpoints, in pieces and in any order, complete or not at all."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from flashnext.checkpoint.safetensors import tensor_bytes
from flashnext.checkpoint.shards import INDEX_NAME

ALIGNMENT: Final = 64  # bytes; of the first tensor, and so of every tensor of a whole number of such units


@dataclass(frozen=True)
class TensorPlan:
    """A tensor that is going to be written: its final name, dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return tensor_bytes(self.dtype, self.shape)


class SafetensorsWriter:
    """Writes one file whose tensors are all known beforehand; their bytes may come interleaved.

    Tensors of a whole number of 64-byte units are laid first, so that they are aligned. A context manager:
    leaving it normally syncs the file and renames it from `NAME.partial`; leaving it by an exception removes
    the partial file. One thread only.
    """

    def __init__(self, path: Path, plans: Iterable[TensorPlan], metadata: Mapping[str, str]) -> None:
        ordered = sorted(plans, key=lambda plan: plan.nbytes % ALIGNMENT != 0)
        entries: dict[str, Any] = {"__metadata__": dict(metadata)}
        at = 0
        for plan in ordered:
            if plan.name in entries:
                raise ValueError(f"tensor {plan.name} is planned twice")
            span = [at, at + plan.nbytes]
            entries[plan.name] = {"dtype": plan.dtype, "shape": list(plan.shape), "data_offsets": span}
            at += plan.nbytes
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        self._header = len(text).to_bytes(8, "little") + text
        base = len(self._header)
        del entries["__metadata__"]
        self._spans = {name: [base + x for x in entry["data_offsets"]] for name, entry in entries.items()}
        self._size = base + at
        self.left = at
        self.path = path
        self._partial = path.with_name(path.name + ".partial")

    def __enter__(self) -> SafetensorsWriter:
        self._file = self._partial.open("xb", buffering=0)
        try:
            self._file.truncate(self._size)
            self._write(self._header, 0)
        except BaseException:
            self._abandon()
            raise
        return self

    def append(self, name: str, data: bytes | memoryview) -> None:
        """Write the next bytes of a tensor."""
        view = memoryview(data).cast("B")
        span = self._spans[name]
        if span[0] + view.nbytes > span[1]:
            raise ValueError(f"tensor {name} gets {view.nbytes} bytes where {span[1] - span[0]} are left")
        self._write(view, span[0])
        span[0] += view.nbytes
        self.left -= view.nbytes

    def _write(self, data: bytes | memoryview, at: int) -> None:
        view = memoryview(data)
        while view.nbytes:
            done = os.pwrite(self._file.fileno(), view, at)
            view, at = view[done:], at + done

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self.left:
                    raise ValueError(f"{self.path} still misses {self.left} bytes")
                _to_disk(self._file.fileno())
                self._partial.replace(self.path)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


def _to_disk(file: int) -> None:
    """Wait until what was written is on the disk: on macOS fsync leaves it in the drive's own memory."""
    if (whole := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        try:
            fcntl.fcntl(file, whole)
            return
        except OSError:  # a file system that knows no such thing, as those of servers
            pass
    os.fsync(file)


class ShardedWriter:
    """Writes tensors into `model-XXXXX-of-XXXXX.safetensors` files of bounded size and, last, their index.

    Args:
        folder: An existing folder.
        plans: All tensors; they are put into shards in this order.
        shard_bytes: Most tensor bytes of a shard; a larger tensor gets a shard of its own.
        metadata: For the header of each shard.

    A context manager; a shard appears under its name when its last byte has come, the index when all shards
    are there.
    """

    def __init__(
        self, folder: Path, plans: Iterable[TensorPlan], shard_bytes: int, metadata: Mapping[str, str]
    ) -> None:
        self._folder = folder
        groups = cut_shards(plans, shard_bytes)
        self.total_bytes = sum(plan.nbytes for group in groups for plan in group)
        self._writers: list[SafetensorsWriter] = []
        self._shard_of: dict[str, int] = {}
        self._open: set[int] = set()
        for i, group in enumerate(groups):
            path = folder / f"model-{i + 1:05}-of-{len(groups):05}.safetensors"
            self._writers.append(SafetensorsWriter(path, group, metadata))
            self._shard_of.update({plan.name: i for plan in group})

    def __enter__(self) -> ShardedWriter:
        return self

    def append(self, name: str, data: bytes | memoryview) -> None:
        """Write the next bytes of a tensor."""
        shard = self._shard_of[name]
        writer = self._writers[shard]
        if shard not in self._open:
            writer.__enter__()
            self._open.add(shard)
        writer.append(name, data)
        if not writer.left:
            self._open.remove(shard)
            writer.__exit__(None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for shard in self._open:
            self._writers[shard].__exit__(kind or RuntimeError, value, trace)
        if kind is not None:
            return
        missing = [str(writer.path) for writer in self._writers if writer.left]
        if missing:
            raise ValueError(f"{', '.join(missing)} not written to the end")
        weight_map = {name: self._writers[shard].path.name for name, shard in sorted(self._shard_of.items())}
        write_json(
            self._folder / INDEX_NAME,
            {"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map},
        )


def cut_shards(plans: Iterable[TensorPlan], shard_bytes: int) -> list[list[TensorPlan]]:
    """Cut tensors into consecutive groups of at most `shard_bytes` bytes, or one tensor."""
    groups: list[list[TensorPlan]] = []
    size = 0
    for plan in plans:
        if not groups or size + plan.nbytes > shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(plan)
        size += plan.nbytes
    return groups


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file as people read it, complete or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
