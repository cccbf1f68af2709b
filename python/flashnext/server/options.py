"""The server's own options on the command line, and the settings they make."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from flashnext.engine.defaults import LEAST_GIB, MOST_GIB
from flashnext.errors import InvalidArgument
from flashnext.media.limits import Limits
from flashnext.server.settings import MIB, Defaults, Settings
from flashnext.text.jsontext import clean_text

CACHE_AUTO = (
    "a quarter of what weights and scratch leave, but what one sequence needs goes first; at most 32 contexts"
)
"""What a prefix cache takes that nobody sized, for help texts."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of replies, access, limits, log and configuration, in groups."""
    names = parser.add_argument_group("names and defaults, where a request says nothing")
    names.add_argument(
        "--served-model-name",
        action="append",
        type=_text,
        metavar="NAME",
        help="a further name of the model; may be repeated (default: none beside the folder's name)",
    )
    names.add_argument(
        "--temperature", type=number(0, 100), metavar="T", help="0 to 100 (default: the checkpoint's)"
    )
    names.add_argument(
        "--top-p", type=number(1e-6, 1), metavar="P", help="above 0 to 1 (default: the checkpoint's)"
    )
    names.add_argument(
        "--top-k", type=whole(-1), metavar="K", help="tokens, 0 or -1 for all (default: the checkpoint's)"
    )
    names.add_argument(
        "--max-tokens",
        type=whole(1),
        metavar="TOKENS",
        help="longest reply (default: what the context leaves)",
    )
    names.add_argument(
        "--no-thinking",
        action="store_true",
        help="chats do not think unless they ask to (default: they think)",
    )
    names.add_argument(
        "--strict-fields",
        action="store_true",
        help="refuse unknown fields of requests (default: ignore them with a warning in the log)",
    )
    access = parser.add_argument_group("access")
    access.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="key that requests must bring; may be repeated (default: none is needed)",
    )
    access.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file with a key on each line (default: none)"
    )
    access.add_argument(
        "--allowed-host",
        action="append",
        type=_text,
        metavar="NAME",
        help="name that the server may be asked under; may be repeated (default: addresses and localhost)",
    )
    access.add_argument(
        "--cors-origin",
        action="append",
        type=_text,
        metavar="ORIGIN",
        help="origin of web pages that may ask, * for all; may be repeated (default: none)",
    )
    access.add_argument(
        "--no-key-needed",
        action="store_true",
        help="listen to other machines without a key (default: that is refused)",
    )
    access.add_argument(
        "--no-page",
        action="store_true",
        help="no chat page at / (default: there is one, and it needs no key)",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-body",
        type=number(0.001, 4096),
        default=64.0,
        metavar="MIB",
        help="longest body in MiB (default 64)",
    )
    limits.add_argument(
        "--max-connections", type=whole(1), default=4096, metavar="N", help="open connections (default 4096)"
    )
    limits.add_argument(
        "--queue",
        type=whole(0),
        default=256,
        metavar="N",
        help="requests that may wait beside those answered at once (default 256)",
    )
    limits.add_argument(
        "--request-timeout",
        type=number(0, math.inf),
        default=0.0,
        metavar="S",
        help="longest time of a reply in seconds, 0 for any (default 0)",
    )
    limits.add_argument(
        "--client-timeout",
        type=number(0.1, math.inf),
        default=60.0,
        metavar="S",
        help="a client that sends no request, or not all of one, or takes nothing of a response, is left "
        "after so many seconds (default 60)",
    )
    limits.add_argument(
        "--drain",
        type=number(0, math.inf),
        default=10.0,
        metavar="S",
        help="how long replies may go on after a signal in seconds; a second signal ends them (default 10)",
    )
    limits.add_argument(
        "--stall-timeout",
        type=number(1, math.inf),
        default=120.0,
        metavar="S",
        help="/health fails once a step of the engine takes so many seconds (default 120)",
    )
    limits.add_argument(
        "--max-responses",
        type=whole(0),
        default=1000,
        metavar="N",
        help="replies of /v1/responses kept in memory for previous_response_id, the oldest goes first; 0 for "
        "none (default 1000)",
    )
    limits.add_argument(
        "--max-responses-size",
        type=number(0, 2**20),
        default=64.0,
        metavar="MIB",
        help="memory that these may take with their chats, in MiB; the plan names it (default 64)",
    )
    log = parser.add_argument_group("log, written to stderr")
    log.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="debug, info, warning or error (default info)",
    )
    log.add_argument(
        "--log-format",
        choices=("auto", "text", "json"),
        default="auto",
        help="text, json, or auto for text on a terminal and else json (default auto)",
    )
    log.add_argument(
        "--log-prompts", action="store_true", help="log what requests say (default: no text of theirs)"
    )
    log.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="append each finished request, for `flashnext replay`; holds what it says (default: none)",
    )
    more = parser.add_argument_group("configuration")
    more.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file of options; the environment (FLASHNEXT_PORT) and flags go first (default: none)",
    )
    more.add_argument(
        "--print-config",
        action="store_true",
        help="print each option and where it comes from, as a file for --config, without keys, and end",
    )


def gib(text: str) -> float:
    """Read an amount of memory in GiB, above 0."""
    value = _float(text)
    if not LEAST_GIB <= value <= MOST_GIB:
        raise argparse.ArgumentTypeError(f"expected GiB from {LEAST_GIB} to {MOST_GIB:,}, found {text!r}")
    return value


def folder(text: str) -> Path:
    """Read the path of a folder, which an empty text is not, and make it a whole one."""
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, found ''")
    return Path(text).absolute()


def cache_gib(text: str) -> float | None:
    """Read the size of a prefix cache in GiB, or 0 for none; None for auto."""
    if text == "auto":
        return None
    value = _float(text)
    if value and not LEAST_GIB <= value <= MOST_GIB:
        raise argparse.ArgumentTypeError(
            f"expected auto, 0, or GiB from {LEAST_GIB} to {MOST_GIB:,}, found {text!r}"
        )
    return value


def parallel(text: str) -> int | None:
    """Read how many requests are answered at once; None for auto."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected auto or a number, found {text!r}")
    return int(text)


def add_vision_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of pictures and videos, which `media_limits_of` reads."""
    group.add_argument(
        "--no-vision",
        action="store_true",
        help="leave the vision tower out, and refuse pictures and videos (default: with it, where the model "
        "has one)",
    )
    group.add_argument(
        "--vision-image-tokens",
        type=whole(1),
        default=Limits.image_tokens,
        metavar="N",
        help="most tokens of a picture, and of a slice of a video; larger ones are made smaller (default "
        f"{Limits.image_tokens})",
    )
    group.add_argument(
        "--vision-video-tokens",
        type=whole(1),
        metavar="N",
        help="most tokens of a video, whose frames are made smaller (default: the model's own rule)",
    )
    group.add_argument(
        "--vision-max-images",
        type=whole(0),
        default=Limits.max_images,
        metavar="N",
        help=f"most pictures of a request (default {Limits.max_images})",
    )
    group.add_argument(
        "--vision-max-videos",
        type=whole(0),
        default=Limits.max_videos,
        metavar="N",
        help=f"most videos of a request (default {Limits.max_videos})",
    )


def media_limits_of(args: argparse.Namespace) -> Limits:
    """Make the limits of what the options of pictures and videos say."""
    return Limits(
        image_tokens=args.vision_image_tokens,
        video_tokens=args.vision_video_tokens,
        max_images=args.vision_max_images,
        max_videos=args.vision_max_videos,
    )


def settings_of(args: argparse.Namespace, name: str, path: str) -> Settings:
    """Make the settings that options ask for.

    Args:
        args: What was parsed.
        name: Of the model, which replies carry.
        path: What is served, as it was given.

    Raises:
        InvalidArgument: A key or the file of them cannot be used, requests cannot be recorded, or other
            machines could ask without a key.
    """
    keys = [_key(key, "--api-key") for key in args.api_key or ()] + _keys_in(args.api_key_file)
    if not keys and not args.no_key_needed and not _is_loopback(args.host):
        raise InvalidArgument(
            f"--host {args.host} lets other machines ask, and there is no key; "
            "give --api-key or --api-key-file, or --no-key-needed if that is meant"
        )
    if args.record is not None:
        _check_record(args.record)
    name = clean_text(name)  # a file's name may be any bytes
    return Settings(
        names=tuple(dict.fromkeys([name, *(args.served_model_name or ()), "flashnext"])),
        path=clean_text(path),
        defaults=Defaults(
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            max_tokens=args.max_tokens,
            thinking=not args.no_thinking,
        ),
        media_limits=media_limits_of(args),
        media_urls=args.media_urls,
        strict_fields=args.strict_fields,
        api_keys=tuple(keys),
        hosts=tuple([*(args.allowed_host or ()), args.host]),
        cors_origins=tuple(args.cors_origin or ()),
        page=not args.no_page,
        max_body_bytes=int(args.max_body * MIB),
        max_connections=args.max_connections,
        max_queue=args.queue,
        timeout_s=args.request_timeout,
        stall_s=args.stall_timeout,
        drain_s=args.drain,
        patience_s=args.client_timeout,
        max_responses=args.max_responses,
        max_responses_bytes=int(args.max_responses_size * MIB),
        log_prompts=args.log_prompts,
        record=args.record,
    )


def _keys_in(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--api-key-file {path}: cannot be read: {error}") from None
    numbered = [(i, line.strip()) for i, line in enumerate(lines, 1)]
    keys = [
        _key(line, f"--api-key-file {path}: line {i}")
        for i, line in numbered
        if line and not line.startswith("#")
    ]
    if not keys:
        raise InvalidArgument(f"--api-key-file {path}: expected a key on a line, found none")
    return keys


def _key(text: str, source: str) -> str:
    """Read a key as a header brings it: without white space around it."""
    key = text.strip()
    if not key:
        raise InvalidArgument(f"{source}: expected a key, found an empty text")
    if not _is_sendable(key):
        # The key itself is not shown.
        raise InvalidArgument(
            f"{source}: the key cannot be sent in a header; expected UTF-8 without control characters"
        )
    return key


def _check_record(path: Path) -> None:
    try:
        path.open("ab").close()
    except OSError as error:
        raise InvalidArgument(
            f"--record {path}: cannot be opened for appending: {error.strerror}; choose another file"
        ) from None


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host in ("::1", "[::1]")


def _is_sendable(text: str) -> bool:
    """Whether a header can bring a text in UTF-8."""
    return not any(char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in text)


def _text(text: str) -> str:
    """Read a name that headers and JSON can carry."""
    if not text or not _is_sendable(text):
        raise argparse.ArgumentTypeError(f"expected UTF-8 without control characters, found {text!a}")
    return text


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def number(low: float, high: float) -> Callable[[str], float]:
    """Make what reads a number within bounds."""

    def read(text: str) -> float:
        value = _float(text)
        if not low <= value <= high or math.isinf(value):
            to = "" if math.isinf(high) else f" to {high:g}"
            raise argparse.ArgumentTypeError(f"expected a number from {low:g}{to}, found {text!r}")
        return value

    return read


def whole(low: int) -> Callable[[str], int]:
    """Read a whole number that is large enough."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value < 2**31:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low}, found {text!r}")
        return value

    return read
