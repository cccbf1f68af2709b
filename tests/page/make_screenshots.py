"""Makes the pictures of docs/page.md: python tests/page/make_screenshots.py, from the root of the tree."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from PIL import Image
from playwright.sync_api import expect, sync_playwright
from support.chat_page import Scripted, replies

DOCS = Path(__file__).parents[2] / "docs"

REPLY = """Two of them, then. **Cats** have four legs, *birds* two:

| animal | legs | sound |
| :-- | --: | :-- |
| cat | 4 | miaow |
| bird | 2 | tweet |

```python
def legs(animals: list[str]) -> int:
    return sum(4 if one == "cat" else 2 for one in animals)
```

1. Count each animal once.
2. Read [the docs](https://docs.example/legs).
"""

PICTURES: dict[str, dict[str, Any]] = {
    "page-chat.png": {"viewport": {"width": 900, "height": 740}},
    "page-phone.png": {
        "viewport": {"width": 390, "height": 780},
        "has_touch": True,
        "is_mobile": True,
        "color_scheme": "dark",
    },
}


def _in_128_colours(path: Path) -> None:
    """Save a picture with a palette, which takes a third of the bytes."""
    few = Image.open(path).convert("RGB").quantize(128, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def main() -> None:
    server = Scripted(thinking=True)
    server.says(REPLY, thoughts="I count the legs of both.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        for name, options in PICTURES.items():
            page = browser.new_context(**options).new_page()
            page.goto(f"http://127.0.0.1:{server.port}/")
            expect(page.locator("#health")).to_have_text("ready")
            page.locator("#prompt").fill("How many legs do a cat and a bird have? Show me the code.")
            page.locator("#send").click()
            expect(replies(page)).to_have_count(1, timeout=60_000)
            page.screenshot(path=DOCS / name)
            _in_128_colours(DOCS / name)
        browser.close()
    server.close()


if __name__ == "__main__":
    main()
