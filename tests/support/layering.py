"""Who may see whom: the arrows of docs/architecture.md, read off includes and imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CPP_LAYERS = ("base", "device", "kernels", "model", "session", "rounds", "bindings")
"""From the bottom up; a layer sees itself and those before it."""

PYTHON_LAYERS = (
    ("_core", "errors", "version"),
    ("checkpoint", "text", "media", "grammar"),
    ("engine", "contract"),
    ("server", "batch"),
    ("cli", "commands"),
)
"""From the bottom up; a package sees itself and those of the rows before its own."""

ONE_PACKAGE = ({"cli", "commands"},)
"""Modules that count as one package."""

PATH_SYSTEM_HEADERS = {"cstddef", "cstdint", "cstring", "bit", "math.h", "immintrin.h", "arm_neon.h"}
"""What code of one instruction path may include of the system: nothing whose templates could be emitted."""

PATH_PROJECT_HEADERS = {
    "base/dtype.h",
    "base/exact_math.h",
    "base/hash.h",
    "device/cpu/task.h",
    "device/grid.h",
    "metal/params.h",
}

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def cpp_violations(root: Path) -> list[str]:
    """Includes under `root`/cpp and `root`/metal that point upwards, or that their layer may not have."""
    found = []
    for path in sorted([*root.glob("cpp/**/*"), *root.glob("metal/**/*")]):
        if path.suffix not in {".h", ".cpp", ".cu", ".mm", ".metal"}:
            continue
        name = path.relative_to(root).as_posix()
        for kind, target in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            why = _wrong_include(PurePosixPath(name), kind, target)
            if why:
                found.append(f"{name} includes {target}: {why}")
    return found


def _wrong_include(source: PurePosixPath, kind: str, target: str) -> str | None:
    if source.parts[0] == "metal":
        beside = "/" not in target  # a header of the same folder
        return None if kind == "<" or beside or target.startswith("metal/") else "metal/ sees nothing of cpp/"
    layer = source.parts[1]
    if kind == "<":
        if target.startswith("nanobind/") and layer != "bindings":
            return "only bindings know nanobind"
        if _is_path_code(source) and target not in PATH_SYSTEM_HEADERS:
            return "code of an instruction path includes nothing of the library that has templates"
        return None
    first = target.split("/")[0]
    if _is_path_code(source):
        own = first == "kernels" and _is_path_code(PurePosixPath("cpp") / target)
        return None if own or target in PATH_PROJECT_HEADERS else "not for code of an instruction path"
    if first == "metal":
        if source.parts[1:3] in (("device", "metal_host"), ("device", "cuda")) and target.startswith(
            "metal/host/"
        ):
            return None  # the runtime that these devices are made of
        return None if CPP_LAYERS.index(layer) >= CPP_LAYERS.index("kernels") else f"{layer} is below kernels"
    if first not in CPP_LAYERS:
        return "no layer has this name"
    return None if CPP_LAYERS.index(first) <= CPP_LAYERS.index(layer) else f"{first} is above {layer}"


def _is_path_code(path: PurePosixPath) -> bool:
    """Whether the file is compiled once for each instruction path."""
    return path.parts[:3] == ("cpp", "kernels", "cpu") and path.stem != "table"


def python_violations(package: Path) -> list[str]:
    """Imports of the package at `package` that point upwards or sideways."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts == ("__init__",):
            continue  # the package's own face, which may show what it likes
        for line, target in _imports(path, ("flashnext", *parts)):
            why = _wrong_import(parts[0], target)
            if why:
                found.append(f"{path.relative_to(package).as_posix()}:{line} imports {target}: {why}")
    return found


def _imports(path: Path, module: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, first name below flashnext) of every import, also those inside functions."""
    package = module[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] == "flashnext":
                yield node.lineno, name[1] if len(name) > 1 else "flashnext"


def _wrong_import(source: str, target: str) -> str | None:
    if source == target or any({source, target} <= group for group in ONE_PACKAGE):
        return None
    rank = {name: i for i, row in enumerate(PYTHON_LAYERS) for name in row}
    for name in (source, target):
        if name not in rank:
            return f"no layer has the name {name}"
    if target == "_core" and source in PYTHON_LAYERS[3]:
        return f"{source} never touches the core"
    if rank[target] >= rank[source]:
        return f"{target} is not below {source}"
    return None
