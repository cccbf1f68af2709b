"""Pictures and videos over HTTP: golden replies by every route, places of what is wrong, and no files."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from flashnext.media import ImagePart, Limits
from flashnext.server.fields import Unknown
from flashnext.server.responses_items import chat_of
from flashnext.server.shown import with_files, without_data
from PIL import Image
from support.broken_media import broken_images
from support.media_files import encoded, moving, sound_file, video_file
from support.seen import GOLDEN, TINY
from support.serving import ServerProcess, server_process

CHAT, RESPONSES, MESSAGES, TOKENIZE = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"
COUNTS = {RESPONSES: "/v1/responses/input_tokens", MESSAGES: "/v1/messages/count_tokens"}
IMAGES = [name for name in GOLDEN if not name.startswith("video")]
needs_av = pytest.mark.skipif(importlib.util.find_spec("av") is None, reason="needs the extra `video` (av)")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--dtype", "float32") as server:
        yield server


def post(server: ServerProcess, route: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url.removesuffix("/v1") + route, json=body, timeout=120)


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def shown(route: str, url: str) -> dict[str, Any]:
    """A picture in the form of a route."""
    if route == RESPONSES:
        return {"type": "input_image", "image_url": url}
    if route == MESSAGES and url.startswith("data:"):
        data = url.partition(",")[2]  # of a type that it is not
        return {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": data}}
    if route == MESSAGES:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image_url", "image_url": {"url": url}}


def body(route: str, parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A question of the user that is made of parts."""
    own: dict[str, Any] = {"messages": [{"role": "user", "content": parts}]}
    if route == RESPONSES:
        own = {"input": own["messages"]}
    elif route == MESSAGES:
        own["max_tokens"] = 20
    return {"model": "flashnext", **own, **more}


def text(route: str, said: str) -> dict[str, Any]:
    return {"type": "input_text" if route == RESPONSES else "text", "text": said}


def golden(route: str, case: dict[str, Any]) -> dict[str, Any]:
    """The request of a golden case in the form of a route."""
    turns: list[dict[str, Any]] = []
    out: dict[str, Any] = {
        "model": "flashnext", "temperature": 0, "return_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": case["enable_thinking"]},
    }  # fmt: skip
    for message in case["messages"]:
        content = message["content"]
        if message["role"] == "system" and route != CHAT:
            out["instructions" if route == RESPONSES else "system"] = content
            continue
        if isinstance(content, list):
            content = [
                shown(route, data_url((TINY / part["image"]).read_bytes()))
                if part["type"] == "image" else text(route, part["text"])
                for part in content
            ]  # fmt: skip
        thoughts = message.get("reasoning_content")
        turn = {"role": message["role"], "content": content}
        if thoughts and route == CHAT:
            turn["reasoning_content"] = thoughts
        elif thoughts and route == RESPONSES:
            turns.append({"type": "reasoning", "content": [{"type": "reasoning_text", "text": thoughts}]})
        elif thoughts:
            thinking = {"type": "thinking", "thinking": thoughts, "signature": "x"}
            turn["content"] = [thinking, text(route, content)]
        turns.append(turn)
    if route == MESSAGES:
        out |= {"max_tokens": 60, "thinking": {"type": "enabled", "budget_tokens": 1000}}
    return {**out, "input" if route == RESPONSES else "messages": turns}


@pytest.mark.parametrize("route", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("name", IMAGES)
def test_a_golden_picture_has_its_golden_reply_and_count_by_every_route(
    name: str, route: str, server: ServerProcess
) -> None:
    case = GOLDEN[name]
    asked = golden(route, case)
    reply = post(server, route, asked)
    assert reply.status_code == 200, reply.text
    told = reply.json()
    ids = told["choices"][0]["token_ids"] if route == CHAT else told["token_ids"]
    assert (told["prompt_token_ids"], ids) == (case["prompt_ids"], case["output_ids"])
    counted = {key: value for key, value in asked.items() if key not in ("temperature", "return_token_ids")}
    if route == CHAT:
        assert post(server, TOKENIZE, counted).json()["tokens"] == case["prompt_ids"]
    else:
        counted.pop("max_tokens", None)
        count = post(server, COUNTS[route], counted).json()
        assert count["input_tokens"] == len(case["prompt_ids"])


def picture(colour: str = "red", size: tuple[int, int] = (64, 64)) -> bytes:
    return encoded(Image.new("RGB", size, colour), "PNG")


def prompt_of(server: ServerProcess, parts: list[dict[str, Any]], **more: Any) -> int:
    reply = post(server, TOKENIZE, {"messages": [{"role": "user", "content": parts}], **more})
    assert reply.status_code == 200, reply.text
    return int(reply.json()["count"])


def test_results_of_calls_show_pictures_by_every_route(server: ServerProcess) -> None:
    url = data_url((TINY / "media" / "image-5-0.png").read_bytes())
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    seen = {
        CHAT: [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": [text(CHAT, "Here: "), shown(CHAT, url)]},
        ],
        RESPONSES: [
            {"role": "user", "content": "Look."},
            {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1",
             "output": [text(RESPONSES, "Here: "), shown(RESPONSES, url)]},
        ],
        MESSAGES: [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1",
                 "content": [text(MESSAGES, "Here: "), shown(MESSAGES, url)]}]},
        ],
    }  # fmt: skip
    options = {"temperature": 0, "return_token_ids": True, "chat_template_kwargs": {"enable_thinking": False}}
    replies = [
        post(server, route, {
            "model": "flashnext", "input" if route == RESPONSES else "messages": turns,
            "max_output_tokens" if route == RESPONSES else "max_tokens": 20, **options,
        }).json()
        for route, turns in seen.items()
    ]  # fmt: skip
    prompts = [reply["prompt_token_ids"] for reply in replies]
    assert prompts[0] == prompts[1] == prompts[2]
    assert len({reply["choices"][0]["flashnext"]["token_sha"] if "choices" in reply
                else reply["flashnext"]["token_sha"] for reply in replies}) == 1  # fmt: skip


def test_a_failed_call_may_show_a_picture_too(server: ServerProcess) -> None:
    def count(**more: Any) -> int:
        blocks = [text(MESSAGES, "no"), shown(MESSAGES, data_url(picture()))]
        turns = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": blocks, **more}]},
        ]  # fmt: skip
        reply = post(server, COUNTS[MESSAGES], {"model": "flashnext", "messages": turns})
        assert reply.status_code == 200, reply.text
        return int(reply.json()["input_tokens"])

    assert count(is_error=True) > count()


def test_detail_of_responses_is_that_of_chats() -> None:
    for detail, read in (("low", "low"), ("high", "high"), ("original", "high"), (None, None), (5, 5)):
        parts = [{"type": "input_image", "image_url": "data:x", "detail": detail}]
        (message,) = chat_of([{"role": "user", "content": parts}], Unknown(strict=True))
        image_url = {"url": "data:x", "detail": read}
        assert message["content"] == [{"type": "image_url", "image_url": image_url}]


# --- what no request may bring

PATHS = [
    "/etc/passwd",
    "file:///etc/passwd",
    "../secret.png",
    "C:\\a.png",
    "~/a.png",
    "\\\\host\\share\\a.png",
]


def refused(server: ServerProcess, route: str, body: dict[str, Any]) -> tuple[str, str]:
    """The place of what is wrong, and what is wrong with it."""
    reply = post(server, route, body)
    assert reply.status_code == 400, reply.text
    message = reply.json()["error"]["message"]
    place, _, problem = message.partition(": ")
    assert "\n" not in message and len(message) < 600
    return place, problem


@pytest.mark.parametrize("path", PATHS)
def test_no_file_of_the_machine_is_opened_in_any_form(
    path: str, server: ServerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(picture())
    for one in (path, str(file), file.as_uri()):
        for route, at in ((CHAT, "messages[0].content[0].image_url.url"),
                          (RESPONSES, "input[0].content[0].image_url"),
                          (MESSAGES, "messages[0].content[0].source.url")):  # fmt: skip
            place, problem = refused(server, route, body(route, [shown(route, one)]))
            assert place == at and "expected a data: URL" in problem and "--media-urls" in problem


FORMS: list[Any] = [
    {"type": "image", "image": "PATH"},
    {"type": "image", "image": {"path": "PATH"}},
    {"type": "image", "path": "PATH"},
    {"type": "image", "source": {"type": "base64", "data": "PATH"}},
    {"type": "video", "video": "PATH"},
    {"type": "video", "video": ["PATH"]},
    {"type": "image_url", "image_url": "PATH"},
    {"type": "image_url", "image_url": {"path": "PATH"}},
    {"type": "image_url", "image_url": {"url": ["PATH"]}},
    {"type": "image_url", "image_url": {"url": {"path": "PATH"}}},
    {"type": "video_url", "video_url": {"url": "PATH"}},
    {"type": "video_url", "video_url": "PATH"},
    {"type": "input_image", "image_url": "PATH"},
    {"type": "file", "file": {"file_data": "PATH"}},
    {"type": "image_path", "image_path": "PATH"},
    {"type": "image_embeds", "image_embeds": "PATH"},
]


@pytest.mark.parametrize("form", FORMS, ids=json.dumps)
@pytest.mark.parametrize("route", [CHAT, RESPONSES, MESSAGES, TOKENIZE])
def test_a_path_in_any_form_is_refused_with_its_place(
    route: str, form: Any, server: ServerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(picture())
    part = json.loads(json.dumps(form).replace("PATH", str(file)))
    asked = body(route, [part])
    if route == TOKENIZE:
        del asked["model"]
    place, _ = refused(server, route, asked)
    assert place.startswith(("messages[0].content[0]", "input[0].content[0]"))


def test_pictures_stand_in_no_other_messages(server: ServerProcess) -> None:
    url = data_url(picture())
    for route, at, turns in (
        (CHAT, "messages[0].content[0]", {"messages": [
            {"role": "system", "content": [shown(CHAT, url)]}, {"role": "user", "content": "x"}]}),
        (CHAT, "messages[1].content[0]", {"messages": [
            {"role": "user", "content": "x"}, {"role": "assistant", "content": [shown(CHAT, url)]}]}),
        (RESPONSES, "input[0].content[0].type", {"input": [
            {"role": "developer", "content": [shown(RESPONSES, url)]}]}),
        (MESSAGES, "system[0].type", {"system": [shown(MESSAGES, url)], "max_tokens": 5, "messages": [
            {"role": "user", "content": "x"}]}),
    ):  # fmt: skip
        place, problem = refused(server, route, {"model": "flashnext", **turns})
        assert place == at and "stand" in problem


def test_places_are_those_of_the_request_behind_systems_results_and_kept_items(server: ServerProcess) -> None:
    good, bad = data_url(picture()), "data:image/png;base64,iVBORw0KGgo="
    results = [
        {"type": "tool_result", "tool_use_id": name, "content": [shown(MESSAGES, url)]}
        for name, url in (("2", good), ("1", bad))
    ]
    calls: list[Any] = [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in ("1", "2")]
    turns = [
        {"role": "user", "content": [shown(MESSAGES, good), text(MESSAGES, "a")]},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    asked = {"model": "flashnext", "max_tokens": 5, "system": "x", "messages": turns}
    place, problem = refused(server, MESSAGES, asked)
    assert place == "messages[2].content[1].content[0]" and "PNG" in problem
    kept = post(server, RESPONSES, body(RESPONSES, [text(RESPONSES, "Hi")], max_output_tokens=2)).json()
    asked = body(
        RESPONSES, [text(RESPONSES, "a"), shown(RESPONSES, bad)], instructions="x",
        previous_response_id=kept["id"],
    )  # fmt: skip
    assert refused(server, RESPONSES, asked)[0] == "input[0].content[1]"
    asked = body(RESPONSES, [{**shown(RESPONSES, good), "detail": "huge"}], instructions="x")
    assert refused(server, RESPONSES, asked)[0] == "input[0].content[0].detail"
    asked = body(CHAT, [{"type": "image_url", "image_url": {"url": good, "detail": "huge"}}])
    assert refused(server, CHAT, asked)[0] == "messages[0].content[0].image_url.detail"


def test_a_kept_response_goes_on_with_its_picture(server: ServerProcess) -> None:
    parts = [shown(RESPONSES, data_url(picture())), text(RESPONSES, "What is it?")]
    first = post(server, RESPONSES, body(RESPONSES, parts, max_output_tokens=3)).json()
    more = body(RESPONSES, [text(RESPONSES, "And now?")], previous_response_id=first["id"])
    reply = post(server, RESPONSES, {**more, "max_output_tokens": 3, "return_token_ids": True}).json()
    pads = [
        token for token in reply["prompt_token_ids"]
        if first["usage"]["input_tokens"] and reply["prompt_token_ids"].count(token) > 3
    ]  # fmt: skip
    assert pads  # the picture's rows are there again
    listed = httpx.get(f"{server.url}/responses/{first['id']}/input_items", timeout=60).json()["data"]
    assert listed[0]["content"] == parts


# --- the rows of what goes wrong elsewhere


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png;base64,@@@", "'@' at character 0"),
        ("data:image/png;base64" + "A" * 40, "comma"),
        ("data:image/png,%89PNG", "not percent-encoded"),
        ("data:", "expected a URL of the form"),
        ("data:image/png;base64,", "no bytes"),
    ],
)
@pytest.mark.parametrize("route", [CHAT, RESPONSES])
def test_a_broken_data_url_is_refused(route: str, url: str, words: str, server: ServerProcess) -> None:
    assert words in refused(server, route, body(route, [shown(route, url)]))[1]


def test_data_without_padding_and_of_a_wrong_type_is_served(server: ServerProcess) -> None:
    data = picture()
    whole = prompt_of(server, [shown(CHAT, data_url(data))])
    for url in (data_url(data).rstrip("="), data_url(data, "image/jpeg"), data_url(data, "text/plain")):
        assert prompt_of(server, [shown(CHAT, url)]) == whole


SERVED: dict[str, Callable[[], bytes]] = {
    "1 x 1": lambda: encoded(Image.new("RGB", (1, 1)), "PNG"),
    "31 x 639": lambda: encoded(Image.new("RGB", (31, 639)), "PNG"),
    "grey JPEG": lambda: encoded(Image.new("L", (50, 40), 90), "JPEG"),
    "CMYK JPEG": lambda: encoded(Image.new("CMYK", (50, 40)), "JPEG"),
    "palette": lambda: encoded(Image.new("P", (50, 40)), "PNG", transparency=0),
    "GIF": lambda: encoded(Image.new("RGB", (50, 40)), "GIF"),
    "animated GIF": lambda: encoded(
        Image.new("RGB", (50, 40)), "GIF", save_all=True, append_images=[Image.new("RGB", (50, 40), "red")]
    ),
    "animated WebP": lambda: encoded(
        Image.new("RGB", (50, 40)), "WEBP", save_all=True, append_images=[Image.new("RGB", (50, 40), "red")]
    ),
    "APNG": lambda: encoded(
        Image.new("RGB", (50, 40)), "PNG", save_all=True, append_images=[Image.new("RGB", (50, 40), "red")]
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_an_odd_picture_is_served_and_so_is_the_turn_after_it(name: str, server: ServerProcess) -> None:
    parts = [shown(CHAT, data_url(SERVED[name]())), text(CHAT, "What is it?")]
    turns = [{"role": "user", "content": parts}]
    for _ in range(2):
        reply = post(server, CHAT, {"model": "flashnext", "messages": turns, "max_tokens": 4})
        assert reply.status_code == 200, reply.text
        turns += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": "And now?"}]


def test_one_broken_picture_of_two_leaves_no_reply(server: ServerProcess) -> None:
    broken = data_url(picture()[:60])
    for stream in (False, True):
        parts = [shown(CHAT, data_url(picture())), shown(CHAT, broken), text(CHAT, "?")]
        place, problem = refused(server, CHAT, body(CHAT, parts, stream=stream))
        assert place == "messages[0].content[1]" and "PNG" in problem


def vision_media(server: ServerProcess) -> int:
    told = httpx.get(server.url.removesuffix("/v1") + "/metrics", timeout=60).text
    (row,) = [row for row in told.splitlines() if row.startswith("flashnext_vision_media_total ")]
    return int(float(row.split()[1]))


def test_the_tower_sees_a_picture_once_over_a_chat_and_the_reply_is_about_the_newest() -> None:
    star, triangle = ((TINY / "media" / f"image-{i}-0.png").read_bytes() for i in (5, 4))
    with server_process("--dtype", "float32", "--prefix-cache", "0.05") as server:
        turns: list[dict[str, Any]] = [
            {"role": "user", "content": [shown(CHAT, data_url(star)), text(CHAT, "what shape is this")]}
        ]
        said = []
        for turn in range(6):
            reply = post(server, CHAT, {
                "model": "flashnext", "temperature": 0, "messages": turns, "max_tokens": 20,
                "chat_template_kwargs": {"enable_thinking": False},
            }).json()  # fmt: skip
            said.append(reply["choices"][0]["message"]["content"])
            turns.append({"role": "assistant", "content": said[-1]})
            parts = [shown(CHAT, data_url(triangle)), text(CHAT, "what shape is this")]
            turns.append({"role": "user", "content": parts if turn == 2 else "What is 3 + 4?"})
        assert "star" in said[0] and "triangle" in said[3]
        assert vision_media(server) == 2


# --- broken files


@pytest.mark.timeout(300)
def test_broken_files_get_a_sentence_each_and_leave_the_server_as_it_was(server: ServerProcess) -> None:
    cases = {name: case for name, case in broken_images().items() if case.limits == Limits()}
    files = {name: case.part.data for name, case in cases.items() if isinstance(case.part, ImagePart)}
    assert len(files) >= 40

    def most_bytes() -> int:
        status = Path(f"/proc/{server.process.pid}/status")
        if not status.exists():
            pytest.skip("needs /proc")
        (row,) = [row for row in status.read_text().splitlines() if row.startswith("VmHWM")]
        return int(row.split()[1]) * 1024

    assert post(server, CHAT, body(CHAT, [shown(CHAT, data_url(picture()))], max_tokens=2)).status_code == 200
    before = most_bytes()
    for i, (name, data) in enumerate(files.items()):
        route = (CHAT, RESPONSES, MESSAGES)[i % 3]
        place, problem = refused(server, route, body(route, [shown(route, data_url(data))]))
        assert cases[name].words in problem, name
        assert place.startswith(("messages[0].content[0]", "input[0].content[0]"))
    assert "Warning" not in server.err  # which Pillow would write for each of a TIFF's tags
    assert most_bytes() - before < 256 * 2**20
    assert post(server, CHAT, golden(CHAT, GOLDEN["image-5"])).json()["choices"][0]["message"]["content"] == (
        "It is a star."
    )


# --- videos


@needs_av
def test_videos_come_by_chat_completions(server: ServerProcess) -> None:
    frames = moving(8, 32, 48)
    clip = video_file(frames)
    part = {"type": "video_url", "video_url": {"url": data_url(clip, "video/mp4")}}
    text_only = prompt_of(server, [text(CHAT, "What moves?")])
    assert prompt_of(server, [part, text(CHAT, "What moves?")]) > text_only
    for data, words in ((sound_file(), "video"), (clip[:40], "video"), (picture(), "")):
        bad = {"type": "video_url", "video_url": {"url": data_url(data, "video/mp4")}}
        assert words in refused(server, CHAT, body(CHAT, [bad]))[1]


# --- flags, log and record


def test_without_vision_what_is_shown_is_refused_with_the_reason_and_text_is_served() -> None:
    with server_process("--no-vision") as server:
        for route in (CHAT, RESPONSES, MESSAGES):
            place, problem = refused(server, route, body(route, [shown(route, data_url(picture()))]))
            assert "[0]" in place and "--no-vision" in problem
            assert post(server, route, body(route, [text(route, "Hi")])).status_code == 200


def test_limits_of_flags_are_told_with_the_numbers() -> None:
    flags = ("--vision-image-tokens", "16", "--vision-max-images", "2", "--vision-max-videos", "0")
    with server_process(*flags) as server:
        one = shown(CHAT, data_url(picture(size=(512, 512))))
        assert prompt_of(server, [one, one]) - prompt_of(server, [one]) <= 18
        place, problem = refused(server, CHAT, body(CHAT, [one, one, one]))
        assert place == "messages[0].content[2]" and "3 images; at most 2" in problem
        video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
        assert "at most 0" in refused(server, CHAT, body(CHAT, [video]))[1]


def test_logs_have_no_bytes_of_pictures_and_records_are_replayed(tmp_path: Path) -> None:
    from flashnext.engine.engine import Engine
    from flashnext.server.record import Record

    noise = np.random.default_rng(5).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    data = encoded(Image.fromarray(noise), "PNG")
    record = tmp_path / "record.jsonl"
    flags = ("--log-prompts", "--record", str(record), "--vision-image-tokens", "20", "--dtype", "float32")
    with server_process(*flags) as server:
        for route in (CHAT, RESPONSES, MESSAGES):
            parts = [shown(route, data_url(data)), text(route, "what shape is this")]
            cap = {"max_output_tokens" if route == RESPONSES else "max_tokens": 8}
            assert post(server, route, body(route, parts, seed=3, **cap)).status_code == 200
        log = server.err
        ids = [row["id"] for row in server.log if row.get("path") in (CHAT, RESPONSES, MESSAGES)]
    whole = base64.b64encode(data).decode()
    assert "what shape is this" in log and whole[100:200] not in log
    assert f"({len(whole):,} characters)" in log
    found = [Record.find(record, one) for one in ids]
    assert len(found) == 3 and all(one.media_limits["image_tokens"] == 20 for one in found)
    with Engine(
        dtype="float32", context=found[0].context, media_limits=Limits(**found[0].media_limits)
    ) as engine:
        for one in found:
            assert list(one.replay(engine)) == one.token_shas


def test_data_is_told_by_its_length_and_other_text_as_it_is() -> None:
    url = "data:image/png;base64," + "A" * 5000
    asked = {
        "messages": [{"content": [{"image_url": {"url": url}}, {"text": "data is here"}]}],
        "source": {"type": "base64", "data": "B" * 4000},
        "data": "kept", "n": 3,
    }  # fmt: skip
    told = without_data(asked)
    assert told["messages"][0]["content"][0]["image_url"]["url"] == (
        "data:image/png;base64,... (5,022 characters)"
    )
    assert told["messages"][0]["content"][1] == {"text": "data is here"}
    assert told["source"]["data"] == "... (4,000 characters)" and (told["data"], told["n"]) == ("kept", 3)
    assert asked["source"]["data"] == "B" * 4000  # type: ignore[index]


def test_files_stand_in_a_record_in_place_of_their_addresses() -> None:
    url = "https://a.example/b.png"
    file = "data:;base64,YWJj"

    def parts(image: str) -> list[dict[str, Any]]:
        return [
            {"type": "input_image", "image_url": image},
            {"type": "image", "source": {"type": "url", "url": image}},
            {"type": "image_url", "image_url": {"url": image, "detail": "low"}},
            {"type": "video_url", "video_url": {"url": image}},
            {"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": image}}]},
        ]

    # What a call says is the model's own, also where it is the same address, or looks like a part.
    others = [
        {"type": "text", "text": url},
        {"type": "tool_use", "input": {"url": url, "part": parts(url)[0]}},
        {"function": {"arguments": {"url": url, "image_url": url}}},
        {"type": "image_url", "image_url": {"url": "https://c.example/"}},
    ]
    asked = {"input": [*parts(url), *others], "url": url}
    assert with_files(asked, {url: b"abc"}) == {"input": [*parts(file), *others], "url": url}
    assert asked["input"][0] == parts(url)[0], "what was asked stays as it is"


# --- the official client


def test_the_official_client_asks_about_a_picture(server: ServerProcess) -> None:
    url = data_url((TINY / "media" / "image-5-0.png").read_bytes())
    kwargs: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        parts: list[Any] = [
            {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what shape is this"},
        ]  # fmt: skip
        turns: list[Any] = [{"role": "user", "content": parts}]
        stream = client.chat.completions.create(
            model="flashnext", messages=turns, temperature=0, stream=True, extra_body=kwargs
        )
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert said == "It is a star."
        parts = [
            {"type": "input_image", "image_url": url, "detail": "auto"},
            {"type": "input_text", "text": "what shape is this"},
        ]
        items: list[Any] = [{"role": "user", "content": parts}]
        response = client.responses.create(model="flashnext", input=items, temperature=0, extra_body=kwargs)
        assert response.output_text == "It is a star."
