"""Trains the tiny model on the synthetic corpus.

    python train.py --out OUT --seconds 500 [--start CKPT_DIR] [--lr0 1 --lr1 0.1] [--max-len 4096] [--sparse]
    [--seed 1]

Matrices are trained with Muon, everything else with Adam.  The learning rate goes linearly from lr0 to lr1
(both are factors) over the run, after a short warm-up.  --sparse makes the attention layers use their
indexer's selection beyond the budget, as at inference; the indexer itself learns from a KL loss against the
attention mass in both modes.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing as mp
import pathlib
import queue as q_
import threading
import time

import batches
import export
import numpy as np
import torch
from model import Model, load_config


def is_matrix(name, p):
    if p.ndim not in (2, 3) or "conv1d" in name or min(p.shape[-2:]) < 32:
        return False
    return not any(s in name for s in ("embed", "lm_head", "mlp.gate.", "index_qk_proj"))


class Muon:
    """Momentum, then an orthogonalised update (Newton-Schulz), batched over matrices of one shape."""

    def __init__(self, params, momentum=0.95, decay=0.02):
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.buf = {
            s: torch.zeros(sum(p.numel() for p in ps) // (s[0] * s[1]), *s, device=ps[0].device)
            for s, ps in self.groups.items()
        }
        self.momentum, self.decay = momentum, decay

    @torch.no_grad()
    def step(self, lr):
        for shape, ps in self.groups.items():
            g = torch.cat([p.grad.reshape(-1, *shape) for p in ps])
            m = self.buf[shape]
            m.lerp_(g, 1 - self.momentum)
            x = orthogonal(g.lerp(m, self.momentum)) * (0.2 * math.sqrt(max(shape)))
            i = 0
            for p in ps:
                n = p.numel() // (shape[0] * shape[1])
                p.mul_(1 - lr * self.decay).add_(x[i : i + n].view_as(p), alpha=-lr)
                i += n


def orthogonal(g):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.transpose(-1, -2)
        x = a * x + (b * s + c * s @ s) @ x
    return (x.transpose(-1, -2) if flip else x).float()


class Loader:
    def __init__(self, workers, seed, **kw):
        self.q = mp.get_context("spawn").Queue(maxsize=2 * workers)
        self.procs = [
            mp.get_context("spawn").Process(
                target=batches.worker,
                args=(str(export.HF / "tokenizer.json"), seed * 1000 + i, self.q, kw),
                daemon=True,
            )
            for i in range(workers)
        ]
        for p in self.procs:
            p.start()
        self.ready = q_.Queue(maxsize=6)
        threading.Thread(target=self.pump, daemon=True).start()

    def pump(self):
        while True:
            b = self.q.get()
            for k in ("ids", "w", "pos", "patches", "vis"):
                if b.get(k) is not None:
                    t = torch.from_numpy(b[k])
                    b[k] = t.pin_memory() if torch.cuda.is_available() else t
            self.ready.put(b)

    def next(self, device):
        b = self.ready.get()
        for k in ("ids", "w", "pos", "patches", "vis"):
            if b.get(k) is not None:
                b[k] = b[k].to(device, non_blocking=True)
        return b

    def stop(self):
        for p in self.procs:
            p.terminate()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--start")
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--steps", type=int, default=10**9)
    ap.add_argument("--lr0", type=float, default=1.0)
    ap.add_argument("--lr1", type=float, default=1.0)
    ap.add_argument("--muon", type=float, default=4e-3)
    ap.add_argument("--adam", type=float, default=3e-3)
    ap.add_argument("--warmup", type=int, default=100)
    ap.add_argument("--max-len", type=int, default=4096)
    ap.add_argument("--sparse", action="store_true")
    ap.add_argument("--sparse-after", type=int, default=0)
    ap.add_argument("--kl-rows", type=int, default=48)
    ap.add_argument("--draft-weight", type=float, default=0.3)
    ap.add_argument("--workers", type=int, default=13)
    ap.add_argument("--row-tokens", type=int, default=batches.ROW_TOKENS)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--profile", action="store_true")
    a = ap.parse_args()
    began = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(a.seed)
    cfg = load_config(export.HF / "config.json")
    loader = Loader(a.workers, a.seed, row_tokens=a.row_tokens, max_len=a.max_len)
    net = Model(cfg)
    if a.start:
        export.load_checkpoint(net, a.start)
    net.to(device)
    named = dict(net.named_parameters())
    mats = [p for n, p in named.items() if is_matrix(n, p)]
    rest = [p for n, p in named.items() if not is_matrix(n, p)]
    tables = [p for n, p in named.items() if not is_matrix(n, p) and ("embed" in n or "lm_head" in n)]
    small = [p for p in rest if all(p is not t for t in tables)]
    muon = Muon(mats)
    adam = torch.optim.Adam(
        [dict(params=tables, f=1.0), dict(params=small, f=0.7)],
        lr=1e-3,
        betas=(0.9, 0.97),
        eps=1e-10,
        fused=device == "cuda",
    )
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    log = open(out / "log.jsonl", "a")  # noqa: SIM115
    step, tokens, _seen, acc = 0, 0, time.time(), {}
    first = None
    while True:
        now = time.time()
        # the clock of the schedule starts after the first steps, which compile
        if step == 12:
            if device == "cuda":
                torch.cuda.synchronize()
            first = time.time()
            gc.collect()
            gc.freeze()
        frac = 0.0 if first is None else (time.time() - first) / max(1.0, a.seconds - (first - began))
        if now - began > a.seconds or step >= a.steps:
            break
        lr = (a.lr0 + (a.lr1 - a.lr0) * min(1.0, frac)) * min(1.0, (step + 1) / a.warmup)
        if a.profile and step == 40:
            prof = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
            )
            prof.__enter__()
        if a.profile and step == 46:
            torch.cuda.synchronize()
            prof.__exit__(None, None, None)
            print(
                prof.key_averages().table(sort_by="cuda_time_total", row_limit=45, max_name_column_width=60),
                flush=True,
            )
        t0 = time.time()
        b = loader.next(device)
        wait = time.time() - t0
        ids, w = b["ids"].long(), b["w"].float()
        o = net(
            ids,
            w,
            pos=b["pos"],
            patches=b.get("patches"),
            vis=b["vis"].long() if "vis" in b else None,
            grid=b["grid"],
            sparse=a.sparse and step >= a.sparse_after,
            kl_rows=a.kl_rows,
            dtype=dtype,
            draft_depth=2 if step % 2 else 1,
            merged_draft=step % 4 < 2,
        )
        total = o["loss"] + a.draft_weight * o["draft_loss"] + 0.01 * o["balance"] + 0.5 * o["kl"]
        total.backward()
        for p in net.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norm = torch.nn.utils.clip_grad_norm_(rest, 1.0)
        muon.step(a.muon * lr)
        for g in adam.param_groups:
            g["lr"] = a.adam * lr * g["f"]
        adam.step()
        net.zero_grad(set_to_none=True)
        step += 1
        tokens += ids.numel()
        kind = ("txt" if b["grid"] is None else "vid" if b["patches"].shape[-1] > 768 else "img") + str(
            b["T"]
        )
        rec = acc.setdefault(kind, [])
        rec.append((o["loss"].detach(), o["acc"], o["draft1"], o["kl"].detach(), norm))
        if step % 100 == 0 or step in (1, 5, 12, 30):
            line = dict(
                step=step,
                tokens=tokens,
                seconds=round(time.time() - began, 1),
                lr=lr,
                wait=round(wait, 3),
                tok_s=round(tokens / (time.time() - began)),
                recent_tok_s=None,
            )
            if first:
                line["recent_tok_s"] = round((tokens - 12 * ids.numel()) / (time.time() - first))
            for k, v in sorted(acc.items(), key=lambda x: (x[0][:3], int(x[0][3:]))):
                m = torch.tensor([[float(y) for y in x] for x in v]).mean(0).tolist()
                line[k] = [round(x, 4) for x in m] + [len(v)]
            allv = torch.tensor([[float(y) for y in x] for v in acc.values() for x in v]).mean(0).tolist()
            line["all"] = [round(x, 4) for x in allv]
            acc = {}
            log.write(json.dumps(line) + "\n")
            log.flush()
            print(
                json.dumps({k: line[k] for k in ("step", "seconds", "recent_tok_s", "wait", "lr", "all")}),
                flush=True,
            )
            assert np.isfinite(line["all"][0]), "the loss is not finite"
    print("last", json.dumps(line))
    loader.stop()
    # parameters in bf16 (the precision of the delivered file), in parts below 16 MiB
    part, size, k = {}, 0, 0
    for n, p in named.items():
        if size + p.numel() * 2 > 15 * 2**20:
            torch.save(part, out / f"params_{k}.pt")
            part, size, k = {}, 0, k + 1
        part[n] = p.detach().bfloat16().cpu().clone()
        size += p.numel() * 2
    torch.save(part, out / f"params_{k}.pt")
    print(
        "saved",
        k + 1,
        "parts; steps",
        step,
        "tokens",
        tokens,
        "seconds",
        round(time.time() - began, 1),
        flush=True,
    )


if __name__ == "__main__":
    main()
