"""How the tokens of a reply are drawn and where it ends."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flashnext import _core
from flashnext.checkpoint.fields import Fields
from flashnext.checkpoint.folder import find_file, open_folder, read_json
from flashnext.grammar import Grammar
from flashnext.text.messages import InvalidField

MAX_STOPS = 16
MAX_STOP_CHARS = 4096
MAX_TOP_LOGPROBS = 20
PRIORITIES = ("normal", "background")

_FLAGS = ("draft", "cache", "ignore_eos", "parallel_calls", "prompt_logprobs")
# name: (lowest, highest, whether the lowest itself is allowed)
_RANGES = {
    "temperature": (0.0, 100.0, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "presence_penalty": (-100.0, 100.0, True),
    "frequency_penalty": (-100.0, 100.0, True),
    "repetition_penalty": (0.0, 100.0, False),
}


@dataclass(frozen=True)
class Sampling:
    """Settings of one request. None leaves a setting to the checkpoint's generation_config.json.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_k: Draw from the k likeliest tokens only; 0 or -1 for all.
        top_p: Draw from the fewest likeliest tokens that together have this probability.
        min_p: Draw from tokens of at least this share of the likeliest one's probability.
        presence_penalty: Subtracted from the logit of each token that the reply has.
        frequency_penalty: The same, times how often it has it.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt or reply.
        logit_bias: Added to the logits of these token ids.
        seed: Of the draws, any 64-bit number; None draws one.
        max_tokens: Most tokens of the reply. None, or more than the context leaves, means what it leaves.
        stop: The reply ends before the first of these strings.
        stop_token_ids: Ids that end the reply beside those of the checkpoint.
        logprobs: Report the log-probability of each token, and of this many of the likeliest; None for none.
        draft: Let drafts speed the reply up. They never change it.
        cache: Let the prompt go on from what was read before, and be kept for others. That never changes the
            reply.
        thinking_budget: Most tokens of a chat's thoughts; at it their block is closed, and the answer begins.
        ignore_eos: Go on after the checkpoint's end tokens, to max_tokens or the context.
        parallel_calls: Let a chat's reply make several calls; without, it ends after the first.
        priority: "normal", or "background" for a request that yields to those.
        prompt_logprobs: Report the log-probabilities of the prompt's own tokens too; `logprobs` says of how
            many of the likeliest.
        grammar: What the answer has to match. Log-probabilities stay those of the model alone.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    logprobs: int | None = None
    draft: bool = True
    cache: bool = True
    thinking_budget: int | None = None
    ignore_eos: bool = False
    parallel_calls: bool = True
    priority: str = "normal"
    prompt_logprobs: bool = False
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        """Check every range.

        Raises:
            InvalidField: The first field that is out of its range.
        """
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidField(name, f"expected True or False, found {getattr(self, name)!r}"[:200])
        for name, (low, high, closed) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not (
                _is_number(value) and low <= value <= high and (closed or _float32(value) > low)
            ):
                at_least = f"{low:g}" if closed else f"above {low:g}"
                raise InvalidField(
                    name, f"expected a number from {at_least} to {high:g}, found {value!r}"[:200]
                )
        _check_integer("top_k", self.top_k, -1, 2**31 - 1)
        _check_integer("seed", self.seed, -(2**63), 2**64 - 1)
        _check_integer("thinking_budget", self.thinking_budget, 0, 2**63)
        _check_integer("max_tokens", self.max_tokens, 1, 2**63)
        _check_integer("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        if self.prompt_logprobs and self.logprobs is None:
            raise InvalidField("prompt_logprobs", "they come with logprobs; set logprobs too, to 0 at least")
        if self.prompt_logprobs and self.thinking_budget is not None:
            raise InvalidField(
                "prompt_logprobs", "they do not go with a thinking budget; leave one of the two"
            )
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidField("grammar", f"expected a Grammar, found {type(self.grammar).__name__}")
        if self.grammar is not None and self.ignore_eos:
            raise InvalidField("ignore_eos", "a reply with a grammar ends where that does; leave it out")
        if self.priority not in PRIORITIES:
            raise InvalidField(
                "priority", f'expected "normal" or "background", found {self.priority!r}'[:200]
            )
        if isinstance(self.stop, str) or len(self.stop) > MAX_STOPS:
            raise InvalidField("stop", f"expected a list of at most {MAX_STOPS} strings")
        for i, text in enumerate(self.stop):
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
                raise InvalidField(f"stop[{i}]", f"expected text of 1 to {MAX_STOP_CHARS} characters")
        for token_id, bias in self.logit_bias.items():
            if not _is_number(bias) or not -100 <= bias <= 100:
                raise InvalidField(
                    f"logit_bias.{token_id}", f"expected a number from -100 to 100, found {bias!r}"[:200]
                )

    def to_core(self, defaults: Defaults, seed: int) -> _core.Sampling:
        """Say the same to the core, with the checkpoint's defaults filled in."""
        top_k = defaults.top_k if self.top_k is None else max(self.top_k, 0)
        return _core.Sampling(
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_k=top_k,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            min_p=defaults.min_p if self.min_p is None else self.min_p,
            seed=seed,
            presence=self.presence_penalty,
            frequency=self.frequency_penalty,
            repetition=self.repetition_penalty,
            bias=dict(self.logit_bias),
            logprobs=-1 if self.logprobs is None else self.logprobs,
        )


@dataclass(frozen=True)
class Defaults:
    """What the checkpoint's authors recommend, where a request says nothing."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def from_folder(cls, folder: str | Path) -> Defaults:
        """Read generation_config.json; plain sampling from the model's distribution where there is none.

        Raises:
            CheckpointError: A field is out of its range.
        """
        real = open_folder(folder)
        path = find_file(real, "generation_config.json")
        if path is None:
            return cls()
        fields = Fields(read_json(path), f"{real / 'generation_config.json'}: ")
        if not fields.flag("do_sample", True):
            return cls(temperature=0.0)
        return cls(
            temperature=fields.number("temperature", 0, 100, cls.temperature),
            top_k=fields.integer("top_k", 0, 2**31 - 1, cls.top_k),
            top_p=fields.number("top_p", 1e-6, 1, cls.top_p),
            min_p=fields.number("min_p", 0, 1, cls.min_p),
        )


def choice_seed(seed: int, choice: int) -> int:
    """Derive the seed of one of several replies to a request; the first has the request's own.

    The same as `choice_seed` of cpp/rounds/sampler.h.

    Args:
        seed: Of the request, 0 to 2^64 - 1.
        choice: Number of the reply, from 0.
    """
    return seed if choice == 0 else _splitmix64(seed ^ _splitmix64(choice))


def _splitmix64(x: int) -> int:
    mask = 2**64 - 1
    z = (x + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def _float32(value: float) -> float:
    """Round as the core does, where a tiny number may become 0."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)  # of any size: isfinite() would overflow


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidField(name, f"expected a whole number from {low} to {high}, found {value!r}"[:200])
