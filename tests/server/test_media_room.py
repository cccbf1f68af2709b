"""What the media of open requests take of memory is bounded, and who comes first goes first."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from flashnext.engine.engine import BUNDLED
from flashnext.media import Limits, read_rules
from flashnext.media.sizes import most_bytes
from flashnext.server.media_room import MediaRoom, Place
from PIL import Image
from support.media_files import encoded
from support.serving import ServerThread, until


def during(test: Callable[[MediaRoom], Awaitable[None]], limit: int = 100) -> None:
    asyncio.run(asyncio.wait_for(test(MediaRoom(limit)), 60))


async def begun(room: MediaRoom, *sizes: int) -> list[asyncio.Task[Place]]:
    tasks = [asyncio.create_task(room.place(n)) for n in sizes]
    await asyncio.sleep(0)
    return tasks


def done(tasks: list[asyncio.Task[Place]]) -> list[bool]:
    return [task.done() for task in tasks]


def test_who_has_no_room_waits_for_its_turn_and_nobody_passes_it() -> None:
    async def test(room: MediaRoom) -> None:
        tasks = await begun(room, 60, 50, 10)
        assert done(tasks) == [True, False, False] and room.used_bytes == 60
        tasks[0].result().shrink(50)  # its media took less
        await asyncio.sleep(0)
        assert done(tasks) == [True, True, False] and room.used_bytes == 100
        with tasks[1].result():
            pass
        assert (await tasks[2]) and room.used_bytes == 60
        for task in (tasks[0], tasks[2]):
            task.result().shrink(0)
        assert room.used_bytes == 0

    during(test)


def test_text_waits_for_nobody_and_too_much_for_all() -> None:
    async def test(room: MediaRoom) -> None:
        tasks = await begun(room, 10, 1000, 0)
        assert done(tasks) == [True, False, True]
        tasks[0].result().shrink(0)
        (await tasks[1]).shrink(0)
        assert room.used_bytes == 0

    during(test)


@pytest.mark.parametrize("given", [False, True])
def test_who_leaves_the_line_leaves_nothing(given: bool) -> None:
    async def test(room: MediaRoom) -> None:
        first, leaving, last = await begun(room, 100, 80, 70)
        if given:  # its turn has come, and it does not know yet
            first.result().shrink(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        if not given:
            first.result().shrink(0)
        (await last).shrink(0)
        assert room.used_bytes == 0

    during(test)


@pytest.fixture
def server() -> Iterator[ServerThread]:
    server = ServerThread(parallel=4, media_room_bytes=1)
    yield server
    server.close()


def ask(server: ServerThread, i: int = 0, data: bytes = b"", **more: Any) -> httpx.Response:
    url = f"data:;base64,{base64.b64encode(data or picture(i)).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 4, "model": "tiny"}
    where = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    return httpx.post(where, json=body, **{"timeout": 120, **more})


def picture(i: int) -> bytes:
    return encoded(Image.new("RGB", (96, 64), (40 * i, 90, 200)), "PNG")


def test_with_room_for_one_picture_all_who_ask_at_once_are_answered(server: ServerThread) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert [said.status_code for said in pool.map(partial(ask, server), range(6))] == [200] * 6
    assert server.service.media_room.used_bytes == 0


def test_a_request_waits_for_room_no_longer_than_its_client_or_its_time(server: ServerThread) -> None:
    room = server.service.media_room
    taken = asyncio.run_coroutine_threadsafe(room.place(1), server.loop).result(60)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(ask, server, timeout=0.5)
        until(lambda: len(room._waiting) == 1, "nobody waits")
        with pytest.raises(httpx.TimeoutException):
            waits.result(60)
        until(lambda: not room._waiting, "who left still waits")
        server.service.settings = replace(server.service.settings, timeout_s=0.2)
        late = ask(server)
        assert late.status_code == 504 and "--request-timeout" in late.json()["error"]["message"]
        server.service.settings = replace(server.service.settings, timeout_s=0.0)
        waits = pool.submit(ask, server)
        until(lambda: len(room._waiting) == 1, "nobody waits")
        assert not waits.done()
        server.loop.call_soon_threadsafe(taken.shrink, 0)
        assert waits.result(60).status_code == 200
    assert room.used_bytes == 0


def test_replies_hold_their_room_to_their_end_and_broken_pictures_none(server: ServerThread) -> None:
    room, seen = server.service.media_room, list[int]()
    server.core.before = lambda what: seen.append(room.used_bytes)
    assert ask(server).status_code == 200
    most, _ = most_bytes(read_rules(BUNDLED), Limits())
    assert len(set(seen)) == 1 and 0 < seen[0] < most / 4, "what a small picture takes, not what it might"
    assert ask(server, data=picture(0)[:60]).status_code == 400
    assert room.used_bytes == 0
