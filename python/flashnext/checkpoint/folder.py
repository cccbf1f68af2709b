"""Opening files of an untrusted checkpoint folder: none outside it, regular files only, strict JSON."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NoReturn

from flashnext.checkpoint.fields import shown, shown_path
from flashnext.checkpoint.hub import is_hub_name
from flashnext.errors import CheckpointError

JSON_LIMIT_BYTES = 100_000_000


def open_folder(path: str | Path) -> Path:
    """Find the real path of a checkpoint folder.

    Raises:
        CheckpointError: There is no such folder.
    """
    folder = Path(path)
    try:
        if folder.is_dir():
            return folder.resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{shown_path(path)} cannot be opened: {_reason(error)}") from None
    if folder.exists():
        raise CheckpointError(
            f"{folder} is a file; a checkpoint is a folder with config.json and .safetensors files"
        )
    fetched = f"; `flashnext pull {path}` fetches one of a hub" if is_hub_name(str(path)) else ""
    raise CheckpointError(
        f"{shown_path(path)} does not exist; a checkpoint is a folder with config.json in it{fetched}"
    )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or shown(str(error))


def find_file(folder: Path, name: str) -> Path | None:
    """Find the real path of the regular file `name` in `folder`, or None where there is no such entry.

    A symbolic link may not lead out of the folder, with one exception: in a hub cache, files of
    `models--ORG--NAME/snapshots/REVISION` are links into `models--ORG--NAME/blobs`.

    Args:
        folder: What `open_folder` returned.
        name: A plain file name.

    Raises:
        CheckpointError: `name` is a path, or the entry is no regular file, is a broken link or leads out of
            the folder.
    """
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError(
            f"{folder}: {shown(name)} is not a plain file name; files must lie in the folder itself"
        )
    entry = folder / name
    try:
        real = entry.resolve(strict=True)
        mode = real.stat().st_mode
    except FileNotFoundError:
        if entry.is_symlink():
            raise CheckpointError(
                f"{entry} is a link to a file that does not exist; fetch the file again"
            ) from None
        return None
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: {shown(name)} cannot be opened: {_reason(error)}") from None
    if not any(real.is_relative_to(root) for root in _roots(folder)):
        raise CheckpointError(
            f"{entry} is a link that leads out of the folder, to {real}; copy the file into the folder"
        )
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{entry} is not a regular file")
    return real


def _roots(folder: Path) -> tuple[Path, ...]:
    repository = folder.parent.parent
    if folder.parent.name == "snapshots" and repository.name.startswith("models--"):
        return folder, repository / "blobs"
    return (folder,)


def need_file(folder: Path, name: str) -> Path:
    """Like `find_file`, but a file that is not there is an error."""
    real = find_file(folder, name)
    if real is None:
        raise CheckpointError(f"{folder} has no {name}; the folder is not a complete checkpoint")
    return real


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object strictly: UTF-8, no key twice, no NaN, no lone surrogate, bounded nesting.

    Args:
        data: The document.
        where: How error sentences call it.

    Raises:
        CheckpointError: It is not such an object.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise CheckpointError(f"{where} has the key {shown(key)} twice in one object")
                seen.add(key)
        return out

    def constant(name: str) -> NoReturn:
        raise CheckpointError(f"{where} holds {name}, which is not JSON")

    def whole(text: str) -> int | float:
        return -0.0 if text == "-0" else int(text)  # other readers take -0 for a fraction

    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant, parse_int=whole
        )
        if data.find(b"\\u") >= 0:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # fails on a lone surrogate
    except CheckpointError:
        raise
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{where} is not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise CheckpointError(f"{where} holds half of a surrogate pair") from None
    except RecursionError:
        raise CheckpointError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} must hold a JSON object, found {shown(value)}")
    return value


def read_json(path: Path, limit_bytes: int = JSON_LIMIT_BYTES) -> dict[str, Any]:
    """Read the JSON object in a file of at most `limit_bytes` bytes.

    Raises:
        CheckpointError: The file cannot be read, is larger, or `parse_json` refuses it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > limit_bytes:
        raise CheckpointError(
            f"{path} has more than {limit_bytes} bytes, the most that is read of a JSON file"
        )
    return parse_json(data, str(path))
