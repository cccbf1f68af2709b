"""The ladder compares what ran side by side, tells a wrong reply, and runs from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import ladder
import pytest
from flashnext.engine.engine import BUNDLED
from ladder_report import (
    GREEDY,
    METRICS,
    OFF,
    ON,
    SAMPLED,
    Spread,
    figures,
    key_of,
    mismatches,
    ratio,
    table_lines,
    target_lines,
    targets,
)
from ladder_worker import LONG, PEER, Plan, Run, long_tokens
from plot import Panel, svg, top_and_step
from workloads import LENGTHS, MIXED, WORKLOADS, Prompts, requests


def result(rate: float | None, n: int = 1, shas: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    rung = dict.fromkeys(METRICS, rate) | dict(n=n, together=n, proposed=None, accepted=None)
    return dict(rung=rung | more.pop("rung", {}), shas=list(shas), disturbed=0.0, host=None) | more


def rounds_of(*rates: dict[str, float]) -> list[dict[str, dict[str, Any]]]:
    """Rounds of "contender n" -> rate, all greedy and mixed."""
    found = []
    for each in rates:
        one: dict[str, dict[str, Any]] = {}
        for name, rate in each.items():
            contender, _, n = name.rpartition(" ")
            one.setdefault(contender, {})[key_of(MIXED, GREEDY, int(n))] = result(rate, int(n))
        found.append(one)
    return found


ONE, FOUR = (OFF, key_of(MIXED, GREEDY, 1)), (OFF, key_of(MIXED, GREEDY, 4))


def test_ratio_is_the_median_of_those_of_each_round() -> None:
    rounds = rounds_of({f"{OFF} 1": 10, f"{OFF} 4": 20}, {f"{OFF} 1": 5, f"{OFF} 4": 20}, {f"{OFF} 1": 8})
    assert ratio(rounds, FOUR, ONE) == Spread(3.0, 2.0, 4.0)


def test_ratio_needs_both_in_one_round() -> None:
    assert ratio(rounds_of({f"{OFF} 1": 10}, {f"{OFF} 4": 20}), FOUR, ONE) is None


def test_targets_of_random_weights_are_ratios_of_widths_and_beside_the_peer() -> None:
    rounds = rounds_of(
        {f"{OFF} 1": 10, f"{OFF} 4": 17, f"{OFF} 8": 30, f"{OFF} 16": 33, f"{PEER} 1": 10, f"{PEER} 8": 20}
    )
    met: Any = {t.name: (t.value, t.met) for t in targets(rounds, [MIXED], is_trained=False)}
    assert met == {
        "mixed: 4 together over one": (pytest.approx(1.7), False),
        "mixed: 16 together over one": (pytest.approx(3.3), True),
        "mixed: 1 together over llama.cpp's 1": (pytest.approx(1.0), None),
        "mixed: 8 together over llama.cpp's 8": (pytest.approx(1.5), True),
        "mixed: 16 together over llama.cpp's 1": (pytest.approx(3.3), True),
    }


def test_drafts_are_judged_on_the_trained_checkpoint_alone() -> None:
    rounds = rounds_of({f"{OFF} 1": 10, f"{ON} 1": 14})
    for is_trained, met in ((True, False), (False, None)):
        (found,) = targets(rounds, [MIXED], is_trained)
        assert found.value == pytest.approx(1.4)
        assert found.met is met


@pytest.mark.parametrize(("gap_s", "met"), [(0.4, True), (0.7, False)])
def test_gap_beside_a_long_prompt_is_judged_by_the_target_gap(gap_s: float, met: bool) -> None:
    long = dict(n_tokens=16_384, gap_s=gap_s, target_s=0.3, is_whole=True)
    (found,) = targets([{OFF: {LONG: long}}], [MIXED], is_trained=False)
    assert found.value == pytest.approx(gap_s / 0.3)
    assert found.met is met


def test_round_time_outside_the_device_is_what_it_was_not_busy() -> None:
    host = dict(wall_s=2.0, rounds=100, busy_s=1.8, host_s=0.1)
    rounds = [{OFF: {key_of(MIXED, GREEDY, 1): result(50.0, host=host)}}]
    found: Any = [(t.value, t.unit, t.met) for t in targets(rounds, [MIXED], is_trained=False)]
    assert found == [
        (pytest.approx(10), "%", False),
        (pytest.approx(2000), "us", None),
        (pytest.approx(5), "%", None),
        (pytest.approx(1000), "us", None),
    ]


def test_reply_that_differs_from_the_one_alone_is_counted() -> None:
    assert mismatches([result(1, 2, ("a", "b"))], ["a", "b", "c"]) == 0
    assert mismatches([result(1, 2, ("a", "c")), result(1, 2, ("b", "a"))], ["a", "b"]) == 3
    assert mismatches([result(1, 2, ("a", "b"))], ["a"]) == 1, "a prompt without a known reply is no match"


def test_row_with_a_wrong_reply_says_so() -> None:
    rounds = [{OFF: {key_of(MIXED, GREEDY, 2): result(5.0, 2, ("a", "x"))}}]
    (row,) = figures(rounds, {f"{MIXED} {GREEDY}": ["a", "b"]})
    assert (row["exact"], row["n_wrong"]) == (False, 1)
    assert "| NO: 1 |" in list(table_lines([row], 0.1))[-1]


def test_row_holds_medians_of_the_rounds_and_all_drafts() -> None:
    key = key_of("code", SAMPLED, 2)
    rates = (3.0, None, 9.0, 4.0)
    rounds = [{ON: {key: result(r, 2, rung=dict(proposed=10, accepted=7))}} for r in rates]
    (row,) = figures(rounds, {})
    assert row["decode"] == dict(median=4.0, low=3.0, high=9.0)
    assert (row["workload"], row["mode"], row["n"]) == ("code", SAMPLED, 2)
    assert "28 of 40" in list(table_lines([row], 0.1))[-1]


def test_peer_gives_no_fingerprints_and_is_not_judged_by_them() -> None:
    (row,) = figures([{PEER: {key_of(MIXED, GREEDY, 1): result(5.0, 1, ("",))}}], {})
    assert (row["exact"], row["n_wrong"]) == (None, 0)


def test_disturbed_row_is_marked() -> None:
    (row,) = figures([{PEER: {key_of(MIXED, GREEDY, 1): result(5.0, disturbed=0.3)}}], {})
    assert list(table_lines([row], 0.1))[-1].startswith("| ~llama.cpp |")


def test_target_table_says_what_is_wanted_and_whether_it_is_met() -> None:
    lines = list(target_lines(targets(rounds_of({f"{OFF} 1": 10, f"{OFF} 4": 20}), [MIXED], False)))
    assert lines[2:] == ["| mixed: 4 together over one | 2 (2-2) x | at least 1.8 x | yes |"]


def test_contenders_take_turns() -> None:
    assert ladder.turns([OFF, PEER, ON], 0) == [OFF, PEER, ON]
    assert ladder.turns([OFF, PEER, ON], 1) == [ON, PEER, OFF]


def test_plan_survives_its_file(tmp_path: Path) -> None:
    plan = Plan("flashnext", "x", 2, 8, drafts=4, runs=(Run("a b 1", [[1, 2]], [3]), Run("a c 1", [[4]])))
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan


def test_every_sequence_keeps_its_prompt_and_its_seed_whatever_runs_beside_it() -> None:
    options = ladder.parse(["--rungs", "1", "4", "--tokens", "8"])
    climbed = ladder.ladder_of(options, "bundled")
    alone = {run.key: run for run in ladder.plan_alone(options, climbed).runs}
    for run in ladder.plan_of(options, climbed, ON).runs:
        workload, mode, n = run.key.split()
        assert len(run.prompts) == int(n)
        for i, prompt in enumerate(run.prompts):
            assert [prompt] == alone[key_of(workload, mode, i)].prompts
            assert run.seeds[i : i + 1] == alone[key_of(workload, mode, i)].seeds


@pytest.mark.parametrize("context", [1024, 8192, 262_144])
def test_long_prompt_and_the_reply_beside_it_fit_together(context: int) -> None:
    n, beside = long_tokens(context, 16_384)
    assert n <= 16_384
    assert n + beside + LENGTHS[1] + 3 * 64 <= context


@pytest.mark.parametrize("workload", [*WORKLOADS, MIXED])
def test_prompts_are_all_different_and_of_one_length_class(workload: str) -> None:
    prompts = Prompts(BUNDLED).chats(workload, 32)
    assert len({tuple(ids) for ids in prompts}) == 32
    assert all(LENGTHS[0] <= len(ids) <= LENGTHS[1] for ids in prompts)


def test_mixed_prompts_are_of_every_workload() -> None:
    assert requests(MIXED, 6) == [requests(w, 2)[i // 4] for i, w in enumerate([*WORKLOADS, *WORKLOADS][:6])]


def test_long_prompt_has_the_length_that_was_asked_for() -> None:
    assert len(Prompts(BUNDLED).long(1000)) == 1000


@pytest.mark.parametrize(
    ("most", "top", "step"), [(0, 1, 0.5), (1, 1, 0.2), (23.2, 25, 5), (1159, 1250, 250), (0.07, 0.08, 0.02)]
)
def test_axis_ends_at_a_round_number_not_far_above_the_highest_point(
    most: float, top: float, step: float
) -> None:
    assert top_and_step(most) == pytest.approx((top, step))


def test_plot_is_an_svg_with_a_line_for_each_series_and_a_place_for_each_point() -> None:
    lines = {"x & y": [(1.0, 2.0), (4.0, 8.0)], "z": [(2.0, 4.0)], "none": []}
    tree = ElementTree.fromstring(svg([Panel("a < b", "n", lines), Panel("c", "n", {})]))
    space = "{http://www.w3.org/2000/svg}"
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in tree.iter(f"{space}circle")]
    (x1, y1), (x4, y4), (x2, y2) = circles
    assert x2 - x1 == pytest.approx(x4 - x2), "doublings are equally far apart"
    assert y1 - y2 == pytest.approx((y2 - y4) / 2, abs=0.11), "the y axis is linear"
    assert {t.text for t in tree.iter(f"{space}text")} >= {"a < b", "x & y", "z", "c"}


def test_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"mid-mlx4/config.json: not found"):
        ladder.ladder_of(ladder.parse([str(tmp_path)]), "mid")
    with pytest.raises(SystemExit, match="mid: give the folder"):
        ladder.ladder_of(ladder.parse([]), "mid")


def test_failing_process_is_named_with_the_end_of_its_output() -> None:
    with pytest.raises(SystemExit, match=r"(?s)alone: exit status 1.*absent"):
        ladder.run_plan(ladder.parse([]), Plan("flashnext", "absent", 1, 4), "alone")


def test_a_small_ladder_runs_from_end_to_end(tmp_path: Path) -> None:
    command = [
        *(sys.executable, ladder.__file__, "--rungs", "1", "3", "--tokens", "6", "--rounds", "1"),
        *("--workloads", "code", "--drafts", "2", "--long", "300", "--patience", "0", "--threads", "1"),
        *("--json", str(tmp_path / "ladder.json"), "--svg", str(tmp_path / "ladder")),
    ]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    found = json.loads((tmp_path / "ladder.json").read_text())["checkpoints"]["bundled"]
    ran = {(r["contender"], r["mode"], r["n"]) for r in found["figures"]}
    assert ran == {(c, m, n) for c in (OFF, ON) for m in (GREEDY, SAMPLED) for n in (1, 3)}
    assert all(row["exact"] for row in found["figures"])
    assert len(found["rounds"]) == 2, "one, and the long prompt"
    assert found["long"][0]["n_tokens"] == 300
    assert any(t["name"].startswith("code: drafts on") for t in found["targets"])
    assert "| drafts on | code | sampled | 3" in finished.stdout.replace("~", "")
    ElementTree.fromstring((tmp_path / "ladder-bundled.svg").read_text())


def test_peer_decodes_each_sequence_of_a_batch_as_it_does_alone(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="needs the extra `peers` (llama-cpp-python)")
    pytest.importorskip("mlx.core", reason="needs the extra `peers` (mlx, and mlx-cpu on Linux)")
    import llamacpp
    from llamacpp_side import LlamaBatch
    from make_gguf import write_gguf
    from make_model import write_checkpoint
    from preset import PRESETS

    write_checkpoint(PRESETS["nano"], tmp_path / "hf")
    path = tmp_path / "nano-f32.gguf"
    write_gguf(tmp_path / "hf", path, "f32")
    prompts = [[5, 6, 7, 8], [300, 2, 9], [1, 1, 1, 1, 1]]
    batch = LlamaBatch(path, 64, 3, 1)
    replies = batch.run(prompts, 6)
    assert all(len(reply.times_s) == 6 and reply.times_s[-1] > reply.times_s[0] for reply in replies)
    batch.close()
    drawn = []
    for prompt in prompts:  # row by row, on a session of one sequence
        model = llamacpp.Model(path)
        session = llamacpp.Session(model, 64, threads=1)
        drawn.append(session.decode_greedy([(token, at, 0) for at, token in enumerate(prompt)]))
        session.close()
        model.close()
    model = llamacpp.Model(path)
    session = llamacpp.Session(model, 64, 3, threads=1)
    rows = [(token, at, s) for s, prompt in enumerate(prompts) for at, token in enumerate(prompt)]
    assert session.decode_greedy_each(rows, [3, 6, 11]) == drawn
