"""The argument structs and table rows of metal/params.h as numpy dtypes, one field for one field.

`tests/kernels/test_structs.py` compares sizes and offsets with what the compiler made of the header.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_TOKENS = 64
ATTENTION_SPAN = 512
MAX_WINDOW = 16
SAMPLER_BLOCK = 1024
MAX_TOP = 20

COUNT_ROWS, COUNT_SEQUENCES, COUNT_LOGITS = 0, 1, 2
STORE, STORE_F32, SILU, SIGMOID, RESIDUAL = range(5)
LINEAR_STORE, LINEAR_GELU_TANH, LINEAR_GELU, LINEAR_ADD = range(4)
SLICE_SPAN = 128

_U32, _I32, _F32, _U64, _I16 = np.uint32, np.int32, np.float32, np.uint64, np.int16
Void = np.dtype[np.void]


def _struct(**fields: Any) -> Void:
    """Make a dtype with the C layout of these fields."""
    return np.dtype(list(fields.items()), align=True)


def _many(type_: Any, *names: str) -> dict[str, Any]:
    return dict.fromkeys(names, type_)


FORMAT = _struct(bits=_U32, group=_U32)

STRUCTS: dict[str, Void] = {
    "Counts": _struct(n=(_I32, 4)),
    "Sequence": _struct(
        **_many(_U64, "page_table", "state", "kept", "unsettled", "marks"),
        **_many(_I32, "first_row", "n_rows", "n_kept", "start", "is_window", "n_marks"),
    ),
    "Mark": _struct(state=_U64, **_many(_I32, "n_rows", "pad")),
    "Row": _struct(**_many(_I32, "token", "sequence", "position"), rotary=(_I32, 3)),
    "ReplyState": _struct(
        **_many(_U64, "page_table", "state"),
        unsettled=(_U64, 2),
        **_many(_U64, "text", "counts", "bias", "stops", "masks", "seed"),
        **_many(_F32, "temperature", "top_p", "min_p", "presence", "frequency", "repetition"),
        **_many(_I32, "top_k", "n_bias", "n_stops", "n_logprobs", "end", "known", "length", "parity"),
        **_many(_I32, "n_kept", "n_drafts", "ended", "has_head", "copied", "rotary_delta"),
    ),
    "BiasEntry": _struct(id=_I32, value=_F32),
    "DrawRow": _struct(reply=_U64, **_many(_I32, "position", "n_counted")),
    "Format": FORMAT,
    "EmbedParams": _struct(format=FORMAT, **_many(_U32, "hidden", "hc_count")),
    "EmbedMediaParams": _struct(**_many(_U32, "hidden", "hc_count")),
    "MatmulParams": _struct(
        format=FORMAT, **_many(_U32, "n_in", "n_out", "epilogue", "count", "hc_count"), alpha=_F32, beta=_F32
    ),
    "HcNormParams": _struct(**_many(_U32, "hidden", "hc_count", "count"), eps=_F32),
    "HcMixParams": _struct(format=FORMAT, **_many(_U32, "hidden", "hc_count", "rank", "count")),
    "NgramIdsParams": _struct(
        **_many(_U32, "ngram", "heads_per_ngram"),
        segment_token=_I32,
        **_many(_U32, "state_offset", "unsettled_offset"),
    ),
    "NgramGatherParams": _struct(
        format=FORMAT, **_many(_U32, "n_heads", "rows_per_shard", "row_width"), scale=_F32
    ),
    "PleGateParams": _struct(**_many(_U32, "hidden", "hc_count"), eps=_F32),
    "PleConvParams": _struct(
        **_many(_U32, "width", "n_taps", "dilation", "state_offset", "unsettled_offset")
    ),
    "DeltaConvParams": _struct(**_many(_U32, "channels", "n_taps", "state_offset", "unsettled_offset")),
    "DeltaPrepParams": _struct(**_many(_U32, "k_heads", "v_heads", "k_dim", "v_dim")),
    "DeltaRuleParams": _struct(
        **_many(_U32, "k_heads", "v_heads", "k_dim", "v_dim", "gate_silu"),
        eps=_F32,
        **_many(_U32, "state_offset", "k_offset", "v_offset", "beta_offset", "decay_offset"),
    ),
    "RopeParams": _struct(half_dim=_U32, section=(_U32, 3), attention_factor=_F32, rotary_offset=_U32),
    "AttentionPrepParams": _struct(
        **_many(_U32, "n_heads", "n_kv_heads", "head_dim", "half_dim", "index_n_heads", "index_dim"),
        eps=_F32,
        **_many(_U32, "k_offset", "v_offset", "raw_offset"),
    ),
    "IndexPoolParams": _struct(
        **_many(_U32, "index_dim", "ratio", "half_dim"),
        section=(_U32, 3),
        **_many(_F32, "attention_factor", "eps"),
        **_many(_U32, "raw_offset", "pooled_offset", "rotary_offset"),
    ),
    "IndexScoreParams": _struct(
        **_many(_U32, "index_n_heads", "index_dim", "ratio", "budget_blocks", "first_row", "stride"),
        pooled_offset=_U32,
    ),
    "IndexSelectParams": _struct(**_many(_U32, "ratio", "budget_blocks", "first_row", "stride")),
    "AttentionParams": _struct(
        **_many(_U32, "n_heads", "n_kv_heads", "head_dim", "ratio", "budget_blocks"),
        scale=_F32,
        **_many(_U32, "k_offset", "v_offset"),
    ),
    "RouterParams": _struct(**_many(_U32, "n_experts", "top_k")),
    "GluParams": _struct(
        format=FORMAT, **_many(_U32, "n_in", "width", "top_k"), **_many(_U64, "codes_stride", "scales_stride")
    ),
    "ExpertDownParams": _struct(
        format=FORMAT,
        shared_format=FORMAT,
        **_many(_U32, "hidden", "width", "shared_width", "top_k", "hc_count"),
        **_many(_U64, "codes_stride", "scales_stride"),
    ),
    "CopyRowsParams": _struct(width=_U32, count=_U32),
    "Window": _struct(
        reply=_U64,
        **_many(_I32, "most_rows", "most_drafts", "is_window", "first_row", "n_rows", "first_logits"),
        **_many(_I32, "start", "most_copied"),
    ),
    "Landed": _struct(
        **_many(_I32, "n_tokens", "length", "parity", "ended", "n_verified", "n_accepted", "copied"),
        **_many(_I32, "first_logits", "n_head", "n_copied"),
        tokens=(_I32, MAX_WINDOW),
    ),
    "RoundRowsParams": _struct(n_windows=_U32),
    "VerdictParams": _struct(**_many(_U32, "n_windows", "n_valid")),
    "AbsorbRowsParams": _struct(**_many(_U32, "n_windows", "n_steps", "hc_count")),
    "KeepStreamsParams": _struct(**_many(_U32, "width", "state_offset")),
    "CopyDraftsParams": _struct(**_many(_I32, "least_match", "most_match")),
    "DrawParams": _struct(**_many(_U32, "vocab", "n_valid", "count", "masked")),
    "BlockMax": _struct(**_many(_F32, "value", "logit"), **_many(_I16, "numbers", "drawable"), changed=_U32),
    "Patch": _struct(**_many(_I32, "row", "col", "n_rows", "n_cols")),
    "SliceTile": _struct(**_many(_I32, "first_row", "n_rows", "first_key", "n_keys")),
    "LayerNormParams": _struct(width=_U32, eps=_F32),
    "LinearParams": _struct(**_many(_U32, "n_in", "n_out", "n_rows", "bits", "finish")),
    "PatchPlaceParams": _struct(**_many(_U32, "width", "side", "quarter")),
    "PatchTurnParams": _struct(**_many(_U32, "n_heads", "half_dim")),
    "SliceAttentionParams": _struct(**_many(_U32, "n_heads", "head_dim", "first_row"), scale=_F32),
    "BlockPart": _struct(**_many(_F32, "sum", "value"), id=_I32),
}


def struct(name: str, **values: Any) -> npt.NDArray[np.void]:
    """One zero-filled struct of metal/params.h with these fields set, shape (1,)."""
    out = np.zeros(1, STRUCTS[name])
    for field, value in values.items():
        out[field] = value
    return out


def counts(rows: int = 0, sequences: int = 0, logits: int = 0) -> npt.NDArray[np.void]:
    """How many rows, sequences and logit rows a pass has."""
    return struct("Counts", n=[rows, sequences, logits, 0])
