"""The chat, driven in Chromium: type, stream, stop, answer again, change, reload, copy."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from support.chat_page import LONG, OpenPage, Scripted, replies, send, user
from support.serving import ServerProcess, ServerThread, free_port, server_process, until

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
expect: Any = sync_api.expect
expect.set_options(timeout=60_000)

if TYPE_CHECKING:
    from playwright.sync_api import Locator

COUNT = "Count from 1 to 60."
COUNTED = ", ".join(str(i) for i in range(1, 61))


def sha_of(reply: Locator) -> str:
    found = re.search(r"token_sha ([0-9a-f]{16})", reply.locator(".figures").inner_text())
    assert found
    return found[1]


def asked(server: ServerProcess | ServerThread, body: dict[str, Any]) -> dict[str, Any]:
    """The choice that the API gives to a body, without a stream."""
    body = {**body, "stream": False, "stream_options": None}
    url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    return dict(httpx.post(url, json=body, timeout=60).json()["choices"][0])


def test_a_reply_is_the_one_that_the_api_gives(server: ServerProcess, open_page: OpenPage) -> None:
    page = open_page(server)
    expect(page.locator("#prompt")).to_be_focused()
    send(page, COUNT)
    reply = replies(page)
    expect(reply.locator(".body")).to_have_text(COUNTED)
    choice = asked(server, {"model": "flashnext", "messages": [user(COUNT)]})
    assert sha_of(reply) == choice["flashnext"]["token_sha"]
    thoughts = reply.locator("details.thoughts")
    expect(thoughts).not_to_have_attribute("open", "")
    expect(thoughts.locator(".thought")).not_to_be_visible()
    thoughts.locator("summary").click()
    expect(thoughts.locator(".thought")).to_have_text(choice["message"]["reasoning_content"])
    figures = reply.locator(".figures")
    expect(figures).to_contain_text(
        re.compile(r"\d+ tokens.*tok/s.*prompt 19, .*drafts [1-9]\d* of [1-9]\d* kept")
    )


def test_the_next_turn_goes_on_from_the_cache_and_a_reload_keeps_the_chat(
    server: ServerProcess, open_page: OpenPage
) -> None:
    page = open_page(server)
    send(page, "Count from 3 to 9.")
    expect(replies(page)).to_have_count(1)
    send(page, "Spell cat.")
    expect(replies(page)).to_have_count(2)
    expect(replies(page).last.locator(".body")).to_have_text("c-a-t")
    expect(replies(page).last.locator(".figures")).to_contain_text(re.compile(r"prompt \d+, [1-9]\d* cached"))
    before = page.locator("#messages").inner_text()
    page.reload()
    expect(replies(page)).to_have_count(2)
    assert page.locator("#messages").inner_text() == before
    send(page, "Spell dog.")
    expect(replies(page).last.locator(".body")).to_have_text("d-o-g")


def test_regenerate_and_edit_replace_the_last_turn(server: ServerProcess, open_page: OpenPage) -> None:
    page = open_page(server)
    send(page, "Spell cat.")
    expect(replies(page)).to_have_count(1)
    first = sha_of(replies(page))
    page.locator("article.reply").evaluate("node => { node.dataset.old = 'yes' }")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator("[data-old]")).to_have_count(0)
    expect(replies(page)).to_have_count(1)
    assert sha_of(replies(page)) == first  # temperature 0
    page.get_by_role("button", name="Edit").click()
    expect(page.locator("#prompt")).to_have_value("Spell cat.")
    page.keyboard.press("Escape")
    expect(page.locator("#prompt")).to_have_value("")
    expect(page.locator("#editing")).to_be_hidden()
    page.get_by_role("button", name="Edit").click()
    send(page, "Spell dog.")
    expect(replies(page).locator(".body")).to_have_text("d-o-g")
    expect(page.locator("article.user .body")).to_have_text("Spell dog.")


def test_the_copied_command_asks_for_the_same_reply(server: ServerProcess, open_page: OpenPage) -> None:
    page = open_page(server)
    page.locator("#open-settings").click()
    page.locator("#system").fill('It\'s "quoted" & $HOME')
    page.locator("#temperature").fill("1.5")
    page.locator("#max_tokens").fill("40")
    page.locator("#thinking").select_option("none")
    page.locator("#close-settings").click()
    send(page, "Tell me 'anything'\nyou `like`.")
    expect(replies(page)).to_have_count(1)
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_role("button", name="Copied")).to_have_count(1)
    command = shlex.split(page.evaluate("navigator.clipboard.readText()").replace("\\\n", " "))
    assert command[:3] == ["curl", "-N", f"http://127.0.0.1:{server.port}/v1/chat/completions"]
    assert command[3:5] == ["-H", "content-type: application/json"]
    body = json.loads(command[command.index("-d") + 1])
    assert body["messages"] == [
        {"role": "system", "content": 'It\'s "quoted" & $HOME'},
        user("Tell me 'anything'\nyou `like`."),
    ]
    assert (body["temperature"], body["max_tokens"], body["reasoning_effort"]) == (1.5, 40, "none")
    assert asked(server, body)["flashnext"]["token_sha"] == sha_of(replies(page))


def test_copy_gives_the_text_of_the_reply(server: ServerProcess, open_page: OpenPage) -> None:
    page = open_page(server)
    send(page, "Spell cat.")
    replies(page).get_by_role("button", name="Copy", exact=True).click()
    expect(page.get_by_role("button", name="Copied")).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()") == "c-a-t"


@pytest.mark.parametrize("by", ["button", "Escape"])
def test_stop_ends_the_reply_here_and_on_the_server(by: str, scripted: Scripted, open_page: OpenPage) -> None:
    n = scripted.says(LONG, hold_at=20)
    page = open_page(scripted)
    send(page, "Say all of it.")
    reply = page.locator("article.reply")
    expect(reply.locator(".body")).to_contain_text("word0")
    scripted.go_on(hold_at=60)  # a rate is told once something has come at two times
    expect(reply.locator(".body")).to_contain_text("word0 word1")
    expect(reply.locator(".figures")).to_contain_text(re.compile(r"\d+ tokens.*tok/s"))  # while it runs
    expect(reply).to_have_attribute("aria-busy", "true")
    expect(page.locator("#send")).to_be_hidden()
    if by == "button":
        page.locator("#stop").click()
    else:
        page.keyboard.press("Escape")
    expect(reply).to_have_attribute("aria-busy", "false")
    expect(reply.locator(".problem")).to_have_text("You stopped this reply.")
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator("#prompt")).to_be_focused()
    scripted.go_on()
    until(lambda: scripted.service.queue.n_open == 0, "the server goes on with a reply that was stopped")
    told = reply.locator(".body").inner_text()
    assert LONG.startswith(told) and len(told) < len(LONG)
    assert scripted.core.n_rounds < n + 200
    # What was said so far is part of the chat.
    scripted.says("fine")
    send(page, "And now?")
    expect(replies(page).last.locator(".body")).to_have_text("fine")


def test_a_reply_that_cannot_be_shown_ends_like_any_other_and_is_kept(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says("one reply")
    page = open_page(scripted)
    page.evaluate(
        """() => {
          const make = document.createElement;
          window.failures = 0;
          document.createElement = function (tag) {
            if (tag !== 'li') return make.call(document, tag);
            window.failures++;
            throw new RangeError('planted');  // where figures are shown
          };
          for (const kind of ['error', 'unhandledrejection'])
            window.addEventListener(kind, (event) => event.preventDefault());
        }"""
    )
    send(page, "Say it.")
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator("article.reply .body")).to_have_text("one reply")
    assert page.evaluate("failures") > 0
    assert "one reply" in page.evaluate("JSON.stringify({...sessionStorage})")
    page.reload()
    expect(replies(page).locator(".body")).to_have_text("one reply")
    scripted.says("another")
    send(page, "And now?")
    expect(replies(page).last.locator(".body")).to_have_text("another")


def test_new_chat_can_be_taken_back(scripted: Scripted, open_page: OpenPage) -> None:
    scripted.says("one")
    page = open_page(scripted)
    send(page, "First.")
    expect(replies(page)).to_have_count(1)
    page.locator("#new-chat").click()
    expect(page.locator("article")).to_have_count(0)
    expect(page.locator("#empty")).to_be_visible()
    page.get_by_role("button", name="Bring the old one back").click()
    expect(replies(page).locator(".body")).to_have_text("one")


def test_a_reply_that_a_reload_cut_off_says_so_and_can_be_asked_for_again(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says(LONG, hold_at=30)
    page = open_page(scripted)
    send(page, "Say all of it.")
    expect(page.locator("article.reply .body")).to_contain_text("word0")
    page.reload()
    expect(page.locator(".problem")).to_have_text("The page was left before this reply had ended.")
    expect(page.locator("article.reply .body")).to_contain_text("word0")
    scripted.go_on()
    scripted.says("again")
    page.get_by_role("button", name="Regenerate").click()
    expect(replies(page).locator(".body")).to_have_text("again")


def test_an_error_is_told_in_the_servers_words(server: ServerProcess, open_page: OpenPage) -> None:
    page = open_page(server)
    for field, value, kind in (
        ("temperature", "500", 500),
        ("top_p", "zero", "zero"),
        ("seed", "9" * 20, "9" * 20),
    ):
        page.locator("#open-settings").click()
        page.locator(f"#{field}").fill(value)
        page.locator("#close-settings").click()
        send(page, "Spell cat.")
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        body = {"model": "flashnext", "messages": [user("Spell cat.")], field: kind}
        said = httpx.post(url, json=body, timeout=60).json()["error"]["message"]
        assert field in said
        expect(page.locator("article.reply .problem").last).to_have_text(said)
        page.locator("#open-settings").click()
        page.locator(f"#{field}").fill("")
        page.locator("#close-settings").click()
    page.get_by_role("button", name="Regenerate").click()
    expect(replies(page).last.locator(".body")).to_have_text("c-a-t")


def test_a_server_that_goes_and_comes_back_is_met_again(open_page: OpenPage) -> None:
    port = free_port()
    with server_process("--port", str(port), "--temperature", "0") as own:
        page = open_page(own)
        expect(page.locator("#health")).to_have_text("ready")
    send(page, "Spell cat.")
    expect(page.locator("article.reply .problem")).to_have_text(
        "The server cannot be reached. Is it running?"
    )
    page.locator("#tab-status").click()
    expect(page.locator("#health")).to_have_text("unreachable")
    with server_process("--port", str(port), "--temperature", "0"):
        expect(page.locator("#health")).to_have_text("ready")
        expect(page.locator("#notice")).to_be_hidden()
        page.locator("#tab-chat").click()
        page.get_by_role("button", name="Regenerate").click()
        expect(replies(page).locator(".body")).to_have_text("c-a-t")


def test_a_connection_that_is_lost_in_the_middle_leaves_what_came(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says(LONG, hold_at=30)
    page = open_page(scripted)
    send(page, "Say all of it.")
    expect(page.locator("article.reply .body")).to_contain_text("word0")
    for connection in list(scripted._server.server_state.connections):
        scripted.loop.call_soon_threadsafe(connection.transport.abort)
    lost = "The connection was lost before the reply had ended."
    expect(page.locator("article.reply .problem")).to_have_text(lost)
    expect(page.locator("article.reply .body")).to_contain_text("word0")
    scripted.go_on()


def test_a_key_is_asked_for_and_goes_nowhere_but_into_a_header(open_page: OpenPage) -> None:
    right = "schlüssel-of-the-tests"
    with server_process("--api-key", right, "--temperature", "0") as locked:
        page = open_page(locked)
        dialog = page.locator("#key-dialog")
        expect(dialog).to_be_visible()
        expect(page.locator("#key")).to_be_focused()
        said = httpx.get(f"{locked.url}/models", timeout=60).json()["error"]["message"]
        expect(page.locator("#key-problem")).to_have_text(said)
        urls: list[str] = []
        page.on("request", lambda one: urls.append(one.url))
        page.locator("#key").fill("wrong")
        page.locator("#key").press("Enter")
        expect(page.locator("#key-problem")).to_contain_text("is not one of this server's")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        send(page, "Spell cat.")  # asks once more, and sends again with what it is given
        expect(dialog).to_be_visible()
        page.locator("#key").fill(right)
        page.locator("#key").press("Enter")
        expect(replies(page).locator(".body")).to_have_text("c-a-t")
        expect(page.locator("#model option")).to_have_count(2)
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.get_by_role("button", name="Copied")).to_have_count(1)
        command = page.evaluate("navigator.clipboard.readText()")
        assert "$FLASHNEXT_API_KEY" in command and right not in command
        page.reload()
        expect(replies(page).locator(".body")).to_have_text("c-a-t")
        expect(page.locator("#model option")).to_have_count(2)
        assert [url for url in [*urls, page.url] if "schl" in url or "wrong" in url] == []
        page.locator("#open-settings").click()
        page.locator("#keep").check()
        kept = page.evaluate("JSON.stringify({...localStorage})")
        assert "Spell cat." in kept and "schl" not in kept
        page.locator("#forget-key").click()
        assert "schl" not in page.evaluate("JSON.stringify({...sessionStorage})")
        assert "schl" not in locked.err


def test_the_chat_is_kept_in_the_browser_only_where_that_is_wished(
    scripted: Scripted, open_page: OpenPage
) -> None:
    scripted.says("one")
    page = open_page(scripted)
    send(page, "Remember me.")
    expect(replies(page)).to_have_count(1)
    assert "Remember me." not in page.evaluate("JSON.stringify({...localStorage})")
    other = open_page(scripted, context=page.context)
    expect(other.locator("article")).to_have_count(0)
    page.locator("#open-settings").click()
    page.locator("#keep").check()
    another = open_page(scripted, context=page.context)
    expect(replies(another).locator(".body")).to_have_text("one")
    page.locator("#forget").click()
    page.locator("#close-settings").click()
    expect(page.locator("article")).to_have_count(0)
    for store in ("localStorage", "sessionStorage"):
        assert "Remember me." not in page.evaluate(f"JSON.stringify({{...{store}}})")
    page.reload()
    expect(page.locator("article")).to_have_count(0)
    expect(page.locator("#keep")).not_to_be_checked()


METRICS = """# HELP flashnext_requests_total Requests.
# TYPE flashnext_requests_total counter
flashnext_requests_total{route="chat",code="200"} %d
# TYPE flashnext_running gauge
flashnext_running 2
# TYPE flashnext_ttft_seconds histogram
flashnext_ttft_seconds_bucket{le="0.1"} 4
flashnext_ttft_seconds_sum 1.25
flashnext_ttft_seconds_count 4
"""


def test_the_status_tab_tells_of_the_server_with_and_without_metrics(
    server: ServerProcess, open_page: OpenPage
) -> None:
    page = open_page(server)
    send(page, "Spell cat.")
    expect(replies(page)).to_have_count(1)
    page.route("**/metrics", lambda route: route.fulfill(status=404, body="{}"))
    page.locator("#tab-status").click()
    model = httpx.get(f"{server.url}/models", timeout=60).json()["data"][0]
    for told in ("ready", model["id"], model["device"], "8,192 tokens", "6 bits"):
        expect(page.locator("#status-server")).to_contain_text(told)
    expect(page.locator("#status-chat")).to_contain_text(re.compile(r"Replies1.*Drafts kept\d+ of [1-9]"))
    expect(page.locator("#metrics-none")).to_have_text("This server has no /metrics.")
    asked_for = iter(range(100, 10**9, 10))
    page.unroute("**/metrics")
    page.route("**/metrics", lambda route: route.fulfill(body=METRICS % next(asked_for)))
    page.locator("#tab-status").click()
    rows = page.locator("#metrics tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text('route="chat",code="200"')
    expect(rows.nth(0).locator("td").last).to_have_text(re.compile(r"^[\d.,]+$"))  # 10 more, in a while
    expect(rows.nth(1)).to_have_text("flashnext_running2")
    expect(rows.nth(2)).to_contain_text("flashnext_ttft_seconds_sum")
