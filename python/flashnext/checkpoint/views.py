"""Where a tensor's bytes lie in the files of a checkpoint, and reading small ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flashnext.checkpoint.safetensors import tensor_bytes
from flashnext.errors import CheckpointError


@dataclass(frozen=True)
class TensorView:
    """Where the bytes of one canonical tensor lie; nothing is read or mapped.

    Attributes:
        file: Index into `Checkpoint.files`.
        offset: First byte in that file.
        dtype: "BF16", "F32", "U32" or "I64".
        shape: Elements along each axis; that of the words for a quantized `weight`.
        batch_stride: Bytes between entries of the first axis, or 0 where the tensor is dense.
    """

    file: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    batch_stride: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements, without what lies between them."""
        return tensor_bytes(self.dtype, self.shape)


def read_view(files: tuple[Path, ...], view: TensorView) -> bytes:
    """Read the bytes of `view`, gathered into one piece.

    Raises:
        CheckpointError: The file cannot be read or has become shorter.
    """
    count = view.shape[0] if view.batch_stride else 1
    size = view.nbytes // max(count, 1)
    path = files[view.file]
    try:
        with path.open("rb", buffering=0) as file:
            parts = []
            for i in range(count):
                at, left = view.offset + i * view.batch_stride, size
                while left:
                    part = os.pread(file.fileno(), left, at)
                    if not part:
                        raise CheckpointError(f"{path} ends at byte {at} inside a tensor; fetch it again")
                    parts.append(part)
                    at, left = at + len(part), left - len(part)
            return b"".join(parts)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def read_floats(files: tuple[Path, ...], view: TensorView) -> npt.NDArray[np.float32]:
    """Read a BF16 or F32 tensor as float32 values, in its shape."""
    data = read_view(files, view)
    if view.dtype == "F32":
        return np.frombuffer(data, "<f4").reshape(view.shape)
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view(np.float32).reshape(view.shape)
