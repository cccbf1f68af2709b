"""The page's Markdown against markdown-it's, element by element, and while it grows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from markdown_it import MarkdownIt
from support.chat_page import OpenPage, Scripted

pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")

if TYPE_CHECKING:
    from playwright.sync_api import Page

# What the page leaves out: HTML, headings and code without marks of their own, links by reference.
ORACLE = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["table", "strikethrough"])
    .disable(["lheading", "code", "reference", "html_block", "html_inline"])
)

DOCUMENTS = [
    "one\ntwo\n\nthree",
    "hard  \nbreak and\\\nanother",
    "# one\n## two ##\n### three #\n#### *four*\n##### `five`\n###### six\n#no heading\n#",
    "*em* _em_ **strong** __strong__ ***both*** ~~gone~~ snake_case_name 2*3*4 **a*b*c**",
    "**bold *and em* text** and *em **bold** em* and **unclosed and * lonely * stars",
    "*foo**bar**baz* **foo*bar*baz** ***a** b* ***a* b** _a __b__ c_ a_b_c",
    "`code` ``with ` tick`` ` spaced ` `a``b` unclosed ` tick and ``` three",
    r"\*not em\* \`not code\` \[x](y) \\ \a 1\. \# \| \<b\>",
    "[a link](https://a.example/b) [*em* link](https://a.example/) ![alt](https://a.example/i.png)",
    '[titled](https://a.example/t "a title") [angled](<https://a.example/x>) <https://a.example/auto>',
    "[bracket [in] label](https://a.example/l) [paren](https://a.example/x_(y)) [no](not a link) [none]",
    "[run](javascript:alert(1)) and [mail](mailto:a@b.example)",
    "&amp; &lt;b&gt; &quot; &#65; &#x41; &nbsp; &unknown; & alone",
    "<script>alert(1)</script> <b>bold</b> <img src=x onerror=y>",
    "- one\n- two\n- three",
    "- one\n\n- two\n\n- three",
    "* star\n* star\n- dash\n+ plus",
    "1. one\n2. two\n10. ten\n\ntext",
    "3. three\n4. four\n\n7) seven\n8) eight",
    "- outer\n  - inner\n    - deep\n  - inner again\n- outer again",
    "1. first\n   - a\n   - b\n2. second\n\n   a paragraph of it\n3. third",
    "- item\n\n  ```python\n  code()\n\n  more()\n  ```\n- next",
    "- lazy\ncontinued\n- other",
    "- a\n- b\n\n\ntext behind",
    "text\n- list right behind\n- it",
    "text\n2. no list\ntext",
    "> quoted\n> text\n>\n> - list\n>   in it\n\nbehind",
    "> lazy\nquote\n\n> another\n> > nested\n> back?",
    "```python\ndef f():\n    return '<b>'\n```",
    "~~~\n```\nnot the end\n~~~\ntext",
    "````\n```\ninner\n```\n````",
    "~~~ a `b` c\n`code`\n~~~\ntext\n\n``` a `b` c\n\n~~\nno fence",
    "# one ##x\n# two #x ##  \n# ##\n## # #",
    "[a](  https://a.example/p  'q'  ) [c](<https://a.example/c> \"t\" )",
    "```\nunclosed\n\ncode",
    "text\n```sh\nls\n```\ntext",
    "  ```\n  indented\n    more\n  ```",
    "---\n***\n_ _ _\n- - -\n--",
    "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 |\n| 4 | 5 | 6 |",
    "a | b | c\n:-- | :-: | --:\n*em* | `co de` | [l](https://a.example/)\n\ntext",
    "| pipe \\| in | cell |\n|---|---|\n| a \\| b | **c** |",
    "| only | head |\n|:--|--:|",
    "text | with pipe\nand no table",
    "# Title\n\nIntro, **bold**.\n\n1. One:\n   ```js\n   x = 1\n   ```\n2. Two\n\n| k |\n|---|\n| a |",
    "日本語の**強調**です。 «**ja**» e**x**tra 💡*a*",
    "",
    "\n\n  \n",
]

PIECES = [
    "word", "two words", "*em*", "**strong**", "`code`", "*", "**", "_", "`", "``", "[", "]", "\\", "!",
    "[l](mailto:a@b.example)", "a_b", "<b>", "&amp;", "1", ".", "(", ")", "é",
]  # fmt: skip
BEGINNINGS = ["", "", "", "- ", "  - ", "1. ", "2) ", "> ", "# ", "### ", "```", "---", ""]


def drawn_document(seed: int) -> str:
    draw = random.Random(seed)
    lines = []
    for _ in range(draw.randrange(1, 9)):
        text = draw.choice(["", " "]).join(draw.choice(PIECES) for _ in range(draw.randrange(0, 6)))
        lines.append(draw.choice(BEGINNINGS) + text if text.strip() else "")
    return "\n".join(lines)


SERIALIZE = """
async (documents) => {
  const { Markdown } = await import('/page/markdown.js');
  const write = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    const tag = node.localName;
    if (tag === 'figure') return ['pre', '', node.querySelector('code').textContent];
    if (tag === 'div') return write(node.querySelector('table'));
    const told = { a: () => node.href, ol: () => String(node.start), th: () => node.className,
                   td: () => node.className }[tag];
    const children = [...node.childNodes].filter((one) => one.className !== 'where').map(write);
    return [tag, told ? told() : '', ...children];
  };
  return documents.map((text) => {
    const node = document.createElement('div');
    new Markdown(node).show(text);
    for (const where of node.querySelectorAll('.where')) where.previousSibling.remove();
    return [...node.childNodes].map(write);
  });
}
"""


class _Tree(HTMLParser):
    """HTML as nested lists in the form of SERIALIZE."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.root: list[Any] = []
        self._open: list[list[Any]] = [self.root]
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "img":
            self._open[-1].append(["a", found["src"], found["alt"]])
            return
        told = {
            "a": found.get("href", ""),
            "ol": found.get("start", "1"),
            "th": found.get("style", "").removeprefix("text-align:"),
            "td": found.get("style", "").removeprefix("text-align:"),
        }.get(tag, "")
        if tag[0] == "h" and tag[1:].isdigit():
            tag = f"h{min(6, int(tag[1:]) + 2)}"
        node = [tag, told]
        self._open[-1].append(node)
        if tag not in ("br", "hr"):
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("br", "hr", "img"):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].append(data)


BLOCKS = {
    "p",
    "ul",
    "ol",
    "li",
    "blockquote",
    "pre",
    "table",
    "thead",
    "tbody",
    "tr",
    "hr",
    "h3",
    "h4",
    "h5",
    "h6",
}
HOLDERS = {"ul", "ol", "table", "thead", "tbody", "tr", "blockquote", "li"}


def normal(nodes: list[Any], tag: str = "blockquote") -> list[Any]:
    """Join texts, and drop the white space that HTML has around blocks and behind breaks."""
    out: list[Any] = []
    for node in nodes:
        if isinstance(node, str):
            if out and isinstance(out[-1], str):
                out[-1] += node
            else:
                out.append(node)
        elif node[0] == "pre":
            text = "".join(leaves(node[2:]))
            out.append(["pre", "", text.rstrip()])
        else:
            out.append([node[0], node[1], *normal(node[2:], node[0])])
    beside_block = any(isinstance(one, list) and one[0] in BLOCKS for one in out)
    if tag in HOLDERS and (beside_block or tag != "li"):
        out = [one.strip("\n") if isinstance(one, str) else one for one in out]
    for i in range(1, len(out)):
        if isinstance(out[i], str) and isinstance(out[i - 1], list) and out[i - 1][0] == "br":
            out[i] = out[i].lstrip("\n")
    return [one for one in out if one != ""]


def leaves(nodes: list[Any]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
        else:
            yield from leaves(node[2:])


def shown(page: Page, documents: list[str]) -> list[Any]:
    return [normal(nodes) for nodes in page.evaluate(SERIALIZE, documents)]


def expected(text: str) -> list[Any]:
    return normal(_Tree(ORACLE.render(text)).root)


def test_documents_become_the_elements_of_markdown_it(scripted: Scripted, open_page: OpenPage) -> None:
    page = open_page(scripted)
    for text, found in zip(DOCUMENTS, shown(page, DOCUMENTS), strict=True):
        assert found == expected(text), text


def test_drawn_documents_become_the_elements_of_markdown_it(scripted: Scripted, open_page: OpenPage) -> None:
    page = open_page(scripted)
    documents = [drawn_document(seed) for seed in range(1000)]
    wrong = [
        (seed, text, found, expected(text))
        for seed, (text, found) in enumerate(zip(documents, shown(page, documents), strict=True))
        if found != expected(text)
    ]
    assert wrong == []


GROW = """
async (text) => {
  const { Markdown } = await import('/page/markdown.js');
  const node = document.createElement('div');
  const growing = new Markdown(node);
  for (let end = 0; end <= text.length; end++) growing.show(text.slice(0, end));
  const fresh = document.createElement('div');
  new Markdown(fresh).show(text);
  return [node.isEqualNode(fresh), node.textContent, fresh.textContent];
}
"""


def test_a_text_that_grew_is_shown_as_one_that_came_whole(scripted: Scripted, open_page: OpenPage) -> None:
    page = open_page(scripted)
    for text in (*DOCUMENTS, *map(drawn_document, range(1000, 1060))):
        same, grown, whole = page.evaluate(GROW, text)
        assert same, (text, grown, whole)


UNFRIENDLY = {
    "stars": "*" * 30_000,
    "stars with letters": "*a **b" * 6_000,
    "brackets": "[" * 30_000,
    "links that never end": "[a](b" * 6_000,
    "ticks of all lengths": " ".join("`" * n for n in range(1, 220)),
    "quotes in quotes": "> " * 10_000 + "x",
    "lists in lists": "\n".join("  " * n + "- x" for n in range(300)),
    "marks of items": "- " * 10_000 + "x",
    "a heading of spaces": "#" + " " * 30_000 + "x",
    "columns": "|" * 20_000 + "\n" + "|-" * 20_000,
    "addresses": "https://a.example/" * 2_000,
    "closing brackets": "https://a.example/" + ")" * 1_900,
    "entities": "&amp" * 10_000,
    "spaces between tildes and a tick": "~~~" + " " * 300_000 + "`",
    "tildes and a tick": "~" * 300_000 + "`",
    "spaces between ticks and a tick": "```" + " " * 300_000 + "`",
    "a heading of hashes": "# " + "#" * 300_000 + "x",
    "brackets behind addresses": ("https://a.example/" + ")" * 1_900 + " ") * 300,
    "spaces in front of addresses": ("[a](" + " " * 1_900 + "b c) ") * 300,
    "emphasis in emphasis": "*a **b " * 3_000 + "c" + " d** e*" * 3_000,
}


@pytest.mark.parametrize("name", UNFRIENDLY)
def test_no_text_is_too_much_for_the_page(name: str, scripted: Scripted, open_page: OpenPage) -> None:
    """It comes to an end, within what a test may take, and leaves letters as they are."""
    text = UNFRIENDLY[name]
    page = open_page(scripted)
    # Not awaited, so that a page that hangs is a failure and no test that hangs.
    page.evaluate(
        f"""(documents) => {{
          setTimeout(async () => {{
            window.found = await ({SERIALIZE})(documents);
            document.documentElement.dataset.done = "true";
          }});
        }}""",
        [text],
    )
    page.locator("html[data-done]").wait_for()
    (nodes,) = page.evaluate("window.found")
    shown_text = "".join(leaves([node for node in nodes if isinstance(node, list)]))
    letters = [char for char in text if char.isalpha()]
    assert [char for char in shown_text if char.isalpha()] == letters


def emphasis(levels: int) -> str:
    return "*a **b " * (levels // 2) + "c" + " d** e*" * (levels // 2)


def depth(nodes: list[Any]) -> int:
    return max((1 + depth(node[2:]) for node in nodes if not isinstance(node, str)), default=0)


def test_emphasis_has_a_hundred_levels_and_shows_the_marks_of_more(
    scripted: Scripted, open_page: OpenPage
) -> None:
    page = open_page(scripted)
    hundred, more = shown(page, [emphasis(100), emphasis(104)])
    assert depth(hundred) == 101  # and the paragraph
    assert "*" not in "".join(leaves(hundred))
    assert depth(more) == 101
    text = "".join(leaves(more))
    assert text.startswith("*a **b *a **b a b") and text.endswith("d e d** e* d** e*")


FAILING = """
async () => {
  const { Markdown } = await import('/page/markdown.js');
  const node = document.createElement('div');
  const markdown = new Markdown(node);
  const make = document.createElement;
  const seen = [];
  const show = (text) => {
    markdown.show(text);
    seen.push(node.innerHTML);
  };
  show('one\\n\\ntwo');
  document.createElement = function (tag) {
    if (tag === 'em') throw new RangeError('planted');
    return make.call(document, tag);
  };
  show('one\\n\\n<two> *three');
  show('one\\n\\n<two> *three*');
  show('one\\n\\n<two> *three* four');
  document.createElement = make;
  show('one\\n\\n<two> *three* four.');
  return seen;
}
"""


def test_a_text_that_fails_is_shown_as_it_is_written_until_it_fails_no_more(
    scripted: Scripted, open_page: OpenPage
) -> None:
    assert open_page(scripted).evaluate(FAILING) == [
        '<p dir="auto">one</p><p dir="auto">two</p>',
        '<p dir="auto">one</p><p dir="auto">&lt;two&gt; *three</p>',
        "one\n\n&lt;two&gt; *three*",
        "one\n\n&lt;two&gt; *three* four",
        '<p dir="auto">one</p><p dir="auto">&lt;two&gt; <em>three</em> four.</p>',
    ]
