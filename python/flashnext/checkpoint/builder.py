"""Matching the tensors of the files with those that a model must have: dtype, shape and quantization."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flashnext.checkpoint.affine import Affine, Quantization, derive_affine
from flashnext.checkpoint.fields import shown
from flashnext.checkpoint.names import Kind, TensorSpec, canonical_name
from flashnext.checkpoint.safetensors import TensorRef
from flashnext.checkpoint.shards import Shards
from flashnext.checkpoint.views import TensorView
from flashnext.errors import CheckpointError

_FLOATS = ("BF16", "F32")


class Builder:
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
        scale = ref.name.endswith((".weight_scale", ".weight_scale_inv"))
        if (
            ref.dtype.startswith(("F8_", "F6_"))
            or ref.dtype == "F4"
            or (scale and not ref.name.endswith(".ngram_embedding.weight_scale"))
        ):
            raise CheckpointError(
                f"{self._at(ref)} belongs to a quantization that flashnext does not support, found "
                f"{ref.dtype}; use the bf16 checkpoint or an MLX affine one"
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
        if ref.dtype == "U32" and spec.kind in (Kind.VISION, Kind.PATCH):
            raise CheckpointError(
                f"{self._at(ref)} is quantized, and the vision tower must be BF16 or F32; convert again "
                "without quantizing it"
            )
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
                f"{self.folder}: config.json quantizes module {module} "
                f"({self.quantization.modules[module]}), but the module has no scales"
            )
        head, _, part = module.rpartition(".")
        ref = None
        if part in ("gate_proj", "up_proj") and head.endswith(".mlp.experts"):
            ref = self._fused(head, spec)
            if ref is not None:
                _, width, d = spec.shape
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
        """Take the tensor that holds gate and up one after the other for each expert, if there is one."""
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
                f"{self._at(ref)} must have shape {' or '.join(str(list(s)) for s in shapes)}, found "
                f"{shown(list(ref.shape))}"
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
            f"{self.folder}: {len(unknown)} quantization entries of config.json name no matrix, "
            f"{shown(unknown[0])} first"
        ]


def _file_shapes(spec: TensorSpec) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that files give a tensor of this kind."""
    if spec.kind is Kind.CONV:
        channels, taps = spec.shape
        return (channels, 1, taps), (channels, taps, 1)
    if spec.kind is Kind.PATCH:
        out, channels, *rest = spec.shape
        return spec.shape, (out, *rest, channels)
    if spec.kind is Kind.SCALE:
        return (), (1,)
    return (spec.shape,)
