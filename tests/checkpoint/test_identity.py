"""Two checkpoints have one identity only where their weights are the same."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flashnext.checkpoint import open_checkpoint
from flashnext.checkpoint.identity import identity
from flashnext.engine.engine import BUNDLED


def test_an_identity_changes_with_a_files_content_its_time_and_the_config(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED, folder)
    before = identity(open_checkpoint(folder))
    assert identity(open_checkpoint(folder)) == before
    (weights,) = folder.glob("*.safetensors")
    status = weights.stat()
    with weights.open("r+b") as file:  # the last byte, and the time as it was
        file.seek(status.st_size * 63 // 64)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = identity(open_checkpoint(folder))
    with weights.open("r+b") as file:  # and where no sample lies
        file.seek(status.st_size // 64 // 2 + 4096)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    between = identity(open_checkpoint(folder))
    other = weights.with_name("other")
    shutil.copy2(weights, other)
    other.replace(weights)
    copied = identity(open_checkpoint(folder))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    touched = identity(open_checkpoint(folder))
    assert len({before, changed, between, copied, touched}) == 5
