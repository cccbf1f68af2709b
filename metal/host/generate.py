"""Turn a .metal file into C++ that the shim's headers compile, or into one self-contained Metal text.

    python -m metal.host.generate KERNEL.metal -o OUT.cpp
    python -m metal.host.generate KERNEL.metal -o OUT.metal --flatten

The preprocessor expands the project's includes and leaves line markers, so that errors of compilers and of
the runtime name the .metal file and its line. Then the text is rewritten, one line for one line:

    [[kernel, max_total_threads_per_threadgroup(N)]]    MSL_kernel; N goes to the kernel's entry
    template [[host_name("x")]] [[kernel]] ...;         removed; becomes an entry
    [[buffer(i)]] and other attributes                  removed; the entry binds the parameters
    device, constant, threadgroup, thread               MSL_device, ... (`device` breaks CUDA's __device__)
    threadgroup T x[n]; in a kernel                     MSL_THREADGROUP(T, x, [n]);
    constant T x = ...; outside functions               MSL_CONSTANT T x = ...;
    1.5                                                 1.5f: Metal has no double

What Metal's compiler would refuse and C++ would not is refused here, by name and line.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
METAL_VERSION = 320  # Metal 3.2: macOS 15

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
      | (?P<number>\.?[0-9](?:[eEpP][+-]|[0-9a-zA-Z_.])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>\[\[|\]\]|::|->|.)""",
    re.X | re.S,
)
_BINDINGS = {"buffer", "threadgroup"}
_BUILTINS = {
    "dispatch_threads_per_threadgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "thread_index_in_simdgroup",
    "thread_index_in_threadgroup",
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "threads_per_grid",
    "threads_per_threadgroup",
}
_SPACES = {"device", "constant", "threadgroup", "thread"}
_FORBIDDEN = {
    "double": "Metal has no double",
    "std": "Metal has no standard library of C++",
    "goto": "Metal has no goto",
    "new": "a kernel cannot allocate",
    "delete": "a kernel cannot allocate",
    "try": "Metal has no exceptions",
    "throw": "Metal has no exceptions",
    "catch": "Metal has no exceptions",
    "virtual": "Metal has no virtual functions",
    "dynamic_cast": "Metal has no run-time types",
    "typeid": "Metal has no run-time types",
    "thread_local": "Metal has no thread_local",
}
_FLOAT = re.compile(r"(\d+\.\d*|\.\d+)([eE][+-]?\d+)?$|\d+[eE][+-]?\d+$")
_MARKER = re.compile(r'#(?:line)? ?(\d+) "([^"]*)"')
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">", "[[": "]]"}
_OPEN, _CLOSE = {"(", "[", "{", "<", "[["}, {")", "]", "}", ">", "]]"}


class MetalError(Exception):
    """A text that is no Metal, or none that the shim understands; names file and line."""


@dataclass
class Token:
    """A piece of the text: its kind (as in the pattern, or "marker"), and where it stands."""

    kind: str
    text: str
    file: str
    line: int


@dataclass
class Kernel:
    """A kernel function: how its parameters are bound, and the most threads of a threadgroup."""

    name: str
    bindings: list[str]
    max_threads: str
    file: str
    line: int


@dataclass
class Source:
    """The tokens of a preprocessed file, and what was found in it.

    Attributes:
        entries: (name of the pipeline, C++ expression of the function, kernel).
    """

    tokens: list[Token]
    kernels: dict[str, Kernel] = field(default_factory=dict)
    entries: list[tuple[str, str, Kernel]] = field(default_factory=list)

    def error(self, at: int, what: str) -> MetalError:
        """Make the error of a token."""
        token = self.tokens[min(at, len(self.tokens) - 1)]
        return MetalError(f"{token.file}:{token.line}: {what}")

    def step(self, at: int, by: int = 1) -> int:
        """Index of the next token, or with -1 of the one before, that is no blank."""
        at += by
        while 0 <= at < len(self.tokens) and self.tokens[at].kind in ("space", "marker"):
            at += by
        return at

    def word(self, at: int) -> str:
        """Text of a token; empty beyond the end."""
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def close(self, at: int) -> int:
        """Index of the token that closes the bracket at `at`."""
        opening = self.word(at)
        closing, depth = _CLOSING[opening], 0
        for i in range(at, len(self.tokens)):
            text = self.word(i)
            if text == opening:
                depth += 1
            elif text == closing:
                depth -= 1
            elif opening == "[" and text == "]]":  # a[b[0]]
                depth -= 2
            elif opening == "[" and text == "[[":
                depth += 2
            if depth <= 0:
                return i
        raise self.error(at, f"no {closing} for {opening}")

    def text(self, begin: int, end: int) -> str:
        """Text between two tokens, without line markers."""
        return "".join(t.text for t in self.tokens[begin:end] if t.kind != "marker").strip()

    def blank(self, begin: int, end: int) -> None:
        """Remove tokens, but keep their lines."""
        for token in self.tokens[begin:end]:
            if token.kind != "marker":
                token.text, token.kind = "\n" * token.text.count("\n"), "space"

    def split(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Ranges of what commas separate."""
        parts, start, depth = [], begin, 0
        for i in range(begin, end):
            text = self.word(i)
            depth += (text in _OPEN) - (text in _CLOSE)
            if text == "," and depth == 0:
                parts.append((start, i))
                start = i + 1
        return [*parts, (start, end)] if self.text(start, end) else parts


def preprocess(path: Path, defines: Sequence[str] = (), root: Path = ROOT) -> str:
    """Expand macros and includes of a .metal file.

    Raises:
        MetalError: The preprocessor refuses it.
    """
    command = [
        os.environ.get("CXX", "c++"),
        "-E",
        "-x",
        "c++",
        "-undef",
        "-nostdinc",
        "-I",
        str(HERE / "stub"),
    ]
    command += ["-I", str(root), "-D__METAL__", f"-D__METAL_VERSION__={METAL_VERSION}"]
    command += ["-DFLASHNEXT_SHARED_FUNC=MSL_SHARED_FUNC"]  # the flavours of the shim say what that is
    command += [f"-D{d}" for d in defines]
    name = os.path.relpath(path, root) if path.is_relative_to(root) else str(path)
    done = subprocess.run([*command, name], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise MetalError(done.stderr)
    return done.stdout


def tokenize(text: str, name: str) -> Source:
    """Cut preprocessed text into tokens."""
    tokens, file, number = [], name, 0
    for line in text.splitlines(keepends=True):
        number += 1
        if line.lstrip().startswith("#"):
            if marker := _MARKER.match(line):
                file, number = marker[2], int(marker[1]) - 1
                line = "" if file.startswith("<") or marker[1] == "0" else f'#line {marker[1]} "{file}"\n'
            elif "pragma" in line:
                line = "\n"  # the shim's own flags say what Metal's pragmas do
            tokens.append(Token("marker", line, file, number))
            continue
        for match in _TOKEN.finditer(line):
            assert match.lastgroup
            tokens.append(Token(match.lastgroup, match.group(), file, number))
    return Source(tokens)


def _binding(s: Source, begin: int, end: int, kernel: str) -> str:
    for i in range(begin, end):
        if s.word(i) != "[[":
            continue
        body = s.text(i + 1, s.close(i))
        match = re.match(r"(\w+)\s*(?:\(\s*(\w+)\s*\))?$", body)
        if match and match[1] in _BINDINGS and match[2]:
            return f"{match[1]}_<{match[2]}>"
        if match and match[1] in _BUILTINS:
            return match[1]
        raise s.error(i, f"kernel {kernel} has the attribute [[{body}]], which the shim does not know")
    raise s.error(
        begin, f'kernel {kernel} does not say what its parameter "{s.text(begin, end)}" is bound to'
    )


def _scopes(s: Source) -> list[bool]:
    """For each token, whether it lies outside of functions and structs."""
    stack: list[bool] = []
    out, head = list[bool](), set[str]()
    for token in s.tokens:
        out.append(all(stack))
        if token.text == "{":
            stack.append("namespace" in head)
        elif token.text == "}" and stack:
            stack.pop()
        if token.text in ("{", "}", ";"):
            head = set()
        elif token.kind == "word":
            head.add(token.text)
    return out


def _instantiations(s: Source) -> list[tuple[int, int, str, str]]:
    """(begin, end, name, function) of every `template [[host_name(...)]] [[kernel]] decltype(f) f;`."""
    found = []
    for i, token in enumerate(s.tokens):
        if token.text != "template" or s.word(s.step(i)) == "<" or s.word(s.step(i, -1)) == ".":
            continue
        end = next(j for j in range(i, len(s.tokens)) if s.word(j) == ";")
        text = s.text(i, end)
        name = re.search(r'host_name\s*\(\s*((?:"[^"]*"\s*)+)\)', text)
        plain = re.sub(r"\[\[.*?\]\]", " ", text, flags=re.S)
        function = re.match(r"template\s+decltype\s*\((.*)\)\s*(\w+\s*<.*>)\s*$", plain, re.S)
        if not name or not function or re.sub(r"\s", "", function[1]) != re.sub(r"\s", "", function[2]):
            raise s.error(i, f'"{text}" is not template [[host_name("x")]] [[kernel]] decltype(f<T>) f<T>')
        found.append(
            (i, end + 1, "".join(re.findall(r'"([^"]*)"', name[1])), re.sub(r"\s+", " ", function[2]))
        )
    return found


def _kernels(s: Source) -> Iterator[tuple[Kernel, bool]]:
    """Each kernel function, and whether it is a template."""
    for i in range(len(s.tokens)):
        if s.word(i) != "[[" or s.word(s.step(i)) != "kernel":
            continue
        end = s.close(i)
        limit = "1024"
        for begin, stop in s.split(i + 1, end):
            body = s.text(begin, stop)
            if match := re.match(r"max_total_threads_per_threadgroup\s*\((.*)\)$", body, re.S):
                limit = match[1]
            elif body != "kernel":
                raise s.error(i, f"a kernel has the attribute {body}, which the shim does not know")
        result = s.step(end)
        if s.word(result) == "decltype":
            continue  # an instantiation
        if s.word(result) != "void":
            raise s.error(i, f"a kernel returns void, not {s.word(result)}")
        name = s.step(result)
        parameters = s.step(name)
        stop = s.close(parameters)
        bindings = [_binding(s, a, b, s.word(name)) for a, b in s.split(parameters + 1, stop)]
        twice = {b for b in bindings if bindings.count(b) > 1}
        if twice:
            raise s.error(i, f"kernel {s.word(name)} binds {', '.join(sorted(twice))} twice")
        token = s.tokens[name]
        yield Kernel(token.text, bindings, limit, token.file, token.line), s.word(s.step(i, -1)) == ">"


def _refuse(s: Source, at_scope: Sequence[bool]) -> None:
    for i, token in enumerate(s.tokens):
        if token.kind == "word" and token.text in _FORBIDDEN:
            raise s.error(i, f"{token.text}: {_FORBIDDEN[token.text]}")
        if (
            token.text == "["
            and s.word(s.step(i, -1)) in ("(", ",", "=", "return")
            and s.word(s.close(i)) == "]"
        ):
            raise s.error(i, "Metal has no lambda expressions")
        starts = s.word(s.step(i, -1)) in ("", ";", "{", "}")
        if at_scope[i] and starts and token.text in ("const", "constexpr", "static"):
            end = next((j for j in range(i, len(s.tokens)) if s.word(j) in (";", "{", "=", "(")), i)
            if s.word(end) != "(":
                raise s.error(
                    i, "a variable outside of functions is in the constant address space: say `constant`"
                )


def read(text: str, name: str) -> Source:
    """Find kernels and entries of preprocessed text, and refuse what is no Metal.

    Raises:
        MetalError: Naming file and line.
    """
    s = tokenize(text, name)
    _refuse(s, _scopes(s))
    for kernel, is_template in _kernels(s):
        s.kernels[kernel.name] = kernel
        if not is_template:
            s.entries.append((kernel.name, kernel.name, kernel))
    for begin, end, entry, function in _instantiations(s):
        found = re.match(r"\w+", function)
        if not found or found[0] not in s.kernels:
            raise s.error(begin, f"{entry} is made of {function}, which is no kernel")
        s.entries.append((entry, function, s.kernels[found[0]]))
        s.blank(begin, end)
    return s


def _declarations(s: Source, at_scope: Sequence[bool]) -> None:
    for i, token in enumerate(s.tokens):
        if token.kind != "word" or token.text not in ("constant", "threadgroup"):
            continue
        if s.word(s.step(i, -1)) not in ("", ";", "{", "}", ")"):
            continue
        end = next((j for j in range(i, len(s.tokens)) if s.word(j) in (";", "{", "=")), len(s.tokens))
        body = s.text(i + 1, end)
        if token.text == "constant" and at_scope[i] and "(" not in body:
            token.text = "MSL_CONSTANT"
        elif token.text == "threadgroup" and not at_scope[i] and s.word(end) == ";":
            match = re.match(r"([\w\s:<>,]+?)\s*\b(\w+)\s*((?:\[[^;=]*\])?)$", body, re.S)
            if match:
                s.blank(i, end)
                token.text, token.kind = (
                    f"MSL_THREADGROUP(({match[1].strip()}), {match[2]}, {match[3]})",
                    "text",
                )


def to_cpp(text: str, name: str) -> str:
    """Preprocessed Metal -> C++, with an entry for each pipeline."""
    s = read(text, name)
    _declarations(s, _scopes(s))
    i = 0
    while i < len(s.tokens):
        token = s.tokens[i]
        if token.text == "[[" and s.tokens[s.step(i)].kind == "word":
            end, is_kernel = s.close(i), s.word(s.step(i)) == "kernel"
            s.blank(i, end + 1)
            if is_kernel:
                token.text = "MSL_kernel "
            i = end
        elif token.kind == "word" and token.text in _SPACES:
            token.text = "MSL_" + token.text
        elif token.kind == "number" and _FLOAT.match(token.text) and not token.text.startswith("0x"):
            token.text += "f"
        i += 1
    unit = "file_" + re.sub(r"\W", "_", Path(name).stem)
    out = [
        "#include <metal_stdlib>",
        f"namespace metal {{ namespace {unit} {{",
        "".join(t.text for t in s.tokens),
    ]
    for entry, function, kernel in s.entries:
        label = re.sub(r"\W", "_", entry)
        get, meta = (
            ", ".join(
                f"msl::{binding}::{what}<arguments_{label}::A<{n}>>({given})"
                for n, binding in enumerate(kernel.bindings)
            )
            for what, given in (("get", "c"), ("meta", ""))
        )
        out.append(
            f"struct arguments_{label} {{ using F = decltype(&{function}); "
            f"template <int I> using A = msl::argument<I, F>; }};\n"
            f'MSL_ENTRY({label}, "{entry}", ({function}), ({get}), ({meta}), ({kernel.max_threads}), '
            f'"{kernel.file}", {kernel.line})'
        )
    return "\n".join([*out, "}}", ""])


def flatten(path: Path, defines: Sequence[str] = ()) -> str:
    """One Metal text with the project's includes expanded, for newLibraryWithSource:."""
    text = preprocess(path, defines)
    read(text, str(path))
    body = "".join(t.text for t in tokenize(text, str(path)).tokens if t.kind != "marker")
    head = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\n"
    return head + "#pragma METAL fp contract(off)\n" + re.sub(r"\n{3,}", "\n\n", body)


def generate(path: Path, defines: Sequence[str] = ()) -> str:
    """C++ of a .metal file."""
    path = path.resolve()
    return to_cpp(preprocess(path, defines), path.name)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("-o", dest="out", type=Path, required=True)
    parser.add_argument("-D", dest="defines", action="append", default=[])
    parser.add_argument("--flatten", action="store_true", help="one Metal text instead of C++")
    given = parser.parse_args()
    try:
        text = (flatten if given.flatten else generate)(given.source, given.defines)
    except MetalError as e:
        print(e, file=sys.stderr)
        return 1
    given.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
