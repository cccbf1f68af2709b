"""What the model might say, said by a script through the whole server: thoughts, answers and calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import openai
import pytest
from flashnext.engine.sampling import Sampling
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.script import TOKENIZER, ids_of
from support.serving import ServerThread

ASK: list[Any] = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def scripted() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(scripted: ServerThread) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{scripted.port}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("f", x={"type": "integer"}, s={"type": "string"}), tool("g")]


def say(scripted: ServerThread, client: openai.OpenAI, text: str, size: int = 10**6, **more: Any) -> Any:
    """The choice of a whole reply and all chunks of a streamed one, to the same script."""
    scripted.core.script = ids_of(text, size)
    asked: Any = {"model": "tiny", "messages": ASK, "tools": TOOLS, **more}
    whole = client.chat.completions.create(**asked).choices[0]
    chunks = list(client.chat.completions.create(**asked, stream=True))
    return whole, chunks


def joined(chunks: Any) -> tuple[str, str, list[tuple[str, str]], str]:
    """Reasoning, content, calls and the reason for the end, as a client adds up chunks."""
    reasoning = content = ""
    calls: dict[int, list[str]] = {}
    reasons = []
    for chunk in chunks:
        (choice,) = chunk.choices
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            if call.index not in calls:
                assert call.id and call.function.name
                calls[call.index] = [call.function.name, ""]
            else:
                assert call.id is None and call.function.name is None
            calls[call.index][1] += call.function.arguments
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert sorted(calls) == list(range(len(calls)))
    (reason,) = reasons
    return reasoning, content, [(name, arguments) for name, arguments in calls.values()], reason


def told(whole: Any) -> tuple[str, str, list[tuple[str, str]], str]:
    message = whole.message
    calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or []]
    return (
        getattr(message, "reasoning_content", None) or "",
        message.content or "",
        calls,
        whole.finish_reason,
    )


CALL = "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>"
PROGRAM = (
    'def f(x):\n\tif x < 1 and "a" in \'b\\n\':\n        return {"k": [1, "</parameter>"]}\n# Ж\U0001f600'
)
SAID: list[tuple[str, str, tuple[str, str, list[tuple[str, str]], str]]] = [
    ("thinks and answers", "I add.\n</think>\n\n7", ("I add.", "7", [], "stop")),
    ("names a call in thoughts", "I could use `<tool_call>` here.\n</think>\n\nNo.",
     ("I could use `<tool_call>` here.", "No.", [], "stop")),
    ("closes twice", "a\n</think>\n\n5</think>\n\n6", ("a", "5\n\n6", [], "stop")),
    ("never closes", "I wonder", ("I wonder", "", [], "stop")),
    ("thinks of nothing", "</think>5", ("", "5", [], "stop")),
    ("calls", "a</think>\n\n" + CALL.format(7), ("a", "", [("f", '{"x": 7}')], "tool_calls")),
    ("says and calls", "</think>Let me see.\n" + CALL.format(7),
     ("", "Let me see.", [("f", '{"x": 7}')], "tool_calls")),
    ("calls twice", "</think>" + CALL.format(1) + "\n" + CALL.format(2),
     ("", "", [("f", '{"x": 1}'), ("f", '{"x": 2}')], "tool_calls")),
    ("a date for an integer", "</think>" + CALL.format("2026-01-15"),
     ("", "", [("f", '{"x": "2026-01-15"}')], "tool_calls")),
    ("19 digits", "</think>" + CALL.format("1234567890123456789"),
     ("", "", [("f", '{"x": 1234567890123456789}')], "tool_calls")),
    ("a parameter twice", "</think>" + CALL.format("7\n</parameter>\n<parameter=x>\n8"),
     ("", "", [("f", '{"x": 7}')], "tool_calls")),
    ("an unknown tool", "</think><tool_call><function=h><parameter=y>1</parameter></function></tool_call>",
     ("", "", [("h", '{"y": "1"}')], "tool_calls")),
    ("a program", "</think>" + CALL.replace("=x>", "=s>").format(PROGRAM),
     ("", "", [("f", json.dumps({"s": PROGRAM}, ensure_ascii=False))], "tool_calls")),
    ("calls in the open, with its end in a value",
     "</think>So:\n<function=f><parameter=s>a </function> b</parameter></function>\nDone.",
     ("", "So:\n\nDone.", [("f", '{"s": "a </function> b"}')], "tool_calls")),
    ("thinks in a call", "</think>" + CALL.replace("=x>", "=s>").format("<think>x</think>") + "Done.",
     ("", "Done.", [("f", '{"s": "<think>x</think>"}')], "tool_calls")),
    ("no call, and goes on", "</think>Hm.<tool_call>no <think>call</tool_call> Then this.",
     ("", "Hm.\n\nno call\n\nThen this.", [], "stop")),
    ("no call in the open", "</think>Hm.\n<function=f>no call</function> Then this.",
     ("", "Hm.\n\n<function=f>no call</function>\n\nThen this.", [], "stop")),
    ("thinks again", "a\n</think>\n\nb<think>\nc\n</think>\n\nd", ("a\n\nc", "b\n\nd", [], "stop")),
    ("no call after all", "</think><tool_call>nothing</tool_call>", ("", "nothing", [], "stop")),
    ("what only looks like one", "</think>Write `<function=f>` and </function> so.",
     ("", "Write `<function=f>` and </function> so.", [], "stop")),
]  # fmt: skip


@pytest.mark.parametrize("size", [10**6, 3, 1])
@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in SAID], ids=[row[0] for row in SAID])
def test_a_reply_comes_apart_in_the_same_way_streamed_and_whole(
    text: str, expected: Any, size: int, scripted: ServerThread, client: openai.OpenAI
) -> None:
    whole, chunks = say(scripted, client, text, size)
    assert told(whole) == expected
    assert joined(chunks) == expected
    assert len({chunk.id for chunk in chunks}) == 1
    assert [c.choices[0].delta.role for c in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert len({c.id for c in whole.message.tool_calls or []}) == len(expected[2])
    for call in whole.message.tool_calls or []:
        assert call.type == "function" and isinstance(call.function.arguments, str)


def visible(text: str) -> str:
    """Without white space: tokens spell what the parser drops between parts, and not what it puts there."""
    return "".join(text.split())


def spelled(entries: Any) -> str:
    data = b"".join(bytes(e["bytes"] if isinstance(e, dict) else e.bytes) for e in entries or [])
    return visible(data.decode("utf-8", "replace"))


@pytest.mark.parametrize("size", [10**6, 1])
@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in SAID], ids=[row[0] for row in SAID])
def test_logprobs_of_any_reply_spell_what_it_says_and_come_with_it(
    text: str, expected: Any, size: int, scripted: ServerThread, client: openai.OpenAI
) -> None:
    whole, chunks = say(scripted, client, text, size, logprobs=True)
    assert told(whole) == joined(chunks) == expected
    reasoning, content, *_ = expected
    entries = {
        "content": whole.logprobs.content,
        "reasoning_content": getattr(whole.logprobs, "reasoning_content", []),
    }
    assert spelled(entries["content"]) == visible(content)
    assert spelled(entries["reasoning_content"]) == visible(reasoning)
    for kind, delta in (("content", "content"), ("reasoning_content", "reasoning_content")):
        so_far: list[Any] = []
        said = ""
        for chunk in (chunk.choices[0] for chunk in chunks):
            so_far += (chunk.logprobs and getattr(chunk.logprobs, kind, None)) or []
            said += getattr(chunk.delta, delta, None) or ""
            if size == 1:
                assert spelled(so_far) == visible(said)
        assert so_far == entries[kind]


@pytest.mark.parametrize("size", [10**6, 1])
@pytest.mark.parametrize("one_call", [False, True])
def test_text_that_may_become_a_stop_string_is_not_lost_before_a_call(
    one_call: bool, size: int, scripted: ServerThread, client: openai.OpenAI
) -> None:
    more: Any = {"stop": ["me now"], "parallel_tool_calls": not one_call, "logprobs": True}
    whole, chunks = say(scripted, client, "</think>Let me" + CALL.format(7) + "no more", size, **more)
    content = "Let me" if one_call else "Let me\n\nno more"
    assert told(whole) == joined(chunks) == ("", content, [("f", '{"x": 7}')], "tool_calls")
    assert spelled(whole.logprobs.content) == visible(content)


@pytest.mark.parametrize(
    ("end", "calls"),
    [("7", []), ("</tool_call>", [("f", '{"x": 17}')])],
    ids=["in a value", "behind the function"],
)
def test_a_call_that_a_stop_token_of_the_request_cuts_is_not_told(
    end: str, calls: Any, scripted: ServerThread, client: openai.OpenAI
) -> None:
    (stop,) = TOKENIZER.encode(end) if end == "7" else [TOKENIZER.control_ids[end]]
    more: Any = {"extra_body": {"stop_token_ids": [stop], "return_token_ids": True}}
    whole, chunks = say(scripted, client, "</think>Now." + CALL.format(17), 1, **more)
    assert whole.token_ids[-1] == stop
    assert told(whole) == joined(chunks) == ("", "Now.", calls, "tool_calls" if calls else "stop")


TYPES = ("string", "boolean", "null", "array")
TYPED = {
    "null": {"null": "null"},
    "True": {"boolean": "true"},
    "false": {"boolean": "false"},
    '"007"': {},
    "1e3": {},
    "[1e3]": {"array": "[1e3]"},
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("text", TYPED)
def test_a_value_has_its_schemas_type_streamed_and_whole(
    text: str, kind: str, scripted: ServerThread, client: openai.OpenAI
) -> None:
    whole, chunks = say(scripted, client, "</think>" + CALL.format(text), tools=[tool("f", x={"type": kind})])
    value = TYPED[text].get(kind, json.dumps(text))
    assert told(whole) == joined(chunks) == ("", "", [("f", f'{{"x": {value}}}')], "tool_calls")


PIECES = st.sampled_from([
    "<think>", "</think>", "<tool_call>", "</tool_call>", "\n<function=f>\n", "</function>", "<parameter=x>",
    "<parameter=s>", "</parameter>", "a", " 7", "\n\n", "<", "é\U0001f680", '"', "\\", "2026-01-15",
])  # fmt: skip


@given(st.lists(PIECES, max_size=12), st.integers(1, 6))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_reply_is_told_the_same_in_any_split(
    scripted: ServerThread, client: openai.OpenAI, pieces: list[str], size: int
) -> None:
    whole, _ = say(scripted, client, "".join(pieces))
    _, chunks = say(scripted, client, "".join(pieces), size)
    assert told(whole) == joined(chunks)
    _, content, calls, reason = told(whole)
    assert not re.search("</?(think|tool_call)>", content)
    assert (reason == "tool_calls") == bool(calls)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


def test_long_arguments_come_in_pieces(scripted: ServerThread, client: openai.OpenAI) -> None:
    value = "the wolf went to the river and\n" * 170
    whole, chunks = say(scripted, client, "</think>" + CALL.replace("=x>", "=s>").format(value))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert len(deltas) > 1
    assert max(len(d.function.arguments) for d in deltas) <= 4096
    assert (
        joined(chunks)
        == told(whole)
        == ("", "", [("f", json.dumps({"s": value}, ensure_ascii=False))], "tool_calls")
    )


def test_without_parallel_calls_the_first_ends_the_reply(
    scripted: ServerThread, client: openai.OpenAI
) -> None:
    text = "</think>" + CALL.format(1) + "\n" + CALL.format(2) + "and on"
    whole, chunks = say(scripted, client, text, parallel_tool_calls=False)
    assert told(whole) == joined(chunks) == ("", "", [("f", '{"x": 1}')], "tool_calls")


def test_tool_choice_none_reads_no_call(scripted: ServerThread, client: openai.OpenAI) -> None:
    whole, chunks = say(scripted, client, "</think>" + CALL.format(1), tool_choice="none")
    assert told(whole) == joined(chunks)
    assert told(whole)[2:] == ([], "stop")
    assert "<function=f>" in told(whole)[1]


@pytest.mark.parametrize("text", ["naïve \U0001f600\U0001f680 Ж", "e\u0301 \ufffd", "a\0b"])
def test_logprobs_of_any_text_spell_it_byte_by_byte(
    text: str, scripted: ServerThread, client: openai.OpenAI
) -> None:
    whole, chunks = say(scripted, client, f"</think>{text}", 1, logprobs=True)
    entries = whole.logprobs.content
    assert bytes(b for e in entries for b in e.bytes).decode() == whole.message.content == text
    streamed = [e for c in chunks for e in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
    assert streamed == entries


@pytest.mark.parametrize("stop", ["STOP", "\U0001f600!", "= 7", "\0!"])
@pytest.mark.parametrize("size", [1, 2, 10**6])
def test_a_stop_string_is_found_across_tokens_and_characters(
    stop: str, size: int, scripted: ServerThread, client: openai.OpenAI
) -> None:
    whole, chunks = say(
        scripted, client, f"about {stop[0]} it</think>begin {stop[0]} on {stop} rest", size, stop=[stop]
    )
    assert told(whole) == joined(chunks) == (f"about {stop[0]} it", f"begin {stop[0]} on ", [], "stop")


def test_only_what_may_become_a_stop_string_is_held(scripted: ServerThread) -> None:
    scripted.core.script = ids_of("</think>ab xx cd xxx", 1)
    events = scripted.engine.generate(ASK, sampling=Sampling(stop=["x" * 500]))
    assert [e.text for e in events if e.text] == ["a", "b", " ", "xx c", "d", " ", "xxx"]


def test_a_failed_reply_frees_its_place_and_the_next_is_served(
    scripted: ServerThread, client: openai.OpenAI
) -> None:
    whole, _ = say(scripted, client, "</think>fine")
    assert whole.message.content == "fine"
    assert scripted.service.queue.n_open == 0
    with closing(client.chat.completions.create(model="tiny", messages=ASK, stream=True)) as stream:
        next(iter(stream))
