"""Replies of an engine about pictures and videos: the golden ones, and bit for bit those without a cache."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext.engine.core import Floats
from flashnext.engine.engine import Engine
from flashnext.engine.events import Reply
from flashnext.engine.frame import Frame, MediaPrompt
from flashnext.engine.reading import PromptLike
from flashnext.engine.sampling import Sampling
from flashnext.errors import InvalidArgument
from flashnext.media import Media
from support.pages import pages_came_back
from support.seen import GOLDEN, TINY, pads, prepared, see

ASKED = Counter[bytes]()
_LOCK = threading.Lock()


def watched(media: Media) -> Floats:
    """What the reference tower makes of media; counts how often it is asked."""
    with _LOCK:
        ASKED[media.key] += 1
    return see(media)


def golden(name: str) -> MediaPrompt:
    return MediaPrompt(GOLDEN[name]["prompt_ids"], prepared(GOLDEN[name]), watched)


def turns(*pieces: Media | str) -> MediaPrompt:
    """A prompt of text and images, as token ids; each image stands between its markers."""
    ids: list[int] = []
    start, end = (TOKENIZER.control_ids[f"<|vision_{side}|>"] for side in ("start", "end"))
    for piece in pieces:
        if isinstance(piece, str):
            ids += TOKENIZER.encode(piece)
        else:
            ids += [start, *[pads()[0]] * piece.n_tokens, end]
    return MediaPrompt(ids, [piece for piece in pieces if isinstance(piece, Media)], watched)


def make(**more: Any) -> Engine:
    given: dict[str, Any] = {"context": 1024, "parallel": 4, "drafts": 3}
    return Engine(TINY / "hf", device="cpu", dtype="float32", **given | more)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = make(prefix_cache_gib=0.2)
    yield made
    assert pages_came_back(made)
    made.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with make(prefix_cache_gib=0, parallel=1, drafts=0) as made:
        yield made


TOKENIZER: Any = None


@pytest.fixture(autouse=True)
def reset(engine: Engine) -> None:
    global TOKENIZER
    TOKENIZER = engine.tokenizer
    ASKED.clear()


HOW = Sampling(temperature=0.7, seed=3, max_tokens=24, logprobs=2)


def ask(engine: Engine, plain: Engine, prompt: PromptLike) -> Reply:
    """Ask both and compare all that they say."""
    reply = engine.submit(prompt, sampling=HOW).result()
    before = dict(ASKED)
    assert plain.submit(prompt, sampling=HOW).result() == reply
    ASKED.clear()
    ASKED.update(before)
    return reply


def test_golden_prompts_together_give_their_golden_tokens(engine: Engine) -> None:
    how = {name: Sampling(temperature=0, max_tokens=len(case["output_ids"])) for name, case in GOLDEN.items()}
    requests = {name: engine.submit(golden(name), sampling=how[name]) for name in GOLDEN}
    for name, request in requests.items():
        assert list(request.result().token_ids) == GOLDEN[name]["output_ids"], name
    for name, sampling in how.items():  # and again, from what the cache has
        ASKED.clear()
        prompt = golden(name)
        reply = engine.submit(prompt, sampling=sampling).result()
        assert list(reply.token_ids) == GOLDEN[name]["output_ids"], name
        frame = Frame.of(np.array(prompt.token_ids, np.int32), prompt.media, pads(), watched)
        assert dict.fromkeys(frame.behind(reply.usage.cached_tokens), 1) == ASKED, name


def test_a_chat_that_adds_an_image_resumes_all_before_it_and_looks_at_each_once(
    engine: Engine, plain: Engine
) -> None:
    first, second = (prepared(GOLDEN[name])[0] for name in ("image-0", "image-3"))
    told = "Look at this. " * 12
    history: list[Media | str] = [told, first, "What is it? "]
    cached = []
    adds: list[list[Media | str]] = [[], ["And the color? "], [second, "And this? "], ["Are both the same? "]]
    for turn, more in enumerate(adds):
        history += more
        prompt = turns(*history)
        reply = ask(engine, plain, prompt)
        cached.append(reply.usage.cached_tokens)
        assert dict(ASKED) == ({first.key: 1} if turn < 2 else {first.key: 1, second.key: 1})
        history.append(engine.tokenizer.decode(list(reply.token_ids)[:5]))
    lengths = len(turns(told, first).token_ids)
    assert cached[0] == 0 and cached[1] >= lengths and cached[2] > cached[1] and cached[3] > cached[2]


def test_an_image_changed_in_an_early_turn_resumes_only_what_stands_before_it(
    engine: Engine, plain: Engine
) -> None:
    pictures = [prepared(GOLDEN[name])[0] for name in ("image-0", "image-1")]
    assert pictures[0].grid == pictures[1].grid and pictures[0].key != pictures[1].key
    told = "Here comes a picture, and there is more to say of it. " * 6
    text = "What do you see in it, and why? " * 8
    replies = [ask(engine, plain, turns(told, picture, text)) for picture in pictures]
    before = len(turns(told).token_ids)
    assert replies[0].usage.cached_tokens == 0
    assert replies[1].usage.cached_tokens <= before + 1  # the marker in front of it
    again = ask(engine, plain, turns(told, pictures[0], text))
    assert again.usage.cached_tokens == len(turns(told, pictures[0], text).token_ids) - 1
    assert again.token_ids == replies[0].token_ids


def test_images_are_resumed_from_the_spill_directory_after_a_restart(tmp_path: Path, plain: Engine) -> None:
    picture = prepared(GOLDEN["image-3"])[0]
    prompt = turns("Look at this. " * 20, picture, "What is it? " * 10)
    other = turns("Look at this. " * 20, prepared(GOLDEN["image-3"])[1], "What is it? " * 10)
    with make(prefix_cache_gib=0.2, spill_dir=tmp_path) as before:
        first = ask(before, plain, prompt)
        n_marks = before.counts.cache.marks
    ASKED.clear()
    with make(prefix_cache_gib=0.2, spill_dir=tmp_path) as after:
        deadline = time.monotonic() + 120
        while after.counts.cache.stored < n_marks:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        after._thread.call(lambda s: setattr(s._caching.disk, "patience_s", 1e9))
        # The same text with another image finds nothing of it there.
        assert ask(after, plain, other).usage.cached_tokens == 0
        ASKED.clear()
        reply = ask(after, plain, prompt)
        assert reply.token_ids == first.token_ids
        assert reply.usage.cached_tokens == len(prompt.token_ids) - 1 and not ASKED


def test_choices_of_one_prompt_share_what_it_shows(engine: Engine, plain: Engine) -> None:
    prompt = turns("One prompt, several replies. ", prepared(GOLDEN["image-4"])[0], "Say what it is. ")
    requests = [engine.submit(prompt, sampling=Sampling(seed=i, max_tokens=20)) for i in range(4)]
    replies = [request.result() for request in requests]
    assert sum(ASKED.values()) <= 2
    for i, reply in enumerate(replies):
        alone = plain.submit(prompt, sampling=Sampling(seed=i, max_tokens=20)).result()
        assert alone.token_ids == reply.token_ids


def test_log_probabilities_of_a_prompt_with_media_are_told(engine: Engine, plain: Engine) -> None:
    how = Sampling(temperature=0, max_tokens=3, logprobs=1, prompt_logprobs=True)
    prompt = golden("image-5")
    scores = [made.submit(prompt, sampling=how).result().prompt_logprobs for made in (engine, plain)]
    assert scores[0] == scores[1] and scores[0] is not None
    assert len(scores[0]) == len(prompt.token_ids) - 1


def test_what_is_wrong_with_a_prompt_is_named(engine: Engine) -> None:
    picture = prepared(GOLDEN["image-0"])[0]
    right = turns("a", picture, "b")
    for ids, media, complaint in (
        (right.token_ids, [picture, picture], "prompt: image 1 has no pads"),
        (list(right.token_ids)[:-2], [picture], "prompt: the prompt ends with media"),
        (list(right.token_ids)[2:5], [picture], "prompt: image 0 of the prompt takes 3 x 3 pads"),
        ([], [picture], "prompt: expected at least one token"),
        ([10**7], [picture], r"prompt\[0\]: expected a token id"),
    ):
        with pytest.raises(InvalidArgument, match=complaint):
            engine.submit(MediaPrompt(ids, media, watched))
    short = MediaPrompt(right.token_ids, [picture], lambda media: np.zeros((1, 256), np.float32))
    with pytest.raises(InvalidArgument, match="take 9 rows of the prompt have features of 1"):
        engine.submit(short).result()
