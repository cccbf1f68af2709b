"""Pictures in the chat, in Chromium: chosen, pasted, dropped, removed, sent, sent again, kept, refused."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from PIL import Image
from support.chat_page import LONG, OpenPage, Scripted, replies, send, user
from support.serving import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
expect: Any = sync_api.expect
expect.set_options(timeout=60_000)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

TINY = Path(__file__).parents[1] / "tiny"

File = tuple[str, str, bytes]
"""Name, type, content."""


def png(colour: str, *, side: int = 8) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(out, "PNG")
    return out.getvalue()


RED: File = ("red.png", "image/png", png("red"))
BLUE: File = ("blue one.png", "image/png", png("blue"))
GIF: File = ("dot.gif", "image/gif", base64.b64decode("R0lGODlhAQABAAAAACwAAAAAAQABAAACAkQBADs="))
CLIP: File = ("clip.mp4", "video/mp4", b"\0\0\0\x18ftypmp42")
TORN: File = ("torn.png", "image/png", b"no picture either")
NOTES: File = ("notes.txt", "text/plain", b"no picture")


def url(file: File) -> str:
    return f"data:{file[1]};base64,{base64.b64encode(file[2]).decode()}"


def part(file: File) -> dict[str, Any]:
    kind = f"{file[1].split('/')[0]}_url"
    return {"type": kind, kind: {"url": url(file)}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def says_it_reads(page: Page, *kinds: str) -> None:
    """Have the server's model read these, as far as the page is told."""

    def models(route: Route) -> None:
        told = route.fetch().json()
        for one in told["data"]:
            one["modalities"]["input"] = ["text", *kinds]
        route.fulfill(json=told)

    page.route("**/v1/models", models)
    page.reload()
    expect(page.locator("#model option")).not_to_have_count(0)
    expect(page.locator("#attach")).to_be_visible(visible=bool(kinds))


def seeing(page: Page, *kinds: str) -> list[dict[str, Any]]:
    """Have the server take pictures. Returns the bodies that it is sent from now on."""
    bodies: list[dict[str, Any]] = []

    def completions(route: Route) -> None:
        body = route.request.post_data_json
        bodies.append(body)
        blind = [
            {**one, "content": "seen" if isinstance(one["content"], list) else one["content"]}
            for one in body["messages"]
        ]
        route.continue_(post_data=json.dumps({**body, "messages": blind}))

    page.route("**/v1/chat/completions", completions)
    says_it_reads(page, *(kinds or ("image",)))
    return bodies


def choose(page: Page, *files: File) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add pictures").click()
    named = [{"name": name, "mimeType": kind, "buffer": content} for name, kind, content in files]
    chooser.value.set_files(named)


def transfer(page: Page, type: str, *files: File, texts: dict[str, str] | None = None, at: str = "") -> bool:
    """Send an event that brings files to what has the focus, or to `at`. Returns whether the page took it."""
    listed = [[name, kind, base64.b64encode(content).decode()] for name, kind, content in files]
    return bool(
        page.evaluate(
            """([type, files, texts, at]) => {
              const data = new DataTransfer();
              for (const [name, kind, content] of files) {
                const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
                data.items.add(new File([bytes], name, { type: kind }));
              }
              for (const [kind, text] of Object.entries(texts)) data.setData(kind, text);
              const init = { bubbles: true, cancelable: true };
              const event = type === 'paste'
                ? new ClipboardEvent(type, { ...init, clipboardData: data })
                : new DragEvent(type, { ...init, dataTransfer: data });
              (at ? document.querySelector(at) : document.activeElement).dispatchEvent(event);
              return event.defaultPrevented;
            }""",
            [type, listed, texts or {}, at],
        )
    )


def thumbnails(page: Page) -> Locator:
    return page.get_by_role("list", name="Pictures of your message").get_by_role("img")


def names(pictures: Locator) -> list[str]:
    return [str(one.get_attribute("alt")) for one in pictures.all()]


def test_a_server_that_reads_text_only_offers_no_pictures(scripted: Scripted, open_page: OpenPage) -> None:
    page = open_page(scripted)
    says_it_reads(page)
    page.locator("#prompt").focus()
    assert transfer(page, "dragenter", RED, at="#log")
    expect(page.locator("#drop")).to_be_hidden()
    assert transfer(page, "drop", RED, at="#log")  # or the browser would open it in the place of the chat
    expect(page.locator("#attach-problem")).to_contain_text("does not say that it reads pictures")
    expect(page.locator("#attached")).to_be_hidden()


def test_chosen_pictures_are_sent_before_the_text_and_again_with_each_later_turn(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says("fine")
    page = open_page(scripted)
    bodies = seeing(page)
    assert page.locator("#files").get_attribute("accept") == "image/*"
    choose(page, RED, BLUE)
    expect(thumbnails(page)).to_have_count(2)
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator("#announcer")).to_have_text("red.png, blue one.png added.")
    assert names(thumbnails(page)) == ["red.png", "blue one.png"]
    for picture in thumbnails(page).all():
        assert picture.evaluate("node => node.decode().then(() => node.naturalWidth)") == 8
    send(page, "What are these?")
    expect(replies(page)).to_have_count(1)
    expect(page.locator("#attached")).to_be_hidden()
    shown = page.get_by_role("article", name="You").get_by_role("list", name="Pictures").get_by_role("img")
    assert names(shown) == ["red.png", "blue one.png"]
    choose(page, GIF)  # and a message that is nothing but a picture
    expect(thumbnails(page)).to_have_count(1)
    page.locator("#send").click()
    expect(replies(page)).to_have_count(2)
    send(page, "Thanks.")
    expect(replies(page)).to_have_count(3)
    first = {"role": "user", "content": [part(RED), part(BLUE), text("What are these?")]}
    second = {"role": "user", "content": [part(GIF)]}
    fine = {"role": "assistant", "content": "fine"}
    assert [body["messages"] for body in bodies] == [
        [first],
        [first, fine, second],
        [first, fine, second, fine, user("Thanks.")],
    ]


def test_pasted_pictures_are_told_apart_and_removed_by_keyboard(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says("fine")
    page = open_page(scripted)
    bodies = seeing(page)
    page.locator("#prompt").focus()
    red, blue = ("image.png", *RED[1:]), ("image.png", *BLUE[1:])
    assert transfer(page, "paste", red)
    expect(thumbnails(page)).to_have_count(1)
    assert transfer(page, "paste", blue, GIF, texts={"text/html": "<img>"})  # as of a picture on a web page
    expect(thumbnails(page)).to_have_count(3)
    assert names(thumbnails(page)) == ["image.png", "image.png (2)", "dot.gif"]
    # Text stays text, also where an office program puts a picture of it beside it.
    assert not transfer(page, "paste", texts={"text/plain": "words"})
    assert not transfer(page, "paste", RED, texts={"text/plain": "words", "text/html": "<b>words</b>"})
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Add pictures")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Remove dot.gif")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove image.png (2)", exact=True)).to_be_focused()
    expect(page.locator("#announcer")).to_have_text("dot.gif was removed.")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    expect(thumbnails(page)).to_have_count(1)
    expect(page.get_by_role("button", name="Remove image.png (2)", exact=True)).to_be_focused()
    send(page, "Which colour?")
    expect(replies(page)).to_have_count(1)
    assert bodies[0]["messages"] == [{"role": "user", "content": [part(BLUE), text("Which colour?")]}]
    choose(page, RED)
    page.get_by_role("button", name="Remove red.png").click()
    expect(page.locator("#attached")).to_be_hidden()
    expect(page.locator("#prompt")).to_be_focused()


def test_files_can_be_dropped_anywhere_and_what_is_no_picture_is_named(
    scripted: Scripted, open_page: OpenPage
) -> None:
    page = open_page(scripted)
    seeing(page)
    assert transfer(page, "dragenter", RED, at="header")
    expect(page.locator("#drop")).to_be_visible()
    assert transfer(page, "dragenter", RED, at="#log")
    transfer(page, "dragleave", RED, at="header")
    expect(page.locator("#drop")).to_be_visible()
    transfer(page, "dragleave", RED, at="#log")
    expect(page.locator("#drop")).to_be_hidden()
    assert not transfer(page, "dragenter", texts={"text/plain": "words"}, at="#log")
    expect(page.locator("#drop")).to_be_hidden()
    transfer(page, "dragenter", RED, at="#log")
    assert transfer(page, "drop", RED, NOTES, CLIP, at="#log")
    expect(page.locator("#drop")).to_be_hidden()
    expect(thumbnails(page)).to_have_count(1)
    problem = page.get_by_role("alert").filter(has_text="notes.txt")
    expect(problem).to_have_text("notes.txt is no picture. clip.mp4 is no picture.")
    assert transfer(page, "drop", BLUE, at="header")
    expect(thumbnails(page)).to_have_count(2)
    expect(page.locator("#attach-problem")).to_be_hidden()
    # Not where the message is not to be seen.
    page.locator("#tab-status").click()
    transfer(page, "dragenter", RED, at="header")
    expect(page.locator("#drop")).to_be_hidden()
    assert transfer(page, "drop", RED, at="header")
    page.locator("#tab-chat").click()
    assert names(thumbnails(page)) == ["red.png", "blue one.png"]


def test_videos_are_named_and_sent_where_the_server_reads_them(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says("fine")
    page = open_page(scripted)
    bodies = seeing(page, "image", "video")
    assert page.locator("#files").get_attribute("accept") == "image/*,video/*"
    choose(page, CLIP, RED)
    expect(page.locator("#attached li")).to_have_count(2)
    expect(page.locator("#attached li").first).to_contain_text("Video: clip.mp4")
    send(page, "What happens?")
    expect(replies(page)).to_have_count(1)
    assert bodies[0]["messages"][0]["content"] == [part(CLIP), part(RED), text("What happens?")]


def test_enter_while_a_picture_is_being_read_sends_it_once_and_whole(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says("fine")
    page = open_page(scripted)
    bodies = seeing(page)
    page.evaluate(
        """() => {
          const read = FileReader.prototype.readAsDataURL;
          window.goOn = [];
          FileReader.prototype.readAsDataURL = function (file) { goOn.push(() => read.call(this, file)) };
        }"""
    )
    choose(page, RED)
    for _ in range(3):
        send(page, "What is it?")
    expect(page.locator("article")).to_have_count(0)
    page.evaluate("goOn.forEach((one) => one())")
    expect(replies(page)).to_have_count(1)
    assert [body["messages"][0]["content"] for body in bodies] == [[part(RED), text("What is it?")]]
    # A file that cannot be read is not left out silently.
    page.evaluate(
        """() => {
          goOn.length = 0;
          FileReader.prototype.readAsDataURL = function () { goOn.push(() => this.onerror()) };
        }"""
    )
    transfer(page, "drop", BLUE, at="#log")
    send(page, "And this?")
    page.evaluate("goOn.forEach((one) => one())")
    expect(page.locator("#attach-problem")).to_have_text("blue one.png cannot be read.")
    expect(page.locator("#prompt")).to_have_value("And this?")
    assert len(bodies) == 1


def test_stop_regenerate_and_edit_work_with_pictures(scripted: Scripted, open_page: OpenPage) -> None:
    scripted.says(LONG, hold_at=20)
    page = open_page(scripted)
    bodies = seeing(page)
    choose(page, RED, BLUE)
    expect(thumbnails(page)).to_have_count(2)
    send(page, "Say all of it.")
    expect(page.locator("article.reply .body")).to_contain_text("word0")
    page.locator("#stop").click()
    expect(page.locator(".problem")).to_have_text("You stopped this reply.")
    scripted.go_on()
    scripted.says("fine")
    page.get_by_role("button", name="Regenerate").click()
    expect(replies(page).locator(".body")).to_have_text("fine")
    page.get_by_role("button", name="Edit").click()
    assert names(thumbnails(page)) == ["red.png", "blue one.png"]
    page.keyboard.press("Escape")
    expect(page.locator("#attached")).to_be_hidden()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Remove red.png").click()
    send(page, "And this?")
    expect(replies(page)).to_have_count(1)
    expect(page.locator("article.user")).to_have_count(1)
    assert names(page.locator("article.user img")) == ["blue one.png"]
    both = [part(RED), part(BLUE), text("Say all of it.")]
    said = [body["messages"][0]["content"] for body in bodies]
    assert said == [both, both, [part(BLUE), text("And this?")]]


def test_a_refusal_is_told_in_place_and_the_turn_can_be_changed(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says("fine")
    page = open_page(scripted)
    says_it_reads(page, "image")
    choose(page, TORN)
    expect(thumbnails(page)).to_have_count(1)
    send(page, "What is it?")
    content = [part(TORN), text("What is it?")]
    model = page.locator("#model").input_value()
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    address = f"http://127.0.0.1:{scripted.port}/v1/chat/completions"
    refused = httpx.post(address, json=body, timeout=60)
    assert refused.status_code == 400
    expect(page.locator("article.reply .problem")).to_have_text(refused.json()["error"]["message"])
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Remove torn.png").click()
    send(page, "Then without.")
    expect(replies(page).locator(".body")).to_have_text("fine")


def test_a_reload_keeps_pictures_that_have_room_and_names_the_others(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says("fine")
    page = open_page(scripted)
    bodies = seeing(page)
    noise = random.Random(1).randbytes(3_000_000)
    large: File = (
        "large.png",
        "image/png",
        RED[2] + noise,
    )  # what is behind a picture's end is not looked at
    choose(page, large, RED)
    expect(thumbnails(page)).to_have_count(2)
    send(page, "What are these?")
    expect(replies(page)).to_have_count(1)
    assert bodies[0]["messages"][0]["content"] == [part(large), part(RED), text("What are these?")]
    page.reload()
    expect(replies(page).locator(".body")).to_have_text("fine")
    items = page.locator("article.user .pictures li")
    expect(items.first).to_have_text(
        "large.png was too large to be kept over a reload, and is not sent any more."
    )
    assert names(items.get_by_role("img")) == ["red.png"]
    expect(page.locator("#attach")).to_be_visible()
    send(page, "Thanks.")
    expect(replies(page)).to_have_count(2)
    assert bodies[1]["messages"][0]["content"] == [part(RED), text("What are these?")]
    # Where the browser has less room than that, the texts are kept.
    page.evaluate(
        """() => {
          const set = Storage.prototype.setItem;
          Storage.prototype.setItem = function (name, text) {
            if (text.length > 5000) throw new DOMException('planted', 'QuotaExceededError');
            set.call(this, name, text);
          };
        }"""
    )
    more = ("more.png", "image/png", png("green") + noise[:6000])
    choose(page, more)
    expect(thumbnails(page)).to_have_count(1)
    send(page, "And this?")
    expect(replies(page)).to_have_count(3)
    page.reload()
    expect(replies(page)).to_have_count(3)
    expect(page.locator("article.user .body").last).to_have_text("And this?")
    expect(page.locator("article.user img")).to_have_count(0)


def test_the_copied_command_of_a_long_request_brings_the_body_by_standard_input(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says("fine")
    page = open_page(scripted)
    bodies = seeing(page)
    choose(page, ("noise.png", "image/png", RED[2] + random.Random(2).randbytes(200_000)))
    expect(thumbnails(page)).to_have_count(1)
    send(page, "It's 'this' & $HOME?")
    expect(replies(page)).to_have_count(1)
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_role("button", name="Copied")).to_have_count(1)
    command, body, end = page.evaluate("navigator.clipboard.readText()").rsplit("\n", 3)[:3]
    assert end == "END"
    assert shlex.split(command.replace("\\\n", " "))[-3:] == ["-d", "@-", "<<END"]
    assert command.endswith("<<'END'")  # nothing in it is the shell's
    assert json.loads(body)["messages"] == bodies[0]["messages"]


def test_a_picture_leaves_room_for_the_message_on_a_phone(scripted: Scripted, open_page: OpenPage) -> None:
    scripted.says("fine")
    phone = {"width": 360, "height": 640}
    page = open_page(scripted, viewport=phone, has_touch=True, is_mobile=True, color_scheme="dark")
    seeing(page)
    wide: File = ("wide.png", "image/png", png("red", side=64))
    choose(page, *[wide] * 12)
    expect(thumbnails(page)).to_have_count(12)
    assert names(thumbnails(page))[::11] == ["wide.png", "wide.png (12)"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name, least in (("#attach", 60), ("#prompt", 120), ("#send", 60)):
        box = page.locator(name).bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 360, name
        assert box["width"] >= least and box["height"] >= 40 and box["y"] + box["height"] <= 640, name
    page.locator("#prompt").fill("What are these?")
    page.locator("#send").tap()
    expect(replies(page)).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_model_sees_what_was_added(server: ServerProcess, open_page: OpenPage) -> None:
    model = httpx.get(f"{server.url}/models", timeout=60).json()["data"][0]
    assert model["modalities"] == {"input": ["text", "image", "video"], "output": ["text"]}
    cases = map(json.loads, (TINY / "golden.jsonl").read_text().splitlines())
    case = next(one for one in cases if one["id"] == "image-0")
    system, asked = case["messages"]
    picture = TINY / asked["content"][0]["image"]
    page = open_page(server)
    page.locator("#open-settings").click()
    page.locator("#system").fill(system["content"])
    page.locator("#close-settings").click()
    choose(page, (picture.name, "image/png", picture.read_bytes()))
    expect(thumbnails(page)).to_have_count(1)
    send(page, asked["content"][1]["text"])
    expect(replies(page).locator(".body")).to_have_text("It is the digit 8.")
    expect(replies(page).locator(".figures")).to_contain_text(f"prompt {case['prompt_tokens']}, ")
    send(page, "Spell cat.")
    expect(replies(page).last.locator(".body")).to_have_text("c-a-t")
    cached = re.search(r"prompt \d+, (\d+) cached", replies(page).last.locator(".figures").inner_text())
    assert cached and int(cached[1]) >= case["prompt_tokens"]  # the picture's rows are not read again
