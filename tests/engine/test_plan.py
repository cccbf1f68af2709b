"""The memory plan as a table: what it chooses, what it refuses, and that what it advises fits."""

from __future__ import annotations

import contextlib
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flashnext.checkpoint import parse_config
from flashnext.checkpoint.expected import converted, expected_tensors
from flashnext.engine.machine import ram_bytes
from flashnext.engine.plan import GIB, Machine, MemoryPlan, PlanSettings, make_plan
from flashnext.engine.plan_text import differences, explain, plan_table
from flashnext.engine.sizes import WeightSizes, vision_room, weight_sizes
from flashnext.engine.wording import ARGUMENTS, FLAGS
from flashnext.errors import InvalidArgument, OutOfMemory
from flashnext.media import Limits, Rules
from flashnext.media.sizes import most_tokens
from support.published import PUBLISHED

CONFIG = replace(parse_config(PUBLISHED), n_mtp_layers=0)
WEIGHTS = {
    bits: weight_sizes(CONFIG, expected_tensors(CONFIG, converted(CONFIG, bits, 32))) for bits in (4, 6)
}


def plan(ram: float, bits: int = 6, **settings: Any) -> MemoryPlan:
    """A plan of the published model, with sizes in GiB where a name ends so."""
    for name in ("prefix_cache", "load_limit"):
        if (gib := settings.pop(f"{name}_gib", None)) is not None:
            settings[f"{name}_bytes"] = int(gib * GIB)
    usual: dict[str, Any] = {"ngram_table": "resident", "names": FLAGS}
    settings = usual | settings
    machine = Machine(int(ram * GIB), int(ram * GIB), workers=16)
    return make_plan(CONFIG, WEIGHTS[bits], PlanSettings(**settings), machine)


def needed(**settings: Any) -> int:
    """Bytes of a plan on a machine that has room."""
    return plan(1024, **settings).total_bytes


def advice(error: OutOfMemory) -> dict[str, str]:
    """The options that a refusal names, with their values."""
    return dict(re.findall(r"\(--([a-z-]+) ([a-z0-9.]+)\)", str(error)))


def changed(name: str, value: str) -> dict[str, Any]:
    """What an option of a refusal is among the settings of `plan`."""
    if name == "ngram-table":
        return {"ngram_table": value}
    key = {"prefix-cache": "prefix_cache_gib", "load-limit": "load_limit_gib"}.get(name, name)
    return {key: float(value) if key.endswith("gib") else int(value)}


def advice_together(error: OutOfMemory) -> dict[str, Any]:
    """The settings that a refusal names for all changes at once."""
    settings: dict[str, Any] = {}
    for name, value in advice(error).items():
        settings |= changed(name, value)
    assert settings["parallel"] == 1, error
    return settings


def test_the_arithmetic_of_the_published_model_is_the_published_one() -> None:
    text = explain(parse_config(PUBLISHED))
    rows = {
        "routed experts": "225.00 98.44 70.31", "n-gram table": "95.37 41.72 29.80",
        "DeltaNet": "3.89 1.70 1.22", "attention": "1.15 0.50 0.36", "hyper-connections": "1.19 0.52 0.37",
        "shared experts": "0.44 0.19 0.14", "routers": "0.12 0.12 0.12", "embedding": "1.18 0.52 0.37",
        "output head": "1.18 0.52 0.37", "n-gram projections": "0.06 0.03 0.02",
        "draft head": "4.86 2.13 1.52", "vision tower": "0.84 0.84 0.84", "total": "335.28 147.22 105.43",
    }  # fmt: skip
    for part, sizes in rows.items():
        assert re.search(rf"^{part} +[\d,]+ +{sizes.replace(' ', ' +')}$", text, re.MULTILINE), part
    for words in (
        "179,999,981,424", "K and V 2,048 B, raw index key 256 B, pooled key 64 B",
        "30,784 B in 13 layers (28,416 B in the main 12)", "n-gram tail 184,320 B",
        "36 x (61,440 conv + 3,145,728 recurrent) = 115,458,048 B (110.1 MiB)",
    ):  # fmt: skip
        assert words in text
    contexts = re.findall(r"^([\d,]+) +([\d.]+) GiB +([\d.]+) GiB$", text, re.MULTILINE)
    assert contexts == [
        ("32,768", "0.939", "1.047"), ("131,072", "3.758", "3.865"), ("262,112", "7.515", "7.622"),
    ]  # fmt: skip


def test_a_plan_is_told_apart_from_the_arithmetic() -> None:
    text = differences(parse_config(PUBLISHED), plan(256))
    assert "without the draft head and the vision tower, not loaded" in text
    assert "1,819,392 B, 28,428 B a token" in text


@pytest.mark.parametrize(
    ("settings", "context", "parallel"),
    [
        ({}, 262_144, 16),  # the model's window, and 16 sequences
        ({"parallel": 3}, 262_144, 3),
        ({"parallel": 64, "round_rows": 64}, 262_144, 64),
        ({"round_rows": 5}, 262_144, 5),  # a row a sequence
        ({"context": 100_000}, 100_000, 16),
        ({"context": 100}, 100, 2),  # a page a sequence
        ({"context": 1_048_576, "dtype": "float32"}, 1_048_576, 16),
    ],
)
def test_with_room_a_plan_is_what_was_asked_for(
    settings: dict[str, Any], context: int, parallel: int
) -> None:
    made = plan(512, **settings)
    assert (made.context, made.parallel) == (context, parallel)
    assert made.n_pages == -(-context // 64)
    assert made.warnings == ()


@pytest.mark.parametrize("context", [None, 50_000])
def test_sequences_give_way_one_by_one(context: int | None) -> None:
    for n in (15, 7, 3):
        just = needed(context=context, parallel=n)
        made = plan(1024, context=context, load_limit_bytes=just)
        assert (made.parallel, made.total_bytes) == (n, just)
        assert plan(1024, context=context, load_limit_bytes=just - 1).parallel == n - 1


def test_then_the_context_gives_way_by_steps_of_1024() -> None:
    assert plan(1024, load_limit_bytes=needed(parallel=1)).context == 262_144
    assert plan(1024, load_limit_bytes=needed(parallel=1) - 1).context == 262_144 - 1024
    assert plan(1024, load_limit_bytes=needed(context=201_727, parallel=1)).context == 196 * 1024


def test_a_number_of_sequences_that_was_asked_for_costs_context() -> None:
    limit = needed(context=262_144, parallel=4)
    eight = plan(1024, parallel=8, load_limit_bytes=limit)
    assert eight.parallel == 8
    assert eight.context < 262_144
    assert needed(context=eight.context + 1024, parallel=8) > limit >= eight.total_bytes


def test_one_sequence_is_a_plan_like_any_other() -> None:
    made = plan(1024, round_rows=16, load_limit_bytes=needed(parallel=1, round_rows=16))
    assert (made.parallel, made.n_sessions, made.context) == (1, 1, 262_144)
    # While nothing runs, wide rounds are timed with as many sessions as they need.
    assert plan(1024, parallel=1, round_rows=64).n_sessions == 4


def test_the_sum_is_of_all_that_is_printed() -> None:
    made = plan(256, prefix_cache_gib=4)
    rows = plan_table(made).splitlines()
    amounts = {}
    for row in rows:
        found = re.match(r"( *\S.+?) +([\d.]+) (GiB|MiB)", row)
        assert found, row
        amounts[found[1]] = float(found[2]) * (1 if found[3] == "GiB" else 1 / 1024)
    total, rounding = amounts.pop("memory"), 0.005 * len(amounts)
    parts = sum(n for name, n in amounts.items() if name.startswith("  "))
    assert parts == pytest.approx(amounts["weights"], abs=rounding)
    assert sum(amounts.values()) - parts == pytest.approx(total, abs=rounding)
    assert "of 179.20 GiB (70 % of 256.00 GiB)" in rows[0]
    as_json = made.to_json()
    assert as_json["total_bytes"] == sum(
        (
            sum(as_json["weights"]["parts"].values()), as_json["scratch_bytes"],
            as_json["n_sessions"] * as_json["session_bytes"], as_json["n_pages"] * as_json["page_bytes"],
            as_json["prefix_cache_bytes"], as_json["margin_bytes"],
        )
    )  # fmt: skip


def test_a_cache_that_nobody_sized_is_reserved_before_sequences() -> None:
    made = plan(256, prefix_cache_bytes=None)
    room = made.limit_bytes - made.weights.total_bytes - made.scratch_bytes - made.margin_bytes
    assert made.prefix_cache_bytes == room // 4
    assert (made.context, made.parallel) == (262_144, 16)
    one = needed(parallel=1)
    tight = plan(1024, prefix_cache_bytes=None, load_limit_bytes=one + GIB)
    assert tight.prefix_cache_bytes == GIB  # what further sequences would have had
    assert tight.n_sessions == plan(1024, parallel=1).n_sessions
    assert plan(1024, prefix_cache_bytes=None, load_limit_bytes=one).prefix_cache_bytes == 0


WINDOW: dict[str, Any] = {"context": 262_144}
EIGHT = WINDOW | {"parallel": 8}
STREAMED: dict[str, Any] = {"ngram_table": "streamed"}
ONE = needed(**WINDOW, parallel=1)


@pytest.mark.parametrize(
    ("settings", "limit", "names"),
    [
        (EIGHT, needed(**EIGHT) - 1, "parallel context ngram-table load-limit"),
        (EIGHT, ONE - 1, "context ngram-table load-limit"),
        (WINDOW | {"parallel": 1}, ONE - 1, "context ngram-table load-limit"),
        (WINDOW | {"prefix_cache_gib": 4}, ONE, "context ngram-table prefix-cache load-limit"),
        (
            EIGHT | {"prefix_cache_gib": 0.2},
            needed(**EIGHT),
            "parallel context ngram-table prefix-cache load-limit",
        ),
        (EIGHT | {"prefix_cache_gib": 50}, ONE, "load-limit"),
        (
            {"parallel": 64, "round_rows": 64},
            needed(context=1024, parallel=32),
            "parallel ngram-table load-limit",
        ),
        ({}, needed(context=1024, parallel=1) - 1, "ngram-table load-limit"),
        (EIGHT | STREAMED, needed(**EIGHT, **STREAMED) - 1, "parallel context load-limit"),
    ],
)
def test_a_refusal_names_what_would_fit(settings: dict[str, Any], limit: int, names: str) -> None:
    with pytest.raises(OutOfMemory) as caught:
        plan(512, **settings, load_limit_bytes=limit)
    ways = advice(caught.value)
    assert list(ways) == names.split(), caught.value
    for name, value in ways.items():
        plan(512, **({"load_limit_bytes": limit} | settings | changed(name, value)))


def test_where_no_change_alone_would_do_all_of_them_are_named() -> None:
    for table in (dict[str, Any](), STREAMED):
        limit = needed(context=10_240, parallel=1, **table)
        with pytest.raises(OutOfMemory, match="no prefix cache") as caught:
            plan(limit / GIB + 1, **EIGHT, prefix_cache_gib=50, load_limit_bytes=limit)
        together = {"parallel": 1, "context": 10_240, "prefix_cache_gib": 0, **table}
        assert advice_together(caught.value) == together


@pytest.mark.parametrize("limit_gib", [None, 95])
@pytest.mark.parametrize(
    "settings", [{"ngram_table": "resident"}, {"ngram_table": "auto", "parallel": 32, "context": 1_048_576}]
)
def test_a_higher_limit_is_named_with_the_rest_where_that_fits(
    settings: dict[str, Any], limit_gib: float | None
) -> None:
    with pytest.raises(OutOfMemory, match="what would fit, all together: one sequence") as caught:
        plan(128, **settings, load_limit_gib=limit_gib)
    assert "load-limit" in advice(caught.value)
    made = plan(128, **(settings | advice_together(caught.value)))
    assert (made.ngram_table, made.parallel) == ("streamed", 1)


def test_a_limit_for_a_context_that_was_left_open_is_for_the_least_where_no_more_fits() -> None:
    with pytest.raises(OutOfMemory) as caught:
        plan(108, ngram_table="auto")
    limit = float(advice(caught.value)["load-limit"])
    assert plan(108, ngram_table="auto", load_limit_gib=limit).context >= 1024


def test_a_table_that_cannot_be_streamed_is_told() -> None:
    copied = replace(WEIGHTS[6], table_bytes=0)
    settings, machine = PlanSettings(ngram_table="streamed"), Machine(1 << 40, 1 << 40)
    (warning,) = make_plan(CONFIG, copied, settings, machine).warnings
    assert warning.startswith("41.72 GiB of the n-gram table cannot be streamed")
    assert make_plan(CONFIG, WEIGHTS[6], settings, machine).warnings == ()


def test_the_table_is_streamed_where_it_does_not_fit_and_nobody_says_otherwise() -> None:
    rows: dict[str, Any] = {"round_rows": 16}
    resident, streamed = needed(parallel=1, **rows), needed(parallel=1, **rows, **STREAMED)
    assert resident - streamed == WEIGHTS[6].table_bytes == pytest.approx(41.72 * GIB, rel=1e-3)
    auto = rows | {"ngram_table": "auto"}
    assert plan(1024, **auto).ngram_table == "resident"
    made = plan(1024, **auto, load_limit_bytes=resident)
    assert (made.ngram_table, made.parallel) == ("resident", 1)  # rather fewer sequences
    made = plan(1024, **auto, load_limit_bytes=resident - 1)
    assert (made.ngram_table, made.parallel, made.context) == ("streamed", 16, 262_144)
    made = plan(1024, **auto, load_limit_bytes=streamed - 1)
    assert (made.ngram_table, made.parallel) == ("streamed", 1)
    assert made.context < 262_144  # the last to give way
    assert "streamed: 41.72 GiB stay in their file" in plan_table(made)
    assert made.to_json()["ngram_table"] == "streamed"


def test_4_bits_are_served_on_128_gib() -> None:
    made = plan(128, bits=4, ngram_table="auto")
    assert (made.ngram_table, made.context, made.parallel) == ("streamed", 262_144, 16)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_asked_for_fits_or_is_refused_with_advice_that_does(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        settings: dict[str, Any] = {
            "context": rng.choice([None, 1, 5000, 262_144, 1_000_000]),
            "parallel": rng.choice([None, 1, 7, 32]),
            "prefix_cache_gib": rng.choice([0, 1, 8, 64]),
            "dtype": rng.choice(["bfloat16", "float32"]),
            "ngram_table": rng.choice(["auto", "resident", "streamed"]),
            "load_limit_gib": rng.choice([None, 110, 150, 170]),
        }
        ram, bits = rng.choice([96, 128, 160, 192, 217, 256, 512]), rng.choice([4, 6])
        try:
            made = plan(ram, bits, **settings)
        except OutOfMemory as error:
            if "fit, all together: one sequence" in str(error):
                plan(ram, bits, **(settings | advice_together(error)))
            for name, value in advice(error).items():
                if "fit, all together: one sequence" not in str(error):
                    plan(ram, bits, **(settings | changed(name, value)))
        else:
            assert made.total_bytes <= made.limit_bytes
            for name in ("context", "parallel"):
                assert settings[name] in (None, getattr(made, name))


def test_a_model_that_fits_no_way_is_refused_with_the_machine_that_it_fits() -> None:
    with pytest.raises(OutOfMemory, match="even one sequence with a context of 1,024") as caught:
        plan(64)
    found = re.search(r"a machine of (\d+) GiB", str(caught.value))
    assert found
    context = re.search(
        r"a machine of \d+ GiB with one sequence and a context of ([\d,]+)", str(caught.value)
    )
    assert context
    given = plan(int(found[1]), ngram_table="auto", parallel=1)
    assert given.context == int(context[1].replace(",", "")) >= 1024
    with pytest.raises(OutOfMemory):
        plan(int(found[1]) - 1, ngram_table="auto")


@pytest.mark.parametrize(
    ("asked", "limit", "warnings"),
    [
        (None, 179.2, []),
        (100, 100, []),
        (200, 200, ["78 % of the memory"]),
        (300, 240, ["more than the 240.00 GiB", "94 % of the memory"]),
    ],
)
def test_the_limit_is_a_share_of_memory_or_what_was_asked_for(
    asked: float | None, limit: float, warnings: list[str]
) -> None:
    settings = PlanSettings(load_limit_bytes=None if asked is None else int(asked * GIB))
    made = make_plan(CONFIG, WeightSizes({}, 0), settings, Machine(256 * GIB, 240 * GIB))
    assert made.limit_bytes == int(limit * GIB)
    assert len(made.warnings) == len(warnings)
    for words, warning in zip(warnings, made.warnings, strict=True):
        assert words in warning


def test_a_device_that_works_with_less_has_that_limit() -> None:
    small = Machine(256 * GIB, 100 * GIB)
    assert make_plan(CONFIG, WeightSizes({}, 0), PlanSettings(), small).limit_bytes == 100 * GIB


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"parallel": 0}, "--parallel is 0, expected 1 to 64"),
        ({"parallel": 33}, "--parallel is 33, and a round has 32 rows"),
        ({"round_rows": 65}, "--round-rows is 65, expected 1 to 64"),
        ({"load_limit_bytes": 0}, "--load-limit is 0.0 MiB, expected a size above 0"),
        ({"prefix_cache_bytes": -GIB}, "--prefix-cache is -1.00 GiB, expected 0 or more"),
        ({"ngram_table": "mapped"}, "--ngram-table is 'mapped', expected one of auto, resident, streamed"),
        ({"context": 0}, "--context is 0, but this model reaches from 1 to 1048576"),
        ({"context": 1_048_577}, "--context is 1048577"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        plan(512, **settings)


def test_a_refusal_says_for_what_so_much_is_needed_and_what_context_each_change_gives() -> None:
    limit = needed(context=20_480, parallel=1) - 1
    with pytest.raises(OutOfMemory) as caught:
        plan(512, parallel=64, round_rows=64, load_limit_bytes=limit)
    told, _, ways = str(caught.value).partition("; what would fit: ")
    for_what = re.match(r"([\d.]+) GiB of memory are needed for 64 sequences with a context of 262,144", told)
    assert for_what
    asked = needed(context=262_144, parallel=64, round_rows=64)
    assert float(for_what[1]) == pytest.approx(asked / GIB, abs=0.01)
    found = re.findall(r"\(--([a-z-]+) ([a-z0-9.]+)\) with a context of (\d+,\d+)", ways)
    assert [name for name, _, _ in found] == ["parallel", "ngram-table", "load-limit"]
    for name, value, context in found:
        given: dict[str, Any] = {"parallel": 64, "round_rows": 64, "load_limit_bytes": limit}
        made = plan(512, **(given | changed(name, value)))
        assert f"{made.context:,}" == context


@pytest.mark.parametrize(("ram", "most"), [(256, 6), (160, 4), (128, 4)])
def test_where_another_checkpoint_fits_its_bits_are_named(ram: int, most: int) -> None:
    bf16 = weight_sizes(CONFIG, expected_tensors(CONFIG, None))
    machine = Machine(ram * GIB, ram * GIB, workers=16)
    with pytest.raises(OutOfMemory) as caught:
        make_plan(CONFIG, bf16, PlanSettings(), machine)
    found = re.search(r"a checkpoint of (\d) bits with a context of ([\d,]+)", str(caught.value))
    assert found
    assert f"flashnext plan --bits {found[1]}" in str(caught.value)
    made = {}
    for bits in (2, 3, 4, 5, 6, 8):
        weights = weight_sizes(CONFIG, expected_tensors(CONFIG, converted(CONFIG, bits, 32)))
        with contextlib.suppress(OutOfMemory):
            made[bits] = make_plan(CONFIG, weights, PlanSettings(), machine).context
    assert int(found[1]) == max(made) >= most
    assert found[2] == f"{made[max(made)]:,}"


def test_texts_name_arguments_of_the_engine_unless_flags_are_asked_for() -> None:
    limit = needed(parallel=1)
    with pytest.raises(OutOfMemory) as caught:
        plan(512, **EIGHT, names=ARGUMENTS, load_limit_bytes=limit - 1)
    assert "--" not in str(caught.value)
    assert re.search(
        r"\(context=\d+\), or .*\(ngram_table=\'streamed\'\), or .*\(load_limit_gib=[\d.]+\)",
        str(caught.value),
    )
    (warning,) = plan(512, names=ARGUMENTS, prefix_cache_bytes=None, load_limit_bytes=limit).warnings
    assert "--" not in warning
    assert "(context=" in warning
    with pytest.raises(InvalidArgument, match=r"^round_rows is 'x', expected 1 to 64"):
        plan(512, names=ARGUMENTS, round_rows="x")


# --- what there is no room for


def whole(made: MemoryPlan) -> int:
    """Bytes of a cache that holds one context and one mark."""
    return made.n_pages * made.page_bytes + made.snapshot_bytes


def test_a_cache_with_room_for_a_context_or_off_by_request_is_not_warned_of() -> None:
    assert plan(256, prefix_cache_bytes=None).warnings == ()
    made = plan(256, prefix_cache_bytes=0)
    assert made.warnings == ()
    assert re.search(r"^prefix cache .* off$", plan_table(made), re.MULTILINE)
    just = whole(made)
    assert plan(256, prefix_cache_bytes=just).warnings == ()
    assert len(plan(256, prefix_cache_bytes=just - 1).warnings) == 1


@pytest.mark.parametrize("room", [0, 1, 200 << 20, GIB])
@pytest.mark.parametrize("table", ["resident", "auto"])
@pytest.mark.parametrize("context", [None, 262_144, 100_000])
def test_a_cache_that_is_off_or_short_for_want_of_room_is_warned_of_with_what_helps(
    room: int, table: str, context: int | None
) -> None:
    given = {"context": context, "ngram_table": table}
    limit = needed(parallel=1, **given) + room
    settings: dict[str, Any] = given | {"prefix_cache_bytes": None, "load_limit_bytes": limit}
    made = plan(512, **settings)
    (warning,) = made.warnings
    assert ("is off for want of room" in warning) == (made.prefix_cache_bytes == 0)
    assert f"of {made.context:,} tokens with one mark takes {whole(made) / GIB:.2f} GiB" in warning
    ways = re.findall(r"\((--[^)]*)\)", warning)
    assert any("--context" in way for way in ways)
    for way in ways:
        changes: dict[str, Any] = {}
        for name, value in re.findall(r"--([a-z-]+) ([a-z0-9.]+)", way):
            changes |= changed(name, value)
        if "prefix_cache_gib" in changes:
            changes["prefix_cache_bytes"] = int(changes.pop("prefix_cache_gib") * GIB)
        other = plan(512, **(settings | changes))
        assert other.prefix_cache_bytes >= whole(other), way
        assert other.warnings == ()


def test_a_short_cache_that_was_asked_for_is_told_how_large_it_has_to_be() -> None:
    (warning,) = plan(512, prefix_cache_gib=1).warnings
    made = plan(512, prefix_cache_gib=float(re.findall(r"--prefix-cache ([\d.]+)", warning)[0]))
    assert (made.warnings, made.context) == ((), 262_144)
    (context,) = re.findall(r"--context (\d+)", warning)
    assert plan(512, prefix_cache_gib=1, context=int(context)).warnings == ()
    assert len(plan(512, prefix_cache_gib=1, context=int(context) + 1024).warnings) == 1


def test_the_table_counts_the_block_of_one_mark_and_says_where_there_is_no_room() -> None:
    made = plan(512)
    for pages in (1, 3, 4096):
        n_bytes = made.snapshot_bytes + pages * made.page_bytes
        text = plan_table(plan(512, prefix_cache_bytes=n_bytes))
        assert f"up to {pages * 64:,} tokens with one mark; each further one takes 110.3 MiB" in text
    short = plan(512, prefix_cache_bytes=made.snapshot_bytes)
    assert "no room for a mark, which takes" in plan_table(short)
    assert "has no room for a mark" in short.warnings[0]
    none = plan(512, prefix_cache_bytes=None, load_limit_bytes=needed(parallel=1) + made.snapshot_bytes)
    assert none.prefix_cache_bytes == 0, "memory for a cache that holds nothing"
    assert "off: no room for a mark" in plan_table(none)


def test_a_tiny_context_that_nobody_asked_for_is_warned_of() -> None:
    for context, tiny in ((32_768, False), (31_744, True), (1024, True)):
        limit = needed(context=context, parallel=1)
        made = plan(512, load_limit_bytes=limit)
        assert made.context == context
        assert bool(made.warnings) == tiny
        assert plan(512, context=context, load_limit_bytes=limit).warnings == ()
    assert made.warnings[0].startswith("there is room for a context of 1,024 tokens only")
    (value,) = re.findall(r"--load-limit ([\d.]+)", made.warnings[0])
    assert plan(512, load_limit_gib=float(value)).context == 262_144


def test_the_refusal_of_the_docs_is_what_the_program_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"names what would fit.*?```\n(.*?)```", page, re.DOTALL)
    start, end = " ".join(block.split()).split("...; ")
    machine = Machine(192 * GIB, 192 * GIB, workers=2)
    with pytest.raises(OutOfMemory) as caught:
        make_plan(CONFIG, WEIGHTS[6], PlanSettings(ngram_table="resident", names=FLAGS), machine)
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(end)


def test_a_container_has_the_memory_of_its_group(tmp_path: Path) -> None:
    machine_bytes = ram_bytes(())
    limit, none, absent = tmp_path / "memory.max", tmp_path / "none", tmp_path / "absent"
    limit.write_text("1048576\n")
    none.write_text("max\n")
    assert ram_bytes((none, limit, absent)) == 1 << 20
    assert ram_bytes((none, absent)) == machine_bytes > 1 << 30


def test_a_spill_directory_takes_a_margin_for_what_is_on_its_way() -> None:
    without, made = plan(256), plan(256, spill=True)
    more = 3 * made.snapshot_bytes + (1 << 27) + made.page_bytes
    assert made.margin_bytes == without.margin_bytes + more
    small = plan(256, context=64, spill=True)
    assert small.margin_bytes == without.margin_bytes + 3 * small.snapshot_bytes + 2 * small.page_bytes


# --- the vision tower

ROOM = vision_room(CONFIG, expected_tensors(CONFIG, converted(CONFIG, 6, 32)), most_tokens(Rules(), Limits()))


def test_the_vision_tower_counts_with_its_weights_scratch_and_features() -> None:
    assert ROOM is not None
    without, made = (plan(256, context=32_768, parallel=2, vision=room) for room in (None, ROOM))
    assert without.features_bytes == without.tower_scratch_bytes == 0
    assert ROOM.max_patches == 4 * 4096  # the default of an image
    assert made.weights.total_bytes - without.weights.total_bytes == ROOM.weights.total_bytes
    assert made.scratch_bytes - without.scratch_bytes == made.tower_scratch_bytes > 300 << 20
    assert made.features_bytes == 3 * 12_288 * 2560 * 4  # of the largest video
    more = ROOM.weights.total_bytes + made.tower_scratch_bytes + made.features_bytes
    assert made.total_bytes == without.total_bytes + more
    table = plan_table(made)
    assert "vision tower" in table and "\nfeatures " in table
    assert "vision tower" not in plan_table(without) and "\nfeatures " not in plan_table(without)
    small = plan(256, context=2048, parallel=1, vision=ROOM)
    assert small.features_bytes == 3 * 2048 * 2560 * 4  # no prompt shows more than its context


def test_where_only_the_tower_is_too_much_the_refusal_names_it() -> None:
    fits = needed(context=32_768, parallel=1)
    with pytest.raises(OutOfMemory, match=r"features .*no vision tower \(--no-vision\)"):
        plan(256, context=32_768, parallel=1, load_limit_bytes=fits, vision=ROOM)
    assert plan(256, context=32_768, parallel=1, load_limit_bytes=fits).total_bytes == fits
