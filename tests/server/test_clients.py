"""Other people's clients against `flashnext-serve` on the bundled checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flashnext import _core
from flashnext.engine.engine import BUNDLED
from flashnext.engine.load import load_model
from flashnext.text.tokenizer import Tokenizer
from support.serving import ServerProcess, server_process

NEEDS = "needs the extra `clients`"
MODEL = "tiny-6bit"
QUESTION = "What is 3 + 4?"
SUM: list[Any] = [{"role": "user", "content": QUESTION}]
GOLDEN = Path(__file__).parents[1] / "tiny" / "golden.jsonl"

# They warn of their own dependencies, which is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


def tool_case() -> Any:
    cases = map(json.loads, GOLDEN.read_text(encoding="utf-8").splitlines())
    return next(c for c in cases if c["tools"] and "<tool_call>" in c["output_text"])


# --- litellm


@pytest.fixture(scope="module")
def litellm() -> Any:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch a list of prices
    module: Any = pytest.importorskip("litellm", reason=NEEDS)
    module.telemetry = False
    return module


def test_litellm_reads_reply_thoughts_and_usage(litellm: Any, server: ServerProcess) -> None:
    more = {"model": f"openai/{MODEL}", "api_base": server.url, "api_key": "none", "temperature": 0}
    reply = litellm.completion(messages=SUM, **more)
    assert reply.choices[0].message.content == "3 + 4 = 7"
    assert reply.choices[0].message.reasoning_content == "3 + 4 = 7. So 3 + 4 = 7."
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (18, 28)


def test_litellm_takes_usage_from_the_stream_and_does_not_count_again(
    litellm: Any, server: ServerProcess
) -> None:
    more = {"model": f"openai/{MODEL}", "api_base": server.url, "api_key": "none", "temperature": 0}
    chunks = list(
        litellm.completion(messages=SUM, stream=True, stream_options={"include_usage": True}, **more)
    )
    built = litellm.stream_chunk_builder(chunks, messages=SUM)
    assert built.choices[0].message.content == "3 + 4 = 7"
    assert (built.usage.prompt_tokens, built.usage.completion_tokens) == (18, 28)


def test_litellm_calls_a_tool_and_raises_its_own_errors(litellm: Any, server: ServerProcess) -> None:
    more = {"model": f"openai/{MODEL}", "api_base": server.url, "api_key": "none", "temperature": 0}
    case = tool_case()
    extra = {"chat_template_kwargs": {"enable_thinking": case["enable_thinking"]}}
    reply = litellm.completion(messages=case["messages"], tools=case["tools"], extra_body=extra, **more)
    assert reply.choices[0].finish_reason == "tool_calls"
    json.loads(reply.choices[0].message.tool_calls[0].function.arguments)
    with pytest.raises(litellm.exceptions.BadRequestError, match="top_p"):
        litellm.completion(messages=SUM, top_p=2, num_retries=0, **more)


def test_litellm_knows_a_prompt_that_is_too_long(litellm: Any, server: ServerProcess) -> None:
    long = [{"role": "user", "content": " a" * 9000}]
    more = {"model": f"openai/{MODEL}", "api_base": server.url, "api_key": "none", "num_retries": 0}
    with pytest.raises(litellm.exceptions.ContextWindowExceededError, match="8192"):
        litellm.completion(messages=long, **more)


# --- langchain-openai


@pytest.fixture(scope="module")
def chat_openai(server: ServerProcess) -> Any:
    module: Any = pytest.importorskip("langchain_openai", reason=NEEDS)

    def make(**more: Any) -> Any:
        return module.ChatOpenAI(
            model=MODEL, base_url=server.url, api_key="none", temperature=0, max_retries=0, **more
        )

    return make


def test_langchain_invokes_streams_and_counts(chat_openai: Any) -> None:
    chat = chat_openai(stream_usage=True)
    reply = chat.invoke(QUESTION)
    assert reply.content == "3 + 4 = 7"
    assert reply.usage_metadata["output_tokens"] == 28
    pieces = list(chat.stream(QUESTION))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    assert whole.content == "3 + 4 = 7"
    assert whole.usage_metadata["output_tokens"] == 28
    assert whole.response_metadata["finish_reason"] == "stop"


def test_langchain_knows_a_prompt_that_is_too_long(chat_openai: Any) -> None:
    exceptions: Any = pytest.importorskip("langchain_core.exceptions", reason=NEEDS)
    with pytest.raises(exceptions.ContextOverflowError, match="8192"):
        chat_openai().invoke(" a" * 9000)


@pytest.mark.parametrize("stream", [False, True])
def test_langchain_binds_tools(stream: bool, chat_openai: Any) -> None:
    case = tool_case()
    extra = {"chat_template_kwargs": {"enable_thinking": case["enable_thinking"]}}
    chat = chat_openai(extra_body=extra).bind_tools(case["tools"])
    if stream:
        pieces = list(chat.stream(case["messages"]))
        reply = pieces[0]
        for piece in pieces[1:]:
            reply = reply + piece
    else:
        reply = chat.invoke(case["messages"])
    (call,) = reply.tool_calls
    assert f"<function={call['name']}>" in case["output_text"]
    assert isinstance(call["args"], dict) and call["id"]


def test_langchain_batches_and_asks_for_several_choices_and_logprobs(chat_openai: Any) -> None:
    chat = chat_openai()
    assert [r.content for r in chat.batch([QUESTION] * 3)] == ["3 + 4 = 7"] * 3
    told = (
        chat_openai(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
    )
    assert "".join(entry["token"] for entry in told) == "3 + 4 = 7"
    messages: Any = pytest.importorskip("langchain_core.messages", reason=NEEDS)
    generations = chat_openai(n=2).generate([[messages.HumanMessage(QUESTION)]]).generations[0]
    assert [g.text for g in generations] == ["3 + 4 = 7"] * 2


# --- llm


@pytest.mark.parametrize("more", [[], ["--no-stream"]], ids=["stream", "whole"])
def test_the_llm_command_asks(more: list[str], server: ServerProcess, tmp_path: Path) -> None:
    pytest.importorskip("llm", reason=NEEDS)
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: tiny\n  model_name: {MODEL}\n  api_base: {server.url}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "tiny", "-o", "temperature", "0", *more, QUESTION],
        capture_output=True, text=True, timeout=120, env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("3 + 4 = 7")


# --- lm-eval

QUESTIONS = [
    ("The wolf went to the", [" river", " 17", " seconds"]),
    ("Count from 1 to", [" 5", " Monday", "?"]),
]


def likeliest(context: str, choices: list[str]) -> int:
    """Which choice the model itself gives the most, by one pass over each text."""
    tokenizer = Tokenizer.from_folder(BUNDLED)
    loaded = load_model(BUNDLED, draft_head=False)
    runner = _core.Runner(loaded.model, tokenizer.n_tokens)
    sums = []
    for choice in choices:
        before, ids = tokenizer.encode(context), tokenizer.encode(context + choice)
        session = _core.Session(loaded.model, loaded.pool)
        (logits,) = runner.forward([(session, np.asarray(ids, np.int32), False)])
        session.close()
        rows = np.asarray(logits, np.float64)[:, : tokenizer.n_tokens]
        rows -= np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True)) + rows.max(
            1, keepdims=True
        )
        sums.append(sum(rows[i - 1, ids[i]] for i in range(len(before), len(ids))))
    return int(np.argmax(sums))


def test_lm_eval_scores_a_local_task_with_the_remote_tokenizer(server: ServerProcess, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason=NEEDS)
    data = tmp_path / "questions.jsonl"
    right = [likeliest(*question) for question in QUESTIONS]
    answers = [right[0], (right[1] + 1) % 3]  # so that one of two is right
    rows = [
        {"context": context, "choices": choices, "answer": answer}
        for (context, choices), answer in zip(QUESTIONS, answers, strict=True)
    ]
    data.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "small.yaml").write_text(
        "task: small\ndataset_path: json\n"
        f"dataset_kwargs:\n  data_files:\n    test: {data}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{context}}'\n"
        "doc_to_choice: choices\ndoc_to_target: answer\ntarget_delimiter: ''\n"
        "metric_list:\n  - metric: acc\n"
    )
    args = f"model={MODEL},base_url={server.url}/completions,tokenizer_backend=remote,num_concurrent=2"
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", args,
         "--tasks", "small", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["small"]["acc,none"] == 0.5


# --- schemathesis


def test_schemathesis_finds_no_server_error_and_no_undocumented_answer(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason=NEEDS)
    seed = int.from_bytes(os.urandom(3), "big")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    with server_process("--context", "512", "--max-tokens", "8") as small:
        url = small.url.removesuffix("/v1")
        done = subprocess.run(
            [str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json",
             "--checks", checks, "--max-examples", "30", "--seed", str(seed), "--request-timeout", "60"],
            capture_output=True, text=True, timeout=500, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, f"seed {seed}: {done.stdout[-6000:]}{done.stderr[-2000:]}"
        assert "Traceback" not in small.err
        plain = {"model": MODEL, "messages": SUM, "temperature": 0, "max_tokens": 60}
        reply = httpx.post(f"{small.url}/chat/completions", json=plain, timeout=60).json()
        assert reply["choices"][0]["message"]["content"] == "3 + 4 = 7"
