"""What stands for the weights of a checkpoint, found without reading all of them."""

from __future__ import annotations

import hashlib

from flashnext.checkpoint.layout import Checkpoint
from flashnext.errors import CheckpointError

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def identity(checkpoint: Checkpoint) -> str:
    """Hash a checkpoint: 64 hexadecimal digits, which differ where its weights may.

    The config, where each tensor lies, and of each file name, size, both times of change, inode and samples
    spread over it. Times of modification may be set, and often are alike in images and copies; those of the
    inode cannot. So a copy of the same files counts as another checkpoint, which costs a cache and no reply.

    Raises:
        CheckpointError: A file can no longer be read.
    """
    tensors = sorted((name, repr(view)) for name, view in checkpoint.tensors.items())
    digest = hashlib.sha256(repr((checkpoint.config, checkpoint.zero_centred, tensors)).encode())
    for path in checkpoint.files:
        try:
            with path.open("rb") as file:
                status = path.stat()
                times = status.st_mtime_ns, status.st_ctime_ns
                digest.update(repr((path.name, status.st_size, status.st_ino, *times)).encode())
                for i in range(_SAMPLES):
                    file.seek(status.st_size * i // _SAMPLES)
                    digest.update(file.read(_SAMPLE_BYTES))
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()
