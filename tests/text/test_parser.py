"""Replies taken apart: thoughts, content and calls, whatever the split."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flashnext.text.messages import canonical_messages
from flashnext.text.parser import Content, Part, Reasoning, ReplyParser, ToolCall, split_control
from hypothesis import given
from hypothesis import strategies as st


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


TOOLS = [tool("f", x={"type": "integer"}, s={"type": "string"}), tool("get_time")]


def parse(
    reply: str, *, thinking: bool = False, tools: Any = TOOLS, cut: bool = False, size: int = 10**6
) -> tuple[str, str, list[ToolCall]]:
    """Reasoning, content and calls of a reply whose tags are all control tokens, fed in pieces of `size`."""
    parser = ReplyParser(in_thinking=thinking, tools=tools)
    parts: list[Part] = []
    for piece, is_control in split_control(reply):
        if is_control:
            parts += parser.control(piece)
        else:
            for i in range(0, len(piece), size):
                parts += parser.feed(piece[i : i + size])
    return joined(parts + parser.finish(cut=cut))


def joined(parts: list[Part]) -> tuple[str, str, list[ToolCall]]:
    assert all(part.text for part in parts if not isinstance(part, ToolCall))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    content = "".join(part.text for part in parts if isinstance(part, Content))
    return reasoning, content, [part for part in parts if isinstance(part, ToolCall)]


def call_of(text: str, schema: Any) -> Any:
    """The arguments of one call with one parameter x, as text written by the model."""
    reply = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    (call,) = parse(reply, tools=[tool("f", x=schema)])[2]
    return json.loads(call.arguments)


# --- thoughts


@pytest.mark.parametrize(
    ("reply", "thinking", "reasoning", "content"),
    [
        ("I add.\n</think>\n\n5", True, "I add.", "5"),
        ("<think>\nI add.\n</think>\n\n5", True, "I add.", "5"),  # opens what is open
        ("<think>\nI add.\n</think>\n\n5", False, "I add.", "5"),
        ("5 \n", False, "", "5 \n"),
        (" 5", False, "", " 5"),
        ("I add.\n</think>\n\n5</think>\n\n6", True, "I add.", "5\n\n6"),  # closes twice
        ("</think></think>\n\n5", True, "", "5"),
        ("</think>\n\n5", False, "", "5"),
        ("I add", True, "I add", ""),  # cut inside
        ("\n I add.\n\n", True, "I add.", ""),
        ("", True, "", ""),
        ("\n</think>\n\n", True, "", ""),
        ("a</think>b<think>c</think>d", True, "a\n\nc", "b\n\nd"),  # thinks again
        ("5<think>", False, "", "5"),
        ("a</think>\n\n\n  b\n\nc", True, "a", "b\n\nc"),
    ],
)
def test_thoughts_and_content_come_apart_and_content_has_no_tag(
    reply: str, thinking: bool, reasoning: str, content: str
) -> None:
    assert parse(reply, thinking=thinking) == (reasoning, content, [])
    assert parse(reply, thinking=thinking, size=1) == (reasoning, content, [])


def test_a_thought_about_tool_calls_stays_a_thought() -> None:
    thought = "I could use `<tool_call>` or\n<function=f>\n</function></tool_call>"
    assert parse(thought + "\n</think>\n\nNo.", thinking=True) == (thought, "No.", [])


def test_only_control_tokens_open_and_close_blocks() -> None:
    parser = ReplyParser(in_thinking=False, tools=TOOLS)
    text = "Write <think> and </think>, <tool_call>{}</tool_call>."
    assert joined(parser.feed(text) + parser.finish(cut=False)) == ("", text, [])


# --- calls

PARAMETERS = "<parameter=x>\n7\n</parameter>\n<parameter=s>\na\nb\n</parameter>\n"
CALL = f"<tool_call>\n<function=f>\n{PARAMETERS}</function>\n</tool_call>"
MADE = ToolCall("f", '{"x": 7, "s": "a\\nb"}')
BARE = "<function=f><parameter=x>2026-01-15</parameter></function>"
NOW = "<tool_call>\n<function=get_time>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (CALL, "", [MADE]),
        (f"Let me see.\n\n{CALL}", "Let me see.", [MADE]),
        (f"{CALL}\n{NOW}", "", [MADE, ToolCall("get_time", "{}")]),
        (f"Let me see.\n{CALL}\nDone.", "Let me see.\n\nDone.", [MADE]),
        (f"{CALL}</tool_call>\n\n", "", [MADE]),
        (CALL.removesuffix("</tool_call>"), "", [MADE]),
        (CALL.removesuffix("\n</function>\n</tool_call>"), "", [MADE]),
        (CALL.removesuffix("\n</parameter>\n</function>\n</tool_call>"), "", [MADE]),
        (CALL.replace("</parameter>\n</function>", "</function>"), "", [MADE]),
        (CALL + CALL, "", [MADE, MADE]),
        (CALL.removesuffix("</tool_call>") + NOW, "", [MADE, ToolCall("get_time", "{}")]),
        (CALL.replace("\n", ""), "", [ToolCall("f", '{"x": 7, "s": "ab"}')]),
        (BARE, "", [ToolCall("f", '{"x": "2026-01-15"}')]),  # text where the schema says integer
        (f"So:\n{BARE}\nDone.", "So:\n\nDone.", [ToolCall("f", '{"x": "2026-01-15"}')]),
        (f"As in {BARE}", f"As in {BARE}", []),
        (BARE.replace("=f", "=unknown"), BARE.replace("=f", "=unknown"), []),
        ("<function", "<function", []),
        ("a\n<fun", "a\n<fun", []),
        ("a\n<fun\n<f", "a\n<fun\n<f", []),
        ("x < y\n< z", "x < y\n< z", []),
        ("<tool_call>\n<function=unknown>\n</function>\n</tool_call>", "", [ToolCall("unknown", "{}")]),
        ("<tool_call>I am no call</tool_call>", "I am no call", []),
        ('a<tool_call>{"name": "f"}</tool_call>b', 'a\n\n{"name": "f"}\n\nb', []),
        ("<tool_call></tool_call>x", "x", []),
        (
            "<tool_call>\n<function=f>\nnoise\n</function>\n</tool_call>",
            "<function=f>\nnoise\n</function>",
            [],
        ),
    ],
)
def test_calls_come_apart_from_content(reply: str, content: str, calls: list[ToolCall]) -> None:
    assert parse(reply) == ("", content, calls)
    assert parse(reply, size=1) == ("", content, calls)


VALUE = "if x:\n</function> or </parameter> and\n<parameter=no> no"
CODE = f"<function=f>\n<parameter=s>\n{VALUE}\n</parameter>\n</function>"
LOOSE = "<function=f><parameter=s>a</function>"  # its value is never closed
MADE_LOOSE = ToolCall("f", '{"s": "a"}')


@pytest.mark.parametrize("behind", ["", "\nDone.", "</tool_call>", f"\n{NOW}", f"\n{BARE}", "\n<function="])
def test_a_bare_call_ends_outside_of_its_values_as_one_in_a_block_does(behind: str) -> None:
    bare, block = (parse(call + behind) for call in (CODE, f"<tool_call>{CODE}</tool_call>"))
    assert bare == block
    assert json.loads(bare[2][0].arguments) == {"s": VALUE}
    assert parse(CODE + behind, size=1) == bare


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (LOOSE, "", [MADE_LOOSE]),
        (f"{LOOSE}\nDone.", "Done.", [MADE_LOOSE]),
        (f"{LOOSE}\n{LOOSE}b\n", "b\n", [MADE_LOOSE, MADE_LOOSE]),
        (f"{LOOSE}\n{NOW}", "", [MADE_LOOSE, ToolCall("get_time", "{}")]),
        (f"{LOOSE}</tool_call>", "", [MADE_LOOSE]),
        ("<function=f><parameter=s>a", "", [MADE_LOOSE]),
        ("<function=f>", "", [ToolCall("f", "{}")]),
        ("<function=f><parameter=s", "<function=f><parameter=s", []),
        ("<function=f>a</function>b", "<function=f>a</function>\n\nb", []),
        ("<function=f><parameter=\n></function>b", "<function=f><parameter=\n></function>\n\nb", []),
    ],
)
def test_a_bare_call_that_is_not_closed_is_read_as_far_as_it_goes(
    reply: str, content: str, calls: list[ToolCall]
) -> None:
    assert parse(reply) == ("", content, calls)
    assert parse(reply, size=1) == ("", content, calls)
    if reply.startswith("<function=f><parameter=s>") and "tool_call" not in reply:
        assert parse(reply, cut=True) == ("", "", [])


def test_the_end_of_a_bare_call_is_looked_for_once() -> None:
    # Were all of it read again for each piece, this would outlast the test run's limit.
    value = "</parameter>" + " " * 100_000 + "</parameter>" + "a" * 100_000
    ((name, arguments),) = [(c.name, c.arguments) for c in parse(CODE.replace(VALUE, value), size=1)[2]]
    assert (name, json.loads(arguments)) == ("f", {"s": value})


@pytest.mark.parametrize("size", [1, None])
@pytest.mark.parametrize("tag", ["<think>", "</think>"])
def test_control_tokens_behind_a_call_that_is_not_closed_are_no_text(tag: str, size: int | None) -> None:
    reply = f"<function=f><parameter=s>a</function> b {tag} c"
    found = parse(reply, size=size) if size else parse(reply)
    assert "<" not in found[0] + found[1] and "c" in found[0] + found[1]
    assert found[2] == [ToolCall("f", '{"s": "a"}')]


def test_many_calls_behind_one_that_is_not_closed_are_all_read() -> None:
    reply = "<function=f><parameter=s>a</function>" + "\n<function=f></function>" * 1000
    assert parse(reply) == ("", "", [ToolCall("f", '{"s": "a"}'), *[ToolCall("f", "{}")] * 1000])


@given(
    st.text("f<>= \n\tx/", max_size=12).map(lambda name: name or "f"),
    st.text('k<>= \nx/"\\', max_size=12),
    st.text('v<>\n/{}"', max_size=12),
)
def test_every_call_that_is_given_can_be_sent_back(name: str, key: str, value: str) -> None:
    body = f"<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>"
    _, content, calls = parse(f"<tool_call>\n{body}\n</tool_call>")
    assert bool(content) != bool(calls)
    for call in calls:
        function = {"name": call.name, "arguments": call.arguments}
        turn = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
        (message,) = canonical_messages([turn])
        assert message["tool_calls"][0]["function"]["name"] == call.name


def test_without_tools_nothing_is_a_call() -> None:
    assert parse(CALL, tools=None) == ("", CALL, [])
    assert parse(BARE, tools=None) == ("", BARE, [])


@pytest.mark.parametrize("n", range(len("<tool_call>"), len(CALL) - len("\n</tool_call>")))
def test_a_call_that_is_cut_is_not_made(n: int) -> None:
    assert parse(CALL[:n], cut=True)[2] == []


def test_a_call_cut_after_its_function_is_complete_and_made() -> None:
    assert parse(CALL.removesuffix("\n</tool_call>"), cut=True) == ("", "", [MADE])


def test_a_call_cut_behind_what_looks_like_its_end_in_a_value_is_not_made() -> None:
    half = "<tool_call><function=f><parameter=s>print('</function>"
    assert parse(half, cut=True) == ("", "", [])
    assert parse(half.removeprefix("<tool_call>"), cut=True) == ("", "", [])
    assert parse(f"{NOW}{half}", cut=True) == ("", "", [ToolCall("get_time", "{}")])


@pytest.mark.parametrize(
    "value",
    [
        'print("</parameter>")',
        "</parameter>\nmore",
        "<parameter=y>",
        "a <function=g> b",
        'He said "hi"\\n\t\\',
        "ünïcödé 🚀",
        "<think>no</think>",
        "\n\n",
        "",
        " padded ",
        "a\0b",
    ],
)
def test_a_text_value_arrives_as_it_was_written(value: str) -> None:
    for size in (1, 10**6):
        reply = f"<tool_call>\n<function=f>\n<parameter=s>\n{value}\n</parameter>\n</function>\n</tool_call>"
        (call,) = parse(reply, size=size)[2]
        assert json.loads(call.arguments) == {"s": value}


def test_of_a_parameter_that_stands_twice_the_first_counts() -> None:
    twice = CALL.replace("<parameter=s>", "<parameter=x>")
    assert parse(twice)[2] == [ToolCall("f", '{"x": 7}')]


STRING, INTEGER, NUMBER, BOOLEAN, NULL = (
    {"type": t} for t in ("string", "integer", "number", "boolean", "null")
)
ARRAY, OBJECT = {"type": "array"}, {"type": "object"}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        *((text, STRING, text) for text in ("null", "True", "false", '"007"', "1e3", "7", "[1]", "{}", "")),
        *((text, {}, text) for text in ("null", "True", "7", "[1]")),  # no schema: text
        *((text, None, text) for text in ("null", "7")),
        *(
            (text, BOOLEAN, value)
            for text, value in (("True", True), ("false", False), ("true", True), (" False ", False))
        ),
        *((text, BOOLEAN, text) for text in ("null", '"007"', "1e3", "yes", "TRUE")),
        *((text, NULL, None) for text in ("null", "None")),
        *((text, NULL, text) for text in ("True", "false", '"007"', "1e3", "nil")),
        *(
            (text, ARRAY, text)
            for text in ("null", "True", "false", '"007"', "1e3", "[1,", "{}", "[NaN]", "['a']")
        ),
        ('[1, "a", {"b": null}]', ARRAY, [1, "a", {"b": None}]),
        ('{"a": [1]}', OBJECT, {"a": [1]}),
        ("[1]", OBJECT, "[1]"),
        ("007", INTEGER, "007"),
        ("12", INTEGER, 12),
        ("-3", INTEGER, -3),
        ("1e3", INTEGER, 1000.0),
        ("5.0", INTEGER, 5.0),
        ("5.5", INTEGER, "5.5"),
        ("1e-2", INTEGER, "1e-2"),
        ("2026-01-15", INTEGER, "2026-01-15"),
        ("+5", NUMBER, "+5"),
        ("Infinity", NUMBER, "Infinity"),
        ("١٢", INTEGER, "١٢"),
        ("-2.5e-3", NUMBER, -0.0025),
        ("null", {"type": ["string", "null"]}, None),
        ("nil", {"type": ["string", "null"]}, "nil"),
        ("null", {"type": "string", "nullable": True}, None),
        ("7", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, 7),
        ('["a"]', {"oneOf": [{"type": "string"}, {"type": "array"}]}, ["a"]),
        ("b", {"enum": ["a", "b"]}, "b"),
        ("2", {"enum": [1, 2]}, 2),
        ("true", {"const": True}, True),
        ("3", {"allOf": [{"type": "integer"}]}, 3),
        ("3", {"type": 5}, "3"),
        ("3", {"type": [5, None, "integer"]}, 3),
        ("3", {"anyOf": {"type": "integer"}}, "3"),
    ],
)
def test_a_value_has_the_type_its_schema_names_and_is_text_otherwise(
    text: str, schema: Any, value: Any
) -> None:
    found = call_of(text, schema)["x"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "digits", ["1234567890123456789", "-1234567890123456789012345678901234567890", "9" * 5000]
)
def test_long_integers_keep_their_digits(digits: str) -> None:
    for schema in (INTEGER, NUMBER):
        (call,) = parse(
            f"<tool_call><function=f><parameter=x>{digits}</parameter></function></tool_call>",
            tools=[tool("f", x=schema)],
        )[2]
        assert call.arguments == f'{{"x": {digits}}}'


@pytest.mark.parametrize("text", ["1e309", "1.10", "-0", "0.1e+10"])
def test_numbers_keep_their_spelling_also_inside_arrays(text: str) -> None:
    for schema, value in ((NUMBER, text), (ARRAY, f"[{text}]")):
        (call,) = parse(
            f"<tool_call><function=f><parameter=x>{value}</parameter></function></tool_call>",
            tools=[tool("f", x=schema)],
        )[2]
        assert call.arguments == f'{{"x": {value}}}'


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}},
        {
            "properties": {"x": {"$ref": "#/$defs/a~1b"}},
            "$defs": {"a/b": {"$ref": "#/$defs/n"}, "n": {"type": "integer"}},
        },
    ],
)
def test_local_references_are_followed(parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    (call,) = parse("<tool_call><function=f><parameter=x>7</parameter></function></tool_call>", tools=tools)[
        2
    ]
    assert call.arguments == '{"x": 7}'


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"x": {"$ref": "#/properties/x"}}},
        {"properties": {"x": {"anyOf": [{"$ref": "#/properties/x"}, {"$ref": "#/properties/x"}]}}},
        {"properties": {"x": {"anyOf": [{"$ref": "#/properties/x"}] * 1000}}},
        {"properties": {"x": {"$ref": "http://elsewhere/"}}},
        {"properties": {"x": {"$ref": "#/nowhere"}}},
        {"properties": []},
        {"properties": {"x": True}},
        {},
    ],
)
def test_a_schema_that_leads_nowhere_gives_text(parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    (call,) = parse("<tool_call><function=f><parameter=x>7</parameter></function></tool_call>", tools=tools)[
        2
    ]
    assert call.arguments == '{"x": "7"}'


# --- any split

TOKENS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>"),
        *(
            "<function=f>",
            "<function=",
            "</function>",
            "<parameter=x>",
            "<parameter=s>",
            "</parameter>",
            "</para",
        ),
        *(
            "\n",
            " ",
            "\n\n",
            "a",
            "7",
            "<",
            ">",
            "true",
            "é🚀",
            "Hello world",
            "\n<function=f>\n",
            "<function=get_time>",
        ),
    ]
)


@given(st.lists(TOKENS, max_size=14), st.booleans(), st.booleans(), st.integers(1, 7))
def test_any_split_gives_the_same_parts(tokens: list[str], thinking: bool, cut: bool, size: int) -> None:
    reply = "".join(tokens)
    whole = parse(reply, thinking=thinking, cut=cut)
    assert parse(reply, thinking=thinking, cut=cut, size=size) == whole
    reasoning, content, calls = whole
    assert not any(tag in content for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>"))
    assert reasoning == reasoning.strip()
    for call in calls:
        assert isinstance(json.loads(call.arguments), dict)


@given(st.lists(TOKENS, max_size=14), st.booleans(), st.booleans(), st.integers(1, 7))
def test_every_part_says_where_it_was_read(tokens: list[str], thinking: bool, cut: bool, size: int) -> None:
    parser = ReplyParser(in_thinking=thinking, tools=TOOLS)
    taken, parts = "", list[Part]()
    for piece, is_control in split_control("".join(tokens)):
        for i in range(0, len(piece), len(piece) if is_control else size):
            some = piece[i:] if is_control else piece[i : i + size]
            parts += parser.control(some) if is_control else parser.feed(some)
            taken += some if parser.n_taken > len(taken) else ""
            assert parser.n_taken == len(taken)
    read = 0
    for part in parts + parser.finish(cut=cut):
        if isinstance(part, ToolCall):
            continue
        begin, end = part.source
        assert read <= begin < end <= len(taken)
        assert part.text.removeprefix("\n\n" if len(part.text) > end - begin else "") == taken[begin:end]
        read = end


def test_white_space_in_an_unclosed_parameter_is_read_once() -> None:
    # Were each space tried as the end of the value, this would outlast the test run's limit.
    spaces = " " * 300_000
    tools = [{"type": "function", "function": {"name": "f"}}]
    (call,) = parse(f"<tool_call><function=f><parameter=x>a{spaces}b</tool_call>", tools=tools)[2]
    assert json.loads(call.arguments) == {"x": f"a{spaces}b"}
