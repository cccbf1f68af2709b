"""The subcommands of `flashnext`: each is one function that fills its parser and returns what runs it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
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
from rich.table import Table

from flashnext.checkpoint import open_checkpoint
from flashnext.checkpoint.affine import SUPPORTED_BITS, SUPPORTED_GROUPS
from flashnext.checkpoint.convert import convert as convert_checkpoint
from flashnext.checkpoint.summary import Summary
from flashnext.errors import FlashnextError

Run = Callable[[argparse.Namespace], None]


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
        columns = (
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(f"{args.bits} bits, group {args.group}", total=None)
            convert_checkpoint(
                args.source, args.target, bits=args.bits, group=args.group, table_group=args.table_group,
                progress=lambda done, total: bars.update(task, completed=done, total=total),
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


COMMANDS = (convert, inspect)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `flashnext ARGV` and return the exit status: 0, 1 after an error that is told in one line, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="flashnext", description="Tools around flashnext checkpoints.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        doc = command.__doc__ or ""
        sub = subparsers.add_parser(command.__name__, help=doc.splitlines()[0].rstrip("."), description=doc)
        sub.set_defaults(run=command(sub))
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except FlashnextError as error:
        print(f"flashnext: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"


def _print_summary(s: Summary) -> None:
    console = Console(highlight=False)
    facts = Table.grid(padding=(0, 2))
    rope = "plain rope" if s.rope_type == "default" else "YaRN"
    for name, value in (
        ("folder", s.path),
        (
            "layout",
            f"{'Hugging Face' if s.layout == 'hf' else 'MLX'}, {s.files} file{'s' * (s.files > 1)}, {_gib(s.size_bytes)}",
        ),
        ("model", f"{s.values:,} values, hidden {s.hidden_size}, vocabulary {s.vocab_size}"),
        (
            "layers",
            f"{s.n_layers}: {s.n_layers - s.n_attention_layers} DeltaNet, {s.n_attention_layers} attention",
        ),
        ("experts", f"{s.n_experts}, {s.top_k} a token"),
        ("window", f"{s.context:,} tokens ({rope}), up to {s.largest_context:,} with --context"),
        ("norms", f"stored as {s.norms}"),
        ("draft head", "yes" if s.draft_head else "no"),
        ("vision tower", "yes" if s.vision_tower else "no"),
        ("stop tokens", ", ".join(map(str, s.stop_tokens))),
    ):
        facts.add_row(name, value)
    parts = Table(box=None, padding=(0, 2, 0, 0))
    parts.add_column("part")
    parts.add_column("values", justify="right")
    parts.add_column("size", justify="right")
    parts.add_column("matrices")
    for name, part in s.parts.items():
        parts.add_row(name, f"{part.values:,}", _gib(part.size_bytes), "; ".join(sorted(part.storage)))
    console.print(facts, "", parts, sep="\n", soft_wrap=True, markup=False)
    for warning in s.warnings:
        print(f"flashnext: warning: {warning}", file=sys.stderr)
