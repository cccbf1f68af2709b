"""`flashnext-serve` as a person meets it: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import http.client
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from flashnext.cli import serve
from flashnext.version import VERSION
from support.engine import DEVICES, METAL_HOST
from support.serving import SERVE, server_process

HF = Path(__file__).parents[1] / "tiny" / "hf"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SERVE, *arguments], capture_output=True, text=True, timeout=60)


def test_it_says_what_it_loaded_how_much_memory_it_takes_and_where_it_is() -> None:
    with server_process("--context", "4096") as server:
        lines = dict(line.split(None, 1) for line in server.banner.splitlines())
        assert lines["model"] == "tiny-6bit (6 bit, activations bfloat16)"
        assert lines["context"] == "4,096 tokens"
        assert "(70 % of" in lines["memory"]
        assert lines["memory"].split()[1] == "MiB"
        for part in ("weights", "scratch", "sequences", "pages", "margin", "responses"):
            assert lines[part].split()[1] == "MiB", part
        assert "a context of 4,096 tokens" in lines["pages"]
        assert lines["responses"] == "64.0 MiB  kept ones at most, beside the sum"
        assert server.banner.index("memory") < server.banner.index("model ")  # planned before it is loaded
        assert lines["address"] == f"http://127.0.0.1:{server.port}/v1"
        assert lines["ready"].startswith("in ")
        status, err = server.end(signal.SIGINT)
        assert status == 0
        assert err.splitlines() == [
            "loading tiny-6bit: tokenizer and chat template", "loading tiny-6bit: weights",
        ]  # fmt: skip


def test_a_limit_past_the_usual_one_is_warned_of_and_a_lower_one_is_kept() -> None:
    with server_process("--load-limit", "1000000") as server:
        warnings = [line for line in server.err.splitlines() if "warning" in line]
        assert len(warnings) == 2
        assert "the device can work with, which count instead" in warnings[0]
        assert "past 70 % the system may slow down" in warnings[1]
    with server_process(environ={"FLASHNEXT_LOAD_LIMIT": "1.5"}) as server:
        assert "of 1.50 GiB" in server.banner
        assert "warning" not in server.err


def test_a_given_checkpoint_is_served_under_its_folders_name() -> None:
    with server_process(str(HF), "--dtype", "float32", "--device", "cpu") as server:
        assert "model    hf (bfloat16, activations float32)" in server.banner
        assert httpx.get(f"{server.url}/models").json()["data"][0]["id"] == "hf"


@pytest.mark.skipif(METAL_HOST in DEVICES, reason="this build has metal-host")
def test_a_build_without_metal_host_says_how_to_get_one() -> None:
    refused = run("--port", "0", "--device", METAL_HOST)
    assert refused.returncode != 0
    assert refused.stderr.splitlines()[-1] == (
        "flashnext-serve: this build has no metal-host device, which is for tests: pip install . "
        "--config-settings=cmake.define.FLASHNEXT_METAL_HOST=ON makes one that has"
    )


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_signal_ends_it_cleanly_within_a_second_or_so(signal_number: int, streaming: bool) -> None:
    with (
        server_process("--drain", "0") as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection,
    ):
        body: dict[str, Any] = {"model": "tiny-6bit", "stream": True, "temperature": 100, "seed": 1}
        messages = [{"role": "user", "content": " a" * 8000}]  # takes seconds to read
        if streaming:
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps({**body, "messages": messages}),
                {"content-type": "application/json"},
            )
            response = connection.getresponse()
            assert b"assistant" in response.readline()
        started = time.perf_counter()
        status, err = server.end(signal_number)
        took = time.perf_counter() - started
        assert status == 0
        assert "Traceback" not in err
        assert took < 5, took  # one second and a half on a quiet machine, at the very most
        if streaming:
            assert b"shutting_down" in response.read()


def test_it_can_be_ended_while_it_loads() -> None:
    process = subprocess.Popen(
        [*SERVE, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("loading")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in out + err


@pytest.mark.parametrize("when", ["_listen", "_progress"])
def test_an_interrupt_that_a_destructor_swallowed_still_ends_it(when: str) -> None:
    program = (
        "import sys, flashnext.cli as cli\n"
        f"real = cli.{when}\n"
        "def told(*args):\n"
        "    cli._interrupted.set()\n"
        "    return real(*args)\n"
        f"cli.{when} = told\n"
        "sys.exit(cli.serve(['--port', '0']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"flashnext-serve: port {port} of 127.0.0.1 is already in use by another program; choose another "
        "one with --port, or let --port 0 find one that is free\n"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["/nowhere/at/all"], "/nowhere/at/all does not exist"),
        ([str(HF.parent)], "config.json"),
        (["--api-key-file", "/nowhere"], "--api-key-file /nowhere: cannot be read"),
        (["org/name", "--offline"], "is already in use by another program"),  # nothing is fetched to no end
    ],
)
def test_a_wrong_path_is_told_before_a_port_in_use_and_that_before_anything_is_fetched(
    arguments: list[str], problem: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("--port", str(taken.getsockname()[1]), *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("flashnext-serve: ") and done.stderr.count("\n") == 1
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["/nowhere/at/all"], "/nowhere/at/all"),
        ([str(HF), "--context", "100000000"], "context"),
        ([str(HF), "--context", "0"], "context"),
        (["--load-limit", "0.05", "--context", "4096"], "and the limit is 51.2 MiB"),
        (["--device", "abacus"], "device is 'abacus'"),
        (["--no-key-needed", "--host", "256.1.1.1"], "cannot listen on 256.1.1.1"),
        (["--no-key-needed", "--host", "a..b"], "cannot listen on a..b"),
        (["--no-key-needed", "--host", "a" * 70], "cannot listen on aaa"),
        (["--drafts", "16"], "--drafts is 16, expected 0 to 15"),
        (["--round-rows", "65"], "--round-rows is 65, expected 1 to 64"),
        (["--gap", "-1"], "--gap is -1.0, expected 0 or more milliseconds"),
        (["--spill-limit", "3"], "--spill-limit is 3, but there is no spill directory"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(arguments: list[str], problem: str) -> None:
    done = run("--port", "0", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("flashnext-serve: ")
    assert problem in last


@pytest.mark.parametrize(
    "arguments",
    [
        ["--load-limit", "0"],
        ["--port", "65536"],
        ["--port", "x"],
        ["--dtype", "int3"],
        ["--nope"],
        ["a", "b"],
    ],
)
def test_a_wrong_argument_is_told_with_the_usage(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: flashnext-serve")


def test_the_version_is_told() -> None:
    assert run("--version").stdout == f"flashnext {VERSION}\n"


def test_an_output_that_cannot_be_written_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*SERVE, "--port", "0"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "No space left" in done.stderr


def test_help_names_every_option_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        serve(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for option in ("--host", "--port", "--context", "--device", "--dtype", "MODEL"):
        assert option in text
    assert text.count("default") >= 6


@pytest.mark.parametrize("program", ["serve", "main"])
def test_help_needs_nothing_that_takes_long_to_import(program: str) -> None:
    heavy = ["PIL", "av", "starlette", "uvicorn", "pydantic", "tokenizers", "flashnext._core"]
    heavy += ["numpy"] * (program == "serve")
    code = (
        f"import sys; from flashnext.cli import {program}\n"
        f"try: {program}(['--help'])\n"
        f"except SystemExit: pass\n"
        f"assert not {{*sys.modules}} & {{*{heavy!r}}}, {{*sys.modules}} & {{*{heavy!r}}}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "usage: flashnext" in done.stdout, done.stderr


def test_a_terminal_sees_the_stages_in_one_line() -> None:
    screen, end = pty.openpty()
    process = subprocess.Popen(
        [*SERVE, "--port", "0"], stdout=subprocess.PIPE, stderr=end, env={**os.environ, "TERM": "xterm"}
    )
    os.close(end)
    assert process.stdout is not None
    printed = b""
    while not (line := process.stdout.readline()).startswith(b"ready"):
        printed += line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    shown = os.read(screen, 65536).decode()
    os.close(screen)
    assert process.returncode == 0
    assert "loading tiny-6bit" in shown
    assert "\r" in shown
    assert printed.startswith(b"memory ")  # the plan, which is not of the spinner's line
