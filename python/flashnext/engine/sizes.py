"""The bytes that the core allocates, told from a config alone.

A plan needs them before there is a model, so this repeats the arithmetic of cpp/model/layout.cpp, load.cpp,
head.cpp, tower.cpp and weights.cpp and of cpp/session/session.cpp; tests/engine/test_sizes.py holds it to
what the core says of itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from flashnext.checkpoint.config import PAGE_TOKENS, ModelConfig
from flashnext.checkpoint.names import Kind, TensorSpec, mtp_specs, text_specs, vision_specs
from flashnext.checkpoint.summary import TABLE, part_of
from flashnext.checkpoint.views import TensorView
from flashnext.engine.defaults import MAX_PARALLEL, MAX_ROUND_ROWS, MAX_WINDOW
from flashnext.engine.wording import Names
from flashnext.errors import CheckpointError, InvalidArgument
from flashnext.media import Limits, read_rules
from flashnext.media.sizes import most_tokens

WORKER_BYTES = 5 << 20
"""What kernels of the CPU device keep for each worker (cpp/device/cpu/task.h)."""

STRUCT_BYTES = {
    "Counts": 16, "Sequence": 64, "Row": 24, "ReplyState": 160, "DrawRow": 16, "Window": 40, "Landed": 104,
    "Mark": 16, "BlockMax": 16, "BlockPart": 12, "Patch": 16, "SliceTile": 16,
}  # fmt: skip
"""Of metal/params.h."""

MAX_PATCHES = 1 << 20
"""Most that a vision tower has room for (cpp/model/tower.cpp)."""

LEAST_TILE = 16
"""Patches that the attention of any device takes together, at least."""

_SLOTS = 4  # Model::kSlots
_MAX_TOP = 20
_SAMPLER_BLOCK = 1024
_SCORED_ROWS = 64
_TOWER_CHUNK = 1024  # Tower::kChunk
_ALIGNMENT = 64  # of what lies in a page or a block
_F32 = _I32 = 4
_U64 = 8


@dataclass(frozen=True)
class ModelOptions:
    """What sizes a loaded model, as in cpp/model/model.h.

    Attributes:
        dtype: "bfloat16" or "float32", of activations and caches.
        context: Largest prompt plus reply of a sequence, in tokens.
        max_chunk: Rows of a prompt pass.
        max_window: Rows of one sequence in a round.
        max_round: Rows of a round.
        max_sequences: Sequences of a pass.
    """

    context: int
    dtype: str = "bfloat16"
    max_chunk: int = 512
    max_window: int = MAX_WINDOW
    max_round: int = MAX_ROUND_ROWS
    max_sequences: int = MAX_PARALLEL

    @property
    def value_bytes(self) -> int:
        """Bytes of one activation."""
        return 2 if self.dtype == "bfloat16" else 4


@dataclass(frozen=True)
class WeightSizes:
    """What weights take in memory.

    Attributes:
        parts: Bytes by part of the model, in its order, of what is in memory.
        copied_bytes: Of them copied out of the files: vectors, which become float32, and what does not lie
            as the device needs it. The rest is mapped.
        table_bytes: Of them the n-gram table's that are mapped, and could be streamed.
        streamed_bytes: Of the n-gram table, beside them, what is read from its file as it is needed.
    """

    parts: Mapping[str, int]
    copied_bytes: int
    table_bytes: int = 0
    streamed_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    def streamed(self) -> WeightSizes:
        """Size the same weights with the n-gram table streamed."""
        parts = {name: n - self.table_bytes * (name == TABLE) for name, n in self.parts.items()}
        return WeightSizes(parts, self.copied_bytes, 0, self.streamed_bytes + self.table_bytes)

    def joined(self, other: WeightSizes) -> WeightSizes:
        """Size both together."""
        return WeightSizes(
            {**self.parts, **other.parts},
            self.copied_bytes + other.copied_bytes,
            self.table_bytes + other.table_bytes,
            self.streamed_bytes + other.streamed_bytes,
        )


@dataclass(frozen=True)
class VisionRoom:
    """What sizes a loaded vision tower, and what is kept of what it saw.

    Attributes:
        weights: The tower's.
        max_patches: Of one picture or pair of frames, and of all that go through the tower together.
        media_tokens: Of the largest picture or video.
    """

    weights: WeightSizes
    max_patches: int
    media_tokens: int


def vision_room(
    config: ModelConfig, tensors: Mapping[str, TensorView], most: tuple[int, int], alignment: int = 1
) -> VisionRoom | None:
    """Size the tower of a checkpoint; None where it has none.

    Args:
        config: The model's sizes.
        tensors: By canonical name.
        most: Tokens of a picture or a slice, and of a picture or a video.
        alignment: Bytes; a tensor that lies otherwise in its file is copied.

    Raises:
        InvalidArgument: A picture may have more patches than the tower takes.
    """
    if config.vision is None:
        return None
    a_slice, media = most
    a_token: int = config.vision["spatial_merge_size"] ** 2
    patches = a_slice * a_token
    if patches > MAX_PATCHES:
        raise InvalidArgument(
            f"pictures may have {a_slice} tokens, {patches} patches, and the vision tower takes up to "
            f"{MAX_PATCHES} patches; set image_tokens (--vision-image-tokens) to "
            f"{MAX_PATCHES // a_token} or less"
        )
    return VisionRoom(tower_weight_sizes(config, tensors, alignment), patches, media)


def vision_room_of(
    folder: Path,
    config: ModelConfig,
    tensors: Mapping[str, TensorView],
    limits: Limits,
    names: Names,
    alignment: int = 1,
) -> VisionRoom | None:
    """Size the tower of a checkpoint for media within limits, by the rules in its folder; None without one.

    Raises:
        CheckpointError: The rules cannot be read.
        InvalidArgument: As `vision_room`.
    """
    if config.vision is None:
        return None
    try:
        rules = read_rules(folder)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; mend or remove that file, or go without pictures ({names.without('vision')})"
        ) from None
    return vision_room(config, tensors, most_tokens(rules, limits), alignment)


def features_bytes(config: ModelConfig, media_tokens: int) -> int:
    """Size the features of the largest media, as the tower gives them."""
    return media_tokens * config.hidden_size * _F32


def weight_sizes(config: ModelConfig, tensors: Mapping[str, TensorView], alignment: int = 1) -> WeightSizes:
    """Size the weights that are placed on a device: the text model's, and the draft head's if config has one.

    The vision tower's are `tower_weight_sizes`.

    Args:
        config: The model's sizes.
        tensors: By canonical name, from a checkpoint or `expected_tensors`.
        alignment: Bytes; a tensor that lies otherwise in its file is copied.
    """
    parts: dict[str, int] = {}
    copied = table = 0
    for spec in chain(text_specs(config), mtp_specs(config) if config.n_mtp_layers else ()):
        size = copies = 0
        if spec.kind in (Kind.MATRIX, Kind.ROUTER):
            module = spec.name.removesuffix(".weight")
            for name in (spec.name, f"{module}.scales", f"{module}.biases"):
                if view := tensors.get(name):
                    aligned = view.offset % alignment == 0
                    n = view.nbytes if aligned else _extent(view)
                    size, copies = size + n, copies + (0 if aligned else n)
        elif spec.kind not in (Kind.CONSTANT, Kind.SCALE):
            size = copies = math.prod(spec.shape) * _F32
        part = part_of(spec.name)
        parts[part] = parts.get(part, 0) + size
        copied += copies
        table += (size - copies) * (part == TABLE)
    return WeightSizes(parts, copied, table)


def tower_weight_sizes(
    config: ModelConfig, tensors: Mapping[str, TensorView], alignment: int = 1
) -> WeightSizes:
    """Size the weights of the vision tower, which the core loads beside a model; none for a text model."""
    total = copied = 0
    for spec in vision_specs(config):
        size, copies = _tower_tensor(spec, tensors[spec.name], alignment)
        total, copied = total + size, copied + copies
    return WeightSizes({part_of("visual."): total} if total else {}, copied)


def _tower_tensor(spec: TensorSpec, view: TensorView, alignment: int) -> tuple[int, int]:
    """Bytes of one of its tensors, and those of them that are copied."""
    if len(spec.shape) == 1 or "pos_embed" in spec.name:
        size = math.prod(spec.shape) * _F32  # vectors become float32
        return size, size
    turned = spec.kind is Kind.PATCH and view.shape != spec.shape
    return view.nbytes, view.nbytes if turned or view.offset % alignment else 0


def tower_scratch_bytes(config: ModelConfig, max_patches: int, tile_patches: int = LEAST_TILE) -> int:
    """Size the scratch of a pass through the vision tower; 0 for a text model.

    Args:
        config: The model's sizes.
        max_patches: Of one picture or pair of frames, and of all that go through the tower together.
        tile_patches: Patches that the device's attention takes together, `Tower.tile_patches`; where the
            tower is not there yet, `LEAST_TILE` is on the safe side by some KiB.
    """
    v = config.vision
    if v is None:
        return 0
    d, half, token = v["hidden_size"], v["hidden_size"] // v["num_heads"] // 2, v["spatial_merge_size"] ** 2
    chunk = min(_TOWER_CHUNK, max_patches)
    patch = v["in_channels"] * v["temporal_patch_size"] * v["patch_size"] ** 2
    tables = max_patches * STRUCT_BYTES["Patch"]
    tables += (max_patches // tile_patches + max_patches // token) * STRUCT_BYTES["SliceTile"]
    floats = half // 2 + max_patches * (4 * d + 2 * half)  # frequencies, x, qkv, cos, sin
    floats += chunk * (2 * patch + d + max(v["intermediate_size"], d))
    floats += chunk // token * v["out_hidden_size"]
    return tables + floats * _F32


def _extent(view: TensorView) -> int:
    """Bytes from the first of a tensor to its last."""
    if not view.batch_stride:
        return view.nbytes
    return view.batch_stride * (view.shape[0] - 1) + view.nbytes // view.shape[0]


def n_pages(n_positions: int) -> int:
    """Count the pages of so many positions."""
    return -(-n_positions // PAGE_TOKENS)


def page_bytes(c: ModelConfig, dtype_bytes: int) -> int:
    """Size one page: rotary positions, and the caches of all attention layers and of the draft head."""
    kv = c.n_kv_heads * PAGE_TOKENS * c.head_dim * dtype_bytes
    raw = PAGE_TOKENS * c.index_head_dim * dtype_bytes
    layer = 2 * _aligned(kv) + _aligned(raw) + _aligned(raw // c.index_ratio)
    layers = sum(c.attention_layers) + (c.n_mtp_layers > 0)
    return _aligned(PAGE_TOKENS * 3 * _I32) + layers * layer


def snapshot_bytes(c: ModelConfig, dtype_bytes: int) -> int:
    """Size the recurrent block of a session, which is what a snapshot of it copies."""
    layers = c.n_layers - sum(c.attention_layers)
    state = _aligned(c.linear_v_heads * c.linear_k_dim * c.linear_v_dim * _F32)
    conv = _aligned((c.linear_conv - 1) * _channels(c) * dtype_bytes)
    tokens = _aligned((c.ngram_size - 1) * _I32)
    tail = _aligned((c.ple_conv - 1) * c.ngram_size * _width(c) * dtype_bytes)
    streams = _aligned(_width(c) * dtype_bytes) if c.n_mtp_layers else 0
    return layers * (state + conv) + len(c.ple_layers) * (tokens + tail) + streams


def unsettled_bytes(c: ModelConfig, dtype_bytes: int, max_window: int) -> int:
    """Size the inputs that a window leaves until the next round settles them; a session has two of these."""
    layers = c.n_layers - sum(c.attention_layers)
    delta = (
        _channels(c) * dtype_bytes, c.linear_k_heads * c.linear_k_dim * _F32,
        c.linear_v_heads * c.linear_v_dim * dtype_bytes, c.linear_v_heads * _F32, c.linear_v_heads * _F32,
    )  # fmt: skip
    ple = (_I32, _width(c) * dtype_bytes)
    return layers * sum(_aligned(max_window * n) for n in delta) + len(c.ple_layers) * sum(
        _aligned(max_window * n) for n in ple
    )


def session_bytes(c: ModelConfig, o: ModelOptions) -> int:
    """Size what a session owns beside its pages."""
    table = (o.context // PAGE_TOKENS + 2) * _U64
    text = (o.context + 2 * MAX_WINDOW) * _I32
    state = snapshot_bytes(c, o.value_bytes) + 2 * unsettled_bytes(c, o.value_bytes, o.max_window)
    return table + text + state + STRUCT_BYTES["ReplyState"]


def rules_bytes(c: ModelConfig) -> int:
    """Size what a reply's rules have at most: counts of tokens for penalties, and masks for a grammar."""
    return 2 * c.vocab_size * _I32 + MAX_WINDOW * -(-c.vocab_size // 32) * _I32


def scratch_bytes(c: ModelConfig, o: ModelOptions) -> int:
    """Size the scratch and the tables of a pass."""
    return sum(_scratch(c, o)) + (sum(_head_scratch(c, o)) if c.n_mtp_layers else 0)


def _scratch(c: ModelConfig, o: ModelOptions) -> Iterator[int]:
    """Yield what `Model::allocate_scratch` takes, in its order."""
    rows, logits, n_seq, t = max(o.max_chunk, o.max_round), o.max_round, o.max_sequences, o.value_bytes
    wide, d = _width(c), c.hidden_size
    carried = n_seq if c.n_mtp_layers else 0
    yield carried * wide * t
    values = 2 * wide + c.hc_rank + d  # streams, normed, low, mixed
    floats = c.hc_count  # gates

    values += 2 * _channels(c) + 2 * c.linear_v_heads * c.linear_v_dim  # qkv, conv, z, core
    floats += 4 * c.linear_v_heads + 2 * c.linear_k_heads * c.linear_k_dim  # b, a, beta, decay, q, k

    query = c.n_heads * c.head_dim
    values += 4 * query + 2 * c.n_kv_heads * c.head_dim  # qg, query, attended, key, value
    values += (2 * c.index_n_heads + 1) * c.index_head_dim  # index_qk, index_q
    floats += c.rotary_dim + c.index_budget // c.index_ratio + 1  # cos, sin, blocks, n_selected
    yield _SCORED_ROWS * (o.context // c.index_ratio + 1) * _F32

    floats += c.n_experts + 3 * c.top_k + 1  # router, ids, weights, pairs, shared_gate
    values += c.top_k * c.moe_width + c.shared_width  # act, shared_act
    yield 2 * (1 + c.n_experts) * _I32

    if c.ple_layers:
        floats += (c.ngram_size - 1) * c.heads_per_ngram
        values += c.ple_dim + 3 * wide + d
    yield rows * (values * t + floats * _F32)
    yield logits * (2 * wide + c.hc_rank + d) * t

    size = STRUCT_BYTES
    tables = size["Counts"] + n_seq * size["Sequence"] + logits * (_I32 + size["DrawRow"])
    yield 2 * tables + (rows + logits) * size["Row"] + rows * (size["Mark"] + _U64)
    yield size["Counts"] + n_seq * (_U64 + 2 * _I32)
    result = _F32 + _MAX_TOP * (_I32 + _F32) + _U64
    yield _SLOTS * (n_seq * (size["Window"] + size["Landed"]) + logits * result)
    yield logits * (c.vocab_size * _F32 + _I32)
    blocks = logits * -(-c.vocab_size // _SAMPLER_BLOCK)
    yield blocks * (size["BlockMax"] + size["BlockPart"] + _F32)


def _head_scratch(c: ModelConfig, o: ModelOptions) -> Iterator[int]:
    """Yield what `Model::allocate_head` takes, in its order."""
    rows, n_seq, size = max(o.max_chunk, o.max_round), o.max_sequences, STRUCT_BYTES
    yield rows * 2 * (_width(c) + c.hidden_size) * o.value_bytes
    yield rows * c.hc_count * (_I32 + _F32)
    yield size["Counts"] + n_seq * size["Sequence"] + rows * (size["Row"] + _I32)
    steps = max(1, min(o.max_window, MAX_WINDOW) - 1)
    yield steps * (size["Counts"] + n_seq * (size["Sequence"] + size["DrawRow"] + 2 * _I32))
    step_rows = o.max_round + (steps - 1) * n_seq
    yield step_rows * (size["Row"] + _I32) + n_seq * (_U64 + _I32)


def _width(c: ModelConfig) -> int:
    return c.hc_count * c.hidden_size


def _channels(c: ModelConfig) -> int:
    return 2 * c.linear_k_heads * c.linear_k_dim + c.linear_v_heads * c.linear_v_dim


def _aligned(n: int) -> int:
    return -(-n // _ALIGNMENT) * _ALIGNMENT
