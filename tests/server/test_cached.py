"""What the server tells of the prefix cache, and when the process is short of memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from flashnext.checkpoint.config import PAGE_TOKENS
from flashnext.engine.marks import Kind
from flashnext.engine.spill_files import listed
from support.serving import ServerProcess, ServerThread, server_process

SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief and friendly, and say please. " * 30}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--prefix-cache", "0.05") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client: openai.OpenAI, text: str, **more: Any) -> Any:
    messages: Any = [SYSTEM, {"role": "user", "content": text}]
    return client.chat.completions.create(
        model="flashnext", messages=messages, temperature=0, max_tokens=8, **more
    )


def cached(answer: Any) -> int:
    assert answer.usage.prompt_tokens_details is not None
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def test_usage_tells_the_cached_tokens(client: openai.OpenAI) -> None:
    first = ask(client, "What is 1 + 1?")
    again = ask(client, "What is 1 + 1?")
    other = ask(client, "Spell dog.")
    assert cached(first) == 0
    assert cached(again) == again.usage.prompt_tokens - 1  # a chat's last token is read anew
    assert 200 < cached(other) < cached(again)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.choices[0].flashnext["token_sha"] == first.choices[0].flashnext["token_sha"]


def test_a_stream_tells_them_too(client: openai.OpenAI) -> None:
    ask(client, "Spell bird.")
    chunks = list(ask(client, "Spell bird.", stream=True, stream_options={"include_usage": True}))
    assert cached(chunks[-1]) == chunks[-1].usage.prompt_tokens - 1


def test_a_request_may_do_without(client: openai.OpenAI) -> None:
    ask(client, "Spell fish.")
    assert cached(ask(client, "Spell fish.", extra_body={"cache": False})) == 0
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "Spell fish.", extra_body={"cache": "no"})
    assert caught.value.param == "cache"


def test_completions_share_the_cache(client: openai.OpenAI) -> None:
    prompt = "One two three four five six seven eight nine ten. " * 20
    first, again = (
        client.completions.create(model="flashnext", prompt=prompt, max_tokens=4, temperature=0)
        for _ in range(2)
    )
    assert cached(again) == again.usage.prompt_tokens - 1  # type: ignore[union-attr]
    assert first.choices[0].text == again.choices[0].text


def test_the_model_tells_what_the_cache_holds(client: openai.OpenAI, server: ServerProcess) -> None:
    ask(client, "Spell cow.")
    told = httpx.get(f"{server.url}/models/flashnext").json()["prefix_cache"]
    assert told["limit_bytes"] > 0 and told["marks"] > 0
    assert told["blocks_bytes"] + told["pages_bytes"] <= told["limit_bytes"]


def test_a_process_short_of_memory_says_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerThread()
    try:
        guard = server.engine._guard
        monkeypatch.setattr(guard, "_footprint", lambda: guard.refuse_bytes + 1)
        monkeypatch.setattr(guard, "_idle", lambda: 0)
        monkeypatch.setattr(guard, "_looked_s", float("-inf"))
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        refused = httpx.post(url, json=body, timeout=60)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "memory_short"
        assert int(refused.headers["retry-after"]) > 0
        monkeypatch.setattr(guard, "_footprint", lambda: 0)
        monkeypatch.setattr(guard, "_looked_s", float("-inf"))
        assert httpx.post(url, json=body, timeout=60).status_code == 200
    finally:
        server.close()


def test_a_server_that_is_ended_writes_what_only_memory_has(tmp_path: Path) -> None:
    with server_process("--prefix-cache", "0.05", "--spill-dir", str(tmp_path)) as server:
        with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
            ask(client, "What is 1 + 1?")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    kinds = {mark.entry.header["kind"] for mark in listed(tmp_path, PAGE_TOKENS)[0]}
    assert {Kind.SYSTEM, Kind.END} <= kinds
    with (
        server_process("--prefix-cache", "0.05", "--spill-dir", str(tmp_path)) as server,
        openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client,
    ):
        while client.models.retrieve("flashnext").to_dict()["prefix_cache"]["stored"] < len(kinds):  # type: ignore[index]
            time.sleep(0.01)
        assert cached(ask(client, "What is 1 + 1?")) > 200
