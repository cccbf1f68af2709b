"""The bounds of `support.bounds` are tight enough: faults planted in the reference land far outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.bounds import bfloat16_bound, float32_bound, row_errors
from support.reference.primitives import Array
from support.setups import SETUPS, Oracle, Setup

BASE = SETUPS[0]
LINEAR, ATTENTION = "layers.2.", "layers.3."


def changed(name: str, change: Callable[[Array], Array]) -> Callable[[Oracle], Array]:
    """Logits of the reference after `change` of one weight."""

    def run(oracle: Oracle) -> Array:
        weights = dict(oracle.weights)
        assert name in weights
        weights[name] = change(weights[name].copy())
        return oracle.run(weights=weights)

    return run


def without_last_input(w: Array) -> Array:
    w[..., -1] = 0
    return w


def reconfigured(**fields: Any) -> Callable[[Oracle], Array]:
    """Logits of a reference that believes another config."""

    def run(oracle: Oracle) -> Array:
        return oracle.run(config=replace(oracle.config, **fields))

    return run


def other_angles(oracle: Oracle) -> Array:
    return oracle.run(rope=replace(oracle.rope, inv_freq=np.roll(oracle.rope.inv_freq, 1)))


def swapped_halves(w: Array) -> Array:
    return np.concatenate(np.split(w, 2)[::-1])


def shifted_taps(w: Array) -> Array:
    return np.roll(w, 1, axis=-1)


# The kinds of planted faults of the kernel contract, seen from the whole model.
FAULTS: dict[str, Callable[[Oracle], Array]] = {
    "dropped tail of the output projection": changed(
        f"{ATTENTION}self_attn.o_proj.weight", without_last_input
    ),
    "dropped tail of an expert": changed(f"{LINEAR}mlp.experts.down_proj", without_last_input),
    "dropped tail of the head": changed("lm_head.weight", without_last_input),
    "wrong scale of a value": changed(f"{ATTENTION}self_attn.v_proj.weight", lambda w: w * (1 + 2.0**-8)),
    "wrong scale of the injection": changed(
        f"{LINEAR}mlp_hyper_connection.block_inject_weight.weight", lambda w: w * (1 + 2.0**-8)
    ),
    "wrong axis: query and gate swapped": changed(f"{ATTENTION}self_attn.q_proj.weight", swapped_halves),
    "wrong axis: value heads rolled": changed(f"{LINEAR}linear_attn.dt_bias", lambda w: np.roll(w, 1)),
    "wrong position: convolution taps": changed(f"{LINEAR}linear_attn.conv1d.weight", shifted_taps),
    "wrong position: n-gram taps": changed("layers.1.ple.conv1d.weight", shifted_taps),
    "wrong angles": other_angles,
    "segments that never end": reconfigured(segment_token=-1),
    "one block too few": reconfigured(index_budget=28),
    "one expert too few": reconfigured(top_k=2),
    "the other gate": reconfigured(output_gate="silu"),
    "the other epsilon": reconfigured(rms_eps=1e-4),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_far_outside_the_float32_bound(
    oracle_of: Callable[[Setup], Oracle], fault: str
) -> None:
    oracle = oracle_of(BASE)
    error = row_errors(FAULTS[fault](oracle), oracle.logits)
    assert error.max() > 20 * float32_bound(oracle).largest, f"{BASE}"


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.startswith(("wrong a", "wrong p", "segments", "the other g"))]
)
def test_a_coarse_fault_is_outside_the_bfloat16_bound(
    oracle_of: Callable[[Setup], Oracle], fault: str
) -> None:
    oracle = oracle_of(BASE.without_decisions())
    error = row_errors(FAULTS[fault](oracle), oracle.logits)
    assert error.max() > bfloat16_bound(oracle).largest, f"{BASE}"
