"""Held-out exact match per task with the training model.

    python quick_eval.py CKPT_DIR OUT.json [samples a task]

A reply counts as right when every one of its tokens is the greedy choice given the true past; greedy decoding
then produces exactly this reply.  Draft acceptance is the share of reply positions where the draft head, one
step ahead, names the token that the main model then chooses.
"""

import collections
import json
import pathlib
import random
import sys

import batches
import export
import model
import numpy as np
import pieces
import tasks
import torch
from tokenizers import Tokenizer


def held_out(per_task, seed=99, max_tokens=4096, encoder=None, table=None):
    r = random.Random(seed)
    got = collections.defaultdict(list)
    misses = 0
    while misses < 60000:
        s = tasks.draw(r, table or tasks.TASKS)
        if (s.closed or s.is_test()) and len(got[s.task]) < per_task:
            grid = (
                r.choices([g for g, _ in batches.GRIDS], [w for _, w in batches.GRIDS])[0]
                if s.media
                else None
            )
            got[s.task].append((s, grid))
            misses = 0
        else:
            misses += 1
    return got


def main(ckpt, out, per_task=100):
    pieces.COMPILE = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    cfg = model.load_config(export.HF / "config.json")
    net = model.Model(cfg)
    export.load_checkpoint(net, ckpt)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(p.bfloat16().float())
    net.to(device).eval()
    enc = batches.Encoder(Tokenizer.from_file(str(export.HF / "tokenizer.json")))
    maker = batches.BatchMaker(enc.tok, 0)
    groups = collections.defaultdict(list)
    for _task, items in held_out(per_task).items():
        for s, grid in items:
            ids, w = enc.encode(s, grid)
            last = len(w) - 1
            while last > 0 and w[last] < 0.9:
                last -= 1
            first = last
            while first > 0 and w[first - 1] > 0.9:
                first -= 1
            t = next((b for b in batches.BUCKETS if b >= len(ids)), None)
            if t:
                groups[t, (s.media[0]["kind"], grid) if s.media else None].append((ids, w, s, first, last))
    stat = collections.defaultdict(lambda: [0, 0, 0, 0])
    bad = collections.defaultdict(list)
    for (t, kind), rows in sorted(groups.items(), key=str):
        step = max(1, 65536 // t) if device == "cuda" else max(1, 4096 // t)
        for i in range(0, len(rows), step):
            part = rows[i : i + step]
            b = maker.build(t, kind, [(x, w, s) for x, w, s, _, _ in part], len(part))
            tt = {
                k: torch.from_numpy(b[k]).to(device)
                for k in ("ids", "pos", "patches", "vis")
                if b.get(k) is not None
            }
            main_, draft = model.predict(
                net,
                tt["ids"].long(),
                tt.get("pos"),
                tt.get("patches"),
                tt["vis"].long() if "vis" in tt else None,
                b["grid"],
                dtype,
            )
            main_, draft = main_.cpu().numpy(), draft.cpu().numpy()
            for j, (x, _, s, first, last) in enumerate(part):
                want = np.array(x[first : last + 1])
                have = main_[j, first - 1 : last]
                st = stat[s.task]
                st[0] += 1
                st[1] += bool((want == have).all())
                # row k of the draft head names token k + 2; the main model names it in row k + 1
                a = draft[j, first - 1 : last - 1] == main_[j, first:last]
                st[2] += int(a.sum())
                st[3] += len(a)
                if not (want == have).all() and len(bad[s.task]) < 4:
                    bad[s.task].append(
                        [
                            str(s.messages[-2]["content"])[-200:],
                            enc.tok.decode(want.tolist(), skip_special_tokens=False),
                            enc.tok.decode(have.tolist(), skip_special_tokens=False),
                        ]
                    )
    table = {
        k: dict(n=v[0], exact=round(v[1] / v[0], 3), draft=round(v[2] / max(1, v[3]), 3))
        for k, v in sorted(stat.items())
    }
    pathlib.Path(out).write_text(json.dumps(dict(table=table, bad=bad), indent=1))
    print(json.dumps(table))
    tot = [sum(v[i] for v in stat.values()) for i in range(4)]
    print("exact", tot[1] / tot[0], "draft", tot[2] / tot[3])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 100)
