"""How the page is used: by keyboard, by screen readers, on a phone, light and dark; and hostile replies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from support.chat_page import LONG, OpenPage, Scripted, replies, send

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
expect: Any = sync_api.expect
expect.set_options(timeout=60_000)

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = """<script>window.taken = 1</script><img src="https://evil.example/a" onerror="window.taken = 2">

<iframe srcdoc="<script>parent.taken = 3</script>"></iframe>
<svg onload="window.taken = 4"><style>*{display:none}</style>

![a picture](https://evil.example/picture?chat) [run](javascript:window.taken=5)
[data](data:text/html,<script>1</script>)
[vb](vbscript:x) [rel](/v1/models) [b](JaVaScRiPt:alert(1)) <javascript:alert(1)>
[bank](https://evil.example/bank "t")

| a | b |
| --- | --- |
| <img src=x onerror=alert(1)> | [x](  javascript:alert(1)) |

```html" onclick="window.taken=6
<script>window.taken = 7</script>
```

# <b onmouseover="alert(1)">x</b>

&lt;script&gt;window.taken = 8&lt;/script&gt; https://user:pw@evil.example/"><script>window.taken=9</script>
"""

TEXT = """## A plan

1. First *this*, then **that**.
   - with `code`
2. Then [the docs](https://docs.example/page).

| animal | legs | sounds |
| :-- | --: | :-: |
| cat | 4 | miaow |
| bird | 2 | tweet |

```python
def legs(animals: list[str]) -> int:
    return sum(4 if one == "cat" else 2 for one in animals)  # a line that is longer than a phone is wide
```

> Counted twice.
"""


TAGS = {
    "a", "bdi", "button", "br", "code", "div", "figcaption", "figure", "h3", "p", "pre", "span",
    "table", "tbody", "td", "th", "thead", "tr"
}  # fmt: skip
ATTRIBUTES = {
    "aria-label", "class", "data-language", "dir", "href", "rel", "role", "tabindex", "target", "title",
    "type"
}  # fmt: skip


def plain_answer(page: Page, scripted: Scripted, text: str) -> None:
    scripted.says(text)
    send(page, "Go on.")
    expect(replies(page).last).to_have_attribute("aria-busy", "false")


def test_nothing_of_a_hostile_reply_becomes_more_than_text_and_safe_links(
    scripted: Scripted, open_page: OpenPage
) -> None:
    page = open_page(scripted)  # whose fixture asserts that nobody else was asked for anything
    scripted.says(HOSTILE)
    send(page, HOSTILE)
    expect(replies(page)).to_have_count(1)
    expect(replies(page).locator(".body")).to_contain_text("<script>window.taken = 1</script>")
    page.reload()  # and once more from what was kept
    expect(replies(page)).to_have_count(1)
    told = page.evaluate(
        """() => {
          const nodes = [...document.querySelectorAll('article .body *')];
          const names = nodes.flatMap((one) => [...one.attributes].map(({ name }) => name));
          return {
            tags: [...new Set(nodes.map((one) => one.localName))].sort(),
            names: [...new Set(names)].sort(),
            links: nodes.filter((one) => one.localName === 'a').map((one) => [one.href, one.rel, one.target]),
            taken: window.taken ?? null,
          };
        }"""
    )
    assert told["taken"] is None
    assert set(told["tags"]) <= TAGS
    assert set(told["names"]) <= ATTRIBUTES
    assert {href for href, _, _ in told["links"]} == {
        "https://evil.example/a",
        "https://evil.example/picture?chat",
        "https://evil.example/bank",
        "https://user:pw@evil.example/",
    }
    assert all(one[1:] == ["noopener noreferrer nofollow", "_blank"] for one in told["links"])
    expect(replies(page).locator(".where")).to_have_text(["(evil.example)"] * 2)
    expect(page.locator("article.user .body")).to_have_text(HOSTILE)
    assert page.locator("article.user .body *").count() == 0


def test_markup_cannot_be_made_of_text_even_by_mistake(scripted: Scripted, open_page: OpenPage) -> None:
    page = open_page(scripted)
    with pytest.raises(sync_api.Error, match="TrustedHTML"):
        page.evaluate("document.getElementById('messages').innerHTML = '<b>x</b>'")


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.textContent"))


def test_the_whole_chat_works_by_keyboard(scripted: Scripted, open_page: OpenPage) -> None:
    scripted.says("first answer")
    page = open_page(scripted)
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(page.locator("#prompt")).to_have_value("one\ntwo")
    page.keyboard.press("Enter")
    expect(replies(page).locator(".body")).to_have_text("first answer")
    expect(page.locator("#prompt")).to_be_focused()
    # All that can be used is met in the order of the page, and shows that it has the focus.
    page.locator("#send").focus()
    met = ["send"]
    while len(met) < 40 and not met[-1].startswith("Skip"):
        page.keyboard.press("Shift+Tab")
        met.append(focused(page))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", met[-1]
    assert met[::-1] == [
        *("Skip to the message box", "tab-chat", "model", "new-chat", "open-settings", "theme", "log"),
        *("Copy", "Edit", "Copy", "Copy as curl", "Regenerate", "attach", "prompt", "send"),
    ]
    # The link at the top leads past all that.
    page.keyboard.press("Enter")
    expect(page.locator("#prompt")).to_be_focused()
    # Tabs are moved through by arrows, and a dialog gives the focus back.
    page.locator("#tab-chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#view-status")).to_be_visible()
    expect(page.locator("#tab-status")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.locator("#view-chat")).to_be_visible()
    page.locator("#open-settings").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#system")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator("#open-settings")).to_be_focused()
    # Regenerate and stop.
    scripted.says(LONG, hold_at=30)
    page.get_by_role("button", name="Regenerate").focus()
    page.keyboard.press("Enter")
    expect(page.locator("article.reply .body")).to_contain_text("word0")
    page.keyboard.press("Escape")
    expect(page.locator(".problem")).to_have_text("You stopped this reply.")
    scripted.go_on()


def test_a_screen_reader_hears_a_reply_once_and_whole(scripted: Scripted, open_page: OpenPage) -> None:
    text = "a reply of **some** words"
    scripted.says(text)
    page = open_page(scripted)
    expect(page.locator("#health")).to_have_text("ready")
    expect(page.locator("#model option")).not_to_have_count(0)
    page.evaluate(
        """() => {
          window.heard = [];
          const live = document.querySelectorAll('[role=status], [role=alert], [role=log]');
          for (const node of live) {
            if (node.getAttribute('aria-live') === 'off') continue;
            const watch = new MutationObserver(() => heard.push(node.textContent.trim()));
            watch.observe(node, { childList: true, subtree: true, characterData: true });
          }
        }"""
    )
    send(page, "Say it.")
    expect(replies(page)).to_have_count(1)
    assert page.evaluate("heard") == ["The reply is being written.", f"Reply: {text}"]
    expect(page.get_by_role("log", name="Messages")).to_have_attribute("aria-live", "off")
    expect(page.get_by_role("article", name="Reply")).to_have_count(1)
    expect(page.get_by_role("article", name="You")).to_have_count(1)
    expect(page.get_by_role("textbox", name="Message")).to_have_count(1)
    expect(page.get_by_role("tab", name="Chat", selected=True)).to_have_count(1)


GROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}


def test_the_page_is_dark_where_the_system_is_and_where_it_is_told_to_be(
    scripted: Scripted, open_page: OpenPage
) -> None:
    page = open_page(scripted, color_scheme="dark")
    body, button = page.locator("body"), page.locator("#theme")
    expect(body).to_have_css("background-color", GROUND["dark"])
    page.emulate_media(color_scheme="light")
    expect(body).to_have_css("background-color", GROUND["light"])
    button.click()
    expect(button).to_have_text("Theme: light")
    page.emulate_media(color_scheme="dark")
    expect(body).to_have_css("background-color", GROUND["light"])
    button.click()
    expect(button).to_have_text("Theme: dark")
    page.emulate_media(color_scheme="light")
    expect(body).to_have_css("background-color", GROUND["dark"])
    page.reload()
    expect(page.locator("#theme")).to_have_text("Theme: dark")
    expect(body).to_have_css("background-color", GROUND["dark"])
    button.click()
    expect(button).to_have_text("Theme: auto")
    expect(body).to_have_css("background-color", GROUND["light"])


PHONE = {
    "viewport": {"width": 360, "height": 740},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}


def is_wider_than_the_screen(page: Page) -> bool:
    return bool(page.evaluate("document.scrollingElement.scrollWidth > window.innerWidth"))


def test_the_page_fits_a_phone(scripted: Scripted, open_page: OpenPage) -> None:
    page = open_page(scripted, **PHONE)
    scripted.says(f"{TEXT}\n{'unbroken' * 30}\n\n| {' | '.join(['column'] * 12)} |\n|{'---|' * 12}\n")
    page.locator("#prompt").tap()
    page.locator("#prompt").fill("one")
    page.locator("#prompt").press("End")
    page.keyboard.press("Enter")
    page.keyboard.type("two")
    expect(page.locator("#prompt")).to_have_value("one\ntwo")
    page.locator("#send").tap()
    expect(replies(page)).to_have_count(1)
    expect(replies(page).locator("table")).to_have_count(2)
    assert not is_wider_than_the_screen(page)
    for name in ("#send", "#new-chat", "#open-settings", "#theme", "#tab-status"):
        box = page.locator(name).bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["height"] >= 40, name
    page.locator("#tab-status").tap()
    expect(page.locator("#status-server dd").first).to_be_visible()
    assert not is_wider_than_the_screen(page)
    page.locator("#open-settings").tap()
    expect(page.locator("#close-settings")).to_be_visible()
    assert not is_wider_than_the_screen(page)


def test_nothing_moves_where_that_is_not_wanted(scripted: Scripted, open_page: OpenPage) -> None:
    page = open_page(scripted, reduced_motion="reduce")
    scripted.says(LONG, hold_at=30)
    send(page, "Say all of it.")
    expect(page.locator("article.reply[aria-busy=true] .body")).to_contain_text("word0")
    name = "getComputedStyle(document.querySelector('.reply h2'), '::after').animationName"
    assert page.evaluate(name) == "none"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(name) == "writing"
    scripted.go_on()
    expect(replies(page)).to_have_count(1)


def test_who_reads_further_up_is_left_there_while_the_reply_goes_on(
    scripted: Scripted, open_page: OpenPage
) -> None:
    page = open_page(scripted)
    lines = "\n\n".join(f"line {i}" for i in range(60))
    scripted.says(lines, hold_at=200)
    send(page, "Say all of it.")
    expect(page.locator("article.reply .body")).to_contain_text("line 20")
    log = page.locator("#log")
    at_end = "node => node.scrollHeight - node.scrollTop - node.clientHeight < 60"
    assert log.evaluate(at_end)  # it goes along
    log.evaluate("node => { node.scrollTop = 100 }")
    scripted.go_on()
    expect(replies(page).locator(".body")).to_contain_text("line 59")
    assert log.evaluate("node => node.scrollTop") == 100


def test_code_is_copied_as_it_is(scripted: Scripted, open_page: OpenPage) -> None:
    page = open_page(scripted)
    plain_answer(page, scripted, TEXT)
    page.get_by_role("button", name="Copy code").click()
    expect(page.get_by_role("button", name="Copied")).to_have_count(1)
    code = re.search(r"```python\n(.*?)\n```", TEXT, re.DOTALL)
    assert code and page.evaluate("navigator.clipboard.readText()") == code[1]
    # Without the clipboard of secure pages, in the old way.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.locator("article.user").get_by_role("button", name="Copy").click()
    expect(page.locator("article.user").get_by_role("button", name="Copied")).to_have_count(1)
