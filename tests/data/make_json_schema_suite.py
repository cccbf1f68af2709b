"""Makes json_schema_suite.json.gz of the JSON-Schema-Test-Suite in jsonschema's source distribution.

    pip download jsonschema==4.26.0 --no-binary jsonschema --no-deps && tar xzf jsonschema-4.26.0.tar.gz
    python tests/data/make_json_schema_suite.py jsonschema-4.26.0/json

The suite is MIT licensed, Copyright (c) 2012 Julian Berman; its licence goes into the file. What is kept
are the required tests of draft 2020-12, word for word.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path


def main(suite: Path) -> None:
    """Write the file beside this one."""
    groups = [
        {"file": path.stem, **group}
        for path in sorted((suite / "tests" / "draft2020-12").glob("*.json"))
        for group in json.loads(path.read_text(encoding="utf-8"))
    ]
    lines = [json.dumps((suite / "LICENSE").read_text(encoding="utf-8"))]
    for name in sorted({group["file"] for group in groups}):
        lines.append(json.dumps([g for g in groups if g["file"] == name], separators=(",", ":")))
    text = '{"licence":' + lines[0] + ',\n"files":[\n' + ",\n".join(lines[1:]) + "\n]}\n"
    packed = gzip.compress(text.encode(), 9, mtime=0)
    Path(__file__).with_name("json_schema_suite.json.gz").write_bytes(packed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
