"""The subcommands of `flashnext`: each is one function that fills its parser and returns what runs it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from flashnext.checkpoint import hub, open_checkpoint
from flashnext.checkpoint.affine import SUPPORTED_BITS, SUPPORTED_GROUPS
from flashnext.checkpoint.convert import convert as convert_checkpoint
from flashnext.checkpoint.expected import describe
from flashnext.checkpoint.summary import Summary
from flashnext.cli import drop_output, until_seen_enough
from flashnext.commands.batching import batch
from flashnext.commands.benching import bench
from flashnext.commands.pointing import clients, completion
from flashnext.engine.defaults import DRAFTS, LIMIT_PERCENT, MAX_WINDOW, NGRAM_TABLE, PARALLEL, ROUND_ROWS
from flashnext.engine.wording import FLAGS
from flashnext.errors import FlashnextError
from flashnext.server.configuration import Parser
from flashnext.server.options import (
    CACHE_AUTO,
    add_vision_options,
    cache_gib,
    folder,
    gib,
    media_limits_of,
    parallel,
)
from flashnext.version import VERSION

_MOST_SHOWN = 5  # names of files

Run = Callable[[argparse.Namespace], int | None]
"""What runs a command; the exit status is 0 where it returns none."""


def convert(parser: argparse.ArgumentParser) -> Run:
    """Write an MLX affine checkpoint from a bf16 one."""
    parser.add_argument("source", type=Path, help="folder of the bf16 checkpoint")
    parser.add_argument("target", type=Path, help="folder to write; must not exist yet or be empty")
    parser.add_argument(
        "--bits", type=int, choices=SUPPORTED_BITS, default=6, help="bits a weight (default 6)"
    )
    parser.add_argument(
        "--group",
        type=int,
        choices=SUPPORTED_GROUPS,
        default=32,
        help="weights that share a scale (default 32)",
    )
    parser.add_argument(
        "--table-group",
        type=int,
        choices=SUPPORTED_GROUPS,
        help="the same for the n-gram table (default: --group)",
    )

    def run(args: argparse.Namespace) -> None:
        with _progress(f"{args.bits} bits, group {args.group}") as advance:
            convert_checkpoint(
                args.source, args.target, bits=args.bits, group=args.group, table_group=args.table_group,
                progress=advance,
            )  # fmt: skip
        print(f"{args.target}: {_gib(open_checkpoint(args.target).summary().size_bytes)}")

    return run


def inspect(parser: argparse.ArgumentParser) -> Run:
    """Show what a checkpoint folder holds, without reading its weights."""
    parser.add_argument("folder", type=Path, help="folder of the checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(args: argparse.Namespace) -> None:
        summary = open_checkpoint(args.folder).summary()
        if args.json:
            print(json.dumps(summary.to_json(), indent=2))
        else:
            _print_summary(summary)

    return run


def plan(parser: argparse.ArgumentParser) -> Run:
    """Show what memory a model takes, for any machine, from its config.json alone."""
    parser.add_argument(
        "--model", type=Path, metavar="PATH", help="folder or config.json (default: the model in the package)"
    )
    parser.add_argument("--ram", type=gib, metavar="GIB", help="memory of the machine (default: this one's)")
    parser.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="largest prompt plus reply (default: the model's window, or what of it fits)",
    )
    parser.add_argument(
        "--parallel",
        type=parallel,
        metavar="auto|N",
        help=f"sequences at once (default auto: {PARALLEL}, or as many as fit)",
    )
    parser.add_argument(
        "--load-limit",
        type=gib,
        metavar="GIB",
        help=f"most that all of it takes (default: {LIMIT_PERCENT} %% of the memory)",
    )
    parser.add_argument(
        "--prefix-cache",
        type=cache_gib,
        metavar="auto|GIB",
        help="for cached prefixes, taken before further sequences get theirs; 0 for none (default auto: "
        f"{CACHE_AUTO})",
    )
    parser.add_argument(
        "--spill-dir",
        type=folder,
        metavar="FOLDER",
        help="as of the server: what is on its way to and from the disk counts; the folder is left alone",
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of activations and caches (default bfloat16)",
    )
    parser.add_argument(
        "--drafts",
        type=int,
        choices=range(MAX_WINDOW),
        default=DRAFTS,
        metavar="N",
        help=f"most drafts of a round; the draft head is loaded with any (default {DRAFTS})",
    )
    parser.add_argument(
        "--round-rows",
        type=int,
        default=ROUND_ROWS,
        metavar="N",
        help=f"most rows of a round (default {ROUND_ROWS})",
    )
    parser.add_argument(
        "--ngram-table",
        choices=NGRAM_TABLE,
        default=NGRAM_TABLE[0],
        help="in memory, or read from its file as it is needed (default auto: in memory where it fits)",
    )
    parser.add_argument(
        "--bits", type=int, choices=SUPPORTED_BITS, help="as if a bf16 model had been converted so"
    )
    parser.add_argument("--group", type=int, choices=SUPPORTED_GROUPS, help="of it (default 32)")
    parser.add_argument("--table-group", type=int, choices=SUPPORTED_GROUPS, help="of it (default: --group)")
    add_vision_options(parser.add_argument_group("pictures and videos, as of the server"))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--explain", action="store_true", help="show the arithmetic of the model too")

    def run(args: argparse.Namespace) -> None:
        from flashnext.engine.engine import BUNDLED
        from flashnext.engine.machine import processors, ram_bytes
        from flashnext.engine.plan import GIB, Machine, PlanSettings, make_plan
        from flashnext.engine.plan_text import differences, explain, plan_table
        from flashnext.engine.sizes import vision_room_of, weight_sizes

        if args.bits is None and (args.group or args.table_group):
            raise FlashnextError("--group and --table-group are of a conversion; give --bits too")
        model = describe(
            args.model or BUNDLED, bits=args.bits, group=args.group or 32, table_group=args.table_group
        )
        if args.explain:
            print(explain(model.config), end="\n\n")
        config = model.config if args.drafts > 0 else replace(model.config, n_mtp_layers=0)
        vision = None
        if not args.no_vision:
            given = args.model or BUNDLED
            home = given if given.is_dir() else given.parent
            vision = vision_room_of(home, config, model.tensors, media_limits_of(args), FLAGS)
        ram = ram_bytes() if args.ram is None else int(args.ram * GIB)
        plan = make_plan(
            config,
            weight_sizes(config, model.tensors),
            PlanSettings(
                context=args.context,
                parallel=args.parallel,
                dtype=args.dtype,
                round_rows=args.round_rows,
                ngram_table=args.ngram_table,
                spill=args.spill_dir is not None,
                vision=vision,
                prefix_cache_bytes=None if args.prefix_cache is None else int(args.prefix_cache * GIB),
                load_limit_bytes=None if args.load_limit is None else int(args.load_limit * GIB),
                names=FLAGS,
            ),
            Machine(ram, ram, processors()),
        )
        print(json.dumps(plan.to_json(), indent=2) if args.json else plan_table(plan))
        if args.explain:
            print(f"\n{differences(model.config, plan)}")
        for warning in plan.warnings:
            print(f"flashnext: warning: {warning}", file=sys.stderr)

    return run


def cache(parser: argparse.ArgumentParser) -> Run:
    """Show or remove what a server's --spill-dir holds."""
    parser.add_argument("action", choices=("ls", "clear"), help="show the marks, or remove all of them")
    parser.add_argument("folder", type=folder, help="the folder; ls may look while a server has it")

    def run(args: argparse.Namespace) -> None:
        from flashnext.checkpoint.config import PAGE_TOKENS
        from flashnext.engine.marks import Kind
        from flashnext.engine.spill_files import clear, listed

        if args.action == "clear":
            n, n_bytes, left = clear(args.folder)
            print(f"{args.folder}: {_count(n, 'file')} removed, {_gib(n_bytes)}")
            if left:
                shown = ", ".join(map(ascii, left[:_MOST_SHOWN])) + (
                    ", ..." if len(left) > _MOST_SHOWN else ""
                )
                print(f"{args.folder}: {_count(len(left), 'file')} of other names left: {shown}")
            return
        marks, n_bytes = listed(args.folder, PAGE_TOKENS)
        print(f"{'tokens':>9}{'size':>12}{'last used':>22}  {'model':<8}  kind")
        for mark in marks:
            header = mark.entry.header
            used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(mark.entry.used))
            model = ascii(str(header.get("identity")))[1:9]
            kind = Kind(header["kind"]).name.lower() + (", pinned" if header["pinned"] else "")
            print(f"{len(mark.entry.rows):>9,}{_gib(mark.size_bytes):>12}{used:>22}  {model:<8}  {kind}")
        print(
            f"{_count(len(marks), 'mark')}, {_gib(n_bytes)} in all; sizes are with pages, which marks share"
        )

    return run


def replay(parser: argparse.ArgumentParser) -> Run:
    """Answer a recorded request again, alone and without drafts, and compare the replies."""
    parser.add_argument("file", type=Path, help="what `flashnext-serve --record FILE` wrote")
    parser.add_argument("id", help="of the request, as the log and the header x-request-id tell it")
    parser.add_argument(
        "--model", type=Path, help="checkpoint folder (default: the one it was answered with)"
    )
    parser.add_argument(
        "--load-limit",
        type=gib,
        metavar="GIB",
        help=f"most that all of it takes (default: {LIMIT_PERCENT} %% of the memory)",
    )

    def run(args: argparse.Namespace) -> None:
        from flashnext.engine.engine import Engine
        from flashnext.media import Limits
        from flashnext.server.record import Record

        record = Record.find(args.file, args.id)
        differ = 0
        with Engine(
            args.model or record.checkpoint,
            dtype=record.dtype,
            context=record.context,
            parallel=1,
            load_limit_gib=args.load_limit,
            media_limits=Limits(**record.media_limits),
            names=FLAGS,
        ) as engine:
            for i, (was, now) in enumerate(zip(record.token_shas, record.replay(engine), strict=True)):
                differ += was != now
                verdict = "the same" if was == now else "differs"
                print(f"reply {i}: seed {record.seeds[i]}, was {was}, is {now}: {verdict}")
        if differ:
            raise FlashnextError(f"{differ} of {len(record.seeds)} replies differ from what was recorded")

    return run


def pull(parser: argparse.ArgumentParser) -> Run:
    """Fetch a checkpoint from a model hub into its cache, and print the folder."""
    parser.add_argument("name", help="ORG/NAME, or ORG/NAME@REVISION")
    parser.add_argument("--offline", action="store_true", help="use what the cache has, and ask nobody")
    parser.add_argument(
        "--endpoint", metavar="URL", help="address of the hub or a mirror (default: HF_ENDPOINT)"
    )
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="cache (default: HF_HUB_CACHE)")

    def run(args: argparse.Namespace) -> None:
        print(fetch(args.name, offline=args.offline, endpoint=args.endpoint, cache=args.cache))

    return run


def fetch(
    name: str, *, offline: bool = False, endpoint: str | None = None, cache: Path | None = None
) -> Path:
    """Fetch a checkpoint and show bytes, rate and time left; returns its folder.

    Raises:
        CheckpointError: It cannot be had.
    """
    with _progress(f"fetching {name}") as advance:
        return hub.pull(
            hub.HubName.read(name), offline=offline, endpoint=endpoint, cache=cache, progress=advance
        )


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show bytes, rate and time left of what is told as (done, total) bytes."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    bars = Progress(*columns, console=Console(stderr=True))
    task = bars.add_task(title, total=None)

    def advance(done: int, total: int) -> None:
        bars.start()  # only once, and not before there is progress, so that a refusal is one line
        bars.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        if bars.live.is_started:
            bars.stop()


COMMANDS: tuple[Callable[[argparse.ArgumentParser], Run], ...] = (
    batch,
    bench,
    cache,
    clients,
    completion,
    convert,
    inspect,
    plan,
    pull,
    replay,
)


def parser_of_all() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = Parser(
        prog="flashnext",
        description="Tools around flashnext checkpoints. The server is another program: flashnext-serve.",
        epilog="`flashnext COMMAND --help` tells of one command, `flashnext-serve --help` of the server.",
    )
    parser.add_argument("--version", action="version", version=f"flashnext {VERSION}")
    subparsers = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        doc = command.__doc__ or ""
        sub = subparsers.add_parser(command.__name__, help=doc.splitlines()[0].rstrip("."), description=doc)
        sub.set_defaults(run=command(sub), parser=sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `flashnext ARGV`.

    Returns:
        The command's own status, 1 after an error (told in one line), 2 where the command line is wrong or
        names no command (help is shown then), 130 after Ctrl-C.
    """
    parser = parser_of_all()
    status: int | None = 0
    try:
        with until_seen_enough():
            args, stray = parser.parse_known_args(argv)
            if stray:
                getattr(args, "parser", parser).error(f"unrecognized arguments: {' '.join(stray)}")
            if "run" not in args:
                parser.print_help(sys.stderr)
                return 2
            status = args.run(args)
    except (FlashnextError, OSError) as error:
        print(f"flashnext: {error}", file=sys.stderr)
        if not isinstance(error, FlashnextError):  # its own output
            drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    return status or 0


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"


def _print_summary(s: Summary) -> None:
    rope = "plain rope" if s.rope_type == "default" else "YaRN"
    facts = (
        ("folder", s.path),
        (
            "layout",
            f"{'Hugging Face' if s.layout == 'hf' else 'MLX'}, {_count(s.files, 'file')}, "
            f"{_gib(s.size_bytes)}",
        ),
        ("model", f"{s.values:,} values, hidden {s.hidden_size}, vocabulary {s.vocab_size}"),
        (
            "layers",
            f"{s.n_layers}: {s.n_layers - s.n_attention_layers} DeltaNet, {s.n_attention_layers} attention",
        ),
        ("experts", f"{s.n_experts}, {s.top_k} a token"),
        ("context", f"{s.context:,} tokens ({rope}), up to {s.largest_context:,} with --context"),
        ("norms", f"stored as {s.norms}"),
        ("draft head", "yes" if s.draft_head else "no"),
        ("vision tower", "yes" if s.vision_tower else "no"),
        ("stop tokens", ", ".join(map(str, s.stop_tokens))),
    )
    for name, value in facts:
        print(f"{name:<14}{value}")
    print(f"\n{'part':<20}{'values':>18}{'size':>13}  matrices")
    for name, part in s.parts.items():
        storage = "; ".join(sorted(part.storage))
        print(f"{name:<20}{part.values:>18,}{_gib(part.size_bytes):>13}  {storage}".rstrip())
    for warning in s.warnings:
        print(f"flashnext: warning: {warning}", file=sys.stderr)


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
