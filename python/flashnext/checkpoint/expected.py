"""What the files of a checkpoint hold, told from config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flashnext.checkpoint.affine import Affine, Quantization, parse_quantization
from flashnext.checkpoint.config import ModelConfig
from flashnext.checkpoint.config_reader import parse_config
from flashnext.checkpoint.fields import shown_path
from flashnext.checkpoint.folder import need_file, open_folder, read_json
from flashnext.checkpoint.names import Kind, model_specs
from flashnext.checkpoint.quantize import check_affine
from flashnext.checkpoint.views import TensorView
from flashnext.errors import CheckpointError

_TABLE = ".ngram_embedding.shard_"


@dataclass(frozen=True)
class Description:
    """A model as its config.json tells of it.

    Attributes:
        config: Its sizes.
        tensors: By canonical name; where they lie is not known and is 0.
    """

    config: ModelConfig
    tensors: Mapping[str, TensorView]


def describe(
    path: Path, *, bits: int | None = None, group: int = 32, table_group: int | None = None
) -> Description:
    """Read a config.json, or that of a folder, without looking at anything else.

    Args:
        path: The file or the folder.
        bits: As if `flashnext convert` had quantized it so; None: as the file says.
        group: Of that conversion.
        table_group: Of that conversion; None: `group`.

    Raises:
        InvalidArgument: Bits or a group are not supported.
        CheckpointError: The file is refused, or cannot be converted so.
    """
    file = path if path.is_file() else need_file(open_folder(path), "config.json")
    raw, where = read_json(file), f"{shown_path(path)}: "
    config, quantization = parse_config(raw, where), parse_quantization(raw, where)
    if bits is not None:
        if quantization is not None:
            raise CheckpointError(f"{where}it is quantized already; leave out --bits, or give a bf16 config")
        quantization = converted(config, bits, group, table_group, where)
    return Description(config, expected_tensors(config, quantization))


def expected_tensors(config: ModelConfig, quantization: Quantization | None) -> dict[str, TensorView]:
    """Find dtype and shape of each tensor by canonical name; where it will lie is not known and left at 0.

    Matrices are as `quantization` has them, and bfloat16 where their rows are no whole number of groups, as
    MLX leaves them; everything else is bfloat16. Optional tensors are left out.
    """
    tensors: dict[str, TensorView] = {}
    for spec in model_specs(config):
        if spec.kind in (Kind.CONSTANT, Kind.SCALE):
            continue
        module = spec.name.removesuffix(".weight")
        affine = quantization.of(module) if quantization and spec.kind is Kind.MATRIX else None
        if affine is None or spec.shape[-1] % affine.group:
            shape = spec.shape
            if spec.kind is Kind.PATCH and quantization:  # MLX has the channels last
                shape = (shape[0], *shape[2:], shape[1])
            tensors[spec.name] = TensorView(0, 0, "BF16", shape)
            continue
        *rows, width = spec.shape
        tensors[spec.name] = TensorView(0, 0, "U32", (*rows, width * affine.bits // 32))
        for part in ("scales", "biases"):
            tensors[f"{module}.{part}"] = TensorView(0, 0, "BF16", (*rows, width // affine.group))
    return tensors


def converted(
    config: ModelConfig, bits: int, group: int, table_group: int | None = None, where: str = ""
) -> Quantization:
    """Say how `flashnext convert` with these choices quantizes a model.

    Args:
        config: The model's sizes.
        bits: Of the codes.
        group: Inputs that share a scale.
        table_group: The same for the n-gram table; None: `group`.
        where: How error sentences call the checkpoint; ends in a separator.

    Raises:
        InvalidArgument: Bits or a group are not supported.
        CheckpointError: A group does not divide the rows of a matrix.
    """
    for size in (group, table_group or group):
        check_affine(bits, size)
    body, table = Affine(bits, group), Affine(bits, table_group or group)
    modules: dict[str, Affine | None] = {}
    for spec in model_specs(config):
        if spec.kind is not Kind.MATRIX:
            continue
        affine, hint = (table, "--table-group") if _TABLE in spec.name else (body, "--group")
        if spec.shape[-1] % affine.group:
            raise CheckpointError(
                f"{where}tensor {spec.name} has rows of {spec.shape[-1]} inputs, which groups of "
                f"{affine.group} do not divide; choose a smaller {hint}"
            )
        if affine != body:
            modules[spec.name.removesuffix(".weight")] = affine
    return Quantization(body, modules, ())
