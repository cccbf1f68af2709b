"""Whatever comes, leaves, fails or runs short, the real core gives every reply as it is alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flashnext.engine.core import ChunkPart, CoreOptions, ReplyOptions
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.fuzz import MECHANISMS, Asked, Machine, Run, Scenario, WatchedCore
from support.matrix_models import RANDOM

SCENARIOS = int(os.environ.get("FLASHNEXT_SCENARIOS", "200"))

OPTIONS = st.builds(
    CoreOptions,
    lone=st.sampled_from([True, True, True, False]),
    serial_drafts=st.sampled_from([False, False, False, True]),
    prices=st.booleans(),
    round_rows=st.sampled_from([4, 9, 32]),
    head=st.booleans(),
    copies=st.booleans(),
)
SCENARIO = st.builds(
    Scenario,
    seed=st.integers(0, 2**32),
    n_pages=st.sampled_from([5, 5, 6, 7, 9, 16]),
    max_running=st.sampled_from([1, 2, 3, 4, 4]),
    options=OPTIONS,
    equal=st.booleans(),
    faults=st.booleans(),
    cache=st.sampled_from([0, 1, 2, 4, 4, 9, 30]),
    spill=st.sampled_from([False, False, True]),
)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> list[Machine]:
    """One worker, two that run in a random order what may run in any, and one device whose prompt passes
    sum in another order than rounds, with a model of which every layer shows it."""
    folder = tmp_path_factory.mktemp("fuzz")
    return [
        Machine(folder / "one", threads=1),
        Machine(folder / "two", threads=2, shuffle_seed=5),
        Machine(folder / "three", RANDOM, threads=1, prompt_order="reversed", dtype="float32"),
    ]


@pytest.mark.timeout(max(600, 5 * SCENARIOS))
def test_every_reply_is_what_it_is_alone(machines: list[Machine]) -> None:
    tally = Counter[str]()

    def play(n: int) -> None:
        # What fails depends on moments too, so that a smaller scenario need not fail.
        @settings(
            max_examples=n,
            deadline=None,
            derandomize=False,  # each part of `.ci/full` has a seed of its own
            phases=[Phase.explicit, Phase.generate],
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(scenario=SCENARIO, machine=st.integers(0, 2))
        def some(scenario: Scenario, machine: int) -> None:
            scenario = replace(scenario, equal=scenario.equal and machine != 2)
            tally.update(Run(machines[machine], scenario).play())

        some()

    play(SCENARIOS)
    for _ in range(8 if SCENARIOS >= 200 else 0):  # what is rare may need some more
        if all(tally[name] for name in MECHANISMS):
            break
        play(SCENARIOS // 4)
    print(tally)
    missing = [name for name in MECHANISMS if not tally[name]]
    assert SCENARIOS < 200 or not missing, f"these did not happen: {missing}; {tally}"


class ReadsLess(WatchedCore):
    """A resumed reply is read without its last token."""

    def __init__(self, core: Any) -> None:
        super().__init__(core)
        self.resumed: set[Any] = set()

    def begin(self, session: Any, options: ReplyOptions) -> None:
        if len(options.known) > 1:
            self.resumed.add(session)
        super().begin(session, options)

    def step(self, chunk: Sequence[ChunkPart], round: Sequence[Any]) -> Sequence[Any]:
        parts = [
            replace(part, tokens=part.tokens[:-1])
            if part.last and part.session in self.resumed and len(part.tokens) > 1
            else part
            for part in chunk
        ]
        return super().step(parts, round)


class ForksAnother(WatchedCore):
    """A fork's last page and recurrent block are those of a prompt that differs in the last token."""

    def __init__(self, core: Any) -> None:
        super().__init__(core)
        self.read: dict[Any, list[int]] = {}

    def step(self, chunk: Sequence[ChunkPart], round: Sequence[Any]) -> Sequence[Any]:
        for part in chunk:
            self.read.setdefault(part.session, []).extend(part.tokens.tolist())
        return super().step(chunk, round)

    def fork(self, session: Any, axes: Any = None) -> Any:
        fork = self.open(axes)
        tokens = np.array(self.read[session], np.int32)
        tokens[-1] ^= 1
        for first in range(0, len(tokens), 16):
            self.core.step([ChunkPart(fork, tokens[first : first + 16], False)], [])
        self.read[fork] = tokens.tolist()
        return fork


class KeepsOneMore(WatchedCore):
    """Where a draft was rejected, it is kept."""

    def landed(self, landed: Sequence[Any]) -> Sequence[Any]:
        return [self._more(one) if one.proposed > one.accepted and one.tokens else one for one in landed]

    def _more(self, one: Any) -> Any:
        fields = ("session", "scores", "snapshots", "ended", "proposed", "error", "short")
        last = one.tokens[-1]
        extra = SimpleNamespace(token=(last.token + 1) % 200, logits_hash=last.logits_hash, logprob=0, top=[])
        return SimpleNamespace(
            tokens=[*one.tokens[:-1], extra, last],
            accepted=one.accepted + 1,
            **{name: getattr(one, name) for name in fields},
        )


class ResumesAnother(WatchedCore):
    """Who goes on from a snapshot has the state of a prompt that differs in the last token."""

    def resume(self, snapshot: Any, tokens: Any, axes: Any = None) -> Any:
        session = self.open(axes)
        tokens = tokens.copy()
        tokens[-1] ^= 1
        for first in range(0, len(tokens), 16):
            self.core.step([ChunkPart(session, tokens[first : first + 16], False)], [])
        return session


class RestoresAnother(WatchedCore):
    """What comes from disk differs in a few numbers of its block."""

    def restore(self, n: int, block: Any, pages: Any) -> Any:
        block = block.copy()
        block[len(block) // 3 :][:64] ^= 0x20
        return self.core.restore(n, block, pages)


class DrawsFromAnotherRow(WatchedCore):
    """The logits of one token in 50 differ in a bit, and the token is the same."""

    def __init__(self, core: Any) -> None:
        super().__init__(core)
        self.n = 0

    def landed(self, landed: Sequence[Any]) -> Sequence[Any]:
        return [self._other(one) if one.tokens else one for one in landed]

    def _other(self, one: Any) -> Any:
        self.n += 1
        if self.n % 50:
            return one
        fields = ("session", "scores", "snapshots", "ended", "proposed", "accepted", "error", "short")
        tokens = [
            SimpleNamespace(token=t.token, logits_hash=t.logits_hash ^ 1, logprob=t.logprob, top=t.top)
            for t in one.tokens
        ]
        return SimpleNamespace(tokens=tokens, **{name: getattr(one, name) for name in fields})


class KeepsASession(WatchedCore):
    """With each fork a session is made that is never given back."""

    def fork(self, session: Any, axes: Any = None) -> Any:
        extra = self.core.open()
        self.core.step([ChunkPart(extra, np.array([20, 21], np.int32), False)], [])
        self.sessions.append(extra)
        return super().fork(session, axes)


@pytest.mark.parametrize(
    ("make", "more"),
    [
        *((make, {}) for make in (ReadsLess, ForksAnother, KeepsOneMore, DrawsFromAnotherRow, KeepsASession)),
        (ResumesAnother, {"cache": 9}),
        (RestoresAnother, {"cache": 4, "spill": True}),
    ],
)
def test_a_planted_violation_is_seen(
    make: type[WatchedCore], more: dict[str, Any], machines: list[Machine]
) -> None:
    for seed in range(60):
        options = CoreOptions(prices=False)
        scenario = Scenario(seed, n_pages=5, options=options, **more)
        Run(machines[0], scenario).play()  # without it nothing is wrong
        try:
            Run(machines[0], scenario, make).play()
        except AssertionError:
            return
    raise AssertionError("nothing was seen in 60 scenarios")


def test_states_that_rounds_made_are_seen_where_they_are_not_those_of_prompts(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "model", RANDOM, threads=1, prompt_order="reversed", dtype="float32")
    first = Asked(prompt=10, sampling=0, stops=0, max_tokens=12)
    reply = [one.token for one in machine.alone(first)[:12]]
    machine.prompts.append([*machine.prompts[10], *reply, 20, 21, 22])  # the turn after
    turns = first, Asked(prompt=len(machine.prompts) - 1, sampling=0, stops=0, max_tokens=30)
    scenario = Scenario(1, n_pages=60, options=CoreOptions(prices=False), cache=30, equal=False)
    tally = Run(machine, scenario).play(turns)
    assert tally["ends: length"] and tally["cache hits"] == 1 and not tally["ends of replies kept"]
    wrong = Run(machine, replace(scenario, equal=True))
    with pytest.raises(AssertionError, match="logits of token 0"):
        wrong.play(turns)
    assert wrong.tally["ends of replies kept"] == 2
