"""The sampler in plain Python, one rounded float32 operation after the other, so that its draws equal the
core's.

Source: the rules at the head of cpp/rounds/sampler.h, and the ties of docs/model.md; not the code.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

F = np.float32
MASK = 2**64 - 1
BLOCK = 1024  # ids whose weights are summed together


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """a * b + c, rounded once.

    The product is exact in float64; the sum is rounded to odd there, which makes the second rounding
    harmless.

    Source: Boldo and Melquiond 2008.
    """
    p, q = float(a) * float(b), float(c)
    s = p + q
    if not math.isfinite(s):
        return F(s)
    rest = (p - (s - (s - p))) + (q - (s - p))
    bits = struct.unpack("<q", struct.pack("<d", s))[0]
    if rest and bits % 2 == 0:
        # Step towards the exact sum; the neighbour's last bit is odd.
        bits += 1 if (rest > 0) == (s > 0) else -1
        s = struct.unpack("<d", struct.pack("<q", bits))[0]
    return F(s)


def exp(x: np.float32) -> np.float32:
    """e^x for x <= 0; 0 below -87."""
    if np.isnan(x):
        return x
    if x < F(-87):
        return F(0)
    n = F(np.rint(F(x * F(1.44269504088896341))))
    r = fma(n, F(-0.693145751953125), x)
    r = fma(n, F(-1.42860682030941723212e-6), r)
    p = F(1.9841270e-4)
    for c in (1.3888889e-3, 8.3333333e-3, 4.1666667e-2, 1.6666667e-1, 0.5, 1.0, 1.0):
        p = fma(p, r, F(c))
    return F(p * F(2.0 ** int(n)))


def log(x: np.float32) -> np.float32:
    """Natural logarithm of a positive normal number."""
    fraction, exponent = math.frexp(float(x))  # in [1/2, 1)
    if fraction < float(F(math.sqrt(0.5))):
        fraction, exponent = 2 * fraction, exponent - 1
    m, e = F(fraction), F(exponent)
    s = F(F(m - F(1)) / F(m + F(1)))
    z = F(s * s)
    p = F(0.1111111111)
    for c in (0.1428571429, 0.2, 0.3333333333):
        p = fma(p, z, F(c))
    series = fma(F(F(F(2) * s) * z), p, F(F(2) * s))
    return fma(e, F(0.693145751953125), fma(e, F(1.42860682030941723212e-6), series))


def mix(x: int) -> int:
    """SplitMix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def gumbel(seed: int, position: int, token: int) -> np.float32:
    """-log(-log u), u = (top 23 bits + 1/2) * 2^-23 of the hash of seed, position and token."""
    h = mix(mix(seed ^ mix(position)) ^ token)
    u = F((F(h >> 41) + F(0.5)) * F(2.0**-23))
    return F(-log(F(-log(u))))


@dataclass(frozen=True)
class Rules:
    """What shapes a draw; the defaults draw from the plain distribution."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)


def draw(
    logits: np.ndarray, n_valid: int, rules: Rules, position: int, prompt: Sequence[int], reply: Sequence[int]
) -> int:
    """The token at a position."""
    values = {i: F(logits[i]) for i in range(n_valid)}
    for token, add in rules.bias.items():
        values[token] = F(values[token] + F(add))
    for token in {*prompt, *reply}:
        x, times = values[token], reply.count(token)
        if rules.repetition != 1:
            x = F(x / F(rules.repetition)) if x > 0 else F(x * F(rules.repetition))
        if times:
            x = F(fma(F(-rules.frequency), F(times), x) - F(rules.presence))
        values[token] = x
    values = {i: x for i, x in values.items() if not np.isnan(x)}
    if not values:
        return 0
    if rules.temperature == 0:
        return min(values, key=lambda i: (-values[i], i))
    order = sorted(values, key=lambda i: (-values[i], i))
    top = values[order[0]]
    values = {i: F(0) if x == top else F(F(x - top) / F(rules.temperature)) for i, x in values.items()}

    def weight(i: int) -> np.float32:
        return F(1) if values[i] == 0 else exp(values[i])

    limited = 0 < rules.top_k < len(order)
    kept = order[: rules.top_k] if limited else order
    if rules.top_p < 1:
        total = F(0)
        if limited:
            for i in kept:
                total = F(total + weight(i))
        else:
            for start in range(0, n_valid, BLOCK):
                block = F(0)
                for i in range(start, min(start + BLOCK, n_valid)):
                    block = F(block + weight(i)) if i in values else block
                total = F(total + block)
        goal, share, n = F(F(rules.top_p) * total), F(0), 0
        while n < len(kept) and (n == 0 or share < goal):
            share, n = F(share + weight(kept[n])), n + 1
        kept = kept[:n]
    if rules.min_p > 0:
        kept = [i for i in kept if weight(i) >= F(rules.min_p)]
    noisy = {i: F(values[i] + gumbel(rules.seed, position, i)) for i in kept}
    return min(noisy, key=lambda i: (-noisy[i], i))
