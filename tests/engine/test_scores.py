"""Log-probabilities of a prompt's own tokens: of one reading of it, whatever runs beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flashnext import _core
from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.events import Reply, TokenLogprob
from flashnext.engine.load import load_model
from flashnext.engine.sampling import Sampling
from flashnext.engine.scheduler import Scheduler
from flashnext.errors import DeviceError
from flashnext.text.messages import InvalidField
from support.jobs import add
from support.pages import pages_came_back
from support.round_by_round import RoundByRound

GOLDEN = Path(__file__).parents[1] / "tiny" / "golden.jsonl"
CASES = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
LONG = max((case["prompt_ids"] for case in CASES), key=len)[:1400]  # three chunks
SHORT = CASES[0]["prompt_ids"]
SCORED = Sampling(temperature=0, max_tokens=2, logprobs=3, prompt_logprobs=True)
CERTAIN = 100.0  # added to a token's logit it is the likeliest


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(parallel=4) as engine:
        yield engine
        assert pages_came_back(engine)


def scores(reply: Reply) -> tuple[TokenLogprob, ...]:
    assert reply.prompt_logprobs is not None
    return reply.prompt_logprobs


def as_drawn(engine: Engine, ids: list[int], at: int) -> TokenLogprob:
    """The token at `at` as the first of a reply to those before it, which bias makes certain."""
    sampling = Sampling(temperature=0, max_tokens=1, logit_bias={ids[at]: CERTAIN}, logprobs=3)
    (drawn,) = engine.generate(ids[:at], sampling=sampling).result().logprobs or ()
    return drawn


@pytest.mark.parametrize("ids", [SHORT, LONG], ids=["one chunk", "three chunks"])
def test_they_are_what_a_reply_of_these_tokens_would_have_bit_for_bit(engine: Engine, ids: list[int]) -> None:
    found = scores(engine.generate(ids, sampling=SCORED).result())
    assert [one.token_id for one in found] == ids[1:]
    for at in {1, 2, len(ids) // 2, 511, 512, 513, len(ids) - 1}:
        if at < len(ids):
            assert found[at - 1] == as_drawn(engine, ids, at), at


def test_they_are_those_of_the_logits_in_float64(engine: Engine) -> None:
    n_tokens = engine.tokenizer.n_tokens
    loaded = load_model(BUNDLED, draft_head=False)  # the engine's own may be timing its rounds
    runner = _core.Runner(loaded.model, n_tokens)
    session = _core.Session(loaded.model, loaded.pool)
    (rows,) = runner.forward([(session, np.asarray(SHORT, np.int32), False)])
    session.close()
    logits = np.asarray(rows, np.float64)[:, :n_tokens]
    sums = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
    for at, one in enumerate(scores(engine.generate(SHORT, sampling=SCORED).result())):
        assert one.logprob == pytest.approx(logits[at, SHORT[at + 1]] - sums[at], abs=1e-4)
        assert [i for i, _ in one.top] == np.argsort(-logits[at], kind="stable")[:3].tolist()


def test_the_reply_is_the_one_without_them(engine: Engine) -> None:
    sampling = Sampling(temperature=2, seed=3, max_tokens=20, logprobs=1)
    plain = engine.generate(LONG, sampling=sampling).result()
    told = engine.generate(
        LONG, sampling=Sampling(temperature=2, seed=3, max_tokens=20, logprobs=1, prompt_logprobs=True)
    ).result()
    assert plain.prompt_logprobs is None
    assert (told.token_ids, told.logprobs) == (plain.token_ids, plain.logprobs)


def test_only_the_first_event_tells_them(engine: Engine) -> None:
    events = list(engine.generate(SHORT, sampling=SCORED))
    assert [event.prompt_logprobs is not None for event in events] == [True, *[False] * (len(events) - 1)]


def test_they_are_the_same_beside_others_that_read_the_same_prompt(engine: Engine) -> None:
    alone = engine.generate(LONG, sampling=SCORED).result()
    others = [engine.submit(LONG, sampling=Sampling(max_tokens=30, seed=i)) for i in range(2)]
    scored = [engine.submit(LONG, sampling=SCORED) for _ in range(2)]
    for request in scored:
        reply = request.result()
        assert scores(reply) == scores(alone)
        assert reply.usage.cached_tokens == 0  # nothing is skipped: each token's row is wanted
    for other in others:
        other.result()


@pytest.mark.parametrize("when", ["while it reads", "while it decodes"])
def test_a_preempted_request_tells_each_score_once(when: str) -> None:
    model = load_model(BUNDLED, draft_head=False, context=2048)
    core = RoundByRound(model, model.checkpoint.config.vocab_size)

    def told(preempts: bool) -> list[tuple[TokenLogprob, ...]]:
        scheduler = Scheduler(core, 2)
        client = add(scheduler, LONG, max_tokens=8)
        job = client.job
        job.scores = job.logprobs = True
        job.sampling = _core.Sampling(temperature=0.0, logprobs=3)
        while not scheduler.idle:
            scheduler.step()
            is_moment = 0 < job.n_read < len(LONG) if when == "while it reads" else len(job.token_ids) >= 3
            if preempts and job.session and is_moment:
                preempts = False
                scheduler._stop()
                scheduler._preempt(job)
        assert not preempts
        return [e.prompt_logprobs for e in client.events() if e.prompt_logprobs is not None]

    (plain,) = told(False)
    assert [one.token_id for one in plain] == LONG[1:]
    assert told(True) == [plain]


def test_a_failure_while_scores_are_made_is_the_requests_alone(engine: Engine) -> None:
    alone = engine.generate(LONG, sampling=SCORED).result()
    device = engine.loaded.device
    _core.testing.fail_dispatch(device, "token_logprobs", 2, "planted")
    try:
        with pytest.raises(DeviceError, match="planted"):
            engine.generate(LONG, sampling=SCORED).result()
    finally:
        _core.testing.clear_faults(device)
    again = engine.generate(LONG, sampling=SCORED).result()
    assert (again.token_ids, scores(again)) == (alone.token_ids, scores(alone))


def test_a_prompt_of_one_token_has_none(engine: Engine) -> None:
    assert scores(engine.generate([SHORT[0]], sampling=SCORED).result()) == ()


def test_they_are_refused_without_logprobs_and_with_a_thinking_budget() -> None:
    with pytest.raises(InvalidField, match="prompt_logprobs: they come with logprobs"):
        Sampling(prompt_logprobs=True)
    with pytest.raises(InvalidField, match="prompt_logprobs: they do not go with a thinking budget"):
        Sampling(prompt_logprobs=True, logprobs=0, thinking_budget=0)
