"""What the sampler's kernels have to give, computed with numpy one rounded float32 operation after the other.

A draw is exact: no bound stands for it. exp, log and the noise are polynomials in fixed order with explicit
fma, sums run by ascending id in blocks of SAMPLER_BLOCK and then over the blocks, or over candidates by
value, then id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from flashnext.contract.scalars import Array
from flashnext.contract.structs import MAX_TOP, SAMPLER_BLOCK, STRUCTS

Float32 = npt.NDArray[np.float32]
F = np.float32


@dataclass(frozen=True)
class Rules:
    """How a reply is drawn; the defaults draw from the plain distribution."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)
    n_logprobs: int = -1

    @property
    def penalizes(self) -> bool:
        """Whether what occurred changes values."""
        return self.presence != 0 or self.frequency != 0 or self.repetition != 1


@dataclass(frozen=True)
class Text:
    """What a row knows of its reply.

    Attributes:
        tokens: Prompt, reply and drafts by position.
        n_prompt, n_counted: Where the reply, and what no count holds, begin.
        position: Of the token to draw; those from it on are not known yet.
        seed: Of the noise.
        mask: (n_valid or more,) bool, the ids that a grammar allows; None for all.
    """

    tokens: Sequence[int]
    n_prompt: int
    n_counted: int
    position: int
    seed: int
    mask: Array | None = None

    def prompt(self, n_valid: int) -> Array:
        """Count the prompt's tokens."""
        return np.bincount(self.tokens[: self.n_prompt], minlength=n_valid).astype(np.int32)

    def reply(self, n_valid: int, counted: bool = False) -> Array:
        """Count the reply's tokens, or those that counts hold."""
        end = self.n_counted if counted else self.position
        return np.bincount(self.tokens[self.n_prompt : end], minlength=n_valid).astype(np.int32)


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> Float32:
    """Compute a * b + c, rounded once.

    The product is exact in float64; its sum is rounded to odd there, so that the second rounding is right.

    Source: Boldo and Melquiond 2008.
    """
    p, q = np.asarray(a, np.float64) * np.asarray(b, np.float64), np.asarray(c, np.float64)
    s = p + q
    with np.errstate(invalid="ignore"):
        rest = (p - (s - (s - p))) + (q - (s - p))
    bits = np.array(s).view(np.int64)
    odd = np.isfinite(s) & (rest != 0) & (bits % 2 == 0)
    bits = bits + np.where(odd, np.where((rest > 0) == (s > 0), 1, -1), 0)
    with np.errstate(over="ignore"):
        return bits.view(np.float64).astype(F)


def exp(x: Float32) -> Float32:
    """e^x for x <= 0 without NaN; 0 below -87."""
    inside = np.maximum(x, F(-87))
    n = np.rint(inside * F(1.44269504088896341))
    r = fma(n, F(-0.693145751953125), inside)
    r = fma(n, F(-1.42860682030941723212e-6), r)
    p = np.full(np.shape(x), F(1.9841270e-4))
    for c in (1.3888889e-3, 8.3333333e-3, 4.1666667e-2, 1.6666667e-1, 0.5, 1.0, 1.0):
        p = fma(p, r, F(c))
    return np.where(x < F(-87), F(0), np.ldexp(p, n.astype(np.int32))).astype(F)


def log(x: Float32) -> Float32:
    """Natural logarithm of positive normal numbers."""
    fraction, exponent = np.frexp(x)
    low = fraction < F(np.sqrt(0.5))
    m, e = np.where(low, 2 * fraction, fraction), (exponent - low).astype(F)
    s = (m - F(1)) / (m + F(1))
    z = s * s
    p = np.full(np.shape(x), F(0.1111111111))
    for c in (0.1428571429, 0.2, 0.3333333333):
        p = fma(p, z, F(c))
    series = fma((F(2) * s) * z, p, F(2) * s)
    return fma(e, F(0.693145751953125), fma(e, F(1.42860682030941723212e-6), series))


def mix(x: Array) -> Array:
    """SplitMix64 of uint64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def noise(seed: int, position: int, ids: Array) -> Float32:
    """-log(-log u) with u = (top 23 bits + 1/2) * 2^-23 of a hash of seed, position and id."""
    place = mix(np.array([position], np.uint64))
    h = mix(mix(np.array([seed], np.uint64) ^ place) ^ ids.astype(np.uint64))
    u = ((h >> np.uint64(41)).astype(F) + F(0.5)) * F(2.0**-23)
    return -log(-log(u))


def digest(logits: Float32) -> np.uint64:
    """Hash a row's logits: the sum of mix(id * 2^32 + bits) modulo 2^64."""
    ids = np.arange(len(logits), dtype=np.uint64)
    return np.uint64(
        mix(ids << np.uint64(32) | logits.view(np.uint32).astype(np.uint64)).sum(dtype=np.uint64)
    )


def in_order(x: Float32) -> np.float32:
    """Sum one after the other."""
    return F(np.add.accumulate(x, dtype=F)[-1]) if x.size else F(0)


def blocks(x: Array) -> list[Array]:
    """Cut a row into its blocks."""
    return [x[at : at + SAMPLER_BLOCK] for at in range(0, len(x), SAMPLER_BLOCK)]


def largest(x: Float32) -> np.float32:
    """Find the largest number, -inf where there is none."""
    numbers = x[~np.isnan(x)]
    return F(numbers.max() + F(0)) if numbers.size else F(-np.inf)


def order(x: Float32) -> Array:
    """Ids of numbers by value descending, then id."""
    ids = np.flatnonzero(~np.isnan(x))
    return ids[np.argsort(-x[ids], kind="stable")]


@dataclass(frozen=True)
class Draw:
    """One row's draw.

    Args:
        logits: (n_valid,) float32.
        rules: Of its reply.
        text: Of its reply.
    """

    logits: Float32
    rules: Rules
    text: Text

    @cached_property
    def values(self) -> tuple[Float32, Array]:
        """Apply bias and penalties, then the mask; also whether any of them applies to each id."""
        x, touched = self._penalized()
        if self.text.mask is None:
            return x, touched
        left_out = ~self.text.mask[: len(x)]
        return np.where(left_out, F(np.nan), x), touched | left_out

    def _penalized(self) -> tuple[Float32, Array]:
        rules, x, n = self.rules, self.logits.copy(), len(self.logits)
        touched = np.zeros(n, bool)
        for token, add in rules.bias.items():
            x[token] += F(add)
            touched[token] = True
        if not rules.penalizes:
            return x, touched
        times = self.text.reply(n)
        seen = (self.text.prompt(n) > 0) | (times > 0)
        by = F(rules.repetition)
        x = np.where(seen, np.where(x > 0, x / by, x * by), x)
        x = np.where(times > 0, fma(F(-rules.frequency), times, x) - F(rules.presence), x)
        return x, touched | seen

    def maxima(self) -> Array:
        """BlockMax of each block."""
        values, touched = self.values
        out = np.zeros(len(blocks(values)), STRUCTS["BlockMax"])
        out["value"] = [largest(b) for b in blocks(values)]
        out["logit"] = [largest(b) for b in blocks(self.logits)]
        out["numbers"] = [(~np.isnan(b)).sum() for b in blocks(self.logits)]
        out["drawable"] = [(~np.isnan(b)).sum() for b in blocks(values)]
        group = SAMPLER_BLOCK // 32
        out["changed"] = [
            sum(1 << g for g in range(32) if b[g * group : (g + 1) * group].any()) for b in blocks(touched)
        ]
        return out

    @cached_property
    def distances(self) -> Float32:
        """How far each id is from the largest value, in temperatures."""
        values, top = self.values[0], largest(self.values[0])
        with np.errstate(all="ignore"):
            return np.where(values == top, F(0), (values - top) / F(self.rules.temperature)).astype(F)

    def cuts_k(self) -> bool:
        """Whether top_k leaves out any id."""
        return 0 < self.rules.top_k < int((~np.isnan(self.values[0])).sum())

    def parts(self) -> Array:
        """BlockPart of each block."""
        out = np.zeros(-(-len(self.logits) // SAMPLER_BLOCK), STRUCTS["BlockPart"])
        out["id"] = -1
        if self.rules.temperature == 0 or np.isnan(self.values[0]).all() or self.cuts_k():
            return out
        d = self.distances
        weight = exp(np.where(np.isnan(d), F(-np.inf), d))
        if self.rules.top_p < 1:
            out["sum"] = [in_order(b) for b in blocks(weight)]
        noisy = d + noise(self.text.seed, self.text.position, np.arange(len(d)))
        start = noisy[order(self.values[0])[0]]
        kept = ~np.isnan(d) & ((weight >= F(self.rules.min_p)) | (self.rules.min_p == 0)) & (noisy >= start)
        for i, (here, ok) in enumerate(zip(blocks(noisy), blocks(kept), strict=True)):
            if ok.any():
                best = int(np.argmax(np.where(ok, here, F(-np.inf))))
                out[i]["value"], out[i]["id"] = here[best], i * SAMPLER_BLOCK + best
        return out

    def token(self) -> int:
        """Draw the token; -1 where all values are NaN."""
        if np.isnan(self.values[0]).all():
            return -1
        rules = self.rules
        if rules.temperature == 0:
            return int(order(self.values[0])[0])
        d = self.distances
        weight = exp(np.where(np.isnan(d), F(-np.inf), d))
        kept = order(d)[: rules.top_k if self.cuts_k() else None]
        if rules.top_p < 1:
            total = in_order(
                weight[kept] if self.cuts_k() else np.array([in_order(b) for b in blocks(weight)], F)
            )
            before = np.add.accumulate(np.concatenate([[F(0)], weight[kept]]), dtype=F)[:-1]
            reached = np.flatnonzero(before[1:] >= F(rules.top_p) * total)
            kept = kept[: reached[0] + 1] if reached.size else kept
        if rules.min_p > 0:
            kept = kept[weight[kept] >= F(rules.min_p)]
        noisy = d[kept] + noise(self.text.seed, self.text.position, kept)
        return int(kept[np.lexsort((kept, -noisy))[0]])

    def log_sums(self) -> Float32:
        """Sum e^(logit - largest) over each block; 0 where no log-probabilities are wanted."""
        top = largest(self.logits)
        if self.rules.n_logprobs < 0 or not np.isfinite(top):
            return np.zeros(len(blocks(self.logits)), F)
        numbers = np.where(np.isnan(self.logits), F(-np.inf), self.logits)
        return np.array([in_order(b) for b in blocks(exp(numbers - top))], F)

    def logprobs(self, token: int) -> tuple[np.float32, Array, Float32]:
        """Log-probability of a token; ids and log-probabilities of the likeliest, (MAX_TOP,) each."""
        ids, values = np.full(MAX_TOP, -1, np.int32), np.full(MAX_TOP, F(np.nan))
        if self.rules.n_logprobs < 0 or np.isnan(self.logits).all():
            return F(np.nan), ids, values
        top = largest(self.logits)
        if np.isfinite(top):
            of = (self.logits - top) - log(np.array([in_order(self.log_sums())])) + F(0)
        else:
            of = np.full(len(self.logits), F(np.nan))
        listed = order(self.logits)[: min(self.rules.n_logprobs, MAX_TOP)]
        ids[: len(listed)], values[: len(listed)] = listed, of[listed]
        return F(of[token]) if not np.isnan(of[token]) else F(np.nan), ids, values
