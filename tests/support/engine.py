"""The engine as tests drive it: loaded models, rows through sessions, and bits compared by hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flashnext import _core as core
from flashnext.engine.frame import Frame
from flashnext.engine.load import Loaded, load_model

Tokens = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Shown = tuple[int, core.Features, int, int]
"""Rows of a chunk that show media: the first, features, the first of them, how many."""

PATHS: tuple[str, ...] = tuple(core.instruction_paths())
METAL_HOST, CUDA = "metal-host", "cuda"


def why_no_cuda() -> str:
    """Why no test can run on a GPU here; empty where one can."""
    if CUDA not in core.device_kinds():
        return "needs a build with FLASHNEXT_CUDA=ON (docs/metal.md)"
    try:
        core.open_device(CUDA)
    except RuntimeError as e:
        return str(e)
    return ""


WHY_NO_CUDA = why_no_cuda()
DEVICES: tuple[str, ...] = (
    *PATHS,
    *({METAL_HOST} & set(core.device_kinds())),
    *(() if WHY_NO_CUDA else (CUDA,)),
)
"""What kernels run on: the CPU's paths, metal-host where the build has it, and a GPU where one is."""
CONTEXT = 1024
MAX_WINDOW = 64


def open_device(name: str, seed: int = 1, *, checked: bool = True) -> core.Device:
    """Open one of DEVICES; threads of metal-host run in a random order of that seed, checked or quickly."""
    if name == METAL_HOST:
        order = "random" if checked else "random, unchecked"
        return core.open_device(METAL_HOST, 0, order, shuffle_seed=seed)
    if name == CUDA:
        return core.open_device(CUDA)
    return core.open_device("cpu", 2, name)


class Engine:
    """One loaded model, its pages and a runner.

    Args:
        path: The checkpoint.
        instructions: Instruction path of the CPU device.
        dtype: Of activations and caches.
        options: Further arguments of `load_model`.
    """

    def __init__(self, path: Path, instructions: str = "", dtype: str = "float32", **options: Any) -> None:
        given = {"context": CONTEXT, "max_window": MAX_WINDOW, "sequences": 4} | options
        self.loaded: Loaded = load_model(path, device="cpu", path_name=instructions, dtype=dtype, **given)
        self.runner = core.Runner(self.loaded.model)

    def session(self, frame: Frame | None = None) -> core.Session:
        """An empty session, of a prompt where that shows media."""
        made = core.Session(self.loaded.model, self.loaded.pool)
        if frame is not None:
            made.set_frame(frame.axes)
        return made

    def shown(self, frame: Frame | None, start: int, n: int) -> list[Shown]:
        """What n rows of a prompt show."""
        if frame is None:
            return []
        return [
            (first, core.Features(self.loaded.model, frame.see(media)), row, count)
            for first, media, row, count in frame.within(start, n)
        ]

    def prompt(self, session: core.Session, tokens: Tokens, media: Sequence[Shown] = ()) -> Float32:
        """One prompt chunk; (rows, vocab) logits."""
        return self.forward([(session, tokens, False)], [media])[0]

    def window(
        self, session: core.Session, tokens: Tokens, keep: int | None = None, media: Sequence[Shown] = ()
    ) -> Float32:
        """One window, of which the first `keep` rows (all by default) are committed; logits of all its
        rows."""
        logits = self.forward([(session, tokens, True)], [media])[0]
        session.keep(len(tokens) if keep is None else keep)
        return logits

    def forward(
        self, parts: Sequence[tuple[core.Session, Tokens, bool]], media: Sequence[Sequence[Shown]] = ()
    ) -> list[Float32]:
        """One pass over (session, tokens, is_window) parts, and what each shows; logits of each part's
        rows."""
        return self.runner.forward(parts, media)

    def alone(self, tokens: Tokens, chunk: int = 512, frame: Frame | None = None) -> Float32:
        """Logits of every row of a sequence read by prompt chunks on a fresh session."""
        session, out = self.session(frame), []
        for at in range(0, len(tokens), chunk):
            part = tokens[at : at + chunk]
            out.append(self.prompt(session, part, self.shown(frame, at, len(part))))
        session.close()
        return np.concatenate(out)


def row_hashes(logits: Float32) -> list[str]:
    """A hash of each row's float32 bits, which differs as soon as one bit does."""
    assert logits.dtype == np.float32
    return [hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in logits]


def first_difference(expected: Sequence[str], found: Sequence[str]) -> int | None:
    """The first row whose hashes differ (a missing row differs), or None."""
    for row in range(max(len(expected), len(found))):
        if row >= len(expected) or row >= len(found) or expected[row] != found[row]:
            return row
    return None
