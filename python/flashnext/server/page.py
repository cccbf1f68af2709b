"""The chat page at `/`: files of the package, served as they are under headers that let nothing else in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from flashnext.server.service import Service

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# What a model writes can neither run nor load nor send anything, even where the page should be wrong: only
# its own files are scripts and styles, only this server is asked, and no text is parsed as markup. A picture
# may be all in its address, as those that a user adds are: to show it asks nobody.
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
HEADERS = {
    "content-security-policy": "; ".join(_POLICY),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Kept, and asked for again each time: after an update no file is from before it.
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class _File:
    content: bytes
    headers: dict[str, str]


@cache
def _files() -> dict[str, _File]:
    """Read all files of the page, by the paths that they are asked for under."""
    out = {}
    for path in sorted(one for one in FOLDER.iterdir() if one.suffix in _TYPES):
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {**HEADERS, "content-type": _TYPES[path.suffix], "etag": etag}
        out["/" if path.name == INDEX else f"/page/{path.name}"] = _File(content, headers)
    return out


def is_page(path: str) -> bool:
    """Whether a path is one of the page's files, which say nothing of the server and need no key."""
    return path in _files()


async def page(service: Service, http: Request) -> Response:
    """GET / and the files that it needs."""
    file = _files().get(http.scope["path"])
    if file is None:
        raise HTTPException(404)
    known = http.headers.get("if-none-match", "").replace("W/", "").split(",")
    if any(etag.strip() in (file.headers["etag"], "*") for etag in known):
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)


ROUTES = (("GET", "/", page), ("GET", "/page/{name}", page))
