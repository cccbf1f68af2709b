"""`flashnext batch`: answers a file of requests, and goes on where it was ended."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flashnext.cli import find_model, model_name
from flashnext.commands.loading import add_loading_options
from flashnext.engine.defaults import PARALLEL
from flashnext.engine.wording import FLAGS
from flashnext.errors import FlashnextError, InvalidArgument
from flashnext.server.options import (
    CACHE_AUTO,
    add_vision_options,
    cache_gib,
    folder,
    media_limits_of,
    number,
    parallel,
)
from flashnext.text.jsontext import clean_text

if TYPE_CHECKING:
    from flashnext.batch.lines import Line
    from flashnext.engine.engine import Engine
    from flashnext.server.settings import Settings

SOME_FAILED = 3
"""The exit status where all lines are answered and some of the answers are errors."""

_QUIET_S = 10.0  # between lines of progress where there is no terminal


def batch(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Answer a file of requests, in OpenAI's batch form or plain, as fast as they go."""
    parser.epilog = (
        "Run the same line again to go on after an interruption. The exit status is 0 when all lines have "
        f"replies, {SOME_FAILED} when some have errors, 1 when the rest could not be answered."
    )
    parser.add_argument(
        "input", help="JSONL: a request on each line (docs/batch.md); a file, a pipe, or - for standard input"
    )
    parser.add_argument(
        "-o", "--output", type=_output, required=True, metavar="FILE", help="JSONL: an answer to each line"
    )
    parser.add_argument("--retry", action="store_true", help="answer lines again whose answers are errors")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="makes the seeds of lines without one (default 0)",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        help="folder, or ORG/NAME of a hub (default: the small one of the package)",
    )
    model.add_argument("--offline", action="store_true", help="fetch nothing (default: fetch)")
    model.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name by which lines may call the model; may be repeated (default: none)",
    )
    model.add_argument(
        "--context", type=int, metavar="TOKENS", help="largest prompt plus reply (default: what fits)"
    )
    model.add_argument(
        "--parallel",
        type=parallel,
        metavar="auto|N",
        help=f"most replies at once (default auto: {PARALLEL}, or as many as there is room for)",
    )
    add_loading_options(model)
    model.add_argument(
        "--prefix-cache",
        type=cache_gib,
        metavar="auto|GIB",
        help=f"memory for prompts that were read; 0 for none (default auto: {CACHE_AUTO})",
    )
    model.add_argument("--spill-dir", type=folder, metavar="FOLDER", help="as of the server (default: none)")
    add_vision_options(parser.add_argument_group("pictures and videos"))
    replies = parser.add_argument_group("replies, where a line says nothing")
    replies.add_argument(
        "--temperature", type=number(0, 100), metavar="T", help="0 to 100 (default: the checkpoint's)"
    )
    replies.add_argument(
        "--max-tokens", type=int, metavar="TOKENS", help="longest reply (default: what the context leaves)"
    )
    replies.add_argument("--no-thinking", action="store_true", help="chats do not think (default: they do)")
    return _run


def _run(args: argparse.Namespace) -> int:
    try:
        n, n_failed, speed = _answer(args)
    except OSError as error:  # of the files; what is printed here has its own rule
        name = error.filename or args.output
        raise FlashnextError(f"{name}: cannot be read or written: {error.strerror or error}") from None
    print(f"{args.output}: {n:,} answers, {n_failed:,} of them errors; {speed}")
    return SOME_FAILED if n_failed else 0


def _answer(args: argparse.Namespace) -> tuple[int, int, str]:
    """Answer all lines; returns how many have answers, how many of these are errors, and how fast it went."""
    from flashnext.batch.source import opened

    with opened(args.input, args.output) as source:
        return _answer_lines(args, source)


def _answer_lines(args: argparse.Namespace, source: BinaryIO) -> tuple[int, int, str]:
    from flashnext.batch.lines import Reading, survey
    from flashnext.batch.output import Output
    from flashnext.batch.work import answer_lines
    from flashnext.engine.engine import BUNDLED, Engine
    from flashnext.engine.many import AHEAD
    from flashnext.server.allocator import give_large_blocks_back
    from flashnext.server.log import set_up
    from flashnext.server.offline import URLS, Offline

    found = survey(source)
    given = args.model or BUNDLED
    path, name = find_model(given, args.offline), model_name(given)
    settings = _settings(args, clean_text(name))
    with Output(args.output) as output:
        set_up("warning", "auto")
        give_large_blocks_back()
        with Engine(
            path,
            device=args.device,
            dtype=args.dtype,
            context=args.context,
            drafts=args.drafts,
            parallel=args.parallel,
            load_limit_gib=args.load_limit,
            prefix_cache_gib=args.prefix_cache,
            spill_dir=args.spill_dir,
            vision=not args.no_vision,
            media_limits=settings.media_limits,
            names=FLAGS,
        ) as engine:
            for warning in (*engine.loaded.checkpoint.warnings, *engine.plan.warnings, *engine.warnings):
                print(f"flashnext: warning: {warning}", file=sys.stderr)
            offline = Offline(engine, settings)
            fingerprint = offline.service.fingerprint
            key = f"{fingerprint} {asdict(settings.defaults)} {asdict(settings.media_limits)}"
            reading = Reading(URLS, settings.names[0], args.seed, key, found.taken)
            output.begin(reading.raws(source), fingerprint, retry=args.retry)
            bar = _Bar(found.n_lines, engine)
            with bar.shown():
                asyncio.run(
                    answer_lines(
                        reading.lines(source),
                        output,
                        partial(_post, offline),
                        ahead=AHEAD * engine.parallel,
                        told=bar.told,
                        waits=bar.waits,
                    )
                )
        output.finish()
        return len(output.done), output.n_failed, bar.speed


def _output(text: str) -> Path:
    """Read where answers go.

    Raises:
        argparse.ArgumentTypeError: To standard output, from which nothing can be read.
    """
    if text == "-":
        raise argparse.ArgumentTypeError("expected a file, which is read to go on, found - (standard output)")
    return Path(text)


def _settings(args: argparse.Namespace, name: str) -> Settings:
    from flashnext.server.settings import Defaults, Settings

    if args.max_tokens is not None and args.max_tokens < 1:
        raise InvalidArgument(f"--max-tokens is {args.max_tokens}, expected 1 or more")
    return Settings(
        names=tuple(dict.fromkeys([name, *args.served_model_name, "flashnext"])),
        path=clean_text(str(args.model)) if args.model else None,
        defaults=Defaults(
            temperature=args.temperature, max_tokens=args.max_tokens, thinking=not args.no_thinking
        ),
        media_limits=media_limits_of(args),
        max_queue=2**31,  # as many replies as lines ask for; how many lines are open is bounded
    )


async def _post(offline: Any, url: str, body: bytes) -> Any:
    from flashnext.batch.work import Answer

    status, headers, said = await offline.post(url, body)
    retry = headers.get("retry-after")
    return Answer(status, headers["x-request-id"], said, None if retry is None else float(retry))


class _Bar:
    """Shows how far a batch is: a bar on a terminal, else a line now and then."""

    def __init__(self, n_lines: int, engine: Engine) -> None:
        self._n_lines = n_lines
        self._engine = engine
        self._n = self._n_failed = 0
        self._bars: Progress | None = None
        self._began_s = self._said_s = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show it for as long as lines are answered."""
        try:
            if not sys.stderr.isatty():
                yield
                return
            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[told]}"), TimeRemainingColumn(),
            )  # fmt: skip
            with Progress(*columns, console=Console(stderr=True)) as self._bars:
                self._task = self._bars.add_task("lines", total=self._n_lines, told="")
                yield
        except KeyboardInterrupt:
            rest = "run the same line again to go on"
            print(f"flashnext: {self._n:,} of {self._n_lines:,} lines are answered; {rest}", file=sys.stderr)
            raise

    def told(self, line: Line, failed: bool) -> None:
        """Take note of a line that is answered."""
        self._n += 1
        self._n_failed += failed
        if self._bars is not None:
            self._bars.update(self._task, completed=self._n, told=self.summary)
        elif time.monotonic() - self._said_s >= _QUIET_S:
            self._said_s = time.monotonic()
            print(f"{self._n:,} of {self._n_lines:,} lines, {self.summary}", file=sys.stderr, flush=True)

    def waits(self, why: str) -> None:
        """Say why no line is being answered."""
        print(f"flashnext: every line waits: {why}", file=sys.stderr, flush=True)

    @property
    def speed(self) -> str:
        """Tokens of replies a second, so far."""
        took_s = max(1e-9, time.monotonic() - self._began_s)
        return f"{self._engine.counts.work.reply_tokens / took_s:,.0f} tok/s"

    @property
    def summary(self) -> str:
        """Speed and errors."""
        return f"{self.speed}, {self._n_failed:,} errors" if self._n_failed else self.speed
