"""From a checkpoint folder, in the Hugging Face or the MLX layout, to one validated table of canonical tensors."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flashnext.checkpoint.affine import Affine, Quantization, derive_affine, parse_quantization
from flashnext.checkpoint.config import ModelConfig
from flashnext.checkpoint.config_reader import parse_config
from flashnext.checkpoint.fields import Fields, shown
from flashnext.checkpoint.folder import find_file, need_file, open_folder, read_json
from flashnext.checkpoint.names import (
    Kind,
    TensorSpec,
    canonical_name,
    detect_layout,
    mtp_specs,
    text_specs,
    vision_specs,
)
from flashnext.checkpoint.safetensors import TensorRef, tensor_bytes
from flashnext.checkpoint.shards import Shards, open_shards
from flashnext.checkpoint.summary import Summary, summarize_parts
from flashnext.errors import CheckpointError

_FLOATS = ("BF16", "F32")


@dataclass(frozen=True)
class TensorView:
    """Where the bytes of one canonical tensor lie; nothing is read or mapped.

    Attributes:
        file: Index into `Checkpoint.files`.
        offset: First byte in that file.
        dtype: "BF16", "F32", "U32" or "I64".
        shape: Elements along each axis; that of the words for a quantized `weight`.
        batch_stride: Bytes between entries of the first axis, or 0 where the tensor is dense.
    """

    file: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    batch_stride: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements, without what lies between them."""
        return tensor_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class Checkpoint:
    """A validated checkpoint: every tensor that the config calls for is there, of the right shape and dtype.

    Attributes:
        path: The folder.
        config: The model's sizes; `n_mtp_layers` is 0 where the file lacks the draft head, `vision` None without tower.
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
        """The bytes of a tensor, gathered where it is strided; meant for small ones.

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
            n_experts=c.n_experts, top_k=c.top_k, context=c.default_context, largest_context=c.largest_context,
            rope_type=c.rope_type, norms="w" if self.zero_centred else "1 + w", draft_head=c.n_mtp_layers > 0,
            vision_tower=c.vision is not None, stop_tokens=self.stop_tokens, segment_token=c.segment_token, parts=parts,
            warnings=self.warnings,
        )  # fmt: skip


def read_view(files: tuple[Path, ...], view: TensorView) -> bytes:
    """The bytes of `view`, gathered into one piece.

    Raises:
        CheckpointError: The file cannot be read or has become shorter.
    """
    count = view.shape[0] if view.batch_stride else 1
    size = view.nbytes // max(count, 1)
    path = files[view.file]
    try:
        with path.open("rb", buffering=0) as file:
            parts = []
            for i in range(count):
                at, left = view.offset + i * view.batch_stride, size
                while left:
                    part = os.pread(file.fileno(), left, at)
                    if not part:
                        raise CheckpointError(f"{path} ends at byte {at} inside a tensor; fetch it again")
                    parts.append(part)
                    at, left = at + len(part), left - len(part)
            return b"".join(parts)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint folder and check everything that can be known without reading the weights.

    Reads config.json, generation_config.json, the index, the shards' headers, and of the tensors only the n-gram constants
    and the norms that tell the norm convention.

    Raises:
        CheckpointError: One sentence that names file and tensor or field, what is expected and what was found.
    """
    folder = open_folder(path)
    config_path = need_file(folder, "config.json")
    raw = read_json(config_path)
    where = f"{folder / 'config.json'}: "
    config = parse_config(raw, where)
    quantization = parse_quantization(raw, where)
    shards = open_shards(folder)
    layout = detect_layout(shards.refs)
    builder = _Builder(folder, shards, layout, quantization)
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
    _check_constants(config, builder.tensors, shards.files, folder)
    return Checkpoint(
        path=folder,
        config=config,
        tensors=builder.tensors,
        files=shards.files,
        zero_centred=layout == "hf" or _zero_centred(config, builder.tensors, shards.files, folder),
        layout=layout,
        affine=builder.affine,
        stop_tokens=_stop_tokens(folder, config),
        warnings=tuple(warnings),
    )


class _Builder:
    """Takes expected tensors out of the files' tensors one group at a time; what is left over is unknown."""

    def __init__(self, folder: Path, shards: Shards, layout: str, quantization: Quantization | None) -> None:
        self.folder = folder
        self.quantization = quantization
        self.file_index = {path: i for i, path in enumerate(shards.files)}
        self.tensors: dict[str, TensorView] = {}
        self.affine: dict[str, Affine] = {}
        self.left: dict[str, TensorRef] = {}
        self.fused: dict[str, TensorRef] = {}
        self.plain_modules: set[str] = set()
        for ref in shards.refs.values():
            self._refuse_foreign(ref)
            name = canonical_name(ref.name, layout)
            if name is None:
                raise CheckpointError(f"{self._at(ref)} is not a tensor of this model")
            if name in self.left:
                raise CheckpointError(
                    f"{self._at(ref)} is a second spelling of {shown(self.left[name].name)}"
                )
            self.left[name] = ref

    def _at(self, ref: TensorRef) -> str:
        return f"{ref.path}: tensor {shown(ref.name, 200)}"

    def _refuse_foreign(self, ref: TensorRef) -> None:
        if ref.dtype.startswith(("F8", "F6", "F4")) or ref.name.endswith(
            ("weight_scale_inv", "shard.weight_scale")
        ):
            raise CheckpointError(
                f"{self._at(ref)} belongs to a quantization that flashnext does not support (found {ref.dtype}); use the bf16 "
                "checkpoint or an MLX affine one"
            )
        if ref.dtype == "F16":
            raise CheckpointError(
                f"{self._at(ref)} is F16, which flashnext does not support; use a bf16 checkpoint"
            )

    def take_group(self, specs: Iterable[TensorSpec], prefix: str) -> bool:
        """Like `take`, unless there is no tensor with `prefix` at all; says whether there was."""
        if not any(name.startswith(prefix) for name in self.left):
            return False
        self.take(specs)
        return True

    def take(self, specs: Iterable[TensorSpec]) -> None:
        """Move expected tensors into the table, checked."""
        missing = [spec.name for spec in specs if not self._take_one(spec)]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise CheckpointError(
                f"{self.folder} misses tensor {missing[0]}{more}, which config.json calls for"
            )

    def _take_one(self, spec: TensorSpec) -> bool:
        if spec.kind is Kind.MATRIX:
            return self._take_matrix(spec)
        ref = self.left.pop(spec.name, None)
        if ref is None:
            return spec.kind in (Kind.SCALE, Kind.CONSTANT)
        allowed = ("I64",) if spec.kind is Kind.CONSTANT else _FLOATS
        shapes = _file_shapes(spec)
        self._check(ref, allowed, shapes)
        shape = ref.shape if spec.kind is Kind.PATCH else spec.shape
        self.tensors[spec.name] = self._view(ref, shape)
        return True

    def _take_matrix(self, spec: TensorSpec) -> bool:
        module = spec.name.removesuffix(".weight")
        scales, biases = self.left.pop(module + ".scales", None), self.left.pop(module + ".biases", None)
        if scales is None and biases is None:
            return self._take_plain(spec, module)
        ref = self.left.pop(spec.name, None)
        if ref is None or scales is None or biases is None:
            parts = {"weight": ref, "scales": scales, "biases": biases}
            raise CheckpointError(
                f"{self.folder}: quantized module {module} needs weight, scales and biases, but misses "
                f"{' and '.join(part for part, found in parts.items() if found is None)}"
            )
        for part, dtypes in ((ref, ("U32",)), (scales, ("BF16",)), (biases, ("BF16",))):
            self._check(part, dtypes, None)
        affine = derive_affine(self._at(ref), spec.shape, ref.shape, scales.shape, biases.shape)
        self._check_quantization(ref, module, affine)
        self.affine[module] = affine
        for name, part in ((spec.name, ref), (module + ".scales", scales), (module + ".biases", biases)):
            self.tensors[name] = self._view(part, part.shape)
        return True

    def _take_plain(self, spec: TensorSpec, module: str) -> bool:
        self.plain_modules.add(module)
        if self.quantization is not None and self.quantization.modules.get(module) is not None:
            raise CheckpointError(
                f"{self.folder}: config.json quantizes module {module} ({self.quantization.modules[module]}), but the module "
                "has no scales"
            )
        head, _, part = module.rpartition(".")
        ref = None
        if part in ("gate_proj", "up_proj") and head.endswith(".mlp.experts"):
            ref = self._fused(head, spec)
            if ref is not None:
                n, width, d = spec.shape
                offset = ref.offset + (width * d * 2 if part == "up_proj" else 0)
                self.tensors[spec.name] = TensorView(
                    self.file_index[ref.path], offset, ref.dtype, spec.shape, 2 * width * d * 2
                )
                return True
        ref = self.left.pop(spec.name, None)
        if ref is None:
            return False
        self._check(ref, ("BF16",), (spec.shape,))
        self.tensors[spec.name] = self._view(ref, spec.shape)
        return True

    def _fused(self, experts: str, spec: TensorSpec) -> TensorRef | None:
        """The tensor that holds gate and up one after the other for each expert, where the file has it."""
        name = experts + ".gate_up_proj.weight"
        ref = self.left.pop(name, None)
        if ref is not None:
            n, width, d = spec.shape
            self._check(ref, ("BF16",), ((n, 2 * width, d),))
            self.fused[name] = ref
        return self.fused.get(name)

    def _check(
        self, ref: TensorRef, dtypes: tuple[str, ...], shapes: tuple[tuple[int, ...], ...] | None
    ) -> None:
        if ref.dtype not in dtypes:
            raise CheckpointError(f"{self._at(ref)} must be {' or '.join(dtypes)}, found {ref.dtype}")
        if shapes is not None and ref.shape not in shapes:
            raise CheckpointError(
                f"{self._at(ref)} must have shape {' or '.join(str(list(s)) for s in shapes)}, found {shown(list(ref.shape))}"
            )

    def _check_quantization(self, ref: TensorRef, module: str, affine: Affine) -> None:
        if self.quantization is None:
            raise CheckpointError(
                f"{self._at(ref)} is quantized, but config.json has no quantization section"
            )
        stated = self.quantization.of(module)
        if stated is None:
            raise CheckpointError(
                f"{self._at(ref)} is quantized, but config.json says that module {module} is not"
            )
        if stated != affine:
            raise CheckpointError(
                f"{self._at(ref)} has {affine} by its shapes, but config.json says {stated}"
            )

    def _view(self, ref: TensorRef, shape: tuple[int, ...]) -> TensorView:
        return TensorView(self.file_index[ref.path], ref.offset, ref.dtype, shape)

    def refuse_leftovers(self) -> None:
        """Refuse tensors that nothing asked for."""
        for ref in self.left.values():
            more = f" (and {len(self.left) - 1} more are not)" if len(self.left) > 1 else ""
            raise CheckpointError(
                f"{self._at(ref)} is not a tensor of the model that config.json describes{more}"
            )

    def check_overrides(self) -> list[str]:
        """Warnings about per-module entries of config.json that fit no module of the model."""
        if self.quantization is None:
            return []
        known = self.affine.keys() | self.plain_modules
        unknown = [
            m for m, entry in self.quantization.modules.items() if m not in known and entry is not None
        ]
        unknown += self.quantization.unknown
        if not unknown:
            return []
        return [
            f"{self.folder}: {len(unknown)} quantization entries of config.json name no matrix, {shown(unknown[0])} first"
        ]


def _file_shapes(spec: TensorSpec) -> tuple[tuple[int, ...], ...]:
    """The shapes that files give a tensor of this kind."""
    if spec.kind is Kind.CONV:
        channels, taps = spec.shape
        return (channels, 1, taps), (channels, taps, 1)
    if spec.kind is Kind.PATCH:
        out, channels, *rest = spec.shape
        return spec.shape, (out, *rest, channels)
    if spec.kind is Kind.SCALE:
        return (), (1,)
    return (spec.shape,)


def _check_constants(
    config: ModelConfig, tensors: Mapping[str, TensorView], files: tuple[Path, ...], folder: Path
) -> None:
    """Compare the n-gram constants that the file ships with those derived from the config, and check the row scale."""
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
                        f"{folder}: tensor {at}{name} holds {shown(found)}, but config.json gives {shown(list(values))}"
                    )
        scale = at + "ngram_embedding.weight_scale"
        if scale in tensors:
            value = read_floats(files, tensors[scale])
            if not np.isfinite(value).all():
                raise CheckpointError(f"{folder}: tensor {scale} is {value.item()}, expected a finite number")


def read_floats(
    files: tuple[Path, ...], view: TensorView
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The values of a BF16 or F32 tensor as float32, in its shape."""
    data = read_view(files, view)
    if view.dtype == "F32":
        return np.frombuffer(data, "<f4").reshape(view.shape)
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view(np.float32).reshape(view.shape)


def _zero_centred(
    config: ModelConfig, tensors: Mapping[str, TensorView], files: tuple[Path, ...], folder: Path
) -> bool:
    """Whether an MLX file keeps norms as w or as 1 + w, told by the means of the layers' hc_norm weights."""
    names = [f"layers.{i}.attn_hyper_connection.hc_norm.weight" for i in range(config.n_layers)]
    means = np.array([read_floats(files, tensors[name]).astype(np.float64).mean() for name in names])
    median = float(np.median(means))
    above = int((means > 0.5).sum())
    if 2 * above > len(means) and 0.75 <= median <= 1.5:
        return False
    if 2 * above < len(means) and -0.5 <= median <= 0.25:
        return True
    raise CheckpointError(
        f"{folder}: the norms fit neither convention: the means of attn_hyper_connection.hc_norm have the median {median:.3f}, "
        "expected about 0 (stored as w) or about 1 (stored as 1 + w)"
    )


def _stop_tokens(folder: Path, config: ModelConfig) -> tuple[int, ...]:
    """The eos ids of generation_config.json, or the text model's where that file or its field is missing."""
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
