"""`flashnext-serve --device metal-host`: the whole server on the Metal kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.engine import DEVICES, METAL_HOST
from support.serving import server_process

TINY = Path(__file__).parents[1] / "tiny"


@pytest.mark.skipif(METAL_HOST not in DEVICES, reason="needs a build with FLASHNEXT_METAL_HOST=ON")
def test_a_served_reply_has_the_tokens_of_transformers() -> None:
    cases: list[dict[str, Any]] = [*map(json.loads, (TINY / "golden.jsonl").read_text().splitlines())]
    case = min((c for c in cases if not c["grid_thw"]), key=lambda c: len(c["prompt_ids"]))
    expected = case["output_ids"][:3]
    with server_process(
        str(TINY / "hf"), "--device", METAL_HOST, "--dtype", "float32", "--context", "512"
    ) as server:
        assert f"device   {METAL_HOST}" in server.banner
        body = {
            "model": "hf", "prompt": case["prompt_ids"], "max_tokens": len(expected), "temperature": 0,
            "return_token_ids": True,
        }  # fmt: skip
        answer = httpx.post(f"{server.url}/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == expected
