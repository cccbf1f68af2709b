"""Writes a trained model as a Hugging Face checkpoint: python export.py CKPT_DIR_OR_NONE OUT_DIR"""

from __future__ import annotations

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

# the exported checkpoint; its config, tokenizer and template are the source
HF = pathlib.Path(__file__).parent.parent / "hf"
SHARD_BYTES = 15_500_000


def hf_tensors(model, dtype=torch.bfloat16, shards=4):
    out = {}
    for k, v in model.state_dict().items():
        if k.endswith("ngram_embedding.weight"):
            base = k[: -len("weight")]
            for i, part in enumerate(v.chunk(shards)):
                out[f"{base}shard_{i}.weight"] = part.to(dtype).clone().contiguous()
        elif v.dtype == torch.long:
            out[k] = v.clone()
        else:
            out[k] = v.detach().to(dtype).clone().contiguous()
    return out


GENERATION = {
    "bos_token_id": 2547,
    "pad_token_id": 2547,
    "eos_token_id": [2549, 2547],
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
}
IMAGE = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen3VLProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 4096, "longest_edge": 25600},
}
VIDEO = {
    "video_processor_type": "Qwen3VLVideoProcessor",
    "processor_class": "Qwen3VLProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "fps": 2,
    "min_frames": 2,
    "max_frames": 16,
    "do_sample_frames": True,
    "size": {"shortest_edge": 4096, "longest_edge": 204800},
}


def write(model, out, config):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)

    def dump(name, obj):
        (out / name).write_text(json.dumps(obj, indent=2) + "\n")

    shards, size = [{}], 0
    for name, x in hf_tensors(model, shards=config["text_config"]["split_ngram_parts"]).items():
        if size + x.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = x
        size += x.nbytes
    where = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(shard, str(out / file), metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file)
    total = sum(x.nbytes for shard in shards for x in shard.values())
    dump(
        "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))},
    )
    dump("config.json", config)
    dump("generation_config.json", GENERATION)
    dump("preprocessor_config.json", IMAGE)
    dump("video_preprocessor_config.json", VIDEO)
    tok = json.loads((HF / "tokenizer.json").read_text())
    dump(
        "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "processor_class": "Qwen3VLProcessor",
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {
                str(t["id"]): {
                    "content": t["content"],
                    "lstrip": False,
                    "normalized": False,
                    "rstrip": False,
                    "single_word": False,
                    "special": t["special"],
                }
                for t in tok["added_tokens"]
            },
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
            "errors": "replace",
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": False,
            "model_max_length": 8192,
        },
    )
    if out.resolve() != HF.resolve():
        shutil.copy(HF / "tokenizer.json", out / "tokenizer.json")
        shutil.copy(HF / "chat_template.jinja", out / "chat_template.jinja")


def read_tensors(folder):
    """All tensors of an exported checkpoint."""
    return {
        k: v for p in sorted(pathlib.Path(folder).glob("*.safetensors")) for k, v in load_file(str(p)).items()
    }


def load_checkpoint(model, folder):
    """Reads the parts that train.py wrote (params_*.pt)."""
    state = {}
    for p in sorted(pathlib.Path(folder).glob("params_*.pt")):
        state.update(torch.load(p, map_location="cpu", weights_only=True))
    missing, extra = model.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in state.items()}, strict=False
    )
    assert not extra and all("ple_embedding" in m for m in missing), (missing, extra)


if __name__ == "__main__":
    from model import Model, load_config

    cfg = load_config(HF / "config.json")
    net = Model(cfg)
    if sys.argv[1] != "none":
        load_checkpoint(net, sys.argv[1])
    write(net, sys.argv[2], cfg)
    print("parameters", sum(p.numel() for p in net.parameters()))
