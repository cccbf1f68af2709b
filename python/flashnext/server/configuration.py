"""Where the value of an option comes from: a flag, else the environment, else a TOML file, else its default.

Every option of a parser can be given in all three ways: `--max-body 8`, `FLASHNEXT_MAX_BODY=8`, and
`max-body = 8` (or `max_body`) in the file of `--config`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from flashnext.errors import InvalidArgument

PREFIX = "FLASHNEXT_"
_SECRETS = ("api_key",)
_DEFAULT = re.compile(r"\(default:? (.*)\)\Z")
_LEFT_OUT = ("help", "version", "config", "print_config")
_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest option for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Tell of a wrong command line and end."""
        known = [option for action in self._actions for option in action.option_strings]
        for word in message.split():
            name = word.partition("=")[0]
            if message.startswith("unrecognized arguments") and name.startswith("--"):
                near = difflib.get_close_matches(name, known, n=1)
                if near:
                    message += f"; did you mean {near[0]}?"
                break
        super().error(message)


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, environ: Mapping[str, str]
) -> tuple[argparse.Namespace, dict[str, str]]:
    """Read all options.

    Args:
        parser: With an option `--config FILE`.
        argv: The command line, None for the process's own.
        environ: The environment.

    Returns:
        The options, and where each one's value comes from.

    Raises:
        InvalidArgument: A value from the environment or the file is wrong, or the file has unknown names.
    """
    options = {action.dest: action for action in parser._actions if action.dest not in _LEFT_OUT}
    values: dict[str, Any] = {dest: action.default for dest, action in options.items()}
    sources = dict.fromkeys(options, "default")
    given = _given(parser, sys.argv[1:] if argv is None else argv)
    config = given.get("config") or environ.get(f"{PREFIX}CONFIG")
    for source, found in (
        (str(config), _read_file(Path(config), options) if config else {}),
        ("environment", _read_environment(options, environ)),
        ("flag", given),
    ):
        values.update(found)
        sources.update(dict.fromkeys(found, source))
    values["print_config"] = given.get("print_config", False)
    return argparse.Namespace(**values), {dest: sources[dest] for dest in options}


def written(parser: argparse.ArgumentParser, args: argparse.Namespace, sources: Mapping[str, str]) -> str:
    """Write every option with its value and where that comes from, as a file that `--config` reads back.

    Keys are left out, as are values that there are none of, of which it says what help does; an option that
    knows `auto` has that instead.
    """
    autos = {action.dest for action in parser._actions if str(action.metavar).startswith("auto|")}
    defaults = {action.dest: _default(action) for action in parser._actions}
    rows = [f"# {parser.prog} --config FILE reads this; behind each option stands where its value comes from"]
    for dest, source in sources.items():
        name, value = dest.replace("_", "-"), getattr(args, dest)
        if value is None and dest in autos:
            value = "auto"
        if value is None:
            row = f"# {name} is not set{defaults[dest]}"
        elif dest in _SECRETS:
            row = f"# {name} is left out: {len(value)} given"
        else:
            try:
                row = f"{name} = {_toml(value)}"
            except UnicodeEncodeError:  # the name of a file may be any bytes
                row = f"# {name} is left out: it is no text in UTF-8"
        rows.append(f"{row:<40} # {ascii(source)[1:-1]}")
    return "\n".join(rows)


def _default(action: argparse.Action) -> str:
    """Say what counts where an option is not set, as its help has it."""
    found = _DEFAULT.search(action.help or "")
    return f": {found[1].replace('%%', '%')}" if found else ""


def _toml(value: Any) -> str:
    """Write a value of an option.

    Raises:
        UnicodeEncodeError: It is no text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    text = str(value)
    text.encode()
    # JSON escapes all that TOML does, but for one character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _given(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """Read the command line alone, without defaults."""
    defaults = [(action, action.default) for action in parser._actions]
    for action, _ in defaults:
        action.default = argparse.SUPPRESS
    try:
        found = vars(parser.parse_args(argv))
        # A positional argument that is left out gives its default read by its type.
        return {dest: value for dest, value in found.items() if str(value) != argparse.SUPPRESS}
    finally:
        for action, default in defaults:
            action.default = default


def _read_environment(options: Mapping[str, argparse.Action], environ: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for dest, action in options.items():
        name = PREFIX + dest.upper()
        if name in environ:
            text = environ[name]
            listed = isinstance(action, argparse._AppendAction)
            value: Any = [part.strip() for part in text.split(",") if part.strip()] if listed else text
            found[dest] = _read(action, value, name)
    return found


def _read_file(path: Path, options: Mapping[str, argparse.Action]) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgument(f"{path}: not TOML: {error}") from None
    found = {}
    for key, value in table.items():
        dest = key.replace("-", "_")
        if dest not in options:
            near = difflib.get_close_matches(dest, options, n=1)
            advice = f"; did you mean {near[0].replace('_', '-')!r}?" if near else ""
            raise InvalidArgument(f"{path}: {key!r} is not an option{advice}")
        if dest in found:
            raise InvalidArgument(f"{path}: {key!r} stands twice, with - and with _; give it once")
        found[dest] = _read(options[dest], value, f"{path}: {key}")
    return found


def _read(action: argparse.Action, value: Any, name: str) -> Any:
    """Read a value as the action reads the command line's."""
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        flag = value if isinstance(value, bool) else _WORDS.get(str(value).strip().lower())
        if flag is None:
            raise InvalidArgument(f"{name}: expected true or false, found {value!r}"[:300])
        return flag
    if isinstance(action, argparse._AppendAction):
        if not isinstance(value, list):
            raise InvalidArgument(f"{name}: expected a list, found {value!r}"[:300])
        return [_read_one(action, one, name) for one in value]
    return _read_one(action, value, name)


def _read_one(action: argparse.Action, value: Any, name: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidArgument(f"{name}: expected a plain value, found {value!r}"[:300])
    read: Any = action.type or str
    try:
        found = read(str(value))
    except argparse.ArgumentTypeError as error:
        raise InvalidArgument(f"{name}: {error}") from None
    except (TypeError, ValueError):
        kind = getattr(read, "__name__", "value")
        raise InvalidArgument(f"{name}: expected {kind}, found {value!r}"[:300]) from None
    if action.choices is not None and found not in action.choices:
        raise InvalidArgument(
            f"{name}: expected one of {', '.join(map(str, action.choices))}, found {value!r}"[:300]
        )
    return found
