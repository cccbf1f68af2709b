"""From a checkpoint folder, in the Hugging Face or the MLX layout, to one checked table of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flashnext.checkpoint.affine import Affine, parse_quantization
from flashnext.checkpoint.builder import Builder
from flashnext.checkpoint.config import ModelConfig
from flashnext.checkpoint.config_reader import parse_config
from flashnext.checkpoint.fields import Fields, shown
from flashnext.checkpoint.folder import find_file, need_file, open_folder, read_json
from flashnext.checkpoint.names import detect_layout, mtp_specs, text_specs, vision_specs
from flashnext.checkpoint.shards import open_shards
from flashnext.checkpoint.summary import Summary, summarize_parts
from flashnext.checkpoint.views import TensorView, read_floats, read_view
from flashnext.errors import CheckpointError


@dataclass(frozen=True)
class Checkpoint:
    """A validated checkpoint: every tensor that the config calls for is there, of the right shape and dtype.

    Attributes:
        path: The folder.
        config: The model's sizes; `n_mtp_layers` is 0 where the file lacks the draft head, `vision` None
            without tower.
        tensors: Canonical name -> view. A quantized module P has P.weight (U32), P.scales and P.biases.
        files: Real paths of the shards.
        zero_centred: Whether norms are stored as w (used as 1 + w); else the file holds 1 + w.
        layout: "hf" or "mlx".
        affine: Bits and group of each quantized module, by canonical module name.
        stop_tokens: Ids that end a reply.
        warnings: Sentences about what was left out or is unusual.
    """

    path: Path
    config: ModelConfig
    tensors: Mapping[str, TensorView]
    files: tuple[Path, ...]
    zero_centred: bool
    layout: str
    affine: Mapping[str, Affine]
    stop_tokens: tuple[int, ...]
    warnings: tuple[str, ...]

    def read(self, name: str) -> bytes:
        """Read the bytes of a tensor, gathered where it is strided; meant for small ones.

        Raises:
            CheckpointError: The file can no longer be read.
        """
        return read_view(self.files, self.tensors[name])

    def summary(self) -> Summary:
        """Sizes by part, and what a person wants to know before serving it."""
        c = self.config
        sizes = {name: view.nbytes for name, view in self.tensors.items()}
        dtypes = {name: view.dtype for name, view in self.tensors.items()}
        parts = summarize_parts(c, sizes, dtypes, self.affine)
        return Summary(
            path=str(self.path), layout=self.layout, files=len(self.files), size_bytes=sum(sizes.values()),
            values=sum(part.values for part in parts.values()), n_layers=c.n_layers,
            n_attention_layers=sum(c.attention_layers), hidden_size=c.hidden_size, vocab_size=c.vocab_size,
            n_experts=c.n_experts, top_k=c.top_k, context=c.default_context,
            largest_context=c.largest_context, rope_type=c.rope_type,
            norms="w" if self.zero_centred else "1 + w", draft_head=c.n_mtp_layers > 0,
            vision_tower=c.vision is not None, stop_tokens=self.stop_tokens, segment_token=c.segment_token,
            parts=parts, warnings=self.warnings,
        )  # fmt: skip


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint folder and check everything that can be known without reading the weights.

    Reads config.json, generation_config.json, the index, the shards' headers, and of the tensors only the
    n-gram constants and the norms that tell the norm convention.

    Raises:
        CheckpointError: One sentence that names file and tensor or field, what is expected and what was
            found.
    """
    folder = open_folder(path)
    config_path = need_file(folder, "config.json")
    raw = read_json(config_path)
    where = f"{folder / 'config.json'}: "
    config = parse_config(raw, where)
    quantization = parse_quantization(raw, where)
    shards = open_shards(folder)
    layout = detect_layout(shards.refs)
    builder = Builder(folder, shards, layout, quantization)
    builder.take(text_specs(config))
    warnings = list(shards.warnings)
    if config.n_mtp_layers and not builder.take_group(mtp_specs(config), "mtp."):
        config = dataclasses.replace(config, n_mtp_layers=0)
        warnings.append(
            f"{folder} has no draft head (mtp.* tensors), although config.json names one; drafts are off"
        )
    if config.vision is not None and not builder.take_group(vision_specs(config), "visual."):
        config = dataclasses.replace(config, vision=None)
        warnings.append(f"{folder} has no vision tower, although config.json names one; images are refused")
    builder.refuse_leftovers()
    warnings += builder.check_overrides()
    _check_tables(config, builder, shards.files, folder)
    return Checkpoint(
        path=folder,
        config=config,
        tensors=builder.tensors,
        files=shards.files,
        zero_centred=_zero_centred(config, builder.tensors, shards.files, folder, layout),
        layout=layout,
        affine=builder.affine,
        stop_tokens=_stop_tokens(folder, config),
        warnings=tuple(warnings),
    )


def _check_tables(config: ModelConfig, builder: Builder, files: tuple[Path, ...], folder: Path) -> None:
    """Check each n-gram table: constants against the config, one storage for all shards, the row scale."""
    tensors = builder.tensors
    for module, layer in enumerate(config.ple_layers):
        at = f"layers.{layer}.ple.ple_embedding."
        expected = {
            "layer_multipliers": config.ngram_multipliers[module],
            "ngram_heads_vocab_sizes": config.ngram_sizes[module],
            "ngram_heads_offsets": config.ngram_offsets[module],
        }
        for name, values in expected.items():
            if at + name in tensors:
                found = np.frombuffer(read_view(files, tensors[at + name]), "<i8").tolist()
                if found != list(values):
                    raise CheckpointError(
                        f"{folder}: tensor {at}{name} holds {shown(found)}, but config.json gives "
                        f"{shown(list(values))}"
                    )
        shards = [f"{at}ngram_embedding.shard_{s}" for s in range(config.ngram_shards)]
        stored = [str(builder.affine.get(shard) or tensors[shard + ".weight"].dtype) for shard in shards]
        for shard, found in zip(shards, stored, strict=True):
            if found != stored[0]:
                raise CheckpointError(
                    f"{folder}: {shard} is stored as {found}, but {shards[0]} as {stored[0]}; the shards of "
                    "a table must be alike"
                )
        scale = at + "ngram_embedding.weight_scale"
        if scale in tensors:
            value = read_floats(files, tensors[scale])
            if not np.isfinite(value).all():
                raise CheckpointError(f"{folder}: tensor {scale} is {value.item()}, expected a finite number")


def _zero_centred(
    config: ModelConfig, tensors: Mapping[str, TensorView], files: tuple[Path, ...], folder: Path, layout: str
) -> bool:
    """Whether norms are stored as w or as 1 + w, told by the means of the layers' hc_norm weights.

    Converters to MLX differ. The Hugging Face layout is w by definition: only a clear verdict counts there.
    """
    names = [f"layers.{i}.attn_hyper_connection.hc_norm.weight" for i in range(config.n_layers)]
    means = np.array([read_floats(files, tensors[name]).astype(np.float64).mean() for name in names])
    median = float(np.median(means))
    above = int((means > 0.5).sum())
    if 2 * above > len(means) and 0.75 <= median <= 1.5:
        return False
    if layout == "hf" or (2 * above < len(means) and -0.5 <= median <= 0.25):
        return True
    raise CheckpointError(
        f"{folder}: the norms fit neither convention: the means of attn_hyper_connection.hc_norm have the "
        f"median {median:.3f}, expected about 0 (stored as w) or about 1 (stored as 1 + w)"
    )


def _stop_tokens(folder: Path, config: ModelConfig) -> tuple[int, ...]:
    """Read the eos ids of generation_config.json; without them those of the text model count."""
    path = find_file(folder, "generation_config.json")
    if path is None:
        return config.text_eos
    fields = Fields(read_json(path), f"{folder / 'generation_config.json'}: ")
    if "eos_token_id" not in fields:
        return config.text_eos
    if isinstance(fields.values["eos_token_id"], list):
        ids = fields.integers("eos_token_id", 0, config.vocab_size - 1, 64)
        return tuple(dict.fromkeys(ids)) or fields.refuse(
            "eos_token_id", "a token id or a list of at least one"
        )
    return (fields.integer("eos_token_id", 0, config.vocab_size - 1),)
