"""An engine with its own vision tower: whatever comes, leaves, waits and is resumed, each reply is the one
that is given cold, alone and undrafted, and the tower sees each picture once."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flashnext import _core
from flashnext.engine.engine import Engine
from flashnext.engine.events import Reply
from flashnext.engine.frame import MediaPrompt
from flashnext.engine.sampling import Sampling
from flashnext.errors import DeviceError
from flashnext.media import Limits, Media
from support.pages import pages_came_back
from support.seen import GOLDEN, TINY, pads, prepared

SEEDS = int(os.environ.get("FLASHNEXT_SIGHT_SEEDS", "4"))
PICTURES: list[Media] = [one for name in ("image-0", "image-3", "image-4") for one in prepared(GOLDEN[name])]
FILM = prepared(GOLDEN["video-1-flat"])[0]
TOLD = "Look at this, and say what it is. " * 3


def make(**more: Any) -> Engine:
    given: dict[str, Any] = {"context": 1024, "parallel": 4, "drafts": 3, "prefix_cache_gib": 0.05}
    return Engine(TINY / "hf", device="cpu", dtype="float32", **given | more)


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with make(prefix_cache_gib=0, parallel=1, drafts=0, lone=False) as engine:
        yield engine


def turns(engine: Engine, *pieces: Media | str) -> MediaPrompt:
    """A prompt of text and media, as token ids, that the engine's own eyes see."""
    ids: list[int] = []
    start, end = (engine.tokenizer.control_ids[f"<|vision_{side}|>"] for side in ("start", "end"))
    for piece in pieces:
        if isinstance(piece, str):
            ids += engine.tokenizer.encode(piece)
            continue
        for said, n in piece.spans():
            pad = pads()[piece.kind == "video"]
            ids += [*engine.tokenizer.encode(said), start, *[pad] * n, end]
    assert engine.eyes is not None
    return MediaPrompt(ids, [piece for piece in pieces if isinstance(piece, Media)], engine.eyes.see)


def same(reply: Reply, plain: Engine, pieces: tuple[Media | str, ...], how: Sampling, note: object) -> None:
    assert plain.submit(turns(plain, *pieces), sampling=how).result() == reply, note


def test_the_tower_sees_an_image_once_over_a_whole_chat(plain: Engine) -> None:
    how = Sampling(temperature=0, seed=0, max_tokens=8, logprobs=2)
    with make() as engine:
        history: tuple[Media | str, ...] = (TOLD, PICTURES[0], "What is it? ")
        seen = []
        for more in ((), ("And the color? ",), (PICTURES[1], "And this? "), ("Are both the same? ",)):
            history += more
            reply = engine.submit(turns(engine, *history), sampling=how).result()
            seen.append((engine.counts.vision.media, reply.usage.cached_tokens > 0))
            same(reply, plain, history, how, history)
            history += (engine.tokenizer.decode(list(reply.token_ids)[:5]),)
        assert seen == [(1, False), (1, True), (2, True), (2, True)]
        counts = engine.counts.vision
        assert counts.tokens == PICTURES[0].n_tokens + PICTURES[1].n_tokens and counts.passes == 2
        assert counts.seconds > 0 and counts.cached == 0
        # What the prefix cache does not have comes of the features that are still there.
        other = engine.submit(turns(engine, "b", PICTURES[0], "? "), sampling=how).result()
        assert other.usage.cached_tokens == 0
        assert engine.counts.vision.media == 2 and engine.counts.vision.cached == 1


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_comes_and_leaves_replies_are_those_of_the_cold_engine(
    seed: int, plain: Engine, tmp_path: Path
) -> None:
    """Families that begin alike, pictures beside text, cancelled ones, few pages, restarts from disk."""
    rng = random.Random(seed)
    pieces: list[Media | str] = [*PICTURES, FILM, "Well. ", "And then? ", TOLD, "No, the other one. "]
    settings: dict[str, Any] = {
        "parallel": rng.choice([1, 3, 4]), "drafts": rng.choice([0, 3]), "context": rng.choice([512, 640]),
        "prefix_cache_gib": rng.choice([0.0, 0.005, 0.05]), "round_rows": rng.choice([8, 32]),
    }  # fmt: skip
    if settings["prefix_cache_gib"]:
        settings["spill_dir"] = tmp_path
    note = f"seed {seed}: {settings}"
    families = [tuple(rng.choices(pieces, k=rng.randint(1, 3))) for _ in range(3)]
    cancelled = 0
    for _ in range(2):  # the second one finds what the first left on the disk
        with make(**settings) as engine:
            open_requests = []
            for _ in range(12):
                shown = (*rng.choice(families), *rng.choices(pieces, k=rng.randint(0, 2)), "Say. ")
                how = Sampling(
                    temperature=rng.choice([0.0, 0.8]), seed=rng.randrange(99), logprobs=1,
                    max_tokens=rng.choice([1, 12, 40]), cache=rng.random() < 0.9,
                    priority=rng.choice(["normal", "background"]),
                )  # fmt: skip
                request = engine.submit(turns(engine, *shown), sampling=how)
                if rng.random() < 0.2:
                    request.cancel()
                    cancelled += 1
                else:
                    open_requests.append((request, shown, how))
                if rng.random() < 0.3:
                    time.sleep(rng.random() * 0.02)
            for request, shown, how in open_requests:
                same(request.result(), plain, shown, how, note)
            assert pages_came_back(engine), note
    assert cancelled, note


def test_the_towers_room_is_not_to_be_seen_in_replies(plain: Engine) -> None:
    how = Sampling(temperature=0.7, seed=3, max_tokens=12, logprobs=2)
    shown = (TOLD, PICTURES[0], FILM, "What is it? ")
    replies = []
    for tokens in (150, None):
        with make(media_limits=Limits(image_tokens=tokens)) as engine:
            replies.append(engine.submit(turns(engine, *shown), sampling=how).result())
            rooms = engine.eyes.max_patches  # type: ignore[union-attr]
            assert engine.loaded.tower is not None and engine.loaded.tower.max_patches == rooms
    assert replies[0] == replies[1]
    same(replies[0], plain, shown, how, "room")


def test_an_engine_without_vision_loads_no_tower_and_says_so() -> None:
    with make(vision=False) as engine:
        assert engine.eyes is None and engine.loaded.tower is None
        assert engine.plan.features_bytes == engine.plan.tower_scratch_bytes == 0
        assert engine.counts.vision.media == 0
        said = engine.submit("Hello", sampling=Sampling(max_tokens=2)).result()
        assert said.token_ids


def test_a_failed_pass_ends_its_request_alone_and_the_next_one_is_answered(plain: Engine) -> None:
    how = Sampling(temperature=0, seed=0, max_tokens=30, ignore_eos=True, logprobs=1)
    shown = (TOLD, PICTURES[0], "What is it? ")
    with make() as engine:
        beside = engine.submit("1 2 3", sampling=how)
        next(beside)
        _core.testing.fail_dispatch(engine.loaded.device, "slice_attention")
        with pytest.raises(DeviceError, match="vision tower"):
            engine.submit(turns(engine, *shown), sampling=how).result()
        assert len(beside.result().token_ids) == 30
        same(engine.submit(turns(engine, *shown), sampling=how).result(), plain, shown, how, "after")
        assert engine.counts.vision.media == 1 and pages_came_back(engine)
