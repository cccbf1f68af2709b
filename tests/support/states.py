"""Sessions that go on from snapshots, as tests drive them; and the program that does so in a new process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flashnext import _core
from flashnext.engine.core import Bytes, ChunkPart, CoreOptions, ReplyOptions
from flashnext.engine.frame import Frame
from flashnext.engine.load import Loaded, load_model
from flashnext.engine.loaded_core import LoadedCore

from support.played import Left, Reference, Request

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Image:
    """All bytes of a snapshot."""

    n: int
    block: bytes
    pages: tuple[bytes, ...]


def array(data: bytes) -> Bytes:
    """The same bytes as the core takes them."""
    return np.frombuffer(data, np.uint8)


class Desk:
    """A core whose replies are compared with the plain reference's.

    Attributes:
        core: Its drafts are not priced.
        reference: Made of the prompts.
    """

    def __init__(
        self,
        loaded: Loaded,
        prompts: Sequence[Tokens],
        frames: Sequence[Frame | None] = (),
        *,
        lone: bool = True,
    ) -> None:
        self.reference = Reference(loaded, prompts, frames)
        self.core = LoadedCore(loaded, loaded.model.vocab_size, CoreOptions(lone=lone, prices=False))
        self.core.driver.keep_hashes(True)
        self.drawn: dict[_core.Session, list[tuple[int, int]]] = {}
        self.ended: set[_core.Session] = set()

    @property
    def pool(self) -> _core.PagePool:
        return self.reference.loaded.pool

    def _axes(self, prompt: int | None) -> Tokens | None:
        frame = None if prompt is None else self.reference.frames[prompt]
        return None if frame is None else frame.axes

    def open(self, prompt: int | None = None) -> _core.Session:
        """An empty session, of a prompt where that shows media."""
        return cast(_core.Session, self.core.open(self._axes(prompt)))

    def resume(self, snapshot: Any, tokens: Tokens, prompt: int | None = None) -> _core.Session:
        """A session that goes on from a snapshot."""
        return cast(_core.Session, self.core.resume(snapshot, tokens, self._axes(prompt)))

    def image(self, snapshot: Any) -> Image:
        """Export a snapshot."""
        pages = (self.core.read_page(snapshot, i).tobytes() for i in range(len(snapshot.page_ids)))
        return Image(snapshot.n, self.core.read_block(snapshot).tobytes(), tuple(pages))

    def restore(self, image: Image) -> _core.Snapshot:
        """Import one."""
        made = self.core.restore(image.n, array(image.block), [array(page) for page in image.pages])
        return cast(_core.Snapshot, made)

    def read(
        self,
        session: _core.Session,
        tokens: Tokens,
        chunk: int = 512,
        marks: Iterable[int] = (),
        prompt: int | None = None,
    ) -> dict[int, _core.Snapshot]:
        """Read the tokens from where the session stands on, by chunks; snapshots by position of the marks.

        They are those of a prompt where that shows media.
        """
        found: dict[int, _core.Snapshot] = {}
        for at in range(session.length, len(tokens), chunk):
            part = tokens[at : at + chunk]
            here = [mark for mark in marks if at < mark <= at + len(part)]
            media = () if prompt is None else self.reference.shown(prompt, at, len(part))
            behind = tuple(mark - at for mark in here)
            (landed,) = self.core.step([ChunkPart(session, part, False, marks=behind, media=media)], [])
            assert landed.error is None and not landed.short
            for mark, snapshot in zip(here, landed.snapshots, strict=True):
                assert snapshot is not None and snapshot.n == mark
                found[mark] = cast(_core.Snapshot, snapshot)
        return found

    def begin(
        self, sessions: Mapping[_core.Session, Request], n_drafts: int = 0, marks: tuple[int, ...] = ()
    ) -> dict[_core.Session, list[Any]]:
        """Read what is left of the sessions' prompts in one pass, and draw the first tokens.

        Args:
            sessions: With what they ask.
            n_drafts: Most drafts of a round.
            marks: Of the first session's chunk.

        Returns:
            Snapshots of each.
        """
        parts: list[ChunkPart] = []
        for session, request in sessions.items():
            prompt = self.reference.prompts[request.prompt]
            end = len(prompt) + request.n
            self.core.begin(session, ReplyOptions(request.rules(), (), len(prompt), end, n_drafts))
            rest = prompt[session.length :]
            media = self.reference.shown(request.prompt, session.length, len(rest))
            parts.append(ChunkPart(session, rest, True, marks=() if parts else marks, media=media))
            self.drawn[session] = []
        landed = self.core.step(parts, [])
        self.take(landed)
        return {cast(_core.Session, one.session): list(one.snapshots) for one in landed}

    def take(self, landed: Iterable[Any]) -> None:
        """Take note of what was drawn."""
        for one in landed:
            assert one.error is None and not one.short
            self.drawn[one.session] += [(drawn.token, drawn.logits_hash) for drawn in one.tokens]
            if one.ended:
                self.ended.add(one.session)

    def run(self, sessions: Iterable[_core.Session]) -> None:
        """Let rounds go on to the ends of the replies."""
        running = [s for s in sessions if s not in self.ended]
        if running:
            self.core.start(running)
            while not self.ended.issuperset(running):
                self.take(self.core.take())
            self.take(self.core.stop())

    def left(self, session: _core.Session) -> Left:
        """What a session leaves, which is closed."""
        left = self.reference.of(session, self.drawn.pop(session))
        session.close()
        return left

    def reply(self, session: _core.Session, request: Request, n_drafts: int = 0) -> Left:
        """Read what is left of the prompt, reply, and leave."""
        self.begin({session: request}, n_drafts)
        self.run([session])
        return self.left(session)


def save(folder: Path, image: Image, desk: Desk, request: Request, n_drafts: int) -> None:
    """Write what another process needs to go on from a snapshot."""
    loaded = desk.reference.loaded
    arrays: dict[str, Any] = {f"page {i}": array(page) for i, page in enumerate(image.pages)}
    arrays |= {"block": array(image.block), "prompt": desk.reference.prompts[request.prompt]}
    np.savez(folder / "state.npz", **arrays)
    how = {
        "model": str(loaded.checkpoint.path),
        "dtype": loaded.dtype,
        "path_name": loaded.device.name.split("(")[1].split(",")[0],
        "context": loaded.context,
        "n": image.n,
        "request": asdict(request) | {"prompt": 0},
        "n_drafts": n_drafts,
    }
    (folder / "how.json").write_text(json.dumps(how))


def main(folder: Path) -> None:
    """Go on from the snapshot in a folder, and print what the reply leaves."""
    how = json.loads((folder / "how.json").read_text())
    with np.load(folder / "state.npz") as saved:
        state = {name: saved[name] for name in saved.files}
    loaded = load_model(
        Path(how["model"]), device="cpu", dtype=how["dtype"], path_name=how["path_name"],
        context=how["context"], sequences=2, threads=1,
    )  # fmt: skip
    desk = Desk(loaded, [state["prompt"]])
    pages = [state[f"page {i}"] for i in range(len(state) - 2)]
    snapshot = desk.core.restore(how["n"], state["block"], pages)
    session = desk.resume(snapshot, state["prompt"][: how["n"]])
    left = desk.reply(session, Request(**how["request"]), how["n_drafts"])
    print(json.dumps({"left": asdict(left), "identity": desk.core.identity()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
