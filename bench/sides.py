"""The two sides of a comparison behind one small interface, and the one procedure that measures either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from samples import Meter

Tokens = npt.NDArray[np.int32]
WARM_UP_TOKENS = 512  # at ten experts a token, every page of the weights is touched


class Side(Protocol):
    """An engine with one loaded checkpoint and one sequence."""

    @property
    def n_vocab(self) -> int:
        """Ids the model knows."""

    def reset(self) -> None:
        """Forget the sequence."""

    def prompt(self, tokens: Tokens) -> None:
        """Read (N,) tokens and pick the first reply token, greedily; the sequence is empty before."""

    def decode(self, steps: int) -> None:
        """Add `steps` greedy tokens to the sequence, each computed from the one before."""


@dataclass(frozen=True)
class Plan:
    """What is measured on each side.

    Attributes:
        prompts: Lengths of timed prompts, tokens.
        contexts: Tokens already read when decoding is timed.
        steps: Tokens of one decode sample.
        n_samples: Samples of each metric in one process; half as many of prompts, which take longer.
    """

    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    steps: int
    n_samples: int

    @property
    def context(self) -> int:
        """Tokens that the longest measured sequence comes to."""
        decoded = self.steps * self.n_samples + 1
        return max(*self.prompts, *(n + decoded for n in self.contexts), WARM_UP_TOKENS) + 1

    @property
    def metrics(self) -> list[str]:
        """Names of what is measured, in order."""
        return [decode_metric(n) for n in self.contexts] + [prompt_metric(n) for n in self.prompts]


def decode_metric(context: int) -> str:
    """The name of the decode rate after so many tokens."""
    return f"decode @{context}"


def prompt_metric(tokens: int) -> str:
    """The name of the rate of reading so many tokens."""
    return f"prompt {tokens}"


def measure(side: Side, plan: Plan, meter: Meter, seed: int = 0) -> None:
    """Sample every metric of a plan, in tokens per second.

    Prompts are random ids, the same ones for each side, so experts are drawn evenly and nothing repeats.

    Args:
        side: The engine.
        plan: What to measure.
        meter: Takes the samples.
        seed: What the prompts are drawn from.
    """
    rng = np.random.default_rng(seed)

    def draw(n: int) -> Tokens:
        return rng.integers(0, side.n_vocab, n, dtype=np.int32)

    side.reset()
    side.prompt(draw(WARM_UP_TOKENS))
    side.decode(1)
    for context in plan.contexts:
        side.reset()
        side.prompt(draw(context))
        side.decode(1)
        for _ in range(plan.n_samples):
            meter.time(decode_metric(context), plan.steps, lambda: side.decode(plan.steps))
    for n in plan.prompts:
        for _ in range(max(1, plan.n_samples // 2)):
            side.reset()
            meter.time(prompt_metric(n), n, _reading(side, draw(n)))


def _reading(side: Side, tokens: Tokens) -> Callable[[], None]:
    return lambda: side.prompt(tokens)
