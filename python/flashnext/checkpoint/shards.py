"""Which tensors a checkpoint folder has and in which shard each lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashnext.checkpoint.fields import shown
from flashnext.checkpoint.folder import find_file, need_file, read_json
from flashnext.checkpoint.safetensors import TensorRef, read_header
from flashnext.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True)
class Shards:
    """The tensors of a folder.

    Attributes:
        files: Real paths of the shards.
        refs: Tensors by the names of the files.
        warnings: Sentences about files and tensors that were left out.
    """

    files: tuple[Path, ...]
    refs: dict[str, TensorRef]
    warnings: tuple[str, ...]


def open_shards(folder: Path) -> Shards:
    """Read the headers of all shards; without an index there must be a single file.

    Raises:
        CheckpointError: There are no weights, the index names a file or a tensor that is not there, or a
            header is bad.
    """
    try:
        present = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".safetensors"))
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be listed: {error.strerror}") from None
    index = find_file(folder, INDEX_NAME)
    where = _read_index(index) if index is not None else None
    if where is not None:
        used = sorted(set(where.values()))
    elif "model.safetensors" in present:
        used = ["model.safetensors"]
    elif len(present) == 1:
        used = present
    elif present:
        raise CheckpointError(
            f"{folder} has {len(present)} .safetensors files but no {INDEX_NAME} to say which of them belong "
            "together"
        )
    else:
        raise CheckpointError(f"{folder} has no .safetensors file; the folder is not a complete checkpoint")

    warnings = [
        f"{folder / name} is not part of the checkpoint and is ignored"
        for name in present
        if name not in used
    ]
    files: list[Path] = []
    refs: dict[str, TensorRef] = {}
    for name in used:
        if find_file(folder, name) is None:
            raise CheckpointError(
                f"{index} names the shard {shown(name)}, which is not there; fetch the missing file"
            )
        path = need_file(folder, name)
        header = read_header(path)
        files.append(path)
        if where is None:
            refs |= header
            continue
        extra = [tensor for tensor in header if where.get(tensor) != name]
        if extra:
            warnings.append(
                f"{folder / name} holds {len(extra)} tensors that the index does not place there, "
                f"{shown(extra[0])} among them; they are ignored"
            )
        for tensor, shard in where.items():
            if shard == name:
                if tensor not in header:
                    raise CheckpointError(
                        f"{index} places tensor {shown(tensor)} in {shown(name)}, but that shard does not "
                        "have it"
                    )
                refs[tensor] = header[tensor]
    return Shards(tuple(files), refs, tuple(warnings))


def _read_index(path: Path) -> dict[str, str]:
    value = read_json(path).get("weight_map")
    if not isinstance(value, dict) or not value or not all(isinstance(name, str) for name in value.values()):
        raise CheckpointError(
            f"{path}: weight_map must map tensor names to shard names, found {shown(value)}"
        )
    for shard in value.values():
        if not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{path}: weight_map names {shown(shard)}, which is not a .safetensors file"
            )
    return value
