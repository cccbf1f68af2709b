"""Write a seeded random checkpoint of the Qwen3.8-Flash-Next architecture, to measure engines on.

    python bench/make_model.py nano OUT              Hugging Face layout, bfloat16
    python bench/make_model.py mid OUT --mlx 6       MLX affine layout, group 32, by mlx.core.quantize

Names and shapes are those of the published checkpoints. Tensors are written in shards of 1 GiB as they are
drawn, so the memory it takes is about a shard and the largest tensor, in bfloat16. Extra: `peers`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
from preset import MLX_GROUP, N_SPECIAL_ROWS, PRESETS, SPECIALS, Preset, config
from random_tensors import Spec, make, specs
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SHARD_BYTES = 1 << 30

CHAT_TEMPLATE = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '\\n</think>\\n\\n' }}{% endif %}{% endif -%}
"""

SPLIT = (  # the family's pre-tokenization: contractions, words, single digits, punctuation, newlines, spaces
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def to_mlx(spec: Spec, x: mx.array, bits: int) -> Iterator[tuple[str, mx.array]]:
    """Yield the MLX tensors of one Hugging Face tensor: renamed, experts split, matrices quantized.

    Args:
        spec: The tensor's name and kind.
        x: Its values.
        bits: Bits of a code.
    """
    name = spec.name
    if name.startswith("model.language_model."):
        name = "language_model.model." + name.removeprefix("model.language_model.")
    else:
        name = "language_model." + name
    if spec.kind == "norm":
        x = 1 + x
    if name.endswith("conv1d.weight"):
        yield name, x.swapaxes(1, 2)
    elif name.endswith(".experts.gate_up_proj"):
        module, (gate, up) = name.replace(".experts.gate_up_proj", ".switch_mlp"), mx.split(x, 2, axis=1)
        yield from _quantized(f"{module}.gate_proj", gate, bits)
        yield from _quantized(f"{module}.up_proj", up, bits)
    elif name.endswith(".experts.down_proj"):
        yield from _quantized(name.replace(".experts.", ".switch_mlp."), x, bits)
    elif x.ndim == 2 and not name.endswith(".mlp.gate.weight"):
        yield from _quantized(name.removesuffix(".weight"), x, bits)
    else:
        yield name, x


def write_weights(out: Path, tensors: Iterable[tuple[str, mx.array]], form: str) -> int:
    """Write `model-XXXXX-of-XXXXX.safetensors` and the index.

    Args:
        out: The checkpoint's folder.
        tensors: Names and values in file order.
        form: The `format` of the files' metadata.

    Returns:
        Bytes of all tensors.
    """
    shards: list[tuple[Path, list[str]]] = []
    shard: dict[str, mx.array] = {}
    size_bytes = total_bytes = 0

    def flush() -> None:
        path = out / f"part{len(shards)}.safetensors"
        mx.save_safetensors(str(path), shard, {"format": form})
        shards.append((path, list(shard)))

    for name, x in tensors:
        if shard and size_bytes + x.nbytes > SHARD_BYTES:
            flush()
            shard, size_bytes = {}, 0
        shard[name] = mx.contiguous(x)
        mx.eval(shard[name])
        size_bytes, total_bytes = size_bytes + x.nbytes, total_bytes + x.nbytes
    flush()
    where: dict[str, str] = {}
    for i, (path, names) in enumerate(shards, 1):
        final = f"model-{i:05}-of-{len(shards):05}.safetensors"
        path.rename(out / final)
        where |= dict.fromkeys(names, final)
    _dump(out / "model.safetensors.index.json", dict(metadata=dict(total_size=total_bytes), weight_map=where))
    return total_bytes


def write_tokenizer(out: Path, preset: Preset) -> None:
    """Write a byte-level BPE of the preset's size: bytes, then short words."""
    vocab = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = set(vocab)
    merges: list[tuple[str, str]] = []
    for left, right in _words():
        if len(vocab) == preset.vocab_size - N_SPECIAL_ROWS:
            break
        if left in known:
            merges.append((left, right))
            vocab.append(left + right)
            known.add(left + right)
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(vocab)}, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(s, normalized=False, special=s.startswith("<|")) for s in SPECIALS])
    tokenizer.save(str(out / "tokenizer.json"))
    _dump(
        out / "tokenizer_config.json",
        dict(
            tokenizer_class="Qwen2Tokenizer",
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            bos_token=None,
            add_prefix_space=False,
            clean_up_tokenization_spaces=False,
            model_max_length=preset.max_position_embeddings,
        ),
    )
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    end, stop = preset.special_id("<|endoftext|>"), preset.special_id("<|im_end|>")
    _dump(
        out / "generation_config.json",
        dict(
            eos_token_id=[stop, end], pad_token_id=end, do_sample=True, temperature=1.0, top_p=0.95, top_k=20
        ),
    )


def write_checkpoint(preset: Preset, out: Path, bits: int | None = None, seed: int = 0) -> int:
    """Write a whole checkpoint folder.

    Args:
        preset: The sizes.
        out: The folder; made where it is missing.
        bits: Bits of the MLX layout, or None for the Hugging Face layout.
        seed: What all values are drawn from.

    Returns:
        Bytes of all tensors.
    """
    out.mkdir(parents=True, exist_ok=True)

    def tensors() -> Iterator[tuple[str, mx.array]]:
        for spec in specs(preset):
            x = make(preset, seed, spec)
            yield from [(spec.name, x)] if bits is None else to_mlx(spec, x, bits)

    total_bytes = write_weights(out, tensors(), "pt" if bits is None else "mlx")
    _dump(out / "config.json", config(preset, bits))
    write_tokenizer(out, preset)
    return total_bytes


def _quantized(module: str, x: mx.array, bits: int) -> Iterator[tuple[str, mx.array]]:
    codes, scales, biases = mx.quantize(x, group_size=MLX_GROUP, bits=bits)
    yield f"{module}.weight", codes
    yield f"{module}.scales", scales
    yield f"{module}.biases", biases


def _words() -> Iterator[tuple[str, str]]:
    """Merges in order of length: each word of up to four letters as (all but its last letter, the last)."""
    letters = "etaoinshrdlcumwfgypbvkjxqz"
    for n in (1, 2, 3):
        for before in ("\u0120", ""):  # the byte-level alphabet's space
            for word in product(letters, repeat=n):
                if before or n > 1:
                    yield before + "".join(word[:-1]), word[-1]


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--mlx", type=int, choices=(4, 6, 8), metavar="BITS", help="MLX layout at 4, 6 or 8 bits"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    mx.set_default_device(mx.Device(mx.cpu))
    mx.set_cache_limit(0)  # buffers of one tensor seldom fit the next
    total_bytes = write_checkpoint(PRESETS[args.preset], args.out, args.mlx, args.seed)
    print(f"{args.out}: {total_bytes:,} bytes of tensors")


if __name__ == "__main__":
    main()
