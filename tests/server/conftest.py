"""One server in a subprocess for the module, and the official client."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from support.serving import ServerProcess, ServerThread, server_process


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def watched() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()
