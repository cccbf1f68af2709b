"""Other people's clients against `flashnext-serve` on the bundled checkpoint."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flashnext import _core
from flashnext.engine.engine import BUNDLED
from flashnext.engine.load import load_model
from flashnext.server.fields import MESSAGES, MESSAGES_COUNT
from flashnext.server.messages_blocks import BLOCKS
from flashnext.server.messages_request import TOOL
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


def test_litellm_speaks_responses_streamed_and_whole(litellm: Any, server: ServerProcess) -> None:
    more = {"model": f"openai/{MODEL}", "api_base": server.url, "api_key": "none", "temperature": 0}
    whole = litellm.responses(input=QUESTION, **more)
    assert whole.output[-1].content[0].text == "3 + 4 = 7"
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (18, 28)
    events = list(litellm.responses(input=QUESTION, stream=True, **more))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "3 + 4 = 7"
    assert events[-1].type == "response.completed" and events[-1].response.usage.output_tokens == 28
    second = litellm.responses(input="And 1 + 1?", previous_response_id=whole.id, **more)
    assert second.usage.input_tokens > whole.usage.input_tokens + whole.usage.output_tokens
    with pytest.raises(litellm.exceptions.BadRequestError, match="top_p"):
        litellm.responses(input=QUESTION, top_p=2, num_retries=0, **more)


def test_litellm_speaks_messages_with_thoughts_and_tools(litellm: Any, server: ServerProcess) -> None:
    base = server.url.removesuffix("/v1")
    more = {"model": f"anthropic/{MODEL}", "api_base": base, "api_key": "none", "temperature": 0}
    more["allowed_openai_params"] = ["thinking"]  # it does not know what this model can
    think: Any = {"type": "enabled", "budget_tokens": 1024}
    reply = litellm.completion(messages=SUM, thinking=think, max_tokens=2000, **more)
    assert reply.choices[0].message.content == "3 + 4 = 7"
    assert reply.choices[0].message.reasoning_content == "3 + 4 = 7. So 3 + 4 = 7."
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (18, 28)
    chunks = list(litellm.completion(messages=SUM, thinking=think, max_tokens=2000, stream=True, **more))
    built = litellm.stream_chunk_builder(chunks, messages=SUM)
    assert built.choices[0].message.content == "3 + 4 = 7"
    assert built.usage.completion_tokens == 28
    case = tool_case()
    thinks = {"thinking": think} if case["enable_thinking"] else {}
    called = litellm.completion(
        messages=case["messages"], tools=case["tools"], max_tokens=500, **thinks, **more
    )
    assert called.choices[0].finish_reason == "tool_calls"
    json.loads(called.choices[0].message.tool_calls[0].function.arguments)
    with pytest.raises(litellm.exceptions.BadRequestError, match="top_p"):
        litellm.completion(messages=SUM, top_p=2, num_retries=0, **more)


# --- anthropic


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[Any]:
    module: Any = pytest.importorskip("anthropic", reason=NEEDS)
    base = server.url.removesuffix("/v1")
    with module.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=60) as client:
        yield client


ADAPTIVE: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "thinking": {"type": "adaptive"}}
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}


def read(usage: Any) -> int:
    """Tokens of a prompt, however many of them were read before."""
    return int(usage.input_tokens + usage.cache_read_input_tokens)


def test_anthropic_reads_thoughts_text_and_usage(claude: Any) -> None:
    message = claude.messages.create(messages=SUM, **ADAPTIVE, **GREEDY)
    thoughts, text = message.content
    assert (thoughts.type, thoughts.thinking) == ("thinking", "3 + 4 = 7. So 3 + 4 = 7.")
    assert (text.type, text.text) == ("text", "3 + 4 = 7")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert read(usage) == 18
    assert (usage.output_tokens, usage.output_tokens_details.thinking_tokens) == (28, 19)
    counted = claude.messages.count_tokens(model=MODEL, messages=SUM, thinking={"type": "adaptive"})
    assert counted.input_tokens == 18


def test_anthropics_streaming_helper_builds_the_whole_message(claude: Any) -> None:
    asked = {**ADAPTIVE, **GREEDY, "system": "Be brief and friendly, and say please. " * 10}
    whole = claude.messages.create(messages=SUM, **asked)
    with claude.messages.stream(messages=SUM, **asked) as stream:
        kinds = {event.type for event in stream}
        built = stream.get_final_message()
    assert {"thinking", "text", "signature", "content_block_stop", "message_stop"} <= kinds
    assert [block.to_dict() for block in built.content] == [block.to_dict() for block in whole.content]
    assert built.stop_reason == whole.stop_reason
    assert built.usage.output_tokens == whole.usage.output_tokens
    # What was read before counts as such, on a stream too.
    assert (whole.usage.cache_read_input_tokens, built.usage.input_tokens) == (0, 1)
    assert built.usage.cache_read_input_tokens == whole.usage.input_tokens - 1


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_calls_a_tool_and_sends_its_result(stream: bool, claude: Any) -> None:
    case = tool_case()
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in case["tools"])
    ]
    kind = "adaptive" if case["enable_thinking"] else "disabled"
    asked = {**ADAPTIVE, "tools": tools, "thinking": {"type": kind}, **GREEDY}
    system = [m["content"] for m in case["messages"] if m["role"] == "system"]
    asked |= {"system": system[0]} if system else {}
    messages = [m for m in case["messages"] if m["role"] != "system"]
    if stream:
        with claude.messages.stream(messages=messages, **asked) as stream_:
            message = stream_.get_final_message()
    else:
        message = claude.messages.create(messages=messages, **asked)
    assert message.stop_reason == "tool_use"
    call = next(block for block in message.content if block.type == "tool_use")
    assert f"<function={call.name}>" in case["output_text"] and isinstance(call.input, dict)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "42"}
    history = [*messages, message.to_param(), {"role": "user", "content": [result]}]
    after = claude.messages.create(messages=history, **{**asked, "max_tokens": 20})
    assert after.content
    assert read(after.usage) > read(message.usage) + message.usage.output_tokens


def test_anthropic_is_told_the_stop_sequence_and_raises_its_own_errors(claude: Any) -> None:
    module: Any = pytest.importorskip("anthropic", reason=NEEDS)
    stopped = claude.messages.create(messages=SUM, stop_sequences=["= 7"], **ADAPTIVE, **GREEDY)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "= 7")
    assert stopped.content[-1].text == "3 + 4 "
    with pytest.raises(module.BadRequestError, match="messages: should not be empty") as refused:
        claude.messages.create(messages=[], **ADAPTIVE)
    assert refused.value.request_id.startswith("req_")
    with pytest.raises(module.NotFoundError, match="'x' is not served here"):
        claude.messages.create(messages=SUM, **{**ADAPTIVE, "model": "x"})
    long = [{"role": "user", "content": " a" * 9000}]
    with (
        pytest.raises(module.BadRequestError, match="prompt is too long"),
        claude.messages.stream(messages=long, **ADAPTIVE),
    ):
        pass


def test_anthropic_shows_a_picture_and_counts_it(claude: Any) -> None:
    data = base64.b64encode((GOLDEN.parent / "media" / "image-5-0.png").read_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": "what shape is this"}]
    turns = [{"role": "user", "content": parts}]
    message = claude.messages.create(model=MODEL, max_tokens=50, messages=turns, **GREEDY)
    assert message.content[0].text == "It is a star."
    counted = claude.messages.count_tokens(model=MODEL, messages=turns)
    assert counted.input_tokens == read(message.usage)


def test_every_field_that_the_anthropic_package_sends_is_in_a_table() -> None:
    types: Any = pytest.importorskip("anthropic.types", reason=NEEDS)
    create: Any = pytest.importorskip("anthropic.types.message_create_params", reason=NEEDS)
    assert set(create.MessageCreateParamsBase.__annotations__) | {"stream"} <= set(MESSAGES)
    assert set(types.MessageCountTokensParams.__annotations__) <= set(MESSAGES_COUNT)
    for kind, known in (
        (types.TextBlockParam, BLOCKS["text"]),
        (types.ThinkingBlockParam, BLOCKS["thinking"]),
        (types.RedactedThinkingBlockParam, BLOCKS["redacted_thinking"]),
        (types.ToolUseBlockParam, BLOCKS["tool_use"]),
        (types.ToolResultBlockParam, BLOCKS["tool_result"]),
        (types.ToolParam, TOOL),
    ):
        assert set(kind.__annotations__) <= set(known), kind


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
