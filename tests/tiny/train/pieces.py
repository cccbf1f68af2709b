"""The token-wise pieces of the training model, on flat [N, C] views; each is compiled once on a GPU."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 64
COMPILE = True


def maybe_compile(fn):
    """Compiles at first use on the GPU; plain Python on the CPU."""
    box = {}

    def call(*a, **k):
        if not (COMPILE and torch.cuda.is_available()):
            return fn(*a, **k)
        if "f" not in box:
            box["f"] = torch.compile(fn, dynamic=False)
        return box["f"](*a, **k)

    return call


# ------------------------------------------------------------------------------------------------ helpers
def rms(x, w, eps=1e-6):
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps) * (1 + w.float())).to(x.dtype)


def lin(x, w):
    return F.linear(x, w.to(x.dtype))


def l2(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def rotate(x, cos, sin):
    """x [..., D], cos/sin [..., R] broadcastable; rotates the first R features (half split)."""
    r = cos.shape[-1]
    a, b = x[..., :r], x[..., r:]
    h = torch.cat((-a[..., r // 2 :], a[..., : r // 2]), -1)
    return torch.cat((a * cos + h * sin, b), -1).to(x.dtype)


def causal_conv(x, w, where, dilation=1):
    """Depthwise causal convolution on the flat view; `where` [N] is the position inside the row; w [C, K]."""
    k = w.shape[-1]
    y = x * w[:, k - 1].to(x.dtype)
    for j in range(1, k):
        s = j * dilation
        shifted = F.pad(x, (0, 0, s, 0))[: x.shape[0]]
        y = y + torch.where((where >= s)[:, None], shifted, 0) * w[:, k - 1 - j].to(x.dtype)
    return y


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A [..., C, C]."""

    @staticmethod
    def forward(ctx, a):
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)
        x = torch.linalg.solve_triangular(a + eye, eye, upper=False, unitriangular=True)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        xt = x.transpose(-1, -2)
        return -(xt @ g @ xt).tril(-1)


# ------------------------------------------------------------------------------------------------ compiled
# pieces
@maybe_compile
def hc_read(h, norm, down, up, inject):
    """h [N, S, D] -> (block input [N, D], injection weights [N, S])."""
    n, s, d = h.shape
    hf = h.float()
    x = (hf * torch.rsqrt(hf.pow(2).mean(-1, keepdim=True) + 1e-6)).reshape(n, s * d)
    x = (x * (1 + norm.float())).to(h.dtype)
    g = torch.sigmoid(lin(F.silu(lin(x, down) / s), up).float())
    mixed = (g * x.float()).view(n, s, d).mean(1).to(h.dtype)
    if inject is None:
        return mixed, None
    return mixed, 2 * torch.sigmoid(lin(x, inject).float() / s)


@maybe_compile
def hc_write(h, y, inj):
    return (h.float() + y.float()[:, None] * inj[:, :, None]).to(h.dtype)


@maybe_compile
def moe(x, gate, gate_up, down, s_gate, s_up, s_down, s_switch, top_k: int):
    """Dense mixture: returns (output, load balance loss)."""
    e, i2, d = gate_up.shape
    i = i2 // 2
    p = torch.softmax(F.linear(x.float(), gate.float()), -1)
    top, idx = p.topk(top_k, -1)
    top = top / top.sum(-1, keepdim=True)
    w = torch.zeros_like(p).scatter(1, idx, top)
    balance = e * ((w > 0).float().mean(0) / top_k * p.mean(0)).sum()
    gu = lin(x, gate_up.reshape(e * i2, d)).view(-1, e, i2)
    act = F.silu(gu[..., :i]) * gu[..., i:] * w[..., None].to(x.dtype)
    y = lin(act.reshape(-1, e * i), down.permute(1, 0, 2).reshape(d, e * i))
    sh = lin(F.silu(lin(x, s_gate)) * lin(x, s_up), s_down)
    return y + torch.sigmoid(lin(x, s_switch)) * sh, balance


@maybe_compile
def gdn_in(x, where, qkv_w, z_w, b_w, a_w, conv_w, a_log, dt_bias, hk: int, hv: int, dk: int, dv: int):
    n = x.shape[0]
    qkv = F.silu(causal_conv(lin(x, qkv_w), conv_w, where))
    q, k, v = qkv.float().split([hk * dk, hk * dk, hv * dv], -1)
    rep = hv // hk
    shape = (n // CHUNK, CHUNK, hk, dk)
    q = l2(q.view(shape)) * dk**-0.5
    k = l2(k.view(shape))
    q = q.repeat_interleave(rep, 2).transpose(1, 2)
    k = k.repeat_interleave(rep, 2).transpose(1, 2)
    v = v.view(n // CHUNK, CHUNK, hv, dv).transpose(1, 2)
    beta = torch.sigmoid(lin(x, b_w).float()).view(-1, CHUNK, hv).transpose(1, 2)
    g = -a_log.float().exp() * F.softplus(lin(x, a_w).float() + dt_bias.float())
    g = g.view(-1, CHUNK, hv).transpose(1, 2).cumsum(-1)  # [n, h, c]
    low = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).tril()
    decay = torch.where(low, g[..., :, None] - g[..., None, :], -1e30).exp()
    kb = k * beta[..., None]
    a = ((kb @ k.transpose(-1, -2)) * decay).tril(-1)
    intra = (q @ k.transpose(-1, -2)) * decay
    rhs = torch.cat((v * beta[..., None], kb * g.exp()[..., None]), -1)
    qd = q * g.exp()[..., None]
    kd = k * (g[..., -1:] - g).exp()[..., None]
    last = g[..., -1].exp()
    return a, intra, rhs, qd, kd, last, lin(x, z_w)


@maybe_compile
def gdn_mid(t, rhs, kd, last, dv: int):
    uw = t @ rhs
    u, w = uw[..., :dv], uw[..., dv:]
    kt = kd.transpose(-1, -2)
    eye = torch.eye(kd.shape[-1], device=kd.device)
    m = last[..., None, None] * eye - kt @ w
    return u, w, m, kt @ u


@maybe_compile
def gdn_out(s, u, w, qd, intra, z, norm, out_w):
    o = qd @ s + intra @ (u - w @ s)  # [n, h, c, dv]
    o = o.transpose(1, 2)
    o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + 1e-6) * norm.float()
    n, c, h, d = o.shape
    o = o * torch.sigmoid(z.float().view(n, c, h, d))
    return lin(o.reshape(n * c, h * d).to(z.dtype), out_w)


def gdn_scan(m, b, rows):
    """States before each chunk: S[c + 1] = M[c] S[c] + B[c], zero at each row's start."""
    n, h, dk, dv = b.shape
    per = n // rows
    m = m.view(rows, per, h, dk, dk).transpose(0, 1).reshape(per, rows * h, dk, dk)
    b = b.view(rows, per, h, dk, dv).transpose(0, 1).reshape(per, rows * h, dk, dv)
    ms, bs = m.unbind(0), b.unbind(0)
    s = torch.zeros_like(bs[0])
    out = [s]
    for i in range(per - 1):
        s = torch.baddbmm(bs[i], ms[i], s)
        out.append(s)
    return torch.stack(out).view(per, rows, h, dk, dv).transpose(0, 1).reshape(n, h, dk, dv)


@maybe_compile
def attn_in(x, cos, sin, q_w, k_w, v_w, q_n, k_n, heads: int, kv: int, hd: int):
    n = x.shape[0]
    qg = lin(x, q_w).view(n, heads, 2 * hd)
    q, gate = qg[..., :hd], qg[..., hd:]
    q = rotate(rms(q, q_n), cos[:, None], sin[:, None])
    k = rotate(rms(lin(x, k_w).view(n, kv, hd), k_n), cos[:, None], sin[:, None])
    return q, k, lin(x, v_w).view(n, kv, hd), gate.reshape(n, heads * hd)


@maybe_compile
def attn_out(o, gate, w):
    return lin(o * torch.sigmoid(gate), w)


@maybe_compile
def index_in(x, cos, sin, w, q_n, k_n, heads: int, dim: int, ratio: int):
    n = x.shape[0]
    qk = lin(x, w)
    q = rotate(rms(qk[:, : heads * dim].view(n, heads, dim), q_n), cos[:, None], sin[:, None])
    k = qk[:, heads * dim :].float().view(n // ratio, ratio, dim).mean(1).to(x.dtype)
    k = rotate(rms(k, k_n), cos[::ratio], sin[::ratio])
    return q, k


@maybe_compile
def ple(h, emb, where, key_w, value_w, n_key, n_query, n_conv, conv_w, ngram: int):
    n, s, d = h.shape

    def group(x, w):
        xf = x.float().view(n, s, d)
        return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + 1e-6)).view(n, s * d) * (1 + w.float())

    key = group(lin(emb, key_w), n_key).view(n, s, d)
    query = group(h.reshape(n, s * d), n_query).view(n, s, d)
    g = (key * query).sum(-1, keepdim=True) / math.sqrt(d)
    g = g.abs().clamp_min(1e-6).sqrt() * g.sign()
    val = (torch.sigmoid(g) * lin(emb, value_w).float()[:, None]).to(h.dtype).view(n, s * d)
    conv = F.silu(causal_conv(group(val, n_conv).to(h.dtype), conv_w, where, ngram))
    return h + (val + conv).view(n, s, d)


@maybe_compile
def cross_entropy(x, head, target, weight):
    """(weighted sum of losses, weight sum, weighted count of right tokens, argmax)."""
    logits = lin(x, head).float()
    loss = F.cross_entropy(logits, target, reduction="none")
    best = logits.argmax(-1)
    return (loss * weight).sum(), ((best == target) * (weight > 0.9)).sum(), best


class W(nn.Module):
    """Holder of one weight, so that state dict names end in `.weight`."""

    def __init__(self, *shape, std=0.0, fill=0.0, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape) * std if std else torch.full(shape, fill))
        if bias:
            self.bias = nn.Parameter(torch.zeros(shape[0]))
