"""Server-sent events by themselves: framing, keep-alive, and what closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from flashnext.server.stream import ClientGone, EventStream, while_there

DISCONNECT = {"type": "http.disconnect"}
Batches = AsyncGenerator[list[dict[str, Any]]]


class Connection:
    """An ASGI connection that records what is sent, and leaves when told to."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.gone = asyncio.Event()

    async def receive(self) -> Any:
        await self.gone.wait()
        return DISCONNECT

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.sent).decode()


async def send_stream(
    batches: Batches,
    connection: Connection,
    send: Callable[[Any], Awaitable[None]] | None = None,
    *,
    keepalive_s: float = 60,
    ends: list[bool] | None = None,
) -> None:
    on_end = ([] if ends is None else ends).append
    there = while_there(connection.receive)
    stream = EventStream(batches, there=there, keepalive_s=keepalive_s, on_end=on_end)
    await stream({}, connection.receive, send or connection.send)


def test_objects_are_framed_and_the_end_is_told() -> None:
    ends: list[bool] = []

    async def batches() -> Batches:
        yield [{"a": "é\n\n"}]
        yield []
        yield [{"b": 1}, {"c": None}]

    async def run() -> Connection:
        connection = Connection()
        await send_stream(batches(), connection, ends=ends)
        return connection

    connection = asyncio.run(run())
    bodies = [message.get("body") for message in connection.sent]
    objects = 'data: {"a":"é\\n\\n"}\n\n', 'data: {"b":1}\n\ndata: {"c":null}\n\n'
    assert bodies == [None, *(text.encode() for text in objects), b"data: [DONE]\n\n"]
    assert [message.get("more_body", False) for message in connection.sent[1:]] == [True, True, False]
    assert ends == [False]


def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    connection = Connection()

    async def batches() -> Batches:
        while connection.text.count("still") < 2:
            await asyncio.sleep(0.01)
            yield []  # nothing that the client sees
        yield [{}]

    asyncio.run(send_stream(batches(), connection, keepalive_s=0.1))
    assert connection.text == ": still here\n\n" * 2 + "data: {}\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("inside", [True, False])
def test_the_objects_are_closed_when_the_client_goes(inside: bool) -> None:
    closed: list[str] = []
    ends: list[bool] = []

    async def batches() -> Batches:
        try:
            yield [{}]
            await asyncio.sleep(60)
            yield [{}]
        finally:
            closed.append("yes")

    async def run() -> None:
        connection = Connection()

        async def send(message: Any) -> None:
            await connection.send(message)
            if "data: {}" in connection.text:
                if inside:
                    raise OSError("broken pipe")
                connection.gone.set()

        await asyncio.wait_for(send_stream(batches(), connection, send, ends=ends), 10)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert (closed, ends) == (["yes"], [True])


def test_a_block_is_cancelled_when_the_client_goes_and_its_errors_are_its_own() -> None:
    async def run() -> None:
        connection = Connection()
        with pytest.raises(ClientGone):
            async with while_there(connection.receive):
                connection.gone.set()
                await asyncio.sleep(60)
        with pytest.raises(KeyError, match="mine"):
            async with while_there(Connection().receive):
                raise KeyError("mine")
        async with while_there(Connection().receive):
            pass
        await asyncio.sleep(0)  # what was cancelled ends
        assert len(asyncio.all_tasks()) == 1
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    asyncio.run(run())


def test_a_client_that_goes_as_the_block_ends_cancels_nothing_behind_it() -> None:
    async def run() -> None:
        connection = Connection()
        with pytest.raises(ClientGone):
            async with while_there(connection.receive):
                await asyncio.sleep(0)
                connection.gone.set()
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    asyncio.run(run())


def test_who_cancels_the_request_is_not_told_that_the_client_has_gone() -> None:
    async def serve(connection: Connection) -> None:
        async with while_there(connection.receive):
            await asyncio.sleep(60)

    async def run(gone: bool) -> None:
        connection = Connection()
        task = asyncio.ensure_future(serve(connection))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if gone:
            connection.gone.set()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    for gone in (False, True):
        asyncio.run(run(gone))
