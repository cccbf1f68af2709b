"""What the GPU benchmark counts: bytes and operations of dispatches, where random tensors lie, targets."""

from __future__ import annotations

from typing import Any

import pytest
from flashnext.contract.structs import STRUCTS, struct
from gpu import grouped, summary, targets
from gpu_bytes import STRUCT_OF, chosen, work_of
from gpu_model import ALIGNMENT, Region


def params(name: str, **fields: Any) -> bytes:
    return struct(name, **fields).tobytes()


def test_a_product_reads_its_codes_and_scales_once() -> None:
    p = params("MatmulParams", format=(4, 32), n_in=2560, n_out=640, epilogue=0, count=0, hc_count=4)
    work = work_of("matmul_bf16", p, rows=8, length=100, n_experts=512, settled=True)
    assert work.what == "matmul 640 x 2560"
    assert work.size_bytes == 2560 * 640 / 2 + 2560 * 640 / 32 * 4
    assert work.flops == 2 * 2560 * 640 * 8
    plain = params("MatmulParams", format=(16, 0), n_in=2560, n_out=512, epilogue=0, count=0, hc_count=4)
    assert work_of("matmul_bf16", plain, 1, 100, 512, True).size_bytes == 2560 * 512 * 2


def test_rows_choose_as_many_experts_as_chance_has_it() -> None:
    assert chosen(512, 10, 1) == pytest.approx(10)
    assert 10 < chosen(512, 10, 2) < 20
    assert chosen(512, 10, 10_000) == pytest.approx(512)


def test_a_state_is_written_only_where_rows_are_kept() -> None:
    p = params("DeltaRuleParams", k_heads=16, v_heads=48, k_dim=128, v_dim=128, gate_silu=0)
    read = work_of("delta_rule_bf16", p, 4, 100, 512, False).size_bytes
    assert read == 48 * 128 * 128 * 4
    assert work_of("delta_rule_bf16", p, 4, 100, 512, True).size_bytes == 2 * read


def test_attention_reads_at_most_its_budget() -> None:
    p = params(
        "AttentionParams", n_heads=24, n_kv_heads=2, head_dim=256, ratio=4, budget_blocks=512, scale=1.0
    )
    assert work_of("attention_bf16", p, 1, 100, 512, True).size_bytes == 100 * 2 * 256 * 2 * 2
    assert work_of("attention_bf16", p, 1, 9000, 512, True).size_bytes == 513 * 4 * 2 * 256 * 2 * 2


def test_every_struct_that_is_read_is_one_of_the_header() -> None:
    assert set(STRUCT_OF.values()) <= set(STRUCTS)


def test_tensors_of_a_region_lie_behind_each_other_and_begin_again_at_its_front() -> None:
    region = Region(begin=1024, size=10 * ALIGNMENT)
    assert region.place(ALIGNMENT + 1) == 1024
    assert region.place(ALIGNMENT) == 1024 + 2 * ALIGNMENT
    assert region.place(8 * ALIGNMENT) == 1024
    with pytest.raises(ValueError, match="give more GiB"):
        region.place(10 * ALIGNMENT + 1)


def replayed(us: float) -> Any:
    large = params("MatmulParams", format=(4, 32), n_in=10240, n_out=10240, epilogue=0, count=0, hc_count=4)
    return [("", "matmul_bf16", (1, 1, 1), large, us), ("", "rope", (1, 1, 1), b"", us / 2)], [1.0], [2.0]


def test_targets_are_of_kernels_that_read_much() -> None:
    copy = 1e12
    entries = grouped(replayed(100.0), copy, 1, 10, True)
    assert [e["kernel"] for e in entries] == ["matmul 10240 x 10240", "rope"]
    size = 10240 * 10240 * (0.5 + 4 / 32)
    assert entries[0]["share_of_copy"] == pytest.approx(size / 100e-6 / copy)
    step = summary(replayed(100.0), entries, copy)
    assert step["graph_over_sum"] == pytest.approx(1 / 0.15)
    found = targets({"step": step, "windows": {"1": step, "8": step}}, 4)
    assert [(t["met"], t["wanted"]) for t in found] == [
        (True, ">= 0.6"),
        (False, "<= 1.15"),
        (True, "<= 2.5"),
    ]
