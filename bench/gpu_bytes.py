"""What a dispatch has to read and write, and how much it computes, from its kernel, grid and argument struct.

Weights, attention caches and recurrent states are counted, once each; activations, which are small and mostly
in a cache, are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flashnext.contract.structs import STRUCTS

SCALE_BYTES = 4  # a scale and a bias, bfloat16 each
STRUCT_OF = {
    "matmul": "MatmulParams",
    "hc_mix": "HcMixParams",
    "glu": "GluParams",
    "expert_gate_up": "GluParams",
    "expert_down": "ExpertDownParams",
    "delta_rule": "DeltaRuleParams",
    "attention": "AttentionParams",
    "index_score": "IndexScoreParams",
}


@dataclass(frozen=True)
class Work:
    """Of one dispatch.

    Attributes:
        what: Which one it is: the kernel, with sizes where there are several of it.
        size_bytes: Read and written.
        flops: Of products with weights, two a multiply-add.
    """

    what: str
    size_bytes: float = 0.0
    flops: float = 0.0


def family_of(kernel: str) -> str:
    """A kernel's name without its type."""
    return kernel.removesuffix("_bf16").removesuffix("_f32")


def matrix_bytes(n: float, format_: Any) -> float:
    """Bytes of n weights stored so."""
    bits = int(format_["bits"])
    return n * bits / 8 + (n / int(format_["group"]) * SCALE_BYTES if bits < 16 else 0)


def work_of(kernel: str, params: bytes, rows: int, length: int, n_experts: int, settled: bool) -> Work:
    """Count one dispatch.

    Args:
        kernel: Its name.
        params: Its argument struct.
        rows: Of the pass.
        length: Positions that its last row sees.
        n_experts: That the router chooses from.
        settled: Whether states are written, too.
    """
    family = family_of(kernel)
    if family not in STRUCT_OF:
        return Work(family)
    p = np.frombuffer(params[: STRUCTS[STRUCT_OF[family]].itemsize], STRUCTS[STRUCT_OF[family]])[0]
    if family == "matmul":
        n = int(p["n_in"]) * int(p["n_out"])
        return Work(f"matmul {p['n_out']} x {p['n_in']}", matrix_bytes(n, p["format"]), 2.0 * n * rows)
    if family == "hc_mix":
        n = int(p["hidden"]) * int(p["hc_count"]) * int(p["rank"])
        return Work("hc_mix", matrix_bytes(n, p["format"]), 2.0 * n * rows)
    if family in ("glu", "expert_gate_up"):
        n = 2 * int(p["n_in"]) * int(p["width"])
        if family == "glu":
            return Work(family, matrix_bytes(n, p["format"]), 2.0 * n * rows)
        top = int(p["top_k"])
        return Work(family, chosen(n_experts, top, rows) * matrix_bytes(n, p["format"]), 2.0 * n * rows * top)
    if family == "expert_down":
        n, shared, top = (
            int(p["hidden"]) * int(p["width"]),
            int(p["hidden"]) * int(p["shared_width"]),
            int(p["top_k"]),
        )
        size = chosen(n_experts, top, rows) * matrix_bytes(n, p["format"])
        return Work(family, size + matrix_bytes(shared, p["shared_format"]), 2.0 * rows * (n * top + shared))
    if family == "delta_rule":
        state = int(p["v_heads"]) * int(p["k_dim"]) * int(p["v_dim"]) * 4
        return Work(family, state * (2 if settled else 1), 6.0 * state / 4 * rows)
    if family == "attention":
        seen = min(length, (int(p["budget_blocks"]) + 1) * int(p["ratio"]))
        pair = int(p["n_kv_heads"]) * int(p["head_dim"]) * 2 * 2
        return Work(family, seen * pair, 4.0 * seen * int(p["n_heads"]) * int(p["head_dim"]) * rows)
    blocks = length // int(p["ratio"])
    return Work(family, blocks * int(p["index_dim"]) * 2.0)


def chosen(n_experts: int, top: int, rows: int) -> float:
    """How many experts rows choose together, as far as chance tells."""
    return n_experts * (1 - (1 - top / n_experts) ** rows)
