"""`flashnext bench`: how fast a machine answers, with the proof that what was measured is exact."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashnext.cli import find_model, model_name
from flashnext.commands.loading import add_loading_options
from flashnext.engine.defaults import MAX_PARALLEL
from flashnext.engine.wording import FLAGS
from flashnext.errors import DeviceError, InvalidArgument
from flashnext.version import VERSION

if TYPE_CHECKING:
    from flashnext.engine.engine import Engine
    from flashnext.engine.events import Reply
    from flashnext.engine.sampling import Sampling

SEED = 1
"""Of prompts and draws; the same everywhere, so that runs can be compared."""


@dataclass(frozen=True)
class Run:
    """What one setting gave; of several repeats, the median by decode speed.

    Attributes:
        depth: Tokens of each prompt.
        sequences: Replies at once.
        tokens: Of each reply.
        prompt_tok_s: Tokens of all prompts, for each second until the last of them has been read.
        decode_tok_s: Tokens of all replies for each second after that; None where there were none.
        first_token_ms: The median.
        largest_gap_ms: The longest that any reply stood still.
        drafts_kept: Part of the drafts that were kept; None where there were none.
    """

    depth: int
    sequences: int
    tokens: int
    prompt_tok_s: float
    decode_tok_s: float | None
    first_token_ms: float
    largest_gap_ms: float | None
    drafts_kept: float | None


def bench(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    """Measure speed, check that what was measured is exact, and print one JSON to share."""
    parser.add_argument(
        "model",
        nargs="?",
        type=Path,
        metavar="MODEL",
        help="folder, or ORG/NAME of a hub (default: the small one of the package)",
    )
    parser.add_argument("--offline", action="store_true", help="fetch nothing (default: fetch)")
    parser.add_argument(
        "--depths",
        type=_numbers(1, 1 << 20),
        default=(16, 512),
        metavar="N,...",
        help="tokens of the prompts, one run for each (default 16,512)",
    )
    parser.add_argument(
        "--sequences",
        type=_numbers(1, MAX_PARALLEL),
        default=(1, 4),
        metavar="N,...",
        help="replies at once, one run for each (default 1,4)",
    )
    parser.add_argument(
        "--tokens", type=_number(1, 1 << 20), default=64, metavar="N", help="of each reply (default 64)"
    )
    parser.add_argument(
        "--repeats",
        type=_number(1, 1000),
        default=3,
        metavar="N",
        help="of each run, whose median counts (default 3)",
    )
    add_loading_options(parser)
    parser.add_argument("--json", action="store_true", help="print the JSON alone (default: a table first)")
    return _run


def _run(args: argparse.Namespace) -> None:
    from flashnext.engine.engine import BUNDLED, Engine

    given = args.model or BUNDLED
    path, name = find_model(given, args.offline), model_name(given)

    def load(parallel: int, drafts: int) -> Engine:
        return Engine(
            path,
            device=args.device,
            dtype=args.dtype,
            parallel=parallel,
            drafts=drafts,
            prefix_cache_gib=0,
            load_limit_gib=args.load_limit,
            names=FLAGS,
        )

    room = (max(args.depths) + args.tokens) * max(args.sequences)
    checked: dict[tuple[int, int], str] = {}
    runs = []
    with load(max(args.sequences), args.drafts) as engine:
        if engine.context < room:  # its pages are all that there are, and no reply is to make room for others
            raise InvalidArgument(
                f"{max(args.sequences)} sequences of {max(args.depths) + args.tokens} tokens need {room}, "
                f"and the context has {engine.context}; give smaller --depths, --tokens or --sequences"
            )
        facts = _facts(engine, name)
        if not args.json:
            print("\n".join(f"{label:<9}{value}" for label, value in _head(facts)))
            print(f"\n{'depth':>7}{'sequences':>11}{'prompt tok/s':>14}{'decode tok/s':>14}{'first ms':>10}")
        for depth in args.depths:
            for sequences in args.sequences:
                tried = [measure(engine, depth, sequences, args.tokens, checked) for _ in range(args.repeats)]
                runs.append(sorted(tried, key=lambda run: run.decode_tok_s or 0.0)[len(tried) // 2])
                if not args.json:
                    _print_row(runs[-1])
    with load(1, 0) as alone:
        differ = [key for key, sha in checked.items() if _alone(alone, *key, args.tokens) != sha]
    if differ:
        raise DeviceError(
            f"{len(differ)} of {len(checked)} replies differ from those that the same prompts get alone and "
            f"without drafts, the first of {differ[0][0]} tokens; this machine does not keep the promise, "
            "and its figures do not count"
        )
    report = {
        **facts,
        "runs": [asdict(run) for run in runs],
        "exact": {"replies": len(checked), "same_alone_without_drafts": True},
    }
    if not args.json:
        print(f"\nexact: {len(checked)} replies are, bit for bit, those that each prompt gets alone\n")
    print(json.dumps(report, separators=(",", ":")))


def measure(
    engine: Engine, depth: int, sequences: int, tokens: int, checked: dict[tuple[int, int], str]
) -> Run:
    """Answer prompts together and take the time.

    Args:
        engine: Without a prefix cache.
        depth: Tokens of each prompt.
        sequences: How many.
        tokens: Of each reply.
        checked: Takes the fingerprint of each reply, by depth and number of its prompt.

    Raises:
        DeviceError: A reply differs from the one that the prompt had before.
    """
    prompts = [prompt_of(engine, depth, i) for i in range(sequences)]
    began_s = time.perf_counter()
    requests = [engine.submit(prompt, sampling=_sampling(tokens)) for prompt in prompts]
    for request in requests:
        next(request)
    read_s, n_read = time.perf_counter() - began_s, engine.counts.work.reply_tokens
    replies = [request.result() for request in requests]
    decode_s, n_decoded = time.perf_counter() - began_s - read_s, engine.counts.work.reply_tokens - n_read
    for i, reply in enumerate(replies):
        if checked.setdefault((depth, i), reply.token_sha) != reply.token_sha:
            raise DeviceError(
                f"the reply to prompt {i} of {depth} tokens is not the one that it had before; this machine "
                "does not compute the same twice"
            )
    first_ms = [_ms(reply.timings.first_token_ms) for reply in replies]
    return Run(
        depth=depth,
        sequences=sequences,
        tokens=tokens,
        prompt_tok_s=round(sequences * depth / read_s, 1),
        decode_tok_s=round(n_decoded / decode_s, 1) if n_decoded else None,
        first_token_ms=round(statistics.median(first_ms), 2),
        largest_gap_ms=_largest_gap(replies),
        drafts_kept=_kept(replies),
    )


def prompt_of(engine: Engine, depth: int, number: int) -> list[int]:
    """Make a prompt of so many tokens that no other begins with: the same on every machine."""
    rng = random.Random(f"{SEED} {depth} {number}")
    return [rng.randrange(engine.tokenizer.n_tokens) for _ in range(depth)]


def _sampling(tokens: int) -> Sampling:
    from flashnext.engine.sampling import Sampling

    return Sampling(temperature=1, top_p=0.95, seed=SEED, max_tokens=tokens, ignore_eos=True)


def _alone(engine: Engine, depth: int, number: int, tokens: int) -> str:
    """Fingerprint the reply that a prompt gets alone."""
    prompt = prompt_of(engine, depth, number)
    return engine.generate(prompt, sampling=_sampling(tokens)).result().token_sha


def _largest_gap(replies: Sequence[Reply]) -> float | None:
    gaps = [gap for reply in replies if (gap := reply.timings.largest_gap_ms) is not None]
    return round(max(gaps), 2) if gaps else None


def _kept(replies: Sequence[Reply]) -> float | None:
    proposed = sum(reply.drafts.proposed for reply in replies)
    return round(sum(reply.drafts.accepted for reply in replies) / proposed, 3) if proposed else None


def _facts(engine: Engine, name: str) -> dict[str, Any]:
    """Say what was measured and on what; nothing of it names a person or a path."""
    loaded = engine.loaded
    return {
        "flashnext": VERSION,
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "processor": _processor(),
            "processors": os.cpu_count(),
            "memory_gib": round(engine.plan.ram_bytes / 2**30, 1),
            "python": platform.python_version(),
        },
        "device": loaded.device.name,
        "model": name,
        "bits": sorted({affine.bits for affine in loaded.checkpoint.affine.values()}) or [16],
        "dtype": loaded.dtype,
        "context": engine.context,
    }


def _processor() -> str:
    """Find the processor's name: Linux tells it in a file, a Mac by its C library."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return mac_processor() or platform.processor() or platform.machine()


def mac_processor(read: Callable[..., int] | None = None) -> str | None:
    """Ask a Mac for the name of its chip, as "Apple M3 Ultra"; None anywhere else.

    Args:
        read: `sysctlbyname`; the system's own unless given.
    """
    try:
        read = read or ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return None
    name, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    if read(b"machdep.cpu.brand_string", name, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return name.value.decode("utf-8", "replace").strip() or None


def _head(facts: dict[str, Any]) -> list[tuple[str, str]]:
    machine = facts["machine"]
    return [
        (
            "machine",
            f"{machine['processor']}, {machine['processors']} processors, {machine['memory_gib']} GiB",
        ),
        ("device", facts["device"]),
        ("model", f"{facts['model']}, {' and '.join(map(str, facts['bits']))} bit, {facts['dtype']}"),
    ]


def _print_row(run: Run) -> None:
    decode = "-" if run.decode_tok_s is None else f"{run.decode_tok_s:,.1f}"
    print(
        f"{run.depth:>7,}{run.sequences:>11}{run.prompt_tok_s:>14,.1f}{decode:>14}{run.first_token_ms:>10,.1f}",
        flush=True,
    )


def _ms(value: float | None) -> float:
    assert value is not None  # of a reply that is whole
    return value


def _number(low: int, high: int) -> Callable[[str], int]:
    """Make what reads a whole number within bounds."""

    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1
        if value < 0 or not low <= value <= high:
            found = repr(text)[:80]
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, found {found}")
        return value

    return read


def _numbers(low: int, high: int) -> Callable[[str], tuple[int, ...]]:
    """Make what reads several of them."""
    one = _number(low, high)
    return lambda text: tuple(dict.fromkeys(one(part) for part in text.split(",")))
