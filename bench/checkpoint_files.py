"""Lazy reads of a checkpoint folder of either layout: the converter's and the byte counter's view of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

NGRAM_SHARD = ".ple_embedding.ngram_embedding.shard_"
DRAFT_HEAD = ("mtp.", "language_model.mtp.")


class Checkpoint:
    """Names, shapes and values of an indexed safetensors folder; nothing is read before it is asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config: dict[str, Any] = json.loads((root / "config.json").read_text())
        self.where: dict[str, str] = json.loads((root / "model.safetensors.index.json").read_text())[
            "weight_map"
        ]
        self._headers = {f: _header(root / f) for f in set(self.where.values())}

    @property
    def text_config(self) -> dict[str, Any]:
        """The text model's part of config.json."""
        text: dict[str, Any] = self.config["text_config"]
        return text

    @property
    def bits(self) -> int | None:
        """Bits of the MLX affine layout, or None for the Hugging Face layout."""
        quantization = self.config.get("quantization")
        return None if quantization is None else int(quantization["bits"])

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape of a tensor."""
        return tuple(self._headers[self.where[name]][name]["shape"])

    def size_bytes(self, name: str) -> int:
        """Stored bytes of a tensor."""
        start, end = self._headers[self.where[name]][name]["data_offsets"]
        return int(end - start)

    def bytes_per_token(self) -> float:
        """Weight bytes that one decoded token reads.

        All of a matrix, the chosen experts' share of a stack of experts, one row of the embedding, and the
        n-gram rows of one token. The draft head is left out: decoding without drafts does not touch it.
        """
        return sum(self.size_bytes(name) * self._share(name) for name in self.where)

    def flops_per_prompt_row(self) -> float:
        """Multiplications and additions of one prompt row's matrix products, the head left out.

        Only the last row of a prompt goes through the head. Attention, the recurrence and everything of
        single vectors are not counted, so a share of the matrix peak is what the products alone leave of it.
        """
        total = 0.0
        for name in self.where:
            if "embed_tokens" in name or NGRAM_SHARD in name or "lm_head." in name or "conv1d" in name:
                continue
            if name.endswith(".scales"):
                n = math.prod(self.shape(name)) * int(self.config["quantization"]["group_size"])
            elif name.endswith(".biases") or f"{name.removesuffix('.weight')}.scales" in self.where:
                continue
            else:
                n = math.prod(self.shape(name)) if len(self.shape(name)) > 1 else 0
            total += 2 * n * self._share(name)
        return total

    def _share(self, name: str) -> float:
        """The part of a tensor that one token needs."""
        text = self.text_config
        if name.startswith(DRAFT_HEAD):
            return 0.0
        if ".experts." in name or ".switch_mlp." in name:
            return float(text["num_experts_per_tok"] / text["num_experts"])
        if "embed_tokens" in name:
            return 1 / self.shape(name)[0]
        if NGRAM_SHARD in name:
            heads = text["heads_per_ngram"] * (text["ngram_size"] - 1)
            return float(heads / (self.shape(name)[0] * text["split_ngram_parts"]))
        return 1.0


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return header
