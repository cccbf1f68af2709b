"""From the chat of a request to the prompt that the engine reads, with files in place of their addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from starlette.types import Receive

from flashnext.engine.chat_media import Brought, found
from flashnext.engine.reading import ReadPrompt
from flashnext.media import ImagePart, MediaError, Part, VideoPart, check_counts
from flashnext.media.limits import DETAILS
from flashnext.server.answering import Running
from flashnext.server.chat_request import Asked
from flashnext.server.service import Service
from flashnext.server.shown import told_where_written
from flashnext.server.stream import while_there
from flashnext.text.messages import InvalidField, cut


async def read_chat(service: Service, turn: Asked, running: Running) -> ReadPrompt:
    """Read a chat, with what it shows, once there is room for that, which the replies hold to their end.

    Args:
        service: Whose engine reads.
        turn: The chat.
        running: The replies; gets what addresses held, where that is kept.

    Raises:
        InvalidField: It cannot be read, with the place in the request.
        RequestTimeout: It took longer than replies may.
    """
    async with running.in_time():
        return await _read(service, turn, {} if running.fetched is None else running.fetched, running.hold)


async def _read(
    service: Service,
    turn: Asked,
    fetched: dict[str, bytes],
    hold: Callable[[AbstractContextManager[object]], object],
) -> ReadPrompt:
    engine = service.engine
    with told_where_written(turn.messages):
        most = engine.most_media_bytes(turn.messages) + _most_fetched(service, turn.messages)
        place = await service.media_room.place(most)
        hold(place)
        messages = await _opened(service, turn.messages, fetched)
        prompt = await engine.read_async(messages, tools=turn.tools, options=turn.options)
        place.shrink(prompt.media_bytes)
        return prompt


async def tokens_of(service: Service, turn: Asked, receive: Receive) -> list[int]:
    """Give the tokens of a chat's prompt; what it shows is decoded for that, and not looked at.

    Args:
        service: Whose engine reads.
        turn: The chat.
        receive: Tells that the client is gone, for whom nothing more is decoded then.

    Raises:
        InvalidField: As for `read_chat`.
        ClientGone: The client left.
    """
    if found(turn.messages):
        async with while_there(receive):
            with ExitStack() as held:
                return (await _read(service, turn, {}, held.enter_context)).token_ids
    rendered = await asyncio.to_thread(
        service.engine.template.render, turn.messages, turn.tools, turn.options
    )
    return rendered.token_ids


def _most_fetched(service: Service, messages: list[dict[str, Any]]) -> int:
    """Bound the bytes of what a chat names by addresses."""
    if service.addresses is None:
        return 0
    limits = service.settings.media_limits
    n_bytes = sum(
        limits.image_bytes if one.kind == "image" else limits.video_bytes
        for one in found(messages)
        if one.type != one.kind and not _has_data(one)
    )
    return min(n_bytes, service.settings.max_body_bytes)


async def _opened(
    service: Service, messages: list[dict[str, Any]], fetched: dict[str, bytes]
) -> list[dict[str, Any]]:
    """Put files in place of the addresses that a chat has."""
    brought = found(messages)
    if not brought or service.engine.eyes is None:  # which the engine refuses with the reason
        return messages
    urls = {i: url for i, one in enumerate(brought) if (url := _address(service, one)) is not None}
    if not urls:
        return messages
    _require_few(service, brought)
    details = {i: _detail(brought[i]) for i in urls}
    addresses, limits = service.addresses, service.settings.media_limits
    assert addresses is not None
    left = service.settings.max_body_bytes
    out = [dict(message) for message in messages]
    for i, url in urls.items():
        one = brought[i]
        most = limits.image_bytes if one.kind == "image" else limits.video_bytes
        place = f"{one.place}.{one.type}"
        try:
            data = fetched[url] if url in fetched else await addresses.fetch(url, min(most, left))
        except MediaError as error:
            why = error.problem
            if left < most:
                why += (
                    f"; all files of a request together may have {service.settings.max_body_bytes} bytes, "
                    "the server's --max-body"
                )
            raise InvalidField(f"{place}.url", why) from None
        if url not in fetched:
            fetched[url] = data
            left -= len(data)
        part = {"type": one.kind, one.kind: data, "detail": details[i]}
        content = out[one.message]["content"]
        out[one.message]["content"] = [*content[: one.part], part, *content[one.part + 1 :]]
    return out


def _address(service: Service, one: Brought) -> str | None:
    """Read the address that has to be fetched; None where a part has its file with it, or is refused later.

    Raises:
        InvalidField: It is of another kind, or none is fetched here.
    """
    if _has_data(one):
        return None
    url: str = one.value["url"]
    place, told = f"{one.place}.{one.type}.url", cut(repr(url[:80]), 60)
    if service.addresses is None:
        raise InvalidField(
            place,
            f"expected a data: URL with the file in base64, found {told}; no addresses are opened here, "
            "which flashnext-serve does with --media-urls",
        )
    if url[:8].lower() != "https://":
        raise InvalidField(
            place,
            f"expected a data: URL with the file in base64, or one that begins with https://, found {told}",
        )
    return url


def _has_data(one: Brought) -> bool:
    """Whether a part has its file with it, or is none."""
    url = one.value.get("url") if isinstance(one.value, Mapping) else None
    return not isinstance(url, str) or url[:5].lower() == "data:"


def _detail(one: Brought) -> Any:
    """Read how closely to look at what has to be fetched.

    Raises:
        InvalidField: It is none that there is.
    """
    inside = one.value.get("detail") is not None
    detail = one.value["detail"] if inside else one.detail
    known = DETAILS if one.kind == "image" else ("auto",)
    if detail is not None and detail not in known:
        place = f"{one.place}.{one.type}.detail" if inside else f"{one.place}.detail"
        raise InvalidField(place, f"expected one of {', '.join(known)}, found {cut(repr(detail), 80)}")
    return detail


def _require_few(service: Service, brought: Sequence[Brought]) -> None:
    """Refuse a chat that shows too much before anything of it is fetched."""
    counted: list[Part] = [ImagePart(b"") if one.kind == "image" else VideoPart(b"") for one in brought]
    try:
        check_counts(counted, service.settings.media_limits)
    except MediaError as error:
        raise InvalidField(brought[error.part or 0].place, error.problem) from None
