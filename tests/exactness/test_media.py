"""Prompts that show pictures and videos: the golden cases give their tokens, and whatever runs beside them,
cuts them, or lets them go on from a mark leaves what the cold, alone, undrafted reply leaves, bit for bit.

Features are those of the checkpoint's own tower, a pass for each look, or noise that the media's keys give;
in the golden cases those of the reference tower too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest
from flashnext import _core
from flashnext.engine.core import Tokens
from flashnext.engine.eyes import Eyes
from flashnext.engine.frame import Frame
from flashnext.engine.load import load_model
from flashnext.errors import InvalidArgument
from flashnext.media import Media
from support.engine import PATHS, Engine
from support.matrix_models import RANDOM
from support.played import Left, Request, require_same
from support.seen import GOLDEN, TINY, drawn, golden, noise, see_noise
from support.states import Desk

MOST_PATCHES = 4096
GREEDY = _core.Sampling(temperature=0)


def begin(
    engine: Engine, tokens: Tokens, frame: Frame, n_drafts: int, chunk: int = 512
) -> tuple[Any, list[int]]:
    """Read a prompt and draw the first token."""
    session = engine.session(frame)
    reply: list[int] = []
    for at in range(0, len(tokens), chunk):
        part = tokens[at : at + chunk]
        last = at + len(part) == len(tokens)
        media = engine.shown(frame, at, len(part))
        reply += [d.token for d in engine.runner.prompt(session, part, last, GREEDY, n_drafts * last, media)]
    return session, reply


# --- equal to transformers


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tower", ["reference", "own"])
def test_float32_replies_about_media_equal_those_of_transformers(path: str, tower: str) -> None:
    engine = Engine(TINY / "hf", path, "float32", sequences=1, max_window=16)
    for case in GOLDEN.values():
        tokens, frame = golden(case)
        if tower == "own":
            vision = engine.loaded.checkpoint.config.vision
            assert vision is not None
            eyes = Eyes(_core.load_tower(engine.loaded.model, dict(vision), MOST_PATCHES), 0)
            frame = replace(frame, see=eyes.see)
        session, reply = begin(engine, tokens, frame, 0)
        assert session.rotary_delta == frame.axes[-1, 0] + 1 - len(tokens) < 0
        while len(reply) < len(case["output_ids"]):
            reply += [d.token for d in engine.runner.round([session])[0]]
        session.close()
        assert reply == case["output_ids"], case["id"]


@pytest.mark.parametrize("offset", [0, 1])
def test_float32_drafts_behind_media_are_those_of_the_golden_file(offset: int) -> None:
    engine = Engine(TINY / "hf", "", "float32", sequences=1, max_window=16)
    found = 0
    for case in GOLDEN.values():
        tokens, frame = golden(case)
        output, drafts = case["output_ids"], case["draft_ids"]
        session, reply = begin(engine, tokens, frame, 1 - offset)
        while len(reply) < len(output):
            for draft in engine.runner.drafts(session):
                assert draft == drafts[len(reply) - 1], (case["id"], len(reply))
                found += 1
            reply += [d.token for d in engine.runner.round([session], [1])[0]]
        session.close()
        assert reply[: len(output)] == output
    assert found > 50


# --- equal to the cold reply


@dataclass
class Machine:
    """A model with prompts: 0 and 1 show media, 2 is the same text with other media, 3 shows nothing."""

    desk: Desk

    @property
    def prompts(self) -> list[Tokens]:
        return list(self.desk.reference.prompts)

    def frame(self, prompt: int) -> Frame:
        frame = self.desk.reference.frames[prompt]
        assert frame is not None
        return frame

    def request(self, prompt: int, n: int = 12) -> Request:
        return Request(prompt, ("seeded", "penalties", "greedy", "hot")[prompt], prompt, n, few=False)

    def expected(self, prompt: int, n: int = 12) -> Left:
        return self.desk.reference.left(self.request(prompt, n))


def _golden(eyes: Eyes) -> tuple[list[Tokens], list[Frame | None]]:
    names = ("image-3", "video-0-flat")
    (a, first), (b, second) = (golden(GOLDEN[name]) for name in names)
    first, second = (replace(frame, see=eyes.see) for frame in (first, second))
    (media,) = {media.key: media for _, media in second.shown}.values()
    flipped = replace(media, key=bytes(reversed(media.key)))
    other = replace(
        second,
        shown=tuple((span, flipped) for span, _ in second.shown),
        see=lambda _: second.see(media)[::-1].copy(),
    )
    return [a, b, b, a[:20]], [first, second, other, None]


def _noise(vocab: int, hidden: int) -> tuple[list[Tokens], list[Frame | None]]:
    rng = np.random.default_rng(8)
    rows = rng.integers(12, vocab, (3, 190), np.int32)
    # Over the ends of pages and of pooled blocks, next to each other, thin, and in slices.
    media = [
        (1, noise(1, (1, 2, 2))),
        (5, noise(2, (1, 12, 10))),
        (37, noise(3, (1, 2, 40))),
        (90, noise(4, (3, 8, 8))),
    ]
    a, first = drawn(rows[0], media, 11, hidden)
    b, second = drawn(rows[1], [(3, noise(5, (1, 24, 22)))], 11, hidden)
    other, third = drawn(rows[1], [(3, noise(6, (1, 24, 22)))], 11, hidden)
    assert np.array_equal(b, other)
    return [a, b, other, rows[2]], [first, second, third, None]


MODELS = (
    ("trained", PATHS[0], "float32"),
    ("trained", PATHS[-1], "bfloat16"),
    ("attention first", PATHS[0], "bfloat16"),
    ("attention first", PATHS[-1], "float32"),
)


@pytest.fixture(scope="module", params=MODELS, ids=", ".join)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    name, path, dtype = request.param
    folder = TINY / "hf"
    if name != "trained":
        folder = RANDOM.write(tmp_path_factory.mktemp("media") / "checkpoint")
    loaded = load_model(
        folder, device="cpu", path_name=path, dtype=dtype, context=512, sequences=6, max_patches=MOST_PATCHES
    )
    c = loaded.checkpoint.config
    if name == "trained":
        assert loaded.tower is not None
        prompts, frames = _golden(Eyes(loaded.tower, 0))  # nothing is kept: each look is a pass
    else:
        prompts, frames = _noise(c.vocab_size, c.hidden_size)
    desk = Desk(loaded, prompts, frames)
    yield Machine(desk)
    assert desk.pool.free == desk.pool.total and desk.pool.block_bytes == 0


def marks_of(frame: Frame, n: int) -> list[int]:
    """The first row, and rows in front of media, behind their first one, in their midst and behind them."""
    found = {1, n - 1}
    for span, _ in frame.shown:
        found |= {span.start, span.start + 1, span.start + span.n // 2, span.end - 1, span.end, span.end + 1}
    return sorted(found & set(range(1, n)))


@contextmanager
def seen_by(machine: Machine, prompt: int, see: Callable[[Media], Any]) -> Iterator[None]:
    """Within it the prompt shows what `see` gives."""
    frames = machine.desk.reference.frames
    other = replace(machine.frame(prompt), see=see)
    machine.desk.reference.frames = [other if i == prompt else frame for i, frame in enumerate(frames)]
    yield
    machine.desk.reference.frames = frames


@contextmanager
def watched(machine: Machine, prompt: int) -> Iterator[set[bytes]]:
    """Within it the keys of what is looked at are collected."""
    asked, frame = set[bytes](), machine.frame(prompt)

    def see(media: Media) -> Any:
        asked.add(media.key)
        return frame.see(media)

    with seen_by(machine, prompt, see):
        yield asked


@pytest.mark.parametrize("n_drafts", [0, 3])
@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 512])
def test_any_cut_drafted_or_not_gives_the_same_bits(machine: Machine, chunk: int, n_drafts: int) -> None:
    desk = machine.desk
    for prompt, tokens in enumerate(machine.prompts):
        session = desk.open(prompt)
        desk.read(session, tokens[:-1], chunk, prompt=prompt)
        left = desk.reply(session, machine.request(prompt), n_drafts)
        require_same(left, machine.expected(prompt), f"prompt {prompt}, chunks of {chunk}")


@pytest.mark.parametrize("n_drafts", [0, 3])
def test_together_each_is_as_alone(machine: Machine, n_drafts: int) -> None:
    desk = machine.desk
    sessions = {desk.open(prompt): machine.request(prompt) for prompt in (2, 0, 3, 1)}
    for session, request in sessions.items():  # up to a row within media, since a pass has no room for all
        prompt = request.prompt
        desk.read(session, machine.prompts[prompt][: 70 * (len(machine.prompts[prompt]) > 70)], prompt=prompt)
    desk.begin(sessions, n_drafts)
    desk.run(sessions)
    for session, request in sessions.items():
        require_same(desk.left(session), machine.expected(request.prompt), f"prompt {request.prompt}")


@pytest.mark.parametrize(("chunk", "n_drafts"), [(7, 3), (512, 0)])
@pytest.mark.parametrize("prompt", [0, 1])
def test_from_any_mark_it_goes_on_like_the_whole(
    machine: Machine, prompt: int, chunk: int, n_drafts: int
) -> None:
    desk, tokens = machine.desk, machine.prompts[prompt]
    marks = marks_of(machine.frame(prompt), len(tokens))
    session = desk.open(prompt)
    found = desk.read(session, tokens, chunk, marks, prompt)
    session.close()
    for mark, snapshot in found.items():
        image = desk.image(snapshot)
        snapshot.close()
        restored = desk.restore(image)
        resumed = desk.resume(restored, tokens[:mark], prompt)
        restored.close()
        with watched(machine, prompt) as asked:
            desk.read(resumed, tokens[:-1], chunk, prompt=prompt)
            left = desk.reply(resumed, machine.request(prompt), n_drafts)
        require_same(left, machine.expected(prompt), f"from {mark}, chunks of {chunk}")
        # Only what is still to be read is looked at.
        assert asked == machine.frame(prompt).behind(mark)


def test_what_a_mark_within_media_taps_is_a_session_that_read_just_so_far(machine: Machine) -> None:
    desk, tokens = machine.desk, machine.prompts[0]
    marks = marks_of(machine.frame(0), len(tokens))
    session = desk.open(0)
    found = desk.read(session, tokens, 512, marks, 0)
    session.close()
    for mark, snapshot in found.items():
        other = desk.open(0)
        desk.read(other, tokens[:mark], 5, prompt=0)
        so_far = desk.core.snapshot(other)
        assert desk.image(snapshot) == desk.image(so_far), f"mark {mark}"
        for one in (snapshot, so_far, other):
            one.close()


@pytest.mark.parametrize("n_drafts", [0, 3])
def test_a_fork_in_front_of_other_media_goes_its_own_way(machine: Machine, n_drafts: int) -> None:
    desk, tokens = machine.desk, machine.prompts[1]
    at = machine.frame(1).shown[0][0].start
    session = desk.open(1)
    desk.read(session, tokens[:at], 512, prompt=1)
    fork: Any = desk.core.fork(session, machine.frame(2).axes)
    for prompt, one in ((1, session), (2, fork)):
        require_same(
            desk.reply(one, machine.request(prompt), n_drafts), machine.expected(prompt), f"{prompt}"
        )


@pytest.mark.parametrize("n_drafts", [0, 3])
def test_the_end_of_a_reply_behind_media_is_where_its_next_turn_goes_on(
    machine: Machine, n_drafts: int
) -> None:
    desk, frame = machine.desk, machine.frame(1)
    session = desk.open(1)
    desk.begin({session: machine.request(1)}, n_drafts)
    desk.run([session])
    reply = [token for token, _ in desk.drawn.pop(session)]
    snapshot = desk.core.snapshot(session)
    session.close()
    text = np.concatenate([machine.prompts[1], np.array(reply[:-1], np.int32)])
    assert snapshot.n == len(text)
    turn = np.concatenate([text, machine.prompts[3]])
    delta = frame.axes[-1, 0] + 1 - len(frame.axes)
    behind = np.arange(len(frame.axes), len(turn), dtype=np.int32) + delta
    longer = replace(frame, axes=np.concatenate([frame.axes, np.stack([behind] * 3, 1)]))
    asked = Desk(desk.reference.loaded, [turn], [longer])
    resumed = asked.resume(snapshot, text, 0)
    request = Request(0, "seeded", 5, 12, few=False)
    require_same(asked.reply(resumed, request, n_drafts), asked.reference.left(request), "the next turn")
    snapshot.close()


def test_a_preempted_reply_is_read_again_behind_its_media(machine: Machine) -> None:
    """Read like a prompt, as where both classes have the same bits, and drawn again from known tokens."""
    desk, expected = machine.desk, machine.expected(0)
    prompt = machine.prompts[0]
    for known in (1, 5, 11):
        text = np.concatenate([prompt, np.array(expected.tokens[:known], np.int32)])
        session = desk.open(0)
        desk.read(session, text[:-1], 64, prompt=0)
        request = machine.request(0)
        desk.core.driver.begin(session, request.rules(), [], len(prompt), len(prompt) + request.n)
        none = np.empty(0, np.int32)
        desk.drawn[session] = list(zip(expected.tokens[:known], expected.rows[:known], strict=True))
        desk.take(desk.core.driver.step([(session, text[-1:], True, none, [], [])], []))
        desk.run([session])
        require_same(desk.left(session), expected, f"{known} tokens read again")
        session = desk.open(0)
        desk.read(session, prompt[:-1], 64, prompt=0)
        again = list(expected.tokens[:known])
        desk.core.driver.begin(
            session, request.rules(), [], len(prompt), len(prompt) + request.n, known=again
        )
        desk.drawn[session] = []
        desk.take(desk.core.driver.step([(session, prompt[-1:], True, none, [], [])], []))
        desk.run([session])
        require_same(desk.left(session), expected, f"{known} tokens drawn again")


# --- planted violations


def test_other_features_of_one_row_are_seen(machine: Machine) -> None:
    desk = machine.desk
    frame = machine.frame(1)
    span, _ = frame.shown[0]

    def planted(of: Media) -> Any:
        values = frame.see(of).copy()
        values[span.n // 2, 0] *= np.float32(1.02)  # in bfloat16 too
        return values

    machine.expected(1)
    with seen_by(machine, 1, planted):
        left = desk.reply(desk.open(1), machine.request(1))
    with pytest.raises(AssertionError, match=r"planted: .* differ"):
        require_same(left, machine.expected(1), "planted")


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_row_of_media_that_stands_elsewhere_is_seen(machine: Machine, axis: int) -> None:
    desk, frame = machine.desk, machine.frame(1)
    at = frame.shown[0][0].start + 1
    axes = frame.axes.copy()
    axes[at, axis] += 1 if axes[at, axis] < at else -1
    placed: Any = desk.core.open(axes)
    left = desk.reply(placed, machine.request(1))
    with pytest.raises(AssertionError, match=r"planted: .* differ"):
        require_same(left, machine.expected(1), "planted")


def test_rows_behind_media_that_stand_at_their_numbers_are_seen(machine: Machine) -> None:
    desk, frame = machine.desk, machine.frame(1)
    n = len(frame.axes)
    session = desk.open(1)
    desk.read(session, machine.prompts[1][:-1], 512, prompt=1)
    fork: Any = desk.core.fork(session, np.stack([np.arange(n, dtype=np.int32)] * 3, 1))
    session.close()
    with pytest.raises(AssertionError, match=r"planted: .* differ"):
        require_same(desk.reply(fork, machine.request(1)), machine.expected(1), "planted")


# --- what is refused


def test_what_does_not_fit_is_refused_by_a_sentence_and_nothing_is_read(machine: Machine) -> None:
    desk, tokens = machine.desk, machine.prompts[1]
    model = desk.reference.loaded.model
    hidden = desk.reference.loaded.checkpoint.config.hidden_size
    features = _core.Features(model, np.zeros((4, hidden), np.float32))
    assert features.n == 4
    runner = desk.reference.runner
    for media in ([(0, features, 0, 5)], [(0, features, 1, 4)], [(-1, features, 0, 1)], [(9, features, 0, 2)],
                  [(0, features, -1, 1)], [(0, features, 0, 0)], [(0, None, 0, 1)]):  # fmt: skip
        session = desk.open()
        with pytest.raises(InvalidArgument, match="prompt chunk"):
            runner.prompt(session, tokens[:10], False, GREEDY, 0, media)  # type: ignore[arg-type]
        assert session.length == 0
        session.close()
    with pytest.raises(InvalidArgument, match=f"expected {hidden}"):
        _core.Features(model, np.zeros((4, hidden + 1), np.float32))
    with pytest.raises(InvalidArgument, match="0 values"):
        _core.Features(model, np.zeros((0, hidden), np.float32))
    session = desk.open()
    with pytest.raises(InvalidArgument, match=r"frame: row 1 stands at 2 on an axis, expected 0 to 1"):
        session.set_frame(np.array([[0, 0, 0], [1, 2, 1]], np.int32))
    with pytest.raises(InvalidArgument, match="stands at -1"):
        session.set_frame(np.array([[0, -1, 0]], np.int32))
    session.close()


def test_a_prompt_that_ends_with_media_is_refused_where_its_reply_begins(machine: Machine) -> None:
    desk = machine.desk
    for prompt in (0, 1):
        for span, _ in machine.frame(prompt).shown:  # one of a single token stands like text
            session, end = desk.open(prompt), span.end
            with pytest.raises(InvalidArgument, match=rf"row {end - 1}, its last, shows media"):
                shown = cast(Any, desk.reference.shown(prompt, 0, end))
                tokens = machine.prompts[prompt][:end]
                desk.reference.runner.prompt(session, tokens, True, GREEDY, media=shown)
            assert session.length == 0
            session.close()


def test_a_frame_is_settled_when_the_reply_begins(machine: Machine) -> None:
    desk = machine.desk
    session = desk.open(3)
    desk.begin({session: machine.request(3)})
    with pytest.raises(InvalidArgument, match="its reply has begun"):
        session.set_frame(machine.frame(1).axes)
    desk.run([session])
    require_same(desk.left(session), machine.expected(3), "text")


def test_noise_is_of_the_key_alone() -> None:
    a, b = noise(1, (1, 4, 4)), noise(1, (1, 4, 4))
    assert a.key == b.key != noise(2, (1, 4, 4)).key
    assert np.array_equal(see_noise(a, 8), see_noise(b, 8))
