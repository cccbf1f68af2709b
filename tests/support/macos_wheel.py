"""Checks the wheel for Apple Silicon, which is built where nothing can load it.

`python -m support.macos_wheel WHEEL`, with `tests` on the path. What is checked is what would keep it from
loading, also on the oldest macOS that it says it is for.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import sys
import zipfile
from email import message_from_string
from pathlib import Path

from abi3info import DATAS, FUNCTIONS
from abi3info.models import PyVersion, Symbol

from support.macho import ANYWHERE, ARM64, BUNDLE, COMMANDS, DYLIB, MACOS, Image

ROOT = Path(__file__).parents[2]
TAG = "cp312-abi3-macosx_15_0_arm64"
OLDEST_MACOS = (15, 0)
PYTHON = PyVersion(3, 12)
CORE = "flashnext/_core.abi3.so"
SYSTEM = "/usr/lib/libSystem.B.dylib"
LIBRARIES = {
    SYSTEM,
    "/usr/lib/libobjc.A.dylib",
    "/System/Library/Frameworks/Foundation.framework/Versions/C/Foundation",
    "/System/Library/Frameworks/Metal.framework/Versions/A/Metal",
}
ENTRY = "_PyInit__core"
# What zig's linker and C++ library show, whatever they are told: operators new and delete, of which the
# loader takes one for all libraries, and marks of the library itself.
SHOWN_BY_ZIG = re.compile(r"__Z(n[aw]|d[al])P?[vm]\w*|___dso_handle|__mh_dylib_header")
# A path of the machine that built it, in text or in code.
ABSOLUTE = re.compile(rb"/(?:build|home|mnt|opt|private|root|tmp|Users|var|work)/[\w.@+-]+")
_WRITE, _EXECUTE = 2, 4


def known_names(root: Path = ROOT) -> set[str]:
    """What of libSystem the core may take: `.ci/macos/libsystem.txt`, all of it in the oldest macOS."""
    lines = (root / ".ci/macos/libsystem.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def in_stable_abi(name: str) -> bool:
    """Whether a symbol, with its leading underscore, is one of every Python from 3.12 on."""
    symbol = Symbol(name.removeprefix("_"))
    found = FUNCTIONS.get(symbol) or DATAS.get(symbol)
    return found is not None and found.added <= PYTHON


def check(path: Path) -> list[str]:
    """Look at a wheel.

    Returns:
        What is wrong with it, a sentence each.
    """
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    faults = [*_metadata(path.name, files), *_record(files), *_kernels(files)]
    for name, data in files.items():
        faults += [f"{name} holds the path {found.decode()}" for found in set(ABSOLUTE.findall(data))]
    libraries = [name for name in files if name.endswith((".so", ".dylib"))]
    if libraries != [CORE]:
        faults.append(f"the wheel's libraries are {libraries}, where {CORE} was expected")
    if CORE in files:
        faults += core_faults(files[CORE])
    return faults


def _metadata(wheel: str, files: dict[str, bytes]) -> list[str]:
    match = re.fullmatch(r"flashnext-([^-]+)-(.*)\.whl", wheel)
    if match is None:
        return [f"{wheel} is no name of a wheel of flashnext"]
    version, tag = match.groups()
    faults = [] if tag == TAG else [f"the wheel's name has the tag {tag}, where {TAG} was expected"]
    folder = f"flashnext-{version}.dist-info"
    missing = [name for name in ("WHEEL", "METADATA", "RECORD") if f"{folder}/{name}" not in files]
    if missing:
        return [*faults, f"{folder} misses {', '.join(missing)}"]
    about = message_from_string(files[f"{folder}/WHEEL"].decode())
    if about.get_all("Tag") != [TAG]:
        faults.append(f"WHEEL has the tags {about.get_all('Tag')}, where {TAG} was expected")
    if about["Root-Is-Purelib"] != "false":
        faults.append("WHEEL says that the package is pure Python")
    said = message_from_string(files[f"{folder}/METADATA"].decode())
    if (said["Name"], said["Version"]) != ("flashnext", version):
        faults.append(
            f"METADATA is of {said['Name']} {said['Version']}, where flashnext {version} was expected"
        )
    if not any(name.startswith(f"{folder}/licenses/") for name in files):
        faults.append(f"{folder} has no licence")
    return faults


def _record(files: dict[str, bytes]) -> list[str]:
    name = next((name for name in files if name.endswith(".dist-info/RECORD")), None)
    if name is None:
        return []  # said already
    faults = []
    listed = {row[0]: row[1:] for row in csv.reader(io.StringIO(files[name].decode())) if row}
    for file in sorted(listed.keys() ^ files.keys()):
        faults.append(f"RECORD {'misses' if file in files else 'lists a file that is not there,'} {file}")
    for file in sorted(listed.keys() & files.keys() - {name}):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[file]).digest()).rstrip(b"=").decode()
        if listed[file] != [f"sha256={digest}", str(len(files[file]))]:
            faults.append(f"RECORD has another hash or size of {file}")
    return faults


def _kernels(files: dict[str, bytes]) -> list[str]:
    faults = []
    for source in sorted((ROOT / "metal").glob("*.metal")):
        name = f"flashnext/metal/{source.name}"
        if name not in files:
            faults.append(f"the kernels {name} are missing")
            continue
        if re.search(rb'#\s*include\s*"', files[name]):
            faults.append(f"{name} includes files, which are not there on a Mac")
        kernels = set(re.findall(rb'host_name\("(\w+)"\)', files[name]))
        wanted = set(re.findall(rb'host_name\("(\w+)"\)', source.read_bytes()))
        if missing := wanted - kernels:
            faults.append(f"{name} misses kernels of metal/{source.name}: {sorted(missing)}")
    return faults


def core_faults(data: bytes) -> list[str]:
    """Look at the library itself."""
    try:
        image = Image(data)
        return [*_header(image), *_names(image), *image.signature_faults()]
    except ValueError as error:
        return [f"{CORE} cannot be read: {error}"]


def _header(image: Image) -> list[str]:
    faults = []
    if image.cpu != ARM64:
        faults.append(f"the core is for processor {image.cpu:#x}, where arm64 ({ARM64:#x}) was expected")
    if image.kind not in (DYLIB, BUNDLE):
        faults.append(f"the core is a file of kind {image.kind}, where a dylib or a bundle was expected")
    for command in sorted({command for command, _ in image.commands} - COMMANDS.keys()):
        faults.append(f"the core has the load command {command:#x}, which no loader needs of it")
    if image.build_version != (MACOS, OLDEST_MACOS):
        faults.append(f"the core is for platform and version {image.build_version}, not macOS {OLDEST_MACOS}")
    for segment in image.segments:
        if segment.protection & _WRITE and segment.protection & _EXECUTE:
            faults.append(f"the segment {segment.name} can be written and executed")
    faults += [f"the core needs {name}" for name in image.libraries if name not in LIBRARIES]
    faults += [f"the core looks for libraries in {name}" for name in image.rpaths]
    faults += [f"the core calls itself {name}" for name in image.install_names if name.startswith("/")]
    if image.bad_indirect:
        faults.append(f"the table of indirect symbols names {image.bad_indirect[0]}, which there is not")
    return faults


def _names(image: Image) -> list[str]:
    faults = []
    for what, names in (("exports", image.exports), ("shows", image.defined)):
        if ENTRY not in names:
            faults.append(f"the core {what} no {ENTRY}")
        for name in sorted(set(names) - {ENTRY}):
            if not SHOWN_BY_ZIG.fullmatch(name):
                faults.append(f"the core {what} {name}")
    faults += [f"{name} is weak, and no name of C++" for name in image.weak if not name.startswith("__Z")]
    known = known_names()
    for name, ordinal in image.bindings:
        if ordinal == ANYWHERE:
            if not in_stable_abi(name):
                faults.append(f"{name} is in no library, and not in the stable ABI of Python {PYTHON}")
        elif not 1 <= ordinal <= len(image.libraries):
            faults.append(f"{name} is to be found in library {ordinal} of {len(image.libraries)}")
        elif image.libraries[ordinal - 1] == SYSTEM and name not in known:
            faults.append(f"{name} of libSystem is not in .ci/macos/libsystem.txt; see there")
    return faults


def main() -> int:
    """Check the wheels that the command line names."""
    faults = [f"{path}: {fault}" for path in sys.argv[1:] for fault in check(Path(path))]
    print("\n".join(faults) or f"{', '.join(sys.argv[1:])}: as a Mac needs it")
    return bool(faults) or len(sys.argv) < 2


if __name__ == "__main__":
    sys.exit(main())
