"""Scores an exported checkpoint with transformers' own model on the CPU (float32, greedy, cached decoding).

    python evaluate.py HF_DIR OUT.json [--per-task 20] [--part 0/2]

For every task: exact match of the whole generated reply on held-out prompts, and the draft head's acceptance
one step ahead (the share of reply positions at which the draft head, fed with the streams of transformers'
model, names the token that the model chooses next).  The draft head itself is ours (transformers has none).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time

import batches
import export
import model as ours
import numpy as np
import pictures
import quick_eval
import torch
from tokenizers import Tokenizer

IM_END = 2549


class Judge:
    def __init__(self, folder, threads=1):
        from transformers import Qwen4ExpForConditionalGeneration

        torch.set_num_threads(threads)
        self.hf = Qwen4ExpForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.enc = batches.Encoder(Tokenizer.from_file(f"{folder}/tokenizer.json"))
        self.net = ours.Model(ours.load_config(f"{folder}/config.json"))
        own = {k[4:]: v.float() for k, v in export.read_tensors(folder).items() if k.startswith("mtp.")}
        missing, extra = self.net.mtp.load_state_dict(own, strict=True)
        assert not missing and not extra
        self.net.eval()

    def media_inputs(self, media, grid):
        """Keyword arguments of the transformers model for pictures or a video (all at one patch grid)."""
        if not media:
            return {}
        frames = [pictures.media_arrays(m, grid) for m in media]
        px = torch.from_numpy(pictures.normalise(np.concatenate([pictures.patchify(x) for x in frames])))
        thw = torch.tensor([[len(x) // 2, *grid] for x in frames])
        return (
            dict(pixel_values=px, image_grid_thw=thw)
            if media[0]["kind"] == "image"
            else dict(pixel_values_videos=px, video_grid_thw=thw)
        )

    @torch.no_grad()
    def generate(self, prompt, media, limit):
        """-> (token ids with the end token, smallest gap between the best two logits)."""
        ids = torch.tensor([prompt])
        kw = dict(media)
        if media:
            kw["mm_token_type_ids"] = (ids == self.enc.image).int() + 2 * (ids == self.enc.video).int()
        self.hf.model.rope_deltas = None
        o = self.hf.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=limit,
            eos_token_id=[IM_END, self.enc.eos],
            pad_token_id=self.enc.eos,
            temperature=None,
            top_k=None,
            top_p=None,
            output_logits=True,
            return_dict_in_generate=True,
            **kw,
        )
        gaps = [float(t[0, 0] - t[0, 1]) for t in (x.topk(2, -1).values for x in o.logits)]
        return o.sequences[0, len(prompt) :].tolist(), min(gaps)

    @torch.no_grad()
    def drafts(self, ids, start, media, grid):
        """Depth 1 drafts over the reply ids[start:], and how many equal the model's own choice.

        Row i of the draft head (i from start - 1) names token i + 2, which the model chooses in its
        row i + 1."""
        kw = dict(media)
        x = torch.tensor([ids])
        if media:
            kw["mm_token_type_ids"] = (x == self.enc.image).int() + 2 * (x == self.enc.video).int()
        keep = {}
        lm = self.hf.model.language_model
        hook = lm.layers[-1].register_forward_hook(lambda m, i, o: keep.update(h=o))
        self.hf.model.rope_deltas = None
        best = self.hf(input_ids=x, **kw).logits[0].argmax(-1)
        hook.remove()
        n = len(ids)
        t = -(-n // 64) * 64
        pad = torch.full((1, t), self.enc.eos)
        pad[0, :n] = x[0]
        pos = None
        if media:
            pos = torch.arange(t).expand(3, 1, -1).clone()
            pos[:, 0, :n] = torch.from_numpy(self.enc.positions(ids, grid)).long()
        ctx = self.net.context(pad, pos, None, True, 0, torch.float32)
        h = torch.zeros(t, 4, 256)
        h[:n] = keep["h"][0].view(n, 4, 256)
        e = torch.zeros(t, 256)
        e[:n] = lm.embed_tokens.weight[x[0]]
        _, y = self.net.mtp(h, torch.cat((e[1:], e[:1])), ctx)
        draft = torch.nn.functional.linear(y[:n], self.hf.lm_head.weight).argmax(-1)
        draft = draft[start - 1 : n - 2]
        return draft.tolist(), int((draft == best[start : n - 1]).sum())


def reply_span(w):
    last = len(w) - 1
    while last > 0 and w[last] < 0.9:
        last -= 1
    first = last
    while first > 0 and w[first - 1] > 0.9:
        first -= 1
    return first, last + 1


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("folder")
    ap.add_argument("out")
    ap.add_argument("--per-task", type=int, default=20)
    ap.add_argument("--part", default="0/1")
    ap.add_argument("--seed", type=int, default=4321)
    a = ap.parse_args()
    part, parts = map(int, a.part.split("/"))
    judge = Judge(a.folder)
    table, bad = {}, []
    began = time.time()
    for task, items in sorted(quick_eval.held_out(a.per_task, seed=a.seed).items()):
        st = table.setdefault(task, dict(n=0, exact=0, draft_hits=0, draft_rows=0))
        for s, grid in items[part::parts]:
            ids, w = judge.enc.encode(s, grid, outer=True)
            first, last = reply_span(w)
            media = judge.media_inputs(s.media, grid)
            want = ids[first:last]
            got, _ = judge.generate(ids[:first], media, len(want) + 16)
            drafts, hits = judge.drafts(ids[:first] + got, first, media, grid)
            st["n"] += 1
            st["exact"] += got == want
            st["draft_hits"] += hits
            st["draft_rows"] += len(drafts)
            if got != want:
                bad.append(
                    [
                        task,
                        str(s.messages[-2]["content"])[-160:],
                        judge.enc.tok.decode(want, skip_special_tokens=False),
                        judge.enc.tok.decode(got, skip_special_tokens=False),
                    ]
                )
        print(task, st, round(time.time() - began), flush=True)
        pathlib.Path(a.out).write_text(json.dumps(dict(table=table, bad=bad), indent=1))


if __name__ == "__main__":
    main()
