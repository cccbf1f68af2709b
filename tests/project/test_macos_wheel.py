"""The wheel for Apple Silicon is as a Mac needs it, and the check of it sees what would keep it from loading.

It is built on Linux by `.ci/run macos-wheel`, and no Mac has loaded it: so each thing that is checked has a
planted fault here, in a copy of the wheel with a signature and a RECORD made anew: nothing else is found.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.macho import COMMANDS, Image
from support.macos_wheel import CORE, TAG, check, core_faults, in_stable_abi, known_names

from metal.host.generate import flatten, tokenize

ROOT = Path(__file__).parents[2]
INFO = "flashnext-0.1.0.dist-info"

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def wheel() -> Path:
    wheels = list((ROOT / "dist/macos").glob("*.whl"))
    if not wheels:
        pytest.skip("needs the wheel: .ci/run tools wheel macos-wheel")
    return wheels[0]


@pytest.fixture(scope="module")
def files(wheel: Path) -> Files:
    """All but the bundled checkpoint, which is large and not looked at."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.startswith("flashnext/data/")]
        return with_record({name: archive.read(name) for name in names})


@pytest.fixture(scope="module")
def core(files: Files) -> bytes:
    return files[CORE]


def test_the_wheel_is_as_a_mac_needs_it(wheel: Path) -> None:
    assert check(wheel) == []


def words(text: str) -> list[str]:
    """Tokens: preprocessors leave other blanks between them."""
    return [token.text for token in tokenize(text, "text").tokens if token.kind != "space"]


def test_the_kernels_in_the_wheel_are_those_of_the_tree(files: Files) -> None:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ preprocessor")
    for source in sorted((ROOT / "metal").glob("*.metal")):
        theirs = files[f"flashnext/metal/{source.name}"].decode()
        assert words(flatten(source)) == words(theirs), source.name


# -- Faults of the wheel around the core.


def with_record(files: Files) -> Files:
    def line(name: str) -> str:
        if name == f"{INFO}/RECORD":
            return f"{name},,\n"
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(files[name])}\n"

    return {**files, f"{INFO}/RECORD": "".join(line(name) for name in files).encode()}


def faults_of(files: Files, folder: Path, tag: str = TAG) -> list[str]:
    path = folder / f"flashnext-0.1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return check(path)


def test_a_copy_of_the_wheel_is_as_good(files: Files, tmp_path: Path) -> None:
    assert faults_of(files, tmp_path) == []


@pytest.mark.parametrize(
    "tag", ["cp311-cp311-macosx_15_0_arm64", "cp312-abi3-macosx_11_0_arm64", "cp312-abi3-linux_x86_64"]
)
def test_another_tag_is_found(files: Files, tmp_path: Path, tag: str) -> None:
    assert faults_of(files, tmp_path, tag) == [
        f"the wheel's name has the tag {tag}, where {TAG} was expected"
    ]
    name = f"{INFO}/WHEEL"
    planted = with_record({**files, name: files[name].replace(TAG.encode(), tag.encode())})
    assert faults_of(planted, tmp_path) == [f"WHEEL has the tags {[tag]}, where {TAG} was expected"]


def replaced(name: str, old: bytes, new: bytes) -> Callable[[Files], Files]:
    def plant(files: Files) -> Files:
        assert old in files[name], name
        return with_record({**files, name: files[name].replace(old, new)})

    return plant


def without(name: str) -> Callable[[Files], Files]:
    return lambda files: with_record({other: data for other, data in files.items() if other != name})


def added(name: str, data: bytes) -> Callable[[Files], Files]:
    return lambda files: with_record({**files, name: data})


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (
            replaced(f"{INFO}/WHEEL", b"Purelib: false", b"Purelib: true"),
            "WHEEL says that the package is pure",
        ),
        (
            replaced(f"{INFO}/METADATA", b"Version: 0.1.0", b"Version: 0.1.1"),
            "METADATA is of flashnext 0.1.1",
        ),
        (without(f"{INFO}/METADATA"), f"{INFO} misses METADATA"),
        (without(f"{INFO}/licenses/LICENSE"), f"{INFO} has no licence"),
        (
            without("flashnext/metal/attention.metal"),
            "the kernels flashnext/metal/attention.metal are missing",
        ),
        (
            replaced(
                "flashnext/metal/rows.metal", b"#pragma METAL", b'#include "metal/params.h"\n#pragma METAL'
            ),
            "flashnext/metal/rows.metal includes files",
        ),
        (
            replaced("flashnext/metal/rows.metal", b"host_name", b"guest_name"),
            "flashnext/metal/rows.metal misses kernels of metal/rows.metal",
        ),
        (added("flashnext/more.dylib", b""), "the wheel's libraries are"),
        (without(CORE), "the wheel's libraries are []"),
        (added("flashnext/note.txt", b"made in /ho" + b"me/someone/x"), "flashnext/note.txt holds the path"),
    ],
)
def test_a_fault_of_the_wheel_is_found(
    files: Files, tmp_path: Path, plant: Callable[[Files], Files], fault: str
) -> None:
    found = faults_of(plant(files), tmp_path)
    assert len(found) == 1 and found[0].startswith(fault), found


def test_a_wrong_record_is_found(files: Files, tmp_path: Path) -> None:
    name = "flashnext/py.typed"
    assert faults_of({**files, name: b"x"}, tmp_path) == [f"RECORD has another hash or size of {name}"]
    assert faults_of({**files, "flashnext/x.py": b""}, tmp_path) == ["RECORD misses flashnext/x.py"]
    gone = {other: data for other, data in files.items() if other != name}
    assert faults_of(gone, tmp_path) == [f"RECORD lists a file that is not there, {name}"]


# -- Faults of the core.


def signed(core: bytes) -> bytes:
    """The core with the hashes of its pages made anew."""
    offset, _ = struct.unpack_from("<2I", Image(core).one("CODE_SIGNATURE"), 8)
    n = struct.unpack_from(">I", core, offset + 8)[0]
    places = [struct.unpack_from(">2I", core, offset + 12 + 8 * i)[1] for i in range(n)]
    at = next(offset + p for p in places if core[offset + p : offset + p + 4] == b"\xfa\xde\x0c\x02")
    hashes, n_code = struct.unpack_from(">I", core, at + 16)[0], struct.unpack_from(">I", core, at + 28)[0]
    page = 1 << core[at + 39]
    out = bytearray(core)
    for i in range(n_code):
        code = core[i * page : min((i + 1) * page, offset)]
        out[at + hashes + 32 * i : at + hashes + 32 * (i + 1)] = hashlib.sha256(code).digest()
    return bytes(out)


def patched(core: bytes, at: int, new: bytes) -> bytes:
    return signed(core[:at] + new + core[at + len(new) :])


def place_of(core: bytes, name: str) -> int:
    """Where a load command begins."""
    at = 32
    for command, body in Image(core).commands:
        if COMMANDS.get(command) == name:
            return at
        at += len(body)
    raise AssertionError(f"no command {name}")


def test_signing_anew_changes_nothing_of_a_good_core(core: bytes) -> None:
    assert signed(core) == core


def test_another_processor_or_kind_is_found(core: bytes) -> None:
    assert core_faults(patched(core, 4, struct.pack("<I", 0x01000007)))[0].startswith(
        "the core is for processor"
    )
    assert core_faults(patched(core, 12, struct.pack("<I", 2)))[0].startswith("the core is a file of kind 2")
    for planted in (b"\x7fELF" + core[4:], core[:1000], b""):
        assert core_faults(planted)[0].startswith(f"{CORE} cannot be read")


def test_a_strange_command_is_found(core: bytes) -> None:
    planted = patched(core, place_of(core, "SOURCE_VERSION"), struct.pack("<I", 0x27))
    assert core_faults(planted) == ["the core has the load command 0x27, which no loader needs of it"]


@pytest.mark.parametrize("version", [(1, 15 << 16 | 1 << 8), (1, 11 << 16), (2, 15 << 16)])
def test_another_system_is_found(core: bytes, version: tuple[int, int]) -> None:
    planted = patched(core, place_of(core, "BUILD_VERSION") + 8, struct.pack("<2I", *version))
    (fault,) = core_faults(planted)
    assert fault.startswith("the core is for platform and version")


def test_code_that_can_be_written_is_found(core: bytes) -> None:
    planted = patched(core, place_of(core, "SEGMENT_64") + 60, struct.pack("<I", 7))
    assert core_faults(planted) == ["the segment __TEXT can be written and executed"]


def test_another_library_is_found(core: bytes) -> None:
    old, new = b"/usr/lib/libSystem.B.dylib\0", b"/usr/lib/libssytem.B.dylib\0"
    found = core_faults(patched(core, core.index(old), new))
    assert "the core needs /usr/lib/libssytem.B.dylib" in found


def test_a_search_path_is_found(core: bytes) -> None:
    at = place_of(core, "ID_DYLIB")
    rpath = patched(core, at, struct.pack("<I", 0x8000001C))  # at the same place is an offset to a text
    assert core_faults(rpath)[0].startswith("the core looks for libraries in ")


def test_a_name_with_the_path_of_a_build_is_found(core: bytes) -> None:
    at = place_of(core, "ID_DYLIB") + 24
    (fault,) = core_faults(patched(core, at, b"/"))
    assert fault.startswith("the core calls itself /")


def test_a_further_export_is_found(core: bytes) -> None:
    planted = signed(core.replace(b"_PyInit__core\0", b"_PyInit__cora\0"))  # in the table of symbols
    assert core_faults(planted) == ["the core shows no _PyInit__core", "the core shows _PyInit__cora"]
    planted = signed(core.replace(b"PyInit__core\0", b"PyInit__cora\0"))  # and among the exports
    assert core_faults(planted)[:2] == ["the core exports no _PyInit__core", "the core exports _PyInit__cora"]


def test_a_name_that_python_does_not_promise_is_found(core: bytes) -> None:
    old, new = b"_PyBytes_AsString\0", b"_PyBytes_AsStrinx\0"
    assert old in core
    found = core_faults(signed(core.replace(old, new)))
    assert found == ["_PyBytes_AsStrinx is in no library, and not in the stable ABI of Python 3.12"], found
    assert in_stable_abi("_PyBytes_AsString") and not in_stable_abi("_PyUnicode_AsUTF8")  # stable since 3.13


def test_a_name_that_libsystem_may_not_have_is_found(core: bytes) -> None:
    old, new = b"_strstr\0", b"_strsep\0"
    found = core_faults(signed(core.replace(old, new)))
    assert found == ["_strsep of libSystem is not in .ci/macos/libsystem.txt; see there"], found
    assert "_strstr" in known_names() and "_strchrnul" not in known_names()  # that came with macOS 15.4


def test_a_broken_table_of_indirect_symbols_is_found(core: bytes) -> None:
    (offset,) = struct.unpack_from("<I", Image(core).one("DYSYMTAB"), 56)
    planted = patched(core, offset, struct.pack("<I", 0x00FFFFFF))
    assert core_faults(planted)[0].startswith("the table of indirect symbols names 16777215")


def test_a_wrong_signature_is_found(core: bytes) -> None:
    image = Image(core)
    offset, _ = struct.unpack_from("<2I", image.one("CODE_SIGNATURE"), 8)
    middle = image.segments[0].file_size // 2
    other = core[:middle] + bytes([core[middle] ^ 1]) + core[middle + 1 :]
    (fault,) = core_faults(other)
    assert fault.startswith("the code signature has another hash of page ")
    command = place_of(core, "CODE_SIGNATURE")
    unsigned = core[:command] + struct.pack("<I", 0x26) + core[command + 4 :]
    assert core_faults(unsigned) == ["no code signature"]
    (fault,) = core_faults(core[:offset] + b"\0" * 4 + core[offset + 4 :])
    assert fault == "the code signature is no signature"


# -- metallib.cmake, by a compiler of our own.

XCRUN = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/said"
case "$*" in
  *--find*) exit {find} ;;
  *"-c "*) [ {compile} = 0 ] || {{ echo "rows.metal:1: no such thing"; exit 1; }} ;;
  *metallib*) for last; do :; done; echo MTLB >"$last" ;;
esac
"""


@pytest.mark.parametrize(("find", "compile"), [(0, 0), (0, 1), (1, 0)])
def test_a_metallib_is_made_where_the_compiler_is_and_never_in_the_way(
    tmp_path: Path, find: int, compile: int
) -> None:
    if (cmake := shutil.which("cmake")) is None:
        pytest.skip("needs cmake")
    xcrun, folder = tmp_path / "xcrun", tmp_path / "metal"
    xcrun.write_text(XCRUN.format(find=find, compile=compile))
    xcrun.chmod(0o755)
    folder.mkdir()
    for name in ("rows.metal", "draw.metal"):
        (folder / name).write_text("")
    (folder / "flashnext.metallib").write_text("of the build before")
    script = ROOT / "metal/metallib.cmake"
    done = subprocess.run(
        [cmake, f"-DXCRUN={xcrun}", f"-DFOLDER={folder}", "-P", script],
        capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    assert (folder / "flashnext.metallib").exists() == (find == compile == 0)
    said = (tmp_path / "said").read_text()
    assert ("-sdk macosx metallib " in said) == (find == compile == 0)
    if find:
        assert "no Metal compiler here" in done.stdout + done.stderr
    elif compile:
        assert "rows.metal:1: no such thing" in done.stderr or "draw.metal" in done.stderr
    else:
        assert said.count("-fmetal-math-mode=safe -fmetal-math-fp32-functions=precise -ffp-contract=off") == 2
