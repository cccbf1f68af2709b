"""`flashnext batch` as a person runs it: what it answers, that a kill loses nothing, how it ends."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from flashnext import commands
from flashnext.batch.lines import seed_of
from flashnext.commands.batching import SOME_FAILED
from support.serving import server_process, until

BATCH = [sys.executable, "-c", "import sys; from flashnext.cli import main; sys.exit(main())", "batch"]
PAGE = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")
MOST_S = 900.0
"""For a batch on a machine that is busy with much else; on an idle one it takes seconds."""

SUM = [{"role": "user", "content": "What is 3 + 4?"}]


def run(source: Path, target: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [*BATCH, str(source), "-o", str(target), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=MOST_S)


def write(path: Path, lines: list[Any]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def said(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what a run gives it: ids, times, and what the prefix cache had."""
    answer = json.loads(json.dumps(answer))
    if answer["response"] is not None:
        body = answer["response"]["body"]
        del answer["response"]["request_id"]
        for name in ("id", "created"):
            body.pop(name, None)
        for choice in body.get("choices", ()):
            del choice["flashnext"]["timings"]
        if "usage" in body:
            del body["usage"]["prompt_tokens_details"]
    return answer


def many(rng: random.Random, n: int) -> list[Any]:
    """Lines of all kinds, some of which are none, with short replies."""
    lines: list[Any] = ["{"]
    for i in range(1, n):
        kind = rng.choice(["plain", "plain", "openai", "chat", "bad"] if i % 50 == 0 else ["plain", "openai"])
        text = f"{rng.randrange(1000)} +"
        body = {"model": "flashnext", "prompt": text, "max_tokens": rng.choice([1, 1, 1, 2])}
        if kind == "plain":
            lines.append({name: value for name, value in body.items() if name != "model"})
        elif kind == "openai":
            lines.append({"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions", "body": body})
        elif kind == "chat":
            lines.append({"messages": SUM, "max_tokens": 3, "n": 2})
        else:
            lines.append(
                rng.choice(["{", {"prompt": "x", "max_tokens": -1}, {"url": "/v1/none", "body": {}}])
            )
    return lines


@pytest.mark.timeout(4 * MOST_S)
def test_a_batch_that_is_killed_three_times_equals_one_that_is_not(tmp_path: Path) -> None:
    number = random.SystemRandom().randrange(2**32)
    print(f"random.Random({number})")
    rng, n = random.Random(number), 700
    source = write(tmp_path / "in.jsonl", many(rng, n))
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    assert run(source, whole).returncode == SOME_FAILED
    there: list[str] = []
    for most in sorted(rng.sample(range(1, n // 2), 3)):
        process = subprocess.Popen(
            [*BATCH, str(source), "-o", str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            until(partial(has_lines, killed, max(most, len(there)), process), "no more lines came", MOST_S)
        finally:
            process.kill()
        assert b"Traceback" not in process.communicate()[1]
        # Where this process sleeps for long enough, the batch is at its end before it is killed.
        assert process.returncode in (-signal.SIGKILL, SOME_FAILED)
        data = killed.read_bytes()
        if rng.random() < 0.5:  # as it is where the kill comes in the middle of a line
            data = data[: -rng.randrange(2, 50)]
            killed.write_bytes(data)
        now = data[: data.rfind(b"\n") + 1].decode().splitlines()
        assert set(there) <= set(now)
        there = now
    done = run(source, killed)
    assert done.returncode == SOME_FAILED, done.stderr
    answers = read(killed)
    assert [said(answer) for answer in answers] == [said(answer) for answer in read(whole)]
    assert [int(answer["id"].split("_")[2]) for answer in answers] == list(range(1, n + 1))
    # What was there has not been answered again: request ids are drawn.
    assert set(there) <= set(killed.read_text(encoding="utf-8").splitlines())


def has_lines(path: Path, most: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether there are more lines than that, or there will be none."""
    return process.poll() is not None or (path.exists() and lines_of(path) > most)


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def test_answers_are_those_of_the_server_in_the_form_of_openai(tmp_path: Path) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"model": "tiny-6bit", "messages": SUM, "seed": 4, "n": 2, "max_tokens": 9}),
        (
            "/v1/completions",
            {"model": "flashnext", "prompt": ["1 2", "a"], "max_tokens": 3, "seed": 2**63},
        ),
        ("/v1/chat/completions", {"model": "gpt-x", "messages": SUM}),
        ("/v1/chat/completions", {"model": "flashnext", "messages": SUM, "temperature": 101}),
    ]
    requests = [
        {"custom_id": f"r{i}", "method": "POST", "url": url, "body": body}
        for i, (url, body) in enumerate(bodies)
    ]
    target = tmp_path / "out.jsonl"
    assert run(write(tmp_path / "in.jsonl", requests), target).returncode == SOME_FAILED
    with server_process() as server:
        root = server.url.removesuffix("/v1")
        for i, ((url, body), answer) in enumerate(zip(bodies, read(target), strict=True)):
            response = httpx.post(root + url, json=body, timeout=60)
            assert set(answer) == {"id", "custom_id", "response", "error"}
            assert re.fullmatch(rf"batch_req_{i + 1}_[0-9a-f]{{16}}", answer["id"])
            assert (answer["custom_id"], answer["error"]) == (f"r{i}", None)
            assert re.fullmatch(r"req_[0-9a-f]+", answer["response"]["request_id"])
            assert answer["response"]["status_code"] == response.status_code
            direct = {**answer, "response": {**answer["response"], "body": response.json()}}
            assert said(answer) == said(direct)


def test_a_response_is_the_chat_with_the_same_prompt_and_seed(tmp_path: Path) -> None:
    chat = {"messages": SUM, "seed": 3, "max_tokens": 9}
    body = {"model": "flashnext", "input": SUM, "seed": 3, "max_output_tokens": 9, "store": False}
    target = tmp_path / "out.jsonl"
    lines = [chat, {"url": "/v1/responses", "body": body}]
    assert run(write(tmp_path / "in.jsonl", lines), target).returncode == 0
    whole, response = (answer["response"]["body"] for answer in read(target))
    assert response["object"] == "response"
    assert response["flashnext"]["token_sha"] == whole["choices"][0]["flashnext"]["token_sha"]


def test_plain_lines_get_the_model_and_a_seed_by_their_number(tmp_path: Path) -> None:
    lines = [{"prompt": "a", "max_tokens": 8, "temperature": 1}] * 2 + [{"messages": SUM, "max_tokens": 2}]
    source, seeds = write(tmp_path / "in.jsonl", lines), dict[Path, list[str]]()
    for seed in ("0", "5", "5"):
        target = tmp_path / f"{len(seeds)}.jsonl"
        assert run(source, target, "--seed", seed).returncode == 0
        answers = read(target)
        assert [answer["custom_id"] for answer in answers] == ["line-1", "line-2", "line-3"]
        choices = [answer["response"]["body"]["choices"][0] for answer in answers]
        found = [choice["flashnext"]["seed"] for choice in choices]
        assert found == [seed_of(int(seed), number) for number in (1, 2, 3)]
        seeds[target] = [choice["flashnext"]["token_sha"] for choice in choices]
    drawn = list(seeds.values())
    assert drawn[1] == drawn[2] != drawn[0]
    assert drawn[0][0] != drawn[0][1]


def test_a_batch_goes_on_with_lines_that_are_added_and_again_with_those_that_failed(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines: list[Any] = [{"prompt": "a", "max_tokens": 1}, {"model": "other", "prompt": "b", "max_tokens": 1}]
    assert run(write(source, lines), target).returncode == SOME_FAILED
    first = target.read_text().splitlines()
    done = run(write(source, [*lines, {"prompt": "c", "max_tokens": 1}]), target)
    assert done.returncode == SOME_FAILED and "3 answers, 1 of them errors" in done.stdout
    assert target.read_text().splitlines()[:2] == first
    done = run(source, target, "--retry", "--served-model-name", "other")
    assert (done.returncode, done.stderr) == (0, "")
    assert target.read_text().splitlines()[0] == first[0]
    assert [answer["response"]["status_code"] for answer in read(target)] == [200] * 3


def test_other_lines_other_settings_and_another_model_are_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    assert run(write(source, [{"prompt": "a", "max_tokens": 1}]), target).returncode == 0
    before = target.read_bytes()
    for more in (["--temperature", "0"], ["--dtype", "float32"]):
        refused = run(source, target, *more)
        assert (refused.returncode, refused.stdout, target.read_bytes()) == (1, "", before)
        assert "another file for the output" in refused.stderr and refused.stderr.count("\n") == 1
    refused = run(write(source, [{"prompt": "b", "max_tokens": 1}]), target)
    assert (refused.returncode, target.read_bytes()) == (1, before)
    assert "line 1 as it was" in refused.stderr


def test_lines_come_through_a_pipe_too_and_go_on(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "a", "max_tokens": 1}, {"prompt": "b", "max_tokens": 1}]
    answers: list[str] = []
    for name, n in (("-", 1), ("/dev/stdin", 2)):
        data = write(source, lines[:n]).read_text(encoding="utf-8")
        command = [*BATCH, name, "-o", str(target)]
        done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=MOST_S)
        assert done.returncode == 0 and f"{n} answers, 0 of them errors" in done.stdout, done.stderr
        now = target.read_text(encoding="utf-8").splitlines()
        assert (len(now), now[: n - 1]) == (n, answers)  # what was there has not been answered again
        answers = now
    gone = run(write(source, lines[:1]), target)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "('line-2') to line 2, and the input has no such line" in gone.stderr
    assert target.read_text(encoding="utf-8").splitlines() == answers


def test_standard_output_is_no_file_to_go_on_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        commands.main(["batch", "in.jsonl", "-o", "-"])
    assert "expected a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        ("none.jsonl", "out.jsonl", "No such file"),
        ("in.jsonl", "in.jsonl", "this is the input"),
        ("in.jsonl", "notes.txt", "line 1 is not the output of a batch"),
        ("in.jsonl", ".", "expected a file"),
        ("in.jsonl", "none/out.jsonl", "No such file"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_changes_nothing(
    source: str, target: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in.jsonl", [{"prompt": "a"}])
    (tmp_path / "notes.txt").write_text("mine\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert commands.main(["batch", str(tmp_path / source), "-o", str(tmp_path / target)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and problem in err and err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_ctrl_c_ends_it_with_130_and_says_how_to_go_on(tmp_path: Path) -> None:
    lines = [
        {"prompt": "a", "max_tokens": 1},
        *[{"prompt": "b", "max_tokens": 8000, "ignore_eos": True}] * 30,
    ]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [*BATCH, str(source), "-o", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell runs in the background has Ctrl-C ignored, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until(lambda: target.exists() and lines_of(target) >= 1, "the first line was not answered", MOST_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=MOST_S)
    assert (process.returncode, out) == (130, "")
    # On a slow machine there are lines of progress before it.
    last, n = err.splitlines()[-1], lines_of(target)
    assert last == f"flashnext: {n} of 31 lines are answered; run the same line again to go on"
    assert 1 <= n == len(read(target)) < 31


def test_the_documented_statuses_and_codes_are_those_that_come(tmp_path: Path) -> None:
    statuses = set(map(int, re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)))
    assert statuses == {0, 1, 2, SOME_FAILED, 130}
    lines = [
        "nonsense",
        {"custom_id": "a", "prompt": "x", "max_tokens": 1},
        {"custom_id": "a", "prompt": "y"},
    ]
    target = tmp_path / "out.jsonl"
    assert run(write(tmp_path / "in.jsonl", lines), target).returncode == SOME_FAILED
    codes = Counter(answer["error"]["code"] for answer in read(target) if answer["error"])
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert documented == {*codes, "line_too_long"}  # tests/batch/test_lines.py has that one
    assert run(target, target.with_suffix(".x"), "--nope").returncode == 2
