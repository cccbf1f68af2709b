"""The vision tower of the training model."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pieces import W, rotate
from torch import nn


class VisionBlock(nn.Module):
    def __init__(self, d, inner, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d, eps=1e-6), nn.LayerNorm(d, eps=1e-6)
        self.attn = nn.Module()
        self.attn.qkv, self.attn.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Module()
        self.mlp.linear_fc1, self.mlp.linear_fc2 = nn.Linear(d, inner), nn.Linear(inner, d)
        self.heads = heads

    def forward(self, x, cos, sin):
        b, n, d = x.shape
        q, k, v = self.attn.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(q.float(), cos, sin), rotate(k.float(), cos, sin)
        o = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)
        x = x + self.attn.proj(o.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp.linear_fc2(F.gelu(self.mlp.linear_fc1(self.norm2(x)), approximate="tanh"))


class Vision(nn.Module):
    def __init__(self, v):
        super().__init__()
        d, self.v = v["hidden_size"], v
        p = v["in_channels"] * v["temporal_patch_size"] * v["patch_size"] ** 2
        self.patch_embed = nn.Module()
        self.patch_embed.proj = W(
            d,
            v["in_channels"],
            v["temporal_patch_size"],
            v["patch_size"],
            v["patch_size"],
            std=p**-0.5,
            bias=True,
        )
        self.pos_embed = W(v["num_position_embeddings"], d, std=0.02)
        self.blocks = nn.ModuleList(
            [VisionBlock(d, v["intermediate_size"], v["num_heads"]) for _ in range(v["depth"])]
        )
        self.merger = nn.Module()
        m = d * v["spatial_merge_size"] ** 2
        self.merger.norm = nn.LayerNorm(d, eps=1e-6)
        self.merger.linear_fc1, self.merger.linear_fc2 = nn.Linear(m, m), nn.Linear(m, v["out_hidden_size"])
        self.tables = {}

    def grid_tables(self, grid, device):
        """(interpolation matrix [n, positions], cos, sin) of one patch grid in 2x2 block order."""
        if grid not in self.tables:
            h, w = grid
            side = math.isqrt(self.v["num_position_embeddings"])
            rc = [
                (br * 2 + i, bc * 2 + j)
                for br in range(h // 2)
                for bc in range(w // 2)
                for i in range(2)
                for j in range(2)
            ]
            mat = torch.zeros(h * w, side * side)
            for n, (r, c) in enumerate(rc):
                y, x = r * (side - 1) / max(h - 1, 1), c * (side - 1) / max(w - 1, 1)
                y0, x0 = int(y), int(x)
                y1, x1 = min(y0 + 1, side - 1), min(x0 + 1, side - 1)
                for yy, wy in ((y0, 1 - (y - y0)), (y1, y - y0)):
                    for xx, wx in ((x0, 1 - (x - x0)), (x1, x - x0)):
                        mat[n, yy * side + xx] += wy * wx
            hd = self.v["hidden_size"] // self.v["num_heads"]
            inv = 10000.0 ** (-torch.arange(0, hd // 2, 2).float() / (hd // 2))
            p = torch.tensor(rc).float()
            f = torch.cat((p[:, :1] * inv, p[:, 1:] * inv), 1)
            f = torch.cat((f, f), 1)
            self.tables[grid] = tuple(t.to(device) for t in (mat, f.cos(), f.sin()))
        return self.tables[grid]

    def forward(self, patches, grid, dtype):
        """uint8 patches [images, n, p] -> [images * n / 4, out]."""
        mat, cos, sin = self.grid_tables(grid, patches.device)
        p = self.v["patch_size"] ** 2
        if patches.shape[-1] == 3 * p:  # still pictures: the same pixels in both time slots
            patches = patches.view(*patches.shape[:2], 3, 1, p).expand(-1, -1, -1, 2, -1).flatten(2)
        x = (patches.float() / 255 - 0.5) / 0.5
        with torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            w = self.patch_embed.proj
            x = F.linear(x, w.weight.flatten(1), w.bias) + mat @ self.pos_embed.weight
            for blk in self.blocks:
                x = blk(x, cos, sin)
            x = self.merger.norm(x).reshape(-1, self.merger.linear_fc1.in_features)
            return self.merger.linear_fc2(F.gelu(self.merger.linear_fc1(x)))
