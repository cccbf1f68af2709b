"""`flashnext clients` and `flashnext completion`: what is printed is what programs and shells can read."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flashnext import commands
from flashnext.commands import pointing
from flashnext.commands.pointing import CLIENTS, Server, routes
from support.serving import ServerThread, free_port

SERVING = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the server answers; and a proxy is never asked for it."""
    monkeypatch.setattr(pointing, "TIMEOUT_S", 60.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")


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
    alone = {**os.environ, "no_proxy": "*", "NO_PROXY": "*"}  # what is printed leaves proxies to the person
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=alone)
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
        (["--url", "http://$(id)"], "expected http://HOST:PORT"),
        (["--url", "http://a;b"], "expected http://HOST:PORT"),
        (["--url", "http://a&b"], "expected http://HOST:PORT"),
    ):
        assert commands.main(["clients", "curl", *more]) == 1
        out, err = capsys.readouterr()
        assert out == "" and problem in err and err.count("\n") == 1


def answering(answer: bytes) -> tuple[int, threading.Thread]:
    """A server for one request; returns its port and the thread that answers."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            there, _ = listener.accept()
            with there:
                there.settimeout(60)
                asked = b""
                while b"\r\n\r\n" not in asked:
                    asked += there.recv(4096)
                there.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return int(listener.getsockname()[1]), thread


def json_answer(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


MODELS = [{"id": name} for name in ("$(id)", "a;b", "a`b`", "a b", 'a"b', "a'b", "a\nb", "~a", "", 5, None)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: repr(model["id"]))
def test_a_models_name_that_a_shell_would_read_is_not_printed(
    model: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    port, thread = answering(json_answer({"data": [model]}))
    assert commands.main(["clients", "claude", "--url", f"http://127.0.0.1:{port}"]) == 1
    thread.join(60)
    out, err = capsys.readouterr()
    assert out == "" and "would have to be quoted" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "answer",
    [
        json_answer({"data": [{}]}),
        json_answer({"data": [5]}),
        json_answer({"data": [[]]}),
        b"220 mail\r\n\r\n",
        b"",
    ],
    ids=["no name", "a number", "a list", "another protocol", "nothing"],
)
def test_what_is_no_flashnext_gives_defaults_and_a_note(
    answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    port, thread = answering(answer)
    text = printed(capsys, "clients", "curl", "--url", f"http://127.0.0.1:{port}")
    thread.join(60)
    assert text.startswith("# no server answers at") and '"flashnext"' in text


def test_a_window_that_is_no_number_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    model = {"id": "m", "context_window": "1\nx = 2", "max_output_tokens": 5}
    port, thread = answering(json_answer({"data": [model]}))
    text = printed(capsys, "clients", "codex", "--url", f"http://127.0.0.1:{port}")
    thread.join(60)
    assert "x = 2" not in text and "model_context_window" not in text and 'model = "m"' in text


def test_the_key_goes_to_no_other_address(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        elsewhere = f"http://127.0.0.1:{other.getsockname()[1]}/v1/models"
        port, thread = answering(f"HTTP/1.1 302 Found\r\nlocation: {elsewhere}\r\n\r\n".encode())
        text = printed(capsys, "clients", "curl", "--url", f"http://127.0.0.1:{port}", "--key", "key-1")
        thread.join(60)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert "answered with status 302" in text


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
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
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


@pytest.mark.parametrize(
    ("text", "written"),
    [("key-1", "key-1"), ("none", "none"), ("123", '"123"'), ("1e5", '"1e5"'), ("Null", '"Null"'),
     ("x", '"x"'), ("a:b", '"a:b"'), ("-", '"-"')],
)  # fmt: skip
def test_a_key_stays_text_in_yaml(text: str, written: str) -> None:
    server = Server("http://127.0.0.1:1", model=text, key=text)
    assert f"api_key: {written}\n" in CLIENTS["litellm"].text(server)
    assert f"model_name: {written}\n" in CLIENTS["llm"].text(server)
