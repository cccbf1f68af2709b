"""Apple's Metal as `pyobjc-framework-Metal` describes it, and the simulated headers, in the same words.

The wheel's Metal/_metadata.py was generated from Apple's headers. It is run with a stand-in for `objc` that
writes down what it is told, so it needs no Mac.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

HEADERS = Path(__file__).parents[1] / "sim_metal" / "include"

Signature = tuple[str, ...]
"""Type encodings of what a method returns and takes."""


@dataclass
class Api:
    """Methods, values of enums and structs.

    Attributes:
        methods: Selector -> its signatures; some are known in part: "" for a type that is not told.
        structs: Name -> (encoding, fields).
    """

    methods: dict[str, set[Signature]] = field(default_factory=dict)
    enums: dict[str, int] = field(default_factory=dict)
    structs: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)


def read_wheel(wheel: Path) -> Api:
    """What a wheel of pyobjc-framework-Metal says."""
    with zipfile.ZipFile(wheel) as archive:
        return read_metadata(archive.read("Metal/_metadata.py").decode())


def read_metadata(text: str) -> Api:
    """What the text of a _metadata.py says."""
    api, objc = Api(), ModuleType("objc")

    def selector(_owner: bytes, name: bytes, meta: dict[str, Any]) -> None:
        arguments = meta.get("arguments", {})
        parts = [meta.get("retval", {}), *(arguments.get(2 + i, {}) for i in range(name.count(b":")))]
        types = [part.get("type", b"") for part in parts]
        texts = tuple(t.decode() if isinstance(t, bytes) else t for t in types)
        api.methods.setdefault(name.decode(), set()).add(texts)

    def struct(name: str, encoding: bytes, fields: list[str], *_: object) -> None:
        api.structs[name.rpartition(".")[2]] = (encoding.decode(), tuple(fields))

    def other(_name: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None

    vars(objc).update(
        arch="arm64", registerMetaDataForSelector=selector, createStructType=struct, __getattr__=other
    )
    names: dict[str, Any] = {}
    before = sys.modules.get("objc")
    sys.modules["objc"] = objc
    try:
        exec(compile(text, "_metadata.py", "exec"), names)
    finally:
        del sys.modules["objc"]
        if before is not None:
            sys.modules["objc"] = before
    for item in filter(None, names["enums"].split("$")):
        name, _, value = item.partition("@")
        if re.fullmatch(r"-?\d+", value):
            api.enums[name] = int(value)
    api.constants = {item.partition("@")[0] for item in names["constants"].split("$") if item}
    api.functions = set(names.get("functions", {}))
    return api


_ENCODINGS = {
    "void": "v", "BOOL": "Z", "NSInteger": "q", "NSUInteger": "Q", "uint64_t": "Q", "CFTimeInterval": "d",
    "id": "@", "void*": "^v", "MTLSize": "{MTLSize=QQQ}",
}  # fmt: skip


def read_headers(folder: Path = HEADERS) -> Api:
    """What the simulated Metal.h declares."""
    return read_header((folder / "Metal" / "Metal.h").read_text(encoding="utf-8"))


def read_header(text: str) -> Api:
    """What the text of a header declares."""
    text = re.sub(r"//.*", "", text)
    api, encodings = Api(), dict(_ENCODINGS)
    for kind, name in re.findall(r"NS_(?:ENUM|OPTIONS)\((\w+), (\w+)\)", text):
        encodings[name] = _ENCODINGS[kind]
    encodings |= dict.fromkeys(re.findall(r"typedef \w+ \(\^(\w+)\)", text), "@?")
    api.enums = {name: int(value) for name, value in re.findall(r"\b(MTL\w+) = (\d+),", text)}
    for body, name in re.findall(r"typedef struct \{([^}]*)\} (MTL\w+);", text):
        fields = tuple(re.findall(r"(\w+)\s*[,;]", body))
        api.structs[name] = (f"{{{name}={'Q' * len(fields)}}}", fields)
    api.constants = set(re.findall(r"extern [\w* ]+ const (\w+);", text))
    api.functions = set(re.findall(r"^id<\w+> (\w+)\(void\);", text, re.M))

    def encoding(written: str) -> str:
        plain = re.sub(r"\bconst\b|\s", "", re.sub(r"<\w+>", "", written))
        if plain.endswith("**"):
            return "^@"
        if plain in encodings:
            return encodings[plain]
        if re.fullmatch(r"(NS|MTL)\w+\*|NSErrorDomain", plain):
            return "@"
        raise ValueError(f"no encoding is known for {written}")

    for returned, rest in re.findall(r"^[-+] \(([^)]*)\)([^;]*);", text, re.M):
        arguments = re.findall(r"(\w+):\s*\(([^)]*)\)\s*\w+", rest)
        name = "".join(f"{label}:" for label, _ in arguments) or rest.strip()
        signature = (encoding(returned), *(encoding(written) for _, written in arguments))
        api.methods.setdefault(name, set()).add(signature)
    return api


def differences(ours: Api, apples: Api, known: dict[str, str]) -> list[str]:
    """What of ours Apple's does not bear out; it is not asked about `known` methods."""
    found = []
    for name, signatures in ours.methods.items():
        theirs = apples.methods.get(name)
        if name in known:
            continue
        if theirs is None:
            found.append(f"there is no method {name}")
            continue
        for signature in signatures:
            if not any(_agree(signature, other) for other in theirs):
                found.append(f"{name} is {' '.join(signature)}, not {' or '.join(map(' '.join, theirs))}")
    for name, value in ours.enums.items():
        if apples.enums.get(name) != value:
            found.append(f"{name} is {value}, not {apples.enums.get(name)}")
    for name, struct in ours.structs.items():
        if apples.structs.get(name) != struct:
            found.append(f"{name} is {struct}, not {apples.structs.get(name)}")
    found += [f"there is no constant {name}" for name in ours.constants - apples.constants]
    found += [f"there is no function {name}" for name in ours.functions - apples.functions]
    return found


def _agree(ours: Signature, theirs: Signature) -> bool:
    return len(ours) == len(theirs) and all(not b or a == b for a, b in zip(ours, theirs, strict=True))
