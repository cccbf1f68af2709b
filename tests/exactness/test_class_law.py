"""A device whose prompt rows sum in another order than window rows: replies stay what they are, since what a
row is decides its class. And what the exactness matrix compares catches one unit in the last place of each
law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flashnext import _core
from flashnext.checkpoint import open_checkpoint
from flashnext.engine.core import ChunkPart
from flashnext.errors import InvalidArgument
from support.cells import Cell
from support.engine import Engine, first_difference, row_hashes
from support.matrix_models import RANDOM, References, make_reference
from support.played import Left, Play, Reference, play, require_same

REVERSED = "random, prompts reversed"
PREEMPTED = Cell(REVERSED, "4", "both", "shared", "preempted", "seeded")
UNDISTURBED = Cell("random", "2", "head", "shared", "undisturbed", "seeded")


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("laws"))


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = RANDOM.write(tmp_path_factory.mktemp("reversed") / "checkpoint")
    return Engine(folder, dtype=request.param, prompt_order="reversed")


def random_tokens(engine: Engine, n: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    tokens: np.ndarray[tuple[int], np.dtype[np.int32]] = np.random.default_rng(seed).integers(
        0, engine.loaded.checkpoint.config.vocab_size, n, np.int32
    )
    return tokens


# --- the device


def test_an_order_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="prompt_order is 'sideways', expected 'as windows' or 'rev"):
        _core.open_device(prompt_order="sideways")


def test_prompt_rows_and_window_rows_differ(engine: Engine) -> None:
    assert not engine.loaded.device.limits.prompt_equals_window
    tokens = random_tokens(engine, 60, 1)
    session = engine.session()
    windows = np.concatenate([engine.window(session, tokens[i : i + 12]) for i in range(0, 60, 12)])
    prompt = engine.alone(tokens)
    session.close()
    assert row_hashes(windows) != row_hashes(prompt)
    assert np.allclose(windows, prompt, atol=0.05 * np.abs(prompt).max())  # and are the same but for rounding


@pytest.mark.parametrize("cut", [1, 7, 64, 512])
def test_within_a_class_nothing_depends_on_how_rows_were_cut(engine: Engine, cut: int) -> None:
    tokens = random_tokens(engine, 110, 2)
    whole = engine.session()
    plain = [engine.prompt(whole, tokens[:70])]
    plain += [engine.window(whole, tokens[i : i + 1]) for i in range(70, 110)]
    session = engine.session()
    found = [engine.prompt(session, part) for part in np.split(tokens[:70], range(cut, 70, cut))]
    width = min(cut, 40)
    found += [engine.window(session, tokens[i : min(110, i + width)]) for i in range(70, 110, width)]
    assert first_difference(row_hashes(np.concatenate(plain)), row_hashes(np.concatenate(found))) is None
    assert engine.runner.state_hash(whole) == engine.runner.state_hash(session)
    whole.close()
    session.close()


# --- replies on it


@pytest.mark.parametrize("model", [REVERSED, "bundled, prompts reversed"])
@pytest.mark.parametrize("drafts", ["off", "head", "both"])
def test_a_sequence_may_be_preempted_again_and_again(references: References, model: str, drafts: str) -> None:
    played = Play(Cell(model, "2", drafts, "shared", "preempted", "seeded"), references[model])
    one, other = played.sequences
    one.job.n_drafts = min(one.job.n_drafts, 1)  # so that its reply lasts
    played.read([one, other])
    while one.active:
        played.round([one, other])
        if len(one.job.token_ids) < 16:
            played.preempt(one, [other])
            while one.job.n_drawn < len(one.job.token_ids):  # it gets a new token before the next time
                played.round([one])
        else:
            played.run([one, other])
    assert played.did["preempted"] > 1
    played.run([other])
    for s in (one, other):
        require_same(played.left(s), played.reference.left(s.request), f"sequence {s.job.id}")
        s.session.close()


def test_known_tokens_are_no_drafts(references: References) -> None:
    played = play(replace(PREEMPTED, together="alone", driving="lone", drafts="off"), references[REVERSED])
    assert played.did["preempted"] and played.counts["proposed"] == 0
    # But their rows are verified with others: fewer rounds than tokens.
    assert played.counts["rounds"] < played.counts["rows"]


@pytest.mark.parametrize("model", ["random", REVERSED, "bundled", "bundled, prompts reversed"])
def test_forks_of_prompt_rows_go_on_like_the_whole(references: References, model: str) -> None:
    reference = references[model]
    for at in (300,) if "bundled" in model else (1, 63, 64, 65, 128):
        played = Play(Cell(model, "4", "both", "shared", "undisturbed", "greedy"), reference)
        source, *forks = played.sequences
        core = played.core
        long = max(range(len(reference.prompts)), key=lambda i: len(reference.prompts[i]))
        for s in played.sequences:
            s.request = replace(s.request, prompt=long)
            s.job.prompt = s.job.feed = reference.prompts[long]
        source.job.session = core.open()
        played.by_session[source.session] = source
        core.step([ChunkPart(source.session, source.job.feed[:at], False)], [])
        source.job.n_read = at
        for s in forks:
            s.job.session = core.fork(source.session)
            played.by_session[s.session] = s
            s.job.n_read = at
        forks[-1].session.close()  # one that goes leaves the pages to the others
        played.read([source, *forks[:-1]])
        played.run([source, *forks[:-1]])
        for s in (source, *forks[:-1]):
            require_same(played.left(s), reference.left(s.request), f"fork at {at}, sequence {s.job.id}")
            s.session.close()


# --- planted violations


@pytest.mark.parametrize("model", ["random", REVERSED])
def test_a_reply_that_is_read_again_like_a_prompt_is_caught(references: References, model: str) -> None:
    reference = references[model]
    played = Play(replace(PREEMPTED, model=model), reference)
    one = played.sequences[2]  # its prompt is longer than the index budget
    played.read([one])
    while len(one.job.token_ids) < 8:
        played.round([one])
    assert one.active
    played.core.prompt_equals_window = True  # which it is not, where prompts are reversed

    def finish() -> None:
        played.preempt(one, [])
        played.run([one])
        require_same(played.left(one), reference.left(one.request), "read again")

    if model == "random":
        finish()
    else:
        with pytest.raises(AssertionError, match=r"drawn again|differ"):
            finish()
    one.session.close()


@pytest.mark.parametrize("model", ["random", REVERSED])
def test_a_prompt_that_is_read_by_windows_is_caught_where_classes_differ(
    references: References, model: str
) -> None:
    reference = references[model]
    played = Play(Cell(model, "4", "off", "shared", "undisturbed", "seeded"), reference)
    one = played.sequences[2]
    job, runner = one.job, reference.runner
    job.session = played.core.open()
    played.by_session[one.session] = one
    half = len(job.prompt) // 2
    runner.prompt(one.session, job.prompt[:half], False, job.sampling)
    runner.forward([(one.session, job.prompt[half : half + 9], True)])
    one.session.keep(9)
    job.n_read = half + 9
    played.read([one])
    played.run([one])
    expected = reference.left(one.request)
    left = replace(played.left(one), head=expected.head)  # windows of a prompt leave the draft head behind
    if model == "random":
        require_same(left, expected, "the classes are one")
    else:
        with pytest.raises(AssertionError, match=r"planted: .* differ"):
            require_same(left, expected, "planted")
    one.session.close()


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    """The random model, with the first value of one tensor moved by one unit in the last place."""

    def make(tensor: str) -> Reference:
        folder = RANDOM.write(tmp_path_factory.mktemp("moved") / "checkpoint")
        checkpoint = open_checkpoint(folder)
        view = checkpoint.tensors[tensor]
        file = Path(checkpoint.files[view.file])
        data = bytearray(file.read_bytes())
        data[view.offset] ^= 1
        file.write_bytes(data)
        return make_reference("random", folder)

    return make


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ("layers.1.linear_attn.in_proj_qkv.weight", "the logits of token"),
        ("layers.2.self_attn.v_proj.weight", "the logits of token"),
        ("lm_head.weight", "the logits of token"),
        ("layers.2.self_attn.indexer.k_layernorm.weight", "the settled state differs|the logits of token"),
        ("mtp.layers.0.self_attn.v_proj.weight", "the draft head's cache differs"),
    ],
)
def test_one_unit_in_the_last_place_of_a_weight_is_caught(
    references: References, moved: Callable[[str], Reference], tensor: str, words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        Play(UNDISTURBED, moved(tensor), expected=references["random"]).play()


def test_a_draw_by_the_next_seed_is_caught(references: References) -> None:
    played = Play(UNDISTURBED, references["random"])
    played.sequences[0].job.sampling = replace(
        played.sequences[0].request, seed=played.sequences[0].request.seed + 1
    ).rules()
    with pytest.raises(AssertionError, match=r"sequence 0 \(seeded\): .*token \d+ differ"):
        played.play()


def test_a_draw_from_a_row_with_one_bit_more_is_caught(references: References) -> None:
    """The hash that tokens carry is over all bits of the row that each was drawn from."""
    reference = references["random"]
    request = Play(UNDISTURBED, reference).sequences[1].request
    session = _core.Session(reference.loaded.model, reference.loaded.pool)
    prompt = reference.prompts[request.prompt]
    row = reference.runner.forward([(session, prompt, False)])[0][-1:]
    session.close()
    to_draw: list[tuple[_core.Sampling, int, list[int], list[int], list[int], list[int]]] = [
        (request.rules(), len(prompt), prompt.tolist(), [], [], [])
    ]
    device, vocab = reference.loaded.device, row.shape[1]
    token, _, _, hash_ = _core.testing.draw_rows(device, row, vocab, to_draw)[0]
    expected = reference.left(request)
    assert (token, hash_) == (expected.tokens[0], expected.rows[0])
    rng = np.random.default_rng(6)
    for column in rng.choice(vocab, 20, replace=False):
        planted = row.copy()
        planted[0, column] = np.nextafter(planted[0, column], np.float32(np.inf))
        found = _core.testing.draw_rows(device, planted, vocab, to_draw)[0][3]
        with pytest.raises(AssertionError, match="planted: the logits of token 0 differ"):
            require_same(replace(expected, rows=(found, *expected.rows[1:])), expected, "planted")


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda left: replace(left, tokens=(*left.tokens[:-1], left.tokens[-1] ^ 1)), "token 23 differs"),
        (lambda left: replace(left, rows=(*left.rows[:4], left.rows[4] ^ 1, *left.rows[5:])), "of token 4"),
        (lambda left: replace(left, tokens=left.tokens[:-1], rows=left.rows[:-1]), "23 tokens"),
        (lambda left: replace(left, length=left.length + 1), "rows, expected"),
        (lambda left: replace(left, state=left.state ^ 1), "the settled state"),
        (lambda left: replace(left, head=left.head ^ 1), "the draft head's cache"),
    ],
)
def test_whatever_is_left_is_compared(
    references: References, plant: Callable[[Left], Left], words: str
) -> None:
    expected = references["random"].left(Play(UNDISTURBED, references["random"]).sequences[1].request)
    require_same(replace(expected), expected, "the same")
    with pytest.raises(AssertionError, match=f"planted: .*{words}"):
        require_same(plant(expected), expected, "planted")
