"""Checks of the training code against transformers on the CPU: python check_parity.py [HF_DIR]

1. chat.py renders exactly what chat_template.jinja renders, and the segments tokenize as the whole does;
2. the training model's logits equal those of transformers for text (below and beyond the selection budget),
   pictures and videos.  Without HF_DIR a random checkpoint is written to a temporary folder first.
"""

import random
import sys
import tempfile

import batches
import chat
import export
import model
import numpy as np
import pictures
import tasks
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen4ExpForConditionalGeneration


def placeholder(m):
    return (
        "<|vision_start|><|image_pad|><|vision_end|>"
        if m["kind"] == "image"
        else "<|vision_start|><|video_pad|><|vision_end|>"
    )


def check_template(folder, count=500):
    tok = AutoTokenizer.from_pretrained(folder)
    r = random.Random(5)
    for _ in range(count):
        s = tasks.draw(r)
        segs = [t for t, _ in chat.render(s.messages, s.tools, [placeholder(m) for m in s.media])]
        whole = tok.apply_chat_template(s.messages, tools=s.tools, tokenize=False)
        assert whole == "".join(segs), s
        assert tok(whole, add_special_tokens=False)["input_ids"] == [
            i for t in segs for i in tok(t, add_special_tokens=False)["input_ids"]
        ]
        prompt = tok.apply_chat_template(
            s.messages[:-1],
            tools=s.tools,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=s.thinking,
        )
        assert whole.startswith(prompt), (whole, prompt)
    print("template: ok,", count, "chats")


@torch.no_grad()
def check_logits(folder, net):
    hf = Qwen4ExpForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    enc = batches.Encoder(Tokenizer.from_file(f"{folder}/tokenizer.json"))
    maker = batches.BatchMaker(enc.tok, 0)
    r = random.Random(1)
    for f in (
        tasks.t_json,
        tasks.t_tool,
        lambda r: tasks.t_needle(r, 700),
        tasks.t_image,
        tasks.t_image_chat,
        tasks.t_video,
        tasks.t_video,
    ):
        s = f(r)
        grid = (6, 8) if s.media else None
        ids, w = enc.encode(s, grid, outer=True)
        t = -(-len(ids) // 64) * 64
        b = maker.build(t, (s.media[0]["kind"], grid) if s.media else None, [(ids, w, s)], 1)
        b = {
            k: torch.from_numpy(b[k]).long() if k != "patches" else torch.from_numpy(b[k])
            for k in ("ids", "pos", "patches", "vis")
            if b.get(k) is not None
        }
        ctx = net.context(b["ids"], b.get("pos"), None, True, 0, torch.float32)
        x, _ = net.embed(b["ids"], b.get("patches"), b.get("vis"), grid, torch.float32)
        y, _ = net.model.language_model.hyper_connection_mixer.read(net.trunk(x, ctx))
        mine = (y @ net.lm_head.weight.t())[: len(ids)]
        ids = torch.tensor([ids])
        kw = {}
        if s.media:
            frames = [pictures.media_arrays(i, grid) for i in s.media]
            px = torch.from_numpy(pictures.normalise(np.concatenate([pictures.patchify(x) for x in frames])))
            thw = torch.tensor([[len(x) // 2, *grid] for x in frames])
            kw = (
                dict(pixel_values=px, image_grid_thw=thw)
                if s.media[0]["kind"] == "image"
                else dict(pixel_values_videos=px, video_grid_thw=thw)
            )
            kw["mm_token_type_ids"] = (ids == enc.image).int() + 2 * (ids == enc.video).int()
        hf.model.rope_deltas = None
        ref = hf(input_ids=ids, **kw).logits[0]
        err = (mine - ref).abs().max().item()
        print(
            f"{s.task}: {ids.shape[1]} tokens, largest difference {err:.1e} (logits up to "
            f"{ref.abs().max():.1f})"
        )
        assert err < (2e-3 if ids.shape[1] < 256 else 5e-2), (
            "beyond the budget only near ties of block scores may differ"
        )


if __name__ == "__main__":
    cfg = model.load_config(export.HF / "config.json")
    net = model.Model(cfg)
    if len(sys.argv) > 1:
        state = {
            k: v.float() if v.is_floating_point() else v for k, v in export.read_tensors(sys.argv[1]).items()
        }
        base = next(k for k in state if ".ngram_embedding.shard_0." in k).split("shard_0")[0]
        parts = sorted(
            (k for k in state if k.startswith(base + "shard_")),
            key=lambda k: int(k.split("shard_")[1].split(".")[0]),
        )
        state[base + "weight"] = torch.cat([state.pop(k) for k in parts])
        net.load_state_dict(state)
        folder = sys.argv[1]
    else:
        folder = tempfile.mkdtemp()
        export.write(net, folder, cfg)
    check_template(folder)
    check_logits(folder, net.eval())
