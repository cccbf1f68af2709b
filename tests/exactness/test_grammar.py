"""Replies under grammars: what is finished matches; company, drafts and preemption change no bit of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from flashnext import Engine, Grammar, Reply, Sampling, TemplateOptions
from flashnext.engine.errors import GrammarDeadEnd
from flashnext.engine.sampling import choice_seed
from flashnext.grammar import Matching
from flashnext.text.messages import InvalidField
from support.grammar_cases import CASES
from support.grammars import compiler, ids_of

ASK = [{"role": "user", "content": "What is 17 + 25? Answer in JSON."}]
QUICK = TemplateOptions(enable_thinking=False)
HOT: dict[str, Any] = {"temperature": 1.5}
SEVERAL = CASES[::5]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    # Drafts whatever they cost here.
    with Engine(context=1024, parallel=8, drafts=4, prices=False) as engine:
        yield engine


def replies(engine: Engine, asked: Sequence[tuple[Any, Sampling, Any]]) -> list[Reply]:
    """All at once."""
    requests = [engine.submit(prompt, sampling=how, options=options) for prompt, how, options in asked]
    return [request.result() for request in requests]


def same(a: Reply, b: Reply) -> bool:
    return (a.token_ids, a.token_sha, a.finish_reason) == (b.token_ids, b.token_sha, b.finish_reason)


def limited(grammar: Grammar | None, seed: int, n: int = 96, **more: Any) -> Sampling:
    return Sampling(grammar=grammar, seed=seed, max_tokens=n, **more)


def test_there_are_enough_grammars() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("how", ["greedy", "sampled", "thinking"])
def test_every_finished_reply_matches(engine: Engine, how: str) -> None:
    more = {"temperature": 0.0} if how == "greedy" else dict(HOT)
    more |= {"thinking_budget": 8} if how == "thinking" else {}
    options = None if how == "thinking" else QUICK
    told = replies(
        engine, [(ASK, limited(grammar, seed, **more), options) for seed, (grammar, _) in enumerate(CASES)]
    )
    n_finished = 0
    for seed, ((grammar, matches), reply) in enumerate(zip(CASES, told, strict=True)):
        where = f"{grammar.kind} {grammar.source}, seed {seed}: {reply.text!r}"
        assert bool(reply.reasoning) == (how == "thinking"), where
        if reply.finish_reason == "length":
            continue
        n_finished += 1
        # A chat drops white space in front of an answer behind thoughts.
        spaced = how == "thinking" and grammar.source.startswith("[ \\n]")
        assert spaced or matches(reply.text), where
    assert n_finished >= 0.9 * len(CASES)


def test_drafts_and_company_change_no_bit(engine: Engine) -> None:
    """Drafted beside many others, among them plain replies, equals undrafted and alone."""
    asked: list[tuple[Any, Sampling, TemplateOptions | None]] = [
        (ASK, limited(grammar, seed, **HOT), QUICK) for seed, (grammar, _) in enumerate(SEVERAL)
    ]
    asked += [(ASK, limited(None, seed, 64, **HOT), QUICK) for seed in range(4)]
    asked += [("Once upon", limited(None, 9, 64, temperature=0.0), None)]
    together = replies(engine, asked)
    assert sum(reply.drafts.proposed for reply in together) > 0
    with Engine(context=1024, parallel=1, drafts=0, prefix_cache_gib=0) as alone:
        for (prompt, how, options), reply in zip(asked, together, strict=True):
            expected = alone.submit(prompt, sampling=how, options=options).result()
            assert same(reply, expected), f"{how.grammar}: {reply.text!r}, alone {expected.text!r}"


@pytest.mark.parametrize("options", [{"lone": False}, {"serial_drafts": True}, {"prices": True}])
def test_how_rounds_are_run_changes_no_bit(engine: Engine, options: dict[str, Any]) -> None:
    asked = [(ASK, limited(grammar, seed, **HOT), QUICK) for seed, (grammar, _) in enumerate(SEVERAL[:6])]
    expected = replies(engine, asked)
    with Engine(context=1024, parallel=3, drafts=3, **{"prices": False} | options) as other:
        for (prompt, how, template), reply in zip(asked, expected, strict=True):
            assert same(other.submit(prompt, sampling=how, options=template).result(), reply), how.grammar
        assert all(map(same, replies(other, asked), expected))


def test_drafts_stay_on_under_a_schema(engine: Engine) -> None:
    schema = {
        "type": "array",
        "items": {"enum": ["a longer text that is copied"]},
        "minItems": 4,
        "maxItems": 4,
    }
    reply = engine.submit(
        ASK, sampling=limited(Grammar.json_schema(schema), 1, 200, temperature=0.0), options=QUICK
    ).result()
    assert reply.finish_reason == "stop" and reply.drafts.accepted > 0


def test_four_choices_equal_four_requests_with_their_seeds(engine: Engine) -> None:
    grammar = CASES[3][0]
    together = replies(engine, [(ASK, limited(grammar, choice_seed(5, i), **HOT), QUICK) for i in range(4)])
    one_by_one = [
        engine.submit(
            ASK, sampling=limited(grammar, choice_seed(5, i), draft=False, **HOT), options=QUICK
        ).result()
        for i in range(4)
    ]
    assert all(map(same, together, one_by_one)) and len({reply.token_sha for reply in together}) > 1


def test_preempted_replies_go_on_in_their_grammars() -> None:
    """More sequences than there are pages for: each goes on with the tokens that it gets alone."""
    asked = [
        (ASK, limited(Grammar.regex(f"([a-z]{{3,9}} ){{60}}{i}"), i, 150, **HOT), QUICK) for i in range(4)
    ]
    with Engine(context=320, parallel=4, drafts=2, prefix_cache_gib=0) as crowded:
        told = replies(crowded, asked)
        assert crowded.counts.preempted > 0
        alone = [crowded.submit(p, sampling=how, options=options).result() for p, how, options in asked]
    assert all(map(same, told, alone))


def test_a_cut_reply_is_a_valid_prefix(engine: Engine) -> None:
    grammar = Grammar.json_schema(
        {"type": "object", "properties": {"long_name": {"type": "string"}}, "required": ["long_name"]}
    )
    reply = engine.submit(ASK, sampling=limited(grammar, 0, 5, temperature=0.0), options=QUICK).result()
    assert reply.finish_reason == "length" and len(reply.token_ids) == 5
    walk = Matching(compiler().compile(grammar), thinking=False)
    assert walk.masks(reply.token_ids, [])[0].any() and not walk.failure


def test_log_probabilities_are_those_of_the_model_alone(engine: Engine) -> None:
    """The first token's are the same with and without a grammar, and it need not be among the likeliest."""
    plain = engine.submit(
        ASK, sampling=limited(None, 0, 1, logprobs=5, temperature=0.0), options=QUICK
    ).result()
    masked = engine.submit(
        ASK, sampling=limited(Grammar.regex("ß+"), 0, 1, logprobs=5, temperature=0.0), options=QUICK
    ).result()
    assert plain.logprobs is not None and masked.logprobs is not None
    assert plain.logprobs[0].top == masked.logprobs[0].top
    assert masked.logprobs[0].token_id == masked.token_ids[0] != plain.token_ids[0]
    assert masked.logprobs[0].logprob < plain.logprobs[0].logprob


@pytest.mark.parametrize("raises", [False, True])
def test_a_dead_end_ends_that_reply_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    beside = (ASK, limited(None, 3, 40, **HOT), QUICK)
    expected = replies(engine, [beside])[0]
    right = Matching.masks

    def masks(self: Matching, drawn: Sequence[int], drafts: Sequence[int]) -> Any:
        rows = right(self, drawn, drafts)
        if len(self._taken) >= 6:
            if raises:
                raise RuntimeError("planted")
            rows, self.failure = np.zeros_like(rows), "planted"
        return rows

    monkeypatch.setattr(Matching, "masks", masks)
    doomed_request = engine.submit(
        ASK, sampling=limited(Grammar.regex("[a-z]{400}"), 1, **HOT), options=QUICK
    )
    other = engine.submit(beside[0], sampling=beside[1], options=beside[2])
    with pytest.raises(GrammarDeadEnd, match="planted"):
        doomed_request.result()
    assert same(other.result(), expected)


def test_cancelled_and_closed_replies_leave_nobody_waiting() -> None:
    endless = limited(Grammar.regex("[a-z]{900}"), 1, 900, **HOT)
    with Engine(context=1024, parallel=3, drafts=2) as own:
        for _ in range(3):
            request = own.submit(ASK, sampling=endless, options=QUICK)
            beside = own.submit(ASK, sampling=limited(CASES[0][0], 2, **HOT), options=QUICK)
            next(request)
            request.cancel()
            assert list(request)[-1].finish_reason == "cancelled"
            beside.result()
        left = [own.submit(ASK, sampling=endless, options=QUICK) for _ in range(5)]
        next(left[0])
        assert own.close(60)


def test_the_same_again_from_the_prefix_cache(engine: Engine) -> None:
    how = limited(CASES[4][0], 11, **HOT)
    first, again = (engine.submit(ASK, sampling=how).result() for _ in range(2))
    fresh = engine.submit(ASK, sampling=limited(CASES[4][0], 11, cache=False, **HOT)).result()
    assert same(first, again) and same(first, fresh)


def test_a_grammar_that_cannot_be_enforced_is_refused_by_its_field(engine: Engine) -> None:
    with pytest.raises(InvalidField) as found:
        engine.submit(ASK, sampling=Sampling(grammar=Grammar.json_schema({"not": {}}, field="mine")))
    assert found.value.field == "mine" and "/not" in str(found.value)
    with pytest.raises(InvalidField, match="ignore_eos"):
        Sampling(grammar=Grammar.json_object(), ignore_eos=True)


def test_calls_are_the_templates(engine: Engine) -> None:
    weather = {
        "type": "object",
        "properties": {"days": {"type": "integer", "minimum": 2, "maximum": 9}},
        "required": ["days"],
    }
    tools = [{"type": "function", "function": {"name": "weather", "parameters": weather}}]
    how = limited(Grammar.calls(tools, several=False), 4, **HOT, thinking_budget=4)
    reply = engine.submit(ASK, sampling=how, tools=tools).result()
    assert reply.finish_reason == "stop" and not reply.text and reply.reasoning
    [call] = reply.tool_calls
    assert call.name == "weather" and call.arguments in {f'{{"days": {n}}}' for n in range(2, 10)}
    assert ids_of("<tool_call>")[0] in reply.token_ids
