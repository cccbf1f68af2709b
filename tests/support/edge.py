"""`edge`: a random checkpoint of a few small layers and a window of 262,144, for cases at the end of it.

It is written in a second and reads some ten thousand tokens a second. It has a tokenizer and a chat template,
so that the engine opens it; its vocabulary is bytes and control tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashnext.checkpoint.writer import write_json
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from support.random_checkpoint import write_random

WINDOW = 262_144
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
END = 256  # the first of them; generation_config.json ends replies at it and at <|im_end|>
TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"
)
# One attention layer and one linear layer. Blocks of 16 and two index heads: the scores of all blocks, for
# every row, are what makes a long prompt long.
SIZES: Mapping[str, Any] = {
    "vocab_size": END + len(SPECIALS), "layer_types": ["linear_attention", "full_attention"],
    "num_hidden_layers": 2, "ple_layer_ids": [1], "max_position_embeddings": WINDOW,
    "indexer_n_heads": 2, "indexer_budget": 256, "indexer_compress_ratio": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "eos_token_id": END, "bos_token_id": END,
}  # fmt: skip


def write_edge(folder: Path, seed: int = 1) -> Path:
    """Write the checkpoint; returns its folder.

    Args:
        folder: Made if missing.
        seed: Of the weights.
    """
    write_random(folder, SIZES, seed)
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(s, normalized=False, special=s.startswith("<|")) for s in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    )
    write_json(folder / "generation_config.json", {"eos_token_id": [END, END + 2]})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
