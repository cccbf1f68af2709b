"""The vision tower and its merger; frames of a video never attend to one another."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from support.reference.media import patch_order
from support.reference.primitives import Array, linear, softmax
from support.reference.rope import rotate

THETA = 10000.0
NORM_EPS = 1e-6


def layer_norm(x: Array, w: Array, b: Array) -> Array:
    """LayerNorm over the last axis with weight and bias."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + NORM_EPS) * w + b)


def gelu_tanh(x: Array) -> Array:
    """The tanh form of GELU."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def gelu_erf(x: Array) -> Array:
    """GELU by the error function."""
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


class VisionTower:
    """The tower.

    Args:
        sizes: vision_config's integers by their names in config.json, as `ModelConfig.vision` holds them.
        weights: Tensors named `visual.X`, `model.visual.X`, or X alone.
        dtype: The dtype of every operation.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        weights: Mapping[str, npt.ArrayLike],
        dtype: npt.DTypeLike = np.float64,
    ) -> None:
        self.depth, self.hidden, self.heads = sizes["depth"], sizes["hidden_size"], sizes["num_heads"]
        self.merge, self.side = sizes["spatial_merge_size"], math.isqrt(sizes["num_position_embeddings"])
        self.dtype = np.dtype(dtype)
        self.w = {
            name.removeprefix("model.").removeprefix("visual."): np.asarray(value).astype(dtype)
            for name, value in weights.items()
        }

    def _linear(self, x: Array, name: str) -> Array:
        return np.asarray(linear(x, self.w[name + ".weight"]) + self.w[name + ".bias"])

    def _norm(self, x: Array, name: str) -> Array:
        return layer_norm(x, self.w[name + ".weight"], self.w[name + ".bias"])

    def _position_embedding(self, order: npt.NDArray[np.int64], h: int, w: int) -> Array:
        """(h * w, hidden): the learned grid, linearly interpolated with corners aligned."""
        table = self.w["pos_embed.weight"].reshape(self.side, self.side, self.hidden)

        def taps(i: int, n: int) -> tuple[int, int, float]:
            at = i * (self.side - 1) / max(n - 1, 1)
            low = math.floor(at)
            return low, min(low + 1, self.side - 1), at - low

        out = []
        for row, column in order:
            r0, r1, fr = taps(int(row), h)
            c0, c1, fc = taps(int(column), w)
            top = (1 - fr) * ((1 - fc) * table[r0, c0] + fc * table[r0, c1])
            out.append(top + fr * ((1 - fc) * table[r1, c0] + fc * table[r1, c1]))
        return np.array(out)

    def forward(self, patches: Array, grid: tuple[int, int, int]) -> Array:
        """Features of one image or video.

        Args:
            patches: (t * h * w, channels * temporal * patch * patch) in the order of `media.patchify`.
            grid: (t, h, w) in patches.

        Returns:
            (t * h * w / merge^2, out_hidden_size).
        """
        t, h, w = grid
        kernel = self.w["patch_embed.proj.weight"].reshape(self.hidden, -1)
        x = linear(patches.astype(self.dtype), kernel) + self.w["patch_embed.proj.bias"]
        order = patch_order(h, w, self.merge)
        x = x + np.tile(self._position_embedding(order, h, w), (t, 1))
        width = self.hidden // self.heads
        inv = THETA ** (-np.arange(width // 4, dtype=self.dtype) * 2 / (width // 2))
        angle = np.concatenate([order[:, :1] * inv, order[:, 1:] * inv], -1)  # row angles, then column angles
        cos, sin = np.tile(np.cos(angle), (t, 1))[:, None], np.tile(np.sin(angle), (t, 1))[:, None]
        for i in range(self.depth):
            at = f"blocks.{i}."
            qkv = self._linear(self._norm(x, at + "norm1"), at + "attn.qkv")
            q, k, v = qkv.reshape(-1, 3, self.heads, width).transpose(1, 0, 2, 3)
            q, k, out = rotate(q, cos, sin), rotate(k, cos, sin), np.empty_like(q)
            for frame in range(t):
                s = slice(frame * h * w, (frame + 1) * h * w)
                weight = softmax(np.einsum("qhd,khd->hqk", q[s], k[s]) / math.sqrt(width))
                out[s] = np.einsum("hqk,khd->qhd", weight, v[s])
            x = x + self._linear(out.reshape(len(x), -1), at + "attn.proj")
            y = gelu_tanh(self._linear(self._norm(x, at + "norm2"), at + "mlp.linear_fc1"))
            x = x + self._linear(y, at + "mlp.linear_fc2")
        y = self._norm(x, "merger.norm").reshape(
            -1, self.hidden * self.merge**2
        )  # neighbours are adjacent already
        return self._linear(gelu_erf(self._linear(y, "merger.linear_fc1")), "merger.linear_fc2")
