"""Drafts change nothing but speed: replies, logits and state are those of one token a round, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashnext import _core as core
from flashnext.engine.engine import BUNDLED
from support.engine import PATHS, Engine, Tokens
from support.setups import REAL_HEADS, Setup

TINY = Path(__file__).parents[1] / "tiny"
CASES: list[dict[str, Any]] = [
    case
    for case in map(json.loads, (TINY / "golden.jsonl").read_text().splitlines())
    if case["grid_thw"] is None and len(case["prompt_ids"]) < 1024
]
GREEDY = {"temperature": 0.0}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seeded": {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "seed": 5},
    "hot": {"temperature": 3.0, "seed": 6},
    "penalties": {"temperature": 1.0, "seed": 7, "presence": 0.5, "frequency": 0.3, "repetition": 1.2},
}


@dataclass
class Reply:
    """What a sequence leaves: what was drawn with its log-probabilities, and the settled state."""

    tokens: list[int]
    logprobs: list[float]
    state: int
    head: int
    proposed: int = 0
    accepted: int = 0

    def same(self, other: Reply) -> bool:
        """Whether all but the counts of drafts is the same, bit for bit."""
        return (self.tokens, self.logprobs, self.state, self.head) == (
            other.tokens,
            other.logprobs,
            other.state,
            other.head,
        )


def begin(engine: Engine, prompt: Tokens, settings: dict[str, Any], n_drafts: int, chunk: int) -> Any:
    session, sampling = engine.session(), core.Sampling(**settings, logprobs=0)
    parts = np.split(prompt, range(chunk, len(prompt), chunk))
    for part in parts[:-1]:
        assert engine.runner.prompt(session, part, False, sampling) == []
    return session, engine.runner.prompt(session, parts[-1], True, sampling, n_drafts)


def finish(engine: Engine, session: core.Session, drawn: Sequence[Any], n: int) -> Reply:
    """Feed the last token too, without drafts, so that all replies of n tokens leave the same rows."""
    assert len(drawn) == n and engine.runner.drafts(session) == []
    engine.runner.round([session])
    reply = Reply(
        [d.token for d in drawn],
        [d.logprob for d in drawn],
        engine.runner.state_hash(session),
        engine.runner.head_hash(session, session.head_length),
        *engine.runner.draft_counts(session),
    )
    session.close()
    return reply


def limit(engine: Engine, session: core.Session, drawn: Sequence[Any], n: int, n_drafts: int) -> int:
    """Drafts of the round after the next one, so that replies have n tokens whatever is kept."""
    return max(0, min(n_drafts, n - len(drawn) - 2 - len(engine.runner.drafts(session))))


def generate(
    engine: Engine, prompt: Tokens, settings: dict[str, Any], n: int, n_drafts: int = 0, chunk: int = 512
) -> Reply:
    """A reply of exactly n tokens."""
    session, drawn = begin(engine, prompt, settings, min(n_drafts, n - 2), chunk)
    while len(drawn) < n:
        (more,) = engine.runner.round([session], [limit(engine, session, drawn, n, n_drafts)])
        drawn += more
    return finish(engine, session, drawn, n)


@pytest.fixture(scope="module", params=PATHS)
def trained(request: pytest.FixtureRequest) -> Engine:
    return Engine(BUNDLED, request.param, "bfloat16", max_window=16)


@pytest.fixture(
    scope="module", params=[(PATHS[0], "float32"), (PATHS[0], "bfloat16"), (PATHS[-1], "bfloat16")], ids=str
)
def untrained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A random draft head, which is almost always wrong."""
    path, dtype = request.param
    setup = Setup("heads of the real model", REAL_HEADS, rows=150)
    yield Engine(setup.write(tmp_path_factory.mktemp("drafts") / "checkpoint"), path, dtype, max_window=16)


# The slow path once: how many drafts there are is not what it differs in.
@pytest.mark.parametrize(
    ("trained", "n_drafts"),
    [(path, n) for path in PATHS for n in (1, 3, 15) if path == PATHS[0] or n == 3],
    indirect=["trained"],
)
@pytest.mark.parametrize("settings", SAMPLINGS.values(), ids=SAMPLINGS)
def test_replies_with_drafts_of_a_trained_head(
    trained: Engine, settings: dict[str, Any], n_drafts: int
) -> None:
    accepted = proposed = 0
    for case in CASES[:: len(CASES) // 4]:
        prompt = np.array(case["prompt_ids"], np.int32)
        plain = generate(trained, prompt, settings, 24)
        drafted = generate(trained, prompt, settings, 24, n_drafts)
        assert drafted.same(plain), case["id"]
        assert plain.proposed == 0
        accepted += drafted.accepted
        proposed += drafted.proposed
    assert 0 < accepted < proposed


@pytest.mark.parametrize("n_drafts", [1, 15])
@pytest.mark.parametrize("settings", SAMPLINGS.values(), ids=SAMPLINGS)
def test_replies_with_drafts_of_an_untrained_head(
    untrained: Engine, settings: dict[str, Any], n_drafts: int
) -> None:
    rng = np.random.default_rng(n_drafts)
    for n_prompt, chunk in ((1, 512), (70, 50)):
        prompt = rng.integers(0, untrained.loaded.checkpoint.config.vocab_size, n_prompt, np.int32)
        plain = generate(untrained, prompt, settings, 50)
        drafted = generate(untrained, prompt, settings, 50, n_drafts, chunk)
        assert drafted.same(plain), f"prompt of {n_prompt}"
        assert drafted.accepted < drafted.proposed and drafted.proposed > 0


def test_head_caches_after_heavy_rejection_equal_a_fresh_absorb(untrained: Engine) -> None:
    rng = np.random.default_rng(1)
    prompt = rng.integers(0, untrained.loaded.checkpoint.config.vocab_size, 37, np.int32)
    session, drawn = begin(untrained, prompt, SAMPLINGS["hot"], 15, 512)
    while len(drawn) < 90:
        (more,) = untrained.runner.round([session], [15])
        drawn += more
    proposed, accepted = untrained.runner.draft_counts(session)
    assert accepted < proposed / 4
    n = session.head_length
    whole = np.concatenate([prompt, np.array([d.token for d in drawn], np.int32)])
    fresh = untrained.session()
    untrained.runner.prompt(fresh, whole[: n + 1], False, core.Sampling())
    assert untrained.runner.head_hash(fresh, n) == untrained.runner.head_hash(session, n)
    fresh.close()
    session.close()


def test_sequences_that_share_rounds_with_their_drafts(trained: Engine) -> None:
    cases = CASES[:: len(CASES) // 4][:4]
    settings = list(SAMPLINGS.values())
    plain = [
        generate(trained, np.array(c["prompt_ids"], np.int32), s, 20)
        for c, s in zip(cases, settings, strict=True)
    ]
    running = {}
    for i, (case, s) in enumerate(zip(cases, settings, strict=True)):
        running[i] = begin(trained, np.array(case["prompt_ids"], np.int32), s, i, 512)
    replies: dict[int, Reply] = {}
    shared = 0
    while running:
        ids = list(running)
        shared += len(ids) > 1
        limits = [limit(trained, running[i][0], running[i][1], 20, 3 * i) for i in ids]
        for i, more in zip(ids, trained.runner.round([running[i][0] for i in ids], limits), strict=True):
            running[i][1].extend(more)
        for i in ids:
            session, drawn = running[i]
            if len(drawn) >= 20:
                replies[i] = finish(trained, session, drawn, 20)
                del running[i]
    assert shared >= 5
    for i, reply in replies.items():
        assert reply.same(plain[i]), cases[i]["id"]


@pytest.mark.parametrize("offset", [0, 1])
def test_float32_drafts_are_those_of_the_golden_file(offset: int) -> None:
    engine = Engine(TINY / "hf", "", "float32", context=2048, sequences=1, max_window=16)
    found = hits = 0
    for case in CASES:
        output, golden = case["output_ids"], case["draft_ids"]
        session, drawn = begin(engine, np.array(case["prompt_ids"], np.int32), GREEDY, 1 - offset, 512)
        reply = [d.token for d in drawn]
        while len(reply) < len(output):
            for draft in engine.runner.drafts(session):
                assert draft == golden[len(reply) - 1], (case["id"], len(reply))
                found += 1
            reply += [d.token for d in engine.runner.round([session], [1])[0]]
        hits += engine.runner.draft_counts(session)[1]
        session.close()
        assert reply[: len(output)] == output
    assert found > 300 and hits > 0.9 * found


def test_drafts_of_the_bundled_checkpoint_are_kept_on_its_tasks_as_often_as_the_models_own() -> None:
    engine = Engine(BUNDLED, "", "bfloat16", max_window=16)
    proposed = accepted = 0
    for i, case in enumerate(case for case in CASES if not case["id"].startswith("open")):
        # A kept draft is followed by a round's own token, so every other token is a draft: odd or even ones.
        session, drawn = begin(engine, np.array(case["prompt_ids"], np.int32), GREEDY, i % 2, 512)
        while len(drawn) < len(case["output_ids"]):
            drawn += engine.runner.round([session], [1])[0]
        counts = engine.runner.draft_counts(session)
        proposed, accepted = proposed + counts[0], accepted + counts[1]
        session.close()
    # 99.94 % over 810 prompts in float32: tests/tiny/train/README.md.
    assert proposed > 700 and abs(accepted / proposed - 0.9994) < 0.01, f"{accepted} of {proposed}"
