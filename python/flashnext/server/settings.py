"""What a server is told by its command line, its environment and its configuration file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from flashnext.media.limits import Limits

MIB = 1024 * 1024


@dataclass(frozen=True)
class Defaults:
    """What the server uses where a request says nothing; None leaves it to the checkpoint.

    Attributes:
        max_tokens: Cap of a reply; None for what the context leaves.
        thinking: Whether chats think where they do not say.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    thinking: bool = True


@dataclass(frozen=True)
class Settings:
    """How a server behaves.

    Attributes:
        names: Names of the model; the first is the one that replies carry.
        path: What was served, accepted as a name and not listed: it says where things are on this machine.
        defaults: Where requests say nothing.
        media_limits: How much chats may show.
        media_room_bytes: What the prepared media of all open requests take together, at most; a request for
            which there is no room waits for its turn.
        media_urls: Fetch what requests name by an https address.
        strict_fields: Refuse unknown fields.
        api_keys: Any of them opens; empty for a server that is open to all.
        hosts: Names, beside addresses and localhost, under which it may be asked.
        cors_origins: Origins of web pages that may ask; "*" for all.
        page: Serve the chat page.
        max_body_bytes: Longest body that is read.
        max_connections: Connections that may be open.
        max_queue: Requests that may wait, beside those that are answered at once.
        timeout_s: Longest time that a reply may take; 0 for any.
        stall_s: An engine that is in one step for this long counts as wedged.
        drain_s: How long open replies may go on once the server is told to end.
        keepalive_s: A stream sends a comment whenever the client has seen nothing for this long.
        max_responses: Responses that are kept in memory for others to go on from; 0 for none.
        max_responses_bytes: What they may say together.
        patience_s: A client that sends no request or not all of one, or takes nothing of a response, for this
            long is not waited for any more.
        log_prompts: Log what requests say.
        record: File to which finished requests are appended, so that they can be replayed.
    """

    names: tuple[str, ...]
    path: str | None = None
    defaults: Defaults = field(default_factory=Defaults)
    media_limits: Limits = field(default_factory=Limits)
    media_room_bytes: int = 2 << 30
    media_urls: bool = False
    strict_fields: bool = False
    api_keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    page: bool = True
    max_body_bytes: int = 64 * MIB
    max_connections: int = 4096
    max_queue: int = 256
    timeout_s: float = 0.0
    stall_s: float = 120.0
    drain_s: float = 10.0
    keepalive_s: float = 5.0
    patience_s: float = 60.0
    max_responses: int = 1000
    max_responses_bytes: int = 64 * MIB
    log_prompts: bool = False
    record: Path | None = None
