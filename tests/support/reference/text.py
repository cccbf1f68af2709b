"""The text model over a state: any cut of a sequence into chunks gives the same rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flashnext.checkpoint.config import ModelConfig

from support.reference.decoder import Layer, LayerState, Mixer, Store, exact
from support.reference.margins import Margins
from support.reference.primitives import Array, linear
from support.reference.rope import Rope

_PREFIXES = ("model.language_model.", "model.")
_SHARD = re.compile(r"(.*\.ngram_embedding\.)shard_(\d+)\.weight")


def canonical_weights(
    weights: Mapping[str, npt.ArrayLike], dtype: npt.DTypeLike = np.float64
) -> dict[str, Array]:
    """Float weights under the names the reference uses.

    Prefixes `model.language_model.` and `model.` fall away, shards of an n-gram table are joined to
    `ngram_embedding.weight`, and a fused `experts.gate_up_proj` becomes `experts.gate_proj.weight` and
    `experts.up_proj.weight`. Integer tensors are left out: the constants come from the config.

    Args:
        weights: Tensors by Hugging Face or canonical name, as stored (`w` where a norm uses 1 + w).
        dtype: What they are converted to.
    """
    out: dict[str, Array] = {}
    shards: dict[str, dict[int, Array]] = {}
    for name, value in weights.items():
        array = np.asarray(value)
        if array.dtype.kind != "f":
            continue
        array = array.astype(dtype)
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        if match := _SHARD.fullmatch(name):
            shards.setdefault(match[1] + "weight", {})[int(match[2])] = array
        elif name.removesuffix(".weight").endswith("mlp.experts.gate_up_proj"):
            at, width = name.removesuffix(".weight").removesuffix("gate_up_proj"), array.shape[1] // 2
            out[at + "gate_proj.weight"], out[at + "up_proj.weight"] = array[:, :width], array[:, width:]
        else:
            out[name + ".weight" if name.endswith("mlp.experts.down_proj") else name] = array
    for name, parts in shards.items():
        out[name] = np.concatenate([parts[s] for s in range(len(parts))], 0)
    return out


@dataclass
class State:
    """One sequence: how many rows it has had, and each layer's part."""

    length: int
    layers: list[LayerState]


@dataclass(frozen=True)
class Rows:
    """What a forward gives for its rows.

    Attributes:
        hidden: (T, D) after the final mixer.
        streams: (T, W) before it, which the draft head takes.
    """

    hidden: Array
    streams: Array


class TextModel:
    """The text model.

    Args:
        config: The sizes.
        weights: What `canonical_weights` takes.
        dtype: The dtype of every operation.
        rope: The rotary tables; those of `config` by default.
        store: Applied wherever the engine stores an activation (see docs/model.md); nothing is rounded by
            default.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, npt.ArrayLike],
        dtype: npt.DTypeLike = np.float64,
        rope: Rope | None = None,
        store: Store = exact,
    ) -> None:
        self.c, self.dtype, self.store = config, np.dtype(dtype), store
        self.rope = rope or Rope.of(config)
        self.w = canonical_weights(weights, dtype)
        module = {layer: number for number, layer in enumerate(config.ple_layers)}
        self.layers = [
            Layer(config, self.w, f"layers.{i}.", config.attention_layers[i], module.get(i), store, i)
            for i in range(config.n_layers)
        ]
        self.mixer = Mixer(config, self.w, "", store)

    def new_state(self) -> State:
        return State(0, [LayerState() for _ in self.layers])

    def forward(
        self,
        tokens: Sequence[int] | npt.NDArray[Any],
        state: State,
        positions: npt.ArrayLike | None = None,
        media: Mapping[int, Array] | None = None,
        margins: Margins | None = None,
    ) -> Rows:
        """Run T rows after `state`, which moves on.

        Args:
            tokens: T ids.
            positions: (3, T) rotary positions; the row numbers by default.
            media: Row -> (D,) feature that takes the place of the placeholder's embedding; hashing still sees
                its id.
            margins: Filled with the rows' decision gaps.
        """
        ids = [int(t) for t in tokens]
        if positions is None:
            positions = np.tile(np.arange(state.length, state.length + len(ids)), (3, 1))
        cos, sin = self.rope.tables(positions, self.dtype)
        x = self.store(self.w["embed_tokens.weight"][ids])
        for row, feature in (media or {}).items():
            x[row] = feature
        h = np.tile(x, (1, self.c.hc_count))
        for layer, part in zip(self.layers, state.layers, strict=True):
            h = layer.forward(h, ids, cos, sin, part, margins)
        state.length += len(ids)
        return Rows(self.mixer.read(h, "hyper_connection_mixer")[0], h)

    def logits(self, hidden: Array) -> Array:
        """(T, vocab) of (T, D)."""
        return linear(hidden, self.w["lm_head.weight"])
