"""The server's log: a line for each request, with its id, as text on a terminal and else as JSON."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flashnext.server.guard import OPEN_PATHS
from flashnext.server.page import is_page

_log = logging.getLogger("flashnext.request")
_OTHERS = ("uvicorn.error", "asyncio")


class RequestLog:
    """Gives each request an id, tells it in `x-request-id`, and logs what became of the request."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        new_id: Callable[[], str],
        clock_s: Callable[[], float],
        told: Callable[[str, int, Mapping[str, Any]], object],
    ) -> None:
        """Wrap an application, which finds what its line will tell in the scope's `state["detail"]`.

        Args:
            app: The application.
            new_id: Makes the random part of ids.
            clock_s: A clock that never goes back.
            told: Called with path, status and detail of each request at its end.
        """
        self._told = told
        self._app = app
        self._new_id = new_id
        self._clock_s = clock_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{self._new_id()}"
        detail: dict[str, Any] = {"id": request_id}
        scope.setdefault("state", {})["detail"] = detail
        began = self._clock_s()
        status = 0

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers: list[tuple[bytes, bytes]] = list(message.get("headers", []))
                # Under the names that OpenAI's and Anthropic's clients read.
                ids = [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]
                message = {**message, "headers": [*headers, *ids]}
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except Exception:
            # Told here, with the id, and not once more by who called: it closes what was not answered whole.
            _log.exception("a request failed", extra={"fields": {"id": request_id}})
        finally:
            path = scope["path"]
            self._told(path, status or 499, detail)
            quiet = (path in OPEN_PATHS and status == 200) or (is_page(path) and status in (200, 304))
            fields: dict[str, Any] = {
                "id": request_id,
                "method": scope["method"],
                "path": path,
                "status": status or 499,
                "ms": round((self._clock_s() - began) * 1e3, 1),
                **detail,
            }
            _log.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": fields})


class JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        out: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            out["error"] = self.formatException(record.exc_info)
        return json.dumps(out)


class TextLines(logging.Formatter):
    """A line of text a record, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = getattr(record, "fields", {})
        # Escaped, so that no request can write control characters to a terminal.
        told = " ".join(f"{key}={ascii(value).strip(chr(39))}" for key, value in fields.items())
        line = f"{time} {record.levelname.lower()} {record.getMessage()} {told}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(level: str, form: str, stream: TextIO = sys.stderr) -> None:
    """Send the log to a stream. What Pillow warns of in pictures is left out: a file can make it many lines.

    Args:
        level: Name of the lowest level that is written.
        form: "text", "json", or "auto" for text on a terminal and else JSON.
        stream: Where it goes.
    """
    text = stream.isatty() if form == "auto" else form == "text"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines() if text else JsonLines())
    lowest = logging.getLevelNamesMapping()[level.upper()]
    # What the HTTP server and the event loop have to say of failures belongs into the same lines.
    for name, least in (("flashnext", lowest), *((name, max(lowest, logging.WARNING)) for name in _OTHERS)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(least)
        logger.propagate = False
    warnings.filterwarnings("ignore", module=r"PIL\.")
