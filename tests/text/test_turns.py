"""Where a chat may be cut: prompts that differ only behind a cut agree, token for token, up to it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from flashnext.text import turns as turns_module
from flashnext.text.messages import InvalidField
from flashnext.text.template import ChatTemplate, TemplateOptions
from flashnext.text.tokenizer import Tokenizer
from flashnext.text.turns import APART_CHARS, MANY_MESSAGES, MOST_ENDS, Messages, find_turns, shared_chars
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


# --- chats of many messages


def long_chat(rng: random.Random, shape: str) -> list[dict[str, Any]]:
    """Questions and answers, calls and results behind one question, or each behind the other."""
    chat: list[dict[str, Any]] = [SYSTEM] if rng.random() < 0.7 else []
    said = "word " * rng.choice([1, 60])

    def turns(n: int) -> list[dict[str, Any]]:
        return [
            turn for i in range(n) for turn in (user(f"{i}? {said}"), assistant(f"{i}. {said}", f"hm {i}"))
        ]

    def calls(n: int) -> list[dict[str, Any]]:
        asked = [assistant("", f"look {i}", tool_calls=[CALL]) for i in range(n)]
        return [turn for i in range(n) for turn in (asked[i], {"role": "tool", "content": f"{i} {said}"})]

    n = rng.randrange(MANY_MESSAGES // 2 + 1, MANY_MESSAGES)
    if shape == "turns":
        return [*chat, *turns(n), user("So?")]
    if shape == "calls":
        return [*chat, user("Go on."), *calls(n)]
    if shape == "calls behind turns":
        return [*chat, *turns(n), user("Go on."), *calls(rng.randrange(1, n))]
    return [*chat, user("Go on."), *calls(n), assistant("Done."), *turns(rng.randrange(1, 5)), user("So?")]


@pytest.mark.parametrize("options", OPTIONS, ids=["kept", "dropped", "quick", "quick, dropped"])
@pytest.mark.parametrize("shape", ["turns", "calls", "calls behind turns", "turns behind calls"])
def test_the_newest_part_of_a_long_chat_says_what_the_whole_says(
    either: ChatTemplate, options: TemplateOptions, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        print("seed", seed)
        chat = long_chat(random.Random(seed), shape)
        prompt = either.render(chat, TOOLS, options, turns=True)
        found = prompt.turns
        with monkeypatch.context() as patch:
            patch.setattr(turns_module, "MANY_MESSAGES", len(chat))
            patch.setattr(turns_module, "MOST_ENDS", len(chat))
            whole = either.render(chat, TOOLS, options, turns=True).turns
        assert found is not None and whole is not None
        assert (found.system, found.next_turn, found.goes_on) == (
            whole.system,
            whole.next_turn,
            whole.goes_on,
        )
        once = shape == "calls behind turns" and options.preserve_thinking is False
        assert found.newest == whole.newest or (once and found.newest == 0)
        assert set(found.messages) <= {0, *whole.messages}
        # What parts from the whole behind the first few of the newest messages is found by these alone.
        n_early = len(chat) - turns_module._NEWEST_MESSAGES + turns_module._EARLY_MESSAGES
        early = agree(prompt.token_ids, either.render(chat[:n_early], TOOLS, options).token_ids)
        due = {n for n in whole.messages[-MOST_ENDS:] if n > early}
        assert due <= set(found.messages)
        rewritten = shape == "turns behind calls" and options.preserve_thinking is False
        assert due or rewritten or seed > 0, "this one says enough for a cut"


@pytest.mark.parametrize("shape", ["turns", "calls", "calls behind turns", "turns behind calls"])
@pytest.mark.parametrize("n_times", [1, 8])
def test_finding_the_cuts_of_a_long_chat_renders_it_once_more_at_most(
    strict_template: ChatTemplate, shape: str, n_times: int
) -> None:
    """And as many messages as twelve renderings of a part take."""
    for options in OPTIONS:
        rng = random.Random(n_times)
        chat = [turn for _ in range(n_times) for turn in long_chat(rng, shape) if turn is not SYSTEM]
        n_messages = 0

        def render(messages: Messages, options: TemplateOptions = options) -> Written:
            nonlocal n_messages
            n_messages += len(messages)
            return strict_template._render(messages, None, options)

        text = render(chat)
        n_messages = 0
        turns = find_turns(render, chat, text, strict_template._tokenizer.encode_with_edges(text)[1])
        assert turns.next_turn > 0
        assert n_messages <= len(chat) + 2 + (MOST_ENDS + 4) * MANY_MESSAGES


def test_a_template_that_counts_messages_is_asked_about_the_whole_chat() -> None:
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + loop.index|string + m.content + "
        "'<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"
    )
    template = ChatTemplate(source, Tokenizer.from_folder("tests/tiny/hf"))
    chat = long_chat(random.Random(0), "turns")
    prompt = template.render(chat, turns=True)
    assert prompt.turns is not None
    following = template.render([*chat, assistant("x"), user("y")]).token_ids
    agreed = agree(prompt.token_ids, following)
    assert prompt.turns.next_turn <= agreed <= prompt.turns.next_turn + 4


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
