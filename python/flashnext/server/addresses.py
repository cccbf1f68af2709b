"""Fetches the pictures and videos that requests name by address, from public servers alone.

Whoever asks this server must not reach through it what only its machine or network can. So a name is resolved
here, every address that it has is looked at, and the connection goes to one of those that were: what the name
means a moment later does not count. The certificate has to be the name's. Each redirection begins anew.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urljoin, urlsplit

import h11

from flashnext.media import MediaError
from flashnext.version import VERSION

FETCH_S = 20.0
"""Seconds in which all of a file has to come, redirections included; the look-up of names does not count."""
NAME_S = 20.0
"""Seconds in which the system has to find a name."""
MAX_REDIRECTS = 3
MAX_AT_ONCE = 8
"""Files that are fetched at a time, for all requests."""
_PORT = 443
_MAX_URL = 2048
_MAX_HEADERS = 32 * 1024
_BUFFER = 64 * 1024
# Read at a time: a server may cut each byte into a chunk of its own, and others are served in between.
_PIECE = 8 * 1024
_TRIED = 3  # addresses of a name
_REDIRECTS = (301, 302, 303, 307, 308)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str], Awaitable[list[str]]]
Connect = Callable[[str, str], Awaitable[Streams]]

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")
# What IANA's registries have for other uses, whatever the running Python knows of them; the last but one line
# wraps addresses of IPv4, and the last is public by number, and yet answered by the machine's own cloud.
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
            *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            *("2001::/23", "2001:db8::/32", "3fff::/20"),
            "2002::/16",
            "168.63.129.16/32",
        ),
    )
)


def is_public(address: Address) -> bool:
    """Whether an address is one of the public network; those that wrap another are that other."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.scope_id is not None or address not in _UNICAST:
            return False
    return not any(address in network for network in _NOT_PUBLIC)


class Resolver:
    """Asks the system for the addresses of names, in threads of its own. Used by one event loop.

    The system may take a minute over a name for which nobody answers, whoever still waits for it, so the
    threads that everything else shares are not asked. They do not hold up the end of the process.
    """

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def __call__(self, name: str) -> list[str]:
        """Ask for the addresses of a name, once one of the threads is free.

        Raises:
            OSError: It has none, or none within `NAME_S` of its turn.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()

        def tell(addresses: list[str], error: Exception | None) -> None:
            self._places.release()
            if found.done():
                return  # nobody waits any more
            if error is not None:
                found.set_exception(error)
            else:
                found.set_result(addresses)

        def ask() -> None:
            told: list[str] = []
            problem: Exception | None = None
            try:
                told = [str(at[0]) for *_, at in socket.getaddrinfo(name, _PORT, type=socket.SOCK_STREAM)]
            except Exception as error:
                problem = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell, list(dict.fromkeys(told)), problem)

        await self._places.acquire()
        try:
            threading.Thread(target=ask, name="flashnext-names", daemon=True).start()
        except RuntimeError as error:  # the machine has none left
            self._places.release()
            raise OSError(str(error)) from None
        async with asyncio.timeout(NAME_S):  # TimeoutError is an OSError
            return await found


def connector(context: ssl.SSLContext, port: int = _PORT) -> Connect:
    """Make what opens a connection to an address, to a server whose certificate is the name's."""

    async def connect(address: str, name: str) -> Streams:
        return await asyncio.open_connection(address, port, ssl=context, server_hostname=name, limit=_BUFFER)

    return connect


class Addresses:
    """Fetches files, a few at a time. Used by one event loop."""

    def __init__(
        self,
        *,
        resolve: Resolve | None = None,
        connect: Connect | None = None,
        seconds: float = FETCH_S,
    ) -> None:
        """Fetch nothing yet.

        Args:
            resolve: Gives the addresses of a name; by default the system.
            connect: Opens a connection to an address, under a name.
            seconds: In which all of a file has to come.
        """
        self._resolve = resolve or Resolver()
        self._connect = connect or connector(ssl.create_default_context())
        self._seconds = seconds
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def fetch(self, url: str, most: int) -> bytes:
        """Fetch a file of at most so many bytes.

        Raises:
            MediaError: It cannot be had, or may not.
        """
        async with self._places:
            try:
                async with asyncio.timeout(self._seconds) as timer:
                    for _ in range(MAX_REDIRECTS + 1):
                        found = await self._get(url, most, timer)
                        if isinstance(found, bytes):
                            return found
                        url = found
            except TimeoutError:
                raise MediaError(f"the file did not come within {self._seconds:g} s") from None
        raise MediaError(f"its address leads on to others more than {MAX_REDIRECTS} times")

    async def _get(self, url: str, most: int, timer: asyncio.Timeout) -> bytes | str:
        """Ask for a file once; gives it, or the address that it leads to."""
        name, target = _read(url)
        reader, writer = await self._open(name, timer)
        try:
            return await _ask(reader, writer, url, name, target, most)
        except h11.ProtocolError:
            raise MediaError(
                "the file cannot be fetched: its server's answer breaks the rules of HTTP"
            ) from None
        except OSError as error:
            raise MediaError(f"the file cannot be fetched: {_reason(error)}") from None
        finally:
            writer.transport.abort()

    async def _open(self, name: str, timer: asyncio.Timeout) -> Streams:
        """Connect to a name's server, once all of its addresses are known to be public ones."""
        clock = asyncio.get_running_loop().time
        left = (timer.when() or 0) - clock()
        timer.reschedule(None)  # others' names may be in front, and nobody's fault
        try:
            found = [ipaddress.ip_address(one) for one in await self._resolve(name)]
        except (OSError, UnicodeError, ValueError):
            found = []
        timer.reschedule(clock() + left)
        if not found:
            raise MediaError(f"{_told(name)} has no address")
        if not all(map(is_public, found)):
            raise MediaError(
                f"{_told(name)} is not a server of the public network, and no others are asked; "
                "send the file as a data: URL"
            )
        problem: Exception | None = None
        tried = found[:_TRIED]
        for address in tried:
            last = address is tried[-1]
            try:
                async with asyncio.timeout(None if last else self._seconds / (_TRIED + 1)):
                    return await self._connect(str(address), name)
            except (OSError, ValueError) as error:  # the latter of a name that no certificate can have
                problem = error
        raise MediaError(f"{_told(name)} cannot be reached: {_reason(problem)}")


def _read(url: str) -> tuple[str, str]:
    """Take an address apart into the server's name and what is asked of it.

    Raises:
        MediaError: It is none that is fetched.
    """
    if len(url) > _MAX_URL:
        raise MediaError(f"the address has {len(url)} characters, and at most {_MAX_URL} are read")
    if not url.isascii() or any(char <= " " or char in '\\"<>^`{|}\x7f' for char in url):
        raise MediaError("the address has characters that belong into none; write them with %")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise MediaError("the address cannot be read") from None
    if parts.scheme != "https":
        raise MediaError(f"the address leads to {_told(parts.scheme)}:, and only https: is fetched")
    if "@" in parts.netloc:
        raise MediaError("the address has a user's name or password, which are sent to nobody")
    if port not in (None, _PORT):
        raise MediaError(f"the address has the port {port}, and only {_PORT} is asked")
    if not parts.hostname:
        raise MediaError("the address names no server")
    return parts.hostname, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _joined(url: str, location: str) -> str:
    """Find where an answer leads.

    Raises:
        MediaError: That cannot be read.
    """
    try:
        return urljoin(url, location)
    except ValueError:
        raise MediaError("the address leads on to one that cannot be read") from None


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, name: str, target: str, most: int
) -> bytes | str:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADERS)
    headers = [
        ("host", f"[{name}]" if ":" in name else name),
        ("user-agent", f"flashnext/{VERSION}"),
        ("accept", "image/*, video/*"),
        ("accept-encoding", "identity"),
        ("connection", "close"),
    ]
    for event in (h11.Request(method="GET", target=target, headers=headers), h11.EndOfMessage()):
        writer.write(http.send(event) or b"")
    await writer.drain()
    too_long = f"the file has more than {most} bytes, the most that are read"
    left = 2 * most + _BUFFER  # of all that is sent, what stands around the file's bytes included
    data = bytearray()
    while True:
        found = http.next_event()
        if found is h11.NEED_DATA:
            piece = await reader.read(_PIECE)
            left -= len(piece)
            if left < 0:
                raise MediaError("the server of the address sends more around the file than the file has")
            http.receive_data(piece)
            await asyncio.sleep(0)  # where more has come already, the read does not wait
        elif isinstance(found, h11.Response):
            given = {key.decode("latin-1"): value.decode("latin-1") for key, value in found.headers}
            if found.status_code in _REDIRECTS and "location" in given:
                return _joined(url, given["location"])
            if found.status_code != 200:
                raise MediaError(f"the server of the address answered {found.status_code}")
            codings = [value.strip().lower() for key, value in found.headers if key == b"content-encoding"]
            if any(coding not in (b"", b"identity") for coding in codings):
                raise MediaError("the server of the address sent it compressed")
            length = given.get("content-length", "0")
            if length.isdigit() and int(length[:19]) > most:
                raise MediaError(too_long)
        elif isinstance(found, h11.Data):
            data += found.data
            if len(data) > most:
                raise MediaError(too_long)
        elif isinstance(found, h11.EndOfMessage):
            return bytes(data)
        elif isinstance(found, h11.ConnectionClosed) or found is h11.PAUSED:
            raise MediaError("the server of the address ended the connection")


def _reason(error: Exception | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return error.strerror or type(error).__name__
    return type(error).__name__


def _told(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")
