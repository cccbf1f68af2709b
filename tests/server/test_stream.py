"""Server-sent events by themselves: framing, keep-alive, and what closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from flashnext.server.stream import ClientGone, EventStream, unless_gone

DISCONNECT = {"type": "http.disconnect"}


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


def test_objects_are_framed_and_the_end_is_told() -> None:
    async def objects() -> AsyncGenerator[dict[str, Any]]:
        yield {"a": "é\n\n"}
        yield {"b": 1}

    async def run() -> Connection:
        connection = Connection()
        await EventStream(objects())({}, connection.receive, connection.send)
        return connection

    connection = asyncio.run(run())
    assert connection.text == 'data: {"a":"é\\n\\n"}\n\ndata: {"b":1}\n\ndata: [DONE]\n\n'
    assert connection.sent[-1].get("more_body", False) is False


def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    async def objects() -> AsyncGenerator[dict[str, Any]]:
        await asyncio.sleep(0.25)
        yield {}

    async def run() -> str:
        connection = Connection()
        await EventStream(objects(), keepalive_s=0.1)({}, connection.receive, connection.send)
        return connection.text

    assert asyncio.run(run()) == ": still here\n\n" * 2 + "data: {}\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("inside", [True, False])
def test_the_objects_are_closed_when_the_client_goes(inside: bool) -> None:
    closed: list[str] = []

    async def objects() -> AsyncGenerator[dict[str, Any]]:
        try:
            yield {}
            await asyncio.sleep(60)
            yield {}
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

        await asyncio.wait_for(EventStream(objects())({}, connection.receive, send), 10)

    asyncio.run(run())
    assert closed == ["yes"]


def test_work_is_cancelled_when_the_client_goes_and_its_errors_are_its_own() -> None:
    async def run() -> None:
        connection = Connection()
        cancelled = asyncio.Event()

        async def work() -> None:
            try:
                connection.gone.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        with pytest.raises(ClientGone):
            await unless_gone(connection.receive, work())
        assert cancelled.is_set()

        async def fail() -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await unless_gone(Connection().receive, fail())
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
