"""The chat page as files over HTTP: headers, access, caching, and what its sources keep to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import httpx
import pytest
from flashnext.server import page
from support.serving import ServerProcess, ServerThread, server_process

NAMES = sorted(path.name for path in page.FOLDER.iterdir())
PATHS = ["/", *(f"/page/{name}" for name in NAMES if name != page.INDEX)]
TEXTS = {name: (page.FOLDER / name).read_text("utf-8") for name in NAMES}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}
STYLES = {name: text for name, text in TEXTS.items() if name.endswith(".css")}

KEY = "a-key-of-the-tests"


@pytest.fixture(scope="module")
def locked() -> Iterator[ServerThread]:
    """A server with a key."""
    server = ServerThread(api_keys=(KEY,))
    yield server
    server.close()


def get(server: ServerProcess | ServerThread, path: str, **headers: str) -> httpx.Response:
    # Without `verify`, certificates of authorities are read for each request.
    return httpx.get(f"http://127.0.0.1:{server.port}{path}", headers=headers, verify=False, timeout=60)


# --- over HTTP


@pytest.mark.parametrize("path", PATHS)
def test_each_file_is_served_as_what_it_is_under_the_strict_policy(path: str, server: ServerProcess) -> None:
    response = get(server, path)
    assert response.status_code == 200
    assert (
        response.content
        == (page.FOLDER / (path.removeprefix("/page/").strip("/") or page.INDEX)).read_bytes()
    )
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert response.headers["content-type"].split(";")[0] == kinds.get(path.rpartition(".")[2], "text/html")
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_has_not_changed_is_not_sent_again(path: str, server: ServerProcess) -> None:
    first = get(server, path)
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = get(server, path, **{"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    assert get(server, path, **{"if-none-match": '"other"'}).content == first.content


def test_no_two_files_have_one_etag(server: ServerProcess) -> None:
    assert len({get(server, path).headers["etag"] for path in PATHS}) == len(PATHS)


def test_head_tells_the_headers_alone_and_post_is_refused(server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.port}/"
    assert httpx.head(url, timeout=60).headers["content-length"] == str(len(get(server, "/").content))
    assert httpx.head(url, timeout=60).content == b""
    assert httpx.post(url, timeout=60).status_code == 405


@pytest.mark.parametrize(
    "path",
    ["/page", "/page/", "/page/index.html", "/page/nothing.js", "/page/../page.py", "/page/%2e%2e/page.py"],
)
def test_what_is_no_file_of_the_page_is_not_found(path: str, server: ServerProcess) -> None:
    with httpx.Client(timeout=60) as client:
        url = httpx.URL(f"http://127.0.0.1:{server.port}").copy_with(raw_path=path.encode())
        assert client.get(url).status_code == 404


@pytest.mark.parametrize("path", PATHS)
def test_the_page_needs_no_key_and_what_it_asks_for_does(path: str, locked: ServerThread) -> None:
    assert get(locked, path).status_code == 200
    for asked in ("/v1/models", "/page/nothing.js"):
        assert get(locked, asked).status_code == 401
    assert get(locked, "/v1/models", authorization=f"Bearer {KEY}").status_code == 200


def test_the_page_is_not_served_under_a_foreign_name(locked: ServerThread) -> None:
    for path in PATHS:
        response = get(locked, path, host="evil.example")
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "host_not_allowed"


def test_no_page_leaves_neither_its_files_nor_its_line_in_the_banner(server: ServerProcess) -> None:
    assert f"page     http://127.0.0.1:{server.port}/\n" in server.banner
    with server_process("--no-page", "--api-key", KEY) as without:
        assert "page  " not in without.banner
        for path in PATHS:
            assert get(without, path).status_code == 401
            assert get(without, path, authorization=f"Bearer {KEY}").status_code == 404


def test_files_of_the_page_are_not_lines_of_the_log() -> None:
    with server_process() as own:
        for path in PATHS:
            get(own, path)
        get(own, "/page/nothing.js")
        assert [line["path"] for line in own.log if line["event"] == "request"] == ["/page/nothing.js"]


def test_all_files_of_the_page_are_one_route_of_the_metrics(server: ServerProcess) -> None:
    for path in PATHS:
        get(server, path)
    routes = set(
        re.findall(r'flashnext_requests_total\{route="(/page[^"]*|/)"', get(server, "/metrics").text)
    )
    assert routes == {"/", "/page/{name}"}


# --- the sources


@pytest.mark.parametrize("name", NAMES)
def test_no_file_names_another_machine(name: str) -> None:
    namespaces = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[\w.-][^\s\"'`)]*", TEXTS[name])) - namespaces == set()
    assert re.findall(r"(?<![:\w/])//[a-z][\w-]*\.[a-z]", TEXTS[name]) == []


MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|setHTML"
    r"|\beval\b|new Function|cssText|import\(|setTimeout\(\s*[\"'`]"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_or_code_of_text(name: str) -> None:
    assert MARKUP.findall(SCRIPTS[name]) == []


@pytest.mark.parametrize(
    "line",
    ["node.innerHTML = text", "eval(text)", "new Function(text)", "range.createContextualFragment(text)"],
)
def test_markup_made_of_text_would_be_found(line: str) -> None:
    assert MARKUP.search(line)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_import_is_a_file_of_the_page_and_of_a_name_that_it_exports(name: str) -> None:
    for names, source in re.findall(r'import \{([^}]*)\} from "\./([^"]+)"', SCRIPTS[name]):
        for one in filter(None, (part.strip() for part in names.split(","))):
            assert re.search(rf"export (?:async )?(?:function\*?|class|const) {one}\b", SCRIPTS[source]), one
    assert SCRIPTS[name].count("import ") == len(
        re.findall(r'^import \{[^}]*\} from "\./', SCRIPTS[name], re.M)
    )


def test_files_are_short() -> None:
    assert {name: n for name, text in TEXTS.items() if (n := text.count("\n")) > 300} == {}


class _Elements(HTMLParser):
    """The elements of the page: tag and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._in_script = tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False


ELEMENTS = _Elements(TEXTS[page.INDEX])
IDS = [attrs["id"] for _, attrs in ELEMENTS.found if "id" in attrs]


def test_the_page_has_no_inline_script_style_or_handler() -> None:
    assert ELEMENTS.scripts == []
    for tag, attrs in ELEMENTS.found:
        assert tag not in ("style", "base", "iframe", "img", "object")
        assert [name for name in attrs if name.startswith("on") or name == "style"] == []


def test_what_the_page_loads_is_there() -> None:
    asked = [
        attrs.get("src") or attrs.get("href") for tag, attrs in ELEMENTS.found if tag in ("script", "link")
    ]
    assert len(asked) == 5
    assert [path for path in asked if f"/{path}" not in PATHS] == []


def test_every_id_is_there_once_and_every_id_that_is_asked_for_is_there() -> None:
    assert sorted(set(IDS)) == sorted(IDS)  # type: ignore[type-var]
    asked = {found for text in SCRIPTS.values() for found in re.findall(r'byId\("([^"]+)"\)', text)}
    assert len(asked) > 30
    assert asked - set(IDS) == set()
    for _, attrs in ELEMENTS.found:
        for name in ("for", "aria-labelledby", "aria-controls", "aria-describedby"):
            assert attrs.get(name, IDS[0]) in IDS


def test_every_field_has_a_label() -> None:
    labelled = {attrs["for"] for tag, attrs in ELEMENTS.found if tag == "label" and "for" in attrs}
    inside = {"model", "keep"}  # within their labels
    fields = {attrs["id"] for tag, attrs in ELEMENTS.found if tag in ("input", "select", "textarea")}
    assert fields == labelled | inside


def _luminance(colour: str) -> float:
    """Relative luminance of #rrggbb. Source: WCAG 2.2, its definition of contrast ratio."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *((text, ground) for text in ("text", "faint", "accent", "bad") for ground in ("ground", "raised")),
        ("on-accent", "accent"),
    ],
)
def test_texts_stand_out_from_what_is_behind_them(text: str, ground: str, theme: int) -> None:
    colours = {
        name: (light, dark)[theme]
        for name, light, dark in re.findall(
            r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", STYLES["page.css"]
        )
    }
    lighter, darker = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5
