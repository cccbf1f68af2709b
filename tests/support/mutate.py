"""Damaging checkpoint folders on purpose: edits of JSON files, headers and tensors; and the refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flashnext.checkpoint import open_checkpoint
from flashnext.checkpoint.safetensors import read_header
from flashnext.checkpoint.writer import SafetensorsWriter, TensorPlan
from flashnext.errors import CheckpointError

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]  # name -> dtype, shape, bytes


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Let `edit` change the object in a JSON file."""
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def edit_text_config(folder: Path, **changes: Any) -> None:
    """Set keys of text_config."""
    edit_json(folder / "config.json", lambda raw: raw["text_config"].update(changes))


def join(header: bytes, data: bytes) -> bytes:
    """The bytes of a safetensors file."""
    return len(header).to_bytes(8, "little") + header + data


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def edit_header(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Let `edit` change the header of a safetensors file; the data stays as it is."""
    header, data = split(path.read_bytes())
    edit(header)
    path.write_bytes(join(json.dumps(header).encode(), data))


def load_tensors(folder: Path) -> Tensors:
    """All tensors of all .safetensors files in a folder."""
    out: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        for ref in read_header(path).values():
            out[ref.name] = (ref.dtype, ref.shape, content[ref.offset : ref.offset + ref.nbytes])
    return out


def save_tensors(folder: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Replace the shards and the index of a folder by one model.safetensors."""
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        path.unlink()
    plans = [TensorPlan(name, dtype, shape) for name, (dtype, shape, _) in tensors.items()]
    with SafetensorsWriter(folder / "model.safetensors", plans, {"format": "pt"}) as writer:
        for name, (_, _, data) in tensors.items():
            writer.append(name, data)


def edit_tensors(folder: Path, edit: Callable[[Tensors], object]) -> None:
    """Let `edit` change the tensors of a folder, which then has one model.safetensors."""
    tensors = load_tensors(folder)
    edit(tensors)
    save_tensors(folder, tensors)


def refused(folder: Path, words: str) -> str:
    """Opening must fail by one printable sentence that matches `words`."""
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(folder)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.isprintable()
    return sentence
