"""`flashnext convert`, `flashnext inspect` and `flashnext plan` as a user meets them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flashnext import cli, commands
from flashnext.checkpoint import open_checkpoint
from flashnext.engine.engine import Engine
from flashnext.errors import CheckpointError, InvalidArgument
from flashnext.media import Limits
from support.published import PUBLISHED

TESTS = Path(__file__).parents[1]
TINY = TESTS / "tiny" / "hf"
TINY_6BIT = TESTS.parent / "python" / "flashnext" / "data" / "tiny-6bit"


def test_inspect_prints_what_a_person_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["inspect", str(TINY_6BIT)]) == 0
    out = capsys.readouterr().out
    for words in (
        "MLX, 1 file, 13.6 MiB", "14,764,192 values", "8: 6 DeltaNet, 2 attention", "16, 4 a token",
        "8,192 tokens", "up to 32,768", "stored as 1 + w", "2549, 2547",
    ):  # fmt: skip
        assert words in out, words
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "6,291,456" in lines["routed experts"]
    assert "6 bits, group 32" in lines["routed experts"]
    assert lines["routers"].endswith("BF16")
    assert not any(line != line.rstrip() for line in out.splitlines())


def test_inspect_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    for folder, size in ((TINY, 29_528_000), (TINY_6BIT, 14_300_000)):
        assert commands.main(["inspect", "--json", str(folder)]) == 0
        summary = json.loads(capsys.readouterr().out)
        parts = summary["parts"].values()
        assert sum(part["size_bytes"] for part in parts) == summary["size_bytes"] > size
        assert sum(part["values"] for part in parts) == summary["values"] == 14_764_192
        assert summary["stop_tokens"] == [2549, 2547]
        assert summary["draft_head"] is summary["vision_tower"] is True
        assert summary["warnings"] == []


def test_convert_then_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    assert commands.main(["convert", str(TINY), str(target), "--bits", "4", "--group", "32"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == f"{target}: 10.4 MiB"
    assert "4 bits, group 32" in captured.err
    assert {str(affine) for affine in open_checkpoint(target).affine.values()} == {"4 bits, group 32"}


def test_plan_needs_nothing_but_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(PUBLISHED))
    arguments = ["plan", "--model", str(config), "--ram", "256", "--bits", "6"]
    assert commands.main([*arguments, "--json", "--context", "131072", "--drafts", "2"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["context"], plan["n_pages"], plan["parallel"]) == (131_072, 2048, 16)
    assert plan["weights"]["parts"]["n-gram table"] == 51_200_245_760 * 7 // 8
    assert plan["total_bytes"] <= plan["limit_bytes"] == 256 * 2**30 * 70 // 100
    assert commands.main([*arguments, "--explain", "--prefix-cache", "auto"]) == 0
    out = capsys.readouterr().out
    for words in ("147.22", "30,784 B in 13 layers", "110.1 MiB", "7.515 GiB", "without the draft head"):
        assert words in out, words
    assert "tokens with one mark; each further one takes 110.3 MiB" in out


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ("", {}),
        ("--drafts 2 --parallel 3 --dtype float32", {"drafts": 2, "parallel": 3, "dtype": "float32"}),
        ("--context 777 --load-limit 1", {"context": 777, "load_limit_gib": 1}),
        ("--round-rows 64", {"round_rows": 64}),
        ("--no-vision", {"vision": False}),
        (
            "--vision-image-tokens 150 --vision-video-tokens 120",
            {"media_limits": Limits(image_tokens=150, video_tokens=120)},
        ),
    ],
)
def test_plan_is_the_one_that_the_engine_makes(
    arguments: str, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(["plan", "--json", *arguments.split()]) == 0
    with Engine(**settings) as engine:
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(engine.plan.to_json()))


def test_a_plan_with_a_spill_directory_is_the_servers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plans = []
    for more in ([], ["--spill-dir", str(tmp_path / "none")]):
        assert commands.main(["plan", "--json", *more]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    without, made = (plan["margin_bytes"] for plan in plans)
    assert made >= without + 3 * plans[1]["snapshot_bytes"]
    assert not (tmp_path / "none").exists()


def test_plan_refuses_in_one_sentence_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(PUBLISHED))
    asked = ["plan", "--model", str(config), "--ram", "192", "--bits", "6"]
    assert commands.main([*asked, "--ngram-table", "resident"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    streamed = "the n-gram table streamed (--ngram-table streamed)"
    assert (
        f"what would fit: {streamed} with a context of 262,144, or a higher limit (--load-limit 15"
        in captured.err
    )
    assert commands.main(asked) == 0
    assert "streamed: 41.72 GiB stay in their file" in capsys.readouterr().out
    assert commands.main(["plan", "--load-limit", "0.9", "--ram", "1"]) == 0
    assert "90 % of the memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "nowhere"], "flashnext: nowhere does not exist"),
        (["inspect", str(TINY / "config.json")], "config.json is a file; a checkpoint is a folder"),
        (["convert", str(TINY), str(TINY)], "is not empty"),
        (["convert", str(TINY_6BIT), "nowhere/out"], "does not exist; make it first"),
        (["plan", "--model", "nowhere"], "flashnext: nowhere does not exist"),
        (["plan", "--model", "org/name"], "`flashnext pull org/name` fetches one of a hub"),
        (["inspect", "org/name@v1"], "`flashnext pull org/name@v1` fetches one of a hub"),
        (["plan", "--round-rows", "65"], "--round-rows is 65, expected 1 to 64"),
        (["plan", "--parallel", "33"], "a larger --round-rows"),
        (
            ["cache", "ls", "nowhere"],
            "nowhere: no such folder; expected one that a server had as --spill-dir",
        ),
        (["cache", "clear", "nowhere"], "nowhere: no such folder"),
        (["cache", "ls", str(TINY / "config.json")], "config.json: is a file, expected a folder"),
        (["cache", "clear", str(TINY)], "no files of a prefix cache; expected a folder that a server had"),
        (["plan", "--group", "64"], "--group and --table-group are of a conversion; give --bits too"),
        (["plan", "--context", "0"], "--context is 0, but this model reaches from 1 to 32768"),
    ],
)
def test_errors_are_one_line_and_status_1(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert commands.main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["convert", "a", "b", "--bits", "7"],
        ["inspect"],
        ["plan", "--ram", "0"],
        ["plan", "--drafts", "16"],
        ["plan", "--json", "--explain"],
        ["plan", "--spill-dir", ""],
        ["cache", "ls", ""],
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        commands.main(arguments)
    assert caught.value.code == 2
    assert "usage: flashnext" in capsys.readouterr().err


def test_a_stray_argument_is_told_with_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        commands.main(["plan", "stray", "--spil-limit", "3"])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert "usage: flashnext plan" in told
    assert "unrecognized arguments: stray --spil-limit 3" in told


@pytest.mark.parametrize("value", ["x", "-1", "0.0001", "nan", "inf"])
def test_a_wrong_cache_size_is_told_what_it_may_be(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.main(["plan", f"--prefix-cache={value}"])
    assert "expected auto, 0, or GiB from 0.001 to 1,000,000, found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"),
    [("image-tokens", "0"), ("video-tokens", "-3"), ("image-tokens", "x"), ("max-images", "-1")],
)
@pytest.mark.parametrize("command", ["plan", "batch in.jsonl -o out.jsonl", "serve"])
def test_wrong_limits_of_pictures_are_refused_alike(
    command: str, flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--vision-{flag}={value}"]
    with pytest.raises(SystemExit) as caught:
        cli.serve(given) if command == "serve" else commands.main([*command.split(), *given])
    assert caught.value.code == 2
    low = 0 if flag == "max-images" else 1
    assert (
        f"argument --vision-{flag}: expected a whole number from {low}, found '{value}'"
        in capsys.readouterr().err
    )


def checkpoint_with(tmp_path: Path, rules: str) -> Path:
    """The bundled checkpoint, with other rules for pictures."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in TINY_6BIT.iterdir():
        if path.name != "processor_config.json" and "preprocessor" not in path.name:
            os.link(path, folder / path.name) if path.suffix == ".safetensors" else shutil.copy(path, folder)
    (folder / "preprocessor_config.json").write_text(rules)
    return folder


def test_a_room_that_no_tower_has_is_refused_with_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint_with(tmp_path, json.dumps({"size": {"shortest_edge": 1, "longest_edge": 2**40}}))
    assert commands.main(["plan", "--model", str(folder), "--vision-image-tokens", "300000"]) == 1
    expected = (
        "pictures may have 300000 tokens, 1200000 patches, and the vision tower takes up to 1048576 patches; "
        "set image_tokens (--vision-image-tokens) to 262144 or less"
    )
    assert expected in capsys.readouterr().err
    with pytest.raises(InvalidArgument, match="1200000 patches"):
        Engine(folder, media_limits=Limits(image_tokens=300_000))


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ('{"size":', "preprocessor_config.json cannot be read"),
        ("[]", "preprocessor_config.json must be a JSON object"),
        ('{"patch_size": "16"}', "patch_size"),
    ],
)
def test_rules_of_pictures_that_cannot_be_read_are_named_with_the_way_out(
    rules: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint_with(tmp_path, rules)
    assert commands.main(["plan", "--model", str(folder)]) == 1
    told = capsys.readouterr().err
    assert complaint in told and "or go without pictures (--no-vision)" in told and told.count("\n") == 1
    assert commands.main(["plan", "--model", str(folder), "--no-vision"]) == 0
    with pytest.raises(CheckpointError, match=r"go without pictures \(vision=False\)"):
        Engine(folder)
    with Engine(folder, vision=False, context=64) as engine:
        assert engine.eyes is None


def test_help_says_what_an_automatic_cache_is(capsys: pytest.CaptureFixture[str]) -> None:
    for program in (commands.main, cli.serve):
        with pytest.raises(SystemExit):
            program(["plan", "--help"] if program is commands.main else ["--help"])
        assert "a quarter of what weights and scratch leave" in " ".join(capsys.readouterr().out.split())


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.main(["--help"])
    out = capsys.readouterr().out
    for command in commands.COMMANDS:
        assert command.__name__ in out


def test_without_a_command_help_is_shown_which_names_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: flashnext" in err and "flashnext-serve" in err
    assert all(command.__name__ in err for command in commands.COMMANDS)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("main", ["inspect", str(TINY)]),
        ("main", ["plan", "--json"]),
        ("main", ["completion", "bash"]),
        ("main", ["--help"]),
        ("serve", ["--print-config"]),
        ("serve", ["--help"]),
        ("serve", ["--version"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_output_may_be_cut_off_by_a_closed_pipe(program: str, arguments: list[str]) -> None:
    script = f"import sys; from flashnext.cli import {program}; sys.exit({program}({arguments!r}))"
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent / "python")}
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-c", script],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.parametrize("closed", ["stdout", "stdin and stdout"])
def test_what_is_closed_from_the_beginning_is_printed_to_nobody(closed: str) -> None:
    script = f"import sys; from flashnext.commands import main; sys.exit(main(['inspect', {str(TINY)!r}]))"
    shell = 'exec "$0" -c "$1" >&-' + (" <&-" if closed != "stdout" else "")
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent / "python")}
    run = subprocess.run(
        ["sh", "-c", shell, sys.executable, script], stderr=subprocess.PIPE, env=environment, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, b"")
