"""Constants of the hashed n-gram embedding: multipliers, prime head sizes, offsets and padded row counts."""

from __future__ import annotations

from dataclasses import dataclass

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
# Miller-Rabin with these bases decides every n below 3.3e24 (Sorenson and Webster 2015), far above any table
# here.
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


@dataclass(frozen=True)
class NgramConstants:
    """What one PLE module's hash needs.

    Attributes:
        multipliers: One odd int64 factor for each of the `ngram_size` looked-at tokens.
        sizes: One prime modulus a head, (ngram_size - 1) * heads_per_ngram of them.
        offsets: First table row of each head.
        rows: Rows of the table, padding included.
    """

    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    rows: int


def splitmix64(value: int) -> int:
    """Finalize one step of the SplitMix64 generator from `value` (Steele, Lea and Flood 2014)."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def is_prime(n: int) -> bool:
    """Whether `n` (below 3.3e24) is prime."""
    if n < 2:
        return False
    for p in _WITNESSES:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _WITNESSES:
        x = pow(witness, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def ngram_constants(
    *,
    vocab_size: int,
    ngram_size: int,
    heads_per_ngram: int,
    size_base: int,
    row_multiple: int,
    seed: int,
    modules: int,
) -> tuple[NgramConstants, ...]:
    """Derive the constants of `modules` PLE modules; the primes of each follow those of the one before.

    Products of a token id and a multiplier stay below 2^63, so the hash never wraps.

    Source: transformers 5.23, `Qwen4ExpTextNGramEmbedding`; docs/model.md.
    """
    half = max(1, (2**63 - 1) // vocab_size // 2)
    heads = (ngram_size - 1) * heads_per_ngram
    out = []
    candidate = size_base - 1
    for module in range(modules):
        base = seed + 10007 * module
        multipliers = tuple(
            2 * (splitmix64((base + _GOLDEN * (i + 1)) & _MASK) % half) + 1 for i in range(ngram_size)
        )
        sizes: list[int] = []
        offsets: list[int] = []
        total = 0
        while len(sizes) < heads:
            candidate += 1
            if is_prime(candidate):
                sizes.append(candidate)
                offsets.append(total)
                total += candidate
        rows = -(-total // row_multiple) * row_multiple
        out.append(NgramConstants(multipliers, tuple(sizes), tuple(offsets), rows))
    return tuple(out)
