"""The arrows between layers hold, and the checker finds those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.layering import cpp_violations, python_violations

ROOT = Path(__file__).parents[2]


def test_cpp_includes_point_downwards() -> None:
    assert len(list(ROOT.glob("cpp/**/*.cpp"))) > 20
    assert cpp_violations(ROOT) == []


def test_python_imports_point_downwards() -> None:
    package = ROOT / "python" / "flashnext"
    assert len(list(package.rglob("*.py"))) > 20
    assert python_violations(package) == []


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("cpp/device/device.h", '#include "kernels/launch.h"', "kernels is above device"),
        ("cpp/device/cpu/cpu_device.cpp", '#include "kernels/cpu/table.h"', "kernels is above device"),
        ("cpp/base/dtype.h", '  #  include "device/grid.h"', "device is above base"),
        ("cpp/session/session.h", '#include "rounds/runner.h"', "rounds is above session"),
        ("cpp/device/device.h", '#include "metal/params.h"', "device is below kernels"),
        ("cpp/device/cpu/cpu_device.cpp", '#include "metal/host/runtime.h"', "device is below kernels"),
        ("cpp/device/metal_host/a.cpp", '#include "metal/params.h"', "device is below kernels"),
        ("cpp/rounds/runner.cpp", "#include <nanobind/nanobind.h>", "only bindings"),
        ("cpp/kernels/cpu/matmul.cpp", "#include <vector>", "templates"),
        ("cpp/kernels/cpu/matmul.cpp", '#include "device/device.h"', "not for code of an instruction path"),
        (
            "cpp/kernels/cpu/matmul.cpp",
            '#include "kernels/cpu/table.h"',
            "not for code of an instruction path",
        ),
        ("cpp/model/model.h", '#include "helpers/strings.h"', "no layer"),
        ("metal/params.h", '#include "base/dtype.h"', "sees nothing of cpp/"),
    ],
)
def test_a_planted_include_is_found(tmp_path: Path, file: str, line: str, words: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"// A file.\n#include <cstdint>\n{line}\n")
    (found,) = cpp_violations(tmp_path)
    assert file in found and words in found


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("server/app.py", "from flashnext import _core", "never touches the core"),
        ("server/app.py", "import flashnext._core", "never touches the core"),
        ("server/app.py", "from .._core import Runner", "never touches the core"),
        ("engine/engine.py", "from flashnext.server.app import create_app", "server is not below engine"),
        ("engine/engine.py", "def f():\n    import flashnext.cli", "cli is not below engine"),
        (
            "text/template.py",
            "from flashnext.checkpoint import open_checkpoint",
            "checkpoint is not below text",
        ),
        ("text/template.py", "from ..engine import load", "engine is not below text"),
        ("errors.py", "from flashnext.text import parser", "text is not below errors"),
        ("tools/x.py", "from flashnext.engine import load", "no layer has the name tools"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, file: str, line: str, words: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"from __future__ import annotations\nimport json\n{line}\n")
    (found,) = python_violations(tmp_path)
    assert file in found and words in found


def test_what_is_allowed_is_not_found(tmp_path: Path) -> None:
    files = {
        "cpp/kernels/cpu/a.cpp": '#include <cstring>\n#include "kernels/cpu/simd.h"\n',
        "cpp/device/metal_host/a.cpp": '#include "metal/host/runtime.h"\n',
        "cpp/rounds/runner.h": '#include <vector>\n#include "base/error.h"\n#include "session/session.h"\n',
        "package/cli.py": "from flashnext import commands, errors\nfrom flashnext.server import app\n",
        "package/engine/load.py": "from flashnext import _core\nfrom ..text import parser\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpp_violations(tmp_path) == []
    assert python_violations(tmp_path / "package") == []
