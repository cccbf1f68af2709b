"""Chats that show pictures and videos, in all ways to bring them: from messages to replies and refusals."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flashnext.checkpoint import Checkpoint
from flashnext.engine import histories as histories_module
from flashnext.engine.core import Floats
from flashnext.engine.engine import Engine, why_no_eyes
from flashnext.engine.errors import ContextExceeded, EngineClosed
from flashnext.engine.events import Reply
from flashnext.engine.many import BatchItem
from flashnext.engine.sampling import Sampling
from flashnext.engine.wording import ARGUMENTS, FLAGS
from flashnext.errors import InvalidArgument
from flashnext.media import FramesPart, ImagePart, Limits, Media, VideoPart, pool
from flashnext.media.preparing import prepare
from flashnext.text.messages import InvalidField
from flashnext.text.template import TemplateOptions
from PIL import Image
from support.media_files import encoded, moving, video_file
from support.pages import pages_came_back
from support.seen import GOLDEN, TINY, golden_parts, prepared, see

WAIT_S = 120.0
ASKED = Counter[bytes]()


class Eyes:
    """The reference tower; counts how often it is asked for what."""

    def see(self, media: Media) -> Floats:
        ASKED[media.key] += 1
        return see(media)


def make(**more: Any) -> Engine:
    given: dict[str, Any] = {"context": 1024, "parallel": 4, "drafts": 3, "prefix_cache_gib": 0.2}
    made = Engine(TINY / "hf", device="cpu", dtype="float32", **given | more)
    if more.get("vision", True):
        made.eyes = Eyes()
    return made


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = make(media_limits=Limits(image_bytes=2**20, video_bytes=2**20, max_images=5, max_videos=2))
    yield made
    assert pages_came_back(made)
    made.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with make(prefix_cache_gib=0, parallel=1, drafts=0) as made:
        yield made


@pytest.fixture(autouse=True)
def reset() -> None:
    ASKED.clear()


def file(name: str) -> Path:
    return TINY / "media" / f"{name}.png"


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def image(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "image", "image": value, **more}


def user(*parts: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts],
    }


HOW = Sampling(temperature=0.7, seed=3, max_tokens=24, logprobs=2)


def ask(engine: Engine, plain: Engine, chat: list[dict[str, Any]], **more: Any) -> Reply:
    """Ask both and compare all that they say; what the plain one looks at does not count."""
    reply = engine.submit(chat, sampling=HOW, **more).result()
    before = Counter(ASKED)
    assert plain.submit(chat, sampling=HOW, **more).result() == reply
    ASKED.clear()
    ASKED.update(before)
    return reply


# --- replies


def test_golden_chats_together_give_their_golden_ids_and_tokens(engine: Engine) -> None:
    requests = {
        name: engine.submit(
            golden_parts(case),
            sampling=Sampling(temperature=0, max_tokens=len(case["output_ids"])),
            options=TemplateOptions(enable_thinking=case["enable_thinking"]),
        )
        for name, case in GOLDEN.items()
    }
    for name, request in requests.items():
        expected = GOLDEN[name.replace("nested", "flat")]  # markers around a whole video are not written here
        assert list(request.prompt_ids) == expected["prompt_ids"], name
        assert list(request.result().token_ids) == expected["output_ids"], name


def test_a_picture_is_the_same_however_it_is_brought(engine: Engine, plain: Engine) -> None:
    path = file("image-0-0")
    data = path.read_bytes()
    bitmap = encoded(Image.open(path), "BMP")
    (media,) = prepared(GOLDEN["image-0"])
    ways: list[Any] = [
        image(path),
        image(data),
        image(bytearray(data)),
        image(bitmap),
        image(ImagePart(data)),
        image(media),
        image(data, detail="auto"),
        {"type": "image_url", "image_url": {"url": url(data)}},
        {"type": "image_url", "image_url": {"url": url(data).replace("data", "DATA", 1), "detail": "high"}},
    ]
    replies = [engine.submit([user(way, "What is it?")], sampling=HOW) for way in ways]
    assert len({tuple(one.prompt_ids) for one in replies}) == 1
    assert len({one.result().token_ids for one in replies}) == 1
    assert sum(ASKED.values()) <= len(ways) and set(ASKED) == {media.key}
    ask(engine, plain, [user(ways[0], "What is it?")])
    chat = user(ways[0], "What is it?")
    frozen = [MappingProxyType({**chat, "content": tuple(map(MappingProxyType, chat["content"]))})]
    for messages in (frozen, tuple(frozen)):
        assert asyncio.run(engine.read_async(messages)).token_ids == list(replies[0].prompt_ids)


def test_a_video_is_the_same_however_it_is_brought(engine: Engine, plain: Engine, tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs the extra `video`")
    data = video_file(moving(8, 40, 48))
    path = tmp_path / "moving.mp4"
    path.write_bytes(data)
    ways: list[Any] = [
        *({"type": "video", "video": value} for value in (path, data, VideoPart(data))),
        {"type": "video_url", "video_url": {"url": url(data)}},
    ]
    replies = [ask(engine, plain, [user(way, "Where does the shape move?")]) for way in ways]
    assert all(reply == replies[0] for reply in replies)
    assert len(ASKED) == 1


def test_detail_beside_a_picture_counts_before_its_own(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, details = file("image-0-0").read_bytes(), []

    def watched(part: Any, *more: Any) -> Media:
        details.append(part.detail)
        return prepare(part, *more)

    monkeypatch.setattr(pool, "prepare", watched)
    for part in (
        image(data),
        image(data, detail="low"),
        image(ImagePart(data, "low")),
        image(ImagePart(data, "low"), detail="high"),
        {"type": "image_url", "image_url": {"url": url(data), "detail": "low"}},
        {"type": "image_url", "image_url": {"url": url(data)}, "detail": "high"},
    ):
        asyncio.run(engine.read_async([user(part, "x")]))
    assert details == ["auto", "low", "low", "high", "low", "high"]


def test_how_many_tokens_a_picture_takes_depends_on_nothing_beside_it(engine: Engine) -> None:
    rng = np.random.default_rng(5)
    sizes = [(int(w), int(h)) for w, h in rng.integers(20, 400, (5, 2))]
    parts = [image(encoded(Image.new("RGB", size), "PNG")) for size in sizes]

    def n_tokens(*parts: Any) -> int:
        return len(asyncio.run(engine.read_async([user(*parts, "x")])).token_ids)

    alone = [n_tokens(part) - n_tokens() for part in parts]
    assert len(set(alone)) > 1
    assert n_tokens(*parts) - n_tokens() == sum(alone), sizes


def test_a_chat_that_adds_a_picture_goes_on_from_all_before_it_and_looks_once_at_each(
    engine: Engine, plain: Engine
) -> None:
    system = {"role": "system", "content": "You look at pictures and say what they show. " * 3}
    first, second = file("image-3-0"), file("image-3-1")
    chat = [system]
    cached, lengths = [], []
    for turn in (
        [user("Hello, are you there?")],
        [user("Look: ", image(first), "which shape is it?")],
        [user("And this one? ", image(second))],
        [user("Which came first?")],
    ):
        chat += turn
        reply = ask(engine, plain, chat)
        cached.append(reply.usage.cached_tokens)
        lengths.append(reply.usage.prompt_tokens)
        chat.append({"role": "assistant", "content": reply.text, "reasoning_content": reply.reasoning})
        wait_for_histories(engine)
    pictures = prepared(GOLDEN["image-3"])
    assert dict(ASKED) == {picture.key: 1 for picture in pictures}
    for before, after in zip(lengths, cached[1:], strict=False):
        assert after >= before - 4  # a header of the turn that answers may be written otherwise


def wait_for_histories(engine: Engine) -> None:
    deadline = time.monotonic() + WAIT_S
    while (counts := engine.counts).cache.warming or counts.running or counts.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_for_passes(engine: Engine, n: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while engine.counts.cache.warm_passes < n:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    wait_for_histories(engine)
    assert engine.counts.cache.warm_passes == n


def test_a_picture_changed_in_an_early_turn_resumes_only_what_stands_before_it(
    engine: Engine, plain: Engine
) -> None:
    told = "Here comes a picture, and there is more to say of it later on. " * 4
    answer = {"role": "assistant", "content": "I see.", "reasoning_content": "A picture."}

    def chat(name: str) -> list[dict[str, Any]]:
        return [user(told, image(file(name)), "Look."), answer, user("What do you see, and why? " * 5)]

    first = ask(engine, plain, chat("image-1-0"))
    other = ask(engine, plain, chat("image-1-1"))
    again = ask(engine, plain, chat("image-1-0"))
    before = engine.submit(chat("image-1-0"), sampling=HOW)
    pad = engine.loaded.checkpoint.config.image_token
    assert pad is not None
    at = list(before.prompt_ids).index(pad)
    assert first.usage.cached_tokens <= at and other.usage.cached_tokens <= at
    assert again.usage.cached_tokens > at and again == first
    assert before.result() == first


def test_a_history_without_thoughts_is_read_with_its_pictures(engine: Engine, plain: Engine) -> None:
    """Its rows are not those of prompt and reply, so a warm pass reads them."""
    dropped = TemplateOptions(preserve_thinking=False)
    tell = "Tell me about this picture, at some length, if you would be so kind. " * 3
    chat = [user(tell, image(file("image-4-0")))]
    n_passes = engine.counts.cache.warm_passes
    reply = ask(engine, plain, chat, options=dropped)
    wait_for_passes(engine, n_passes + 1)
    chat += [{"role": "assistant", "content": reply.text, "reasoning_content": reply.reasoning}]
    chat += [user("And what else?")]
    later = ask(engine, plain, chat, options=dropped)
    assert later.usage.cached_tokens >= reply.usage.prompt_tokens
    assert set(ASKED.values()) == {1}


def test_a_batch_takes_pictures_and_tells_what_is_wrong_with_one(engine: Engine, plain: Engine) -> None:
    data = file("image-5-0").read_bytes()
    chats = [
        [user({"type": "image_url", "image_url": {"url": url(data)}}, "what shape is this")],
        [user({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, "x")],
        [user(image(b"nonsense"), "x")],
        [{"role": "user", "content": "1 + 2?"}],
    ]
    outcomes = list(engine.batch([BatchItem(chat) for chat in chats], sampling=HOW))
    errors = [str(one.error) if one.error else None for one in outcomes]
    assert errors[0] is None and errors[3] is None
    assert errors[1] and errors[1].startswith("messages[0].content[0].image_url.url: expected a data: URL")
    assert errors[2] and errors[2].startswith("messages[0].content[0]: the image is none of")
    assert outcomes[0].reply == plain.submit(chats[0], sampling=HOW).result()


# --- what is refused

PNG = encoded(Image.new("RGB", (40, 40), "red"), "PNG")
LONG = encoded(Image.new("RGB", (40, 40), "red"), "BMP") + bytes(2**20)
ROLES = "can stand in messages of user and tool, not of"


@pytest.mark.parametrize(
    ("part", "place", "problem"),
    [
        (image(PNG[:60]), "", "the PNG"),
        (image(b""), "", "the image"),
        (image(LONG), "", "1048576"),
        (
            image("cat.png"),
            ".image",
            'text names no file here: give pathlib.Path, or a data: URL as "image_url"',
        ),
        (image(None), ".image", "expected an ImagePart, the bytes of a file"),
        (image(VideoPart(b"x")), ".image", "found VideoPart"),
        (image(ImagePart("cat.png")), ".image", "found ImagePart"),  # type: ignore[arg-type]
        (image(PNG, detail="huge"), ".detail", "expected one of low, high, auto, found 'huge'"),
        (image(ImagePart(PNG, "huge")), "", "detail must be one of"),  # type: ignore[arg-type]
        (image(Path("no such file.png")), ".image", "'no such file.png' cannot be read: No such file"),
        (image(Path("a\0b")), ".image", "cannot be read"),
        (image(Path("/dev/zero")), ".image", "'/dev/zero' is no regular file"),
        (image(TINY), ".image", "cannot be read: Is a directory"),
        ({"type": "image_url", "image_url": "data:,"}, ".image_url", 'expected {"url": "data:..."}'),
        (
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            ".image_url.url",
            "no others are opened",
        ),
        (
            {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
            ".image_url.url",
            "expected a data: URL",
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png,%89"}},
            ".image_url.url",
            "must be base64",
        ),
        (
            {"type": "image_url", "image_url": {"url": url(LONG)}},
            ".image_url.url",
            "at most 1048576 are read",
        ),
        (
            {"type": "image_url", "image_url": {"url": url(PNG), "detail": 3}},
            ".image_url.detail",
            "expected one of low, high, auto, found 3",
        ),
        ({"type": "video", "video": [PNG, PNG]}, ".video", "expected a VideoPart, a FramesPart"),
        ({"type": "video", "video": FramesPart((PNG,), "2")}, ".video", "found FramesPart"),  # type: ignore[arg-type]
        ({"type": "video", "video": FramesPart((PNG, b"x"), 2)}, "", "frame 1: the image is none of"),
        (
            {"type": "video", "video": FramesPart((PNG,), 2), "detail": "low"},
            ".detail",
            "a video has no detail",
        ),
        ({"type": "video_url", "video_url": {"url": "http://a/b"}}, ".video_url.url", "expected a data: URL"),
        ({"type": "input_audio", "input_audio": {}}, "", "'input_audio'"),
    ],
)
def test_what_is_wrong_with_a_part_is_told_with_its_place(
    part: dict[str, Any], place: str, problem: str, engine: Engine
) -> None:
    chat = [user("a"), {"role": "assistant", "content": "b"}, user("c", image(PNG), part)]
    with pytest.raises(InvalidField) as caught:
        engine.submit(chat)
    assert caught.value.field == "messages[2].content[2]" + place and problem in caught.value.problem
    with pytest.raises(InvalidField) as again:
        asyncio.run(engine.read_async(chat))
    assert str(again.value) == str(caught.value)


def test_nothing_is_decoded_or_read_of_a_chat_that_is_refused_anyhow(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (media,) = prepared(GOLDEN["image-0"])
    monkeypatch.setattr(pool, "prepare", lambda *_: pytest.fail("it was decoded"))
    missing = image(tmp_path / "none.png")
    long = tmp_path / "long.png"
    with long.open("wb") as made:
        made.truncate(2**33)  # a hole
    refused: list[tuple[Any, str, str]] = [
        ([{"role": "system", "content": [missing]}], "messages[0].content[0]", f"'image' {ROLES} system"),
        (
            [user("x"), {"role": "assistant", "content": [missing]}],
            "messages[1].content[0]",
            "not of assistant",
        ),
        ([user(missing), {"role": "boss", "content": "x"}], "messages[1].role", "expected one of"),
        ([user(missing), 5], "messages[1]", "expected an object"),
        ([user(*[missing] * 6)], "messages[0].content[5]", "the request has 6 images; at most 5 are allowed"),
        ([user(image(media), *[missing] * 5)], "messages[0].content[5]", "the request has 6 images"),
        ([user(*[{"type": "video", "video": b""}] * 3)], "messages[0].content[2]", "has 3 videos; at most 2"),
        (
            [user(image(PNG), image(long))],
            "messages[0].content[1].image",
            f"has {2**33} bytes; at most {2**20}",
        ),
        (
            [user(image(media, detail="low"))],
            "messages[0].content[0].detail",
            "a prepared picture has no detail",
        ),
    ]
    for chat, place, problem in refused:
        with pytest.raises(InvalidField) as caught:
            engine.submit(chat)
        assert caught.value.field == place and problem in caught.value.problem


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(engine: Engine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InvalidField, match="is no regular file"):
        engine.submit([user(image(tmp_path / "pipe.png"))])


def test_pictures_that_make_a_prompt_too_long_are_refused_with_the_numbers() -> None:
    pictures = [image(PNG)] * 30
    with make(context=128, prefix_cache_gib=0) as short:
        n = len(asyncio.run(short.read_async([user(*pictures, "x")])).token_ids)
        said = f"messages: the prompt is too long: it has {n} tokens, .* maximum context length is 128 tokens"
        with pytest.raises(ContextExceeded, match=said):
            short.submit([user(*pictures, "x")])


def test_an_engine_without_eyes_refuses_pictures_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (media,) = prepared(GOLDEN["image-0"])
    monkeypatch.setattr(pool, "prepare", lambda *_: pytest.fail("it was decoded"))
    with make(vision=False, prefix_cache_gib=0) as blind:
        for part in (image(b""), image(media)):
            with pytest.raises(InvalidField) as caught:
                blind.submit([user("x", part)])
            assert caught.value.field == "messages[0].content[1]"
            assert "switched off; start without vision=False, or send text" in caught.value.problem
        assert blind.submit([user("1 + 2?")], sampling=HOW).result().token_ids
    for wrong in (1, None):
        with pytest.raises(InvalidArgument, match=f"vision is {wrong}, expected True or False"):
            make(vision=wrong)
    with pytest.raises(InvalidArgument, match=r"media_limits is 5, expected flashnext\.media\.Limits"):
        make(media_limits=5)


def test_why_there_are_no_eyes_is_told_in_the_words_of_who_asks() -> None:
    towers: list[Any] = [{}, None]
    sees, reads = (cast(Checkpoint, SimpleNamespace(config=SimpleNamespace(vision=one))) for one in towers)
    assert "start without --no-vision" in why_no_eyes(sees, False, FLAGS)
    for vision in (True, False):
        assert "this checkpoint has no vision tower" in why_no_eyes(reads, vision, ARGUMENTS)


# --- waiting


class Gate:
    """Stands before `prepare` and holds who comes in until it opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.entered, self.calls = threading.Event(), threading.Semaphore(0), 0
        monkeypatch.setattr(pool, "prepare", self)

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        self.entered.release()
        assert self.open.wait(WAIT_S)
        return prepare(*args)


def test_the_event_loop_goes_on_while_pictures_are_decoded_and_a_client_that_leaves_takes_its_own_along(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    chat = [user(*[image(PNG)] * 5, "x")]

    async def leave() -> None:
        reading = asyncio.create_task(engine.read_async(chat))
        for _ in range(2):
            while not gate.entered.acquire(blocking=False):
                await asyncio.sleep(0.001)
        reply = await engine.generate_async("Count from", sampling=HOW)
        assert [event async for event in reply]  # others are answered meanwhile
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(leave())
    gate.open.set()
    assert len(asyncio.run(engine.read_async([user(image(PNG))])).token_ids)
    assert gate.calls == 3  # two were being decoded, three were dropped


def test_closing_an_engine_ends_those_who_wait_for_their_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    made = make(prefix_cache_gib=0)
    raised: list[str] = []

    def wait() -> None:
        try:
            made.submit([user(*[image(PNG)] * 3)])
        except EngineClosed as error:
            raised.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert gate.entered.acquire(timeout=WAIT_S)

    async def wait_async() -> None:
        reading = asyncio.create_task(made.read_async([user(image(PNG))]))
        while len(made._media._pool()._work) < 2:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(made.close)
        with pytest.raises(EngineClosed):
            await reading

    asyncio.run(wait_async())
    gate.open.set()
    waiting.join(WAIT_S)
    assert raised == ["the engine was closed"]
    with pytest.raises(EngineClosed, match="the engine is closed"):
        made.submit([user(image(PNG))])


# --- memory


def test_pictures_of_chats_that_were_answered_are_kept_by_nobody(engine: Engine) -> None:
    (media,) = prepared(GOLDEN["image-0"])
    gone = weakref.ref(media)
    dropped = TemplateOptions(preserve_thinking=False)
    engine.submit([user(image(media), "What is it? " * 20)], sampling=HOW, options=dropped).result()
    del media
    wait_for_histories(engine)
    engine.submit("x", sampling=HOW).result()
    deadline = time.monotonic() + WAIT_S
    while gone() is not None:
        gc.collect()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_history_whose_pictures_are_too_much_beside_those_that_wait_is_left_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = prepared(GOLDEN["image-3"])
    size = sum(picture.levels.nbytes for picture in pictures)
    dropped = TemplateOptions(preserve_thinking=False)

    def tell(text: str) -> None:
        chat = [user(*map(image, pictures), text * 12)]
        engine.submit(chat, sampling=HOW, options=dropped).result()

    monkeypatch.setattr(histories_module, "MOST_MEDIA_BYTES", size - 1)
    n = engine.counts.cache.warm_passes
    tell("What is shown here? ")
    wait_for_passes(engine, n)
    monkeypatch.setattr(histories_module, "MOST_MEDIA_BYTES", size)
    for text in ("Say what they are. ", "Say what these are. "):  # one after the other there is room for both
        tell(text)
        n += 1
        wait_for_passes(engine, n)
