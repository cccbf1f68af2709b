"""`flashnext pull` from a hub on loopback: fetched, resumed, checked, refused."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from flashnext.checkpoint import hub, open_checkpoint
from flashnext.engine.engine import BUNDLED
from flashnext.errors import CheckpointError
from support.serving import server_process

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = hub.HubName("org/tiny")


class FakeHub:
    """Serves one repository as a hub does.

    Attributes:
        cut: Names of files whose first answer breaks off, behind the 10 MiB that are written at a time.
        swap: Names of files of which other bytes are sent than the hub tells of.
        ranges: (file, first byte) of each request for a part of a file.
    """

    def __init__(self, folder: Path) -> None:
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.files["big.bin"] = b"not fetched"
        self.cut: set[str] = set()
        self.swap: set[str] = set()
        self.ranges: list[tuple[str, int]] = []
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer(head=True)

            def do_GET(self) -> None:
                self.answer(head=False)

            def answer(self, head: bool) -> None:
                outer.asked.append(f"{self.command} {self.path}")
                if re.match(r"/api/models/org/tiny(/revision/[\w.]+)?(\?|$)", self.path):
                    self.reply(
                        200, json.dumps(outer.info()).encode(), {"content-type": "application/json"}, head
                    )
                elif found := re.fullmatch(r"/org/tiny/resolve/\w+/([^/?]+)", self.path):
                    self.file(found.group(1), head)
                else:
                    self.reply(404, b"{}", {"x-error-code": "RepoNotFound"}, head)

            def file(self, name: str, head: bool) -> None:
                data = outer.files[name]
                more = {"x-repo-commit": COMMIT, "etag": f'"{hashlib.sha256(data).hexdigest()}"'}
                if name in outer.swap:
                    data = data[:-1] + b"?"
                asked = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("range", ""))
                if asked and not head:
                    at = int(asked.group(1))
                    outer.ranges.append((name, at))
                    more["content-range"] = f"bytes {at}-{len(data) - 1}/{len(data)}"
                    self.reply(206, data[at:], more, head)
                elif name in outer.cut and not head:
                    outer.cut.discard(name)
                    self.reply(200, data, more, head, send=len(data) * 4 // 5)
                else:
                    self.reply(200, data, more, head)

            def reply(
                self, status: int, data: bytes, more: dict[str, str], head: bool, send: int | None = None
            ) -> None:
                self.send_response(status)
                for key, value in {**more, "content-length": str(len(data))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if not head:
                    self.wfile.write(data[:send])
                    if send is not None:
                        self.wfile.flush()
                        self.connection.close()
                        self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def info(self) -> dict[str, Any]:
        """What the hub tells of the repository and each of its files."""
        siblings = []
        for name, data in self.files.items():
            file: dict[str, Any] = {"rfilename": name, "size": len(data)}
            file["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if name.endswith((".safetensors", ".bin")):
                file["lfs"] = {
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "size": len(data),
                    "pointerSize": 130,
                }
            siblings.append(file)
        return {"id": "org/tiny", "sha": COMMIT, "siblings": siblings, "private": False}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    pytest.importorskip("huggingface_hub", reason="needs the extra `test`")
    server = FakeHub(BUNDLED)
    yield server
    server.close()


def pull(fake: FakeHub, cache: Path, **more: Any) -> Path:
    return hub.pull(REPO, endpoint=fake.url, cache=cache, **more)


def test_a_checkpoint_is_fetched_with_its_progress_and_can_be_opened(fake: FakeHub, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    folder = pull(fake, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert open_checkpoint(folder).config == open_checkpoint(BUNDLED).config
    assert {path.name for path in folder.iterdir()} == {path.name for path in BUNDLED.iterdir()}
    total = sum(path.stat().st_size for path in BUNDLED.iterdir())
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    fake.asked.clear()
    assert pull(fake, tmp_path) == folder
    assert not any("resolve" in line for line in fake.asked)  # nothing is fetched twice


def test_a_file_that_broke_off_goes_on_where_it_stopped(fake: FakeHub, tmp_path: Path) -> None:
    name = "model-00001-of-00001.safetensors"
    fake.cut.add(name)
    folder = pull(fake, tmp_path)
    assert (folder / name).read_bytes() == (BUNDLED / name).read_bytes()
    assert [n for n, at in fake.ranges if at > 0] == [name]


@pytest.mark.parametrize("name", ["model-00001-of-00001.safetensors", "config.json"])
def test_a_damaged_file_is_refused_and_not_kept(name: str, fake: FakeHub, tmp_path: Path) -> None:
    fake.swap.add(name)
    with pytest.raises(CheckpointError, match=f"{name} came damaged: its hash"):
        pull(fake, tmp_path)
    fake.swap.clear()
    assert (pull(fake, tmp_path) / name).read_bytes() == (BUNDLED / name).read_bytes()


def test_without_room_nothing_is_fetched(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SPARE_BYTES", 1 << 60)
    with pytest.raises(CheckpointError, match="GiB free"):
        pull(fake, tmp_path)
    assert not any("resolve" in line for line in fake.asked)


def test_offline_uses_the_cache_and_asks_nobody(fake: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not in the cache"):
        pull(fake, tmp_path, offline=True)
    assert fake.asked == []
    folder = pull(fake, tmp_path)
    fake.asked.clear()
    assert hub.pull(hub.HubName("org/tiny", COMMIT), cache=tmp_path, offline=True) == folder
    assert fake.asked == []


def test_a_repository_that_is_none_is_one_sentence(fake: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="org/other"):
        hub.pull(hub.HubName("org/other"), endpoint=fake.url, cache=tmp_path)
    fake.files = {"config.json": b"{}"}
    with pytest.raises(CheckpointError, match=r"no \.safetensors"):
        pull(fake, tmp_path)


@pytest.mark.parametrize("text", ["tiny", "a/b/c", "../x", "a/b@", "a b/c", "", "org/"])
def test_a_name_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="expected ORG/NAME"):
        hub.HubName.read(text)


def test_the_command_prints_the_folder_and_errors_in_one_line(fake: FakeHub, tmp_path: Path) -> None:
    program = "import sys; from flashnext.cli import main; sys.exit(main())"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, "pull", *arguments, "--cache", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    done = run("org/tiny@main", "--endpoint", fake.url)
    assert done.returncode == 0, done.stderr
    assert open_checkpoint(Path(done.stdout.strip())).config == open_checkpoint(BUNDLED).config
    refused = run("org/other", "--endpoint", fake.url)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr and "org/other" in refused.stderr.splitlines()[-1]


def test_the_server_serves_a_model_of_the_hub_by_its_name(fake: FakeHub, tmp_path: Path) -> None:
    environ = {"HF_ENDPOINT": fake.url, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_DISABLE_TELEMETRY": "1"}
    with server_process("org/tiny@main", environ=environ) as server:
        names = [model["id"] for model in httpx.get(f"{server.url}/models").json()["data"]]
        assert names == ["tiny", "flashnext"]
    fake.asked.clear()
    with server_process("org/tiny@main", "--offline", environ=environ) as server:
        assert httpx.get(f"{server.url}/models/tiny").status_code == 200
    assert fake.asked == []
