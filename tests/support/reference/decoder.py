"""One decoder layer: optional n-gram embedding, a mixer (DeltaNet or sparse attention), experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flashnext.checkpoint.config import ModelConfig

from support.reference.margins import Margins, router_margin, selection_margin
from support.reference.ngram import ngram_rows
from support.reference.primitives import (
    Array,
    depthwise_causal,
    linear,
    rms,
    sigmoid,
    silu,
    softmax,
    softplus,
    unit_rms,
)
from support.reference.rope import rotate

Weights = Mapping[str, Array]
Store = Callable[[Array], Array]

KEY_EPS = 1e-6  # inside the sum of squares of the DeltaNet keys and queries
GATE_FLOOR = 1e-6  # least |score| under the square root of the n-gram gate


def exact(x: Array) -> Array:
    """The store that rounds nothing."""
    return x


@dataclass
class LayerState:
    """What one layer keeps of a sequence; None before its first row."""

    conv: Array | None = None  # (K - 1, channels) DeltaNet convolution inputs
    recurrent: Array | None = None  # (v_heads, k_dim, v_dim)
    ple_conv: Array | None = None  # ((K - 1) * ngram_size, W) normalized gated values
    tokens: list[int] = field(default_factory=list)  # the last ngram_size - 1 ids
    k: Array | None = None  # (T, kv_heads, head_dim), rotated
    v: Array | None = None  # (T, kv_heads, head_dim)
    raw: Array | None = None  # (T, index_dim) index keys, neither normalized nor rotated
    cos: Array | None = None  # (T, half): blocks are rotated at their first row
    sin: Array | None = None
    pooled: Array | None = None  # (blocks, index_dim), normalized and rotated


def _joined(old: Array | None, new: Array) -> Array:
    return new if old is None else np.concatenate([old, new], 0)


class Mixer:
    """The read operation of the hyper-connections, with its weights under `prefix`."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str, store: Store) -> None:
        self.c, self.w, self.prefix, self.store = config, weights, prefix, store

    def weight(self, name: str) -> Array:
        return self.w[self.prefix + name]

    def read(self, h: Array, name: str) -> tuple[Array, Array]:
        """(T, W) streams -> (T, D) block input and (T, W) normalized streams."""
        c = self.c
        normed = self.store(rms(h, self.weight(name + ".hc_norm.weight"), c.rms_eps, c.hidden_size))
        low = silu(linear(normed, self.weight(name + ".input_mix_weight_down.weight")) / c.hc_count)
        gate = sigmoid(linear(self.store(low), self.weight(name + ".input_mix_weight_up.weight")))
        x = (gate * normed).reshape(len(h), c.hc_count, c.hidden_size).mean(1)
        return self.store(x), normed

    def inject(self, normed: Array, name: str) -> Array:
        """(T, S) gates of the write operation."""
        return 2 * sigmoid(
            linear(normed, self.weight(name + ".block_inject_weight.weight")) / self.c.hc_count
        )

    def write(self, h: Array, out: Array, gates: Array) -> Array:
        """Add the (T, D) block output to each stream, times the stream's gate."""
        return self.store(h + (gates[:, :, None] * self.store(out)[:, None, :]).reshape(h.shape))


class Layer(Mixer):
    """One decoder layer.

    Args:
        config: The sizes.
        weights: Canonical names (see `text.canonical_weights`), one float dtype.
        prefix: `layers.3.`, for example.
        attention: Sparse attention, else DeltaNet.
        module: The number of its n-gram module, or None.
        store: Applied wherever the engine stores an activation; `exact`, or a rounding to bfloat16.
        number: Names the layer in margins.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        prefix: str,
        attention: bool,
        module: int | None,
        store: Store,
        number: int,
    ) -> None:
        super().__init__(config, weights, prefix, store)
        self.attention, self.module, self.number = attention, module, number

    def forward(
        self,
        h: Array,
        tokens: Sequence[int],
        cos: Array,
        sin: Array,
        state: LayerState,
        margins: Margins | None,
    ) -> Array:
        """(T, W) streams in, (T, W) streams out; `state` moves on by T rows."""
        if self.module is not None:
            h = self.store(h + self.ple(h, tokens, state))
        x, normed = self.read(h, "attn_hyper_connection")
        gates = self.inject(normed, "attn_hyper_connection")
        y = self.sparse_attention(x, cos, sin, state, margins) if self.attention else self.deltanet(x, state)
        h = self.write(h, y, gates)
        x, normed = self.read(h, "mlp_hyper_connection")
        return self.write(h, self.experts(x, margins), self.inject(normed, "mlp_hyper_connection"))

    def ple(self, h: Array, tokens: Sequence[int], state: LayerState) -> Array:
        """What the hashed n-gram embedding adds to the streams."""
        c, store, t = self.c, self.store, len(h)
        d, s = c.hidden_size, c.hc_count
        assert self.module is not None
        history = state.tokens or [c.segment_token] * (c.ngram_size - 1)
        rows = ngram_rows(c, self.module, tokens, history)
        state.tokens = [*history, *(int(x) for x in tokens)][-(c.ngram_size - 1) :]
        e = store(self.weight("ple.ple_embedding.ngram_embedding.weight")[rows].reshape(t, c.ple_dim))
        key = store(linear(e, self.weight("ple.key_proj.weight")))
        key = rms(key, self.weight("ple.norm_key.weight"), c.rms_eps, d).reshape(t, s, d)
        value = store(linear(e, self.weight("ple.value_proj.weight")))
        query = rms(h, self.weight("ple.norm_query.weight"), c.rms_eps, d).reshape(t, s, d)
        score = (key * query).sum(-1) / math.sqrt(d)
        gate = sigmoid(np.sign(score) * np.sqrt(np.maximum(np.abs(score), GATE_FLOOR)))
        u = (gate[:, :, None] * value[:, None, :]).reshape(t, s * d)
        gated = store(u)
        normed = store(rms(u, self.weight("ple.norm_conv.weight"), c.rms_eps, d))
        if state.ple_conv is None:
            state.ple_conv = np.zeros(((c.ple_conv - 1) * c.ngram_size, s * d), h.dtype)
        taps = self.weight("ple.conv1d.weight").reshape(s * d, -1)
        y, state.ple_conv = depthwise_causal(state.ple_conv, normed, taps, c.ngram_size)
        return gated + silu(y)

    def deltanet(self, x: Array, state: LayerState) -> Array:
        """Gated DeltaNet as its recurrence."""
        c, store, t = self.c, self.store, len(x)
        nk, nv, dk, dv = c.linear_k_heads, c.linear_v_heads, c.linear_k_dim, c.linear_v_dim
        qkv = store(linear(x, self.weight("linear_attn.in_proj_qkv.weight")))
        z = store(linear(x, self.weight("linear_attn.in_proj_z.weight"))).reshape(t, nv, dv)
        beta = sigmoid(linear(x, self.weight("linear_attn.in_proj_b.weight")))
        step = softplus(
            linear(x, self.weight("linear_attn.in_proj_a.weight")) + self.weight("linear_attn.dt_bias")
        )
        decay = np.exp(-np.exp(self.weight("linear_attn.A_log")) * step)
        if state.conv is None:
            state.conv = np.zeros((c.linear_conv - 1, qkv.shape[1]), x.dtype)
        y, state.conv = depthwise_causal(
            state.conv, qkv, self.weight("linear_attn.conv1d.weight").reshape(qkv.shape[1], -1)
        )
        q, k, v = np.split(store(silu(y)), [nk * dk, 2 * nk * dk], -1)
        q, k, v = q.reshape(t, nk, dk), k.reshape(t, nk, dk), v.reshape(t, nv, dv)
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + KEY_EPS) / math.sqrt(dk)
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + KEY_EPS)
        q, k = (
            np.repeat(q, nv // nk, 1),
            np.repeat(k, nv // nk, 1),
        )  # value head n uses key head n // (nv / nk)
        m = np.zeros((nv, dk, dv), x.dtype) if state.recurrent is None else state.recurrent
        out = np.empty((t, nv, dv), x.dtype)
        for i in range(t):
            m = m * decay[i][:, None, None]
            delta = beta[i][:, None] * (v[i] - np.einsum("hk,hkv->hv", k[i], m))
            m = m + k[i][:, :, None] * delta[:, None, :]
            out[i] = np.einsum("hk,hkv->hv", q[i], m)
        state.recurrent = m
        gate = sigmoid(z) if c.output_gate == "sigmoid" else silu(z)
        out = (
            unit_rms(out, c.rms_eps) * self.weight("linear_attn.norm.weight") * gate
        )  # the plain weight, not 1 + w
        return linear(store(out.reshape(t, nv * dv)), self.weight("linear_attn.out_proj.weight"))

    def pool(self, state: LayerState) -> None:
        """Pool the blocks that have become complete: mean, norm, rotation at the block's first row."""
        c = self.c
        assert state.raw is not None and state.cos is not None and state.sin is not None
        done = 0 if state.pooled is None else len(state.pooled)
        complete = len(state.raw) // c.index_ratio
        if complete == done:
            return
        first = np.arange(done, complete) * c.index_ratio
        raw = state.raw[first[0] : complete * c.index_ratio].reshape(
            len(first), c.index_ratio, c.index_head_dim
        )
        pooled = rms(self.store(raw.mean(1)), self.weight("self_attn.indexer.k_layernorm.weight"), c.rms_eps)
        state.pooled = _joined(state.pooled, self.store(rotate(pooled, state.cos[first], state.sin[first])))

    def select(self, index_q: Array, state: LayerState, at: int) -> tuple[Array, float]:
        """Positions that the query (heads, index_dim) of row `at` reads, ascending, and its margin.

        The best complete blocks, the lower one first among equals, and always the rows after the last
        complete block.
        """
        c, n = self.c, at + 1
        blocks, budget = n // c.index_ratio, c.index_budget // c.index_ratio
        if blocks <= budget:
            return np.arange(n), float("inf")
        assert state.pooled is not None
        dots = index_q @ state.pooled[:blocks].T
        scale = 1 / math.sqrt(c.index_head_dim)
        best = np.sort(np.argsort(-(np.maximum(dots, 0).sum(0) * scale), kind="stable")[:budget])
        rows = (best[:, None] * c.index_ratio + np.arange(c.index_ratio)).reshape(-1)
        return np.concatenate([rows, np.arange(blocks * c.index_ratio, n)]), selection_margin(
            dots, scale, budget
        )

    def sparse_attention(
        self, x: Array, cos: Array, sin: Array, state: LayerState, margins: Margins | None
    ) -> Array:
        """Attention over the selected positions, gated."""
        c, store, t = self.c, self.store, len(x)
        at = "self_attn."
        qg = store(linear(x, self.weight(at + "q_proj.weight"))).reshape(t, c.n_heads, 2 * c.head_dim)
        q, gate = qg[..., : c.head_dim], qg[..., c.head_dim :]  # per head: query, then gate
        k = store(linear(x, self.weight(at + "k_proj.weight"))).reshape(t, c.n_kv_heads, c.head_dim)
        v = store(linear(x, self.weight(at + "v_proj.weight"))).reshape(t, c.n_kv_heads, c.head_dim)
        index_qk = store(linear(x, self.weight(at + "indexer.index_qk_proj.weight")))
        index_qk = index_qk.reshape(t, c.index_n_heads + 1, c.index_head_dim)
        wide_cos, wide_sin = cos[:, None], sin[:, None]
        q = store(rotate(rms(q, self.weight(at + "q_norm.weight"), c.rms_eps), wide_cos, wide_sin))
        k = store(rotate(rms(k, self.weight(at + "k_norm.weight"), c.rms_eps), wide_cos, wide_sin))
        index_q = rms(index_qk[:, :-1], self.weight(at + "indexer.q_layernorm.weight"), c.rms_eps)
        index_q = store(rotate(index_q, wide_cos, wide_sin))
        past = 0 if state.k is None else len(state.k)
        state.k, state.v = _joined(state.k, k), _joined(state.v, v)
        state.raw = _joined(state.raw, index_qk[:, -1])
        state.cos, state.sin = _joined(state.cos, cos), _joined(state.sin, sin)
        self.pool(state)
        out, gaps = np.empty((t, c.n_heads, c.head_dim), x.dtype), np.empty(t)
        per_kv = c.n_heads // c.n_kv_heads
        for i in range(t):
            rows, gaps[i] = self.select(index_q[i], state, past + i)
            for kv in range(c.n_kv_heads):
                heads = slice(kv * per_kv, (kv + 1) * per_kv)
                weight = softmax(q[i, heads] @ state.k[rows, kv].T / math.sqrt(c.head_dim))
                out[i, heads] = weight @ state.v[rows, kv]
        if margins is not None:
            margins.selection.setdefault(self.number, []).append(gaps)
        return linear(store((out * sigmoid(gate)).reshape(t, -1)), self.weight(at + "o_proj.weight"))

    def experts(self, x: Array, margins: Margins | None) -> Array:
        """The best `top_k` experts of each row, by ascending id, then the shared one."""
        c = self.c
        logits = linear(x, self.weight("mlp.gate.weight"))
        if margins is not None:
            margins.router.setdefault(self.number, []).append(router_margin(logits, c.top_k))
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : c.top_k]  # ties: the lower id
        weights = np.zeros_like(logits)
        np.put_along_axis(weights, chosen, softmax(np.take_along_axis(logits, chosen, 1)), 1)
        out = np.zeros_like(x)
        for e in range(c.n_experts):
            rows = np.flatnonzero((chosen == e).any(1))
            if rows.size:
                out[rows] += weights[rows, e, None] * self._glu(x[rows], "mlp.experts.", e)
        shared = sigmoid(linear(x, self.weight("mlp.shared_expert_gate.weight"))) * self._glu(
            x, "mlp.shared_expert.", None
        )
        return np.asarray(out + shared)

    def _glu(self, x: Array, at: str, expert: int | None) -> Array:
        gate, up, down = (
            self.weight(f"{at}{name}_proj.weight")
            if expert is None
            else self.weight(f"{at}{name}_proj.weight")[expert]
            for name in ("gate", "up", "down")
        )
        return linear(self.store(silu(linear(x, gate)) * linear(x, up)), down)
