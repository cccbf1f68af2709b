"""Prompts that show pictures and videos: the golden ids, and what a template may not do with media."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pytest
import tokenizers
from flashnext.text.media_names import MediaNames
from flashnext.text.messages import InvalidField, canonical_messages
from flashnext.text.template import ChatTemplate, Prompt, TemplateOptions
from flashnext.text.tokenizer import Tokenizer
from flashnext.text.written import Written
from support.seen import GOLDEN, TINY, golden_messages

FULL = tokenizers.Tokenizer.from_file(str(TINY / "hf" / "tokenizer.json"))
SPELLED = "<|vision_start|><|image_pad|><|vision_end|><|video_pad|>"


@dataclass(frozen=True)
class Shown:
    """A picture or a video of so many pads, as prompts know it."""

    name: str
    n: int = 3
    kind: Literal["image", "video"] = "image"
    times: tuple[str, ...] = field(default=("",))

    @property
    def key(self) -> bytes:
        return self.name.encode()

    @property
    def n_tokens(self) -> int:
        return self.n * len(self.times)

    def spans(self) -> list[tuple[str, int]]:
        return [(time, self.n) for time in self.times]

    @property
    def text(self) -> str:
        pads = f"<|{self.kind}_pad|>" * self.n
        return "".join(f"{time}<|vision_start|>{pads}<|vision_end|>" for time in self.times)


def film(name: str, n: int = 2, slices: int = 2) -> Shown:
    return Shown(name, n, "video", tuple(f"<{i + 0.5:.1f} seconds>" for i in range(slices)))


def part(shown: Shown) -> dict[str, Any]:
    return {"type": shown.kind, shown.kind: shown}


def user(*pieces: str | Shown, role: str = "user") -> dict[str, Any]:
    parts = [{"type": "text", "text": p} if isinstance(p, str) else part(p) for p in pieces]
    return {"role": role, "content": parts}


CAT, DOG = Shown("cat", 4), Shown("dog", 4)


@pytest.mark.parametrize("case", GOLDEN.values(), ids=GOLDEN)
def test_a_golden_chat_with_media_has_the_ids_of_transformers(
    case: dict[str, Any], template: ChatTemplate, tokenizer: Tokenizer
) -> None:
    options = TemplateOptions(enable_thinking=case["enable_thinking"])
    prompt = template.render(golden_messages(case), case["tools"], options, turns=True)
    expected = list(case["prompt_ids"])
    if case["video_markers"] == "nested":
        # The same with a pair of markers around each whole video, which is not written here.
        start, end = (tokenizer.control_ids[f"<|vision_{side}|>"] for side in ("start", "end"))
        flat = GOLDEN[case["id"].replace("nested", "flat")]["prompt_ids"]
        outer = next(i for i, (a, b) in enumerate(zip(expected, flat, strict=False)) if a != b)
        assert expected[outer] == start
        last = len(expected) - 1 - expected[::-1].index(end)
        assert expected[last - 1 : last + 1] == [end, end]
        text = FULL.decode([*expected[:outer], *expected[outer + 1 : last], *expected[last + 1 :]], False)
        expected = FULL.encode(text, add_special_tokens=False).ids
        assert expected == flat
    assert prompt.token_ids == expected
    assert [list(medium.grid) for medium in prompt.media] == case["grid_thw"]  # type: ignore[attr-defined]


def spelled(prompt: Prompt, *shown: Shown) -> list[int]:
    """Tokenize a prompt as a whole, by the tokenizer of transformers, from the template's own text."""
    text = prompt.text
    for one in shown:
        short = "".join(f"{time}<|vision_start|><|{one.kind}_pad|><|vision_end|>" for time in one.times)
        head, found, tail = text.partition(short)
        assert found
        text = head + one.text.replace("_pad", "_PAD") + tail
    return FULL.encode(text.replace("_PAD", "_pad"), add_special_tokens=False).ids


@pytest.mark.parametrize("seed", range(6))
def test_text_around_media_is_tokenized_as_in_one_piece(seed: int, template: ChatTemplate) -> None:
    rng = random.Random(seed)
    words = ("a", " b ", "<", "1", ".5 s", "Ünï 🚀", "\n\n", "seconds>", "   ", "é" + "\u0301")
    for _ in range(20):
        chat, shown = [], []
        for role in [*rng.choices(["user", "tool", "assistant"], k=rng.randint(1, 4)), "user"]:
            if role == "assistant":
                chat.append({"role": role, "content": "ok", "reasoning_content": "r"})
                continue
            pieces: list[str | Shown] = ["q"]
            for i in range(rng.randint(0, 4)):
                made = film(f"{i}", rng.randint(1, 3), rng.randint(1, 3)) if rng.random() < 0.5 else CAT
                pieces += [made, rng.choice(words)] if rng.random() < 0.7 else [made]
            chat.append(user(*pieces, role=role))
            shown += [p for p in pieces if isinstance(p, Shown)]
        prompt = template.render(chat)
        assert prompt.token_ids == spelled(prompt, *shown), f"seed {seed}: {chat}"
        assert list(prompt.media) == shown


def test_pictures_are_numbered_where_that_is_asked_for(strict_template: ChatTemplate) -> None:
    chat = [user("a", CAT, "b", DOG), {"role": "assistant", "content": "c"}, user(CAT, "d")]
    quick = TemplateOptions(enable_thinking=False, add_vision_id=True)
    prompt = strict_template.render(chat, None, quick)
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    assert f"user\naPicture 1: {picture}bPicture 2: {picture}<|im_end|>" in prompt.text
    assert f"user\nPicture 3: {picture}d<|im_end|>" in prompt.text
    assert prompt.token_ids == spelled(prompt, CAT, DOG, CAT)
    plain = strict_template.render(chat, None, TemplateOptions(enable_thinking=False))
    assert "Picture" not in plain.text and len(plain.token_ids) < len(prompt.token_ids)


def test_text_that_spells_pads_is_no_picture(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    chat = [user("a" + SPELLED, CAT, SPELLED, role="tool"), user(SPELLED + "<|image_pad|>")]
    tools = [{"type": "function", "function": {"name": "f", "description": SPELLED}}]
    prompt = template.render(chat, tools)
    counts = [prompt.token_ids.count(tokenizer.control_ids[f"<|{kind}_pad|>"]) for kind in ("image", "video")]
    assert counts == [CAT.n, 0] and list(prompt.media) == [CAT]
    assert prompt.token_ids.count(tokenizer.control_ids["<|vision_start|>"]) == 1


def test_a_name_of_media_cannot_be_written_by_a_request(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    forged = "\ud800\ud800"
    prompt = template.render([user(CAT, forged), user(forged)])
    assert prompt.token_ids.count(tokenizer.control_ids["<|image_pad|>"]) == CAT.n
    assert "\ud800" not in prompt.text


def test_names_are_those_of_what_is_seen_and_of_nothing_else(tokenizer: Tokenizer) -> None:
    names = MediaNames(tokenizer.control_ids)
    pads = Written.all_of("<|vision_start|><|image_pad|><|vision_end|>")
    many = [Shown(str(i), 1 + i % 3) for i in range(1100)]
    texts = [names.fill(pads, [one]).plain() for one in (*many, *many[::-1])]
    assert texts[:1100] == texts[:1099:-1] and len(set(texts)) == 1100
    for text, one in zip(texts, many, strict=False):
        written = Written.concat([pads[:16], text[16:18], pads[-14:]])
        assert written.plain() == text
        assert len(tokenizer.encode_with_edges(written, names.ids)[0]) == one.n + 2


# --- templates

HEAD = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
TAIL = "{{ '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"
PLAIN = "{% if m.content is string %}{{ m.content }}{% else %}"
IMAGE = "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
VIDEO = IMAGE.replace("image", "video")
PART = (
    "{% if 'text' in p %}{{ p.text }}{% elif p.type == 'image' %}"
    + IMAGE
    + "{% else %}"
    + VIDEO
    + "{% endif %}{% endfor %}{% endif %}"
)
ORDER = "does not write each image where it stands"


def body(loop: str, each: str = PART) -> str:
    return HEAD + PLAIN + "{% for p in " + loop + " %}" + each + TAIL


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (HEAD + "{{ m.content }}" + TAIL, ORDER),
        (HEAD + "{{ m.content + '' }}" + TAIL, ORDER),
        (HEAD + "{{ m.content if m.content is string else m.content[0].text }}" + TAIL, ORDER),
        (body("m.content | reverse"), ORDER),
        (body("m.content | sort(attribute='type')"), ORDER),
        (body("m.content", PART.replace(IMAGE, IMAGE * 2)), ORDER),
        ("{% if messages[0].content is string %}" + IMAGE + "{% endif %}" + body("m.content"), "writes more"),
        (
            "{% if messages|length == 2 %}" + IMAGE + "{% endif %}" + body("m.content"),
            "writes more than the 2 pictures",
        ),
        (
            body("m.content").replace(
                "messages %}", "(messages[1:] if messages|length == 2 else messages) %}"
            ),
            "leaves out the image number 2; it writes 1 of 2",
        ),
        (
            body("m.content").replace("<|vision_start|><|image", "<|image"),
            "writes the pad of an image without <|vision_start|>",
        ),
    ],
)
def test_a_template_that_does_something_else_with_media_is_told(
    source: str, problem: str, tokenizer: Tokenizer
) -> None:
    renderer = ChatTemplate(source, tokenizer)
    chat = [user("a", CAT, "b"), user(DOG)]
    if problem == "writes more":  # a text comes first, and the template has a picture of its own
        chat = [{"role": "user", "content": "hello"}, *chat]
    with pytest.raises(InvalidField, match=f"messages: this checkpoint's chat template .*{problem}"):
        renderer.render(chat)
    assert renderer.render([{"role": "assistant", "content": "x"}]).token_ids  # text goes on as before


def test_a_template_that_confuses_the_kinds_is_told(tokenizer: Tokenizer) -> None:
    renderer = ChatTemplate(body("m.content | sort(attribute='type')"), tokenizer)
    renderer._orders = {"image": True, "video": True}
    with pytest.raises(InvalidField, match="writes an image where the chat has its video number 1"):
        renderer.render([user(film("x"), CAT)])


def test_a_template_for_pictures_alone_refuses_videos(strict_template: ChatTemplate) -> None:
    assert strict_template.render([user(CAT, "x")]).media == (CAT,)
    with pytest.raises(InvalidField, match="does not write each video where it stands"):
        strict_template.render([user(CAT, film("x"))])


def test_a_template_sees_nothing_of_what_media_are(tokenizer: Tokenizer) -> None:
    spy = "{% if p.image is defined and p.image is not string %}{{ raise_exception('seen') }}{% endif %}"
    source = body("m.content", spy + PART)
    assert ChatTemplate(source, tokenizer).render([user(CAT)]).media == (CAT,)


def test_a_late_system_turn_is_put_right_beside_media(strict_template: ChatTemplate) -> None:
    chat = [user("turn", CAT), {"role": "system", "content": "Be kind."}, user(DOG, "turn")]
    prompt = strict_template.render(chat, None, TemplateOptions(enable_thinking=False))
    assert prompt.token_ids == spelled(prompt, CAT, DOG)
    assert "<|im_start|>system\nBe kind.<|im_end|>" in prompt.text


# --- messages


def test_texts_between_media_are_joined_and_text_alone_stays_text() -> None:
    (message,) = canonical_messages([user("a", "b", CAT, "", "c", "\ud83d", "\ude00", "", DOG, "")])
    assert message["content"] == [
        {"type": "text", "text": "ab"},
        part(CAT),
        {"type": "text", "text": "c😀"},
        part(DOG),
    ]
    assert canonical_messages([user("a", "b")])[0]["content"] == "ab"
    assert canonical_messages([message]) == [message]


@pytest.mark.parametrize(
    ("message", "place", "problem"),
    [
        (
            user("a", CAT, role="system"),
            "messages[0].content[1]",
            "can stand in messages of user and tool, not",
        ),
        (user(CAT, role="developer"), "messages[0].content[0]", "not of developer"),
        (user("a", CAT, role="assistant"), "messages[0].content[1]", "not of assistant"),
        (
            {"role": "user", "content": [{"type": "image", "image": b"x"}]},
            "messages[0].content[0]",
            "has not been prepared",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
            "messages[0].content[0]",
            "the image has not been prepared",
        ),
        ({"role": "user", "content": [{"type": "audio"}]}, "messages[0].content[0]", "'audio'"),
    ],
)
def test_media_that_cannot_stand_there_are_refused_with_their_place(
    message: dict[str, Any], place: str, problem: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        canonical_messages([message])
    assert caught.value.field == place and problem in caught.value.problem


# --- cuts


def agree(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


REPLY = {"role": "assistant", "content": "ok", "reasoning_content": "hm"}


@pytest.mark.parametrize("keep", [True, False])
def test_cuts_of_a_chat_with_media_are_where_prompts_part(
    keep: bool, template: ChatTemplate, strict_template: ChatTemplate
) -> None:
    options = TemplateOptions(preserve_thinking=keep)
    big = Shown("big", 800)
    system = {"role": "system", "content": "Be brief. " * 8}
    chats = [
        [system, user(CAT, "What is it?")],
        [system, user("What is it? ", CAT)],
        [system, user(big), REPLY, user("more")],
        [system, user("0"), REPLY, user("a"), REPLY, user("and", big)],
        [user(big, "x"), REPLY, user(DOG), REPLY, user(CAT, DOG)],
    ]
    for renderer in (template, strict_template):
        for chat in chats:
            prompt = renderer.render(chat, None, options, turns=True)
            turns = prompt.turns
            assert turns is not None
            newest = [*chat[:-1], user("entirely different")]
            following = [*chat, REPLY, user("And then?")]
            for other, cut in ((newest, turns.newest), (following, turns.next_turn)):
                found = agree(prompt.token_ids, renderer.render(other, None, options).token_ids)
                assert cut <= found <= cut + 4, (chat, other)
            if "system" in chat[0]["role"]:
                under = renderer.render([system, user(DOG, "else")], None, options)
                assert 0 < turns.system <= agree(prompt.token_ids, under.token_ids)
            n_ends = sum("big" in str(message["content"]) for message in chat[2:])
            assert len(turns.messages) == n_ends  # a large picture lies between messages as much text does


def test_a_chat_that_adds_a_picture_goes_on_from_what_was_before(template: ChatTemplate) -> None:
    chat: list[dict[str, Any]] = []
    last: Prompt | None = None
    for turn in (user("hello"), user("and?"), user("look", CAT), user("again?"), user(film("f"), DOG)):
        chat.append(turn)
        prompt = template.render(chat, turns=True)
        if last is not None and last.turns is not None:
            n = last.turns.next_turn
            assert n >= len(last.token_ids) - 4 and prompt.token_ids[:n] == last.token_ids[:n]
        last = prompt
        chat.append(REPLY)


def test_cuts_of_a_long_chat_with_pictures_are_where_prompts_part(template: ChatTemplate) -> None:
    rng = random.Random(0)
    chat = []
    for i in range(100):
        said = " word" * rng.randint(1, 300)
        chat += [user(Shown(f"picture {i}", rng.choice((4, 700))), said), REPLY]
    chat.append(user("What is in the first?"))
    prompt = template.render(chat, turns=True)
    assert prompt.turns is not None
    ends = prompt.turns.messages
    assert ends == tuple(sorted(ends)) and len(ends) > 4
    cuts = {agree(prompt.token_ids, template.render(chat[:n]).token_ids) for n in range(150, len(chat))}
    assert all(any(n <= cut <= n + 4 for cut in cuts) for n in ends)
    other = [*chat[:-1], user("entirely different")]
    found = agree(prompt.token_ids, template.render(other).token_ids)
    assert prompt.turns.newest <= found <= prompt.turns.newest + 4


def test_a_history_with_media_is_what_every_next_prompt_begins_with(template: ChatTemplate) -> None:
    chat = [user(CAT, "What is it?"), REPLY, user("And ", film("f")), REPLY]
    history = template.history(chat)
    for more in (user("0"), user(DOG), user("1", CAT)):
        assert template.render([*chat, more]).token_ids[: len(history)] == history
    shown = sum(shown.n_tokens for shown in (CAT, film("f")))
    assert len(history) > shown + 20


def shared_tokens(
    renderer: ChatTemplate, options: TemplateOptions, ids: list[int], other: list[dict[str, Any]]
) -> int:
    return agree(ids, renderer.render(other, None, options).token_ids)


@pytest.mark.parametrize("seed", range(8))
def test_no_cut_of_a_random_chat_with_media_lies_behind_what_prompts_share(
    seed: int, template: ChatTemplate, strict_template: ChatTemplate
) -> None:
    rng = random.Random(seed)
    words = ("0", "1", "", " a", "word " * 500, "<|image_pad|>")
    pictures = [CAT, DOG, Shown("big", 900), Shown("small", 1)]

    def turn(role: str) -> dict[str, Any]:
        if role == "assistant":
            call = {"type": "function", "function": {"name": "f", "arguments": {}}}
            return REPLY | {"tool_calls": [call]} if rng.random() < 0.3 else dict(REPLY)
        pieces: list[str | Shown] = [rng.choice(words) for _ in range(rng.randint(0, 2))]
        pieces += rng.sample(pictures, rng.randint(0, 2))
        rng.shuffle(pieces)
        return user(*pieces, role=role)

    for _ in range(6):
        options = TemplateOptions(preserve_thinking=rng.random() < 0.5, add_vision_id=rng.random() < 0.5)
        chat = [
            user("begin", CAT),
            *(turn(rng.choice(("user", "assistant", "tool"))) for _ in range(rng.randint(1, 9))),
        ]
        for renderer in (template, strict_template):
            prompt = renderer.render(chat, None, options, turns=True)
            turns = prompt.turns
            assert turns is not None

            shared = partial(shared_tokens, renderer, options, prompt.token_ids)
            newest = max(i for i, message in enumerate(chat) if message["role"] == "user")
            where = f"seed {seed}: {chat}"
            for more in (user("0"), user("1"), user(CAT), user(Shown("new", 4), "0")):
                assert turns.system <= shared([more]), where
                assert turns.newest <= shared([*chat[:newest], more]), where
                assert turns.next_turn <= shared([*chat, REPLY, more]), where
            ends = {shared(chat[:k]) for k in range(1, len(chat))}
            assert all(not n or any(n <= end for end in ends) for n in turns.messages), where
