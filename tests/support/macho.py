"""Reads what a 64-bit Mach-O library says of itself: commands, symbols, exports, bindings, signature.

Source: Apple's mach-o/loader.h and mach-o/nlist.h, and its dyld; of signatures, kern/cs_blobs.h of xnu.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = 0xFEEDFACF
ARM64 = 0x0100000C
DYLIB, BUNDLE = 6, 8
MACOS = 1

_REQUIRED = 0x80000000  # of a command: a loader that does not know it refuses the file
COMMANDS = {
    0x2: "SYMTAB", 0xB: "DYSYMTAB", 0xC: "LOAD_DYLIB", 0xD: "ID_DYLIB", 0xE: "LOAD_DYLINKER",
    0x19: "SEGMENT_64", 0x1B: "UUID",
    0x1C | _REQUIRED: "RPATH", 0x1D: "CODE_SIGNATURE", 0x22: "DYLD_INFO", 0x22 | _REQUIRED: "DYLD_INFO_ONLY",
    0x26: "FUNCTION_STARTS", 0x29: "DATA_IN_CODE", 0x2A: "SOURCE_VERSION", 0x32: "BUILD_VERSION",
    0x33 | _REQUIRED: "DYLD_EXPORTS_TRIE", 0x34 | _REQUIRED: "DYLD_CHAINED_FIXUPS",
}  # fmt: skip

# Where a symbol is looked for, if not in the library of that number.
SELF, MAIN_PROGRAM, ANYWHERE = 0, -1, -2

_ADHOC = 0x2
_SUPER_BLOB, _CODE_DIRECTORY = 0xFADE0CC0, 0xFADE0C02


@dataclass(frozen=True)
class Segment:
    """A part of the file that is mapped, and what is allowed there at first: 1 read, 2 write, 4 execute."""

    name: str
    address: int
    size: int
    offset: int
    file_size: int
    protection: int


class Image:
    """One library.

    Raises:
        ValueError: It is none, or what it says of itself does not fit.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            self._read()
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"what the file says of itself ends outside of it: {error}") from None

    def _read(self) -> None:
        magic, self.cpu, _, self.kind, n, size, self.flags = struct.unpack_from("<7I", self.data)
        if magic != MAGIC:
            raise ValueError(f"magic {magic:#x}, which is no 64-bit Mach-O file")
        self.commands: list[tuple[int, bytes]] = []
        at = 32
        for _ in range(n):
            command, length = struct.unpack_from("<2I", self.data, at)
            if length < 8 or at + length > 32 + size:
                raise ValueError(f"command {command:#x} of {length} bytes ends outside of the commands")
            self.commands.append((command, self.data[at : at + length]))
            at += length
        self.segments = [self._segment(body) for body in self.all("SEGMENT_64")]
        self.libraries = [_text(body, 8) for body in self.all("LOAD_DYLIB")]
        self.rpaths = [_text(body, 8) for body in self.all("RPATH")]
        self.install_names = [_text(body, 8) for body in self.all("ID_DYLIB")]
        self._read_symbols()
        self.exports = sorted(self._exports())
        self.bindings = sorted(set(self._bindings()))
        self.weak = sorted({name for name, _ in _opcodes(self._part(*self._dyld_info()[4:6]))})

    def all(self, name: str) -> list[bytes]:
        """The commands of a name."""
        return [body for command, body in self.commands if COMMANDS.get(command) == name]

    def one(self, name: str) -> bytes:
        """The only command of a name."""
        found = self.all(name)
        if len(found) != 1:
            raise ValueError(f"{len(found)} commands {name}")
        return found[0]

    @property
    def build_version(self) -> tuple[int, tuple[int, int]]:
        """Platform and oldest version of its system."""
        platform, oldest = struct.unpack_from("<2I", self.one("BUILD_VERSION"), 8)
        return platform, (oldest >> 16, oldest >> 8 & 0xFF)

    @staticmethod
    def _segment(body: bytes) -> Segment:
        name, address, size, offset, file_size, _, protection = struct.unpack_from("<16s4Q2I", body, 8)
        return Segment(name.rstrip(b"\0").decode(), address, size, offset, file_size, protection)

    def _read_symbols(self) -> None:
        offset, n, strings, size = struct.unpack_from("<4I", self.one("SYMTAB"), 8)
        texts = self._part(strings, size)
        names = []
        self.defined: list[str] = []  # seen by others
        for i in range(n):
            at, kind, _, _, _ = struct.unpack_from("<IBBHQ", self.data, offset + 16 * i)
            name = texts[at : texts.index(b"\0", at)].decode()
            names.append(name)
            if kind & 0xE0 or not kind & 1:  # for a debugger, or local
                continue
            if kind & 0x0E and not kind & 0x10:  # here, and not hidden
                self.defined.append(name)
        table, n_indirect = struct.unpack_from("<2I", self.one("DYSYMTAB"), 56)
        self.bad_indirect = [
            index
            for (index,) in struct.iter_unpack("<I", self._part(table, 4 * n_indirect))
            if index >= len(names) and not index & 0xC0000000  # local or absolute
        ]

    def _part(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.data):
            raise ValueError(f"{size} bytes at {offset} end outside of the file")
        return self.data[offset : offset + size]

    def _dyld_info(self) -> tuple[int, ...]:
        found = self.all("DYLD_INFO") + self.all("DYLD_INFO_ONLY")
        return struct.unpack_from("<10I", found[0], 8) if found else (0,) * 10

    def _exports(self) -> Iterator[str]:
        offset, size = self._dyld_info()[8:10]
        for body in self.all("DYLD_EXPORTS_TRIE"):
            offset, size = struct.unpack_from("<2I", body, 8)
        trie = self._part(offset, size)
        todo, seen = [(0, b"")], 0
        while trie and todo:
            at, name = todo.pop()
            seen += 1
            if seen > len(trie):
                raise ValueError("the exports go round in a circle")
            length, at = _number(trie, at)
            if length:
                yield name.decode()
            at += length
            n = trie[at]
            at += 1
            for _ in range(n):
                end = trie.index(b"\0", at)
                child, after = _number(trie, end + 1)
                todo.append((child, name + trie[at:end]))
                at = after

    def _bindings(self) -> Iterator[tuple[str, int]]:
        """Name and library of what the loader binds, at once or when it is first called.

        Weak names, of which any library's definition does and the own one last, have no library.
        """
        info = self._dyld_info()
        for offset, size in (info[2:4], info[6:8]):
            yield from _opcodes(self._part(offset, size))
        for body in self.all("DYLD_CHAINED_FIXUPS"):
            part = self._part(*struct.unpack_from("<2I", body, 8))
            _, _, imports, symbols, n, form, _ = struct.unpack_from("<7I", part)
            if form != 1:
                raise ValueError(f"chained imports of form {form}, of which this reader knows none")
            for (word,) in struct.iter_unpack("<I", part[imports : imports + 4 * n]):
                at = symbols + (word >> 9)
                yield part[at : part.index(b"\0", at)].decode(), _ordinal(word & 0xFF)

    def signature_faults(self) -> list[str]:
        """What is wrong with the code signature; arm64 macOS ends a process that loads a wrong one."""
        found = self.all("CODE_SIGNATURE")
        if len(found) != 1:
            return ["no code signature"]
        offset, size = struct.unpack_from("<2I", found[0], 8)
        try:
            return self._directory_faults(self._part(offset, size), offset)
        except (struct.error, ValueError, StopIteration):
            return ["the code signature cannot be read"]

    def _directory_faults(self, blob: bytes, offset: int) -> list[str]:
        magic, _, n = struct.unpack_from(">3I", blob)
        if magic != _SUPER_BLOB:
            return ["the code signature is no signature"]
        places = [struct.unpack_from(">2I", blob, 12 + 8 * i)[1] for i in range(n)]
        at = next(p for p in places if struct.unpack_from(">I", blob, p)[0] == _CODE_DIRECTORY)
        head = struct.unpack_from(">9I4B", blob, at)
        flags, hashes, n_code, limit = head[3], head[4], head[7], head[8]
        hash_size, kind, _, page_bits = head[9:13]
        if (hash_size, kind) != (32, 2):
            return [f"the code signature has hashes of kind {kind}, where 2 (SHA-256) was expected"]
        faults = [] if flags & _ADHOC else ["the code signature is not ad hoc"]
        if limit != offset:
            faults.append(f"the code signature covers {limit} bytes, where {offset} are before it")
        page = 1 << page_bits
        if n_code != -(-limit // page):
            faults.append(f"the code signature has {n_code} hashes for {limit} bytes in pages of {page}")
        start = at + hashes
        for i in range(min(n_code, -(-limit // page))):
            code = self.data[i * page : min((i + 1) * page, limit)]
            if hashlib.sha256(code).digest() != blob[start + 32 * i : start + 32 * (i + 1)]:
                faults.append(f"the code signature has another hash of page {i}")
        return faults


def _text(body: bytes, at: int) -> str:
    (offset,) = struct.unpack_from("<I", body, at)
    return body[offset : body.index(b"\0", offset)].decode()


def _ordinal(byte: int) -> int:
    return byte - 256 if byte >= 0xF0 else byte


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, low ones first; and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _opcodes(program: bytes) -> Iterator[tuple[str, int]]:
    """Name and library of what a binding program binds."""
    numbers = {0x20: 1, 0x60: 1, 0x70: 1, 0x80: 1, 0xA0: 1, 0xC0: 2}  # that follow an opcode
    at, ordinal, name = 0, SELF, ""
    while at < len(program):
        opcode, low = program[at] & 0xF0, program[at] & 0x0F
        at += 1
        value = 0
        for _ in range(numbers.get(opcode, 0)):
            value, at = _number(program, at)
        if opcode == 0x10:
            ordinal = low
        elif opcode == 0x20:
            ordinal = value
        elif opcode == 0x30:
            ordinal = low - 16 if low else SELF
        elif opcode == 0x40:
            end = program.index(b"\0", at)
            name, at = program[at:end].decode(), end + 1
        elif opcode in (0x90, 0xA0, 0xB0, 0xC0):
            yield name, ordinal
        elif opcode > 0xC0:
            raise ValueError(f"opcode {opcode:#x} in a binding program, which this reader does not know")
