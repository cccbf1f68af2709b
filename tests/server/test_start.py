"""What the server is told at its start, and what it says of what it cannot use."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from flashnext.engine.engine import BUNDLED
from flashnext.server.record import Record
from support.serving import SERVE, server_process


def refused(*arguments: str | bytes) -> str:
    """The one sentence that a server which does not start leaves."""
    done = subprocess.run([*SERVE, "--port", "0", *arguments], capture_output=True, timeout=60)
    err = done.stderr.decode()
    assert done.returncode == 1, err
    assert err.startswith("flashnext-serve: ") and err.count("\n") == 1, err
    return err


# --- the folder


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux alone")
def test_a_folder_whose_name_is_not_utf8_is_served(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"m\xff")
    shutil.copytree(BUNDLED, folder)
    record = tmp_path / "record"
    with server_process(str(folder), "--record", str(record)) as server:
        body = {"model": "flashnext", "temperature": 0, "max_tokens": 4, "prompt": "Count from 3 to"}
        reply = httpx.post(f"{server.url}/completions", json=body, timeout=60)
        assert (reply.status_code, reply.json()["usage"]["completion_tokens"]) == (200, 4)
        (name, _) = [model["id"] for model in httpx.get(f"{server.url}/models").json()["data"]]
        assert name.startswith("m")
        request_id = reply.headers["x-request-id"]
    assert Record.find(record, request_id).checkpoint == str(folder)


# --- keys


@pytest.mark.parametrize("key", [b"\xff\xfe", b"a\nb", b"a\x7fb", b"\x01"])
def test_a_key_that_no_header_can_bring_is_one_sentence(key: bytes) -> None:
    assert "--api-key: the key cannot be sent in a header" in refused(b"--api-key", key)


def test_a_key_of_a_file_that_no_header_can_bring_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"good\na\x00b\n")
    err = refused("--api-key-file", str(file))
    assert f"{file}: line 2: the key cannot be sent in a header" in err
    assert "a\x00b" not in err


def test_keys_are_taken_without_what_is_around_them(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes("\ufeff first \r\n  # a comment\n\n\tvoilà\n#another\n".encode())
    with server_process("--api-key", " padded ", "--api-key-file", str(file)) as server:
        for key in ("padded", "first", "voilà"):
            for headers in ({b"authorization": b"Bearer " + key.encode()}, {b"x-api-key": key.encode()}):
                assert httpx.get(f"{server.url}/models", headers=headers).status_code == 200, headers
        for key in ("# a comment", "#another", "\ufefffirst"):
            headers = {b"x-api-key": key.encode()}
            assert httpx.get(f"{server.url}/models", headers=headers).status_code == 401, key


# --- open files

REFUSED = "too_many_connections"


def with_limits(limits: str) -> list[str]:
    """A command that runs its arguments with so many open files."""
    return ["sh", "-c", f'{limits} && exec "$@"', "sh"]


def code_of(response: httpx.Response) -> str:
    assert response.status_code == 503 and response.headers["connection"] == "close"
    return str(response.json()["error"]["code"])


@pytest.mark.parametrize(
    ("limits", "allowed", "warned"),
    [("ulimit -Sn 128", 300, False), ("ulimit -n 256", 128, True)],
    ids=["soft limit", "hard limit"],
)
def test_connections_beyond_the_limit_are_refused_whatever_files_may_be_open(
    limits: str, allowed: int, warned: bool
) -> None:
    with (
        server_process("--max-connections", "300", within=with_limits(limits)) as server,
        ExitStack() as held,
    ):

        def connect() -> None:
            held.enter_context(socket.create_connection(("127.0.0.1", server.port), 30))

        url = f"http://127.0.0.1:{server.port}/livez"
        told = [line["event"] for line in server.log if line["level"] == "warning"]
        assert len(told) == warned and all(f"so {allowed} connections" in line for line in told)
        for _ in range(allowed - 1):
            connect()
        assert httpx.get(url, headers={"connection": "close"}).status_code == 200
        connect()
        for _ in range(100):
            assert code_of(httpx.get(url)) == REFUSED
        for _ in range(400):  # more than there are files for
            connect()
        held.close()
        end = time.monotonic() + 30
        while httpx.get(url, headers={"connection": "close"}).status_code != 200:
            assert time.monotonic() < end, "the places were not given back"
        assert "system resource" not in server.err


# --- files


def test_a_record_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "record", Path("/dev/null/record")):
        assert f"--record {path}: cannot be opened for appending" in refused("--record", str(path))


def test_an_option_that_stands_twice_in_the_file_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("max-body = 1\nmax_body = 2\n")
    assert f"{file}: 'max_body' stands twice" in refused("--config", str(file))
