"""Either side is measured by the same steps, and rounds interleave the sides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import compare
import numpy as np
import pytest
from report import Contender, Round
from samples import Counters, Meter, Sample
from sides import WARM_UP_TOKENS, Plan, Tokens, measure

PLAN = Plan(prompts=(256,), contexts=(128, 512), steps=4, n_samples=3)
CONTENDERS = [
    Contender(f"{side} {bits}", bits, "", 1.0, 1.0) for bits in (4, 6) for side in ("flashnext", "llama.cpp")
]


class FakeSide:
    """A millisecond for a prompt token, ten for a decoded one; refuses what an engine could not do."""

    n_vocab = 100

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.log: list[str] = []
        self.prompts: list[Tokens] = []
        self.length = 0

    def reset(self) -> None:
        self.length = 0
        self.log.append("reset")

    def prompt(self, tokens: Tokens) -> None:
        assert self.length == 0, "a prompt began on a sequence that was not empty"
        assert tokens.dtype == np.int32 and tokens.min() >= 0 and tokens.max() < self.n_vocab
        self.length = len(tokens) + 1
        self.wall_s += len(tokens) * 1e-3
        self.prompts.append(tokens)
        self.log.append(f"prompt {len(tokens)}")

    def decode(self, steps: int) -> None:
        assert self.length, "decoding began on an empty sequence"
        self.length += steps
        assert self.length <= PLAN.context, "the sequence outgrew the planned context"
        self.wall_s += steps * 1e-2
        self.log.append(f"decode {steps}")

    def read(self) -> Counters:
        return Counters(self.wall_s, 0.0, 0.0, 0.0, 0.0, 0.0, 0)


def measured() -> tuple[FakeSide, dict[str, list[Sample]]]:
    side = FakeSide()
    meter = Meter(2, patience_s=0, read=side.read)
    measure(side, PLAN, meter)
    return side, meter.samples


def test_rates_are_tokens_over_the_time_of_prompt_or_decoding_alone() -> None:
    _, samples = measured()
    assert [round(s.value, 6) for s in samples["decode @128"]] == [100, 100, 100]
    assert [round(s.value, 6) for s in samples["prompt 256"]] == [1000]


def test_everything_planned_is_measured() -> None:
    _, samples = measured()
    assert list(samples) == PLAN.metrics == ["decode @128", "decode @512", "prompt 256"]


def test_decoding_is_timed_at_its_context_and_after_a_warm_up() -> None:
    side, _ = measured()
    assert side.log == [
        *("reset", f"prompt {WARM_UP_TOKENS}", "decode 1"),
        *("reset", "prompt 128", "decode 1", "decode 4", "decode 4", "decode 4"),
        *("reset", "prompt 512", "decode 1", "decode 4", "decode 4", "decode 4"),
        *("reset", "prompt 256"),
    ]


def test_both_sides_read_the_same_tokens() -> None:
    (first, _), (second, _) = measured(), measured()
    assert all(np.array_equal(a, b) for a, b in zip(first.prompts, second.prompts, strict=True))


def test_planned_context_holds_the_warm_up_whatever_is_measured() -> None:
    assert Plan(prompts=(16,), contexts=(8,), steps=1, n_samples=1).context > WARM_UP_TOKENS


def test_plan_may_leave_prompts_or_decoding_out() -> None:
    assert Plan(prompts=(), contexts=(128,), steps=8, n_samples=2).metrics == ["decode @128"]
    assert Plan(prompts=(64,), contexts=(), steps=8, n_samples=2).context > WARM_UP_TOKENS


def test_sides_of_the_same_bits_run_next_to_each_other_and_take_turns() -> None:
    names = ["machine", "flashnext 4", "llama.cpp 4", "flashnext 6", "llama.cpp 6"]
    assert compare.turns(CONTENDERS, 0) == names
    assert compare.turns(CONTENDERS, 1) == ["machine", *names[2:0:-1], *names[4:2:-1]]


def test_every_round_runs_every_contender_once_and_is_reported() -> None:
    ran: list[str] = []
    seen: list[int] = []

    def run(name: str) -> dict[str, list[Sample]]:
        ran.append(name)
        return {"decode @128": [Sample(float(len(ran)), 1.0, 0.0, 0.0, 0.0, 0)]}

    def done(rounds: list[Round]) -> None:
        seen.append(len(rounds))

    rounds = compare.run_rounds(CONTENDERS, 2, run, done)
    assert ran == compare.turns(CONTENDERS, 0) + compare.turns(CONTENDERS, 1)
    assert seen == [1, 2]
    assert rounds[1]["llama.cpp 4"]["decode @128"][0].value == 1 + ran.index("llama.cpp 4", 5)


def test_failing_side_is_named_with_the_end_of_its_output(tmp_path: Path) -> None:
    script = Path(compare.__file__)
    command = [sys.executable, str(script), str(tmp_path), "--worker", "flashnext 4", "--preset", "absent"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode != 0
    assert "absent-mlx4" in finished.stderr


def test_parent_stops_when_a_worker_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path), "--preset", "absent"])
    options = compare.parse()
    with pytest.raises(SystemExit, match="flashnext 4: exit status 1"):
        compare.run_worker(options, "flashnext 4")


def test_quick_run_is_one_round_of_four_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path), "--quick"])
    options = compare.parse()
    assert (options.rounds, options.bits, compare.plan_of(options).n_samples) == (1, [4], 2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], None), (["--omp-wait", "default"], None), (["--omp-wait", "passive"], "passive")],
)
def test_llama_cpp_waits_as_it_does_by_default_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str | None
) -> None:
    """Passive waiting costs llama.cpp much of its decode rate, so it must never come in unasked."""
    monkeypatch.setattr(sys, "argv", ["compare.py", "folder", *arguments])
    environment = compare.worker_environment(compare.parse(), {"OMP_WAIT_POLICY": "passive", "PATH": "/bin"})
    assert environment.get("OMP_WAIT_POLICY") == expected
    assert environment["PATH"] == "/bin"


def test_report_says_how_llama_cpp_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compare.py", "folder", "--omp-wait", "passive", "--favour"])
    assert compare.setup_line(compare.parse()) == "2 threads, favoured; llama.cpp's OpenMP wait: passive"
