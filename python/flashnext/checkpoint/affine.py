"""What config.json says about affine quantization, and the bits and group that the shapes of a module say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashnext.checkpoint.fields import Fields, shown
from flashnext.checkpoint.names import canonical_name
from flashnext.errors import CheckpointError

SUPPORTED_BITS = (2, 3, 4, 5, 6, 8)
SUPPORTED_GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class Affine:
    """value = scale * code + bias, for each `group` consecutive inputs; codes have `bits` bits."""

    bits: int
    group: int

    def __str__(self) -> str:
        return f"{self.bits} bits, group {self.group}"


@dataclass(frozen=True)
class Quantization:
    """The quantization section of config.json.

    Attributes:
        default: What a quantized module has where nothing else is said.
        modules: Overrides by canonical module name; None: not quantized.
        unknown: Keys of overrides that name no module of the text model.
    """

    default: Affine
    modules: Mapping[str, Affine | None]
    unknown: tuple[str, ...]

    def of(self, module: str) -> Affine | None:
        """Say what a module has that has scales, or None where the section says that it has none."""
        return self.modules.get(module, self.default)


def parse_quantization(raw: Mapping[str, Any], where: str = "config.json: ") -> Quantization | None:
    """Read `quantization` (or the older `quantization_config`) of a parsed config.json.

    It may stand at the top or under `text_config`.

    Returns:
        The section, or None for a checkpoint that has none.

    Raises:
        CheckpointError: It asks for a mode, bits or a group that are not supported, or the two spellings
            disagree.
    """
    top = Fields(raw, where)
    found: list[tuple[str, Quantization]] = []
    for holder in filter(None, (top, top.section("text_config"))):
        for field in ("quantization", "quantization_config"):
            section = holder.section(field)
            if section is not None:
                found.append((holder.name(field), _parse_section(section)))
    for name, other in found[1:]:
        if other != found[0][1]:
            raise CheckpointError(f"{found[0][0]} and {name} disagree; keep one of them")
    return found[0][1] if found else None


def _parse_section(section: Fields) -> Quantization:
    method = section.values.get("quant_method")
    if method not in (None, "affine", "mlx"):
        raise CheckpointError(
            f"{section.name('quant_method')} is {shown(method)}, which flashnext does not support; use a "
            "bf16 checkpoint or an MLX affine one"
        )
    modules: dict[str, Affine | None] = {}
    unknown: list[str] = []
    for key, value in section.values.items():
        if key in ("bits", "group_size", "mode", "quant_method"):
            continue
        if isinstance(value, bool):
            entry = _parse_affine(section, None) if value else None
        elif isinstance(value, dict):
            entry = _parse_affine(Fields(value, f"{section.name(key)}."), Affine(4, 64))
        else:
            section.refuse(key, "true, false or an object with bits and group_size")
        module = _canonical_module(key)
        if module is None:
            unknown.append(key)
        elif modules.setdefault(module, entry) != entry:
            section.refuse(key, f"the same as another entry for {module}")
    return Quantization(_parse_affine(section, None), modules, tuple(unknown))


def _parse_affine(fields: Fields, default: Affine | None) -> Affine:
    mode = fields.values.get("mode", "affine")
    if mode != "affine":
        raise CheckpointError(f"{fields.name('mode')} is {shown(mode)}; flashnext supports only affine")

    def choice(field: str, supported: tuple[int, ...], fallback: int | None) -> int:
        value = fields.values.get(field, fallback)
        if isinstance(value, bool) or not isinstance(value, int) or value not in supported:
            fields.refuse(field, f"one of {', '.join(map(str, supported))}")
        return value

    bits = choice("bits", SUPPORTED_BITS, default.bits if default else None)
    return Affine(bits, choice("group_size", SUPPORTED_GROUPS, default.group if default else None))


def _canonical_module(key: str) -> str | None:
    for layout in ("mlx", "hf"):
        name = canonical_name(key + ".weight", layout)
        if name is not None:
            return name.replace(".mlp.switch_mlp.", ".mlp.experts.").removesuffix(".weight")
    return None


def derive_affine(
    where: str,
    full: tuple[int, ...],
    words: tuple[int, ...],
    scales: tuple[int, ...],
    biases: tuple[int, ...],
) -> Affine:
    """Derive the bits and group of a module from the shapes of its three tensors.

    Args:
        where: File and module, for errors.
        full: Shape of the unquantized matrix, (..., out, in).
        words: Shape of the uint32 words, (..., out, in * bits / 32).
        scales: Shape of the scales, (..., out, in / group).
        biases: Shape of the biases, that of the scales.

    Raises:
        CheckpointError: The shapes fit no supported bits and group.
    """
    rows, width = full[:-1], full[-1]
    if words[:-1] != rows or scales[:-1] != rows or biases != scales:
        raise CheckpointError(
            f"{where}: expected words, scales and biases of {list(rows)} rows, found shapes {list(words)}, "
            f"{list(scales)} and {list(biases)}"
        )
    groups = [g for g in SUPPORTED_GROUPS if width % g == 0 and width // g == scales[-1]]
    bits = [b for b in SUPPORTED_BITS if 32 * words[-1] == width * b]
    if not groups or not bits:
        raise CheckpointError(
            f"{where}: rows of {width} inputs in {words[-1]} words with {scales[-1]} scales are none of bits "
            f"{', '.join(map(str, SUPPORTED_BITS))} in groups of {', '.join(map(str, SUPPORTED_GROUPS))}"
        )
    return Affine(bits[0], groups[0])
