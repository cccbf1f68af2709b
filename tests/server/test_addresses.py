"""Files from addresses: of public servers alone, over TLS, within limits; here from a server of the tests."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from flashnext.media import Limits, MediaError
from flashnext.server import addresses
from flashnext.server.addresses import MAX_REDIRECTS, Addresses, connector, is_public
from PIL import Image
from support.media_files import encoded
from support.serving import ServerThread

# Of nobody: for media.example and other.example, signed by itself, until 2120.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgBr28dBWiNUW3IG0s
iDO5CjSsv6OUNWyWRcFVRCzrUtKhRANCAARogwgOWJmqqn2my+hP4wfBaZR4znxC
qDqlqQ+s/SK/qmG18DybMUn321rFloZfmarWGWsvJOIEEk9F8PBuvWJc
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBizCCATKgAwIBAgIBATAKBggqhkjOPQQDAjAYMRYwFAYDVQQDDA1tZWRpYS5l
eGFtcGxlMCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjAYMRYwFAYD
VQQDDA1tZWRpYS5leGFtcGxlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaIMI
DliZqqp9psvoT+MHwWmUeM58Qqg6pakPrP0iv6phtfA8mzFJ99taxZaGX5mq1hlr
LyTiBBJPRfDwbr1iXKNrMGkwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQU6rJe
rLXm1/B8BEhF5N9EkQGB/fEwDgYDVR0PAQH/BAQDAgKEMCcGA1UdEQQgMB6CDW1l
ZGlhLmV4YW1wbGWCDW90aGVyLmV4YW1wbGUwCgYIKoZIzj0EAwIDRwAwRAIgCqcX
d3cTMbR/fYWlYsF/HWGUoAU5zPsCK0GAaa8yxw4CIFV/1SKEaTpslb9i78XzvKMv
CIY3uUfH0VkAKtKJbwC2
-----END CERTIFICATE-----
"""
PUBLIC, OTHER = "93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
PICTURE = encoded(Image.new("RGB", (64, 64), "red"), "PNG")

Answers = dict[str, bytes]


def ok(data: bytes, *headers: str) -> bytes:
    head = "".join(f"{one}\r\n" for one in ("HTTP/1.1 200 OK", f"content-length: {len(data)}", *headers))
    return head.encode() + b"\r\n" + data


def leads(to: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n".encode()


class World:
    """Names with their addresses, and one server behind all of these.

    Attributes:
        names: The addresses of each name, one list for each time that it is asked for; the last stays.
        answers: What the server writes, by path.
        asked: Requests, as they came.
        dialled: Addresses that were connected to, with the name that was meant.
        shown: Names that clients showed before the certificate.
    """

    def __init__(self, tmp_path: Path) -> None:
        self.names: dict[str, list[list[str]]] = {}
        self.answers: Answers = {}
        self.asked: list[str] = []
        self.dialled: list[tuple[str, str]] = []
        self.shown: list[str | None] = []
        self.silent = False
        self._file = tmp_path / "certificate.pem"
        self._file.write_text(CERTIFICATE)

    async def resolve(self, name: str) -> list[str]:
        found = self.names.get(name)
        if found is None:
            raise OSError("no such name")
        return found.pop(0) if len(found) > 1 else found[0]

    def run(self, use: Callable[[Addresses], Awaitable[Any]], seconds: float = 60) -> Any:
        """Serve for as long as something takes."""

        async def serve() -> Any:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._file)
            context.sni_callback = lambda sock, name, ctx: self.shown.append(name)
            server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=context)
            port = server.sockets[0].getsockname()[1]
            dial = connector(ssl.create_default_context(cafile=str(self._file)), port)

            async def connect(address: str, name: str) -> Any:
                self.dialled.append((address, name))
                return await dial("127.0.0.1", name)

            try:
                return await use(Addresses(resolve=self.resolve, connect=connect, seconds=seconds))
            finally:
                server.close()

        return asyncio.run(serve())

    def fetch(self, url: str, most: int = 10**6, seconds: float = 60) -> bytes:
        found = self.run(lambda addresses: addresses.fetch(url, most), seconds)
        assert isinstance(found, bytes)
        return found

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head)
            if self.silent:
                await asyncio.sleep(60)
            writer.write(self.answers.get(head.split()[1], b"HTTP/1.1 404 Not Found\r\n\r\n"))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.names = {"media.example": [[PUBLIC]], "other.example": [[OTHER]]}
    return world


def refused(world: World, url: str, words: str, **more: Any) -> None:
    with pytest.raises(MediaError) as caught:
        world.fetch(url, **more)
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300


# --- which addresses are public

PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254"),
    *(
        "168.63.129.16",
        "169.254.169.254",
        "169.254.170.2",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.88.99.1",
        "3fff::1",
    ),
    *("192.0.2.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.2.3"),
    *("240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *("::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1"),
    *("2001::1", "2001:db8::1", "2002:7f00:1::", "2002:5db8:d70e::", "fc00::1", "fd00:ec2::254"),
    *("fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1", "2606:2800::1%eth0"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_of_a_machine_or_a_network_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", [PUBLIC, OTHER, "1.1.1.1", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_other_addresses_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


# --- what is fetched


def test_a_file_comes_from_the_address_that_was_looked_at_under_the_name(world: World) -> None:
    world.answers["/a.png?b=1"] = ok(PICTURE)
    assert world.fetch("https://media.example/a.png?b=1#part") == PICTURE
    assert world.dialled == [(PUBLIC, "media.example")] and world.shown == ["media.example"]
    (asked,) = world.asked
    lines = asked.lower().splitlines()
    assert "host: media.example" in lines and "accept-encoding: identity" in lines
    assert not [line for line in lines if line.startswith(("cookie", "authorization", "referer"))]


def test_a_file_may_come_in_chunks_or_end_with_its_connection(world: World) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (PICTURE[:50], PICTURE[50:]))
    world.answers = {
        "/chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n",
        "/end": b"HTTP/1.0 200 OK\r\n\r\n" + PICTURE,
        "/early": b"HTTP/1.1 103 Early Hints\r\n\r\n" + ok(PICTURE),
    }
    for path in world.answers:
        assert world.fetch(f"https://media.example{path}") == PICTURE


def test_no_proxy_of_the_environment_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    world.answers["/a.png"] = ok(PICTURE)
    assert world.fetch("https://media.example/a.png") == PICTURE


def test_redirections_are_followed_and_each_is_resolved_anew(world: World) -> None:
    world.answers = {"/a": leads("https://other.example/b"), "/b": leads("/c"), "/c": ok(PICTURE)}
    assert world.fetch("https://media.example/a") == PICTURE
    assert world.dialled == [
        (PUBLIC, "media.example"), (OTHER, "other.example"), (OTHER, "other.example"),
    ]  # fmt: skip


def test_redirections_end(world: World) -> None:
    world.answers = {"/a": leads("/a")}
    refused(world, "https://media.example/a", "more than 3 times")
    assert len(world.asked) == MAX_REDIRECTS + 1


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("http://media.example/b", "only https:"),
        ("file:///etc/passwd", "only https:"),
        ("data:image/png;base64,AAAA", "only https:"),
        ("https://media.example:8443/b", "only 443"),
        ("https://me:secret@media.example/b", "name or password"),
        ("https://inside.example/b", "not a server of the public network"),
        ("//inside.example/b", "not a server of the public network"),
        ("https://nowhere.example/b", "no address"),
        ("https://[::1", "cannot be read"),
        ("//[", "cannot be read"),
        ("https://media.example:x/b", "cannot be read"),
        ("https://media.example/" + "b" * 3000, "at most 2048"),
    ],
)
def test_a_redirection_is_looked_at_like_an_address(to: str, words: str, world: World) -> None:
    world.names["inside.example"] = [["10.1.2.3"]]
    world.answers = {"/a": leads(to), "/b": ok(PICTURE)}
    refused(world, "https://media.example/a", words)
    assert len(world.asked) == 1


def test_a_name_that_changes_its_address_is_asked_where_it_was_looked_at(world: World) -> None:
    world.names["media.example"] = [[PUBLIC], ["127.0.0.1"]]
    world.answers["/a"] = ok(PICTURE)
    assert world.fetch("https://media.example/a") == PICTURE
    assert world.dialled == [(PUBLIC, "media.example")]
    refused(world, "https://media.example/a", "not a server of the public network")
    world.names["media.example"] = [[PUBLIC], ["127.0.0.1"]]
    world.answers["/b"] = leads("/a")
    refused(world, "https://media.example/b", "not a server of the public network")
    assert len(world.asked) == 2


def test_one_private_address_among_public_ones_is_enough(world: World) -> None:
    for inside in ("127.0.0.1", "::1", "169.254.169.254", "::ffff:10.0.0.1"):
        world.names["media.example"] = [[PUBLIC, inside]]
        refused(world, "https://media.example/a", "not a server of the public network")
    assert world.dialled == []


def test_a_certificate_of_another_name_is_refused(world: World) -> None:
    world.names["third.example"] = [[PUBLIC]]
    world.answers["/a"] = ok(PICTURE)
    refused(world, "https://third.example/a", "its certificate is refused")
    assert world.asked == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ok(bytes(2001)), "more than 2000 bytes"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + bytes(2001), "more than 2000 bytes"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: %b\r\n\r\n" % (b"9" * 30), "fetched"),
        (ok(PICTURE, "content-encoding: gzip"), "compressed"),
        (ok(PICTURE, "content-encoding: gzip", "content-encoding: identity"), "compressed"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc", "breaks the rules of HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nabc", "breaks the rules"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\nabc", "breaks the rules of HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc", "cannot be fetched"),
        (b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "answered 403"),
        (b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n", "answered 302"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "cannot be fetched"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000 + b"\r\n", "cannot be fetched"),
        (b"", "the file cannot be fetched"),
    ],
    ids=range(14),
)
def test_an_answer_that_is_no_file_within_limits_is_refused(answer: bytes, words: str, world: World) -> None:
    world.answers["/a"] = answer
    refused(world, "https://media.example/a", words, most=2000)


def test_a_server_that_says_nothing_is_left(world: World) -> None:
    world.silent = True
    refused(world, "https://media.example/a", "did not come within 0.2 s", seconds=0.2)


def test_a_server_that_cuts_its_answer_to_pieces_holds_up_nobody_and_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = addresses._PIECE
    pieces = b"1\r\nA\r\n" * (4 * n)
    world.answers["/a"] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"
    turns = 0

    async def beside(files: Addresses) -> bytes:
        nonlocal turns
        fetched = asyncio.ensure_future(files.fetch("https://media.example/a", 10**6))
        while not fetched.done():
            turns += 1
            await asyncio.sleep(0)
        return await fetched

    assert world.run(beside) == b"A" * (4 * n)
    assert turns >= len(pieces) // n  # the loop went round for each piece
    monkeypatch.setattr(addresses, "_BUFFER", 2**14)  # and what stands around a file is bounded
    refused(world, "https://media.example/a", "more around the file than the file has", most=40_000)


def test_the_next_address_of_a_name_is_tried_where_one_does_not_answer(world: World) -> None:
    world.names["media.example"] = [[PUBLIC, OTHER]]
    world.answers["/a"] = ok(PICTURE)

    async def use(files: Addresses) -> bytes:
        connect = files._connect

        async def first_hangs(address: str, name: str) -> Any:
            if address == PUBLIC:
                await asyncio.sleep(60)
            return await connect(address, name)

        files._connect = first_hangs
        return await files.fetch("https://media.example/a", 10**6)

    assert world.run(use, seconds=4) == PICTURE


def test_names_for_which_nobody_answers_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    n_asked = 0

    def silent(name: str, *how: Any, **more: Any) -> list[Any]:
        nonlocal n_asked
        n_asked += 1
        answered.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)

    async def fetch_many() -> list[Any]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        files = Addresses()
        fetched = [files.fetch(f"https://{i}.example/", 1000) for i in range(addresses.MAX_AT_ONCE)]
        told = await asyncio.gather(*fetched, return_exceptions=True)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 5), 60) == 5
        late = asyncio.ensure_future(files.fetch("https://late.example/", 1000))
        await asyncio.sleep(0.1)
        assert n_asked == addresses.MAX_AT_ONCE and not late.done()  # a thread has one name until it is told
        answered.set()
        return [*told, await asyncio.gather(late, return_exceptions=True)]

    monkeypatch.setattr(addresses, "NAME_S", 0.01)
    told = asyncio.run(fetch_many())
    assert all("has no address" in str(one) for one in told)
    assert n_asked == addresses.MAX_AT_ONCE + 1


def test_no_more_files_are_fetched_at_a_time_than_may_be(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "MAX_AT_ONCE", 2)
    now, most = 0, 0
    resolve = world.resolve

    async def slow(name: str) -> list[str]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(20):
            await asyncio.sleep(0)
        found = await resolve(name)
        now -= 1
        return found

    world.resolve = slow  # type: ignore[method-assign]
    world.answers["/a"] = ok(PICTURE)

    async def several(addresses: Addresses) -> list[bytes]:
        return await asyncio.gather(*(addresses.fetch("https://media.example/a", 10**6) for _ in range(6)))

    assert world.run(several) == [PICTURE] * 6
    assert most == 2


# --- addresses that are refused as they stand; names and numbers are those that the system knows

AS_THEY_STAND = [
    ("https://127.0.0.1/a.png", "public network"),
    ("https://127.1/a.png", "public network"),
    ("https://2130706433/a.png", "public network"),
    ("https://0x7f000001/a.png", "public network"),
    ("https://0177.0.0.1/a.png", "public network"),
    ("https://0/a.png", "public network"),
    ("https://[::1]/a.png", "public network"),
    ("https://[::ffff:127.0.0.1]/a.png", "public network"),
    ("https://[fe80::1]/a.png", "public network"),
    ("https://localhost/a.png", "public network"),
    ("https://10.0.0.1/a.png", "public network"),
    ("https://169.254.169.254/latest/meta-data/", "public network"),
    ("https://224.0.0.1/", "public network"),
    ("https://93.184.215.14:22/", "only 443"),
    ("https://93.184.215.14:99999/", "cannot be read"),
    ("https://me:you@93.184.215.14/", "name or password"),
    ("https://@93.184.215.14/", "name or password"),
    ("https://", "names no server"),
    ("https:///etc/passwd", "names no server"),
    ("https://a.example/b c", "characters"),
    ("https://a.example/\r\nhost: b", "characters"),
    ("https://ä.example/", "characters"),
    ("https://a.example\\@127.0.0.1/", "characters"),
    ("https://[::1/", "cannot be read"),
    ("https://a.example/" + "a" * 3000, "3018 characters"),
]


@pytest.mark.parametrize(("url", "words"), AS_THEY_STAND)
def test_an_address_that_leads_to_no_public_server_is_refused_unasked(url: str, words: str) -> None:
    async def no(address: str, name: str) -> Any:
        raise AssertionError((address, name))

    with pytest.raises(MediaError, match=words):
        asyncio.run(Addresses(connect=no).fetch(url, 1000))


# --- a server with --media-urls


class Fetched(Addresses):
    """Gives what it has, and counts what it was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.files, self.asked = files, list[tuple[str, int]]()

    async def fetch(self, url: str, most: int) -> bytes:
        self.asked.append((url, most))
        if url not in self.files:
            raise MediaError("the server of the address answered 404")
        return self.files[url]


def chat(*urls: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url, **more}} for url in urls]
    return {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": parts}]}


def test_a_server_that_may_fetch_does_once_for_each_address_and_says_where_it_could_not(
    tmp_path: Path,
) -> None:
    url = "https://media.example/a.png"
    server = ServerThread(media_urls=True, media_limits=Limits(max_images=3), record=tmp_path / "r")
    try:
        server.service.addresses = files = Fetched({url: PICTURE, "https://bad.example/": b"no picture"})

        def post(route: str, body: dict[str, Any]) -> httpx.Response:
            return httpx.post(f"http://127.0.0.1:{server.port}{route}", json=body, timeout=60)

        def problem(body: dict[str, Any], route: str = "/v1/chat/completions") -> str:
            reply = post(route, body)
            assert reply.status_code == 400, reply.text
            return str(reply.json()["error"]["message"])

        assert post("/v1/chat/completions", chat(url, url)).status_code == 200
        assert files.asked == [(url, Limits().image_bytes)]
        recorded = (tmp_path / "r").read_text()
        assert url not in recorded and recorded.count("data:;base64,") == 2
        gone = "https://media.example/gone"
        assert problem(chat(url, gone)) == (
            "messages[0].content[1].image_url.url: the server of the address answered 404"
        )
        assert problem(chat("https://bad.example/")).startswith(
            "messages[0].content[0]: the image is none of"
        )
        block = {"type": "image", "source": {"type": "url", "url": gone}}
        turns = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": [block]}]}
        assert problem(turns, "/v1/messages").startswith("messages[0].content[0].source.url: ")
        item = {"role": "user", "content": [{"type": "input_image", "image_url": gone}]}
        turns = {"model": "tiny", "instructions": "x", "input": [item]}
        assert problem(turns, "/v1/responses").startswith("input[0].content[0].image_url: ")
        n = len(files.asked)
        assert "4 images; at most 3" in problem(chat(url, url, url, url))
        assert "detail" in problem(chat(url, detail="huge"))
        for other in ("http://media.example/a.png", "ftp://media.example/", "/etc/passwd", "file:///a.png"):
            assert "one that begins with https://" in problem(chat(other))
        assert len(files.asked) == n  # none of these was fetched
    finally:
        server.close()
