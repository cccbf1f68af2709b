"""`flashnext clients` and `flashnext completion`: what is printed is what programs and shells can read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from flashnext import commands
from flashnext.commands.pointing import CLIENTS, routes
from support.serving import ServerThread, free_port

SERVING = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread(api_keys=("key-1",), names=("tiny", "flashnext"))
    yield server
    server.close()


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert commands.main(list(arguments)) == 0
    return capsys.readouterr().out


def of(capsys: pytest.CaptureFixture[str], name: str, server: ServerThread) -> str:
    return printed(capsys, "clients", name, "--url", f"http://127.0.0.1:{server.port}/v1/", "--key", "key-1")


@pytest.mark.parametrize("name", CLIENTS)
def test_each_client_is_told_address_model_and_key(
    name: str, server: ServerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    text = of(capsys, name, server)
    assert f"http://127.0.0.1:{server.port}" in text and "/v1/v1" not in text
    assert "tiny" in text and "key-1" in text
    assert ("does not serve" in text) == (CLIENTS[name].route not in routes())
    assert "no server answers" not in text


def test_settings_are_what_their_formats_say_and_have_the_window(
    server: ServerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(name: str) -> str:
        text = of(capsys, name, server)
        return "\n".join(line for line in text.splitlines() if not line.startswith("#"))

    context, longest = server.engine.context, server.engine.context - 1
    codex = tomllib.loads(lines("codex").split("\nexport")[0])
    assert codex["model_context_window"] == context
    provider = codex["model_providers"][codex["model_provider"]]
    assert provider["base_url"] == f"http://127.0.0.1:{server.port}/v1"
    opencode = json.loads(lines("opencode"))
    limit = opencode["provider"]["flashnext"]["models"]["tiny"]["limit"]
    assert limit == {"context": context, "output": longest}
    aider = json.loads(lines("aider").split("\nexport")[0])
    assert aider["openai/tiny"]["max_input_tokens"] == context
    assert "\n      model: openai/tiny\n" in lines("litellm")
    assert "\n  model_name: tiny\n" in lines("llm")


@pytest.mark.parametrize("name", ["openai", "curl"])
def test_what_can_be_run_runs(name: str, server: ServerThread, capsys: pytest.CaptureFixture[str]) -> None:
    text = of(capsys, name, server)
    if name == "curl" and not shutil.which("curl"):
        pytest.skip("needs curl")
    command = [sys.executable, "-c", text] if name == "openai" else ["sh", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_without_a_server_defaults_are_printed_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "clients", "opencode", "--url", f"http://127.0.0.1:{free_port()}")
    assert text.startswith("# no server answers at") and '"flashnext/flashnext"' in text


def test_a_wrong_key_and_a_wrong_address_are_one_sentence(
    server: ServerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{server.port}"
    for more, problem in (
        (["--url", url], "give it with --key"),
        (["--url", "localhost:8000"], "expected http://HOST:PORT"),
        (["--url", url, "--key", "a'b"], "would have to be quoted"),
    ):
        assert commands.main(["clients", "curl", *more]) == 1
        out, err = capsys.readouterr()
        assert out == "" and problem in err and err.count("\n") == 1


def test_without_a_name_all_are_listed_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    names = [line.split()[0] for line in printed(capsys, "clients").splitlines()]
    assert names == list(CLIENTS)
    listed = re.search(r"^`flashnext clients` knows (.*)\.$", SERVING, re.MULTILINE)
    assert listed is not None and re.findall(r"`(\w+)`", listed[1]) == names


# --- completion

SYNTAX = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "-n"], "tcsh": ["tcsh", "-n"]}


@pytest.mark.parametrize("shell", SYNTAX)
@pytest.mark.parametrize("command", ["flashnext", "flashnext-serve"])
def test_a_completion_knows_the_options_and_is_in_its_shells_language(
    shell: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "completion", shell, "--of", command)
    for word in ("prefix-cache",) if command == "flashnext-serve" else ("batch", "replay"):
        assert word in text
    script = tmp_path / "script"
    script.write_text(text)
    if shutil.which(shell):
        done = subprocess.run([*SYNTAX[shell], str(script)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["flashnext", "ba"], {"batch"}),
        (["flashnext", "bench", "--dep"], {"--depths"}),
        (["flashnext", "clients", "open"], {"openai", "opencode"}),
        (["flashnext", "inspect", "notes"], {"notes.txt"}),
    ],
)
def test_bash_completes_commands_options_names_and_files(
    typed: list[str], expected: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").touch()
    script = tmp_path / "script"
    script.write_text(printed(capsys, "completion", "bash"))
    words = " ".join(f"'{word}'" for word in typed)
    program = (
        f"source {script}; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; "
        'f=$(complete -p flashnext | sed -E "s/.*-F ([^ ]+).*/\\1/"); '
        f"$f flashnext {typed[-1]} {typed[-2]}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path, env={**os.environ}
    )
    assert {word.strip() for word in done.stdout.splitlines() if word.strip()} == expected, done.stderr
