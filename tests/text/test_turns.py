"""Where a chat may be cut: prompts that differ only behind a cut agree, token for token, up to it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from flashnext.text.messages import InvalidField
from flashnext.text.template import ChatTemplate, TemplateOptions
from flashnext.text.tokenizer import Tokenizer
from flashnext.text.turns import APART_CHARS, MOST_ENDS, shared_chars
from flashnext.text.written import Written

SYSTEM = {"role": "system", "content": "Be brief. " * 8}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": "1"}}}
WORDS = ("Hello", " 0 zero", "1", "\n\nlines\n", "<|im_end|>", "</think> so", "", "  ", "Ünï 🚀", "tail\n")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, reasoning: str = "hm", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": reasoning, **more}


LONG = "a word " * (APART_CHARS // 6)
CHAT = [SYSTEM, user("Hello" + LONG), assistant("Hi" + LONG), user("What is 1+1?" + LONG)]
OPTIONS = [
    TemplateOptions(),
    TemplateOptions(preserve_thinking=False),
    TemplateOptions(enable_thinking=False),
    TemplateOptions(enable_thinking=False, preserve_thinking=False),
]


@pytest.fixture(params=["checkpoint", "strict"])
def either(
    request: pytest.FixtureRequest, template: ChatTemplate, strict_template: ChatTemplate
) -> ChatTemplate:
    return {"checkpoint": template, "strict": strict_template}[request.param]


def reply(options: TemplateOptions, text: str, reasoning: str) -> dict[str, Any]:
    """A reply as a model gives it under these options."""
    return assistant(text, "" if options.enable_thinking is False else reasoning)


def agree(a: list[int], b: list[int]) -> int:
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return n


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("options", OPTIONS, ids=["kept", "dropped", "quick", "quick, dropped"])
def test_cuts_are_where_prompts_part(either: ChatTemplate, options: TemplateOptions, tools: Any) -> None:
    def ids(messages: list[dict[str, Any]]) -> list[int]:
        return either.render(messages, tools, options).token_ids

    prompt = either.render(CHAT, tools, options, turns=True)
    turns = prompt.turns
    assert turns is not None and prompt.token_ids == ids(CHAT)
    near = 4  # from the end of a control token to where texts part: a role and a newline
    for other, cut in (
        ([SYSTEM, user("Entirely different")], turns.system),
        ([*CHAT[:3], user("Another question")], turns.newest),
        ([*CHAT, reply(options, "2", "easy"), user("And 2+2?")], turns.next_turn),
    ):
        found = agree(prompt.token_ids, ids(other))
        assert cut <= found <= cut + near
    later = either.render([*CHAT, reply(options, "2", "easy"), user("And 2+2?")], tools, options)
    assert turns.goes_on == later.text.startswith(prompt.text)
    for k, cut in zip((2, 3), turns.messages, strict=True):
        assert cut <= agree(prompt.token_ids, ids(CHAT[:k])) <= cut + near
    assert 0 < turns.system < turns.newest <= turns.next_turn < len(prompt.token_ids)


@pytest.mark.parametrize("options", OPTIONS, ids=["kept", "dropped", "quick", "quick, dropped"])
def test_a_history_is_what_every_next_prompt_begins_with(
    either: ChatTemplate, options: TemplateOptions
) -> None:
    chat = [*CHAT, reply(options, "2", "easy")]
    history = either.history(chat, None, options)
    for text in ("And 2+2?", "0", "1", "\n\nx", "<|im_start|>"):
        ids = either.render([*chat, user(text)], None, options).token_ids
        assert ids[: len(history)] == history
    assert len(history) >= len(ids) - 24


def test_a_history_behind_a_call_goes_on_with_its_result(either: ChatTemplate) -> None:
    dropped = TemplateOptions(preserve_thinking=False)
    chat = [*CHAT, assistant("", "look it up", tool_calls=[CALL])]
    history = either.history(chat, TOOLS, dropped)
    ids = either.render([*chat, {"role": "tool", "content": "42"}], TOOLS, dropped).token_ids
    assert ids[: len(history)] == history
    assert len(history) > len(either.render(CHAT, TOOLS, dropped).token_ids)  # thoughts of the call stay


def test_a_chat_without_a_system_prompt_or_a_question_has_cuts_too(template: ChatTemplate) -> None:
    for chat in ([user("x")], [SYSTEM], [assistant("x")], [SYSTEM, assistant("x"), user("y")]):
        turns = template.render(chat, None, None, turns=True).turns
        assert turns is not None and turns.next_turn > 0


def test_ends_are_looked_for_in_the_newest_messages(template: ChatTemplate) -> None:
    def ends(text: str, n: int) -> list[int]:
        chat = [user(text) if i % 2 == 0 else assistant(text) for i in range(n)]
        turns = template.render(chat, None, None, turns=True).turns
        assert turns is not None
        return list(turns.messages)

    assert ends("x", 41) == []  # all too close
    assert len(ends(LONG, 41)) == MOST_ENDS
    assert ends(LONG, 41) == sorted(set(ends(LONG, 41)))
    third = ends("x" * (APART_CHARS // 2), 5)
    assert len(third) == 2


def test_what_a_template_refuses_of_a_part_is_no_cut_and_no_error() -> None:
    source = (
        "{% for m in messages %}{% if m.content == '0' %}{{ raise_exception('zero') }}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\\n' }}"
    )
    tokenizer = Tokenizer.from_folder("tests/tiny/hf")
    template = ChatTemplate(source, tokenizer)
    with pytest.raises(InvalidField):
        template.render([user("0")])
    turns = template.render(CHAT, None, None, turns=True).turns
    assert turns is not None
    assert turns.system == turns.newest == turns.next_turn == 0 < turns.messages[0]


@pytest.mark.parametrize("seed", range(30))
def test_cuts_hold_for_any_chat(either: ChatTemplate, tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    options = rng.choice(OPTIONS)

    def text() -> str:
        return "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 5)))

    chat = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    for _ in range(rng.randrange(1, 4)):
        chat += [user(text() + "?"), assistant(text(), text())]
    chat.append(user(text() + "?"))
    prompt = either.render(chat, None, options, turns=True)
    turns = prompt.turns
    assert turns is not None
    following = [*chat, reply(options, text(), text()), user(text() + "!")]
    ids = either.render(following, None, options).token_ids
    assert ids[: turns.next_turn] == prompt.token_ids[: turns.next_turn]
    history = either.history(following[:-1], None, options)
    assert ids[: len(history)] == history
    for n in (turns.system, turns.newest, turns.next_turn, *turns.messages):
        assert n == 0 or tokenizer.control_spelling(prompt.token_ids[n - 1]) is not None


def test_edges_are_the_ends_of_control_tokens(tokenizer: Tokenizer) -> None:
    text = Written.concat(
        [Written.all_of("<|im_start|>user\n"), "a<|im_end|>", Written.all_of("<|im_end|>\n")]
    )
    ids, edges = tokenizer.encode_with_edges(text)
    assert ids == tokenizer.encode_written(text)
    assert [tokenizer.control_spelling(ids[edge.n_tokens - 1]) for edge in edges] == [
        "<|im_start|>",
        "<|im_end|>",
    ]
    assert [text.plain()[: edge.n_chars][-10:] for edge in edges] == ["|im_start|>"[-10:], "<|im_end|>"]


def test_shared_characters() -> None:
    for a, b, n in (("", "", 0), ("a", "b", 0), ("ab", "ab", 2), ("ab", "abc", 2), ("xab", "xac", 2)):
        assert shared_chars(a, b) == shared_chars(b, a) == n
