"""Measure what pictures cost: the vision tower alone, and the first token of prompts that show them.

    python bench/vision.py                        the bundled checkpoint, about a minute
    python bench/vision.py CHECKPOINT --side 1024 --json vision.json
    python bench/vision.py --quick

Pictures of noise go through the tower one by one and together; the share is of what a float32 product of
large matrices (numpy's) does on the same cores at the time. Then prompts with one, four and sixteen of them:
cold, by another text about the same pictures (their features are still there, if they all have room), and as
the next turn of the same chat, which resumes their rows. The counts of pictures that went through the tower
stand beside each.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flashnext.engine.engine import BUNDLED, Engine
from flashnext.engine.eyes import Eyes
from flashnext.engine.sampling import Sampling
from flashnext.media import ImagePart, Limits, Media, Preprocessor, read_rules
from machine import describe
from PIL import Image

COUNTS = (1, 4, 16)
PEAK_SIDE = 1536
HOW = Sampling(temperature=0, max_tokens=2, ignore_eos=True)


@dataclass(frozen=True)
class Passed:
    """A pass of the tower.

    Attributes:
        pictures: In it.
        tokens: Of them.
        ms: That it took.
        flops: Of its products and its attention, two a multiply-add.
    """

    pictures: int
    tokens: int
    ms: float
    flops: float


@dataclass(frozen=True)
class Asked:
    """Prompts with so many pictures, and what went through the tower for them.

    Attributes:
        pictures: In each.
        tokens: Of the first prompt.
        cold_ms: To the first token, with nothing known.
        again_ms: With another text in front of the same pictures.
        next_ms: Of the next turn of the same chat.
        seen: Pictures that the tower saw, for each of the three.
    """

    pictures: int
    tokens: int
    cold_ms: float
    again_ms: float
    next_ms: float
    seen: tuple[int, int, int]


def flops(vision: Mapping[str, int], grids: Sequence[tuple[int, int, int]]) -> float:
    """Count the operations of a pass, two a multiply-add; norms, rotations and GELUs are left out."""
    d, inner = vision["hidden_size"], vision["intermediate_size"]
    merged = d * vision["spatial_merge_size"] ** 2
    values = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    total = 0
    for t, h, w in grids:
        a_slice = h * w
        n = t * a_slice
        block = n * (4 * d * d + 2 * d * inner) + n * 2 * a_slice * d
        tokens = n * d // merged
        total += n * values * d + vision["depth"] * block
        total += tokens * (merged * merged + merged * vision["out_hidden_size"])
    return 2.0 * total


def peak_flops(side: int = PEAK_SIDE, times: int = 5) -> float:
    """Measure float32 operations a second of a product of large matrices; the best of some."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((side, side), dtype=np.float32) for _ in range(2))
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - began)
    return 2.0 * side**3 / best


def pictures(folder: Path, n: int, side: int, seed: int) -> list[Media]:
    """Make pictures of noise, as the checkpoint wants them."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(n):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(file, "PNG")
        parts.append(ImagePart(file.getvalue()))
    pool = Preprocessor(read_rules(folder), Limits())
    try:
        return pool.prepare(parts)
    finally:
        pool.close()


def measure_tower(engine: Engine, folder: Path, side: int, times: int) -> list[Passed]:
    """Time passes of one picture and of several; the middle of some."""
    tower, vision = engine.loaded.tower, engine.loaded.checkpoint.config.vision
    if tower is None or vision is None:
        raise SystemExit(f"{folder}: the checkpoint has no vision tower")
    eyes, out = Eyes(tower, 0), []
    for n in COUNTS:
        media = pictures(folder, n, side, seed=n)
        grids = [one.grid for one in media]
        took = []
        for _ in range(times):
            began = time.perf_counter()
            for seen in eyes.see_all(media):
                if isinstance(seen, Exception):
                    raise seen
            took.append((time.perf_counter() - began) * 1e3)
        tokens = sum(one.n_tokens for one in media)
        out.append(Passed(n, tokens, statistics.median(took), flops(vision, grids)))
    return out


def measure_prompts(engine: Engine, folder: Path, side: int) -> Iterator[Asked]:
    """Time the first token of prompts with so many pictures as have room in the context."""

    def ask(messages: list[dict[str, Any]]) -> tuple[float, int, str, int]:
        before = engine.counts.vision.media
        request = engine.submit(messages, sampling=HOW)
        reply = request.result()
        ms = reply.timings.first_token_ms or 0.0
        return ms, engine.counts.vision.media - before, reply.text, reply.usage.prompt_tokens

    for n in COUNTS:
        media = pictures(folder, n, side, seed=100 + n)
        if sum(one.n_tokens for one in media) + 200 > engine.context:
            continue
        shown = [{"type": "image", "image": one} for one in media]

        def turn(text: str, shown: list[dict[str, Any]] = shown) -> dict[str, Any]:
            return {"role": "user", "content": [{"type": "text", "text": text}, *shown]}

        first = turn("What do these have in common? ")
        cold_ms, cold_seen, said, tokens = ask([first])
        again_ms, again_seen, _, _ = ask([turn("Now something else about them: ")])
        more = [first, {"role": "assistant", "content": said or "."}, {"role": "user", "content": "And now?"}]
        next_ms, next_seen, _, _ = ask(more)
        yield Asked(n, tokens, cold_ms, again_ms, next_ms, (cold_seen, again_seen, next_seen))


def lines(passed: Sequence[Passed], asked: Sequence[Asked], peak: float) -> Iterator[str]:
    """Write the tables of docs/media.md."""
    yield "| pictures a pass | tokens | ms | pictures a second | GFLOPS | of the matrix peak |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for p in passed:
        rate = p.flops / p.ms * 1e3
        cells = (
            f"{p.ms:,.1f} | {p.pictures / p.ms * 1e3:,.1f} | {rate / 1e9:,.1f} | {100 * rate / peak:.0f} %"
        )
        yield f"| {p.pictures} | {p.tokens:,} | {cells} |"
    yield ""
    yield "| pictures of a prompt | tokens | cold, ms | other text, ms | next turn, ms | through the tower |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for a in asked:
        yield (
            f"| {a.pictures} | {a.tokens:,} | {a.cold_ms:,.1f} | {a.again_ms:,.1f} | {a.next_ms:,.1f} "
            f"| {', '.join(map(str, a.seen))} |"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?", default=BUNDLED)
    parser.add_argument("--side", type=int, default=160, help="pixels of a picture's side (default 160)")
    parser.add_argument("--times", type=int, default=5, help="passes of each kind (default 5)")
    parser.add_argument("--quick", action="store_true", help="one pass of each, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    given = parser.parse_args(arguments)
    peak = peak_flops(256 if given.quick else PEAK_SIDE, 1 if given.quick else 5)
    with Engine(given.checkpoint, prefix_cache_gib=0.25, parallel=1) as engine:
        asked = list(measure_prompts(engine, given.checkpoint, given.side))
        passed = measure_tower(engine, given.checkpoint, given.side, 1 if given.quick else given.times)
        device = engine.loaded.device.name
    machine = describe()
    print(
        f"{machine['cpu']}, {machine['cores']} cores, {device}; float32 products {peak / 1e9:,.1f} GFLOPS\n"
    )
    print("\n".join(lines(passed, asked, peak)))
    if given.json is not None:
        content = {"peak": peak, "tower": [asdict(p) for p in passed], "prompts": [asdict(a) for a in asked]}
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
