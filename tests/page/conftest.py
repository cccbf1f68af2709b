"""A headless Chromium, and pages of it that are watched for what no page may do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.chat_page import OpenPage, Scripted
from support.serving import ServerProcess, ServerThread, server_process

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("needs chromium, Debian's or another, on the path")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens the page of a server in a browser of its own; further ones with `context` in that one.

    At the end none of them may have failed, met its own policy, or asked another machine for anything.
    """
    contexts: list[Any] = []
    problems: list[str] = []
    foreign: list[str] = []

    def open_page(server: ServerProcess | ServerThread, *, context: Any = None, **options: Any) -> Page:
        origin = f"http://127.0.0.1:{server.port}"
        if context is None:
            context = browser.new_context(**{"viewport": {"width": 1000, "height": 720}, **options})
            context.grant_permissions(["clipboard-read", "clipboard-write"], origin=origin)
            contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # only where something is wrong
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.extend([line.text] if "olicy" in line.text else []))
        page.on(
            "request", lambda asked: foreign.extend([] if asked.url.startswith(f"{origin}/") else [asked.url])
        )
        page.goto(f"{origin}/")
        page.locator("html[data-ready]").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
    assert foreign == []


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """The real command, with drafts whatever they cost here."""
    with server_process("--drafts", "2", "--no-prices", "--temperature", "0") as server:
        yield server


@pytest.fixture(scope="module")
def scripted() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.close()
