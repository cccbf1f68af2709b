"""Checkpoints from a model hub, by `huggingface_hub`: room is looked for first, hashes are checked after."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from flashnext.errors import CheckpointError

FILES = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "*.md", "LICENSE*")
"""What of a repository is fetched; a checkpoint needs nothing else."""

SPARE_BYTES = 1 << 30
"""Room on the disk that is left alone."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[\w./-]+)?", re.ASCII)
_READ_BYTES = 1 << 20

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class HubName:
    """A repository and what of its history is meant.

    Attributes:
        repo: ORG/NAME.
        revision: Branch, tag or commit; None for the main branch.
    """

    repo: str
    revision: str | None = None

    @classmethod
    def read(cls, text: str) -> HubName:
        """Read ORG/NAME[@REV].

        Raises:
            CheckpointError: It is not of that form.
        """
        if not is_hub_name(text):
            raise CheckpointError(f"{text!a}: expected ORG/NAME or ORG/NAME@REVISION")
        repo, _, revision = text.partition("@")
        return cls(repo, revision or None)


def is_hub_name(text: str) -> bool:
    """Whether a text can be the name of a repository."""
    return _NAME.fullmatch(text) is not None


def pull(
    name: HubName,
    *,
    offline: bool = False,
    endpoint: str | None = None,
    cache: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Path:
    """Fetch a checkpoint into the hub's cache, or what of it is not there yet.

    A file that was cut short goes on where it stopped. Each file that was fetched is compared with the size
    and hash that the hub tells.

    Args:
        name: What to fetch.
        offline: Use what the cache has, and ask nobody.
        endpoint: Address of the hub or of a mirror; default `HF_ENDPOINT` or the library's own.
        cache: Folder of the cache; default the library's.
        progress: Called with the bytes that are there and those of all files.

    Returns:
        The folder of the checkpoint.

    Raises:
        CheckpointError: The library is missing, the repository cannot be had, there is no room for it, or
            what came is damaged.
    """
    try:
        import huggingface_hub as hub
    except ImportError:
        raise CheckpointError(
            f"{name.repo}: fetching needs huggingface_hub; install 'flashnext[hub]', or give a folder"
        ) from None
    try:
        if offline:
            return Path(
                hub.snapshot_download(
                    name.repo, revision=name.revision, cache_dir=cache, local_files_only=True
                )
            )
        api = hub.HfApi(endpoint=endpoint)
        info = api.model_info(name.repo, revision=name.revision, files_metadata=True)
        files = [f for f in info.siblings or () if any(fnmatch(f.rfilename, pattern) for pattern in FILES)]
        if not any(f.rfilename.endswith(".safetensors") for f in files):
            raise CheckpointError(
                f"{name.repo}: the repository has no .safetensors file, so it is no checkpoint"
            )
        wanted: dict[str, Any] = {"repo_id": name.repo, "revision": info.sha, "cache_dir": cache}
        missing = [
            f
            for f in files
            if not isinstance(hub.try_to_load_from_cache(filename=f.rfilename, **wanted), str)
        ]
        total, need = (sum(f.size or 0 for f in some) for some in (files, missing))
        _require_room(name, Path(cache or hub.constants.HF_HUB_CACHE), need)
        done = total - need
        for file in missing:
            before = done

            def told(n: int, before: int = before) -> None:
                nonlocal done
                done = min(done + n, total)
                progress(done, total)

            path = Path(
                hub.hf_hub_download(
                    filename=file.rfilename, endpoint=endpoint, tqdm_class=_bar(told), **wanted
                )
            )
            _verify(name, file, path)
            done = before + (file.size or 0)
            progress(done, total)
        found = hub.snapshot_download(name.repo, revision=info.sha, cache_dir=cache, local_files_only=True)
        _remember(Path(found), name.revision or "main", info.sha)
        return Path(found)
    except hub.errors.LocalEntryNotFoundError:
        raise CheckpointError(
            f"{name.repo}: it is not in the cache, and "
            + (
                "nothing is fetched offline"
                if offline
                else "the hub does not answer; try again, or another --endpoint"
            )
        ) from None
    except hub.errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        raise CheckpointError(f"{name.repo}: the hub refuses it ({status}): {_first_line(error)}") from None
    except OSError as error:
        raise CheckpointError(f"{name.repo}: cannot be fetched: {_first_line(error)}") from None
    except Exception as error:  # of the HTTP library, whichever the hub's client uses
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{name.repo}: cannot be fetched: {type(error).__name__}: {_first_line(error)}"
        ) from None


def _remember(folder: Path, revision: str, commit: str | None) -> None:
    """Note which commit a branch or tag is, as the library's cache does, so that it is found offline."""
    if commit is not None and revision != commit:
        note = folder.parents[1] / "refs" / revision
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(commit)


def _require_room(name: HubName, cache: Path, need: int) -> None:
    folder = cache.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if need + SPARE_BYTES > free and need:
        raise CheckpointError(
            f"{name.repo}: {need / 2**30:.2f} GiB are to be fetched, and {folder} has "
            f"{free / 2**30:.2f} GiB free, of which {SPARE_BYTES / 2**30:.0f} are left alone; "
            "make room, or give another --cache"
        )


def _verify(name: HubName, file: Any, path: Path) -> None:
    """Compare a file with what the hub tells of it; a damaged one is removed."""
    size = path.stat().st_size
    problem = None
    if file.size is not None and size != file.size:
        problem = f"it has {size} bytes, the hub tells of {file.size}"
    else:
        if file.lfs is not None:
            digest, told = hashlib.sha256(), file.lfs.sha256
        else:
            digest, told = hashlib.sha1(b"blob %d\0" % size), file.blob_id  # as git names a file
        if told is not None:
            for piece in _pieces(path):
                digest.update(piece)
            if digest.hexdigest() != told:
                problem = f"its hash is {digest.hexdigest()[:16]}, the hub tells of {told[:16]}"
    if problem:
        os.unlink(path.resolve())
        path.unlink(missing_ok=True)
        raise CheckpointError(
            f"{name.repo}: {file.rfilename} came damaged: {problem}; it was removed, fetch again"
        )


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            yield piece


def _bar(told: Callable[[int], None]) -> Any:
    """Make what the library takes for its progress bar, which tells us instead of a terminal."""
    base: Any = importlib.import_module("tqdm").tqdm

    def begin(self: Any, *args: Any, **more: Any) -> None:
        base.__init__(self, *args, **{**more, "disable": True})
        told(int(more.get("initial") or 0))

    def update(self: Any, n: float | None = 1) -> None:
        told(int(n or 0))

    return type("Bar", (base,), {"__init__": begin, "update": update})


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
