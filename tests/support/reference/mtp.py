"""The draft head: row i takes the streams of row i and the token i + 1, and predicts the token i + 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from support.reference.decoder import Layer, LayerState, Mixer
from support.reference.primitives import Array, linear, rms
from support.reference.text import TextModel, canonical_weights


class DraftHead:
    """The draft head over a text model, whose embedding and head it shares.

    Args:
        model: The text model.
        weights: Tensors named `mtp.X`, or X alone.

    Source: transformers has no implementation, three public engines agree on this one. Its parts, made of
    transformers' layers, are compared in tests/model/test_reference_transformers.py.
    """

    def __init__(self, model: TextModel, weights: Mapping[str, npt.ArrayLike]) -> None:
        c = model.c
        self.model, self.c = model, c
        own = {name.removeprefix("mtp."): value for name, value in weights.items()}
        self.w = canonical_weights(own, model.dtype)
        self.layer = Layer(c, self.w, "layers.0.", True, None, model.store, c.n_layers)
        self.mixer = Mixer(c, self.w, "", model.store)

    def forward(
        self,
        streams: Array,
        next_tokens: Sequence[int] | npt.NDArray[Any],
        state: LayerState,
        positions: npt.ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """Absorb T rows.

        Args:
            streams: (T, W) of the main model before its final mixer, or of this head's own row before (a
                chained draft).
            next_tokens: T ids, each the token after its row.
            state: The head's cache; moves on by T rows.
            positions: (3, T) rotary positions of the rows; the row numbers by default.

        Returns:
            (T, vocab) logits and (T, W) streams.
        """
        c, store, t = self.c, self.model.store, len(streams)
        embedding = store(self.model.w["embed_tokens.weight"][[int(x) for x in next_tokens]])
        e = store(rms(embedding, self.w["pre_fc_norm_embedding.weight"], c.rms_eps))
        e = store(linear(e, self.w["fc_embedding.weight"]))
        n = store(
            rms(streams, self.w["pre_fc_norm_hidden.weight"], c.rms_eps)
        )  # ONE mean square over all W values
        n = linear(n.reshape(t, c.hc_count, c.hidden_size), self.w["fc_hidden.weight"])
        h = store((e[:, None, :] + n).reshape(t, c.hc_count * c.hidden_size))
        past = 0 if state.k is None else len(state.k)
        if positions is None:
            positions = np.tile(np.arange(past, past + t), (3, 1))
        cos, sin = self.model.rope.tables(positions, self.model.dtype)
        h = self.layer.forward(h, [], cos, sin, state, None)
        return self.model.logits(self.mixer.read(h, "hyper_connection_mixer")[0]), h

    def draft(self, streams: Array, next_tokens: Sequence[int], state: LayerState, depth: int) -> list[int]:
        """Absorb verified rows, then chain greedy drafts; the caller drops the rows past the accepted ones
        from `state`."""
        logits, h = self.forward(streams, next_tokens, state)
        out = [int(logits[-1].argmax())]
        while len(out) < depth:
            logits, h = self.forward(h[-1:], out[-1:], state)
            out.append(int(logits[-1].argmax()))
        return out
