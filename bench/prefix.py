"""Measure what the prefix cache saves: chats turn by turn, shared system prompts, a restart.

    python bench/prefix.py                          the bundled checkpoint, about a minute
    python bench/prefix.py CHECKPOINT --long 20000 --json prefix.json
    python bench/prefix.py --quick

Chats of nine and of twenty turns under a system prompt, as they grow by themselves and with the thoughts
of earlier turns dropped by the template: cached tokens beside what the turn shares with the history, and the
first token with the cache and without. Then a longer system prompt in which one identifier differs, two
conversations under one system prompt, and the first token from a spill directory after a restart. Every reply
is compared with the one that the same request gets without the cache.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.events import CacheCounts
from flashnext.engine.on_disk import PATIENCE_S
from flashnext.engine.sampling import Sampling
from flashnext.text.template import TemplateOptions
from machine import describe
from workloads import MIXED, requests

Messages = list[dict[str, Any]]
SETTLE_S = 120.0


@dataclass(frozen=True)
class Asked:
    """One request and what it came to.

    Attributes:
        prompt: Its tokens.
        history: Those of them that are not of the newest turn.
        cached: Those that were not read.
        first_ms: To the first token.
        cold_ms: The same without the cache.
        same: Whether both replies are the same.
    """

    prompt: int
    history: int
    cached: int
    first_ms: float
    cold_ms: float
    same: bool


class Chats:
    """An engine that answers chats twice: with the cache, and without."""

    def __init__(self, engine: Engine, max_tokens: int) -> None:
        self.engine = engine
        self._max_tokens = max_tokens

    def ask(self, messages: Messages, options: TemplateOptions) -> tuple[Asked, dict[str, Any]]:
        """Ask for the next turn; returns what it came to, and the reply as a message."""
        cold_ms, cold = self._first(messages, options, cache=False)
        self.settle()
        first_ms, reply = self._first(messages, options, cache=True)
        self.settle()
        history = 0
        if messages[-2]["role"] == "assistant":
            history = len(self.engine.template.history(messages[:-1], None, options))
        usage = reply.usage
        same = cold.token_sha == reply.token_sha
        asked = Asked(usage.prompt_tokens, history, usage.cached_tokens, first_ms, cold_ms, same)
        return asked, {"role": "assistant", "content": reply.text, "reasoning_content": reply.reasoning}

    def settle(self) -> CacheCounts:
        """Wait until the engine does nothing in the background any more."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            counts = self.engine.counts
            if not (counts.running or counts.waiting or counts.cache.warming):
                return counts.cache
            time.sleep(0.005)
        raise SystemExit("prefix: the engine has not come to rest")

    def _first(self, messages: Messages, options: TemplateOptions, *, cache: bool) -> tuple[float, Any]:
        sampling = Sampling(temperature=0, max_tokens=self._max_tokens, cache=cache)
        began = time.perf_counter()
        request = self.engine.submit(messages, sampling=sampling, options=options)
        next(request)
        return (time.perf_counter() - began) * 1e3, request.result()


def system_prompt(engine: Engine, n_tokens: int, identifier: str = "a1") -> Messages:
    """Make a system prompt of about so many tokens; the identifier stands behind nine tenths of them."""
    lines: list[str] = []
    n = 0
    for i, text in enumerate(requests(MIXED, n_tokens // 8 + 1)):
        line = f"Rule {i}: {text}"
        n += len(engine.tokenizer.encode(line + "\n"))
        if n >= n_tokens:
            break
        lines.append(line)
    lines.insert(len(lines) * 9 // 10, f"This session is {identifier}.")
    return [{"role": "system", "content": "\n".join(lines)}]


def chat(chats: Chats, n_turns: int, system: Messages, *, keep: bool) -> Iterator[Asked]:
    """Play a chat; thoughts of earlier turns stay, or are dropped by the template."""
    options = TemplateOptions(preserve_thinking=keep)
    messages = list(system)
    for text in requests(MIXED, n_turns):
        messages.append({"role": "user", "content": text})
        asked, reply = chats.ask(messages, options)
        yield asked
        messages.append(reply)


def shared_system(chats: Chats, n_tokens: int) -> dict[str, Any]:
    """Ask under one system prompt twice, and under one that differs in an identifier."""
    engine, options = chats.engine, TemplateOptions()
    found: dict[str, Any] = {}
    ways = (("first", "a1", "One."), ("second", "a1", "Two."), ("changed", "b7", "Three."))
    for name, identifier, text in ways:
        messages = [*system_prompt(engine, n_tokens, identifier), {"role": "user", "content": text}]
        before = chats.settle()
        asked, _ = chats.ask(messages, options)
        after = chats.settle()
        found[name] = {
            **asdict(asked),
            "new_page_bytes": after.pages_bytes - before.pages_bytes,
            "new_marks": after.marks - before.marks,
        }
    return found


def from_spill(
    folder: Path, settings: Mapping[str, Any], n_tokens: int, max_tokens: int, patience_s: float
) -> dict[str, Any]:
    """Ask under one system prompt, restart, and ask under it again."""
    options = TemplateOptions()
    with tempfile.TemporaryDirectory() as spill:
        asked: list[dict[str, Any]] = []
        for texts in (("One.", "Two."), ("Three.", "Four.")):  # the second one pins the prompt
            with Engine(folder, **settings, spill_dir=spill) as engine:
                engine._thread.call(lambda s: setattr(s._caching.disk, "patience_s", patience_s))
                chats = Chats(engine, max_tokens)
                chats.ask([{"role": "user", "content": "Warm up."}] * 2, options)
                if asked:
                    stored_bytes(engine)  # it has found what is there
                for text in texts:
                    messages = [*system_prompt(engine, n_tokens), {"role": "user", "content": text}]
                    asked.append(asdict(chats.ask(messages, options)[0]))
                n_bytes = stored_bytes(engine)
        return {"asked": asked, "stored_bytes": n_bytes}


def stored_bytes(engine: Engine) -> int:
    """Wait until the spill directory has a mark; returns the bytes of all."""
    deadline = time.monotonic() + SETTLE_S
    while not (counts := engine.counts.cache).stored and time.monotonic() < deadline:
        time.sleep(0.01)
    return counts.stored_bytes


def chat_lines(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Lines of Markdown: a chat's turns, added up."""
    yield (
        "| chat | turns | prompt tokens of all turns | of the history | cached | first token of the last "
        "turn, ms | without the cache | replies equal |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, turns in found.items():
        prompt, history, cached = (sum(t[key] for t in turns) for key in ("prompt", "history", "cached"))
        last = turns[-1]
        yield (
            f"| {name} | {len(turns)} | {prompt:,} | {history:,} | {cached:,} | {last['first_ms']:.1f} "
            f"| {last['cold_ms']:.1f} | {'all' if all(t['same'] for t in turns) else 'NO'} |"
        )


def other_lines(shared: Mapping[str, Any], spill: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown: what conversations share, and what a restart leaves."""
    yield "| request | prompt tokens | cached | first token, ms | without the cache |"
    yield "| --- | --- | --- | --- | --- |"
    names = {
        "first": "first under a system prompt",
        "second": "second under the same",
        "changed": "one identifier differs behind nine tenths of it",
    }
    rows = [(names[name], one) for name, one in shared.items()]
    rows.append(("after a restart, from the spill directory", spill["asked"][2]))
    for name, one in rows:
        cells = (name, f"{one['prompt']:,}", f"{one['cached']:,}", f"{one['first_ms']:.1f}")
        yield f"| {' | '.join(cells)} | {one['cold_ms']:.1f} |"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "checkpoint",
        type=Path,
        nargs="?",
        default=BUNDLED,
        help="folder (default: the small one of the package)",
    )
    parser.add_argument(
        "--turns", type=int, nargs="+", default=[9, 20], metavar="N", help="turns of each chat (default 9 20)"
    )
    parser.add_argument(
        "--system",
        type=int,
        default=1200,
        metavar="TOKENS",
        help="about so many tokens of the chats' system prompt (default 1200)",
    )
    parser.add_argument(
        "--long",
        type=int,
        default=4800,
        metavar="TOKENS",
        help="about so many tokens of the system prompt that conversations share (default 4800)",
    )
    parser.add_argument(
        "--tokens", type=int, default=48, metavar="TOKENS", help="most tokens of a reply (default 48)"
    )
    parser.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="largest prompt plus reply (default: the model's window, or what of it there is room for)",
    )
    parser.add_argument(
        "--prefix-cache",
        type=float,
        metavar="GIB",
        help="memory of the prefix cache (default: as served, what the memory plan finds)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_S,
        metavar="S",
        help="seconds more than reading takes that a mark may come from disk "
        f"(default {PATIENCE_S:g}, as served)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one short chat of each kind: --turns 3 --system 300 --long 300 --tokens 16",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the whole run here (default: nowhere)"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.turns, options.system, options.long, options.tokens = [3], 300, 300, 16
    return options


def main() -> None:
    options = parse()
    settings = {"context": options.context, "prefix_cache_gib": options.prefix_cache, "parallel": 2}
    found: dict[str, Any] = {"chats": {}}
    with Engine(options.checkpoint, **settings) as engine:
        chats = Chats(engine, options.tokens)
        for n_turns in options.turns:
            for name, keep in (("thoughts kept", True), ("thoughts dropped", False)):
                system = system_prompt(engine, options.system, f"{name} {n_turns}")
                turns = [asdict(asked) for asked in chat(chats, n_turns, system, keep=keep)]
                found["chats"][f"{n_turns} turns, {name}"] = turns
        found["shared"] = shared_system(chats, options.long)
        found["cache"] = asdict(chats.settle())
    found["spill"] = from_spill(options.checkpoint, settings, options.long, options.tokens, options.patience)
    print("\n".join(chat_lines(found["chats"])))
    print()
    print("\n".join(other_lines(found["shared"], found["spill"])))
    if options.json:
        asked = {k: v for k, v in vars(options).items() if k != "json"}
        asked["checkpoint"] = options.checkpoint.name
        whole = {"machine": describe(), "settings": asked, **found}
        options.json.write_text(json.dumps(whole, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
