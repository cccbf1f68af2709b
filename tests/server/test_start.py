"""What the server is told at its start, and what it says of what it cannot use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest
from support.serving import SERVE, server_process


def refused(*arguments: str | bytes) -> str:
    """The one sentence that a server which does not start leaves."""
    done = subprocess.run([*SERVE, "--port", "0", *arguments], capture_output=True, timeout=60)
    err = done.stderr.decode()
    assert done.returncode == 1, err
    assert err.startswith("flashnext-serve: ") and err.count("\n") == 1, err
    return err


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
