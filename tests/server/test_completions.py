"""POST /v1/completions and the routes that count, through the official client and plain HTTP."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from flashnext import _core
from flashnext.engine.engine import BUNDLED
from flashnext.engine.load import load_model
from flashnext.engine.sampling import choice_seed
from flashnext.text.template import ChatTemplate
from flashnext.text.tokenizer import Tokenizer
from support.serving import ServerProcess, ServerThread

TOKENIZER = Tokenizer.from_folder(BUNDLED)
TEMPLATE = ChatTemplate.from_folder(BUNDLED, TOKENIZER)
MODEL = "tiny-6bit"
SUM: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
TEXT = "The wolf went to the river and"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def complete(client: openai.OpenAI, prompt: Any, **more: Any) -> Any:
    return client.completions.create(
        model=MODEL, prompt=prompt, **{"temperature": 0, "max_tokens": 8, **more}
    )


@pytest.fixture
def root(server: ServerProcess) -> str:
    return server.url.removesuffix("/v1")


def test_a_chats_prompt_as_ids_gives_the_chats_tokens(client: openai.OpenAI) -> None:
    ids = TEMPLATE.render(SUM).token_ids
    chat: Any = client.chat.completions.create(
        model=MODEL, messages=SUM, temperature=0, max_tokens=8, extra_body={"return_token_ids": True}
    )
    reply = complete(client, ids, extra_body={"return_token_ids": True})
    (choice,) = reply.choices
    assert choice.token_ids == chat.choices[0].token_ids
    assert choice.prompt_token_ids == ids
    assert choice.flashnext["token_sha"] == chat.choices[0].flashnext["token_sha"]
    assert (reply.object, choice.finish_reason, choice.logprobs) == ("text_completion", "length", None)
    assert choice.text == TOKENIZER.decode(choice.token_ids)


def test_prompts_of_all_four_kinds_are_served_in_order(client: openai.OpenAI) -> None:
    ids = TOKENIZER.encode(TEXT)
    texts = [complete(client, prompt).choices[0].text for prompt in (TEXT, "Count from")]
    for prompts in ([TEXT, "Count from"], [ids, TOKENIZER.encode("Count from")]):
        reply = complete(client, prompts)
        assert [(c.index, c.text) for c in reply.choices] == list(enumerate(texts))
        assert reply.usage.prompt_tokens == len(ids) + len(TOKENIZER.encode("Count from"))
        assert reply.usage.completion_tokens == 16
    assert complete(client, ids).choices[0].text == texts[0]


def test_several_replies_to_several_prompts_have_the_seeds_of_each_request(client: openai.OpenAI) -> None:
    hot: Any = {"temperature": 5, "extra_body": {"top_k": 0}, "seed": 3}
    reply = complete(client, [TEXT, "Count from"], n=2, **hot)
    assert [c.flashnext["seed"] for c in reply.choices] == [3, choice_seed(3, 1)] * 2
    alone = complete(client, "Count from", n=2, **hot)
    assert [c.text for c in reply.choices[2:]] == [c.text for c in alone.choices]
    ids = [len(TOKENIZER.encode(text)) for text in (TEXT, "Count from")]
    assert reply.usage.prompt_tokens == sum(ids)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"echo": True},
        {"logprobs": 2},
        {"echo": True, "logprobs": 2},
        {"echo": True, "max_tokens": 0},
        {"echo": True, "max_tokens": 0, "logprobs": 2},
        {"echo": True, "max_tokens": 0, "n": 2},
    ],
)
def test_a_stream_adds_up_to_the_whole(more: Any, client: openai.OpenAI) -> None:
    whole = complete(client, [TEXT, "Count from"], **more)
    *chunks, last = complete(
        client, [TEXT, "Count from"], stream=True, stream_options={"include_usage": True}, **more
    )
    assert last.choices == [] and last.usage == whole.usage
    assert last.usage.prompt_tokens == len(TOKENIZER.encode(TEXT)) + len(TOKENIZER.encode("Count from"))
    for choice in whole.choices:
        mine = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(c.text for c in mine) == choice.text
        assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason]
        assert mine[-1].flashnext["token_sha"] == choice.flashnext["token_sha"]
        if "logprobs" in more:
            told = [c.logprobs for c in mine if c.logprobs]
            for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [v for part in told for v in getattr(part, key)] == getattr(choice.logprobs, key)


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"echo": True, "max_tokens": 0}])
def test_every_chunk_that_tells_usage_counts_the_prompts(more: Any, client: openai.OpenAI) -> None:
    options: Any = {"continuous_usage_stats": True}
    chunks = list(complete(client, [TEXT, "Count from"], stream=True, stream_options=options, **more))
    n = len(TOKENIZER.encode(TEXT)) + len(TOKENIZER.encode("Count from"))
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {n}


def test_echo_without_a_reply_tells_the_prompt_alone(client: openai.OpenAI) -> None:
    reply = complete(client, TEXT, echo=True, max_tokens=0)
    assert (reply.choices[0].text, reply.usage.completion_tokens) == (TEXT, 0)


# --- log-probabilities


def reference(ids: list[int]) -> Any:
    """(n, vocabulary) float64 log-probabilities behind each token, from one pass over the whole prompt."""
    loaded = load_model(BUNDLED, draft_head=False)
    runner = _core.Runner(loaded.model, TOKENIZER.n_tokens)
    session = _core.Session(loaded.model, loaded.pool)
    (logits,) = runner.forward([(session, np.asarray(ids, np.int32), False)])
    session.close()
    logits = np.asarray(logits, np.float64)[:, : TOKENIZER.n_tokens]
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def test_a_prompt_is_scored_as_one_pass_over_it_scores_it(client: openai.OpenAI) -> None:
    ids = TOKENIZER.encode(TEXT)
    choice = complete(client, ids, echo=True, logprobs=3, max_tokens=1).choices[0]
    values = choice.logprobs.token_logprobs
    tokens = choice.logprobs.tokens
    assert len(values) == len(tokens) == len(ids) + 1
    assert values[0] is None and choice.logprobs.top_logprobs[0] is None
    expected = reference(ids)
    for i in range(1, len(ids)):
        assert values[i] == pytest.approx(expected[i - 1, ids[i]], abs=1e-4)  # float32 sums over 2,560 values
        best = sorted(choice.logprobs.top_logprobs[i].values(), reverse=True)
        assert best[0] == pytest.approx(expected[i - 1].max(), abs=1e-4)
    assert "".join(tokens[: len(ids)]) == TEXT
    offsets = choice.logprobs.text_offset
    spelled = [choice.text[a:b] for a, b in itertools.pairwise(offsets)]
    assert spelled == tokens[: len(ids)]


def test_a_long_prompt_is_scored_too(client: openai.OpenAI) -> None:
    ids = np.random.default_rng(1).integers(0, TOKENIZER.n_tokens, 2500).tolist()
    values = complete(client, ids, echo=True, logprobs=0, max_tokens=0).choices[0].logprobs.token_logprobs
    expected = reference(ids[:400])
    assert len(values) == len(ids) and values[0] is None
    assert values[1:400] == pytest.approx([expected[i - 1, ids[i]] for i in range(1, 400)], abs=1e-4)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_while_a_prompt_is_scored_is_told_as_any_other(stream: bool) -> None:
    server = ServerThread()
    device = server.engine.loaded.device
    body = {"model": "tiny", "prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 0, "stream": stream}
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    try:
        _core.testing.fail_dispatch(device, "token_logprobs", 1, "planted")
        response = httpx.post(url, json=body, timeout=60)
        if stream:
            error = json.loads(response.text.split("\n\n")[-3].removeprefix("data: "))["error"]
        else:
            assert response.status_code == 500
            error = response.json()["error"]
        assert (error["code"], error["message"]) == ("device_error", "token_logprobs: planted")
        assert httpx.post(url, json=body, timeout=60).status_code == 200
    finally:
        _core.testing.clear_faults(device)
        server.close()


def test_greedy_tokens_equal_the_likeliest_by_the_very_number(client: openai.OpenAI) -> None:
    choice = complete(client, TEXT, logprobs=1).choices[0]
    for value, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True):
        assert value == max(top.values())
    hot: Any = complete(client, TEXT, logprobs=1, temperature=5, seed=1, extra_body={"top_k": 0}).choices[0]
    pairs = list(zip(hot.logprobs.token_logprobs, hot.logprobs.top_logprobs, strict=True))
    assert any(value != max(top.values()) for value, top in pairs)
    assert all(value in top.values() for value, top in pairs)


def test_parts_of_a_character_do_not_overwrite_each_other(client: openai.OpenAI) -> None:
    choice = complete(client, "\U0001f600\U0001f680", echo=True, logprobs=5, max_tokens=1).choices[0]
    tokens = choice.logprobs.tokens[:-1]
    assert len(set(tokens)) > 2 and all(t.startswith("bytes:") for t in tokens)
    assert all(len(top) >= 5 for top in choice.logprobs.top_logprobs[1:])


# --- refusals


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [""]}, "prompt[0]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[5], [5, 999999]]}, "prompt[1][1]"),
        ({"prompt": ["a", " a" * 9000]}, "prompt[1]"),
        ({"prompt": ["a", [5, -1]], "max_tokens": 0, "echo": True}, "prompt[1][1]"),
        ({"prompt": [" a" * 9000], "max_tokens": 0, "echo": True}, "prompt[0]"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [999999]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": " a" * 9000}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 999999999}, "max_tokens"),
        ({"echo": "yes"}, "echo"),
        ({"echo": True, "logprobs": 20, "n": 16, "prompt": [5] * 600}, "prompt"),
        ({"guided_json": {"type": "strng"}}, "guided_json"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_served_is_refused_by_its_name(
    changes: Any, param: str, stream: bool, root: str
) -> None:
    body = {"model": MODEL, "prompt": TEXT, "max_tokens": 1, "stream": stream, **changes}
    response = httpx.post(f"{root}/v1/completions", json=body, timeout=60)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


# --- counting


def test_tokens_go_both_ways(root: str) -> None:
    for text in (TEXT, "\U0001f600 naïve\0<|im_end|>", ""):
        told = httpx.post(f"{root}/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
        assert told["tokens"] == TOKENIZER.encode(text)
        assert told["count"] == len(told["tokens"])
        back = httpx.post(f"{root}/detokenize", json={"tokens": told["tokens"]}).json()
        assert back == {"prompt": text}


@pytest.mark.parametrize(
    "more", [{}, {"tools": [TOOL]}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
def test_a_chats_count_is_its_prompts(more: Any, root: str) -> None:
    told = httpx.post(f"{root}/tokenize", json={"model": MODEL, "messages": SUM, **more}).json()
    body = {"model": MODEL, "messages": SUM, "max_tokens": 1, "return_token_ids": True, **more}
    reply = httpx.post(f"{root}/v1/chat/completions", json=body, timeout=60).json()
    assert told["tokens"] == reply["prompt_token_ids"]
    assert told["count"] == reply["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": SUM}, "prompt"),
        ("tokenize", {"prompt": 5}, "prompt"),
        ("tokenize", {"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("detokenize", {"tokens": [2560]}, "tokens[0]"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_its_name(route: str, body: Any, param: str, root: str) -> None:
    response = httpx.post(f"{root}/{route}", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert httpx.post(f"{root}/{route}", json={**body, "model": "gpt-9"}).status_code in (400, 404)


def test_the_tokenizer_tells_its_end_and_its_template(root: str) -> None:
    info = httpx.get(f"{root}/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>"
    assert info["chat_template"] == (BUNDLED / "chat_template.jinja").read_text(encoding="utf-8")
    assert info["n_tokens"] == TOKENIZER.n_tokens
