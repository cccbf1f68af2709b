"""The commands: `flashnext-serve`, and `flashnext` with its subcommands."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from flashnext.engine.defaults import (
    DRAFTS,
    GAP_MS,
    LIMIT_PERCENT,
    MAX_PARALLEL,
    MAX_ROUND_ROWS,
    NGRAM_TABLE,
    PARALLEL,
    ROUND_ROWS,
    SAVE_S,
    SPILL_GIB,
)
from flashnext.engine.wording import FLAGS
from flashnext.errors import FlashnextError
from flashnext.server.configuration import Parser, parse, written
from flashnext.server.options import (
    CACHE_AUTO,
    add_options,
    add_vision_options,
    cache_gib,
    folder,
    gib,
    parallel,
    settings_of,
)
from flashnext.version import VERSION

# What takes long to import is imported where it is needed, so that --help and refusals are instant.
if TYPE_CHECKING:
    from flashnext.engine.engine import Engine
    from flashnext.engine.plan import MemoryPlan
    from flashnext.server.service import Service
    from flashnext.server.settings import Settings

STOP_TIMEOUT_S = 0.5
"""How long the end waits for the device to finish the step that it is in."""

SAVING_S = SAVE_S + 3.0
"""How long it waits besides where the prefix cache is written: as the engine does, and for a file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `flashnext ARGV`."""
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        from flashnext.commands import main as run

        return run(argv)
    except KeyboardInterrupt:
        return 130


def serve(argv: Sequence[str] | None = None) -> int:
    """Run `flashnext-serve ARGV` until a signal; the status is 0, or 1 after an error told in one line."""
    try:
        parser = serve_parser()
        with until_seen_enough():
            args, sources = parse(parser, argv, os.environ)
            if args.print_config:
                print(written(parser, args, sources))
                return 0
        _interrupted.clear()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        _serve(args)
    except FlashnextError as error:
        print(f"flashnext-serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    except OSError as error:  # of its own output: whatever else goes wrong has its own sentence
        print(f"flashnext-serve: {error}", file=sys.stderr)
        drop_output()
        return 1
    return 0


@contextmanager
def until_seen_enough() -> Iterator[None]:
    """Print for as long as somebody reads it.

    Raises:
        SystemExit: Nobody does any more, which ends the program quietly.
    """
    try:
        try:
            yield
        finally:  # also behind --help and --version, which end the program themselves
            if sys.stdout is not None:  # it may have been closed before the program began
                sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        raise SystemExit(0) from None


def drop_output() -> None:
    """Let go what cannot be written: the interpreter flushes stdout again and would end with 120."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_interrupted = threading.Event()


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # The exception alone is not enough: inside a destructor or a callback of the collector it is lost.
    _interrupted.set()
    raise KeyboardInterrupt


def serve_parser() -> argparse.ArgumentParser:
    """Make the parser of `flashnext-serve`."""
    parser = Parser(
        prog="flashnext-serve",
        description="Serve a checkpoint over HTTP, in OpenAI's form.",
        usage="flashnext-serve [MODEL] [--port PORT] [--context TOKENS] [options]",
        epilog="examples: flashnext-serve; flashnext-serve ./my-checkpoint --port 8080 --context 32768; "
        "FLASHNEXT_PORT=8080 flashnext-serve; flashnext-serve --config serve.toml",
    )
    parser.add_argument("--version", action="version", version=f"flashnext {VERSION}")
    model = parser.add_argument_group("model and address")
    model.add_argument(
        "model",
        nargs="?",
        type=Path,
        metavar="MODEL",
        help="checkpoint folder, or ORG/NAME[@REVISION] of a hub (default: the small one in the package)",
    )
    model.add_argument(
        "--offline",
        action="store_true",
        help="fetch nothing; a hub's model has to be in the cache (default: fetch)",
    )
    model.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1, this machine only)"
    )
    model.add_argument("--port", type=_port, default=8000, help="port, 0 for any free one (default 8000)")
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="largest prompt plus reply (default: the model's window, or what of it there is room for)",
    )
    engine.add_argument(
        "--load-limit",
        type=gib,
        metavar="GIB",
        help=f"most memory that all of it takes, above 0 (default: {LIMIT_PERCENT} %% of the machine's)",
    )
    engine.add_argument(
        "--prefix-cache",
        type=cache_gib,
        metavar="auto|GIB",
        help="memory for prompts that were read, so that others go on from them; 0 for none (default auto: "
        f"{CACHE_AUTO})",
    )
    engine.add_argument(
        "--spill-dir",
        type=folder,
        metavar="FOLDER",
        help="folder for what the prefix cache has no room for; holds what prompts say (default: none)",
    )
    engine.add_argument(
        "--spill-limit",
        type=gib,
        metavar="GIB",
        help="most that the files there take; refused without --spill-dir "
        f"(default: {SPILL_GIB:g} where there is --spill-dir)",
    )
    engine.add_argument(
        "--device",
        default="auto",
        help="auto, cpu or metal (default auto: metal on Apple Silicon, else cpu); for tests of the Metal "
        "kernels metal-host or cuda",
    )
    engine.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of activations and caches (default bfloat16)",
    )
    engine.add_argument(
        "--parallel",
        type=parallel,
        metavar="auto|N",
        help=f"most requests answered at once, 1 to {MAX_PARALLEL} (default auto: {PARALLEL}, or as many as "
        "there is room for)",
    )
    engine.add_argument(
        "--gap",
        type=float,
        default=GAP_MS,
        metavar="MS",
        help=f"how long replies may stand still while others' prompts are read (default {GAP_MS:g} ms)",
    )
    engine.add_argument(
        "--drafts",
        type=int,
        default=DRAFTS,
        metavar="N",
        help=f"most draft tokens of a round, 0 to 15; they change speed only (default {DRAFTS})",
    )
    engine.add_argument(
        "--round-rows",
        type=int,
        default=ROUND_ROWS,
        metavar="N",
        help=f"most rows of a round, tokens and drafts of all requests, 1 to {MAX_ROUND_ROWS} "
        f"(default {ROUND_ROWS})",
    )
    engine.add_argument(
        "--ngram-table",
        choices=NGRAM_TABLE,
        default=NGRAM_TABLE[0],
        help="whether the n-gram table has to fit into memory, or its rows are read from its file as they "
        "are needed (default auto: streamed only where it does not fit)",
    )
    engine.add_argument(
        "--no-lone",
        action="store_true",
        help="no rounds without the host while one request runs alone (default: with them)",
    )
    engine.add_argument(
        "--serial-drafts",
        action="store_true",
        help="draft only when the host has seen what a round kept; slower (default: behind it on the device)",
    )
    engine.add_argument(
        "--no-prices",
        action="store_true",
        help="as many drafts as allowed, whatever they cost (default: as many as pay)",
    )
    vision = parser.add_argument_group("pictures and videos")
    add_vision_options(vision)
    vision.add_argument(
        "--media-urls",
        action="store_true",
        help="fetch what requests name by https addresses, from public servers alone (default: refuse them)",
    )
    add_options(parser)
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {text!r}")
    return int(text)


def _listen(host: str, port: int) -> socket.socket:
    """Listen before anything is loaded, so that a port in use is told at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        return listener
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise FlashnextError(
                f"port {port} of {ascii(host)[1:-1]} is already in use by another program; choose another "
                "one with --port, or let --port 0 find one that is free"
            ) from None
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise FlashnextError(
            f"cannot listen on {ascii(host)[1:-1]} port {port}: {reason}; choose others with --host or --port"
        ) from None


def _serve(args: argparse.Namespace) -> None:
    """Look at the model's path, then at keys and files, then at the port, and fetch and load after that."""
    from flashnext.checkpoint.folder import need_file, open_folder
    from flashnext.engine.engine import BUNDLED

    given = args.model or BUNDLED
    if not is_of_hub(given):
        need_file(open_folder(given), "config.json")
    settings = settings_of(args, model_name(given), str(given))
    with _listen(args.host, args.port) as listener:
        _load_and_serve(args, settings, find_model(given, args.offline), listener)


def _load_and_serve(
    args: argparse.Namespace, settings: Settings, path: Path, listener: socket.socket
) -> None:
    began = time.perf_counter()
    from flashnext.engine.engine import Engine
    from flashnext.server.allocator import give_large_blocks_back
    from flashnext.server.files import connections_allowed
    from flashnext.server.loading import Loading
    from flashnext.server.log import set_up
    from flashnext.server.run import HttpServer
    from flashnext.server.service import Service

    set_up(args.log_level, args.log_format)
    give_large_blocks_back()
    settings = replace(settings, max_connections=connections_allowed(settings.max_connections))
    service = Service(settings)
    load = partial(
        Engine,
        path,
        device=args.device,
        dtype=args.dtype,
        context=args.context,
        drafts=args.drafts,
        parallel=args.parallel,
        gap_ms=args.gap,
        round_rows=args.round_rows,
        ngram_table=args.ngram_table,
        lone=not args.no_lone,
        serial_drafts=args.serial_drafts,
        prices=not args.no_prices,
        load_limit_gib=args.load_limit,
        prefix_cache_gib=args.prefix_cache,
        spill_dir=args.spill_dir,
        spill_limit_gib=args.spill_limit,
        vision=not args.no_vision,
        media_limits=settings.media_limits,
        planned=partial(_show_plan, settings=settings),
        names=FLAGS,
    )
    loading = Loading(load, _progress(path), service)

    def on_loaded(engine: Engine) -> None:
        for warning in (*engine.loaded.checkpoint.warnings, *engine.warnings):
            print(f"flashnext-serve: warning: {warning}", file=sys.stderr)
        service.ready(engine)
        print(_banner(engine, service, _url(listener), began), flush=True)

    def on_stop() -> None:
        if loading.engine is not None:
            loading.engine.close(timeout_s=0)

    def stop() -> None:
        server.should_exit = True

    server = HttpServer(service, on_start=lambda: loading.begin(on_loaded, stop), on_stop=on_stop)

    try:
        if not _interrupted.is_set():
            server.run([listener])
        if loading.error is not None:
            raise loading.error
    finally:
        if not loading.close(STOP_TIMEOUT_S + (SAVING_S if args.spill_dir else 0)):
            _exit_now()  # the device is in a long step that nobody waits for any more


def is_of_hub(given: Path) -> bool:
    """Whether a model is named that is fetched from a hub, unless its cache has it."""
    from flashnext.checkpoint.hub import is_hub_name

    return not given.exists() and is_hub_name(str(given))


def model_name(given: Path) -> str:
    """Say under which name a model is served."""
    return given.name.partition("@")[0] if is_of_hub(given) else given.resolve().name


def find_model(given: Path, offline: bool) -> Path:
    """Find the folder of a checkpoint, fetched where it is a hub's."""
    if not is_of_hub(given):
        return given
    from flashnext.commands import fetch

    return fetch(str(given), offline=offline)


def _exit_now() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def _progress(path: Path) -> Iterator[Callable[[str], None]]:
    """Show the stages of loading: in one line with a spinner on a terminal, else a line for each."""
    if not sys.stderr.isatty():
        yield lambda stage: print(f"loading {path.name}: {stage}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bars:
        task = bars.add_task(f"loading {path.name}")
        yield lambda stage: bars.update(task, description=f"loading {path.name}: {stage}")


def _show_plan(plan: MemoryPlan, *, settings: Settings) -> None:
    """Print what memory will be taken, before it is, and what the server may come to take beside that."""
    from flashnext.engine.plan_text import plan_table
    from flashnext.server.settings import MIB

    for warning in plan.warnings:
        print(f"flashnext-serve: warning: {warning}", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)  # the line of the spinner, which comes again
    print(plan_table(plan), flush=True)
    if settings.max_responses and settings.max_responses_bytes:
        most = f"{settings.max_responses_bytes / MIB:.1f} MiB"
        print(f"{'responses':<22}{most:>11}  kept ones at most, beside the sum", flush=True)


def _banner(engine: Engine, service: Service, url: str, began: float) -> str:
    """Say what is served and where; `began` is the start by perf_counter."""
    seconds = time.perf_counter() - began
    loaded = engine.loaded
    bits = sorted({affine.bits for affine in loaded.checkpoint.affine.values()})
    storage = f"{', '.join(map(str, bits))} bit" if bits else "bfloat16"
    rows = [
        ("model", f"{service.name} ({storage}, activations {loaded.dtype})"),
        ("device", loaded.device.name),
        ("context", f"{engine.context:,} tokens"),
        ("address", f"{url}/v1"),
    ]
    if service.settings.page:
        rows.append(("page", f"{url}/"))
    lines = [f"{label:<9}{value}" for label, value in rows]
    return "\n".join([*lines, f"ready in {seconds:.1f} s; Ctrl-C ends"])


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
